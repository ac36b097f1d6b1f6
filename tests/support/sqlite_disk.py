"""Records what SQLite does to its files, for crash images: the calls of its own file layer, with a Python hook around each.

Where SQLite is a library of its own (as with most Pythons) its default file layer is a table of functions in memory, and
so are the methods of each open file. The recorder puts itself into both while it is used. The shared memory beside a
write-ahead log is mapped, not written: it is in no image, and the first process after a power cut builds it anew.

What the store itself does to the file of its sequence, and to the log, it does through `os`: these calls are recorded
between SQLite's, in the order in which they were made.

Source: SQLite documentation, "The SQLite OS Interface or VFS": `sqlite3_vfs` and `sqlite3_io_methods`.
"""

from __future__ import annotations

import _sqlite3
import ctypes
import logging
import os
from contextlib import contextmanager
from ctypes import CFUNCTYPE, POINTER, c_char_p, c_int, c_int64, c_void_p
from pathlib import Path

import pytest

from quire_testing.crash.operations import (
    CreateFile,
    Milestone,
    Recording,
    Remove,
    Resize,
    Sync,
    SyncDirectory,
    Write,
)
from quire_testing.kit.memory import DIRECTORY, Tree

OPEN = CFUNCTYPE(c_int, c_void_p, c_void_p, c_void_p, c_int, c_void_p)  # SQLite keeps the name's address
DELETE = CFUNCTYPE(c_int, c_void_p, c_char_p, c_int)
WRITE = CFUNCTYPE(c_int, c_void_p, c_void_p, c_int, c_int64)
TRUNCATE = CFUNCTYPE(c_int, c_void_p, c_int64)
SYNC = CFUNCTYPE(c_int, c_void_p, c_int)
OPEN_DIRECTORY = CFUNCTYPE(c_int, c_char_p, c_void_p)
SET_CALL = CFUNCTYPE(c_int, c_void_p, c_char_p, c_void_p)
GET_CALL = CFUNCTYPE(c_void_p, c_void_p, c_char_p)


class Vfs(ctypes.Structure):
    """A file layer."""

    _fields_ = [
        ("version", c_int),
        ("file_bytes", c_int),
        ("path_max", c_int),
        ("next", c_void_p),
        ("name", c_char_p),
        ("data", c_void_p),
        ("open", c_void_p),
        ("delete", c_void_p),
        ("others", c_void_p * 11),  # access to currentTimeInt64
        ("set_call", c_void_p),
        ("get_call", c_void_p),
    ]


class Methods(ctypes.Structure):
    """What can be done with an open file; version 3."""

    _fields_ = [
        ("version", c_int),
        ("close", c_void_p),
        ("read", c_void_p),
        ("write", c_void_p),
        ("truncate", c_void_p),
        ("sync", c_void_p),
        ("others", c_void_p * 13),  # file_size to unfetch
    ]


def address(function) -> int | None:
    return ctypes.cast(function, c_void_p).value


@contextmanager
def warnings():
    """What is logged of files that went back in time, or beside which the sequence is damaged."""
    found = []
    handler = logging.Handler()
    handler.emit = lambda record: found.append(record.getMessage())
    logger = logging.getLogger("quire.metadata.sqlite.sequence")
    logger.addHandler(handler)
    try:
        yield found
    finally:
        logger.removeHandler(handler)


class SqliteRecorder:
    """While it is entered, everything that SQLite does below `root` is recorded; `milestone` puts in what callers were told.

    Attributes:
        recording: so far.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.recording = Recording(
            Tree({str(one): DIRECTORY for one in (root, *root.parents) if str(one) != "/"})
        )
        self._next = 0
        self._numbers: dict[str, int] = {}
        self._open: dict[int, int] = {}
        self._methods: dict[int, Methods] = {}
        self._calls = {}
        self._synced_directories: list[str] | None = None
        self._descriptors: dict[int, str] = {}
        self._os = {}

    def milestone(self, what: object) -> None:
        self.recording.operations.append(Milestone(what))

    def __enter__(self):
        library = ctypes.CDLL(_sqlite3.__file__)
        try:
            find = library.sqlite3_vfs_find
        except AttributeError:
            pytest.skip("this Python has SQLite built in: its file layer cannot be reached")
        find.restype = POINTER(Vfs)
        self._vfs = vfs = find(None).contents
        assert vfs.version >= 3
        self._saved = (vfs.open, vfs.delete)
        self._call_open, self._call_delete = OPEN(vfs.open), DELETE(vfs.delete)
        get_call = GET_CALL(vfs.get_call)
        self._call_open_directory = OPEN_DIRECTORY(get_call(ctypes.addressof(vfs), b"openDirectory"))
        self._hooks = (
            OPEN(self._opened),
            DELETE(self._deleted),
            WRITE(self._written),
            TRUNCATE(self._truncated),
            SYNC(self._synced),
            OPEN_DIRECTORY(self._directory_opened),
        )
        vfs.open, vfs.delete = address(self._hooks[0]), address(self._hooks[1])
        SET_CALL(vfs.set_call)(ctypes.addressof(vfs), b"openDirectory", address(self._hooks[5]))
        ours = {
            "mknod": self._python_made,
            "open": self._python_opened,
            "close": self._python_closed,
            "pwrite": self._python_written,
            "fdatasync": self._python_synced,
            "fsync": self._python_synced,
        }
        self._os = {name: getattr(os, name) for name in ours}
        for name, call in ours.items():
            setattr(os, name, call)
        return self

    def __exit__(self, *_):
        for name, call in self._os.items():
            setattr(os, name, call)
        vfs = self._vfs
        vfs.open, vfs.delete = self._saved
        SET_CALL(vfs.set_call)(ctypes.addressof(vfs), b"openDirectory", None)

    # --- hooks --------------------------------------------------------------------------------------------------

    def _keep(self, operation) -> None:
        self.recording.operations.append(operation)

    def _opened(self, vfs, name, file, flags, flags_out):
        path = Path(ctypes.string_at(name).decode()) if name else None
        missing = path is not None and not path.exists()
        code = self._call_open(vfs, name, file, flags, flags_out)
        if code or path is None or not path.is_relative_to(self.root):
            return code
        if missing:
            self._next += 1
            self._numbers[str(path)] = self._next
            self._keep(CreateFile(str(path), self._numbers[str(path)]))
        self._open[file] = self._numbers[str(path)]
        pointer = ctypes.cast(file, POINTER(c_void_p))  # a file begins with the address of its methods
        ours = self._methods.get(pointer[0])
        if ours is None:
            ours = Methods.from_buffer_copy(ctypes.string_at(pointer[0], ctypes.sizeof(Methods)))
            ours.calls = WRITE(ours.write), TRUNCATE(ours.truncate), SYNC(ours.sync)
            ours.write, ours.truncate, ours.sync = map(address, self._hooks[2:5])
            self._methods[pointer[0]] = ours
        self._calls[file] = ours.calls
        pointer[0] = ctypes.addressof(ours)
        return code

    def _deleted(self, vfs, name, sync_directory):
        path = name.decode()
        if Path(path).exists() and self._numbers.pop(path, None) is not None:
            self._keep(Remove(path))
        return self._call_delete(vfs, name, sync_directory)

    def _written(self, file, data, size, offset):
        self._keep(Write(self._open[file], offset, ctypes.string_at(data, size)))
        return self._calls[file][0](file, data, size, offset)

    def _truncated(self, file, size):
        self._keep(Resize(self._open[file], size))
        return self._calls[file][1](file, size)

    def _synced(self, file, flags):
        """The file first, then, if it is new, the directory that it is in."""
        self._synced_directories = []
        code = self._calls[file][2](file, flags)
        assert code == 0
        self._keep(Sync(self._open[file]))
        for directory in self._synced_directories:
            self._keep(SyncDirectory(directory))
        self._synced_directories = None
        return code

    def _directory_opened(self, name, descriptor):
        directory = str(Path(name.decode()).parent)
        if self._synced_directories is None:
            self._keep(SyncDirectory(directory))
        else:
            self._synced_directories.append(directory)
        return self._call_open_directory(name, descriptor)

    # --- what the store does itself -----------------------------------------------------------------------------

    def _python_made(self, path, mode):
        self._os["mknod"](path, mode)
        if Path(path).is_relative_to(self.root):
            self._next += 1
            self._numbers[str(path)] = self._next
            self._keep(CreateFile(str(path), self._next))

    def _python_opened(self, path, flags, mode=0o777):
        name = str(path)
        missing = name.endswith("-sequence") and not Path(name).exists()
        descriptor = self._os["open"](path, flags, mode)
        if missing and Path(name).is_relative_to(self.root):
            self._next += 1
            self._numbers[name] = self._next
            self._keep(CreateFile(name, self._next))
        if name in self._numbers or name == str(self.root):
            self._descriptors[descriptor] = name
        return descriptor

    def _python_closed(self, descriptor):
        self._descriptors.pop(descriptor, None)
        self._os["close"](descriptor)

    def _python_written(self, descriptor, data, offset):
        if descriptor in self._descriptors:
            self._keep(Write(self._numbers[self._descriptors[descriptor]], offset, bytes(data)))
        return self._os["pwrite"](descriptor, data, offset)

    def _python_synced(self, descriptor):
        self._os["fsync"](descriptor)
        name = self._descriptors.get(descriptor)
        if name is not None:
            self._keep(SyncDirectory(name) if name == str(self.root) else Sync(self._numbers[name]))

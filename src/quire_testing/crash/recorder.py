"""Records what a run does to its files: put it between a program and its `Files`.

Everything passes through to the files below; what changed them is kept with its bytes, in the order in which the calls
returned. `milestone` puts into the same order what the program acknowledged. Calls may come from several threads.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from quire.env.interfaces import Buffer, File, Files, FileStamp, Lock
from quire_testing.crash.operations import (
    CreateFile,
    FailedSync,
    MakeDirectory,
    Milestone,
    Operation,
    Recording,
    Remove,
    Rename,
    Resize,
    Sync,
    SyncDirectory,
    Write,
)
from quire_testing.kit.disk import Stopped
from quire_testing.kit.memory import DIRECTORY, Tree


class RecordingFile:
    """An open file whose writes and syncs are recorded."""

    __slots__ = ("_direct", "_file", "_number", "_recorder")

    def __init__(self, recorder: RecordingFiles, file: File, number: int, *, direct: bool) -> None:
        self._recorder = recorder
        self._file = file
        self._number = number
        self._direct = direct

    def read_at(self, offset: int, size: int) -> bytes:
        return self._file.read_at(offset, size)

    def write_at(self, data: Buffer, offset: int) -> None:
        with self._recorder.changing():
            try:
                self._file.write_at(data, offset)
            except OSError:
                # Any part of it may have been written, and whether a direct write is on the disk is unknown.
                self._recorder.keep(Write(self._number, offset, bytes(data)))
                if self._direct:
                    self._recorder.keep(FailedSync(self._number))
                raise
            self._recorder.keep(Write(self._number, offset, bytes(data), self._direct))

    def sync(self) -> None:
        with self._recorder.changing():
            try:
                self._file.sync()
            except OSError:
                self._recorder.keep(FailedSync(self._number))
                raise
            self._recorder.keep(Sync(self._number))

    def size(self) -> int:
        return self._file.size()

    def expect(self, offset: int, size: int) -> None:
        self._file.expect(offset, size)

    def release(self, offset: int, size: int) -> None:
        self._file.release(offset, size)

    def next_data(self, offset: int) -> int:
        return self._file.next_data(offset)

    def close(self) -> None:
        self._file.close()


class RecordingFiles:
    """`Files` that remember what was done to them.

    Args:
        files: where everything really happens.
        root: the directory that is recorded; what is in it now counts as being on the disk.
        start: what is there, if the caller knows.

    Attributes:
        recording: so far.
        stop_at: raise `Stopped` instead of this operation, counted from 1; None never does.
        steps: operations so far, milestones not counted.
    """

    def __init__(self, files: Files, root: Path, *, start: Tree | None = None) -> None:
        self._files = files
        self.recording = Recording(start or _tree(files, root))
        self._numbers = {
            path: number for path, number in self.recording.start.names.items() if number != DIRECTORY
        }
        self._directories = {
            path for path, number in self.recording.start.names.items() if number == DIRECTORY
        }
        self._next = max(self.recording.start.contents, default=-1) + 1
        self._lock = threading.RLock()
        self.stop_at: int | None = None
        self.steps = 0

    def milestone(self, what: Any, *, weakens: bool = False) -> None:
        """Note what the program tells others at this point in the order of operations.

        Args:
            what: anything; the judge gets it back.
            weakens: from here on less has to hold.
        """
        with self._lock:
            self.recording.operations.append(Milestone(what, weakens))

    def keep(self, operation: Operation) -> None:
        """Append an operation."""
        self.recording.operations.append(operation)

    def changing(self) -> threading.RLock:
        """Held around a call that changes something, so that the record has the order of the disk."""
        self.steps += 1
        if self.stop_at is not None and self.steps >= self.stop_at:
            raise Stopped
        return self._lock

    def _new(self, path: str) -> int:
        number = self._next
        self._next += 1
        self._numbers[path] = number
        self.keep(CreateFile(path, number))
        return number

    # --- the interface

    def writes_direct(self, directory: Path) -> tuple[bool, str]:
        return self._files.writes_direct(directory)

    def make_directory(self, path: Path) -> None:
        with self.changing():
            self._files.make_directory(path)
            for one in reversed((path, *path.parents)):
                if str(one) not in {"/", "."} and str(one) not in self._directories:
                    self._directories.add(str(one))
                    self.keep(MakeDirectory(str(one)))
                    self.keep(SyncDirectory(str(one.parent)))
            self.keep(SyncDirectory(str(path.parent)))

    def names(self, directory: Path) -> list[str]:
        return self._files.names(directory)

    def exists(self, path: Path) -> bool:
        return self._files.exists(path)

    def stamp(self, path: Path) -> FileStamp:
        return self._files.stamp(path)

    def read_whole(self, path: Path) -> bytes:
        return self._files.read_whole(path)

    def write_whole(self, path: Path, data: bytes) -> None:
        with self.changing():
            self._files.write_whole(path, data)
            temporary = str(path) + ".tmp"
            number = self._new(temporary)
            self.keep(Write(number, 0, bytes(data)))
            self.keep(Sync(number))
            self._renamed(temporary, str(path))
            self.keep(SyncDirectory(str(path.parent)))

    def allocate(self, path: Path, size: int) -> None:
        with self.changing():
            self._files.allocate(path, size)
            number = self._new(str(path))
            self.keep(Resize(number, size))
            self.keep(Sync(number))
            self.keep(SyncDirectory(str(path.parent)))

    def open_to_read(self, path: Path, *, random: bool) -> File:
        return self._files.open_to_read(path, random=random)

    def open_to_write(self, path: Path, *, direct: bool) -> RecordingFile:
        file = self._files.open_to_write(path, direct=direct)
        return RecordingFile(self, file, self._numbers[str(path)], direct=direct)

    def read_uncached(self, path: Path, offset: int, size: int) -> bytes:
        return self._files.read_uncached(path, offset, size)

    def forget_cached(self, path: Path) -> None:
        self._files.forget_cached(path)

    def rename(self, old: Path, new: Path) -> None:
        with self.changing():
            self._files.rename(old, new)
            self._renamed(str(old), str(new))

    def _renamed(self, old: str, new: str) -> None:
        self._numbers[new] = self._numbers.pop(old)
        self.keep(Rename(old, new))

    def shrink(self, path: Path, size: int) -> None:
        with self.changing():
            self._files.shrink(path, size)
            self.keep(Resize(self._numbers[str(path)], size))

    def remove(self, path: Path) -> None:
        with self.changing():
            self._files.remove(path)
            self._numbers.pop(str(path), None)
            self.keep(Remove(str(path)))

    def sync_directory(self, directory: Path) -> None:
        with self.changing():
            self._files.sync_directory(directory)
            self.keep(SyncDirectory(str(directory)))

    def lock(self, directory: Path) -> Lock:
        return self._files.lock(directory)

    # --- for programs that make their own files

    def create(self, path: Path) -> RecordingFile:
        """Make an empty file, as `open(path, "wb")` does, and open it: neither its name nor its bytes are synced.

        Storage has no use for this (it allocates); programs under test that write temporary files do.
        """
        with self.changing():
            self._files.write_whole(path, b"")
            self._new(str(path))
        return self.open_to_write(path, direct=False)


def _tree(files: Files, root: Path) -> Tree:
    """What is below a directory."""
    tree = Tree({str(one): DIRECTORY for one in (root, *root.parents) if str(one) not in {"/", "."}})
    waiting = [root]
    while waiting:
        directory = waiting.pop()
        for name in files.names(directory):
            path = directory / name
            try:
                data = files.read_whole(path)
            except OSError:
                tree.names[str(path)] = DIRECTORY
                waiting.append(path)
                continue
            number = len(tree.contents)
            tree.names[str(path)] = number
            tree.contents[number] = data
    return tree

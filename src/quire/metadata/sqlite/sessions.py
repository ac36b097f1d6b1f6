"""Which processes on this machine run: session files, their locks, and counters that stand still.

A session is a row in the database and a file of its own, which its owner keeps open and locked, and in which it moves
a counter. POSIX record locks end with their process, however it ends, and a forked child does not have them. So a free
lock means an ended owner. A lock that is held while the counter stands still means an owner that does not move: it is
expired after the session's timeout, measured by the observer's clock.

The counter lies in the file and not in the row, so that a heartbeat needs no commit: an idle cluster writes nothing,
and a process that is stopped is hardly ever stopped with the database's write lock in its hand.

The locks have a snare: closing *any* descriptor of a file drops the process's locks on it. Therefore a session file is
opened once by its owner, and never by another store of the same process (`_OWN` knows them).

Source: POSIX, fcntl(), "F_SETLK" and close(): what ends a record lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from quire.core.errors import StorageError
from quire.env.private import FILE_MODE, FOLDER_MODE, share_as

BEAT_BYTES: Final = 8
LOOKS_BEFORE_EXPIRY: Final = 8
"""An observer that was stopped itself must see a counter stand still this often before it counts."""

_OWN: Final[dict[str, int]] = {}
"""Session files that this process holds, and their descriptors."""

os.register_at_fork(after_in_child=_OWN.clear)


class SessionFile:
    """The owner's side: one file, locked from construction to `release`.

    Args:
        folder: where it is made; the folder is made if it is missing.
        database: the metadata file, whose users may use the session file too.

    Raises:
        StorageError: the file cannot be made or locked.
    """

    def __init__(self, folder: Path, database: Path) -> None:
        try:
            self._database = database
            with contextlib.suppress(FileExistsError):
                folder.mkdir(FOLDER_MODE)
                descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                try:
                    share_as(database, descriptor, folder=True)
                finally:
                    os.close(descriptor)
            while not self._locked(folder / uuid.uuid4().hex):
                pass  # a sweeper of another process took the file between its making and its locking
        except OSError as error:
            msg = f"no session file can be made and locked in {folder} ({error.strerror}); registrations need one"
            raise StorageError(msg, path=str(folder)) from error

    def _locked(self, path: Path) -> bool:
        self.path = path
        _OWN[str(path)] = -1  # before the file exists, so that no other store of this process ever opens it
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)
            _OWN[str(path)] = self._descriptor = descriptor
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            share_as(self._database, descriptor)
            if os.fstat(descriptor).st_nlink == 0:
                self.release()
                return False
            self._beats = 0
            self.beat()
        except BlockingIOError:
            self.release()
            return False
        except BaseException:
            with contextlib.suppress(OSError):
                path.unlink()
            self.release()
            raise
        return True

    def beat(self) -> None:
        """Move the counter. Not synced: only running processes read it, and none outlives the machine.

        Raises:
            StorageError: the file cannot be written.
        """
        self._beats += 1
        try:
            os.pwrite(self._descriptor, self._beats.to_bytes(BEAT_BYTES, "big"), 0)
        except OSError as error:
            raise StorageError(
                f"the session file {self.path} cannot be written ({error.strerror})", path=str(self.path)
            ) from error

    @property
    def name(self) -> str:
        """The file's name in the folder of sessions: the session's identity."""
        return self.path.name

    def release(self) -> None:
        """Let go, as the end of the process would; the file stays until someone sweeps it."""
        descriptor = _OWN.pop(str(self.path), -1)
        if descriptor >= 0:
            os.close(descriptor)


@dataclass(frozen=True, slots=True)
class SessionRow:
    """A session as the database has it."""

    number: int
    name: str
    timeout_ms: int


@dataclass(slots=True)
class _Seen:
    row: SessionRow
    looked_ms: int
    descriptor: int | None = None
    beat: bytes = b""
    still_ms: int = 0
    free: bool = False


class SessionObserver:
    """The others' side: which sessions of a database are over. One thread uses it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seen: dict[int, _Seen] = {}

    def refresh(self, rows: list[SessionRow], now_ms: int) -> None:
        """Take over what the database says now: new sessions, and sessions that are gone."""
        present = {row.number: row for row in rows}
        for number in [number for number, seen in self._seen.items() if present.get(number) != seen.row]:
            self._forget(number)
        for number, row in present.items():
            if number not in self._seen:
                self._seen[number] = _Seen(row, now_ms)

    def knows(self, number: int) -> bool:
        """Whether `refresh` has met this session."""
        return number in self._seen

    def over(self, now_ms: int) -> list[SessionRow]:
        """Look at every session that is known; the rows of those that have ended or expired."""
        return [seen.row for seen in self._seen.values() if self._is_over(seen, now_ms)]

    def is_over(self, number: int, now_ms: int) -> bool:
        """Look at one session. One that is not known is not over."""
        seen = self._seen.get(number)
        return seen is not None and self._is_over(seen, now_ms)

    def rest(self) -> None:
        """No check for a while: keep no session's file open, only what was seen of it."""
        for seen in self._seen.values():
            if seen.descriptor is not None:
                os.close(seen.descriptor)
                seen.descriptor = None

    def close(self) -> None:
        """Close every file that was opened to look at it."""
        for number in list(self._seen):
            self._forget(number)

    def _forget(self, number: int) -> None:
        descriptor = self._seen.pop(number).descriptor
        if descriptor is not None:
            os.close(descriptor)

    def _is_over(self, seen: _Seen, now_ms: int) -> bool:
        seen.free = seen.free or not self._is_held(seen)
        # Time without checks counts only in part: it may be the observer that stood still.
        seen.still_ms += min(now_ms - seen.looked_ms, seen.row.timeout_ms // LOOKS_BEFORE_EXPIRY)
        seen.looked_ms = now_ms
        return seen.free or seen.still_ms >= seen.row.timeout_ms

    def _is_held(self, seen: _Seen) -> bool:
        """Whether the owner holds its lock; notices on the way whether its counter has moved."""
        path = str(self._folder / seen.row.name)
        own = _OWN.get(path)
        try:
            if own is None and seen.descriptor is None:
                seen.descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            descriptor = seen.descriptor if own is None else own
            assert descriptor is not None
            beat = os.pread(descriptor, BEAT_BYTES, 0)
        except FileNotFoundError:
            return False  # only what removes the row removes the file: a copied database, or a folder swept by hand
        except OSError:
            seen.still_ms = 0  # no descriptor is free, or the file is not ours to open: nothing proves an end
            return True
        if beat != seen.beat:
            seen.beat = beat
            seen.still_ms = 0
        if own is None:
            with contextlib.suppress(OSError):  # the lock is held
                fcntl.lockf(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
                return False
        return True


def sweep(folder: Path, names: set[str]) -> None:
    """Remove session files that no row names and no process holds: left by a crash between row and file.

    Args:
        folder: the folder of sessions; need not exist.
        names: the files that rows name.
    """
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        for path in folder.iterdir():
            if path.name not in names and str(path) not in _OWN:
                remove_if_free(path)


def remove_if_free(path: Path) -> None:
    """Remove a session file unless its owner holds it (an owner that was taken for ended and goes on)."""
    if str(path) in _OWN:
        return
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return
    with contextlib.suppress(OSError):
        fcntl.lockf(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        path.unlink()
    os.close(descriptor)

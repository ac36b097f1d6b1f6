"""Which processes on this machine run: session files, their locks, and counters that stand still.

A session is a row in the database and a file of its own, which its owner keeps open and locked, and in which it moves
a counter. POSIX record locks end with their process, however it ends, and a forked child does not have them. So a free
lock means an ended owner. A lock that is held while the counter stands still means an owner that does not move: it is
expired after the session's timeout, measured by the observer's clock.

The counter lies in the file and not in the row, so that a heartbeat needs no commit: an idle cluster writes nothing,
and a process that is stopped hardly ever holds the database's write lock at that moment.

POSIX locks have a trap: closing *any* descriptor of a file drops the process's locks on it. Therefore a session file is
opened once by its owner, and never by another store of the same process (`_OWN` knows them).

Source: POSIX, fcntl(), "F_SETLK" and close(): what ends a record lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from quire.core.errors import StorageError
from quire.env.private import FILE_MODE, FOLDER_MODE, share_as
from quire.metadata.held import HeldRegistrations
from quire.metadata.keys import sequential_key
from quire.metadata.sqlite.file import SessionRow, SqliteFile, SqliteOptions
from quire.metadata.sqlite.place import SESSIONS
from quire.metadata.store import Create, KeyMissingError, Put, Registration

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
        """Take over what the database says now: new sessions, and sessions that have ended."""
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


class SqliteRegistrations:
    """A store's own session with what it registered, and its sight of everybody else's. The store's thread owns it.

    What is *held* here is what must be in the file: each beat compares the two, and a difference is mended, so neither a
    lost session nor a commit with an unknown end leaves a key without an owner, or an owner without its key.

    Args:
        file: the open file.
        options: timeouts and clock.
        tell: runs a call on the event loop of the store's owner.

    Attributes:
        sweep_due: another's session was found to be over, and is to be removed.
    """

    def __init__(self, file: SqliteFile, options: SqliteOptions, tell: Callable[..., None]) -> None:
        self.sweep_due = False
        self._file = file
        self._options = options
        self._folder = sessions_folder(file.path)
        self._observer = SessionObserver(self._folder)
        self._data_version = -1
        self._session: SessionFile | None = None
        self._number = 0
        self._held = HeldRegistrations(tell)
        self._next_beat_ms = 0
        self._unsettled = False
        self.look()
        sweep(self._folder, {row.name for row in file.sessions()})

    # --- own registrations: all inside a transaction, but `hold` -------------------------------------------------

    @property
    def any_held(self) -> bool:
        """Whether there is anything to keep alive, or to mend."""
        return bool(self._held) or self._unsettled

    def register(self, registration: Registration, key: str, *, sequential: bool) -> None:
        """Add a registration's key under this store's session."""
        registration.key = sequential_key(key, self._file.revision + 1) if sequential else key
        create = (Create(registration.key, registration.value),)
        self._file.apply(create, self._own_session(), over=self.remove_if_over)

    def hold(self, registration: Registration) -> None:
        """After the commit of `register`: keep it alive."""
        if not self._held:
            self._next_beat_ms = self._options.now_ms() + self._options.beat_ms
        self._held.hold(registration.key, registration)

    def update(self, registration: Registration, value: bytes) -> None:
        """Register another value, which the registration has after the commit; renews the session first if it was lost."""
        self._restore()
        row = self._file.get(registration.key)
        if self._held.get(registration.key) is not registration or row is None:
            raise KeyMissingError(
                f"the registration {registration.key} was lost; register again", key=registration.key
            )
        self._file.apply((Put(row.key, value, row.version),))

    def take_back(self, registration: Registration) -> None:
        """Remove a registration. Should the commit fail, the next beat finds the key without an owner: see `unsettle`."""
        if self._held.get(registration.key) is not registration:
            return
        self._held.drop(registration.key)
        row = self._file.get(registration.key)
        if row is not None and row.session == self._number:
            self._file.end_key(row.key)

    def take_back_everything(self) -> None:
        """Remove the session with all its keys."""
        self._held.clear()
        if self._session is not None:
            self._file.end_session(self._number, self._session.name)

    def move(self, now_ms: int) -> bool:
        """Move the counter when it is time; says whether it was."""
        if self._session is None or not self.any_held or now_ms < self._next_beat_ms:
            return False
        self._next_beat_ms = now_ms + self._options.beat_ms
        self._session.beat()
        return True

    def beat(self, now_ms: int) -> bool:
        """Move the counter when it is time.

        Returns:
            Whether the file no longer holds what is held here: then `mend` it.
        """
        if not self.move(now_ms):
            return False
        assert self._session is not None
        self._unsettled = (
            not self._file.has_session(self._number, self._session.name)
            or self._file.keys_of_session(self._number) != self._held.keys()
        )
        return self._unsettled

    def unsettle(self) -> None:
        """A transaction failed: the file may hold what is not held here any more, although nothing is."""
        self._unsettled = self._session is not None

    def mend(self) -> None:
        """Make the file hold exactly what is held here, under a session that is there."""
        for key in sorted(self._restore() - self._held.keys()):
            self._file.end_key(key)

    def _restore(self) -> set[str]:
        """Make what is held here and not in the file again.

        Returns:
            What the session had. Keys that are not held may have been made in this transaction: they are held after it.
        """
        if self._session is None:
            return set()
        number = self._own_session()
        present = self._file.keys_of_session(number)
        for key in sorted(self._held.keys() - present):
            self._held.make_again(
                key,
                lambda one: self._file.apply((Create(one.key, one.value),), number, over=self.remove_if_over),
            )
        return present

    def _own_session(self) -> int:
        """This store's session, made if it has none; its counter moves."""
        if self._session is None or not self._session.path.exists():
            before, self._session = self._session, SessionFile(self._folder, self._file.path)
            if before is not None:
                before.release()
        self._session.beat()
        if not self._file.has_session(self._number, self._session.name):
            owner = f"{os.getpid()}@{socket.gethostname()}"
            self._number = self._file.add_session(self._session.name, self._options.session_timeout_ms, owner)
        return self._number

    def lose_all(self) -> None:
        """The file cannot be used any more: notify every owner."""
        for key in list(self._held):
            self._held.lose(key)

    def close(self, *, sweep_file: bool) -> None:
        """Let go of the lock, and of every file that was looked at."""
        if self._session is not None:
            if sweep_file:
                self._session.path.unlink(missing_ok=True)
            self._session.release()
        self._observer.close()

    def rest(self) -> None:
        """Nothing is looked for until a call asks for it."""
        self._observer.rest()

    # --- the sessions of others ----------------------------------------------------------------------------------

    def look(self) -> None:
        """Take over what the file says about the others' sessions now."""
        self._data_version = self._file.data_version()
        own = self._session.name if self._session is not None else None
        rows = [row for row in self._file.sessions() if row.name != own]
        self._observer.refresh(rows, self._options.now_ms())

    def is_over(self, number: int) -> bool:
        """Whether a session is over; then its keys are not shown, and are removed right after."""
        if number == self._number:
            return False
        if not self._observer.knows(number) or self._file.data_version() != self._data_version:
            self.look()
        over = self._observer.is_over(number, self._options.now_ms())
        self.sweep_due = self.sweep_due or over
        return over

    def over(self) -> list[SessionRow]:
        """The sessions that are over."""
        return self._observer.over(self._options.now_ms())

    def remove(self, rows: list[SessionRow]) -> list[SessionRow]:
        """Inside a transaction: remove sessions that are over; one that has moved meanwhile stays.

        Returns:
            Those that were removed.
        """
        return [
            row for row in rows if self.is_over(row.number) and self._file.end_session(row.number, row.name)
        ]

    def remove_if_over(self, number: int) -> bool:
        """Inside a transaction: as `is_over`, and the session and its keys are deleted if it is."""
        if not self.is_over(number):
            return False
        return bool(self.remove([row for row in self.over() if row.number == number]))

    def forget(self, rows: list[SessionRow]) -> None:
        """After the commit of `remove`."""
        self.look()
        for row in rows:
            remove_if_free(self._folder / row.name)


def sessions_folder(path: Path) -> Path:
    """Where the session files of a metadata file lie."""
    return path.with_name(path.name + SESSIONS)

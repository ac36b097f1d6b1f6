"""A store's own session with what it registered, and its sight of everybody else's. The store's thread owns it.

What is *held* here is what must be in the file: each beat compares the two, and a difference is mended, so neither a
lost session nor a commit with an unknown end leaves a key without an owner, or an owner without its key.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path

from quire.metadata.held import made_again
from quire.metadata.keys import sequential_key
from quire.metadata.sqlite.file import SqliteFile
from quire.metadata.sqlite.options import SqliteOptions
from quire.metadata.sqlite.place import SESSIONS
from quire.metadata.sqlite.sessions import SessionFile, SessionObserver, SessionRow, remove_if_free, sweep
from quire.metadata.store import Create, KeyMissingError, Put, Registration


class SqliteRegistrations:
    """Own and foreign sessions of one open file.

    Args:
        file: the open file.
        options: timeouts and clock.
        tell: runs a call on the event loop of the store's owner.
    """

    def __init__(self, file: SqliteFile, options: SqliteOptions, tell: Callable[..., None]) -> None:
        self.sweep_due = False
        self._file = file
        self._options = options
        self._tell = tell
        self._folder = sessions_folder(file.path)
        self._observer = SessionObserver(self._folder)
        self._data_version = -1
        self._session: SessionFile | None = None
        self._number = 0
        self._held: dict[str, Registration] = {}
        self._next_beat_ms = 0
        self._in_doubt = False
        self.look()
        sweep(self._folder, {row.name for row in file.sessions()})

    # --- own registrations: all inside a transaction, but `hold` -------------------------------------------------

    @property
    def any_held(self) -> bool:
        """Whether there is anything to keep alive, or to mend."""
        return bool(self._held) or self._in_doubt

    def register(self, registration: Registration, key: str, *, sequential: bool) -> None:
        """Add a registration's key under this store's session."""
        registration.key = sequential_key(key, self._file.revision + 1) if sequential else key
        create = (Create(registration.key, registration.value),)
        self._file.apply(create, self._own_session(), over=self.remove_if_over)

    def hold(self, registration: Registration) -> None:
        """After the commit of `register`: keep it alive."""
        if not self._held:
            self._next_beat_ms = self._options.now_ms() + self._options.beat_ms
        self._held[registration.key] = registration

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
        """Remove a registration. Should the commit fail, the next beat finds the key without an owner: see `doubt`."""
        if self._held.get(registration.key) is not registration:
            return
        del self._held[registration.key]
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
        self._in_doubt = (
            not self._file.has_session(self._number, self._session.name)
            or self._file.keys_of_session(self._number) != self._held.keys()
        )
        return self._in_doubt

    def doubt(self) -> None:
        """A transaction failed: the file may hold what is not held here any more, although nothing is."""
        self._in_doubt = self._session is not None

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
            self._register_again(self._held[key], number)
        return present

    def _register_again(self, registration: Registration, number: int) -> None:
        create = (Create(registration.key, registration.value),)
        make = partial(self._file.apply, create, number, over=self.remove_if_over)
        if not made_again(registration, make, self._tell):
            del self._held[registration.key]

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
        for registration in self._held.values():
            self._tell(registration.lost.set)
        self._held.clear()

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
        """Inside a transaction: as `is_over`, and the session and its keys are gone if it is."""
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

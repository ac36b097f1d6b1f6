"""A metadata store in one SQLite file, for all processes of one machine.

| need | how |
| --- | --- |
| durable compare-and-swap | `BEGIN IMMEDIATE`, synchronous=FULL; an error at COMMIT is "unknown", unless it says that the disk is full |
| watches over processes | one thread of a process polls `PRAGMA data_version`, then reads `version > last`: `sqlite/thread.py` |
| registrations that end with their owner | session files: `sqlite/sessions.py` |
| event loops that never wait for a disk | one thread for each open store: `sqlite/thread.py` |

Nothing is carried over a fork: a child that uses its parent's store gets a `MisuseError`. A process that is stopped in
the middle of a commit keeps every other writer waiting until it goes on or is killed; that is SQLite's lock.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from asyncio import _get_running_loop
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Self, TypeVar
from urllib.parse import quote

from quire.core.errors import MisuseError, QuireError
from quire.core.ids import LedgerId
from quire.env.home import check_home
from quire.metadata.id_floor import check_raised, floor_of, raised
from quire.metadata.keys import LEDGER_IDS_ABOVE, sequential_key
from quire.metadata.slow import SlowNote
from quire.metadata.sqlite.file import SqliteFile, SqliteOptions, StoredRow
from quire.metadata.sqlite.place import BUSY_MS
from quire.metadata.sqlite.thread import Job, StoreThread
from quire.metadata.store import (
    LIST_LIMIT,
    MetadataStore,
    Op,
    Registration,
    Versioned,
    Watch,
    check_key,
    check_ops,
    check_value,
)

LEDGER_IDS_MAX: Final = 64
"""Ids are reserved in blocks that double up to this size, so that a busy client does not commit for each."""

Result = TypeVar("Result")


class Glance:
    """Reads on the event loop, by a connection of its own, for what may be answered with an older value and must not wait.

    A read through the store's thread costs two changes of thread; this one costs a look at pages that are in memory,
    because most reads are of what was written a moment ago. It waits for no lock: readers of a write-ahead log never wait.

    Args:
        path: the metadata file, which the store of this process keeps open.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection: sqlite3.Connection | None = None
        self._ended = False

    def get(self, key: str) -> Versioned | None:
        """A key that exists and belongs to no session. None: it does not, or only the thread can tell."""
        if self._ended:
            return None
        query = "SELECT key, value, version, session FROM entries WHERE key = ? AND value IS NOT NULL AND session IS NULL"
        try:
            rows = self._open().execute(query, (key,)).fetchall()
            return StoredRow(*rows[0]).versioned if rows else None
        except (sqlite3.Error, QuireError):
            return None

    def close(self) -> None:
        """End it. Do so before the file's last writer ends, which takes the -wal away."""
        self._ended = True
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            uri = f"file:{quote(str(self._path))}?mode=ro"
            self._connection = sqlite3.connect(uri, uri=True, isolation_level=None, timeout=0)
        return self._connection


class SqliteStore(MetadataStore):
    """One client of a metadata file. Made by `SqliteStore.open`."""

    def __init__(self, thread: StoreThread) -> None:
        self._thread = thread
        self._slow = SlowNote(f"the metadata file {thread.path}", BUSY_MS / 1000)
        self._glance = Glance(thread.path)
        self._loop = asyncio.get_running_loop()
        self._pid = os.getpid()
        self._closed = False
        self._asked: list[Job] = []
        self._ids: list[LedgerId] = []
        self._ids_wanted = 1

    @classmethod
    async def open(
        cls, path: str | Path, *, create: bool = False, options: SqliteOptions | None = None
    ) -> Self:
        """Open a metadata file.

        Args:
            path: the file.
            create: make it where it is missing.
            options: how the store behaves.

        Raises:
            NoClusterError: there is none, or it cannot be opened; the message says how to make one.
            CorruptMetadataError: it is damaged, or not ours.
        """
        opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        thread = StoreThread(Path(os.path.realpath(path)), opened, options or SqliteOptions(), create=create)
        thread.start()
        try:
            with SlowNote(f"the metadata file {path}", BUSY_MS / 1000).waiting():
                await opened
        except asyncio.CancelledError:
            thread.abandon()
            raise
        return cls(thread)

    @property
    def instance_id(self) -> str:
        return self._thread.file.instance_id

    @property
    def generation(self) -> int:
        return self._thread.file.generation

    @property
    def is_current(self) -> bool:
        return self._thread.file.is_same_file

    @property
    def path(self) -> Path:
        """The file."""
        return self._thread.path

    async def get(self, key: str) -> Versioned | None:
        check_key(key)
        return await self._ask(lambda: self._thread.get(key))

    def cached(self, key: str) -> Versioned | None:
        self._check_usable()
        return self._glance.get(check_key(key))

    async def list(
        self, prefix: str, *, after: str | None = None, limit: int = LIST_LIMIT
    ) -> list[tuple[str, Versioned]]:
        if limit < 1:
            raise MisuseError(f"a page has at least 1 item, not {limit}")
        return await self._ask(lambda: self._thread.page(prefix, after, limit))

    async def multi(self, ops: Sequence[Op]) -> Sequence[int]:
        check_ops(ops)
        return await self._ask(lambda: self._thread.apply(ops), changes=True)

    def watch(self, prefix: str) -> Watch:
        return Watch(prefix, self._attach, self._detach)

    async def register(
        self, key: str, value: bytes, *, sequential: bool = False, again: bool = True
    ) -> Registration:
        check_key(sequential_key(key, 0) if sequential else key)
        made = Registration(
            key, check_value(key, value), again=again, update=self._update, close=self._take_back
        )
        registering = self._order(
            lambda: self._thread.registrations.register(made, key, sequential=sequential),
            changes=True,
            done=lambda: self._thread.registrations.hold(made),
        )
        await self._or_undo(registering, lambda: self._thread.registrations.take_back(made), changes=True)
        return made

    async def next_ledger_id(self) -> LedgerId:
        if self._ids:
            # Another process may have raised the ids above those of the block.
            floor = await self._ask(lambda: ids_floor(self._thread.file))
            self._ids = [number for number in self._ids if number > floor]
        if not self._ids:
            wanted = self._ids_wanted
            self._ids_wanted = min(2 * wanted, LEDGER_IDS_MAX)
            reserved = await self._ask(lambda: self._thread.file.reserve_ledger_ids(wanted), changes=True)
            self._ids += [LedgerId(number) for number in reversed(reserved)]
        self._check_usable()
        return self._ids.pop()

    async def raise_ledger_ids(self, above: int) -> None:
        check_raised(above)
        await self._ask(lambda: raise_ids(self._thread.file, above), changes=True)

    async def close(self) -> None:
        if self._closed or os.getpid() != self._pid:
            return
        self._closed = True
        self._glance.close()
        self._hand_over()
        ended: asyncio.Future[None] = self._loop.create_future()
        self._thread.stop(ended)
        await ended
        self._thread.join()

    def abandon(self) -> None:
        """End as a killed process would: no registration is withdrawn, others find the session ended. For tests."""
        self._closed = True
        self._glance.close()
        self._hand_over()
        self._thread.abandon()
        self._thread.join()

    # --- inside --------------------------------------------------------------------------------------------------

    def _check_usable(self) -> None:
        if self._closed:
            raise MisuseError("this metadata store is closed; open another", path=str(self.path))
        if _get_running_loop() is not self._loop:
            check_home("this metadata store", self._loop, self._pid, path=str(self.path))

    async def _ask(self, work: Callable[[], Result], *, changes: bool = False) -> Result:
        """Have the thread do something, and wait for it."""
        with self._slow.waiting():
            return await self._order(work, changes=changes)

    def _order(
        self, work: Callable[[], Result], *, changes: bool = False, done: Callable[[], None] | None = None
    ) -> asyncio.Future[Result]:
        """Have the thread do something; what one loop turn asks for reaches it together, to share a commit."""
        self._check_usable()
        future: asyncio.Future[Result] = self._loop.create_future()
        if not self._asked:
            self._loop.call_soon(self._hand_over)
        self._asked.append(Job(work, changes, future, done))
        return future

    async def _or_undo(
        self, ordered: asyncio.Future[Result], undo: Callable[[], None], *, changes: bool = False
    ) -> None:
        """Wait for what the thread does; a caller that is cancelled meanwhile has it undone afterwards."""

        def over(done: asyncio.Future[Result]) -> None:
            done.exception()  # of a store that was closed meanwhile: no caller waits for it
            if not self._closed:
                self._order(undo, changes=changes).add_done_callback(asyncio.Future.exception)

        try:
            await asyncio.shield(ordered)
        except asyncio.CancelledError:
            ordered.add_done_callback(over)
            raise

    def _hand_over(self) -> None:
        asked, self._asked = self._asked, []
        for job in asked:
            self._thread.jobs.put(job)

    async def _attach(self, watch: Watch) -> None:
        await self._or_undo(
            self._order(lambda: self._thread.attach(watch)), lambda: self._thread.detach(watch)
        )

    async def _detach(self, watch: Watch) -> None:
        if not self._closed:
            with suppress(QuireError):  # of a store that failed; the watch has ended and said so
                await self._ask(lambda: self._thread.detach(watch))

    async def _update(self, registration: Registration, value: bytes) -> None:
        def done() -> None:
            registration.value = value

        await self._order(
            lambda: self._thread.registrations.update(registration, value), changes=True, done=done
        )

    async def _take_back(self, registration: Registration) -> None:
        if not self._closed:
            await self._ask(lambda: self._thread.registrations.take_back(registration), changes=True)


def ids_floor(file: SqliteFile) -> int:
    """The number above which ledger ids are, as it is now; on the file's thread.

    Raises:
        CorruptMetadataError: it is damaged.
    """
    row = file.get(LEDGER_IDS_ABOVE)
    return floor_of(row.value if row else None)


def raise_ids(file: SqliteFile, above: int) -> None:
    """Inside a transaction: leave out the ids up to a number, and have others drop those that they have ready.

    Raises:
        CorruptMetadataError: the number that is there is damaged.
    """
    row = file.get(LEDGER_IDS_ABOVE)
    file.apply(raised(row.versioned if row else None, above))
    following = file.reserve_ledger_ids(0).start
    file.reserve_ledger_ids(max(0, above + 1 - following))

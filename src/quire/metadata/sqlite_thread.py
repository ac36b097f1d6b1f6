"""The thread that owns a metadata file: groups changes into commits, looks for changes, keeps and watches sessions.

What waits while a commit runs goes into the next one, so that many small changes share one sync; answers leave after
the commit. Everything that SQLite does for a store happens here, so no commit stalls an event loop. `sqlite.py` has
the interface.
"""

from __future__ import annotations

import asyncio
import logging
import os
import queue
import socket
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from quire.core.errors import (
    AlreadyExistsError,
    CorruptMetadataError,
    MetadataUnknownError,
    MisuseError,
    NoClusterError,
    QuireError,
    StorageError,
)
from quire.metadata.sqlite_file import BUSY_MS, TOMBSTONES_KEPT, SqliteFile, explain
from quire.metadata.sqlite_sessions import SessionFile, SessionObserver, remove_if_free, sweep
from quire.metadata.store import (
    SESSION_TIMEOUT_MS,
    Create,
    KeyMissingError,
    Op,
    Put,
    Registration,
    Versioned,
    Watch,
    sequential_key,
)

POLL_MS: Final = 20
BEATS_PER_TIMEOUT: Final = 5
GROUP_MAX: Final = 256
HOUSEKEEPING_MS: Final = 50
"""How long beats and sweeps wait for another process; callers wait behind them, and they come again."""
_LOG: Final = logging.getLogger(__name__)


def _monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000


@dataclass(frozen=True, slots=True)
class SqliteOptions:
    """How a store behaves.

    Args:
        session_timeout_ms: how long an owner may stand still before others take it for dead; at least 100.
        poll_ms: how often changes of other processes are looked for.
        tombstones_kept: revisions for which deletions are remembered.
        now_ms: a clock that never goes back.
    """

    session_timeout_ms: int = SESSION_TIMEOUT_MS
    poll_ms: int = POLL_MS
    tombstones_kept: int = TOMBSTONES_KEPT
    now_ms: Callable[[], int] = _monotonic_ms

    @property
    def beat_ms(self) -> int:
        """How often a session's counter moves."""
        return self.session_timeout_ms // BEATS_PER_TIMEOUT


@dataclass(slots=True)
class Job:
    """Something for the thread: `work` runs inside a transaction if it changes something; `done` after its commit."""

    work: Callable[[], Any]
    changes: bool
    future: asyncio.Future[Any]
    done: Callable[[], None] | None = None


@dataclass(slots=True)
class _Held:
    """A registration as the thread sees it: what must be in the file."""

    registration: Registration
    value: bytes
    again: bool


_NEIGHBOURS: Final[weakref.WeakSet[StoreThread]] = weakref.WeakSet()
"""The threads of this process, to wake those that have the same file when it has changed."""
_NEIGHBOURS_LOCK: Final = threading.Lock()
_PARENTS: Final[list[StoreThread]] = []
"""In a forked child: the parent's threads, kept from being collected, because closing their files would be wrong."""


def _after_fork() -> None:
    _PARENTS.extend(_NEIGHBOURS)
    _NEIGHBOURS.clear()


os.register_at_fork(after_in_child=_after_fork)


class StoreThread(threading.Thread):
    """Owns the file, the session, the sight of other sessions and of changes."""

    def __init__(
        self, path: Path, opened: asyncio.Future[None], options: SqliteOptions, *, create: bool
    ) -> None:
        super().__init__(name=f"metadata {path.name}", daemon=True)
        self.path = path
        self.file: SqliteFile
        self.failure: QuireError | None = None
        self.jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._opened = opened
        self._loop = opened.get_loop()
        self._options = options
        self._create = create
        self._folder = path.with_name(path.name + "-sessions")
        self._observer = SessionObserver(self._folder)
        self._session: SessionFile | None = None
        self._session_number = 0
        self._held: dict[str, _Held] = {}
        self._watches: list[Watch] = []
        self._seen_revision = 0
        self._seen_data_version = -1
        self._sessions_data_version = -1
        self._next_tick_ms = 0
        self._next_beat_ms = 0
        self._sweep_due = False
        self._stopping: asyncio.Future[None] | None = None
        self._abandoned = False

    # --- the thread's life ---------------------------------------------------------------------------------------

    def run(self) -> None:
        try:
            self._open()
        except Exception as error:  # noqa: BLE001 - whatever it was, whoever opens the store must hear it
            self._post(_settle, [(self._opened, None, error)])
            return
        with _NEIGHBOURS_LOCK:
            _NEIGHBOURS.add(self)
        self._post(_settle, [(self._opened, None, None)])
        while self._stopping is None and not self._abandoned:
            batch = self._next_jobs()
            try:
                if batch:
                    self._serve(batch)
                if self._sweep_due or self._options.now_ms() >= self._next_tick_ms:
                    self._tick()
            except Exception as error:  # noqa: BLE001 - the top of the thread
                _LOG.exception("the thread of the metadata file %s failed", self.path)
                told = self._failed(
                    StorageError(f"the store of {self.path} failed: {error!r}", path=str(self.path))
                )
                self.failure = self.failure or told
                self._post(_settle, [(job.future, None, told) for job in batch])
        self._end()

    def _open(self) -> None:
        """Open the file and clear what dead processes left."""
        self.file = SqliteFile(self.path, create=self._create, tombstones_kept=self._options.tombstones_kept)
        self._look_at_sessions()
        sweep(self._folder, {row.name for row in self.file.sessions()})
        if self._observer.over(self._options.now_ms()):
            self._remove_over()

    def _next_jobs(self) -> list[Job]:
        """All that waits, or nothing when it is time to look around; a None in the queue means now."""
        found: list[Job | None] = []
        # Without watches and registrations there is nothing to look for: an idle client takes no time at all.
        looks = self._watches or self._held
        pause_ms = max(0, self._next_tick_ms - self._options.now_ms())
        try:
            found.append(self.jobs.get(timeout=pause_ms / 1000 if looks else None))
            while len(found) < GROUP_MAX:
                found.append(self.jobs.get_nowait())
        except queue.Empty:
            pass
        if None in found:
            self._next_tick_ms = 0
        return [job for job in found if job is not None]

    def stop(self, future: asyncio.Future[None]) -> None:
        """A job: take everything back and end. Jobs behind it are refused."""
        self._stopping = future

    def abandon(self) -> None:
        """End as a killed process would: the session's lock is let go, its row stays. Any thread may call it."""
        self._abandoned = True
        self.jobs.put(None)

    def _end(self) -> None:
        if not self._abandoned and self.failure is None:
            self._attempt(self._take_back_everything)
        if self._session is not None:
            if not self._abandoned:
                self._session.path.unlink(missing_ok=True)
            self._session.release()
        with _NEIGHBOURS_LOCK:
            _NEIGHBOURS.discard(self)
        self._observer.close()
        self.file.close()
        refused = MisuseError("this metadata store is closed; open another")
        while not self.jobs.empty():
            job = self.jobs.get()
            if job is not None:
                self._post(_settle, [(job.future, None, refused)])
        for watch in self._watches:
            self._post(watch.end)
        if self._stopping is not None:
            self._post(_settle, [(self._stopping, None, None)])

    def _take_back_everything(self) -> None:
        if self._session is not None:
            self._held.clear()
            self.file.end_session(self._session_number, self._session.name)

    def _post(self, call: Callable[..., object], *values: object) -> None:
        try:
            self._loop.call_soon_threadsafe(call, *values)
        except RuntimeError:  # the loop was closed and the store forgotten: nobody is left to serve
            self._abandoned = True

    # --- jobs ----------------------------------------------------------------------------------------------------

    def _serve(self, batch: list[Job]) -> None:
        """Changes as one commit, then reads; answers only after the commit."""
        changes = [job for job in batch if job.changes]
        settled = self._change(changes) if changes else []
        for job in batch:
            if not job.changes:
                settled.append(self._read(job))
        self._post(_settle, settled)
        if changes:
            self._announce()

    def _read(self, job: Job) -> _Settled:
        if self.failure is not None:
            return job.future, None, self.failure
        try:
            return job.future, job.work(), None
        except QuireError as error:
            return job.future, None, error
        except sqlite3.Error as error:
            return job.future, None, self._failed(error)

    def _change(self, jobs: list[Job]) -> list[_Settled]:
        settled: list[_Settled] = []

        def work() -> None:
            for job in jobs:
                try:
                    settled.append((job.future, job.work(), None))
                except QuireError as error:
                    settled.append((job.future, None, error))

        failure = self._attempt(work)
        if failure is not None:
            return [(job.future, None, failure) for job in jobs]
        for job, (_, _, error) in zip(jobs, settled, strict=True):
            if job.done is not None and error is None:
                job.done()
        return settled

    def _attempt(self, work: Callable[[], None], patience_ms: int = BUSY_MS) -> QuireError | None:
        """Run work in a transaction; None when it is durable, else what became of it."""
        if self.failure is not None:
            return self.failure
        try:
            self.file.begin(patience_ms)
            work()
            self.file.trim()
        except (sqlite3.Error, QuireError) as error:
            self._roll_back()
            return self._failed(error)
        except BaseException:
            self._roll_back()
            raise
        try:
            self._commit()
        except sqlite3.Error as error:
            self._roll_back()
            return MetadataUnknownError(
                f"the metadata file {self.path} failed in the middle of a commit ({error}): it may or may not have"
                " happened; read again, then decide",
                path=str(self.path),
            )
        return None

    def _commit(self) -> None:
        self.file.commit()

    def _roll_back(self) -> None:
        try:
            self.file.rollback()
        except sqlite3.Error as error:
            self._failed(error)

    def _failed(self, error: sqlite3.Error | QuireError) -> QuireError:
        """What to tell; a file that is damaged or was replaced is not used again."""
        told = explain(error, self.path) if isinstance(error, sqlite3.Error) else error
        if isinstance(told, CorruptMetadataError | NoClusterError) and self.failure is None:
            self.failure = told
            for watch in self._watches:
                self._post(watch.end, told)
            for held in self._held.values():
                self._post(held.registration.lost.set)
            self._held.clear()
        return told

    # --- what callers ask ----------------------------------------------------------------------------------------

    def is_over(self, session: int) -> bool:
        """Whether a session is over; then its keys are not shown, and are removed right after."""
        if session == self._session_number:
            return False
        if not self._observer.knows(session) or self.file.data_version() != self._sessions_data_version:
            self._look_at_sessions()
        over = self._observer.is_over(session, self._options.now_ms())
        self._sweep_due = self._sweep_due or over
        return over

    def get(self, key: str) -> Versioned | None:
        """One key."""
        row = self.file.get(key)
        if row is None or (row.session is not None and self.is_over(row.session)):
            return None
        return row.versioned

    def page(self, prefix: str, after: str | None, limit: int) -> list[tuple[str, Versioned]]:
        """One page, without the keys of owners that are over."""
        found: list[tuple[str, Versioned]] = []
        while len(found) < limit:
            rows = self.file.page(prefix, after, limit - len(found))
            found += [(r.key, r.versioned) for r in rows if r.session is None or not self.is_over(r.session)]
            if not rows:
                break
            after = rows[-1].key
        return found

    def apply(self, ops: Sequence[Op]) -> list[int]:
        """Operations of one caller."""
        return self.file.apply(ops, over=self._remove_if_over)

    def _remove_if_over(self, session: int) -> bool:
        """Inside a transaction: as `is_over`, and the session's rows are gone when it is."""
        if not self.is_over(session):
            return False
        for row in self._observer.over(self._options.now_ms()):
            if row.number == session:
                self.file.end_session(session, row.name, None if self._observer.is_dead(row) else row.beat)
        return True

    def register(self, registration: Registration, key: str, *, sequential: bool) -> None:
        """Add a registration's key under this store's session."""
        registration.key = sequential_key(key, self.file.revision + 1) if sequential else key
        create = (Create(registration.key, registration.value),)
        self.file.apply(create, self._own_session(), over=self._remove_if_over)

    def hold(self, registration: Registration) -> None:
        """After the commit of `register`: keep it alive."""
        self._held[registration.key] = _Held(registration, registration.value, registration.again)
        if len(self._held) == 1:
            self._next_beat_ms = self._options.now_ms() + self._options.beat_ms

    def update(self, registration: Registration, value: bytes) -> None:
        """Register another value; renews the session first if it was lost."""
        self._keep_alive()
        held = self._held.get(registration.key)
        row = self.file.get(registration.key)
        if held is None or row is None:
            raise KeyMissingError(
                f"the registration {registration.key} is gone; register again", key=registration.key
            )
        self.file.apply((Put(row.key, value, row.version),))
        held.value = value

    def take_back(self, registration: Registration) -> None:
        """Remove a registration. Should the commit fail, the next beat removes the key that nobody holds."""
        if self._held.pop(registration.key, None) is None:
            return
        row = self.file.get(registration.key)
        if row is not None and row.session == self._session_number:
            self.file.end_key(row.key)

    def attach(self, watch: Watch) -> None:
        """From now on this watch is told."""
        if not self._watches:
            self._seen_revision, _ = self.file.changes(self._seen_revision)
        else:
            self._announce()
        self._watches.append(watch)

    def detach(self, watch: Watch) -> None:
        """This watch is not told any more."""
        if watch in self._watches:
            self._watches.remove(watch)

    # --- own session ---------------------------------------------------------------------------------------------

    def _own_session(self) -> int:
        """This store's session, made if it has none. Inside a transaction."""
        if self._session is None:
            self._session = SessionFile(self._folder)
        elif self.file.beat(self._session_number, self._session.name):
            return self._session_number
        elif not self._session.path.exists():
            self._session.release()
            self._session = SessionFile(self._folder)
        owner = f"{os.getpid()}@{socket.gethostname()}"
        self._session_number = self.file.add_session(
            self._session.name, self._options.session_timeout_ms, owner
        )
        return self._session_number

    def _keep_alive(self) -> None:
        """One beat: move the counter, and make the file hold exactly what is held here. Inside a transaction."""
        if self._session is None:
            return
        number = self._own_session()
        present = self.file.keys_of_session(number)
        for key in sorted(present - self._held.keys()):
            self.file.end_key(key)
        for key in sorted(self._held.keys() - present):
            held = self._held[key]
            if held.again:
                try:
                    self.file.apply((Create(key, held.value),), number, over=self._remove_if_over)
                except AlreadyExistsError:
                    pass
                else:
                    held.registration.renewed += 1
                    continue
            del self._held[key]
            self._post(held.registration.lost.set)

    # --- looking around ------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        now_ms = self._options.now_ms()
        self._next_tick_ms = now_ms + self._options.poll_ms
        if self.failure is not None:
            return
        if self._loop.is_closed():
            self._abandoned = True
            return
        try:
            self._look_for_changes()
            if self._held and now_ms >= self._next_beat_ms:
                self._next_beat_ms = now_ms + self._options.beat_ms
                self._attempt(self._keep_alive, HOUSEKEEPING_MS)
            if self._observer.over(now_ms):
                self._remove_over()
        except (sqlite3.Error, QuireError) as error:
            self._failed(error)  # what passes, such as a lock held for long, is tried again at the next tick

    def _look_for_changes(self) -> None:
        version = self.file.data_version()
        if version != self._seen_data_version:
            self._seen_data_version = version
            self._look_at_sessions()
            self._tell_watches()

    def _look_at_sessions(self) -> None:
        self._sessions_data_version = self.file.data_version()
        own = self._session.name if self._session is not None else None
        self._observer.refresh(
            [row for row in self.file.sessions() if row.name != own], self._options.now_ms()
        )

    def _remove_over(self) -> None:
        """Remove the sessions that are over, by compare-and-swap: one that has moved meanwhile stays."""
        self._sweep_due = False
        rows = self._observer.over(self._options.now_ms())
        removed: list[str] = []

        def work() -> None:
            for row in rows:
                if self.file.end_session(
                    row.number, row.name, None if self._observer.is_dead(row) else row.beat
                ):
                    removed.append(row.name)

        if self._attempt(work, HOUSEKEEPING_MS) is None:
            self._look_at_sessions()
            for name in removed:
                remove_if_free(self._folder / name)
            self._announce()

    def _announce(self) -> None:
        """After a commit of this store: tell the own watches, wake the process's other stores of this file."""
        try:
            self._tell_watches()
        except (sqlite3.Error, QuireError) as error:
            self._failed(error)
        with _NEIGHBOURS_LOCK:
            for neighbour in _NEIGHBOURS:
                if neighbour is not self and neighbour.path == self.path and neighbour.is_watching:
                    neighbour.jobs.put(None)

    @property
    def is_watching(self) -> bool:
        """Whether anybody waits for changes here."""
        return bool(self._watches)

    def _tell_watches(self) -> None:
        if not self._watches:
            return
        self._seen_revision, keys = self.file.changes(self._seen_revision)
        for watch in self._watches:
            if keys is None:
                self._post(_offer_everything, watch)
                continue
            changed = [key for key in keys if key.startswith(watch.prefix)]
            if changed:
                self._post(watch.offer, changed)


_Settled = tuple["asyncio.Future[Any]", Any, Exception | None]


def _settle(settled: list[_Settled]) -> None:
    for future, result, error in settled:
        if future.done():
            continue
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)


def _offer_everything(watch: Watch) -> None:
    watch.offer((), reread_all=True)

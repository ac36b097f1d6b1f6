"""The thread that owns a metadata file: groups changes into commits, looks for changes, keeps and watches sessions.

What waits while a commit runs goes into the next one, so that many small changes share one sync; responses leave after the
commit. Everything that SQLite does for a store happens here, so no commit stalls an event loop. `sqlite/store.py` has the
interface.
"""

from __future__ import annotations

import asyncio
import logging
import os
import queue
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from quire.core.errors import (
    CorruptMetadataError,
    MetadataUnknownError,
    MisuseError,
    NoClusterError,
    QuireError,
    StorageError,
)
from quire.core.settings import doubled
from quire.metadata.sqlite.file import CommittedChanges, SessionRow, SqliteFile, SqliteOptions
from quire.metadata.sqlite.place import BUSY_MS, explain, primary_code
from quire.metadata.sqlite.sessions import SqliteRegistrations
from quire.metadata.store import Op, Versioned, Watch

LAST_TRIES: Final = 20
"""How often a store that is closed tries to write its sequence while another process does; 5 ms apart."""
GROUP_MAX: Final = 256
HOUSEKEEPING_MS: Final = 50
"""How long mending and sweeping wait for another process; callers wait behind them, and they come again."""
_LOG: Final = logging.getLogger(__name__)


class SharedWatches:
    """The watches of those stores of this process that have one file and the same options. All threads may call all of it.

    Each store has a thread and a connection of its own, for its requests. But only one of them, the first that has a watch,
    checks now and then whether another process has changed the file, and notifies the watches of all. A commit of this
    process notifies them as well, from the thread that made it. So an idle store costs nothing, and a commit wakes no other
    thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watches: list[tuple[Watch, StoreThread]] = []
        self._seen_revision = 0

    def attach(self, watch: Watch, watcher: StoreThread, file: SqliteFile) -> None:
        """From now on this watch is notified.

        Raises:
            sqlite3.Error: the file cannot be read.
        """
        with self._lock:
            if not self._watches:
                self._seen_revision = file.newest()
            else:
                self._tell_news(file, None)
            self._watches.append((watch, watcher))

    def detach(self, watch: Watch, watcher: StoreThread) -> None:
        """This watch is not notified any more. If another thread must look from now on, it is woken."""
        with self._lock:
            self._drop(lambda each: each == (watch, watcher))

    def leave(self, watcher: StoreThread) -> list[Watch]:
        """A store ends; returns its watches, which are not notified any more."""
        with self._lock:
            dropped = [watch for watch, owner in self._watches if owner is watcher]
            self._drop(lambda each: each[1] is watcher)
            return dropped

    def _drop(self, dropped: Callable[[tuple[Watch, StoreThread]], bool]) -> None:
        before = self._looking()
        self._watches = [each for each in self._watches if not dropped(each)]
        now = self._looking()
        if now is not None and now is not before:
            now.wake()

    def _looking(self) -> StoreThread | None:
        return self._watches[0][1] if self._watches else None

    def looks(self, watcher: StoreThread) -> bool:
        """Whether it is this thread that looks for changes of other processes."""
        return self._looking() is watcher

    def wake(self) -> None:
        """Make the thread that looks for changes do so now."""
        watcher = self._looking()
        if watcher is not None:
            watcher.wake()

    def tell_news(self, file: SqliteFile, committed: CommittedChanges | None = None) -> None:
        """Notify all watches of what has changed since the last notification.

        Args:
            file: the caller's.
            committed: what the caller has just changed. Where no other process has changed anything since the last
                notification, that is everything, and the file need not be read.

        Raises:
            sqlite3.Error: the file cannot be read.
        """
        with self._lock:
            self._tell_news(file, committed)

    def _tell_news(self, file: SqliteFile, committed: CommittedChanges | None) -> None:
        if not self._watches:
            return
        keys: Sequence[str] | None
        if committed is not None and committed.since == self._seen_revision:
            self._seen_revision, keys = committed.revision, committed.keys
        else:
            self._seen_revision, keys = file.changes(self._seen_revision)
        for watch, watcher in self._watches:
            if keys is None:
                watcher.tell(_offer_everything, watch)
            elif changed := [key for key in keys if key.startswith(watch.prefix)]:
                watcher.tell(watch.offer, changed)


def _offer_everything(watch: Watch) -> None:
    watch.offer((), reread_all=True)


_SHARED: Final[weakref.WeakValueDictionary[tuple[Path, SqliteOptions], SharedWatches]] = (
    weakref.WeakValueDictionary()
)
"""As long as a store of them is open."""
_SHARED_LOCK: Final = threading.Lock()


def shared_watches(path: Path, options: SqliteOptions) -> SharedWatches:
    """Those of this process for a file; stores whose options differ do not look for one another."""
    with _SHARED_LOCK:
        shared = _SHARED.get((path, options))
        if shared is None:
            shared = _SHARED[path, options] = SharedWatches()
        return shared


def wake_others(path: Path, own: SharedWatches) -> None:
    """The file has changed: those of this process that watch it with other options look now."""
    with _SHARED_LOCK:
        others = [shared for (file, _), shared in _SHARED.items() if file == path and shared is not own]
    for shared in others:
        shared.wake()


class Settling:
    """What follows a commit, a second later at most and not in its way: the -wal is emptied, the sequence written down.

    Args:
        file: the open file.
        options: how often, and the clock.

    Attributes:
        due_ms: when, by the options' clock; None while nothing was committed since.
    """

    def __init__(self, file: SqliteFile, options: SqliteOptions) -> None:
        self.due_ms: int | None = None
        self._file = file
        self._options = options

    def committed(self) -> None:
        """After a commit. Not at once: the next commit often follows it closely, and would wait."""
        if self.due_ms is None:
            self.due_ms = self._options.now_ms() + self._options.settle_ms

    def settle_if_due(self) -> None:
        """Do it when it is time; what another process was in the way of is tried again later.

        Raises:
            sqlite3.Error: the file is damaged.
            NoClusterError: it was replaced.
        """
        if self.due_ms is None or self._options.now_ms() < self.due_ms:
            return
        self.due_ms = None
        self._file.check_same_file()
        written = self._file.sequence.raise_to(self._file.progress)
        if not (self._file.log.empty() and written):
            self.committed()

    def finish(self) -> None:
        """Before a clean close: the sequence says how far the file has come. SQLite empties the -wal itself."""
        if self.due_ms is None:
            return
        try:
            self._file.check_same_file()
        except NoClusterError:  # the sequence next to the path is not that of the file that is open
            return
        for _ in range(LAST_TRIES):
            if self._file.sequence.raise_to(self._file.progress):
                return
            time.sleep(0.005)


@dataclass(slots=True)
class Job:
    """Something for the thread: `work` runs inside a transaction if it changes something; `done` after its commit."""

    work: Callable[[], Any]
    changes: bool
    future: asyncio.Future[Any]
    done: Callable[[], None] | None = None


_NEIGHBOURS: Final[weakref.WeakSet[StoreThread]] = weakref.WeakSet()
"""The threads of this process."""
_NEIGHBOURS_LOCK: Final = threading.Lock()
_PARENTS: Final[list[StoreThread]] = []
"""In a forked child: the parent's threads, kept from being collected, because closing their files would be wrong."""


def _before_fork() -> None:
    """No thread is in the middle of an operation on what all threads share."""
    _NEIGHBOURS_LOCK.acquire()
    _SHARED_LOCK.acquire()


def _after_fork() -> None:
    _SHARED_LOCK.release()
    _NEIGHBOURS_LOCK.release()


def _after_fork_in_child() -> None:
    _PARENTS.extend(_NEIGHBOURS)
    _NEIGHBOURS.clear()
    _SHARED.clear()
    _after_fork()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child)


class StoreThread(threading.Thread):
    """Owns the file, and through it the sessions and the sight of changes."""

    def __init__(
        self, path: Path, opened: asyncio.Future[None], options: SqliteOptions, *, create: bool
    ) -> None:
        super().__init__(name=f"metadata {path.name}", daemon=True)
        self.path = path
        self.file: SqliteFile
        self.registrations: SqliteRegistrations
        self.settling: Settling
        self.failure: QuireError | None = None
        self.jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._opened = opened
        self._loop = opened.get_loop()
        self._options = options
        self._create = create
        self._watches = shared_watches(path, options)
        self._seen_data_version = -1
        self._next_tick_ms = 0
        self._pause_ms = options.poll_ms
        self._stopping: asyncio.Future[None] | None = None
        self._abandoned = False

    # --- the thread's life ---------------------------------------------------------------------------------------

    def run(self) -> None:
        try:
            self._open()
        except Exception as error:  # noqa: BLE001 - whatever it was, the opening of the store must raise it
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
                if self.registrations.sweep_due or self._options.now_ms() >= self._next_tick_ms:
                    self._tick()
                self._settle()
            except Exception as error:  # noqa: BLE001 - the top of the thread
                _LOG.exception("the thread of the metadata file %s failed", self.path)
                failure = StorageError(f"the store of {self.path} failed: {error!r}", path=str(self.path))
                self._give_up(failure)
                self._post(_settle, [(job.future, None, failure) for job in batch])
        self._end()

    def _open(self) -> None:
        """Open the file and clear what ended processes left."""
        self.file = SqliteFile(self.path, create=self._create, tombstones_kept=self._options.tombstones_kept)
        self.settling = Settling(self.file, self._options)
        self.registrations = SqliteRegistrations(self.file, self._options, self._post)
        if self.registrations.over():
            self._remove_over()

    def _next_jobs(self) -> list[Job]:
        """All that waits, or nothing when it is time to look around; a None in the queue means now."""
        found: list[Job | None] = []
        # Without watches and registrations there is nothing to look for: an idle client takes no time at all.
        looks = self._watches.looks(self) or self.registrations.any_held
        due = [self._next_tick_ms] if looks else []
        if self.settling.due_ms is not None and self.failure is None:
            due.append(self.settling.due_ms)
        pause_ms = max(0, min(due) - self._options.now_ms()) if due else None
        if not looks:
            self.registrations.rest()
        try:
            found.append(self.jobs.get(timeout=None if pause_ms is None else pause_ms / 1000))
            while len(found) < GROUP_MAX:
                found.append(self.jobs.get_nowait())
        except queue.Empty:
            pass
        if None in found:
            self._next_tick_ms = 0
        return [job for job in found if job is not None]

    def stop(self, ended: asyncio.Future[None]) -> None:
        """Take everything back and end; what still waits is refused. Called on the event loop."""
        self._stopping = ended
        self.jobs.put(None)

    def abandon(self) -> None:
        """End as a killed process would: the session's lock is let go, its row stays. Any thread may call it."""
        self._abandoned = True
        self.jobs.put(None)

    def _end(self) -> None:
        try:
            if not self._abandoned and self.failure is None:
                self._attempt(self.registrations.take_back_everything)
                self.settling.finish()
            self.registrations.close(sweep_file=not self._abandoned)
            self.file.close()
        except (sqlite3.Error, OSError) as error:
            _LOG.warning("closing the metadata file %s failed: %s", self.path, error)
        with _NEIGHBOURS_LOCK:
            _NEIGHBOURS.discard(self)
        refused = MisuseError("this metadata store is closed; open another", path=str(self.path))
        while not self.jobs.empty():
            job = self.jobs.get()
            if job is not None:
                self._post(_settle, [(job.future, None, refused)])
        for watch in self._watches.leave(self):
            self._post(watch.end)
        if self._stopping is not None:
            self._post(_settle, [(self._stopping, None, None)])

    def _post(self, call: Callable[..., object], *values: object) -> None:
        try:
            self._loop.call_soon_threadsafe(call, *values)
        except RuntimeError:  # the loop was closed without closing the store: no caller is left
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
            self._announce(self.file.committed)

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

    def _attempt(self, work: Callable[[], None], wait_ms: int = BUSY_MS) -> QuireError | None:
        """Run work in a transaction; None when it is durable, else what became of it."""
        if self.failure is not None:
            return self.failure
        try:
            self._begin(wait_ms)
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
            if primary_code(error) == sqlite3.SQLITE_FULL:
                # The -wal's commit frame is written last: without room for it there is no transaction.
                return self._failed(error)
            return MetadataUnknownError(
                f"the metadata file {self.path} failed during a commit ({error}): the outcome is "
                "unknown; read again, then decide",
                path=str(self.path),
            )
        self.settling.committed()
        return None

    def _begin(self, wait_ms: int) -> None:
        """Start a transaction. A process that waits for another one's is alive: its session's counter moves meanwhile."""
        give_up_ms = self._options.now_ms() + wait_ms
        while (left_ms := give_up_ms - self._options.now_ms()) > self._options.beat_ms:
            try:
                self.file.begin(self._options.beat_ms)
            except sqlite3.OperationalError as error:
                if primary_code(error) != sqlite3.SQLITE_BUSY:
                    raise
                self.registrations.move(self._options.now_ms())
            else:
                return
        self.file.begin(max(0, left_ms))

    def _commit(self) -> None:
        self.file.commit()

    def _roll_back(self) -> None:
        self.registrations.unsettle()
        try:
            self.file.rollback()
        except sqlite3.Error as error:
            self._failed(error)

    def _failed(self, error: sqlite3.Error | QuireError) -> QuireError:
        """The error to raise; a file that is damaged or was replaced is not used again."""
        failure = explain(error, self.path) if isinstance(error, sqlite3.Error) else error
        if isinstance(failure, CorruptMetadataError | NoClusterError):
            self._give_up(failure)
        return failure

    def _give_up(self, failure: QuireError) -> None:
        """From now on everything fails with this; watchers and owners get it."""
        if self.failure is None:
            self.failure = failure
            for watch in self._watches.leave(self):
                self._post(watch.end, failure)
            self.registrations.lose_all()

    # --- what callers ask ----------------------------------------------------------------------------------------

    def get(self, key: str) -> Versioned | None:
        """One key."""
        row = self.file.get(key)
        if row is None or (row.session is not None and self.registrations.is_over(row.session)):
            return None
        return row.versioned

    def page(self, prefix: str, after: str | None, limit: int) -> list[tuple[str, Versioned]]:
        """One page of one moment, without the keys of owners that are over."""
        asked = limit
        while True:
            rows = self.file.page(prefix, after, asked)
            alive = [r for r in rows if r.session is None or not self.registrations.is_over(r.session)]
            if len(rows) < asked or len(alive) >= limit:
                return [(row.key, row.listed) for row in alive[:limit]]
            asked += limit

    def apply(self, ops: Sequence[Op]) -> list[int]:
        """Operations of one caller."""
        return self.file.apply(ops, over=self.registrations.remove_if_over)

    def attach(self, watch: Watch) -> None:
        """From now on this watch is notified."""
        self._watches.attach(watch, self, self.file)

    def detach(self, watch: Watch) -> None:
        """This watch is not notified any more."""
        self._watches.detach(watch, self)

    def wake(self) -> None:
        """Look around now. Any thread may call it."""
        self.jobs.put(None)

    def tell(self, call: Callable[..., object], *values: Any) -> None:
        """Run a call on the event loop of the store's owner. Any thread may call it."""
        self._post(call, *values)
        if self._abandoned:
            self.wake()  # its loop was closed without closing the store: it ends

    # --- looking around ------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        now_ms = self._options.now_ms()
        self._next_tick_ms = now_ms + self._pause_ms
        if self.failure is not None:
            return
        if self._loop.is_closed():
            self._abandoned = True
            return
        try:
            self._look_for_changes()
            if self.registrations.beat(now_ms):
                self._attempt(self.registrations.mend, HOUSEKEEPING_MS)
            if self.registrations.over():
                self._remove_over()
        except (sqlite3.Error, QuireError) as error:
            self._failed(error)  # what passes, such as a lock held for long, is tried again at the next tick

    def _settle(self) -> None:
        if self.failure is not None:
            return
        try:
            self.settling.settle_if_due()
        except (sqlite3.Error, QuireError) as error:
            self._failed(error)

    def _look_for_changes(self) -> None:
        """Every look wakes this thread and takes the interpreter from the loop: while nothing happens, look less."""
        version = self.file.data_version()
        if version == self._seen_data_version:
            self._pause_ms = doubled(self._pause_ms, self._options.quiet_poll_ms)
        else:
            self._pause_ms = self._options.poll_ms
            self.registrations.look()
            self._watches.tell_news(self.file)
            self._seen_data_version = version

    def _remove_over(self) -> None:
        self.registrations.sweep_due = False
        removed: list[SessionRow] = []
        if (
            self._attempt(
                lambda: removed.extend(self.registrations.remove(self.registrations.over())), HOUSEKEEPING_MS
            )
            is None
        ):
            self.registrations.forget(removed)
            self._announce()

    def _announce(self, committed: CommittedChanges | None = None) -> None:
        """After a commit of this store: notify its watches; wake those of this process with other options.

        Args:
            committed: what it changed.
        """
        try:
            self._watches.tell_news(self.file, committed)
        except (sqlite3.Error, QuireError) as error:
            self._failed(error)
            self._seen_data_version, self._next_tick_ms = -1, 0  # looks again
        wake_others(self.path, self._watches)


_Settled = tuple["asyncio.Future[Any]", Any, Exception | None]


def _settle(settled: list[_Settled]) -> None:
    for future, result, error in settled:
        if future.done():
            continue
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)

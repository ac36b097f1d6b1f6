"""The watches of one process on one metadata file: one thread looks for changes, whatever the number of open stores.

Each store has a thread and a connection of its own, for its requests. But only one of them, the first that has a watch,
checks now and then whether another process has changed the file, and notifies the watches of all. A commit of this
process notifies them as well, from the thread that made it. So an idle store costs nothing, and a commit wakes no other
thread.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

from quire.metadata.sqlite.file import CommittedChanges, SqliteFile
from quire.metadata.sqlite.options import SqliteOptions
from quire.metadata.store import Watch


class Watcher(Protocol):
    """A thread whose store has watches."""

    def wake(self) -> None:
        """Look around now. Any thread may call it."""

    def tell(self, call: Callable[..., object], *values: Any) -> None:
        """Run a call on the event loop of the store's owner. Any thread may call it."""


class SharedWatches:
    """The watches of those stores of this process that have one file and the same options. All threads may call all of it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watches: list[tuple[Watch, Watcher]] = []
        self._seen_revision = 0

    def attach(self, watch: Watch, watcher: Watcher, file: SqliteFile) -> None:
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

    def detach(self, watch: Watch, watcher: Watcher) -> None:
        """This watch is not notified any more. If another thread must look from now on, it is woken."""
        with self._lock:
            self._drop(lambda each: each == (watch, watcher))

    def leave(self, watcher: Watcher) -> list[Watch]:
        """A store ends; returns its watches, which are not notified any more."""
        with self._lock:
            gone = [watch for watch, owner in self._watches if owner is watcher]
            self._drop(lambda each: each[1] is watcher)
            return gone

    def _drop(self, dropped: Callable[[tuple[Watch, Watcher]], bool]) -> None:
        before = self._looking()
        self._watches = [each for each in self._watches if not dropped(each)]
        now = self._looking()
        if now is not None and now is not before:
            now.wake()

    def _looking(self) -> Watcher | None:
        return self._watches[0][1] if self._watches else None

    def looks(self, watcher: Watcher) -> bool:
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


def forget_after_fork() -> None:
    """In a forked child: the parent's watches are not its own."""
    _SHARED.clear()
    _SHARED_LOCK.release()


def hold_for_fork() -> None:
    """Before a fork: no thread is in the middle of an operation."""
    _SHARED_LOCK.acquire()


def go_on_after_fork() -> None:
    """In the parent, after a fork."""
    _SHARED_LOCK.release()

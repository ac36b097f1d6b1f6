"""Watches of one ZooKeeper session: which znodes are watched, by which watchers, and what an event means.

Each place is watched once, persistently and with all that is below it, however many watchers want it. A connection's
watches end with it: on the next one all are set again, and every watcher gets `reread_all`.

Source: ZooKeeper Programmer's Guide, "Persistent, Recursive Watches".
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from quire.core.errors import QuireError
from quire.metadata.store import Watch
from quire.metadata.zookeeper.paths import KeyPaths
from quire.metadata.zookeeper.requests import AddWatch, RemoveWatches
from quire.metadata.zookeeper.session import ZookeeperSession


class ZookeeperWatches:
    """The watchers of one store, and the places they need.

    Args:
        session: the session.
        paths: where keys are.
    """

    def __init__(self, session: ZookeeperSession, paths: KeyPaths) -> None:
        self._session = session
        self._paths = paths
        self._watches: list[Watch] = []
        self._places: Counter[str] = Counter()

    async def attach(self, watch: Watch) -> None:
        """Begin to report; when this returns no later change is missed."""
        places = self._paths.watched(watch.prefix)
        self._watches.append(watch)
        self._places.update(places)
        try:
            for place in places:
                await self._set(place)
        except BaseException:
            self.detach(watch)
            raise

    def detach(self, watch: Watch) -> None:
        """End it."""
        if watch in self._watches:
            self._watches.remove(watch)
            for place in self._paths.watched(watch.prefix):
                self.remove_place(place)

    async def add_place(self, path: str) -> None:
        """Watch a znode, which need not exist, and all below it; if this fails, from the next connection on."""
        self._places[path] += 1
        await self._set(path)

    async def _set(self, path: str) -> None:
        await self._session.read(AddWatch(path), fresh=False)

    def remove_place(self, path: str) -> None:
        """Undo one `add_place`, whether it failed or not."""
        self._places[path] -= 1
        if self._places[path] <= 0:
            del self._places[path]
            if self._session.is_ready:
                # Sent once: a watch that another has set since is not this one's, and ends with its connection anyway.
                self._session.submit(RemoveWatches(path)).add_done_callback(_forget)

    def event(self, path: str) -> None:
        """Something happened to a znode."""
        key = self._paths.key(path)
        if key is not None:
            for watch in self._watches:
                if key.startswith(watch.prefix):
                    watch.offer((key,))

    async def connected(self) -> None:
        """Set all watches on a new connection."""
        for path in list(self._places):
            await self._session.submit(AddWatch(path))
        for watch in self._watches:
            watch.offer((), reread_all=True)

    def end(self, failure: QuireError | None = None) -> None:
        """No more changes will come."""
        for watch in self._watches:
            watch.end(failure)
        self._watches.clear()


def _forget(removal: asyncio.Future[Any]) -> None:
    if not removal.cancelled():
        removal.exception()

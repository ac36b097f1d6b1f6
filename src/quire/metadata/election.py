"""The leader for a name: the candidate that came first and is still registered.

Advice only. Two candidates may both act as leader (one was stopped while its session ended); what they lead
must be safe by compare-and-swap and fencing. It only avoids constant conflicts between candidates.

A candidate registers under a number greater than all before; the lowest leads; each of the others watches only the
one before it, so that an end wakes one.

Source: ZooKeeper recipes, "Leader Election".
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from typing import Any, Final

from quire.core.errors import MisuseError
from quire.metadata.store import LIST_LIMIT, MetadataStore, Registration, check_key

PREFIX: Final = "elections/"


class Election:
    """One candidate, or an onlooker that never campaigns.

    Args:
        store: the metadata store.
        name: what is led; one part or several of a key.
        candidate_id: how others know this candidate.
    """

    def __init__(self, store: MetadataStore, name: str, candidate_id: str) -> None:
        self._store = store
        self._prefix = check_key(f"{PREFIX}{name}") + "/"
        self._candidate_id = candidate_id
        self._place: Registration | None = None
        self._registering: asyncio.Task[None] | None = None
        self._resigned = asyncio.Event()  # another one after each time
        self._led = False

    async def campaign(self) -> None:
        """Stand, and return when this candidate leads. Cancel it to stop waiting; `resign` gives the place up.

        A candidate whose session was lost while it waited stands again, behind the others.

        Raises:
            MisuseError: it resigned while it waited, as when its client is closed.
        """
        while True:
            if self._place is None or self._place.lost.is_set():
                await self._take_place()
            place = self._place
            earlier = [] if place is None else [key for key, _ in await self._candidates() if key < place.key]
            # It may have resigned during each of the waits.
            if earlier and self._place is place:
                await self._unless_lost(self._ended(earlier[-1]))
            if self._place is None:
                msg = f"{self._candidate_id} resigned from the election while it waited for its turn"
                raise MisuseError(msg)
            if not earlier and self._place is place:
                self._led = not self._place.lost.is_set()
                if self._led:
                    return

    async def _take_place(self) -> None:
        """Register. Cancelled on the way, the store may have the place already: it stays this candidate's."""
        if self._registering is None:
            self._registering = asyncio.create_task(self._register(), name="take a place in an election")
            # The caller may be cancelled, and the store be closed, before it ends: then its outcome is not read.
            self._registering.add_done_callback(lambda task: task.cancelled() or task.exception())
        await asyncio.shield(self._registering)

    async def _register(self) -> None:
        try:
            value = self._candidate_id.encode()
            self._place = await self._store.register(self._prefix, value, sequential=True, again=False)
        finally:
            self._registering = None

    async def _unless_lost(self, other: Coroutine[Any, Any, None]) -> bool:
        """Wait for something else, or until the own place is lost or resigned; whether it is lost."""
        assert self._place is not None
        lost, came, _ = waits = [
            asyncio.ensure_future(wait) for wait in (self._place.lost.wait(), other, self._resigned.wait())
        ]
        try:
            done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            if came in done:
                came.result()
            return lost in done
        finally:
            for task in waits:
                task.cancel()
            await asyncio.gather(*waits, return_exceptions=True)

    async def _ended(self, key: str) -> None:
        async with self._store.watch(key) as changes:
            async for _ in changes:
                if await self._store.get(key) is None:
                    return

    @property
    def is_leader(self) -> bool:
        """Whether this candidate led at the last notification. That may have ended since: advice."""
        return self._led and self._place is not None and not self._place.lost.is_set()

    async def lost(self) -> bool:
        """Wait until this candidate's session is lost, and its place with it; `campaign` has it stand again.

        Returns:
            False when the store was closed instead.
        """
        return self._place is None or await self._unless_lost(self._closed(self._place.key))

    async def _closed(self, key: str) -> None:
        """Wait until the store is closed: then watches end."""
        async with self._store.watch(key) as changes:
            async for _ in changes:
                pass

    async def leader(self) -> str | None:
        """The candidate that leads; None without candidates."""
        first = await self._candidates(limit=1)
        return first[0][1] if first else None

    async def candidates(self) -> list[str]:
        """Who stands, in order; at most `LIST_LIMIT`."""
        return [candidate for _, candidate in await self._candidates()]

    async def resign(self) -> None:
        """Resign; the next one leads. Cancelled, it continues by itself."""
        self._led = False
        await asyncio.shield(asyncio.create_task(self._leave(), name="leave an election"))

    async def _leave(self) -> None:
        while self._registering is not None:
            await asyncio.wait({self._registering})
        place, self._place = self._place, None
        self._resigned.set()
        self._resigned = asyncio.Event()
        if place is not None:
            await place.close()

    async def watch(self) -> AsyncGenerator[str | None, None]:
        """The leader, now and after every change; use it with `contextlib.aclosing`."""
        last: str | None = None
        started = False
        async with self._store.watch(self._prefix) as changes:
            async for _ in changes:
                leader = await self.leader()
                if not started or leader != last:
                    started, last = True, leader
                    yield leader

    async def _candidates(self, limit: int = LIST_LIMIT) -> list[tuple[str, str]]:
        page = await self._store.list(self._prefix, limit=limit)
        return [(key, value.value.decode()) for key, value in page]

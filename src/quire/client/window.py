"""A bound on the bytes that one writer holds, and the queue of those who wait for room."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

from quire.core.errors import QuireError

_NOBODY: Final[deque[tuple[int, asyncio.Future[None]]]] = deque()
"""Shared by all windows for which nobody waits. Never changed."""


class ByteWindow:
    """Counts bytes against a limit; something larger than the limit is let in alone.

    Attributes:
        used_bytes: what is held or reserved now.
        limit_bytes: how much may be.
        waiters: who waits for how much, first come first served; read only, by the hot path.

    Args:
        limit_bytes: how much may be held.
    """

    __slots__ = ("limit_bytes", "used_bytes", "waiters")

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self.waiters = _NOBODY

    def reserve(self, cost: int) -> bool:
        """Take room if there is any now and nobody waits for it."""
        if self.waiters or not self._fits(cost):
            return False
        self.used_bytes += cost
        return True

    async def room(self, cost: int) -> None:
        """Take room, waiting for it in the order of the calls.

        Raises:
            QuireError: why the writer ended meanwhile.
        """
        if self.reserve(cost):
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (cost, waiter)
        if self.waiters is _NOBODY:
            self.waiters = deque()
        self.waiters.append(entry)
        try:
            await waiter
        except asyncio.CancelledError:
            if entry in self.waiters:
                self.waiters.remove(entry)
                self.give_back(0)
            elif not waiter.cancelled() and waiter.exception() is None:
                self.give_back(cost)
            raise

    def give_back(self, cost: int) -> None:
        """Free room, and let those in who fit now, in the order in which they came."""
        self.used_bytes -= cost
        waiters = self.waiters
        while waiters and (waiters[0][1].done() or self._fits(waiters[0][0])):
            wanted, waiter = waiters.popleft()
            if not waiter.done():
                self.used_bytes += wanted
                waiter.set_result(None)

    def end(self, error: QuireError) -> None:
        """Nobody gets in any more."""
        waiters, self.waiters = self.waiters, _NOBODY
        for _, waiter in waiters:
            if not waiter.done():
                waiter.set_exception(error)

    def _fits(self, cost: int) -> bool:
        return self.used_bytes + cost <= self.limit_bytes or not self.used_bytes

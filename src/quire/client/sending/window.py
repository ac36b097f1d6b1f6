"""A bound on the bytes that one writer holds, and the queue of those who wait for room."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

from quire.core.errors import QuireError


class _Waiter:
    """A caller that waits for room; `granted` from the grant until its task runs again."""

    __slots__ = ("cost", "future", "granted")

    def __init__(self, cost: int) -> None:
        self.cost = cost
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.granted = False


_NOBODY: Final[deque[_Waiter]] = deque()
"""Shared by all windows without waiters. Never changed."""


class ByteWindow:
    """Counts bytes against a limit; something larger than the limit is let in alone.

    Attributes:
        used_bytes: what is held or reserved now.
        limit_bytes: how much may be.
        waiters: who waits, first come first served; read only, by the hot path. A waiter with a grant stays in it until
            its task runs, so that no later caller overtakes it.

    Args:
        limit_bytes: how much may be held.
    """

    __slots__ = ("limit_bytes", "used_bytes", "waiters")

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self.waiters = _NOBODY

    def reserve(self, cost: int) -> bool:
        """Take room if there is any now and no caller waits for it."""
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
        waiter = _Waiter(cost)
        if self.waiters is _NOBODY:
            self.waiters = deque()
        self.waiters.append(waiter)
        try:
            await waiter.future
        except asyncio.CancelledError:
            self._leave(waiter)
            self.give_back(cost if waiter.granted else 0)
            raise
        self._leave(waiter)
        if self.waiters and not self.waiters[0].granted:
            self.give_back(0)  # who came behind the granted ones may have room, too

    def give_back(self, cost: int) -> None:
        """Free room, and let those in who fit now, in the order in which they came."""
        self.used_bytes -= cost
        for waiter in self.waiters:
            if waiter.granted or waiter.future.done():
                continue
            if not self._fits(waiter.cost):
                break
            self.used_bytes += waiter.cost
            waiter.granted = True
            waiter.future.set_result(None)

    def end(self, error: QuireError) -> None:
        """Refuse all waiters and later callers."""
        waiters, self.waiters = self.waiters, _NOBODY
        for waiter in waiters:
            if not waiter.future.done():
                waiter.future.set_exception(error)

    def _leave(self, waiter: _Waiter) -> None:
        if waiter in self.waiters:  # not after the end
            self.waiters.remove(waiter)

    def _fits(self, cost: int) -> bool:
        return self.used_bytes + cost <= self.limit_bytes or not self.used_bytes

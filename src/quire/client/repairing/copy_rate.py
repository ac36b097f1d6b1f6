"""How fast copies are sent, of all repairs that share a rate.

Source: docs/protocol/repair.md, "Targets".
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from quire.env.interfaces import Clock


class CopyRate:
    """At most so many bytes a second, of all copies together.

    Args:
        clock: time.
        bytes_per_s: None: as many as bookies take.
        sleep: waits for some seconds.

    Attributes:
        bytes_per_s: may be set anew at any time.
        sent_bytes: what was let through so far.
    """

    def __init__(
        self,
        clock: Clock,
        bytes_per_s: int | None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._clock, self.bytes_per_s, self._sleep = clock, bytes_per_s, sleep
        self._free_at_ns = 0
        self._turn = asyncio.Lock()
        self.sent_bytes = 0

    async def wait(self, size: int) -> None:
        """Return when so many bytes may be sent; callers are served in their order.

        The rate counts that there is when it is the caller's turn. One that is cancelled before has taken nothing.
        """
        async with self._turn:
            now_ns = self._clock.now_ns()
            if self.bytes_per_s is not None and self._free_at_ns > now_ns:
                await self._sleep((self._free_at_ns - now_ns) / 1e9)
                now_ns = self._clock.now_ns()
            self.sent_bytes += size
            rate = self.bytes_per_s
            self._free_at_ns = (
                now_ns if rate is None else max(now_ns, self._free_at_ns) + size * 1_000_000_000 // rate
            )

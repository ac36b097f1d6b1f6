"""One timer for all connections of a client: it checks for requests that have waited too long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from quire.net.channel import Channel

SWEEP_SECONDS: Final = 0.25
"""How often it checks. A check that is a whole period late expires no request, unless the one before it was late too:
this process did not run, and what came meanwhile has not been read."""


class Sweep:
    """The timer; it runs while there are connections.

    Args:
        channels: returns the connections that there are.

    Attributes:
        was_late: the last check was.
    """

    __slots__ = ("_channels", "_timer", "was_late")

    def __init__(self, channels: Callable[[], Sequence[Channel]]) -> None:
        self._channels = channels
        self._timer: asyncio.TimerHandle | None = None
        self.was_late = False

    def start(self) -> None:
        """There is a connection from now on."""
        if self._timer is None:
            self._wait(asyncio.get_running_loop())

    def stop(self) -> None:
        """Check no more."""
        if self._timer is not None:
            self._timer.cancel()

    def _wait(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = loop.call_later(SWEEP_SECONDS, self._check, loop.time() + SWEEP_SECONDS)

    def _check(self, due: float) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        channels = self._channels()
        was_late, self.was_late = self.was_late, now >= due + SWEEP_SECONDS
        if was_late or not self.was_late:
            for channel in channels:
                channel.expire(now)
        self._timer = None
        if channels:
            self._wait(loop)

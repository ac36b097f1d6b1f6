"""Says when a metadata store is waited for: a store that does not respond must not look like a program that hangs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

log = logging.getLogger(__name__)

SLOW_S: Final = 1.0


class SlowNote:
    """A warning, once for all that wait at the same time, when a store has not responded for a second.

    Args:
        what: the store and its place, as `ZooKeeper at zk1:2181`.
        timeout_s: how long it is waited for.
    """

    __slots__ = ("_timeout_s", "_timer", "_waiting", "_what")

    def __init__(self, what: str, timeout_s: float) -> None:
        self._what, self._timeout_s = what, timeout_s
        self._waiting = 0
        self._timer: asyncio.TimerHandle | None = None

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """While the block runs, the store is waited for."""
        if not self._waiting:
            self._timer = asyncio.get_running_loop().call_later(SLOW_S, self._say)
        self._waiting += 1
        try:
            yield
        finally:
            self._waiting -= 1
            if not self._waiting and self._timer is not None:
                self._timer.cancel()

    def _say(self) -> None:
        log.warning(
            "waiting for %s, which has not responded for %g s (it fails after %g s)",
            self._what, SLOW_S, self._timeout_s,
        )  # fmt: skip

"""One timer for all writers of a client.

A writer holds something while a run of it is unconfirmed, or bookies do not know its LAC yet. Such writers are looked
at a few times a second, and less often while every connection takes what is written to it: a bookie is called slow by
what waits for its connection, so none can be slow then, and thousands of writers may hold something. Those that have
become idle are looked at once more, some seconds later. None of them has a timer of its own, and those that stay idle
cost nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from itertools import takewhile
from typing import Final, Protocol

from quire.client.leaving import LeavingWriter

log = logging.getLogger(__name__)

PERIODS: Final = 4
"""While nothing waits to be sent, writers are looked at in one of so many periods."""


class Ticking(Protocol):
    """What carries out the effects of a writer, and stands above the timer."""

    @property
    def writer(self) -> LeavingWriter:
        """The writer."""

    def tick(self) -> bool:
        """Look after what is held. Returns whether anything still is."""

    def quiet(self) -> None:
        """Nothing has been held for some seconds."""


class Ticks:
    """One timer for all writers of a client.

    Args:
        period_ms: how often a writer that holds something is looked at.
        quiet_ms: how long after the last such look a writer is quiet.
        waits: whether anything of any writer waits to be sent.
    """

    __slots__ = ("_busy", "_kept", "_left_out", "_period", "_quiet_after", "_resting", "_timer", "_waits")

    def __init__(self, period_ms: float, quiet_ms: float, waits: Callable[[], bool]) -> None:
        self._period = period_ms / 1000
        self._quiet_after = quiet_ms / 1000
        self._waits = waits
        self._left_out = 0  # the periods since the last look
        self._busy: dict[Ticking, None] = {}
        self._kept: dict[Ticking, None] = {}
        # When each becomes quiet, the earliest first: all wait equally long.
        self._resting: dict[Ticking, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def start(self, writer: Ticking) -> None:
        """A writer holds something from now on."""
        if not self._busy:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = asyncio.get_running_loop().call_later(self._period, self._fired)
        self._busy[writer] = None
        self._resting.pop(writer, None)

    def keep(self, writer: Ticking) -> None:
        """A writer is to be asked to leave, also if it holds nothing when the client is closed."""
        self._kept[writer] = None

    @property
    def unfinished(self) -> tuple[LeavingWriter, ...]:
        """The writers that hold something, or are to be asked to leave."""
        return tuple(each.writer for each in self._busy | self._kept)

    def stop(self, writer: Ticking) -> None:
        """A writer is done."""
        self._busy.pop(writer, None)
        self._kept.pop(writer, None)
        self._resting.pop(writer, None)

    def _fired(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        self._left_out += 1
        if self._left_out >= PERIODS or self._waits():
            self._left_out = 0
            for writer in list(self._busy):
                if not self._ticks(writer) and writer in self._busy:
                    del self._busy[writer]
                    self._resting[writer] = now + self._quiet_after
        for writer, _ in list(takewhile(lambda item: item[1] <= now, self._resting.items())):
            if self._resting.pop(writer, None) is not None:
                writer.quiet()
        if self._timer is not None:
            self._timer.cancel()  # of a holder that registered meanwhile
        self._timer = None
        if self._busy:
            self._timer = loop.call_later(self._period, self._fired)
        elif self._resting:
            self._timer = loop.call_at(next(iter(self._resting.values())), self._fired)

    @staticmethod
    def _ticks(writer: Ticking) -> bool:
        try:
            return writer.tick()
        except Exception:
            log.exception("a periodic check of a writer failed")
            return False

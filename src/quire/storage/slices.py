"""Work over many ledgers, a few milliseconds of the loop at a time.

Such work is a generator: its caller pauses at each `yield`, so that requests are served in between.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Final, TypeVar

from quire.env.interfaces import Clock

SLICE_NS: Final = 1_000_000
"""Shorter than the loop may be held, 5 ms: the last step of a slice, which may make a dictionary grow, comes on top."""
LEDGERS_A_STEP: Final = 256
"""So many ledgers are looked at between two looks at the clock: a fraction of a millisecond."""

Result = TypeVar("Result")


class Slice:
    """How long the loop has been held since the last pause.

    Args:
        clock: monotonic time.
        slice_ns: how long it may be held, in nanoseconds.
    """

    __slots__ = ("_clock", "_end_ns", "_slice_ns")

    def __init__(self, clock: Clock, slice_ns: int = SLICE_NS) -> None:
        self._clock = clock
        self._slice_ns = slice_ns
        self.begin()

    def begin(self) -> None:
        """A pause is over."""
        self._end_ns = self._clock.now_ns() + self._slice_ns

    @property
    def over(self) -> bool:
        """Whether it is time for a pause."""
        return self._clock.now_ns() >= self._end_ns


def run_through(work: Generator[object, None, Result]) -> Result:
    """Do all of it at once, without a pause; returns what it returns."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: Result = end.value
            return result

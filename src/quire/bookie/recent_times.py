"""What a bookie's adds took in the last seconds: a percentile of few numbers, whose memory and cost do not grow.

Times are counted in classes of constant relative width, for a period and the one before it; what is older is forgotten.

Source: docs/formats/native-protocol.md, INFO.
"""

from __future__ import annotations

from typing import Final

PERIOD_MS: Final = 2_000
"""Times of one to two periods count."""
_PART: Final = 8
"""Classes of each doubling: a percentile is right within an eighth."""


class RecentTimes:
    """Durations of the last seconds. Times are milliseconds of one monotonic clock."""

    __slots__ = ("_before", "_begun_ms", "_now")

    def __init__(self) -> None:
        self._now: dict[int, int] = {}
        self._before: dict[int, int] = {}
        self._begun_ms = 0

    def add(self, duration_us: int, now_ms: int) -> None:
        """Count a duration of at least 0 microseconds."""
        self._turn(now_ms)
        at = _class_of(duration_us)
        self._now[at] = self._now.get(at, 0) + 1

    def p99_us(self, now_ms: int) -> int | None:
        """What 99 % of them did not exceed, rounded up to its class's end; None: there were none."""
        self._turn(now_ms)
        counts = dict(self._before)
        for at, count in self._now.items():
            counts[at] = counts.get(at, 0) + count
        left = sum(counts.values()) // 100
        for at in sorted(counts, reverse=True):
            left -= counts[at]
            if left < 0:
                return _end_of(at)
        return None

    def _turn(self, now_ms: int) -> None:
        """Begin another period when this one is over."""
        elapsed_ms = now_ms - self._begun_ms
        if elapsed_ms < PERIOD_MS:
            return
        self._before = self._now if elapsed_ms < 2 * PERIOD_MS else {}
        self._now, self._begun_ms = {}, now_ms


def _class_of(duration_us: int) -> int:
    """Small durations are their own class; of the others the first bits count."""
    shift = max(0, duration_us.bit_length() - _PART.bit_length())
    return shift * _PART + (duration_us >> shift)


def _end_of(at: int) -> int:
    """The longest duration of a class."""
    shift, first = (0, at) if at < 2 * _PART else (at // _PART - 1, at % _PART + _PART)
    return ((first + 1) << shift) - 1

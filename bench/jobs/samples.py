"""What the plots are drawn from: a count over time, and the quantiles of many times."""

from __future__ import annotations

from collections.abc import Sequence

BUCKETS_PER_SECOND = 10
QUANTILES_MAX = 400


class Timeline:
    """How many entries were completed in each tenth of a second.

    Args:
        start: when it begins, on the caller's clock, in seconds.
    """

    def __init__(self, start: float) -> None:
        self._start = start
        self.counts: list[int] = []

    def add(self, now: float, completed: int) -> None:
        """So many more entries are complete now."""
        bucket = int((now - self._start) * BUCKETS_PER_SECOND)
        while len(self.counts) <= bucket:
            self.counts.append(0)
        self.counts[bucket] += completed


def evenly(ordered: Sequence[float], most: int) -> list[float]:
    """At most so many of some sorted figures, evenly spaced by rank, the smallest and the largest included."""
    if len(ordered) <= most:
        return list(ordered)
    return [ordered[rank * (len(ordered) - 1) // (most - 1)] for rank in range(most)]


def quantiles_us(nanos: Sequence[int]) -> list[float]:
    """A sorted sample of some times, in microseconds."""
    return [round(nano / 1e3, 1) for nano in evenly(sorted(nanos), QUANTILES_MAX)]

"""Latencies in buckets of constant relative width: small memory, good percentiles, a picture for the terminal."""

from __future__ import annotations

import math
from typing import Final

_PERCENTILES: Final = (("p50", 50), ("p90", 90), ("p99", 99), ("p99_9", 99.9))
_STEPS_PER_OCTAVE: Final = 16
"""Sixteen buckets for each doubling: a percentile is right within 4.5 %."""


class Histogram:
    """Counts of durations; adding is cheap, memory does not grow with their number."""

    __slots__ = ("buckets", "count", "longest_ns", "shortest_ns", "sum_ns")

    def __init__(self) -> None:
        self.buckets: dict[int, int] = {}
        self.count = 0
        self.sum_ns = 0
        self.longest_ns = 0
        self.shortest_ns = 0

    def add(self, duration_ns: int, times: int = 1) -> None:
        """Count a duration of at least 0 ns, `times` times."""
        bucket = int(math.log2(duration_ns) * _STEPS_PER_OCTAVE) if duration_ns > 0 else 0
        self.buckets[bucket] = self.buckets.get(bucket, 0) + times
        self.shortest_ns = min(self.shortest_ns, duration_ns) if self.count else duration_ns
        self.longest_ns = max(self.longest_ns, duration_ns)
        self.count += times
        self.sum_ns += duration_ns * times

    def percentile_ns(self, percent: float) -> int:
        """The duration that `percent` of all durations do not exceed (within a bucket's width); 0 without any."""
        wanted = max(1, math.ceil(self.count * percent / 100))
        seen = 0
        for bucket in sorted(self.buckets):
            seen += self.buckets[bucket]
            if seen >= wanted:
                upper = int(2 ** ((bucket + 1) / _STEPS_PER_OCTAVE))
                return max(self.shortest_ns, min(upper, self.longest_ns))
        return 0

    def facts(self) -> dict[str, object]:
        """The usual percentiles in milliseconds, for a JSON line."""
        mean = self.sum_ns / self.count if self.count else 0.0
        facts: dict[str, object] = {"count": self.count, "mean_ms": round(mean / 1e6, 4)}
        for name, percent in _PERCENTILES:
            facts[f"{name}_ms"] = round(self.percentile_ns(percent) / 1e6, 4)
        facts["max_ms"] = round(self.longest_ns / 1e6, 4)
        return facts

    def sentence(self) -> str:
        """The usual percentiles in words."""
        if not self.count:
            return "No entry was acknowledged."
        within = [
            f"{percent:g} % within {human_ns(self.percentile_ns(percent))}" for _, percent in _PERCENTILES
        ]
        return (
            f"From the append to its acknowledgement: {human_ns(self.sum_ns / self.count)} on average, "
            f"{', '.join(within)}, the slowest {human_ns(self.longest_ns)}."
        )

    def draw(self, width: int = 50) -> str:
        """The distribution as text, four bars for each doubling."""
        if not self.count:
            return "no durations"
        bars: dict[int, int] = {}
        for bucket, count in self.buckets.items():
            bars[bucket // 4] = bars.get(bucket // 4, 0) + count
        largest = max(bars.values())
        lines = []
        for bar in range(min(bars), max(bars) + 1):
            count = bars.get(bar, 0)
            upper = human_ns(2 ** ((bar + 1) * 4 / _STEPS_PER_OCTAVE))
            length = math.ceil(count / largest * width) if count else 0
            lines.append(f"{'<= ' + upper:>12}  {'█' * length:<{width}}  {count:,}")
        return "\n".join(lines)


def human_ns(duration_ns: float) -> str:
    """A duration with the unit that suits it: `1.25 ms`."""
    for limit, divisor, unit in ((1e3, 1, "ns"), (1e6, 1e3, "us"), (1e9, 1e6, "ms")):
        if duration_ns < limit:
            return f"{duration_ns / divisor:.3g} {unit}"
    return f"{duration_ns / 1e9:.3g} s"

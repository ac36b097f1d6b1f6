"""Which records a query's filters leave: offsets exactly, times as a reason to skip.

An offset comparison is answered here and not left to Spark. A time comparison skips ledgers and entries by
their smallest and largest time and is left for Spark to check each record, because an entry is read as a whole.

Up to Spark 4.3 the filters of one query stay in the data frame and apply to its next query as well, so nothing is taken
of them unless Spark's version is known to be right (`quire.spark.versions`). Until then the options `startingOffsets`,
`endingOffsets`, `startingTimestamp` and `endingTimestamp` say what to read.

Spans are half-open, disjoint and ascending: `((0, 10), (20, 21))`. Source: docs/spark.md, "A part of a log"; Spark
documentation: `pushFilters`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Final

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

Spans = tuple[tuple[int, int], ...]

OFFSET_END: Final = 2**63 - 1
EVERYTHING: Final[Spans] = ((0, OFFSET_END),)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_POINTS_MAX: Final = 1_000
"""More single offsets than this are answered by Spark within their hull: a span costs a seek."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """The records a read is after: those in `offsets`, in entries that touch `[from_ms, to_ms)`."""

    offsets: Spans = EVERYTHING
    from_ms: int | None = None
    to_ms: int | None = None

    def touches(self, min_ms: int, max_ms: int) -> bool:
        """Whether records whose times lie in `min_ms..max_ms` can be among them."""
        return (self.from_ms is None or max_ms >= self.from_ms) and (
            self.to_ms is None or min_ms < self.to_ms
        )


def push(wanted: Wanted, filters: Iterable[Filter]) -> tuple[Wanted, list[Filter]]:
    """Narrow `wanted` by what can be used of a query's filters.

    Returns:
        The narrowed one, and the filters that Spark must still apply.
    """
    left: list[Filter] = []
    for item in filters:
        column = getattr(item, "attribute", None)
        if column == ("offset",):
            spans = _offset_spans(item)
            if spans is not None:
                wanted = replace(wanted, offsets=intersect(wanted.offsets, spans))
                if len(spans) <= _POINTS_MAX:
                    continue
                wanted = replace(wanted, offsets=hull(wanted.offsets))
        elif column == ("timestamp",):
            wanted = _narrow_time(wanted, item)
        left.append(item)
    return wanted, left


def _offset_spans(item: Filter) -> Spans | None:
    match item:
        case IsNotNull():
            return EVERYTHING
        case EqualTo(value=int(value)) | EqualNullSafe(value=int(value)):
            return between(value, value + 1)
        case GreaterThan(value=int(value)):
            return between(value + 1, OFFSET_END)
        case GreaterThanOrEqual(value=int(value)):
            return between(value, OFFSET_END)
        case LessThan(value=int(value)):
            return between(0, value)
        case LessThanOrEqual(value=int(value)):
            return between(0, value + 1)
        case In(value=values) if all(isinstance(value, int) for value in values):
            return union(values)
    return None


def _narrow_time(wanted: Wanted, item: Filter) -> Wanted:
    match item:
        case EqualTo(value=datetime() as value) | EqualNullSafe(value=datetime() as value):
            return _later(_earlier(wanted, _ms(value) + 1), _ms(value))
        case GreaterThan(value=datetime() as value) | GreaterThanOrEqual(value=datetime() as value):
            return _later(wanted, _ms(value))
        case LessThan(value=datetime() as value) | LessThanOrEqual(value=datetime() as value):
            return _earlier(wanted, _ms(value) + 1)
        case In(value=values) if values and all(isinstance(value, datetime) for value in values):
            times = [_ms(value) for value in values]
            return _later(_earlier(wanted, max(times) + 1), min(times))
    return wanted


def _later(wanted: Wanted, ms: int) -> Wanted:
    return replace(wanted, from_ms=ms if wanted.from_ms is None else max(wanted.from_ms, ms))


def _earlier(wanted: Wanted, ms: int) -> Wanted:
    return replace(wanted, to_ms=ms if wanted.to_ms is None else min(wanted.to_ms, ms))


def _ms(moment: datetime) -> int:
    """Whole milliseconds, rounded down: a record's time has no finer part, and skipping must never skip too much."""
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return (aware - _EPOCH) // timedelta(milliseconds=1)


def between(start: int, end: int) -> Spans:
    """One span, or none when it is empty."""
    start, end = max(start, 0), min(end, OFFSET_END)
    return ((start, end),) if start < end else ()


def union(points: Iterable[int]) -> Spans:
    """Single offsets as spans; neighbours join."""
    spans: list[tuple[int, int]] = []
    for point in sorted(set(points)):
        if point < 0:
            continue
        if spans and spans[-1][1] == point:
            spans[-1] = (spans[-1][0], point + 1)
        else:
            spans.append((point, point + 1))
    return tuple(spans)


def intersect(one: Sequence[tuple[int, int]], other: Sequence[tuple[int, int]]) -> Spans:
    """What lies in both."""
    out: list[tuple[int, int]] = []
    i = j = 0
    while i < len(one) and j < len(other):
        start, end = max(one[i][0], other[j][0]), min(one[i][1], other[j][1])
        if start < end:
            out.append((start, end))
        if one[i][1] < other[j][1]:
            i += 1
        else:
            j += 1
    return tuple(out)


def hull(spans: Spans) -> Spans:
    """One span from the first start to the last end."""
    return ((spans[0][0], spans[-1][1]),) if spans else ()

"""Marks: which batch of which query a log holds already, and how long that is remembered.

A mark is changed only in the swap that lists the batch's ledgers, so the two can never disagree. A mark below a batch
proves that no ledger of that batch is listed; a mark at or above it, that none will be.

Source: spark.md 4.1, 4.2.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from quire.core.errors import MisuseError
from quire.core.log_list import MARKS_MAX, LogHead, Mark

DAY_MS: Final = 86_400_000
MARK_RETENTION_MS: Final = 90 * DAY_MS
"""A query that has been silent for so long is forgotten."""
MARK_YOUNG_MS: Final = DAY_MS
"""A mark younger than this is never dropped to make room."""


def with_mark(head: LogHead, mark: Mark, retention_ms: int = MARK_RETENTION_MS) -> LogHead:
    """The head with a query's mark moved on; marks of silent queries are dropped, and that is counted.

    Raises:
        MisuseError: all the marks that fit are of queries that wrote within the last day.
    """
    old = head.mark(mark.query_id)
    mark = mark if old is None else replace(mark, unknown=old.unknown)
    others = [each for each in head.marks if each.query_id != mark.query_id]
    kept = [each for each in others if mark.time_ms - each.time_ms < retention_ms]
    while len(kept) >= MARKS_MAX:
        oldest = min(kept, key=lambda each: each.time_ms)
        if mark.time_ms - oldest.time_ms < MARK_YOUNG_MS:
            msg = (
                f"log {head.name!r} remembers {len(kept)} queries that all wrote within the last day; "
                "a new one has no room. Use fewer names of transactions"
            )
            raise MisuseError(msg, log=head.name)
        kept.remove(oldest)
    gone = [each.time_ms for each in others if each not in kept]
    return replace(
        head,
        marks=(*kept, mark),
        marks_dropped=head.marks_dropped + len(gone),
        marks_dropped_ms=max([head.marks_dropped_ms, *gone]),
    )

"""Marks: which batch of which query a log holds already, how a batch stands to it, and how long it is kept.

A mark is changed only in the compare-and-swap that lists the batch's ledgers, so the two can never disagree. A mark
below a batch proves that no ledger of that batch is listed; a mark at or above it, that none will be, unless the user
consents to rows that come twice.

How a batch stands to its query's mark:

| number | fingerprints | |
| --- | --- | --- |
| above the mark's | same, or unknown | new: it is appended |
| the mark's | same, or unknown | a replay: it is in the log |
| the mark's, or above it | differ | another history: the checkpoint went back, or is a copy |
| below the mark's | | behind: a whole checkpoint repeats only its last batch |

The fingerprints are those of the batch with the mark's number: the one that the mark keeps, and the one that the
caller's checkpoint has of this number. A named transaction has no checkpoint to ask, so it compares equal numbers only.

Source: docs/spark-sink.md, "Exactly once: how", "What is exactly once, and what a checkpoint from a backup does".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from quire.core.errors import MisuseError
from quire.core.log.fingerprints import Fingerprint, is_same_batch
from quire.core.log.list import MARKS_MAX, LogHead, Mark

DAY_MS: Final = 86_400_000
MARK_RETENTION_MS: Final = 90 * DAY_MS
"""The mark of a query that wrote nothing for so long is dropped."""
MARK_YOUNG_MS: Final = DAY_MS
"""A mark younger than this is never dropped to make room."""
MARK_LAG_MAX: Final = 50
"""A stream's mark moves even without rows when it is so many batches old: Spark keeps the files of the last 100 batches
unless configured otherwise, and the comparison needs the file of the mark's number."""


class Standing(Enum):
    """How a batch stands to its query's mark; the table is above."""

    NEW = "new"
    REPLAY = "replay"
    BEHIND = "behind"
    OTHER_HISTORY = "other_history"
    WAS_RESET = "was_reset"
    """The numbers of a named transaction begin again under another checkpoint."""
    DAMAGED = "damaged"
    """The mark's fingerprint cannot be one."""


# --- rules ----------------------------------------------------------------------------------------------------


def is_replay(batch_id: int, mark: Mark) -> bool:
    """A batch at or below its query's mark is in the log."""
    return batch_id <= mark.batch_id


def is_behind(batch_id: int, mark: Mark) -> bool:
    """A whole checkpoint repeats only its last batch, so a number below the mark comes from one that is not."""
    return batch_id < mark.batch_id


def fingerprint_of(mark: Mark) -> Fingerprint | None:
    """What a mark keeps of its own batch; a fingerprint of another batch was carried along by an older program."""
    found = mark.fingerprint
    return found if found is not None and found.batch_id == mark.batch_id else None


def lags(batch_id: int, mark: Mark) -> bool:
    """Whether a mark is so old that the checkpoint may soon have no file of its batch."""
    return batch_id - mark.batch_id >= MARK_LAG_MAX


@dataclass(frozen=True, slots=True)
class MarkRules:
    """The judgements on a mark; a check takes one of them out."""

    is_replay: Callable[[int, Mark], bool] = is_replay
    is_behind: Callable[[int, Mark], bool] = is_behind
    is_same_batch: Callable[[Fingerprint | None, Fingerprint | None], bool | None] = is_same_batch
    fingerprint_of: Callable[[Mark], Fingerprint | None] = fingerprint_of


MARK_RULES: Final = MarkRules()


def standing(
    mark: Mark | None,
    batch_id: int,
    incarnation: str = "",
    own: Fingerprint | None = None,
    rules: MarkRules = MARK_RULES,
) -> Standing:
    """How a batch stands to its query's mark.

    Args:
        mark: the log's; None when it has none of the query.
        batch_id: the number of the batch.
        incarnation: of a named transaction, the checkpoint that counts.
        own: what the caller knows of the batch with the mark's number; None when it knows nothing.
        rules: the judgements.
    """
    if mark is None:
        return Standing.NEW
    known = rules.fingerprint_of(mark)
    if known is not None and known.is_damaged:
        return Standing.DAMAGED
    if rules.is_replay(batch_id, mark) and mark.incarnation != incarnation:
        return Standing.WAS_RESET
    if rules.is_behind(batch_id, mark):
        return Standing.BEHIND
    if rules.is_same_batch(known, own) is False:
        return Standing.OTHER_HISTORY
    return Standing.REPLAY if rules.is_replay(batch_id, mark) else Standing.NEW


# --- changes --------------------------------------------------------------------------------------------------


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
    dropped = [each.time_ms for each in others if each not in kept]
    return replace(
        head,
        marks=(*kept, mark),
        marks_dropped=head.marks_dropped + len(dropped),
        marks_dropped_ms=max([head.marks_dropped_ms, *dropped]),
    )

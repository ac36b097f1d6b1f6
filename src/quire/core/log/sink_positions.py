"""Sink positions: which batch of which query a log holds already, how a batch stands to it, and how long it is kept.

A sink position is changed only in the compare-and-swap that lists the batch's ledgers, so the two can never disagree. A
sink position below a batch proves that no ledger of that batch is listed; a sink position at or above it, that none
will be, unless the user consents to rows that come twice.

How a batch stands to its query's sink position:

| number | fingerprints | |
| --- | --- | --- |
| above the sink position's | same, or unknown | new: it is appended |
| the sink position's | same, or unknown | a replay: it is in the log |
| the sink position's, or above it | differ | another history: the checkpoint went back, or is a copy |
| below the sink position's | | behind: a whole checkpoint repeats only its last batch |

The fingerprints are those of the batch with the sink position's number: the one that the sink position keeps, and the
one that the caller's checkpoint has of this number. A named transaction, a write that the user gives a name and a
number (`txnAppId`, `txnVersion`), has no checkpoint to ask, so it compares equal numbers only.

Source: docs/spark-sink.md, "Exactly once: how", "What is exactly once, and what a checkpoint from a backup does".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from quire.core.errors import MisuseError
from quire.core.log.fingerprints import Fingerprint, is_same_batch
from quire.core.log.list import SINK_POSITIONS_MAX, LogHead, SinkPosition

DAY_MS: Final = 86_400_000
POSITION_RETENTION_MS: Final = 90 * DAY_MS
"""The sink position of a query that wrote nothing for so long is dropped."""
POSITION_YOUNG_MS: Final = DAY_MS
"""A sink position younger than this is never dropped to make room."""
POSITION_LAG_MAX: Final = 50
"""A streaming query's sink position moves even without rows when it is so many batches old: Spark keeps the files of
the last 100 batches unless configured otherwise, and the comparison needs the file of the sink position's number."""


class Standing(Enum):
    """How a batch stands to its query's sink position; the table is above."""

    NEW = "new"
    REPLAY = "replay"
    BEHIND = "behind"
    OTHER_HISTORY = "other_history"
    WAS_RESET = "was_reset"
    """The numbers of a named transaction begin again under another checkpoint."""
    DAMAGED = "damaged"
    """The sink position's fingerprint cannot be one."""


# --- rules ----------------------------------------------------------------------------------------------------


def is_replay(batch_id: int, position: SinkPosition) -> bool:
    """A batch at or below its query's sink position is in the log."""
    return batch_id <= position.batch_id


def is_behind(batch_id: int, position: SinkPosition) -> bool:
    """A whole checkpoint repeats only its last batch, so a number below the sink position comes from one that is not."""
    return batch_id < position.batch_id


def fingerprint_of(position: SinkPosition) -> Fingerprint | None:
    """What a sink position keeps of its own batch; a fingerprint of another batch was carried along by an older program."""
    found = position.fingerprint
    return found if found is not None and found.batch_id == position.batch_id else None


def lags(batch_id: int, position: SinkPosition) -> bool:
    """Whether a sink position is so old that the checkpoint may soon have no file of its batch."""
    return batch_id - position.batch_id >= POSITION_LAG_MAX


@dataclass(frozen=True, slots=True)
class PositionRules:
    """The rules about a sink position; only tests pass changed ones."""

    is_replay: Callable[[int, SinkPosition], bool] = is_replay
    is_behind: Callable[[int, SinkPosition], bool] = is_behind
    is_same_batch: Callable[[Fingerprint | None, Fingerprint | None], bool | None] = is_same_batch
    fingerprint_of: Callable[[SinkPosition], Fingerprint | None] = fingerprint_of


POSITION_RULES: Final = PositionRules()


def standing(
    position: SinkPosition | None,
    batch_id: int,
    incarnation: str = "",
    own: Fingerprint | None = None,
    rules: PositionRules = POSITION_RULES,
) -> Standing:
    """How a batch stands to its query's sink position.

    Args:
        position: the log's sink position; None when it has none of the query.
        batch_id: the number of the batch.
        incarnation: of a named transaction, the checkpoint that counts.
        own: what the caller knows of the batch with the sink position's number; None when it knows nothing.
        rules: the protocol's rules (`core/rules.py`).
    """
    if position is None:
        return Standing.NEW
    known = rules.fingerprint_of(position)
    if known is not None and known.is_damaged:
        return Standing.DAMAGED
    if rules.is_replay(batch_id, position) and position.incarnation != incarnation:
        return Standing.WAS_RESET
    if rules.is_behind(batch_id, position):
        return Standing.BEHIND
    if rules.is_same_batch(known, own) is False:
        return Standing.OTHER_HISTORY
    return Standing.REPLAY if rules.is_replay(batch_id, position) else Standing.NEW


# --- changes --------------------------------------------------------------------------------------------------


def with_position(
    head: LogHead, position: SinkPosition, retention_ms: int = POSITION_RETENTION_MS
) -> LogHead:
    """The head with a query's sink position moved on; sink positions of silent queries are dropped, and that is counted.

    Raises:
        MisuseError: all the sink positions that fit are of queries that wrote within the last day.
    """
    old = head.sink_position(position.query_id)
    position = position if old is None else replace(position, unknown=old.unknown)
    others = [each for each in head.sink_positions if each.query_id != position.query_id]
    kept = [each for each in others if position.time_ms - each.time_ms < retention_ms]
    while len(kept) >= SINK_POSITIONS_MAX:
        oldest = min(kept, key=lambda each: each.time_ms)
        if position.time_ms - oldest.time_ms < POSITION_YOUNG_MS:
            msg = (
                f"log {head.name!r} remembers {len(kept)} queries that all wrote within the last day; "
                "a new one has no room. Use fewer names of transactions"
            )
            raise MisuseError(msg, log=head.name)
        kept.remove(oldest)
    dropped = [each.time_ms for each in others if each not in kept]
    return replace(
        head,
        sink_positions=(*kept, position),
        positions_dropped=head.positions_dropped + len(dropped),
        positions_dropped_ms=max([head.positions_dropped_ms, *dropped]),
    )

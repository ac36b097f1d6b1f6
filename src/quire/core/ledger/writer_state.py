"""The words of a writer: its states and inputs, what a run and a hole are, and how long it waits.

Source: BookKeeper protocol, "Writing to the ledger".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, NamedTuple, TypeAlias

from quire.core.ids import BookieId
from quire.core.state_table import StateTable


class Status(Enum):
    """Where a writer is in its life."""

    WRITING = "writing"
    CHANGING = "changing"
    """An ensemble change is under way: responses are recorded, nothing is confirmed to callers."""
    CLOSING = "closing"
    CLOSED = "closed"
    ENDED = "ended"
    ABANDONED = "abandoned"


WRITER_TABLE: Final = StateTable(
    Status,
    {
        "began_without": "writing > =",
        "append": "writing > = changing; changing > =",
        "assign_ids": "writing > = changing; changing > =",
        "adds_acked": "writing > = closing; changing > =; closing closed ended abandoned > -",
        "adds_acked_together": "writing > = closing; changing > =; closing closed ended abandoned > -",
        "confirm_head": "writing > =; changing closing closed ended abandoned > -",
        "add_failed": "writing > = changing closing ended; changing > = closing ended; closing closed ended abandoned > -",
        "bookie_lost": "writing > = changing; changing > =; closing closed ended abandoned > -",
        "bookie_left": "writing changing > =; closing closed ended abandoned > -",
        "left_bookies_asked": "writing > = changing; changing > =; closing closed ended abandoned > -",
        "replacements_chosen": "changing > = writing closing; writing closing closed ended abandoned > -",
        "bookies_found": "writing > = changing; changing > =; closing closed ended abandoned > -",
        "timer_fired": "writing > = closing; changing closing > =; closed ended abandoned > -",
        "metadata_written": "changing > = writing; closing > = closed ended; ended abandoned > -",
        "metadata_conflicted": "changing closing > =; ended abandoned > -",
        "metadata_unknown": "changing closing > = ended; ended abandoned > -",
        "metadata_missing": "changing closing > ended; ended abandoned > -",
        "metadata_read": "changing > = writing ended; closing > = closed ended; ended abandoned > -",
        "close": "writing changing > = closing; closing closed > -",
        "abandon": "writing changing closing > abandoned; closed ended abandoned > -",
    },
)
"""What a writer's inputs do. A metadata response acts only if it was asked for."""


@dataclass(frozen=True, slots=True)
class WriterLimits:
    """How long a writer waits, and how often it tries.

    Attributes:
        retry_ms_min: first wait before an absent slot's bookie is looked for, or unanswered metadata are read again;
            doubles.
        retry_ms_max: where that doubling stops.
        metadata_attempts_max: unanswered metadata requests before the writer gives up.
        quorum_wait_ms: how long a writer that cannot reach its ack quorum waits for bookies before it ends; 0: not at
            all.
        left_wait_ms: how long a bookie may answer without a registration while another could take its slot.
    """

    retry_ms_min: int = 200
    retry_ms_max: int = 5_000
    metadata_attempts_max: int = 8
    quorum_wait_ms: int = 10_000
    left_wait_ms: int = 15_000


class _Nothing(dict[Any, Any]):
    """An empty dictionary that stays empty, so that all machines can share one."""

    __hash__ = object.__hash__  # type: ignore[assignment]

    def __setitem__(self, key: object, value: object) -> None:
        raise AssertionError(key, value)


Places: TypeAlias = Sequence[tuple[int, BookieId]]
"""Slots, each with the bookie that is meant there."""

NOTHING: Final = _Nothing()
"""What most of many machines keep where something may happen and has not. It is replaced, not changed in place."""


Run: TypeAlias = tuple[int, int, int, int]
"""(first, last, LAC of its headers, payload bytes) of entries handed over together.

A plain tuple of numbers, and no object with names: thousands wait at a time, and Python's collector looks at these once.
"""


class Hole(NamedTuple):
    """Entries that a bookie of the record may lack: its slot was absent, or it never acknowledged them."""

    slot: int
    bookie: BookieId
    first: int
    last: int

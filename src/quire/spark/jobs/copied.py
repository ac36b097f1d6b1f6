"""Neighbours of a list that become one ledger: which may, what a task says of the ledger it made, what is listed for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from pyspark.sql import SparkSession

from quire.core.ids import LedgerId
from quire.core.log_list import LogItem, LogSettings, Place
from quire.core.log_rewriting import Replacement
from quire.log.rewriting import SWAPPED_AT_ONCE
from quire.spark.jobs import command
from quire.spark.jobs.units import Row
from quire.wire.batch import FORMAT_BATCH1


class Neighbours(Protocol):
    """A unit that makes one ledger of some."""

    @property
    def items(self) -> tuple[LogItem, ...]:
        """Oldest first."""

    @property
    def settings(self) -> LogSettings:
        """Of the log's ledgers."""


def may_be_copied(item: LogItem) -> bool:
    """Whether an item is a ledger, on bookies, of batches."""
    return item.place is Place.BOOKIES and item.format == FORMAT_BATCH1.decode()


def per_round(spark: SparkSession) -> int:
    """How many copies are made between two swaps: a full swap, and at least half of one where there are few cores."""
    return min(SWAPPED_AT_ONCE, max(SWAPPED_AT_ONCE // 2, command.slots(spark) * 2))


def row_of(old: Sequence[LogItem], new: LogItem) -> Row:
    """What a task says of a ledger that it made of some neighbours."""
    return {
        "ledger": int(new.ledger_id),
        "token": f"{new.token:x}",
        "replaced": len(old),
        "first_offset": old[0].first_offset,
        "next_offset": old[-1].next_offset,
        "records": sum(item.count for item in old),
        "bytes": new.payload_bytes,
        "min_time_ms": new.min_time_ms,
        "max_time_ms": new.max_time_ms,
    }


def replacement(unit: Neighbours, row: Row, *, kept: int | None = None) -> Replacement:
    """What is swapped into the list for such a row.

    Args:
        unit: what the task was asked for.
        row: what it said.
        kept: how many records stay, if some were left out.
    """
    new = LogItem(
        LedgerId(row["ledger"]),
        int(row["token"], 16),
        count=row["records"] if kept is None else kept,
        payload_bytes=row["bytes"],
        min_time_ms=row["min_time_ms"],
        max_time_ms=row["max_time_ms"],
        digest=unit.settings.digest,
    )
    return Replacement.by_copy(unit.items, new, compacted=kept is not None)

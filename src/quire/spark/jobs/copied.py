"""Neighbours of a list that become one ledger: which may, what a task says of the ledger it made, what is listed for it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pyspark.sql import SparkSession

from quire.core.ids import LedgerId
from quire.core.log.list import ItemLocation, LogItem, LogSettings
from quire.core.log.rewriting import Replacement
from quire.log.rewriting import REPLACED_AT_ONCE
from quire.spark.jobs import command
from quire.spark.jobs.units import Row
from quire.wire.batch_format import FORMAT_BATCH1


@dataclass(frozen=True, slots=True)
class CopyUnit:
    """Neighbours that become one ledger, for one task.

    Attributes:
        log_id: the log; `password` and `settings`: of its ledgers.
        items: the neighbours, oldest first.
        verb: what the job does to them.
    """

    uri: str
    log_id: bytes
    password: bytes
    settings: LogSettings
    items: tuple[LogItem, ...]
    verb: str

    @property
    def lane(self) -> str:
        """All of them load the same bookies."""
        return "copies"

    @property
    def name(self) -> str:
        """The log, and which ledgers."""
        first, last = self.items[0], self.items[-1]
        return f"{self.verb} {self.log_id.hex()} ledgers {first.ledger_id} to {last.ledger_id}"

    @property
    def size(self) -> int:
        """Bytes that are read."""
        return sum(item.payload_bytes for item in self.items)


SCHEMA = (
    "ledger bigint, token string, replaced bigint, first_offset bigint, next_offset bigint, records bigint, "
    "bytes bigint, min_time_ms bigint, max_time_ms bigint, seconds double, refused string"
)
"""The columns of `row_of`, and what a task adds."""


def may_be_copied(item: LogItem) -> bool:
    """Whether an item is a ledger, on bookies, of batches."""
    return item.location is ItemLocation.BOOKIES and item.format == FORMAT_BATCH1.decode()


def neighbours(items: Iterable[LogItem], target_bytes: int) -> list[list[LogItem]]:
    """Items in groups of neighbours with up to `target_bytes` together."""
    groups: list[list[LogItem]] = []
    size = 0
    for item in items:
        if groups and groups[-1][-1].next_offset == item.first_offset:
            size += item.payload_bytes
            if size <= target_bytes:
                groups[-1].append(item)
                continue
        groups.append([item])
        size = item.payload_bytes
    return groups


def per_round(spark: SparkSession) -> int:
    """How many copies are made between two changes of the list: a full one, or half of one with few cores."""
    return min(REPLACED_AT_ONCE, max(REPLACED_AT_ONCE // 2, command.slots(spark) * 2))


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


def plan_row(unit: CopyUnit, **more: int) -> Row:
    """What a plan says of such a unit; `more` comes before the bytes."""
    first, last = unit.items[0], unit.items[-1]
    offsets = {"first_offset": first.first_offset, "next_offset": last.next_offset}
    return {**offsets, "ledgers": len(unit.items), **more, "bytes": unit.size}


def replacement(unit: CopyUnit, row: Row) -> Replacement:
    """What replaces the old items in the list for such a row; `kept` are the records that stay, where some are left out."""
    kept: int | None = row.get("kept")
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

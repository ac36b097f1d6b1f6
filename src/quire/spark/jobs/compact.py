"""The newest record of each key, and the others dropped: a log of changes as short as what it says.

    quire spark run compact --cluster URI --log edits --out DIR [--key EXPRESSION] [--tombstone-grace-days 1]

Which records stay is worked out first: of each key the newest one below where the job ends, and every record without
a key. A newest record without a value, a tombstone, goes too when it is old enough. Then tasks copy what stays, ledgers
into ledgers, read the copy back and compare; the log's list is changed by compare-and-swap round by round, from the
front, up to the first refusal, so that a tombstone never goes before what it removes. What is left keeps its offset,
so the log has gaps.

Stopped anywhere, the job can be run again. It runs while a leader and sinks do: the last two ledgers of a list are
not touched, nor is anything from a cursor on that holds the log back.

Source: docs/spark-jobs.md, "Compact"; docs/decisions/009-compaction.md.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING, Annotated

import pyarrow as pa
from pyspark.sql import SparkSession
from typer import Option

from quire.core.errors import CorruptMetadataError, NoSuchLedgerError
from quire.core.log.list import LogHead, LogItem
from quire.core.log.rewriting import Replacement, replaceable
from quire.log.cursors import LogCursors
from quire.log.rewriting import LogRewriter
from quire.log.staging import StagedBy, StagedLedger, stage
from quire.spark import cluster
from quire.spark.jobs import command, copied, lists, units
from quire.spark.jobs.copied import CopyUnit
from quire.spark.jobs.lists import ListPlan
from quire.spark.jobs.newest import COLUMNS, KeptOffsets, staying
from quire.spark.jobs.stored import RecordDigest, digest_of, records_of
from quire.spark.jobs.units import Row as Fields
from quire.spark.outgoing import EntryPacker
from quire.spark.write_options import BodyCodec, Compression
from quire.wire.batch_arrow import arrow_schema

if TYPE_CHECKING:
    from quire.log.client import QuireClient

DAY_MS = 86_400_000
TARGET_BYTES = 1 << 30
PROVEN = ("offset", "timestamp", "key", "value", "headers")
SCHEMA = f"{copied.SCHEMA}, kept bigint"


@dataclass(frozen=True, slots=True)
class CompactUnit(CopyUnit):
    """Neighbours of which what stays becomes one ledger.

    Attributes:
        kept: the offsets that stay.
    """

    kept: KeptOffsets
    compression: Compression

    @property
    def first(self) -> int:
        """The first offset of its ledgers."""
        return self.items[0].first_offset or 0

    @property
    def stop(self) -> int:
        """The first offset after its ledgers."""
        return self.items[-1].next_offset or 0

    @property
    def records(self) -> int:
        """Records that are there now."""
        return sum(item.count for item in self.items)


@dataclass(frozen=True, slots=True)
class CompactPlan(ListPlan):
    """The ledgers that a compaction copies.

    Attributes:
        end: records below this offset were looked at.
        units: the copies, from the front; ledgers that lose nothing are in none.
        drops_tombstones: whether old tombstones go: only where all that they could remove is looked at.
        items: ledgers of the log now.
    """

    end: int
    units: tuple[CompactUnit, ...]
    drops_tombstones: bool
    items: int


@dataclass(frozen=True, slots=True)
class CompactReport(command.Report):
    """What a compaction did.

    Attributes:
        ledgers_before: ledgers of the log when the job was planned; `ledgers_after`: when it was done.
        records: records of the ledgers that were replaced; `kept`: of those in their place.
        bytes: of the new ledgers.
        compacted_below: records below it may be removed, if their keys have later ones.
        refused: why the job stopped before its end; run it again.
    """

    log: str
    table: str
    ledgers_before: int
    ledgers_after: int
    records: int
    kept: int
    bytes: int
    compacted_below: int
    refused: list[str]
    seconds: float


def plan(
    spark: SparkSession,
    uri: str,
    log: str,
    *,
    key: str = "key",
    tombstone_grace_ms: int = DAY_MS,
    older_than_ms: int = 0,
    target_bytes: int = TARGET_BYTES,
    compression: Compression = Compression.NONE,
    now_ms: int | None = None,
) -> CompactPlan:
    """Which records stay, and which ledgers become which.

    Args:
        spark: a session; it reads the log up to where the job ends.
        uri: the cluster.
        log: the log's name.
        key: Spark SQL over the columns `key`, `value`, `timestamp` and `offset` that gives a record's key; a record for
            which it gives null stays.
        tombstone_grace_ms: a tombstone younger than this stays, so that readers learn of it.
        older_than_ms: ledgers whose newest record is younger stay as they are.
        target_bytes: how much one task reads, about.
        compression: of the new ledgers' entries.
        now_ms: the time; the clock's without it.

    Raises:
        NoSuchLogError: there is no such log.
    """
    now_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    log_id = lists.head_of(uri, log).log_id
    head, every, held = cluster.call(uri, _listed, log_id)
    ours = [item for item in replaceable(head, every) if copied.may_be_copied(item)]
    ours = list(takewhile(lambda item: _may_go(item, now_ms - older_than_ms, held), ours))
    if not ours:
        return CompactPlan(uri, log, log_id, b"", 0, (), False, head.item_count)
    end = ours[-1].next_offset or 0
    below = [item for item in every if head.start_offset < (item.next_offset or 0) <= end]
    drops = below == ours
    records = command.read_log(spark, uri, log, head.start_offset, end, COLUMNS)
    kept = staying(records, key, now_ms - tombstone_grace_ms if drops else None)

    def unit(items: Sequence[LogItem]) -> CompactUnit:
        part = kept.part(items[0].first_offset or 0, items[-1].next_offset or 0)
        return CompactUnit(uri, log_id, b"", head.settings, tuple(items), "compact", part, compression)

    made = [unit(group) for group in copied.neighbours(ours, target_bytes)]
    losing = tuple(each for each in made if each.kept.count(each.first, each.stop) < each.records)
    return CompactPlan(uri, log, log_id, b"", end, losing, drops, head.item_count)


def _may_go(item: LogItem, newest_ms: int, held: int | None) -> bool:
    return (item.max_time_ms or 0) <= newest_ms and (held is None or (item.next_offset or 0) <= held)


def run(
    spark: SparkSession, work: CompactPlan, table: str, *, progress: units.Progress | None = None
) -> CompactReport:
    """Copy, prove and replace in the list, round by round from the front; stops at the first refusal.

    Args:
        spark: a session; its executors copy.
        work: what to do.
        table: directory of the results (Parquet), a row for each new ledger.
        progress: called with how many copies are listed.

    Raises:
        CorruptMetadataError: a copy does not read back as what it was made of; it is in no list.
    """
    began = time.monotonic()
    rounds = units.rounds(work.units, copied.per_round(spark))
    rows, refused = lists.replace_in_rounds(
        spark,
        work,
        rounds,
        _compact,
        copied.replacement,
        SCHEMA,
        table,
        compacted_below=work.end,
        progress=progress,
    )
    head = lists.head_of(work.uri, work.log)
    return CompactReport(
        log=work.log,
        table=table,
        ledgers_before=work.items,
        ledgers_after=head.item_count,
        records=sum(row["records"] for row in rows),
        kept=sum(row["kept"] for row in rows),
        bytes=sum(row["bytes"] for row in rows),
        compacted_below=head.compacted_below,
        refused=refused,
        seconds=round(time.monotonic() - began, 3),
    )


# --- in the tasks ----------------------------------------------------------------------------------------------------


def _compact(unit: CompactUnit) -> Iterator[Fields]:
    """One copy, proven."""
    began = time.monotonic()
    try:
        new, digest = _copied(unit)
    except NoSuchLedgerError as error:
        yield {"refused": f"{unit.name}: {error.message}; the list has changed meanwhile, plan again"}
        return
    _prove(unit, Replacement.by_copy(unit.items, new, compacted=True).new, digest)
    yield copied.row_of(unit.items, new) | {"kept": new.count, "seconds": time.monotonic() - began}


def _copied(unit: CompactUnit) -> tuple[LogItem, RecordDigest]:
    """What stays of the unit in a new ledger that no list has, and its digest."""
    by = StagedBy(incarnation="compact", host=platform.node())
    staged = cluster.call(unit.uri, stage, unit.log_id, unit.settings, by)
    try:
        return _fill(unit, staged)
    except BaseException:
        cluster.call(unit.uri, lambda _: staged.abandon())
        raise


def _fill(unit: CompactUnit, staged: StagedLedger) -> tuple[LogItem, RecordDigest]:
    largest = cluster.entry_bytes_max(unit.uri)
    entries = EntryPacker(BodyCodec.ARROW, unit.compression, largest, first_offset=unit.first)
    digest = RecordDigest()

    def send(ready: Iterator[bytes]) -> None:
        for entry in ready:
            cluster.call(unit.uri, lambda _: staged.append(entry))  # noqa: B023 - called at once

    for item in unit.items:
        held = 0
        for batch in records_of(unit.uri, b"", item):
            held += batch.num_rows
            staying = batch.filter(pa.array(unit.kept.mask(batch.column("offset").to_numpy())))
            if staying.num_rows:
                digest.update(staying.select(PROVEN))
                send(entries.add(_outgoing(staying)))
        if held != item.count:
            msg = f"ledger {item.ledger_id} holds {held} records, the list says {item.count}: it is not compacted"
            raise CorruptMetadataError(msg, ledger_id=item.ledger_id)
    send(entries.flush())
    times = entries.times
    return cluster.call(unit.uri, lambda _: staged.close(entries.records, times.low, times.high)), digest


def _outgoing(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Records in the columns of an entry, with their offsets after."""
    names = {"timestamp_ms": "timestamp"}
    columns = [batch.column(names.get(field.name, field.name)).cast(field.type) for field in arrow_schema()]
    schema = arrow_schema().append(pa.field("offset", pa.int64(), nullable=False))
    return pa.RecordBatch.from_arrays([*columns, batch.column("offset")], schema=schema)


def _prove(unit: CompactUnit, new: LogItem, expected: RecordDigest) -> None:
    """Read the new ledger as its readers will.

    Raises:
        CorruptMetadataError: it holds other records than the old ones that stay.
    """
    found = digest_of(batch.select(PROVEN) for batch in records_of(unit.uri, b"", new))
    if (found.count, found.digest()) != (expected.count, expected.digest()):
        msg = f"ledger {new.ledger_id} reads back as {found.count} records that are not the {expected.count} that stay"
        raise CorruptMetadataError(msg, ledger_id=new.ledger_id)


# --- with the cluster ------------------------------------------------------------------------------------------------


async def _listed(client: QuireClient, log_id: bytes) -> tuple[LogHead, list[LogItem], int | None]:
    """The list, its items, and the first offset that a cursor holds."""
    head, items = await LogRewriter(client, log_id).items()
    cursors = await LogCursors(client.store, client.clock.wall_ms).of(log_id.hex())
    return head, items, min((cursor.offset for cursor in cursors if cursor.hold), default=None)


# --- the command -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class CompactJob(command.UnitsJob, name="compact"):
    """Keep the newest record of each key, at its offset."""

    log: command.LogOption
    key: Annotated[
        str,
        Option(
            metavar="SQL",
            help="what a record's key is, in Spark SQL over key, value, timestamp, offset; default: its key. Null: it stays",
        ),
    ] = "key"
    tombstone_grace_days: Annotated[
        float, Option(help="keep a key's last record without a value so long")
    ] = 1
    older_than_days: Annotated[float, Option(help="leave ledgers with younger records")] = 0
    target_bytes: Annotated[
        int, Option(parser=command.byte_size, metavar="SIZE", help="how much a task reads")
    ] = TARGET_BYTES
    compression: Annotated[Compression, Option(help="of the entries")] = Compression.NONE

    def step(self, spark: SparkSession) -> command.Line:
        """One run of the command; the line that it prints."""
        work = plan(
            spark,
            self.cluster,
            self.log,
            key=self.key,
            tombstone_grace_ms=round(self.tombstone_grace_days * DAY_MS),
            older_than_ms=round(self.older_than_days * DAY_MS),
            target_bytes=self.target_bytes,
            compression=self.compression,
        )
        rows = [
            copied.plan_row(unit, records=unit.records, staying=unit.kept.count(unit.first, unit.stop))
            for unit in work.units
        ]
        facts = {
            **{name: sum(row[name] for row in rows) for name in ("ledgers", "records", "staying")},
            "looked_at_below": work.end,
            "drops_tombstones": work.drops_tombstones,
        }
        return self.planned(rows, facts, lambda: run(spark, work, self.out, progress=self.progress).as_dict())


if __name__ == "__main__":
    raise SystemExit(command.main(CompactJob))

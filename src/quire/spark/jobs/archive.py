"""Closed ledgers of a log as Parquet files, and the ledgers deleted when that is proven: the log reads as before.

    quire spark run archive --cluster URI --log orders --root file:///backup --out DIR [--older-than-days 7]

For each ledger a task writes a file, reads it back and compares; then the log's list says that the records are in both
places. A later run of the job, after a grace time, compares each file with its ledger once more, and only then the list
names the file alone and the ledger is deleted. Each step can be interrupted and done again; files that no list names are
shown, and deleted on demand. A reader of the log through Spark sees no difference, and anything that reads Parquet can
read the files.

Source: docs/spark-jobs.md, "Archive".
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

import pyarrow as pa
from pyspark.sql import SparkSession
from typer import Option

from quire.core.errors import NoSuchLedgerError
from quire.core.log.list import ItemLocation, LogItem
from quire.core.log.rewriting import Replacement, replaceable
from quire.log.archive import SCHEMA as COLUMNS
from quire.log.archive import (
    ArchiveError,
    ArchiveLocation,
    footer_digest,
    open_archive,
    read_footer,
    write_archive,
)
from quire.log.ledgers import LogLedgers
from quire.log.rewriting import REPLACED_AT_ONCE, LogRewriter
from quire.spark import cluster
from quire.spark.jobs import command, lists, table_formats, units
from quire.spark.jobs.archive_files import ArchiveFiles
from quire.spark.jobs.copied import may_be_copied
from quire.spark.jobs.lists import ListPlan
from quire.spark.jobs.stored import RecordDigest, digest_of, records_of
from quire.spark.jobs.table_formats import Content, TableFile
from quire.spark.jobs.units import Row as Fields
from quire.spark.options import use_error

if TYPE_CHECKING:
    from quire.log.client import QuireClient

DAY_MS = 86_400_000
ROW_GROUP_BYTES = 4 << 20
_STALE_S = 86_400
SCHEMA = (
    "step string, ledger bigint, first_offset bigint, next_offset bigint, records bigint, file string, digest string, "
    "bytes bigint, seconds double, refused string"
)


@dataclass(frozen=True, slots=True)
class ArchiveUnit:
    """One item's file to be written, or to be proven before its ledger is deleted."""

    uri: str
    root: str
    log: str
    log_id: bytes
    password: bytes
    item: LogItem

    @property
    def lane(self) -> str:
        """Files, all in one lane: they load the same bookies."""
        return "files"

    @property
    def name(self) -> str:
        """Step, log and ledger."""
        step = "write" if self.item.location is ItemLocation.BOOKIES else "prove"
        return f"archive {step} {self.log_id.hex()} ledger {self.item.ledger_id}"


@dataclass(frozen=True, slots=True)
class ArchivePlan(ListPlan):
    """What a run of the archive job has to do.

    Attributes:
        to_write: items of the log's list (ledgers) that get a file.
        to_prove: items whose file is old enough: compared with its ledger again (*proven*), then the ledger is deleted.
        strays: files below the log's folder that no item names.
    """

    root: str
    to_write: tuple[ArchiveUnit, ...]
    to_prove: tuple[ArchiveUnit, ...]
    strays: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ArchiveReport(command.Report):
    """What a run of the archive job did.

    Attributes:
        written: files that the list names now; `records` and `bytes` are theirs.
        deleted: ledgers that were deleted, since their file was proven a second time.
        refused: what was not done, and why. A file that is damaged keeps its ledger.
        strays: files that no item names; `removed`: of these, old ones that were deleted.
    """

    log: str
    root: str
    table: str
    written: int
    records: int
    bytes: int
    deleted: int
    refused: list[str]
    strays: int
    removed: int
    seconds: float


def plan(
    uri: str,
    log: str,
    root: str,
    *,
    older_than_ms: int = 0,
    grace_ms: int = DAY_MS,
    now_ms: int | None = None,
    password: bytes = b"",
) -> ArchivePlan:
    """What can be archived, and what can be deleted.

    Args:
        uri: the cluster.
        log: the log's name.
        root: the archive's URI; a log has one.
        older_than_ms: ledgers whose newest record is younger stay.
        grace_ms: how long a ledger stays after its file was last written, which is shortly before the list names it.
        now_ms: the time; the clock's without it.
        password: of the log's ledgers.

    Raises:
        NoSuchLogError: there is no such log.
        SparkUseError: it has its archive elsewhere.
    """
    now_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    head = lists.head_of(uri, log)
    log_id = head.log_id
    if head.archive not in {"", root}:
        raise use_error(
            f"log '{log}' has its archive at {head.archive}, not at {root}. A log has one.", log=log
        )
    every, items = cluster.call(uri, _items, log_id, password)
    there = ArchiveFiles(root).list(log_id.hex())

    def unit(item: LogItem) -> ArchiveUnit:
        return ArchiveUnit(uri, root, log, log_id, password, item)

    old = [item for item in items if item.count and (item.max_time_ms or 0) <= now_ms - older_than_ms]
    write = [unit(item) for item in old if may_be_copied(item)]
    listed = {item.ledger_id: _location(root, log_id, item).name for item in every if item.archive}
    # How long a file has been there, its own time says: the list keeps none.
    due = [item for item in items if item.location is ItemLocation.BOTH]
    aged = {name for name, (_, changed_s) in there.items() if changed_s * 1000 + grace_ms <= now_ms}
    prove = [
        unit(item) for item in due if listed[item.ledger_id] in aged or listed[item.ledger_id] not in there
    ]
    strays = sorted(set(there) - set(listed.values()))
    return ArchivePlan(uri, log, log_id, password, root, tuple(write), tuple(prove), tuple(strays))


def run(
    spark: SparkSession,
    work: ArchivePlan,
    table: str,
    *,
    vacuum: bool = False,
    progress: units.Progress | None = None,
) -> ArchiveReport:
    """Prove and delete what is due, then write what is not archived yet, round by round.

    Args:
        spark: a session; its executors read ledgers and write files.
        work: what to do.
        table: directory of the results (Parquet), a row for each step that was taken.
        vacuum: delete files that no item names and that are unchanged for a day.
        progress: called with how many steps are done.
    """
    began = time.monotonic()
    rounds = (
        *units.rounds(work.to_prove, REPLACED_AT_ONCE),
        *units.rounds(work.to_write, REPLACED_AT_ONCE),
    )

    def after(each: Replacement) -> None:
        if each.new.location is ItemLocation.ARCHIVE:
            cluster.call(work.uri, _delete, work, each.new)

    done, refused = lists.replace_in_rounds(
        spark, work, rounds, _step, _moved, SCHEMA, table, archive=work.root, after=after, progress=progress
    )
    removed = _vacuum(work) if vacuum else 0
    written = [row for row in done if row["step"] == "write"]
    return ArchiveReport(
        log=work.log,
        root=work.root,
        table=table,
        written=len(written),
        records=sum(row["records"] for row in written),
        bytes=sum(row["bytes"] for row in written),
        deleted=len(done) - len(written),
        refused=refused,
        strays=len(work.strays),
        removed=removed,
        seconds=round(time.monotonic() - began, 3),
    )


def _moved(unit: ArchiveUnit, row: Fields) -> Replacement:
    item = unit.item
    if row["step"] == "prove":
        return Replacement.by_move(item, ItemLocation.ARCHIVE, item.archive)
    return Replacement.by_move(item, ItemLocation.BOTH, bytes.fromhex(row["digest"]))


def _vacuum(work: ArchivePlan) -> int:
    """Delete strays that have no writer any more."""
    files = ArchiveFiles(work.root)
    there = files.list(work.log_id.hex())
    old = [name for name in work.strays if name in there and time.time() - there[name][1] > _STALE_S]
    for name in old:
        files.remove(name)
    return len(old)


# --- in the tasks ----------------------------------------------------------------------------------------------------


def _step(unit: ArchiveUnit) -> Iterator[Fields]:
    began = time.monotonic()
    item = unit.item
    facts: Fields = {
        "step": "write" if item.location is ItemLocation.BOOKIES else "prove",
        "ledger": int(item.ledger_id),
        "first_offset": item.first_offset,
        "next_offset": item.next_offset,
    }
    try:
        facts |= _write(unit) if item.location is ItemLocation.BOOKIES else _prove(unit)
    except (ArchiveError, NoSuchLedgerError) as error:
        facts["refused"] = f"{unit.name}: {error.message}"
    yield facts | {"seconds": time.monotonic() - began}


def _write(unit: ArchiveUnit) -> Fields:
    """Write the file, read it back, and give it its name."""
    item, files = unit.item, ArchiveFiles(unit.root)
    written = RecordDigest()
    unfinished = f"{unit.log_id.hex()}/unfinished-{item.ledger_id}-{secrets.token_hex(8)}"
    with files.create(unfinished) as sink:
        tables = _row_groups(records_of(unit.uri, unit.password, unit.item), written)
        write_archive(sink, tables, log=unit.log, log_id=unit.log_id.hex())
    if written.count != item.count:
        files.remove(unfinished)
        text = f"ledger {item.ledger_id} holds {written.count} records, the list says {item.count}"
        raise ArchiveError(text, ledger_id=item.ledger_id)
    with files.open(unfinished) as source:
        size, footer = read_footer(source)
    location = _location(unit.root, unit.log_id, replace(item, archive=footer_digest(footer)))
    files.move(unfinished, location.name)
    _compare(location, written)
    return {"records": item.count, "file": location.name, "digest": location.digest.hex(), "bytes": size}


def _prove(unit: ArchiveUnit) -> Fields:
    """Compare the file with the ledger, which is there still."""
    item = unit.item
    location = _location(unit.root, unit.log_id, item)
    _compare(location, digest_of(records_of(unit.uri, unit.password, item)))
    return {"records": item.count, "file": location.name, "digest": location.digest.hex()}


def _compare(location: ArchiveLocation, expected: RecordDigest) -> None:
    """Read a whole file.

    Raises:
        ArchiveError: it is damaged, or does not hold these records under its offsets.
    """
    file = open_archive(location)
    groups = (file.read(number, COLUMNS.names) for number in range(len(file.manifest.groups)))
    found = digest_of(batch for group in groups for batch in group.to_batches())
    if (found.count, found.digest()) != (expected.count, expected.digest()):
        text = f"archive file {location.path}: it holds {found.count} records that are not the {expected.count} of the ledger"
        raise ArchiveError(text, path=location.path)


def _row_groups(batches: Iterator[pa.RecordBatch], digest: RecordDigest) -> Iterator[pa.Table]:
    """Records in tables of about `ROW_GROUP_BYTES`, added to a digest."""
    waiting: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        digest.update(batch)
        waiting.append(batch)
        size += batch.nbytes
        if size >= ROW_GROUP_BYTES:
            yield pa.Table.from_batches(waiting)
            waiting, size = [], 0
    if waiting:
        yield pa.Table.from_batches(waiting)


# --- with the cluster ------------------------------------------------------------------------------------------------


async def _items(client: QuireClient, log_id: bytes, password: bytes) -> tuple[list[LogItem], list[LogItem]]:
    head, every = await LogRewriter(client, log_id, password).items()
    return every, replaceable(head, every)


async def _delete(client: QuireClient, work: ArchivePlan, item: LogItem) -> None:
    # Cut off here, the ledger is one that no list names, and the collector's.
    await LogLedgers(client, work.password).delete_item(
        replace(item, location=ItemLocation.BOOKIES, archive=b"")
    )


def _location(root: str, log_id: bytes, item: LogItem) -> ArchiveLocation:
    return ArchiveLocation(root, log_id.hex(), item.first_offset or 0, item.next_offset or 0, item.archive)


def content(uri: str, log: str, root: str, password: bytes = b"") -> Content:
    """All files that a log's list names now, as a table.

    Raises:
        ArchiveError: one of them is missing.
    """
    head = lists.head_of(uri, log)
    every, _ = cluster.call(uri, _items, head.log_id, password)
    there = ArchiveFiles(root).list(head.log_id.hex())

    def file(item: LogItem) -> TableFile:
        location = _location(root, head.log_id, item)
        if location.name not in there:
            raise ArchiveError(f"archive file {location.path} is missing", path=location.path)
        first, stop = item.first_offset or 0, item.next_offset or 0
        size = there[location.name][0]
        return TableFile(location.name.rpartition("/")[2], size, item.count, (first, stop - 1))

    files = tuple(
        file(item) for item in every if item.archive and (item.next_offset or 0) > head.start_offset
    )
    folder = f"{root.rstrip('/')}/{head.log_id.hex()}"
    return Content(folder, COLUMNS, files, log, head.log_id.hex(), head.generation)


# --- the command -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ArchiveJob(command.UnitsJob, name="archive"):
    """Put a log's old ledgers into Parquet files, and delete them when proven."""

    log: command.LogOption
    root: Annotated[str, Option(metavar="URI", help="where the files go: file:///…, s3://…")]
    older_than_days: Annotated[float, Option(help="leave ledgers with younger records")] = 0
    grace_days: Annotated[float, Option(help="keep ledgers so long after their file was written")] = 1
    tables: table_formats.TableOptions
    vacuum: Annotated[bool, Option("--vacuum", help="delete files that no list names, a day old or more")] = (
        False
    )

    def step(self, spark: SparkSession) -> command.Line:
        """One run of the command; the line that it prints."""
        work = plan(
            self.cluster,
            self.log,
            self.root,
            older_than_ms=round(self.older_than_days * DAY_MS),
            grace_ms=round(self.grace_days * DAY_MS),
        )
        rows = [
            {
                "step": step,
                "ledgers": len(group),
                "records": sum(unit.item.count for unit in group),
                "bytes": sum(unit.item.payload_bytes for unit in group),
            }
            for step, group in (("prove, then delete", work.to_prove), ("write", work.to_write))
        ]
        facts = {
            "to_write": len(work.to_write),
            "to_delete": len(work.to_prove),
            "strays": list(work.strays),
        }

        def made() -> command.Line:
            report = run(spark, work, self.out, vacuum=self.vacuum, progress=self.progress)
            return report.as_dict() | self.tables.commit(lambda: content(self.cluster, self.log, self.root))

        return self.planned(rows, facts, made)


if __name__ == "__main__":
    raise SystemExit(command.main(ArchiveJob))

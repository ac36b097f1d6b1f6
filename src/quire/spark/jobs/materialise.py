"""The state that a log of changes leads to, kept as snapshots: each one is made from the one before and the tail.

    quire spark run materialise --cluster URI --log edits --out DIR [--at OFFSET | --as-of TIME] [--keep N]

A snapshot is a state table as `replay` writes it, in a directory that is named by the log's id and the offset below which
records are in it; Spark's own `_SUCCESS` says that it is whole. So a run that was stopped has left nothing that a later one
takes for a snapshot, and a run with nothing new to read makes none. What is read is what came after the newest snapshot
that still counts: one of this log, not later than what is asked for, and not from before records were compacted away.

Source: docs/spark-jobs.md, "Materialise".
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs
from pyspark.sql import SparkSession
from typer import Option

from quire.spark import cluster
from quire.spark.extents import check_end_is_known, extent_of_log
from quire.spark.jobs import command, lists, replay, table_formats
from quire.spark.jobs.archive_files import file_system
from quire.spark.jobs.table_formats import Content, TableFile
from quire.spark.options import SparkOptions, SparkUseError, Use
from quire.spark.planning import offset_since
from quire.spark.read_options import READ_OPTIONS, ReadOptions, parse

if TYPE_CHECKING:
    from quire.log.client import QuireClient

WHOLE = "_SUCCESS"
_DIGITS = 19


@dataclass(frozen=True, slots=True)
class MaterialisePlan:
    """The table that is to be made of a log.

    Attributes:
        log_id: 32 hex digits.
        root: the directory of all snapshots.
        end: records below this offset are to be in the state.
        base: the offset of the snapshot to start from; None is the log's beginning.
        there: the offsets of this log's snapshots, oldest first.
    """

    uri: str
    log: str
    log_id: str
    root: str
    end: int
    base: int | None
    there: tuple[int, ...]

    @property
    def done(self) -> bool:
        """Whether there is such a snapshot already."""
        return self.base == self.end

    def table(self, offset: int) -> str:
        """The directory of a snapshot."""
        return f"{self.root.rstrip('/')}/{self.log_id}/{offset:0{_DIGITS}}"


@dataclass(frozen=True, slots=True)
class MaterialiseReport(command.Report):
    """The table that was made of a log.

    Attributes:
        table: where the state lies.
        next_offset: records below this offset are in it.
        from_snapshot: the snapshot that it was made from, or None; the snapshot itself when nothing was new.
        records_read: records of the log that were read.
        keys: keys that are there; None when nothing was made.
        removed: older snapshots that were deleted.
    """

    log: str
    table: str
    next_offset: int
    from_snapshot: int | None
    records_read: int
    keys: int | None
    removed: int
    seconds: float


def plan(
    uri: str, log: str, root: str, *, at: int | None = None, as_of: str | None = None
) -> MaterialisePlan:
    """Which snapshot is to be made, and from which one.

    Args:
        uri: the cluster.
        log: the log's name.
        root: directory of the snapshots: a path, or a URI that both Spark and pyarrow know.
        at: records below this offset; None is all that are confirmed now.
        as_of: instead of it a time, ISO text or milliseconds: everything before the first record that is later.

    Raises:
        NoSuchLogError: there is no such log.
        ReadUnavailableError: too few bookies respond to determine where the log ends.
        SparkUseError: both an offset and a time, or a time that cannot be read.
    """
    if at is not None and as_of is not None:
        raise SparkUseError("quire: name an offset or a time, --at or --as-of, not both.")
    head = lists.head_of(uri, log)
    options = {"cluster": uri, "path": log, **({"startingTimestamp": as_of} if as_of is not None else {})}
    read = parse(
        SparkOptions({name.lower(): value for name, value in options.items()}, READ_OPTIONS), Use.BATCH
    )
    end = cluster.call(uri, _end, read) if at is None else at
    there = tuple(sorted(_snapshots(root, head.log_id.hex())))
    # A snapshot of before what was compacted would miss removals whose tombstones are removed.
    counting = [offset for offset in there if offset == end or head.compacted_below <= offset < end]
    base = max(counting, default=None)
    return MaterialisePlan(uri, log, head.log_id.hex(), root, end, base, there)


def run(
    spark: SparkSession, work: MaterialisePlan, *, key: str = "key", keep: int | None = None, **options: Any
) -> MaterialiseReport:
    """Make the snapshot.

    Args:
        spark: a session in which the format `quire` is known.
        work: which.
        key: what a record's key is, as for `replay`; the same for all snapshots of a directory.
        keep: how many of the newest snapshots stay, from 1, and the one that is asked for; None keeps all.
        **options: more of `replay.run`.

    Raises:
        SparkUseError: see `replay.run`; or no snapshot is to stay.
    """
    if keep is not None and keep < 1:
        raise SparkUseError(f"quire: keep at least one snapshot, not {keep}. Leave --keep out to keep all.")
    began = time.monotonic()
    made: replay.StateReport | None = None
    if not work.done:
        made = replay.run(
            spark,
            cluster=work.uri,
            log=work.log,
            table=work.table(work.end),
            at=work.end,
            snapshot=None if work.base is None else work.table(work.base),
            since=work.base,
            key=key,
            overwrite=True,  # what an unfinished run has left there
            **options,
        )
    old = (
        [] if keep is None else [each for each in sorted({*work.there, work.end})[:-keep] if each != work.end]
    )
    system, base = _system(work.root)
    for offset in old:
        system.delete_dir(f"{base}/{work.log_id}/{offset:0{_DIGITS}}")
    return MaterialiseReport(
        log=work.log,
        table=work.table(work.end),
        next_offset=work.end,
        from_snapshot=work.base,
        records_read=made.records_read if made else 0,
        keys=made.keys if made else None,
        removed=len(old),
        seconds=round(time.monotonic() - began, 3),
    )


def content(work: MaterialisePlan) -> Content:
    """The files of the snapshot that was asked for, as a table; its version is the offset."""
    system, base = _system(work.root)
    folder = f"{work.log_id}/{work.end:0{_DIGITS}}"
    found = system.get_file_info(fs.FileSelector(f"{base}/{folder}"))
    files: list[TableFile] = []
    schema = pa.schema([])
    for info in found:
        if info.extension == "parquet":
            with system.open_input_file(info.path) as source:
                metadata = pq.read_metadata(source)
            schema = metadata.schema.to_arrow_schema().remove_metadata()
            name = f"{work.end:0{_DIGITS}}/{info.base_name}"
            files.append(TableFile(name, info.size, metadata.num_rows))
    location = f"{work.root.rstrip('/')}/{work.log_id}"
    return Content(location, schema, tuple(files), work.log, work.log_id, work.end)


def _snapshots(root: str, log_id: str) -> list[int]:
    """The offsets of all whole snapshots of a log."""
    system, base = _system(root)
    folders = system.get_file_info(fs.FileSelector(f"{base}/{log_id}", allow_not_found=True))
    names = [info.base_name for info in folders if info.base_name.isdecimal()]
    marks = system.get_file_info([f"{base}/{log_id}/{name}/{WHOLE}" for name in names])
    return [int(name) for name, mark in zip(names, marks, strict=True) if mark.is_file]


def _system(root: str) -> tuple[Any, str]:
    system, base = file_system(root) if "://" in root else (fs.LocalFileSystem(), root)
    return system, base.rstrip("/")


async def _end(client: QuireClient, options: ReadOptions) -> int:
    """Where the log ends, or where its first record is that is later than the time asked for.

    Raises:
        ReadUnavailableError: too few bookies respond to determine where it ends.
    """
    extent = await extent_of_log(client, options, client.log(options.sources[0].name))
    if options.starting_ms is not None:
        found = await offset_since(client, options, extent, options.starting_ms + 1)
        if found is not None:
            return found
    check_end_is_known(extent)
    return extent.end


@dataclass(frozen=True, kw_only=True)
class MaterialiseJob(command.UnitsJob, name="materialise"):
    """Keep the latest value of each key as snapshots, each from the one before."""

    log: command.LogOption
    at: Annotated[int | None, Option(help="the state below this offset; default: all")] = None
    as_of: Annotated[
        str | None, Option(metavar="TIME", help="the state at a time: ISO text or milliseconds")
    ] = None
    key: Annotated[str, Option(metavar="SQL", help="what a record's key is; see compact")] = "key"
    keep: Annotated[int | None, Option(help="delete all but so many of the newest snapshots")] = None
    deleted_prefix: Annotated[str | None, Option(help="values that start so remove their key")] = None
    tables: table_formats.TableOptions

    def step(self, spark: SparkSession) -> command.Line:
        """One run of the command; the line that it prints."""
        work = plan(self.cluster, self.log, self.out, at=self.at, as_of=self.as_of)
        start = "nothing: it is there" if work.done else "the beginning" if work.base is None else work.base
        rows = [{"snapshot": work.table(work.end), "read_from": start, "up_to": work.end}]
        facts = {"snapshots": list(work.there), "from_snapshot": work.base, "next_offset": work.end}

        def made() -> command.Line:
            prefix = self.deleted_prefix.encode() if self.deleted_prefix else None
            report = run(spark, work, key=self.key, keep=self.keep, deleted_prefix=prefix)
            return report.as_dict() | self.tables.commit(lambda: content(work))

        return self.planned(rows, facts, made)


if __name__ == "__main__":
    raise SystemExit(command.main(MaterialiseJob))

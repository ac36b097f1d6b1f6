"""Reading what a log has archived: row groups of Parquet files in the place of entries, the same columns to Spark.

Source: docs/spark-jobs.md, "Archive"; `docs/formats/archive.md`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import reduce
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from quire.log.archive import ArchiveError, ArchiveFile, ArchiveLocation, RowGroup, open_archive
from quire.spark import cluster
from quire.spark.decode import SourceLedger, possible_times
from quire.spark.losses import TaskLosses, named
from quire.spark.packing import EntrySpan
from quire.spark.pushdown import Spans, Wanted, between, intersect
from quire.spark.read_options import ReadOptions
from quire.spark.schema import Projection
from quire.wire.batch_arrow import without_empty_headers

if TYPE_CHECKING:
    from quire.log.records import ItemDescription, LogDescription

NEITHER = "Nor do the bookies serve these records now"


def location_of(log: LogDescription, item: ItemDescription) -> ArchiveLocation:
    """Where an item's file is."""
    return ArchiveLocation(log.archive, log.log_id, item.first_offset, item.next_offset, item.archive)


def pieces(
    options: ReadOptions, wanted: Wanted, log: LogDescription, item: ItemDescription, spans: Spans
) -> list[EntrySpan]:
    """The row groups of an archived item that hold wanted records, consecutive ones as one piece.

    Raises:
        SparkUseError: the file is missing or damaged, unless that is to be stepped over.
    """
    location = location_of(log, item)
    try:
        groups = open_archive(location).manifest.groups
    except ArchiveError as error:
        whole = EntrySpan(
            SourceLedger(log.name, item.ledger_id, item.first_offset), None, 0, 0, 0, False, spans, location
        )
        TaskLosses(options).step_over_archived(whole, error, item.first_offset, item.next_offset)
        return []
    origin = SourceLedger(log.name, item.ledger_id, item.first_offset)
    found: list[EntrySpan] = []
    for number, group in enumerate(groups):
        inside = intersect(spans, between(group.first, group.next))
        if not inside or not wanted.touches(group.min_ms, group.max_ms):
            continue
        size, first = group.end - group.start, number
        if found and found[-1].last_entry == number - 1:
            before = found.pop()
            size, first, inside = before.size + size, before.first_entry, (*before.offsets, *inside)
        found.append(
            EntrySpan(origin, None, first, number, size, batches=False, offsets=inside, archive=location)
        )
    return found


def offset_since(log: LogDescription, item: ItemDescription, from_ms: int) -> int:
    """The offset of an archived item's first record that is as late as a time; there is one.

    Raises:
        ArchiveError: the file is missing or damaged.
    """
    file = open_archive(location_of(log, item))
    number = next(number for number, group in enumerate(file.manifest.groups) if group.max_ms >= from_ms)
    table = file.read(number, ["offset", "timestamp"])
    late = table.filter(pc.greater_equal(table.column("timestamp").cast(pa.int64()), from_ms))
    offset: int = late.column("offset")[0].as_py()
    return offset


def read(
    piece: EntrySpan, options: ReadOptions, projection: Projection, wanted: Wanted, losses: TaskLosses
) -> Iterator[pa.RecordBatch]:
    """A piece's records, in batches of at most `rowsPerBatch`, without row groups that are lost if they may be skipped.

    Raises:
        SparkUseError: the file cannot be read, or what is lost is not to be stepped over.
    """
    location = piece.archive
    assert location is not None
    try:
        file = open_archive(location)
    except ArchiveError as error:
        losses.step_over_archived(piece, error, location.first, location.next)
        return
    numbers = range(piece.first_entry, piece.last_entry + 1)

    def lost(error: ArchiveError, group: RowGroup) -> None:
        losses.step_over_archived(piece, error, group.first, group.next)

    for table in _tables(file, numbers, {"offset"}, piece, options, projection, wanted, lost):
        yield from _projected(table, piece.origin.log, projection).to_batches(options.rows_per_batch)


def read_copy(
    file: ArchiveFile,
    piece: EntrySpan,
    options: ReadOptions,
    projection: Projection,
    wanted: Wanted,
) -> Iterator[pa.RecordBatch]:
    """The records of a piece's entries out of the file that has them as well; see `read`.

    Raises:
        SparkUseError: the file cannot be read, or is damaged. Bookies that are only away may have what it lacks.
    """
    numbers = range(len(file.manifest.groups))

    def lost(error: ArchiveError, _: RowGroup) -> None:
        raise named(piece, error, NEITHER) from error

    for table in _tables(file, numbers, {"offset", "entry"}, piece, options, projection, wanted, lost):
        entries = table.column("entry")
        inside = pc.and_(
            pc.greater_equal(entries, piece.first_entry), pc.less_equal(entries, piece.last_entry)
        )
        kept = _projected(table.filter(inside), piece.origin.log, projection)
        yield from kept.to_batches(options.rows_per_batch)


def _tables(
    file: ArchiveFile,
    numbers: Iterable[int],
    needed: set[str],
    piece: EntrySpan,
    options: ReadOptions,
    projection: Projection,
    wanted: Wanted,
    lost: Callable[[ArchiveError, RowGroup], None],
) -> Iterator[pa.Table]:
    """The wanted records of some row groups, in the columns that are asked for or needed."""
    stored = {"key", "value", "headers", "timestamp", "ledger", "entry", "index"} & set(projection.names)
    times = {"timestamp"} if options.starting_ms is not None or options.ending_ms is not None else set()
    for number in numbers:
        group = file.manifest.groups[number]
        if not wanted.touches(group.min_ms, group.max_ms):
            continue
        try:
            table = _with_possible_times(file.read(number, sorted(stored | times | needed)), piece.origin.log)
        except ArchiveError as error:
            lost(error, group)
            continue
        yield _kept(table, piece.offsets, options)


def _with_possible_times(table: pa.Table, log: str) -> pa.Table:
    """The records with times outside the years 1 to 9999 as nulls, which are counted in a warning."""
    if "timestamp" not in table.column_names:
        return table
    times = table.column("timestamp")
    possible = possible_times(times.cast(pa.int64()).to_numpy())
    if possible is None:
        return table
    first = table.column("offset")[int(possible.argmin())].as_py()
    cluster.warn_of_times([log], int((~possible).sum()), first)
    location = table.column_names.index("timestamp")
    known = pc.if_else(pa.array(possible), times, pa.scalar(None, times.type))
    return table.set_column(location, pa.field("timestamp", times.type), known)


def _kept(table: pa.Table, spans: Spans, options: ReadOptions) -> pa.Table:
    """The records in the spans, and in the range of times that the user asked for."""
    offsets = table.column("offset")
    first, last = offsets[0].as_py(), offsets[-1].as_py()
    inside = intersect(spans, between(first, last + 1))
    masks = []
    if inside != between(first, last + 1):
        parts = [pc.and_(pc.greater_equal(offsets, start), pc.less(offsets, stop)) for start, stop in inside]
        masks.append(reduce(pc.or_, parts))
    if "timestamp" in table.column_names:
        millis = table.column("timestamp").cast(pa.int64())
        if options.starting_ms is not None:
            masks.append(pc.greater_equal(millis, options.starting_ms))
        if options.ending_ms is not None:
            masks.append(pc.less(millis, options.ending_ms))
    return table.filter(reduce(pc.and_, masks)) if masks else table


def _projected(table: pa.Table, log: str, projection: Projection) -> pa.Table:
    constants: dict[str, Any] = {"log": log, "topic": log, "term": 0, "partition": 0, "timestampType": 0}
    arrays = [
        pa.repeat(pa.scalar(constants[field.name], field.type), table.num_rows)
        if field.name in constants
        else without_empty_headers(table.column(field.name).cast(field.type))
        for field in projection.arrow
    ]
    return pa.Table.from_arrays(arrays, schema=projection.arrow)

"""One Spark task: read its pieces and yield Arrow batches.

Source: docs/spark.md, "Options": rowsPerBatch.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache

import pyarrow as pa

from quire.log.archive import ArchiveError, ArchiveFile, ArchiveLostError, open_archive
from quire.log.ledgers import views_of
from quire.spark import archived, cluster
from quire.spark.as_of import check_logs
from quire.spark.decode import ArrowBuilder, check_follows
from quire.spark.losses import UNREADABLE, TaskLosses, named
from quire.spark.packing import EntrySpan, Task
from quire.spark.pushdown import Wanted, intersect
from quire.spark.read_options import ReadOptions
from quire.spark.schema import Projection
from quire.wire.batch_format import MalformedBatchError


def read(task: Task, options: ReadOptions, projection: Projection) -> Iterator[pa.RecordBatch]:
    """A task's records in order, in batches of at most `rowsPerBatch` records and about 4 MiB."""
    builder = ArrowBuilder(
        projection, options.rows_per_batch, from_ms=options.starting_ms, to_ms=options.ending_ms
    )
    wanted = Wanted(from_ms=task.from_ms, to_ms=task.to_ms)
    losses = TaskLosses(options, task.number)
    _settle()
    lost = check_logs(options, task)
    for piece in task.pieces:
        if piece.origin.log in lost:
            losses.step_over_ledger(piece, lost[piece.origin.log])
            continue
        if piece.archive is not None:
            yield from builder.take()
            yield from archived.read(piece, options, projection, wanted, losses)
            continue
        yield from _read_piece(piece, task.number, wanted, options, projection, builder, losses)
    yield from builder.take()
    losses.end()
    cluster.warn_of_times(task.names(), builder.impossible_times, builder.first_impossible)


@cache
def _settle() -> None:
    """Take what a worker has imported by now out of the garbage collector's rounds.

    PySpark collects after every task, and going through all modules each time took a worker longer than reading 16 MiB.
    """
    gc.freeze()


def _read_piece(
    piece: EntrySpan,
    number: int,
    wanted: Wanted,
    options: ReadOptions,
    projection: Projection,
    builder: ArrowBuilder,
    losses: TaskLosses,
) -> Iterator[pa.RecordBatch]:
    """One piece, without the entries that are proven lost if they are to be stepped over.

    What the bookies do not serve, and a file has as well, is read there.
    """
    while piece.first_entry <= piece.last_entry:
        reached = _Reached(piece.first_entry)
        try:
            yield from _read_entries(piece, number, wanted, options, builder, reached)
        except MalformedBatchError as error:
            raise named(piece, error) from error
        except UNREADABLE as error:
            file = _copy(piece)
            if file is not None:
                yield from builder.take()
                rest = replace(piece, first_entry=reached.entry)
                yield from archived.read_copy(file, rest, options, projection, wanted)
                return
            piece = replace(piece, first_entry=losses.step_over(piece, error) + 1)
        else:
            return


@dataclass(slots=True)
class _Reached:
    """The next entry of a piece that is to be read."""

    entry: int


def _copy(piece: EntrySpan) -> ArchiveFile | None:
    """The file with a copy of a piece's records; None where there is none, or none any more.

    Raises:
        SparkUseError: it cannot be read now.
    """
    try:
        return None if piece.copy is None else open_archive(piece.copy)
    except ArchiveLostError:
        return None
    except ArchiveError as error:
        raise named(piece, error, archived.NEITHER) from error


def _read_entries(
    piece: EntrySpan,
    number: int,
    wanted: Wanted,
    options: ReadOptions,
    builder: ArrowBuilder,
    reached: _Reached,
) -> Iterator[pa.RecordBatch]:
    origin = piece.origin
    expected: int | None = None
    record = piece.record
    assert record is not None
    for run in cluster.runs(options, piece, replica=number):
        if not piece.batches:
            builder.add_entries(origin, run.entry_ids[0], run.payloads)
            if builder.full:
                yield from builder.take()
            continue
        for entry_id, view in views_of(record, run):
            expected = check_follows(origin, entry_id, view, expected)
            reached.entry = entry_id + 1
            header = view.header
            if not wanted.touches(header.min_ms, header.max_ms):
                continue
            first = origin.first_offset + header.records_before
            stop = origin.first_offset + header.records_through
            for start, end in intersect(((first, stop),), piece.offsets):
                start, end = view.between(start - first, end - first)  # noqa: PLW2901 - records from here on
                if start < end:
                    builder.add_batch(origin, entry_id, view, start, end)
            if builder.full:
                yield from builder.take()

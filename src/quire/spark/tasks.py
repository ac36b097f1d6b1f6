"""One Spark task: read its pieces and yield Arrow batches.

Source: spark.md 4.3.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import pyarrow as pa

from quire.core.errors import (
    NoSuchEntryError,
    NoSuchLedgerError,
    QuireError,
    ReadUnavailableError,
)
from quire.log.ledgers import views_of
from quire.spark import archived, cluster
from quire.spark.as_of import check_logs
from quire.spark.decode import ArrowBuilder, check_follows
from quire.spark.given import SparkUseError
from quire.spark.options import ReadOptions
from quire.spark.packing import Piece, Task
from quire.spark.pushdown import Wanted, intersect
from quire.spark.schema import Projection
from quire.wire.batch import MalformedBatchError

_SKIPS = " failOnDataLoss=false skips what cannot be read."


def read(task: Task, options: ReadOptions, projection: Projection) -> Iterator[pa.RecordBatch]:
    """A task's records in order, in batches of at most `rowsPerBatch` records and about 4 MiB."""
    builder = ArrowBuilder(
        projection, options.rows_per_batch, from_ms=options.starting_ms, to_ms=options.ending_ms
    )
    wanted = Wanted(from_ms=task.from_ms, to_ms=task.to_ms)
    _settle()
    check_logs(options, task)
    for piece in task.pieces:
        if piece.archive is not None:
            yield from builder.take()
            yield from archived.read(piece, options, projection, wanted)
            continue
        yield from _read_piece(piece, task.number, wanted, options, builder)
    yield from builder.take()
    cluster.warn_of_times(task.names(), builder.impossible_times, builder.first_impossible)


@cache
def _settle() -> None:
    """Take what a worker has imported by now out of the garbage collector's rounds.

    PySpark collects after every task, and going through all modules each time took a worker longer than reading 16 MiB.
    """
    gc.freeze()


def _read_piece(
    piece: Piece, number: int, wanted: Wanted, options: ReadOptions, builder: ArrowBuilder
) -> Iterator[pa.RecordBatch]:
    """One piece; with `failOnDataLoss=false` what is gone is stepped over and named in a warning."""
    while piece.first_entry <= piece.last_entry:
        try:
            yield from _read_entries(piece, number, wanted, options, builder)
        except MalformedBatchError as error:
            raise _named(piece, error) from error
        except (NoSuchEntryError, NoSuchLedgerError, ReadUnavailableError) as error:
            if options.fail_on_data_loss:
                raise _named(piece, error, _SKIPS) from error
            cluster.warn_of_loss(piece, error)
            lost = error.ids.get("entry_id")
            if not isinstance(error, NoSuchEntryError) or not isinstance(lost, int):
                # Asking for each later entry of an unreachable ledger would take a timeout each.
                return
            piece = replace(piece, first_entry=lost + 1)
        else:
            return


def _read_entries(
    piece: Piece, number: int, wanted: Wanted, options: ReadOptions, builder: ArrowBuilder
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
            header = view.header
            if not wanted.touches(header.min_ms, header.max_ms):
                continue
            first = origin.first_offset + header.records_before
            behind = origin.first_offset + header.records_through
            for start, end in intersect(((first, behind),), piece.offsets):
                start, end = view.between(start - first, end - first)  # noqa: PLW2901 - records from here on
                if start < end:
                    builder.add_batch(origin, entry_id, view, start, end)
            if builder.full:
                yield from builder.take()


def _named(piece: Piece, error: QuireError, remedy: str = "") -> SparkUseError:
    """The error with the log it happened in, as the last line that a user sees."""
    return SparkUseError(f"quire: log '{piece.origin.log}': {error}.{remedy}", **error.ids)

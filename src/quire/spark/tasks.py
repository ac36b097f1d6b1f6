"""One Spark task: read its pieces and yield Arrow batches.

Source: docs/spark.md, "Options": rowsPerBatch.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import replace
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
    _settle()
    yield from _TaskReader(task, options, projection).read()


@cache
def _settle() -> None:
    """Take what a worker has imported by now out of the garbage collector's rounds.

    PySpark collects after every task, and going through all modules each time took a worker longer than reading 16 MiB.
    """
    gc.freeze()


class _TaskReader:
    """One task under way."""

    def __init__(self, task: Task, options: ReadOptions, projection: Projection) -> None:
        self._task, self._options, self._projection = task, options, projection
        self._wanted = Wanted(from_ms=task.from_ms, to_ms=task.to_ms)
        self._builder = ArrowBuilder(
            projection, options.rows_per_batch, from_ms=options.starting_ms, to_ms=options.ending_ms
        )
        self._losses = TaskLosses(options, task.number)
        self._next_entry = 0

    def read(self) -> Iterator[pa.RecordBatch]:
        """All records."""
        builder = self._builder
        lost = check_logs(self._options, self._task)
        for piece in self._task.pieces:
            if piece.origin.log in lost:
                self._losses.step_over_ledger(piece, lost[piece.origin.log])
            elif piece.archive is not None:
                yield from builder.take()
                yield from archived.read(piece, self._options, self._projection, self._wanted, self._losses)
            else:
                yield from self._piece(piece)
        yield from builder.take()
        self._losses.end()
        cluster.warn_of_times(self._task.names(), builder.impossible_times, builder.first_impossible)

    def _piece(self, piece: EntrySpan) -> Iterator[pa.RecordBatch]:
        """One piece, without the entries that are proven lost if they are to be stepped over.

        What the bookies do not serve, and a file has as well, is read there.
        """
        while piece.first_entry <= piece.last_entry:
            self._next_entry = piece.first_entry
            try:
                yield from self._entries(piece)
            except MalformedBatchError as error:
                raise named(piece, error) from error
            except UNREADABLE as error:
                file = _copy(piece)
                if file is not None:
                    yield from self._builder.take()
                    rest = replace(piece, first_entry=self._next_entry)
                    yield from archived.read_copy(file, rest, self._options, self._projection, self._wanted)
                    return
                piece = replace(piece, first_entry=self._losses.step_over(piece, error) + 1)
            else:
                return

    def _entries(self, piece: EntrySpan) -> Iterator[pa.RecordBatch]:
        origin, record, builder = piece.origin, piece.record, self._builder
        expected: int | None = None
        assert record is not None, "records of an archive are in Parquet files, not in a ledger"
        for run in cluster.runs_of(
            self._options.cluster, record, piece.first_entry, piece.last_entry, replica=self._task.number
        ):
            if not piece.batches:
                builder.add_entries(origin, run.entry_ids[0], run.payloads)
                if builder.full:
                    yield from builder.take()
                continue
            for entry_id, view in views_of(record, run):
                expected = check_follows(origin, entry_id, view, expected)
                self._next_entry = entry_id + 1
                header = view.header
                if not self._wanted.touches(header.min_ms, header.max_ms):
                    continue
                first = origin.first_offset + header.records_before
                stop = origin.first_offset + header.records_through
                for start, end in intersect(((first, stop),), piece.offsets):
                    start, end = view.between(start - first, end - first)  # noqa: PLW2901 - records from here on
                    if start < end:
                        builder.add_batch(origin, entry_id, view, start, end)
                if builder.full:
                    yield from builder.take()


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

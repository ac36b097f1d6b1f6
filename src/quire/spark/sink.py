"""The sink: what Spark calls to write a frame, and each batch of a stream, exactly once.

Every attempt of every task writes its rows into ledgers of its own, or sends few rows along in its message. The
driver's commit is one compare-and-swap of the logs' lists, which also notes query and batch: a batch that comes again
finds its number there. So nothing that a task, a retry or a dead driver leaves is ever part of a log.

Spark builds a writer in a planner process, pickles it into the tasks, and builds another for each commit of a stream:
everything travels in messages.

Source: docs/spark-sink.md, "Exactly once: how"; Spark documentation: `DataSourceStreamArrowWriter`.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from quire.core.errors import QuireError
from quire.core.log.commit import OnReset
from quire.core.log.fingerprints import RowSum
from quire.log.staging import StagedBy
from quire.spark import outgoing, staged
from quire.spark.checkpoints import Checkpoint, query_of
from quire.spark.options import SparkOptions, SparkUseError, use_error
from quire.spark.readers import OneSentence
from quire.spark.row_sums import sum_of
from quire.spark.staged import Failpoints, StagedPosition, Staging, TargetLog, TaskShare
from quire.spark.write_options import OrderBy, parse_write

QUERY_ID: Final = "sql.streaming.queryId"
BATCH_ID: Final = "streaming.sql.batchId"
"""Local properties of the tasks of a streaming query; tests/spark/test_spark_sink.py pins them."""


@dataclass(frozen=True, slots=True)
class TaskMessage(WriterCommitMessage):
    """What a task sends the driver: its id, and what it has for each log."""

    by: StagedBy
    shares: tuple[TaskShare, ...]


class _Sink:
    """What the writers of batches and of streams have in common.

    Args:
        raw: the options of the write.
        schema: of the frame.
        overwrite: mode overwrite, or output mode complete.
        failpoints: what a test replaces.

    Raises:
        SparkUseError: columns, options or a log that cannot be meant.
    """

    def __init__(
        self, raw: SparkOptions, schema: StructType, *, overwrite: bool, failpoints: Failpoints | None = None
    ) -> None:
        stream = isinstance(self, DataSourceStreamArrowWriter)
        log_column = "log" in schema.fieldNames()
        with OneSentence():
            options = parse_write(raw, stream=stream, overwrite=overwrite, log_column=log_column)
            outgoing.check_columns(schema)
            self._options = options
            self._failpoints = failpoints or Failpoints()
            self._targets: dict[str, TargetLog] = {}
            if options.log is not None:
                self._target(options.log)

    # --- in a task ---------------------------------------------------------------------------------------------

    def _stage(self, batches: Iterator[pa.RecordBatch], by: StagedBy) -> TaskMessage:
        now_ms = staged.wall_ms(self._options)
        begun: dict[str, Staging] = {}
        totals: dict[str, RowSum] = {}
        try:
            for batch in batches:
                for log, rows in self._split(batch):
                    if log not in begun:
                        begun[log] = Staging(self._options, log, self._target(log), by, self._failpoints.at)
                        totals[log] = RowSum()
                    records = outgoing.records_of(rows, now_ms)
                    begun[log].add(records)
                    if self._options.position_name:
                        times = rows.column("timestamp") if "timestamp" in rows.schema.names else None
                        totals[log] = totals[log].plus(sum_of(records, times))
            shares = tuple(replace(begun[log].close(), total=totals[log]) for log in sorted(begun))
        except BaseException:
            for staging in begun.values():
                staging.discard()
            raise
        self._failpoints.at("staged")
        return TaskMessage(by, shares)

    def _split(self, batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        if not batch.num_rows:
            return
        if self._options.log is not None:
            yield self._options.log, batch
        else:
            yield from outgoing.by_log(batch)

    def _target(self, log: str) -> TargetLog:
        if log not in self._targets:
            self._targets[log] = staged.target(self._options, log)
        return self._targets[log]

    # --- on the driver -----------------------------------------------------------------------------------------

    def _commit(self, ordered: Sequence[TaskMessage], position: StagedPosition) -> None:
        if self._options.order_by is OrderBy.TIMESTAMP:
            _check_ascending(ordered)
        shares: dict[str, list[TaskShare]] = {}
        # Even without rows a batch is compared with the log's sink position.
        if self._options.truncate or position.query_id:
            shares = {log: [] for log in self._targets}
        for message in ordered:
            for share in message.shares:
                shares.setdefault(share.log, []).append(share)
        if not shares:
            return
        targets = {
            log: _one_target(log, found) if found else self._targets[log] for log, found in shares.items()
        }
        self._failpoints.at("commit")
        try:
            staged.commit(self._options, shares, targets, position, self._failpoints)
        except QuireError as error:
            if error.message.startswith("quire:"):
                raise
            raise type(error)(f"quire: {error.message}", **error.ids) from error
        self._failpoints.at("committed")

    def _abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Delete what the tasks staged and no list holds: after a response that was lost, the lists may hold it."""
        self._failpoints.at("abort")
        for message in _by_partition(messages):
            for share in message.shares:
                if share.item is not None:
                    staged.discard_items(self._options, share.target, [share.item], self._failpoints)


class BatchSink(_Sink, DataSourceArrowWriter):
    """Writes one frame: all of it or nothing, and once, if it has a name and a number.

    The ids of a stream are not used, though they are there inside `foreachBatch`: two writes to one log in one function
    would count as one.
    """

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskMessage:
        """Stage one task's rows."""
        options, context = self._options, TaskContext.get()
        version = -1 if options.txn_version is None else options.txn_version
        incarnation = _property(context, QUERY_ID) if options.position_name else ""
        with OneSentence():
            consents = options.txn_on_reset is OnReset.CONTINUE
            return self._stage(
                iterator, _by(context, options.position_name, version, incarnation, consents=consents)
            )

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Make the rows part of their logs."""
        options, ordered = self._options, _by_partition(messages)
        position = StagedPosition()
        if options.txn_version is not None:
            incarnation = ordered[0].by.incarnation if ordered else ""
            position = StagedPosition(
                options.position_name, options.txn_version, incarnation, options.txn_on_reset
            )
        with OneSentence():
            self._commit(ordered, position)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Forget the rows."""
        with OneSentence():
            self._abort(messages)


class StreamSink(_Sink, DataSourceStreamArrowWriter):
    """Writes a stream's batches, each once, whatever is restarted. Spark makes one for each batch and one for each commit."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskMessage:
        """Stage one task's rows."""
        context = TaskContext.get()
        query = _property(context, QUERY_ID)
        batch = _property(context, BATCH_ID)
        with OneSentence():
            if not query:
                query = query_of(self._options.checkpoint)
            consents = self._options.on_checkpoint_reset is OnReset.CONTINUE
            return self._stage(iterator, _by(context, query, int(batch or -1), "", consents=consents))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Make one batch part of its logs."""
        ordered, options = _by_partition(messages), self._options
        with OneSentence():
            query = ordered[0].by.query if ordered else ""
            if not query and options.checkpoint is not None:
                query = query_of(options.checkpoint)
            if not query:
                if any(message.shares for message in ordered) or options.truncate:
                    raise use_error("this batch came without the id of its query.")
                return
            checkpoint = Checkpoint(options.checkpoint, query)
            position = StagedPosition(
                query, batchId, on_reset=options.on_checkpoint_reset, checkpoint=checkpoint
            )
            self._commit(ordered, position)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803, ARG002 - Spark's
        """Forget one batch's rows."""
        with OneSentence():
            self._abort(messages)


def _property(context: TaskContext | None, name: str) -> str:
    return (context.getLocalProperty(name) if context is not None else None) or ""


def _by(context: TaskContext | None, query: str, batch: int, incarnation: str, *, consents: bool) -> StagedBy:
    partition = context.partitionId() if context is not None else 0
    attempt = context.taskAttemptId() if context is not None else 0
    return StagedBy(query, batch, incarnation, partition, attempt, platform.node(), consents)


def _by_partition(messages: Sequence[WriterCommitMessage | None]) -> list[TaskMessage]:
    """The tasks' messages by partition, as far as they came: a failed task has none."""
    found = [message for message in messages if isinstance(message, TaskMessage)]
    return sorted(found, key=lambda message: message.by.partition)


def _one_target(log: str, shares: Sequence[TaskShare]) -> TargetLog:
    """The log that all tasks wrote for: a ledger belongs to the log that it was made for, whatever list names it.

    Raises:
        SparkUseError: they found logs of unlike ids under the name.
    """
    if len({share.target.log_id for share in shares}) > 1:
        raise use_error(
            f"log '{log}' was deleted and created again while the tasks wrote; nothing was written. Run the batch again.",
            log=log,
        )
    return shares[0].target


def _check_ascending(ordered: Sequence[TaskMessage]) -> None:
    """`orderBy=timestamp` is a promise of the user's, and held against the rows.

    Raises:
        SparkUseError: the times of some log go back.
    """
    last: dict[str, int] = {}
    for message in ordered:
        for share in message.shares:
            times = share.times
            if times.low is None or times.high is None:
                continue
            if not times.ascending or times.low < last.get(share.log, times.low):
                raise SparkUseError(
                    f"quire: orderBy=timestamp, but the times for log '{share.log}' go back in partition "
                    f'{message.by.partition}. Sort the frame: .repartitionByRange("timestamp")'
                    '.sortWithinPartitions("timestamp").',
                    log=share.log,
                )
            last[share.log] = times.high

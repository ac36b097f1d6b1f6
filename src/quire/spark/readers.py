"""The readers that Spark calls: a batch of records, a table about logs, a stream of records.

Spark makes a reader in a planner process on the driver, asks it for partitions, pickles it and runs `read` in the
workers; of a stream one more reader lives in a process of its own and answers for offsets. They hold options and a
schema, nothing of a cluster.

Source: docs/spark.md; Spark documentation: `DataSourceReader`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from functools import cache
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, TypeVar

import pyarrow as pa
import pyspark
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, Filter, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from quire.core.errors import QuireError
from quire.log.client import QuireClient
from quire.spark import cluster, planning, tables, tasks
from quire.spark.pushdown import Wanted, push
from quire.spark.read_options import ReadOptions
from quire.spark.schema import arrow_schema, project
from quire.spark.stream import Limits, Stream
from quire.spark.versions import FILTERS_SETTING, keeps_filters_apart

P = ParamSpec("P")
T = TypeVar("T")


class OneSentence:
    """Takes our own frames off an error that is meant for the user; a defect keeps its traceback.

    Not a `contextlib.contextmanager`, which would put the frames back.
    """

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, QuireError):
            raise error.with_traceback(None) from None


class _OptionalPushFilters:
    """`pushFilters` for readers that must also work while push-down is switched off.

    Spark refuses a reader that overrides `pushFilters` while `spark.sql.python.filterPushdown.enabled` is false, its
    default. It looks at `__func__` of the bound method; this object shows it the base method's, so Spark sees "not
    overridden" then, and calls this object when the setting is on. tests/spark/test_spark_contract.py pins both.
    """

    def __init__(self, reader: RecordReader) -> None:
        self._reader = reader

    @property
    def __func__(self) -> Callable[..., Any]:
        """The method that is not overridden, as far as Spark can see."""
        return DataSourceReader.pushFilters

    def __call__(self, filters: list[Filter]) -> list[Filter]:
        """Take what can be answered here and return the rest."""
        return self._reader.narrow(filters)


@cache
def _say_that_nothing_is_pruned() -> None:
    """Log once in a process why filters do not make a read smaller."""
    cluster.warn(
        f"{FILTERS_SETTING}=true, but Spark {pyspark.__version__} applies the filters of one query to the next one on the same "
        "data frame, so this source takes none and reads everything. Read less with the options of "
        "quire.spark.read_options, and set the setting to false."
    )


class RecordReader(DataSourceReader):
    """Reads records of logs and entries of raw ledgers."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._projection = project(schema)
        self._wanted = Wanted(from_ms=options.starting_ms, to_ms=options.ending_ms)
        self.pushFilters = _OptionalPushFilters(self)  # type: ignore[method-assign]

    def narrow(self, filters: list[Filter]) -> list[Filter]:
        """Use a query's filters; return those that Spark must apply: all, unless it keeps queries apart."""
        if not keeps_filters_apart(pyspark.__version__):
            _say_that_nothing_is_pruned()
            return filters
        self._wanted, left = push(self._wanted, filters)
        return left

    def partitions(self) -> list[InputPartition]:
        """One task for each `splitBytes` of what is wanted, fixed now: later appends are not in this read."""
        with OneSentence():
            return [InputPartition(task) for task in planning.plan(self._options, self._wanted)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """One task's records. An empty plan comes as one partition without a value."""
        if partition.value is not None:
            with OneSentence():
                yield from tasks.read(partition.value, self._options, self._projection)


class DescribeReader(DataSourceReader):
    """Reads a table about logs, by `describe`."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = arrow_schema(schema)

    def partitions(self) -> list[InputPartition]:
        """One: these tables are small."""
        return [InputPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:  # noqa: ARG002
        """All rows, in the columns that are asked for."""
        with OneSentence():
            yield from tables.read(self._options, self._schema)


class LogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads records of logs as they are confirmed. Offsets: `quire.spark.positions`; the rest: `quire.spark.stream`."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._projection = project(schema)
        # Where a stream begins is a position; what it reads from there on is not filtered by time.
        self._reading = replace(options, starting_ms=None)
        self._stream: Stream | None = None

    def _call(
        self,
        function: Callable[Concatenate[Stream, QuireClient, P], Awaitable[T]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Run one of the stream's coroutine functions with the cluster's client, in the stream's own process."""
        if self._stream is None:
            self._stream = Stream(self._options)
        stream = self._stream

        async def work(client: QuireClient) -> T:
            return await function(stream, client, *args, **kwargs)

        with OneSentence():
            return cluster.call(self._options.cluster, work)

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name, as all below
        """Where the stream begins; the same at every call until the first batch is done."""
        return self._call(Stream.initial)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """The user's limit. Spark can carry one of the two; with both `latestOffset` adds the other."""
        if self._options.max_records is not None:
            return ReadMaxRows(self._options.max_records)
        if self._options.max_bytes is not None:
            return ReadMaxBytes(self._options.max_bytes)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Where the next batch ends; `start` when nothing waits."""
        limits = Limits()
        if not isinstance(limit, ReadAllAvailable):
            limits = Limits(self._options.max_records, self._options.max_bytes)
        return self._call(Stream.latest, start, limits)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """How far the logs reach: the lag in the query's progress."""
        return None if self._stream is None else self._stream.newest()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """What is confirmed now is all that this run reads."""
        self._call(Stream.stop_at_now)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """The tasks of one batch."""
        return [InputPartition(task) for task in self._call(Stream.plan, start, end)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """One task's records."""
        with OneSentence():
            yield from tasks.read(partition.value, self._reading, self._projection)

    def commit(self, end: dict[str, Any]) -> None:
        """Everything below `end` is done: the cursor moves."""
        self._call(Stream.commit, end)

"""The format `quire`: what Spark calls, and nothing else.

Spark builds the data source in a planner process, asks the reader for partitions once a plan, pickles the reader and
runs `read` in the workers. Options are checked in the constructor and the schema in `reader`, the shallowest places,
so that a mistake reaches the user as one sentence.

Source: spark.md 1.1, 1.3, 5.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping
from types import TracebackType
from typing import Any, NoReturn

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    Filter,
    InputPartition,
    SimpleDataSourceStreamReader,
)
from pyspark.sql.types import StructType

from quire.core.errors import QuireError
from quire.spark import options as option_rules
from quire.spark import planning, tables, tasks
from quire.spark.options import ReadOptions, SparkUseError
from quire.spark.pushdown import Wanted, push
from quire.spark.schema import DESCRIPTIONS, arrow_schema, default_schema, project


class QuireDataSource(DataSource):
    """Logs and ledgers as tables: `spark.read.format("quire").load("orders")`.

    Args:
        options: Spark's options; see `quire.spark.options.READ_OPTIONS`.

    Raises:
        SparkUseError: an option that is unknown, cannot be meant, or belongs to a part that is not there.
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._read = option_rules.parse(options)

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "quire"

    def schema(self) -> StructType | str:
        """The columns without `.schema(...)`."""
        if self._read.describe is not None:
            return DESCRIPTIONS[self._read.describe]
        return default_schema(include_headers=self._read.include_headers)

    def reader(self, schema: StructType) -> DataSourceReader:
        """The reader of one plan; the schema is the default one or the user's, a projection."""
        if self._read.describe is not None:
            return DescribeReader(self._read, schema)
        return LogReader(self._read, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: ARG002 - Spark's arguments
        """Refused: not part of this version."""
        _refuse("writing a log from Spark", "Append with `quire log append` or quire.connect().")

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802, ARG002 - Spark's name and arguments
        """Refused: not part of this version."""
        _refuse("a streaming sink", "Append with `quire log append` or quire.connect().")

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802, ARG002 - Spark's name and arguments
        """Refused: not part of this version."""
        _refuse("a streaming source", "Read a batch: spark.read, with startingOffsets from the last run.")

    def simpleStreamReader(self, schema: StructType) -> SimpleDataSourceStreamReader:  # noqa: N802, ARG002 - Spark's name and arguments
        """Refused: not part of this version."""
        _refuse("a streaming source", "Read a batch: spark.read, with startingOffsets from the last run.")


def _refuse(what: str, instead: str) -> NoReturn:
    raise SparkUseError(f"quire: this version does not have {what}. {instead}")


class _OneSentence:
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

    def __init__(self, reader: LogReader) -> None:
        self._reader = reader

    @property
    def __func__(self) -> Callable[..., Any]:
        """The method that is not overridden, as far as Spark can see."""
        return DataSourceReader.pushFilters

    def __call__(self, filters: list[Filter]) -> list[Filter]:
        """Take what can be answered here and return the rest."""
        return self._reader.narrow(filters)


class LogReader(DataSourceReader):
    """Reads records of logs and entries of raw ledgers."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._projection = project(schema)
        self._wanted = Wanted(from_ms=options.starting_ms, to_ms=options.ending_ms)
        self.pushFilters = _OptionalPushFilters(self)  # type: ignore[method-assign]

    def narrow(self, filters: list[Filter]) -> list[Filter]:
        """Use a query's filters; return those that Spark must apply."""
        self._wanted, left = push(self._wanted, filters)
        return left

    def partitions(self) -> list[InputPartition]:
        """One task for each `splitBytes` of what is wanted, fixed now: later appends are not in this read."""
        with _OneSentence():
            return [InputPartition(task) for task in planning.plan(self._options, self._wanted)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """One task's records. An empty plan comes as one partition without a value."""
        if partition.value is not None:
            with _OneSentence():
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
        with _OneSentence():
            yield from tables.read(self._options, self._schema)

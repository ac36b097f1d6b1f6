"""Work in units over Spark: one task a unit, results as a Parquet table, units that are in the table are done.

A job names its units by content, so that a second run of the same job knows them again. They run in rounds; each
round's rows are appended to the table in one commit, so a job that was stopped has lost the round it was in, no more.

Source: docs/spark-jobs.md.
"""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Protocol, TypeVar

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from quire.spark.schema import arrow_schema

Row = dict[str, Any]
Progress = Callable[[int, int], None]
"""Called with how many of how many units of work are done."""


class Unit(Protocol):
    """A piece of work that one task does."""

    @property
    def name(self) -> str:
        """What it is, by content: the same in every run."""
        ...

    @property
    def lane(self) -> str:
        """Units of one lane load the same machine: a round has only so many of them."""
        ...


U = TypeVar("U", bound=Unit)
T = TypeVar("T")
_ROWS_AT_A_TIME = 4096
_FORMAT = "quire_units"


def rounds(units: Iterable[U], per_lane: int) -> Iterator[list[U]]:
    """Units in rounds with at most `per_lane` of each lane, each lane in its own order."""
    lanes: dict[str, list[U]] = defaultdict(list)
    for unit in units:
        lanes[unit.lane].append(unit)
    while lanes:
        yield [unit for lane in lanes.values() for unit in lane[:per_lane]]
        lanes = {name: lane[per_lane:] for name, lane in lanes.items() if len(lane) > per_lane}


def run_round(
    spark: SparkSession, units: Sequence[U], work: Callable[[U], Iterable[Row]], schema: str
) -> DataFrame:
    """The rows of some units, each worked at by a task of its own. Nothing runs until the frame is used.

    A data source made for the round carries the units into the tasks: it works over Spark Connect too and, unlike
    `mapInArrow`, without pandas.

    Args:
        spark: the session.
        units: what to do; pickled into the tasks.
        work: does one unit and gives its rows; must be importable in the workers.
        schema: the rows' columns besides `unit`, which holds the unit's name.
    """

    class Round(DataSource):
        """The units of one round."""

        @classmethod
        def name(cls) -> str:
            """The name of the format."""
            return _FORMAT

        def schema(self) -> str:
            """The rows' columns."""
            return _columns(schema)

        def reader(self, schema: StructType) -> DataSourceReader:
            """A reader with a partition for each unit."""
            return UnitReader(units, work, schema)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the round before had the same name
        spark.dataSource.register(Round)
    return spark.read.format(_FORMAT).load()


def worked(
    spark: SparkSession,
    rounds: Iterable[Sequence[U]],
    work: Callable[[U], Iterable[Row]],
    schema: str,
    progress: Progress | None = None,
) -> Iterator[tuple[dict[str, U], list[Row]]]:
    """The rows of some rounds, one after another, with each round's units by their names; see `run_round`.

    Args:
        spark: the session.
        rounds: the units of each.
        work: does one unit and gives its rows.
        schema: the rows' columns besides `unit`.
        progress: called with how many units are done when the caller is through with a round's rows.
    """
    every = tuple(rounds)
    finished, total = 0, sum(map(len, every))
    for group in every:
        rows = [row.asDict() for row in run_round(spark, group, work, schema).collect()]
        yield {unit.name: unit for unit in group}, rows
        finished += len(group)
        if progress is not None:
            progress(finished, total)


class UnitReader(DataSourceReader):
    """A Spark data source that works at a job's units, one a partition."""

    def __init__(self, units: Sequence[U], work: Callable[[U], Iterable[Row]], schema: StructType) -> None:
        self._units, self._work, self._schema = tuple(units), work, arrow_schema(schema)

    def partitions(self) -> list[InputPartition]:
        """One a unit."""
        return [InputPartition(unit) for unit in self._units]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """A unit's rows. An empty round comes as one partition without a value."""
        unit = partition.value
        if unit is None:
            return
        for rows in batched(self._work(unit), _ROWS_AT_A_TIME):
            columns = {name: [row.get(name) for row in rows] for name in self._schema.names}
            yield pa.RecordBatch.from_pydict({**columns, "unit": [unit.name] * len(rows)}, self._schema)


def _columns(schema: str) -> str:
    """The columns of a table of results: the unit's name and the rows' own."""
    return f"unit string, {schema}"


def append(spark: SparkSession, table: str, rows: Sequence[Row], schema: str) -> None:
    """Add rows that the driver made, each with its `unit`, to a table in one commit."""
    spark.createDataFrame(rows, _columns(schema)).write.mode("append").parquet(table)


def results(spark: SparkSession, table: str, schema: str) -> DataFrame:
    """What a table holds; Spark need not look into its files for the columns."""
    return spark.read.schema(_columns(schema)).parquet(table)


def done(spark: SparkSession, table: str) -> set[str]:
    """The names of the units that a table holds; none when there is no table."""
    try:
        frame = spark.read.parquet(table)
    except AnalysisException as error:
        if error.getCondition() in {"PATH_NOT_FOUND", "UNABLE_TO_INFER_SCHEMA"}:
            return set()
        raise
    return {row["unit"] for row in frame.select("unit").distinct().collect()}


def table_of(units: Sequence[U], size: Callable[[U], int]) -> list[Row]:
    """A plan's lanes: how many units and bytes each has."""
    lanes: dict[str, list[int]] = defaultdict(list)
    for unit in units:
        lanes[unit.lane].append(size(unit))
    return [{"lane": lane, "units": len(sizes), "bytes": sum(sizes)} for lane, sizes in sorted(lanes.items())]


def batched(things: Iterable[T], at_most: int) -> Iterator[tuple[T, ...]]:
    """Some things at a time (`itertools.batched` of Python 3.12)."""
    left = iter(things)
    while some := tuple(islice(left, at_most)):
        yield some

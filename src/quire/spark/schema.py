"""The columns of the `quire` format, and the user's schema as a projection of them.

Spark hands the schema of `.schema(...)` to the reader, which is the only column pruning that a Python data source
has. So a column that is left out is neither decoded nor copied.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from quire.spark.options import SparkUseError
from quire.spark.positions import AsOf, as_text, sentence
from quire.spark.read_options import Describe

_HEADERS: Final = ArrayType(
    StructType([StructField("key", StringType()), StructField("value", BinaryType())]), containsNull=True
)

COLUMNS: Final[dict[str, DataType]] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "log": StringType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "headers": _HEADERS,
    "ledger": LongType(),
    "entry": LongType(),
    "index": IntegerType(),
    "term": LongType(),
    "partition": IntegerType(),
    "topic": StringType(),
    "timestampType": IntegerType(),
}
"""Every column that a read can give. `partition` is 0, `topic` the log and `timestampType` 0, so that a job written
for Kafka's source moves with a changed `format` line."""

DEFAULT_COLUMNS: Final = ("key", "value", "log", "offset", "timestamp")

AS_OF_KEY: Final = "quire.asOf"
"""The key of column `offset`'s metadata with the value of option `asOf`."""

DESCRIPTIONS: Final = {
    Describe.LOGS: (
        "log string, log_id string, epoch bigint, start_offset bigint, end_offset bigint, ledgers bigint, bytes bigint"
    ),
    Describe.SEGMENTS: (
        "log string, position int, ledger bigint, first_offset bigint, next_offset bigint, records bigint, "
        "bytes bigint, min_time timestamp, max_time timestamp, state string, place string"
    ),
    Describe.LEDGERS: (
        "log string, ledger bigint, state string, ensemble_size int, write_quorum int, ack_quorum int, digest string, "
        "last_entry bigint, bytes bigint, fragments int, created timestamp"
    ),
    Describe.ENTRIES: (
        "log string, ledger bigint, entry bigint, first_offset bigint, records bigint, bytes bigint, codec string, "
        "min_time timestamp, max_time timestamp"
    ),
    Describe.CURSORS: (
        "log string, cursor string, first_offset bigint, offset bigint, lag bigint, hold boolean, created timestamp, "
        "moved timestamp"
    ),
    Describe.MARKS: "log string, query string, batch bigint, written timestamp, incarnation string",
    Describe.FRAGMENTS: (
        "log string, ledger bigint, position int, first_entry bigint, last_entry bigint, bookies array<string>"
    ),
}
"""The schemas of `describe`, as DDL."""


@dataclass(frozen=True, slots=True)
class Projection:
    """The columns of one read, in the user's order, with the exact Arrow schema that Spark will demand."""

    names: tuple[str, ...]
    arrow: pa.Schema

    def wants(self, name: str) -> bool:
        """Whether a column is read."""
        return name in self.names


def default_schema(*, include_headers: bool, as_of: AsOf | None = None) -> StructType:
    """The schema of a read without `.schema(...)`.

    Args:
        include_headers: with the column `headers`.
        as_of: where each log ends for this read; the column `offset` says so, in its comment for people (`DESCRIBE`) and
            in its metadata `quire.asOf` for programs.
    """
    names = (*DEFAULT_COLUMNS, "headers") if include_headers else DEFAULT_COLUMNS
    ends = (
        {}
        if as_of is None
        else {"comment": f"ends at the load: {sentence(as_of)}", AS_OF_KEY: as_text(as_of)}
    )
    return StructType(
        [StructField(name, COLUMNS[name], metadata=ends if name == "offset" else None) for name in names]
    )


def project(schema: StructType) -> Projection:
    """What a schema, the default one or the user's, asks for.

    Raises:
        SparkUseError: a column that does not exist, has another type, or comes twice.
    """
    names = [_column(field) for field in schema.fields]
    if not names:
        raise SparkUseError('quire: the schema names no column. Count with .schema("offset bigint").')
    if len(set(names)) != len(names):
        raise SparkUseError(f"quire: the schema names a column twice: {', '.join(names)}.")
    return Projection(tuple(names), arrow_schema(schema))


def arrow_schema(schema: StructType) -> pa.Schema:
    """The Arrow schema that Spark checks a batch against: names, order, types, time zone UTC.

    Source: docs/spark.md, "Columns"; Spark documentation: `to_arrow_schema`.
    """
    return to_arrow_schema(schema, timezone="UTC")


def _column(field: StructField) -> str:
    if field.name not in COLUMNS:
        near = difflib.get_close_matches(field.name.lower(), [name.lower() for name in COLUMNS], n=1)
        spelling = {name.lower(): name for name in COLUMNS}
        hint = f" Did you mean '{spelling[near[0]]}'?" if near else ""
        raise SparkUseError(f"quire: no column '{field.name}'.{hint} (columns: {', '.join(COLUMNS)})")
    expected = COLUMNS[field.name]
    if field.dataType != expected:
        raise SparkUseError(
            f"quire: column '{field.name}' is {expected.simpleString()}, not {field.dataType.simpleString()}. "
            "Read it as it is and cast it after the load."
        )
    return field.name

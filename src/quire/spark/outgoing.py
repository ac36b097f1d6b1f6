"""Rows on their way into a log: the columns that a sink takes, and entries of about a mebibyte made of them.

Spark hands a task Arrow batches in the frame's own schema. They become batches of the log's one schema
(`wire/batch.py`), each of one log, and then batch entries. The module must not know ledgers or a cluster.

Source: docs/spark-sink.md, "Columns"; docs/formats/batch-entry.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import ArrayType, BinaryType, DataType, StringType, StructType, TimestampType

from quire.core.errors import MisuseError
from quire.log.times import TIME_MS_MAX, TIME_MS_MIN
from quire.spark.options import SparkUseError, use_error
from quire.spark.write_options import BodyCodec, Compression
from quire.wire.arrow_sizes import DECODED_BYTES_MAX
from quire.wire.batch import encode_arrow_batch, encode_batch, with_gaps
from quire.wire.batch_arrow import arrow_schema
from quire.wire.batch_format import SPAN_MAX, Codec

ENTRY_BYTES: Final = 1 << 20
"""An entry is about so large: tasks are split between entries, and a reader decodes whole ones."""
COLUMNS: Final = ("value", "key", "headers", "timestamp", "log")
_TYPES: Final = {
    "value": "binary or string",
    "key": "binary or string",
    "headers": "array<struct<key:string,value:binary>>",
    "timestamp": "timestamp",
    "log": "string",
}


def check_columns(schema: StructType) -> None:
    """Refuse a frame that is no table of records.

    Raises:
        SparkUseError: naming the column and the remedy.
    """
    names = schema.fieldNames()
    if "value" not in names:
        got = ", ".join(names)
        raise use_error(
            f"the sink needs column 'value' (binary or string); got {got}. "
            'Try .selectExpr("to_json(struct(*)) AS value").'
        )
    for column in schema.fields:
        if column.name not in COLUMNS:
            why = "the commit assigns offsets" if column.name == "offset" else "a record has no such part"
            raise use_error(
                f"the sink has no column '{column.name}': {why} (columns: {', '.join(COLUMNS)}). "
                f'Try .drop("{column.name}"), or put it into the value: to_json(struct(*)).'
            )
        if not _fits(column.name, column.dataType):
            raise use_error(
                f"column '{column.name}' must be {_TYPES[column.name]}, not {column.dataType.simpleString()}. "
                "Cast it before the write."
            )


def _fits(name: str, kind: DataType) -> bool:
    if name in {"value", "key"}:
        return isinstance(kind, BinaryType | StringType)
    if name == "headers":
        element = kind.elementType if isinstance(kind, ArrayType) else None
        return isinstance(element, StructType) and [
            (part.name, type(part.dataType)) for part in element.fields
        ] == [("key", StringType), ("value", BinaryType)]
    return isinstance(kind, TimestampType if name == "timestamp" else StringType)


def records_of(batch: pa.RecordBatch, now_ms: int) -> pa.RecordBatch:
    """Spark's rows as a batch of the log's schema; a row without a time has that of its task.

    Raises:
        SparkUseError: a header without a name.
    """
    schema = arrow_schema()
    count = batch.num_rows
    names = batch.schema.names
    columns: list[pa.Array] = []
    for column in schema:
        name = "timestamp" if column.name == "timestamp_ms" else column.name
        if name == "timestamp":
            columns.append(_possible(_times(batch.column(name) if name in names else None, count, now_ms)))
        elif name not in names:
            columns.append(pa.nulls(count, column.type))
        else:
            columns.append(_cast(batch.column(name), column.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _cast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if pa.types.is_list(kind):
        pairs = column.flatten()
        if len(pairs) and pc.struct_field(pairs, 0).null_count:
            raise use_error("a header has no name: its 'key' is null. Filter such headers out.")
    return column if column.type.equals(kind) else column.cast(kind)


def _possible(times: pa.Array) -> pa.Array:
    """Times that a record can have.

    Raises:
        SparkUseError: one lies outside the years 1 to 9999.
    """
    range_ms = pc.min_max(times).as_py()
    for ms in range_ms.values():
        if ms is not None and not TIME_MS_MIN <= ms <= TIME_MS_MAX:
            raise use_error(
                f"column 'timestamp' has a time that does not lie in the years 1 to 9999: {ms} milliseconds since 1970. "
                "Filter such rows out, or set another time."
            )
    return times


def _times(column: pa.Array | None, count: int, now_ms: int) -> pa.Array:
    if column is None:
        return pa.repeat(pa.scalar(now_ms, pa.int64()), count)
    # In UTC: the column has the session's zone, where an hour that comes twice a year has no one meaning to round in.
    utc = column.cast(pa.timestamp(column.type.unit, "UTC"))
    rounded = pc.floor_temporal(utc, unit="millisecond").cast(pa.timestamp("ms", "UTC"))
    times = rounded.cast(pa.int64())
    return times.fill_null(now_ms) if times.null_count else times


def by_log(batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    """A batch's rows by their column `log`, in the order of their first row.

    Raises:
        SparkUseError: a row names no log.
    """
    column = batch.column("log")
    if column.null_count:
        raise use_error("column 'log' is null in a row: it says where the row goes.")
    names = pc.unique(column).to_pylist()
    if len(names) == 1:
        yield names[0], batch
        return
    for name in names:
        yield name, batch.filter(pc.equal(column, name))


@dataclass(slots=True)
class Times:
    """The range of records' times, and whether they ascend."""

    low: int | None = None
    high: int | None = None
    ascending: bool = True

    def add(self, times: pa.Array) -> None:
        """Take more records in, in their order."""
        found = pc.min_max(times).as_py()
        if self.ascending:
            steps = (
                len(times) < 2
                or pc.all(pc.greater_equal(times.slice(1), times.slice(0, len(times) - 1))).as_py()
            )
            self.ascending = bool(steps) and (self.high is None or times[0].as_py() >= self.high)
        self.low = found["min"] if self.low is None else min(self.low, found["min"])
        self.high = found["max"] if self.high is None else max(self.high, found["max"])


@dataclass(slots=True)
class EntryPacker:
    """Batch entries of one ledger, made of batches as they come.

    Attributes:
        first_offset: of records that have offsets already, the ledger's first one; their batches have a column `offset`
            after those of the log's schema. None: records are counted from 0 as they come.
        records: how many records the entries so far hold; `times` is the range of their times.
    """

    codec: BodyCodec
    compression: Compression
    entry_bytes_max: int
    first_offset: int | None = None
    records: int = 0
    times: Times = field(default_factory=Times)
    _waiting: list[pa.RecordBatch] = field(default_factory=list)
    _waiting_bytes: int = 0

    def add(self, batch: pa.RecordBatch) -> Iterator[bytes]:
        """Take records; gives the entries that are full."""
        self._waiting.append(batch)
        self._waiting_bytes += batch.nbytes
        if self._waiting_bytes >= ENTRY_BYTES:
            yield from self.flush()

    def flush(self) -> Iterator[bytes]:
        """Entries of all that waits."""
        if not self._waiting:
            return
        whole = joined(self._waiting)
        size, self._waiting, self._waiting_bytes = self._waiting_bytes, [], 0
        step = max(1, whole.num_rows * ENTRY_BYTES // max(size, 1))
        if step * 4 > whole.num_rows * 3:
            step = whole.num_rows  # no small rest
        for start in range(0, whole.num_rows, step):
            yield from self._entries(whole.slice(start, step))

    def _entries(self, batch: pa.RecordBatch) -> Iterator[bytes]:
        entry = self._encode(batch)
        if entry is not None and len(entry) <= self.entry_bytes_max:
            self.records += batch.num_rows
            self.times.add(batch.column("timestamp_ms"))
            yield entry
        elif entry is not None and batch.num_rows == 1:
            raise SparkUseError(
                f"quire: a record of {len(entry):,} bytes is larger than an entry, {self.entry_bytes_max:,} bytes. "
                "Split its value."
            )
        else:
            half = batch.num_rows // 2
            yield from self._entries(batch.slice(0, half))
            yield from self._entries(batch.slice(half))

    def _encode(self, batch: pa.RecordBatch) -> bytes | None:
        """One entry; None where its records are too many bytes, or its offsets too far apart, for one.

        Raises:
            SparkUseError: a record that no entry holds.
        """
        if batch.nbytes > DECODED_BYTES_MAX and batch.num_rows > 1:
            return None
        try:
            if self.first_offset is None:
                return self._encoded(batch, self.records)
            offsets = batch.column("offset").to_pylist()
            if offsets[-1] - offsets[0] >= SPAN_MAX:
                return None
            entry = self._encoded(batch.drop_columns(["offset"]), offsets[0] - self.first_offset)
            return with_gaps(entry, [offset - offsets[0] for offset in offsets])
        except MisuseError as error:
            raise SparkUseError(f"quire: {error.message}.") from error

    def _encoded(self, batch: pa.RecordBatch, before: int) -> bytes:
        compression = None if self.compression is Compression.NONE else self.compression.value
        low, high = self.times.low, self.times.high
        if self.codec is BodyCodec.ARROW:
            return encode_arrow_batch(
                batch,
                records_before=before,
                ledger_min_ms=low,
                ledger_max_ms=high,
                compression=compression,
            )
        headers = [
            None if pairs is None else [(pair["key"], pair["value"]) for pair in pairs]
            for pairs in batch.column("headers").to_pylist()
        ]
        times = batch.column("timestamp_ms").to_pylist()
        return encode_batch(
            batch.column("value").to_pylist(),
            base_ms=times[0],
            times_ms=times,
            keys=batch.column("key").to_pylist(),
            headers=headers,
            records_before=before,
            ledger_min_ms=low,
            ledger_max_ms=high,
            codec=Codec.ROWS,
        )


def joined(batches: Iterable[pa.RecordBatch]) -> pa.RecordBatch:
    """Several batches of the log's schema as one."""
    found = list(batches)
    if len(found) == 1:
        return found[0]
    return pa.Table.from_batches(found).combine_chunks().to_batches()[0]


def packed(batches: Iterable[pa.RecordBatch]) -> bytes:
    """Batches of the log's schema as bytes for a commit message."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, arrow_schema()) as stream:
        for batch in batches:
            stream.write_batch(batch)
    found: bytes = sink.getvalue().to_pybytes()
    return found


def unpacked(data: bytes) -> list[pa.RecordBatch]:
    """What `packed` made."""
    found: list[pa.RecordBatch] = pa.ipc.open_stream(pa.py_buffer(data)).read_all().to_batches()
    return found

"""The `arrow` codec of a batch entry: one Arrow message of a fixed schema. Pyarrow is imported where it is used.

Source: docs/formats/batch-entry.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import TYPE_CHECKING, Any

from quire.core.errors import MisuseError
from quire.distribution import Extra, require
from quire.wire.arrow_sizes import DECODED_BYTES_MAX, LayoutError, decoded_sizes
from quire.wire.batch_format import BatchFlags, Headers, malformed

if TYPE_CHECKING:
    import pyarrow as pa

_SCHEMA: list[Any] = []


def arrow_schema() -> pa.Schema:
    """The one schema of batches: `key`, `value`, `timestamp_ms`, `headers`. It is fixed by the format's version.

    Raises:
        MissingExtraError: pyarrow is not installed.
    """
    if not _SCHEMA:
        require(Extra.ARROW, "A batch of records with the arrow codec")
        import pyarrow as pa

        header = pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary())])
        _SCHEMA.append(
            pa.schema(
                [
                    pa.field("key", pa.binary()),
                    pa.field("value", pa.binary()),
                    pa.field("timestamp_ms", pa.int64(), nullable=False),
                    pa.field("headers", pa.list_(header)),
                ]
            )
        )
    return _SCHEMA[0]


def encode_arrow(
    values: Sequence[bytes | None],
    base_ms: int,
    times_ms: Sequence[int] | None,
    keys: Sequence[bytes | None] | None,
    headers: Sequence[Headers | None] | None,
    compression: str | None,
) -> tuple[BatchFlags, list[bytes]]:
    """Flags and body of columns; None for a column that no record needs."""
    schema = arrow_schema()
    import pyarrow as pa

    count = len(values)
    columns: list[Iterable[Any]] = [
        [None] * count if keys is None else keys,
        values,
        repeat(base_ms, count) if times_ms is None else times_ms,
        [None] * count if headers is None else [_header_structs(each) for each in headers],
    ]
    arrays = [pa.array(list(column), field.type) for column, field in zip(columns, schema, strict=True)]
    flags, parts = serialize_arrow(pa.RecordBatch.from_arrays(arrays, schema=schema), compression)
    return flags, parts


def without_empty_headers(column: pa.Array) -> pa.Array:
    """A column with null in the place of each empty list of headers, as all codecs but this one store it.

    Other columns are returned as they are. A chunked column stays chunked.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    if not pa.types.is_list(column.type):
        return column
    empty = pc.equal(pc.list_value_length(column), 0)
    return pc.if_else(empty, pa.scalar(None, column.type), column) if pc.any(empty).as_py() else column


def _header_structs(headers: Headers | None) -> list[dict[str, Any]] | None:
    return [{"key": name, "value": value} for name, value in headers] if headers else None


def serialize_arrow(batch: pa.RecordBatch, compression: str | None) -> tuple[BatchFlags, list[bytes]]:
    """Flags and body of an Arrow batch.

    Raises:
        MisuseError: it is larger than an entry may decode to.
    """
    import pyarrow as pa

    if batch.nbytes > DECODED_BYTES_MAX:
        msg = f"a batch of {batch.nbytes:,} bytes is more than an entry may decode to, {DECODED_BYTES_MAX:,}; use smaller ones"
        raise MisuseError(msg)
    flags = BatchFlags.TIMES | BatchFlags.KEYS | BatchFlags.HEADERS
    flags |= BatchFlags.COMPRESSED if compression else BatchFlags.NONE
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(
        sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression=compression)
    ) as stream:
        stream.write_batch(batch)
        end = sink.tell()
    # The schema is fixed, so its message, the first of the stream, is not repeated in each entry.
    return flags, [sink.getvalue().to_pybytes()[batch.schema.serialize().size : end]]


def arrow_sizes(body: memoryview) -> dict[str, int]:
    """Decoded bytes by column, of a body that may be decoded.

    Raises:
        MalformedBatchError: it is no Arrow message of this schema, or decodes to more than `DECODED_BYTES_MAX`.
    """
    try:
        sizes = decoded_sizes(body)
    except LayoutError as error:
        raise malformed(f"its Arrow message cannot be read: {error}") from error
    if (total := sum(sizes.values())) > DECODED_BYTES_MAX:
        raise malformed(f"it decodes to {total:,} bytes, more than the {DECODED_BYTES_MAX:,} of an entry")
    return sizes


def read_arrow(body: memoryview, count: int) -> pa.RecordBatch:
    """The Arrow batch of a body, which holds so many records.

    Raises:
        MalformedBatchError: it is no Arrow message of this schema, of another number of records, or too large.
        MissingExtraError: pyarrow is not installed.
    """
    schema = arrow_schema()
    import pyarrow as pa

    arrow_sizes(body)
    try:
        batch = pa.ipc.read_record_batch(pa.py_buffer(body), schema)
        batch.validate(full=True)
    except (pa.ArrowException, OSError) as error:
        raise malformed(f"its Arrow message cannot be read: {error}") from error
    if batch.num_rows != count:
        raise malformed(f"its Arrow message has {batch.num_rows} records, the header says {count}")
    return batch


class ArrowColumns:
    """The columns of an `arrow` body as Python lists."""

    __slots__ = ("_batch",)

    def __init__(self, count: int, body: memoryview) -> None:
        self._batch = read_arrow(body, count)

    def _list(self, name: str, start: int, stop: int | None) -> list[Any]:
        first, end, _ = slice(start, stop).indices(self._batch.num_rows)
        found: list[Any] = self._batch.column(name).slice(first, max(0, end - first)).to_pylist()
        return found

    def values(self, start: int, stop: int | None) -> list[bytes | None]:
        """The values, None where a record has none."""
        return self._list("value", start, stop)

    def keys(self, start: int, stop: int | None) -> list[bytes | None]:
        """The keys, None where a record has none."""
        return self._list("key", start, stop)

    def times_ms(self, start: int, stop: int | None) -> Sequence[int]:
        """The times, milliseconds since 1970."""
        return self._list("timestamp_ms", start, stop)

    def headers(self, start: int, stop: int | None) -> list[tuple[tuple[str, bytes | None], ...]]:
        """The headers of each record."""
        return [
            tuple((pair["key"], pair["value"]) for pair in each or ())
            for each in self._list("headers", start, stop)
        ]

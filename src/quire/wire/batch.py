"""The batch entry: how many records of a log travel in one ledger entry.

This file is the only one that knows the bytes; `docs/formats/batch-entry.md` is the same in prose. Whether a ledger
holds batch entries is said by its metadata (`quire.format` = `batch1`), never guessed from bytes. The module must
not know ledgers, offsets of a log or the network, and it imports pyarrow only when the `arrow` codec is used.

Source: docs/formats/batch-entry.md; docs/decisions/021-batch-header.md.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum, IntFlag
from itertools import accumulate, pairwise, repeat
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from crc32c import crc32c

from quire.core.errors import MisuseError, PeerError
from quire.wire.arrow_sizes import DECODED_BYTES_MAX, LayoutError, decoded_sizes

if TYPE_CHECKING:
    import pyarrow as pa

FORMAT_BATCH1: Final = b"batch1"
"""The value of a ledger's custom metadata `quire.format` when its entries are batch entries."""

MAGIC: Final = b"QB"
VERSION: Final = 1
HEADER: Final = struct.Struct(">2sBBHHIIQqqqqqQII")
HEADER_BYTES: Final = HEADER.size
BODY_BYTES_MAX: Final = 2**31 - 1
SPAN_MAX: Final = 2**32 - 1
"""Offsets that a batch with gaps reaches over at most."""

Headers: TypeAlias = Sequence[tuple[str, bytes | None]]
Buffer: TypeAlias = bytes | bytearray | memoryview


class Codec(IntEnum):
    """How the body is written. The numbers are on disk: never renumber."""

    RAW = 1
    """The body is the value of one record without key and headers."""
    ROWS = 2
    """Tables of offsets, then the bytes; needs no library and maps onto Arrow without a copy."""
    ARROW = 3
    """One Arrow IPC record batch message of `arrow_schema()`."""


class BatchFlags(IntFlag):
    """What the body holds. A reader refuses a flag that it does not know."""

    NONE = 0
    TIMES = 1
    KEYS = 2
    KEY_NULLS = 4
    VALUE_NULLS = 8
    HEADERS = 16
    COMPRESSED = 32
    GAPS = 64
    """Offsets between the first and the last record have none: the body ends with the table of positions."""


_KNOWN_FLAGS: Final = 127
_CHECKSUM_AT: Final = HEADER_BYTES - 4


class MalformedBatchError(PeerError):
    """An entry that should be a batch is not one, or its bytes are damaged."""


@dataclass(frozen=True, slots=True)
class BatchHeader:
    """The fixed part of a batch entry.

    Attributes:
        codec: how the body is written.
        flags: what the body holds.
        count: records in this batch, at least 1.
        body_bytes: size of the body.
        records_before: offsets of the same ledger before this batch: its records, and those that were compacted away.
        base_ms: the time of every record that has none of its own.
        min_ms: smallest time in this batch; `max_ms` is the greatest.
        ledger_min_ms: smallest time in this ledger up to and including this batch; likewise `ledger_max_ms`.
        epoch: the leader epoch of the log under which it was written.
        header_bytes: where the body starts; a later version may be longer.
        span: with gaps, offsets from the first record to the last one; 0 without.
    """

    codec: Codec
    flags: BatchFlags
    count: int
    body_bytes: int
    records_before: int
    base_ms: int
    min_ms: int
    max_ms: int
    ledger_min_ms: int
    ledger_max_ms: int
    epoch: int
    header_bytes: int = HEADER_BYTES
    span: int = 0

    @property
    def records_through(self) -> int:
        """Offsets of the ledger up to and including this batch."""
        return self.records_before + (self.span or self.count)

    def encode(self) -> bytes:
        """The header's bytes, with their checksum."""
        head = HEADER.pack(
            MAGIC,
            VERSION,
            self.codec,
            self.flags,
            HEADER_BYTES,
            self.count,
            self.body_bytes,
            self.records_before,
            self.base_ms,
            self.min_ms,
            self.max_ms,
            self.ledger_min_ms,
            self.ledger_max_ms,
            self.epoch,
            self.span,
            0,
        )[:_CHECKSUM_AT]
        return head + crc32c(head).to_bytes(4, "big")

    @classmethod
    def parse(cls, entry: Buffer) -> BatchHeader:
        """Read the header at the start of an entry; the body need not be there.

        Raises:
            MalformedBatchError: not a batch entry, a version or flag of the future, or damaged.
        """
        if len(entry) < HEADER_BYTES:
            raise _malformed(f"it has {len(entry)} bytes, a batch header has {HEADER_BYTES}")
        (
            magic,
            version,
            codec,
            flags,
            header_bytes,
            count,
            body_bytes,
            before,
            base,
            low,
            high,
            ledger_low,
            ledger_high,
            epoch,
            span,
            checksum,
        ) = HEADER.unpack_from(entry)
        if magic != MAGIC:
            raise _malformed(f"it starts with {magic!r}, not {MAGIC!r}")
        if not HEADER_BYTES <= header_bytes <= len(entry):
            raise _malformed(f"its header claims {header_bytes} bytes of {len(entry)}")
        # What a later version adds stands behind the checksum's place and is covered as well.
        found = crc32c(entry[HEADER_BYTES:header_bytes], crc32c(entry[:_CHECKSUM_AT]))
        if found != checksum:
            raise _malformed(f"its header's checksum is {checksum:#010x}, the bytes give {found:#010x}")
        if version != VERSION:
            raise _malformed(f"it has version {version}; this program reads version {VERSION}")
        if codec not in Codec._value2member_map_ or flags & ~_KNOWN_FLAGS:
            raise _malformed(
                f"codec {codec} with flags {flags:#x} is unknown to this program: use a newer one"
            )
        if count < 1:
            raise _malformed("it holds no record")
        if flags & BatchFlags.GAPS and span <= count:
            raise _malformed(f"it has {count} records in {span} offsets, and says that some are missing")
        return cls(
            Codec(codec),
            BatchFlags(flags),
            count,
            body_bytes,
            before,
            base,
            low,
            high,
            ledger_low,
            ledger_high,
            epoch,
            header_bytes,
            span if flags & BatchFlags.GAPS else 0,
        )


# --- writing --------------------------------------------------------------------------------------------------


def encode_batch(
    values: Sequence[bytes | None],
    *,
    base_ms: int,
    times_ms: Sequence[int] | None = None,
    keys: Sequence[bytes | None] | None = None,
    headers: Sequence[Headers | None] | None = None,
    records_before: int = 0,
    ledger_min_ms: int | None = None,
    ledger_max_ms: int | None = None,
    epoch: int = 0,
    codec: Codec | None = None,
    compression: str | None = None,
) -> bytes:
    """One batch entry.

    Args:
        values: one per record, at least one; None is a value of its own (a tombstone).
        base_ms: the time of all records, where `times_ms` is not given.
        times_ms: one time per record, milliseconds since 1970.
        keys: one per record, None for "no key".
        headers: one list of (name, value) per record, None for none.
        records_before: records of this ledger in earlier entries.
        ledger_min_ms: smallest time of the earlier entries, None if there are none; likewise `ledger_max_ms`.
        epoch: the leader epoch.
        codec: None picks raw for one bare record, else rows.
        compression: `lz4` or `zstd`, with the arrow codec.

    Raises:
        MisuseError: no record, columns of unlike length, or more bytes than a body can hold.
    """
    count = len(values)
    if count == 0 or any(len(column) != count for column in (times_ms, keys, headers) if column is not None):
        msg = "a batch needs at least one record, and every column as many values as there are records"
        raise MisuseError(msg)
    if keys is not None and not any(key is not None for key in keys):
        keys = None
    if headers is not None and not any(headers):
        headers = None
    if times_ms is None:
        low = high = base_ms
    else:
        low, high = min(times_ms), max(times_ms)
        if low == high:
            base_ms, times_ms = low, None
    bare = count == 1 and keys is None and headers is None and values[0] is not None
    if codec is None:
        codec = Codec.RAW if bare else Codec.ROWS
    if codec is Codec.RAW:
        if not bare or times_ms is not None:
            msg = "the raw codec holds one record without key and headers"
            raise MisuseError(msg)
        flags, parts = BatchFlags.NONE, [values[0] or b""]
    elif codec is Codec.ROWS:
        flags, parts = _encode_rows(values, times_ms, keys, headers)
    else:
        flags, parts = _encode_arrow(values, base_ms, times_ms, keys, headers, compression)
    body_bytes = sum(map(len, parts))
    if body_bytes > BODY_BYTES_MAX:
        msg = f"a batch body of {body_bytes} bytes is more than an entry holds; append smaller records"
        raise MisuseError(msg)
    header = BatchHeader(
        codec,
        flags,
        count,
        body_bytes,
        records_before,
        base_ms,
        low,
        high,
        low if ledger_min_ms is None else min(low, ledger_min_ms),
        high if ledger_max_ms is None else max(high, ledger_max_ms),
        epoch,
    )
    return b"".join((header.encode(), *parts))


def _encode_rows(
    values: Sequence[bytes | None],
    times_ms: Sequence[int] | None,
    keys: Sequence[bytes | None] | None,
    headers: Sequence[Headers | None] | None,
) -> tuple[BatchFlags, list[bytes]]:
    """All tables first, then the bytes of the columns, so that one slice hands a column to Arrow."""
    flags = BatchFlags.NONE
    tables: list[bytes] = []
    data: list[bytes] = []
    if times_ms is not None:
        flags |= BatchFlags.TIMES
        tables.append(struct.pack(f"<{len(times_ms)}q", *times_ms))
    if keys is not None:
        flags |= BatchFlags.KEYS
        if _add_column(keys, tables, data):
            flags |= BatchFlags.KEY_NULLS
    if _add_column(values, tables, data):
        flags |= BatchFlags.VALUE_NULLS
    if headers is not None:
        flags |= BatchFlags.HEADERS
        _add_column([_encode_headers(each) if each else b"" for each in headers], tables, data)
    return flags, [*tables, *data]


def _add_column(column: Sequence[bytes | None], tables: list[bytes], data: list[bytes]) -> bool:
    """Append one column's tables and bytes; whether it has a table of nulls."""
    nulls = None in column
    if nulls:
        tables.append(_bitmap([item is not None for item in column]))
        column = [item or b"" for item in column]
    present: Sequence[bytes] = column  # type: ignore[assignment]
    tables.append(struct.pack(f"<{len(column) + 1}I", *accumulate(map(len, present), initial=0)))
    data.append(b"".join(present))
    return nulls


def _bitmap(present: Sequence[bool]) -> bytes:
    """Bit i % 8 of byte i // 8 is set when record i has a value: Arrow's order."""
    return sum(1 << i for i, is_set in enumerate(present) if is_set).to_bytes(
        (len(present) + 7) // 8, "little"
    )


def _encode_headers(headers: Headers) -> bytes:
    parts = [struct.pack(">H", len(headers))]
    for name, value in headers:
        encoded = name.encode()
        parts += (struct.pack(">H", len(encoded)), encoded)
        parts += (struct.pack(">i", -1),) if value is None else (struct.pack(">i", len(value)), value)
    return b"".join(parts)


def _decode_headers(blob: bytes) -> tuple[tuple[str, bytes | None], ...]:
    if not blob:
        return ()
    try:
        (count,) = struct.unpack_from(">H", blob)
        at, found = 2, []
        for _ in range(count):
            (name_bytes,) = struct.unpack_from(">H", blob, at)
            name = blob[at + 2 : at + 2 + name_bytes].decode()
            at += 2 + name_bytes
            (value_bytes,) = struct.unpack_from(">i", blob, at)
            at += 4
            found.append((name, None if value_bytes < 0 else blob[at : at + value_bytes]))
            at += max(value_bytes, 0)
    except (struct.error, UnicodeDecodeError) as error:
        raise _malformed(f"a record's headers cannot be read: {error}") from error
    if at != len(blob):
        raise _malformed(f"a record's headers end at {at} of {len(blob)} bytes")
    return tuple(found)


# --- reading --------------------------------------------------------------------------------------------------


class BatchView:
    """One batch entry, decoded column by column and only when asked.

    `start` and `stop` arguments count records within the batch, half-open; they clip what is handed out.
    """

    __slots__ = ("_body", "_columns", "_positions", "_table", "header")

    def __init__(
        self,
        header: BatchHeader,
        body: memoryview,
        table: memoryview | bytes = b"",
        positions: tuple[int, ...] = (),
    ) -> None:
        self.header = header
        self._body = body
        self._table, self._positions = table, positions
        self._columns: _Columns | None = None

    @classmethod
    def parse(cls, entry: Buffer) -> BatchView:
        """Read an entry's payload.

        Raises:
            MalformedBatchError: not a batch entry, or damaged; see `BatchHeader.parse`.
        """
        header = BatchHeader.parse(entry)
        body = memoryview(entry)[header.header_bytes :]
        if len(body) != header.body_bytes:
            raise _malformed(f"its header names a body of {header.body_bytes} bytes, {len(body)} follow")
        if header.codec is Codec.RAW and header.count != 1:
            raise _malformed(f"the raw codec holds one record, the header says {header.count}")
        if header.flags & BatchFlags.GAPS:
            return cls(header, *_split(header, body))
        return cls(header, body)

    def moved(self, records_before: int, ledger_min_ms: int, ledger_max_ms: int) -> bytes:
        """The same records as an entry of another ledger; see `BatchHeader` for what counts anew there."""
        header = replace(
            self.header,
            records_before=records_before,
            ledger_min_ms=ledger_min_ms,
            ledger_max_ms=ledger_max_ms,
            header_bytes=HEADER_BYTES,
        )
        return b"".join((header.encode(), self._body, self._table))

    def positions(self, start: int = 0, stop: int | None = None) -> Sequence[int]:
        """The records' offsets, counted from the batch's first one: 0, 1, 2, … unless some were compacted away."""
        return (self._positions or range(self.count))[start:stop]

    def between(self, low: int, high: int | None = None) -> tuple[int, int]:
        """Which records have positions from `low` up to, not including, `high`: the first, and where to stop."""
        start, stop = low, self.count if high is None else min(high, self.count)
        if self._positions:
            start = bisect_left(self._positions, low)
            stop = self.count if high is None else bisect_left(self._positions, high)
        start = min(max(start, 0), self.count)
        return start, max(start, stop)

    @property
    def count(self) -> int:
        """Records in the batch."""
        return self.header.count

    def values(self, start: int = 0, stop: int | None = None) -> list[bytes | None]:
        """The values, None where a record has none."""
        if self.header.codec is Codec.RAW:
            only: list[bytes | None] = [bytes(self._body)]
            return only[start:stop]
        return self._decoded().values(start, stop)

    def keys(self, start: int = 0, stop: int | None = None) -> list[bytes | None]:
        """The keys, None where a record has none."""
        if not self.header.flags & BatchFlags.KEYS:
            return [None] * len(range(self.count)[start:stop])
        return self._decoded().keys(start, stop)

    def times_ms(self, start: int = 0, stop: int | None = None) -> Sequence[int]:
        """The times, milliseconds since 1970."""
        if not self.header.flags & BatchFlags.TIMES:
            return [self.header.base_ms] * len(range(self.count)[start:stop])
        return self._decoded().times_ms(start, stop)

    def headers(self, start: int = 0, stop: int | None = None) -> list[tuple[tuple[str, bytes | None], ...]]:
        """The headers of each record, as (name, value) pairs in the order in which they were given."""
        if not self.header.flags & BatchFlags.HEADERS:
            return [()] * len(range(self.count)[start:stop])
        return self._decoded().headers(start, stop)

    def to_arrow(
        self, start: int = 0, stop: int | None = None, columns: Sequence[str] | None = None
    ) -> pa.RecordBatch:
        """The records as an Arrow batch; bytes of rows and arrow bodies are not copied record by record.

        Args:
            start: first record, within the batch.
            stop: where to end, exclusive; None is the end.
            columns: which of `key`, `value`, `timestamp_ms`, `headers`, in this order; None is all.
        """
        import pyarrow as pa

        schema = arrow_schema()
        names = list(schema.names if columns is None else columns)
        if self.header.codec is Codec.ARROW:
            whole = _read_arrow(self._body, self.header)
            arrays = [without_empty_headers(whole.column(name)) for name in names]
        else:
            arrays = [self._arrow_column(pa, name) for name in names]
        batch = pa.RecordBatch.from_arrays(arrays, schema=pa.schema([schema.field(name) for name in names]))
        first, end, _ = slice(start, stop).indices(self.count)
        return batch if (first, end) == (0, self.count) else batch.slice(first, max(0, end - first))

    def decoded_bytes(self, columns: Sequence[str]) -> int:
        """About how many bytes some columns have once decoded; nothing is decoded for it.

        Args:
            columns: which; of bodies that are not Arrow all are counted.

        Raises:
            MalformedBatchError: as `to_arrow`, and for a body that decodes to more than `DECODED_BYTES_MAX`.
        """
        if self.header.codec is not Codec.ARROW:
            return self.header.body_bytes
        sizes = _arrow_sizes(self._body)
        return sum(sizes[name] for name in columns)

    def _arrow_column(self, pa: Any, name: str) -> pa.Array:
        if name == "timestamp_ms":
            return pa.array(self.times_ms(), pa.int64())
        if name == "headers":
            return pa.array([each or None for each in self.headers()], arrow_schema().field(name).type)
        if self.header.codec is Codec.RAW:
            return pa.array(self.values() if name == "value" else self.keys(), pa.binary())
        if name == "key" and not self.header.flags & BatchFlags.KEYS:
            return pa.nulls(self.count, pa.binary())
        rows = self._decoded()
        assert isinstance(rows, _Rows)
        return rows.arrow(pa, name)

    def _decoded(self) -> _Columns:
        if self._columns is None:
            kind = _ArrowColumns if self.header.codec is Codec.ARROW else _Rows
            self._columns = kind(self.header, self._body)
        return self._columns


class _Rows:
    """The tables and bytes of a `rows` body, found once."""

    __slots__ = ("_count", "_data", "_nulls", "_offsets", "_times", "_times_ms")

    def __init__(self, header: BatchHeader, body: memoryview) -> None:
        self._count = header.count
        self._offsets: dict[str, memoryview] = {}
        self._nulls: dict[str, memoryview] = {}
        self._data: dict[str, memoryview] = {}
        columns = [
            ("key", header.flags & BatchFlags.KEYS, header.flags & BatchFlags.KEY_NULLS),
            ("value", True, header.flags & BatchFlags.VALUE_NULLS),
            ("headers", header.flags & BatchFlags.HEADERS, False),
        ]
        at = 8 * self._count if header.flags & BatchFlags.TIMES else 0
        self._times = body[:at]
        self._times_ms: tuple[int, ...] = ()
        for name, present, nullable in columns:
            if not present:
                continue
            if nullable:
                self._nulls[name] = body[at : at + (self._count + 7) // 8]
                at += (self._count + 7) // 8
            self._offsets[name] = body[at : at + 4 * (self._count + 1)]
            at += 4 * (self._count + 1)
        if at > len(body):
            raise _malformed(f"its tables need {at} bytes, the body has {len(body)}")
        for name, table in self._offsets.items():
            first, end = *struct.unpack_from("<I", table), *struct.unpack_from("<I", table, 4 * self._count)
            if first != 0 or at + end > len(body):
                raise _malformed(f"column {name} runs from {first} to {end}, {len(body) - at} bytes are left")
            self._data[name] = body[at : at + end]
            at += end
        if at != len(body):
            raise _malformed(f"its columns end at {at}, the body at {len(body)}")

    def _slices(self, name: str, start: int, stop: int | None) -> list[bytes]:
        first, end, _ = slice(start, stop).indices(self._count)
        if end <= first:
            return []
        table = struct.unpack_from(f"<{end - first + 1}I", self._offsets[name], 4 * first)
        low, high = table[0], table[-1]
        if list(table) != sorted(table) or high > len(self._data[name]):
            raise _malformed(f"column {name}: its offsets do not ascend within {len(self._data[name])} bytes")
        data = bytes(self._data[name][low:high])
        if low:
            return [data[a - low : b - low] for a, b in pairwise(table)]
        return [data[a:b] for a, b in pairwise(table)]

    def _nullable(self, name: str, start: int, stop: int | None) -> list[bytes | None]:
        found: list[bytes | None] = [*self._slices(name, start, stop)]
        if name in self._nulls:
            present = int.from_bytes(self._nulls[name], "little")
            first = slice(start, stop).indices(self._count)[0]
            for i in range(len(found)):
                if not present >> (first + i) & 1:
                    found[i] = None
        return found

    def values(self, start: int, stop: int | None) -> list[bytes | None]:
        return self._nullable("value", start, stop)

    def keys(self, start: int, stop: int | None) -> list[bytes | None]:
        return self._nullable("key", start, stop)

    def times_ms(self, start: int, stop: int | None) -> Sequence[int]:
        if not self._times_ms:
            self._times_ms = struct.unpack(f"<{self._count}q", self._times)
        return self._times_ms[start:stop]

    def headers(self, start: int, stop: int | None) -> list[tuple[tuple[str, bytes | None], ...]]:
        return [_decode_headers(blob) for blob in self._slices("headers", start, stop)]

    def arrow(self, pa: Any, name: str) -> pa.Array:
        """A binary column over the entry's own bytes; only the tables are copied, to be aligned."""
        validity = pa.py_buffer(bytes(self._nulls[name])) if name in self._nulls else None
        table = pa.py_buffer(bytes(self._offsets[name]))
        column = pa.Array.from_buffers(
            pa.binary(), self._count, [validity, table, pa.py_buffer(self._data[name])]
        )
        try:
            column.validate(full=True)
        except pa.ArrowInvalid as error:
            raise _malformed(f"column {name}: {error}") from error
        return column


class _ArrowColumns:
    """The columns of an `arrow` body as Python lists."""

    __slots__ = ("_batch",)

    def __init__(self, header: BatchHeader, body: memoryview) -> None:
        self._batch = _read_arrow(body, header)

    def _list(self, name: str, start: int, stop: int | None) -> list[Any]:
        first, end, _ = slice(start, stop).indices(self._batch.num_rows)
        found: list[Any] = self._batch.column(name).slice(first, max(0, end - first)).to_pylist()
        return found

    def values(self, start: int, stop: int | None) -> list[bytes | None]:
        return self._list("value", start, stop)

    def keys(self, start: int, stop: int | None) -> list[bytes | None]:
        return self._list("key", start, stop)

    def times_ms(self, start: int, stop: int | None) -> Sequence[int]:
        return self._list("timestamp_ms", start, stop)

    def headers(self, start: int, stop: int | None) -> list[tuple[tuple[str, bytes | None], ...]]:
        return [
            tuple((pair["key"], pair["value"]) for pair in each or ())
            for each in self._list("headers", start, stop)
        ]


_Columns: TypeAlias = _Rows | _ArrowColumns


# --- arrow ----------------------------------------------------------------------------------------------------

_SCHEMA: list[Any] = []


def arrow_schema() -> pa.Schema:
    """The one schema of batches: `key`, `value`, `timestamp_ms`, `headers`. It is fixed by the format's version."""
    if not _SCHEMA:
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


def encode_arrow_batch(
    batch: pa.RecordBatch,
    *,
    records_before: int = 0,
    ledger_min_ms: int | None = None,
    ledger_max_ms: int | None = None,
    epoch: int = 0,
    compression: str | None = None,
) -> bytes:
    """One batch entry with the arrow codec, from a batch of `arrow_schema()`.

    Raises:
        MisuseError: another schema, no record, or too many bytes.
    """
    if batch.num_rows == 0 or not batch.schema.equals(arrow_schema()):
        msg = f"an arrow batch needs a record and the schema {arrow_schema()}; got {batch.num_rows} of {batch.schema}"
        raise MisuseError(msg)
    import pyarrow.compute as pc

    times = pc.min_max(batch.column("timestamp_ms")).as_py()
    low, high = times["min"], times["max"]
    flags, (body,) = _serialize_arrow(batch, compression)
    if len(body) > BODY_BYTES_MAX:
        msg = f"a batch body of {len(body)} bytes is more than an entry holds; use smaller batches"
        raise MisuseError(msg)
    header = BatchHeader(
        Codec.ARROW,
        flags,
        batch.num_rows,
        len(body),
        records_before,
        low,
        low,
        high,
        low if ledger_min_ms is None else min(low, ledger_min_ms),
        high if ledger_max_ms is None else max(high, ledger_max_ms),
        epoch,
    )
    return header.encode() + body


def _encode_arrow(
    values: Sequence[bytes | None],
    base_ms: int,
    times_ms: Sequence[int] | None,
    keys: Sequence[bytes | None] | None,
    headers: Sequence[Headers | None] | None,
    compression: str | None,
) -> tuple[BatchFlags, list[bytes]]:
    import pyarrow as pa

    schema = arrow_schema()
    count = len(values)
    columns: list[Iterable[Any]] = [
        [None] * count if keys is None else keys,
        values,
        repeat(base_ms, count) if times_ms is None else times_ms,
        [None] * count if headers is None else [_header_structs(each) for each in headers],
    ]
    arrays = [pa.array(list(column), field.type) for column, field in zip(columns, schema, strict=True)]
    flags, parts = _serialize_arrow(pa.RecordBatch.from_arrays(arrays, schema=schema), compression)
    return flags, parts


def without_empty_headers(column: pa.Array) -> pa.Array:
    """A column with null in the place of each empty list of headers, as all codecs but this one store it.

    Other columns are returned as they are; so is a chunked one's kind.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    if not pa.types.is_list(column.type):
        return column
    empty = pc.equal(pc.list_value_length(column), 0)
    return pc.if_else(empty, pa.scalar(None, column.type), column) if pc.any(empty).as_py() else column


def _header_structs(headers: Headers | None) -> list[dict[str, Any]] | None:
    return [{"key": name, "value": value} for name, value in headers] if headers else None


def _serialize_arrow(batch: pa.RecordBatch, compression: str | None) -> tuple[BatchFlags, list[bytes]]:
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


def _arrow_sizes(body: memoryview) -> dict[str, int]:
    """Decoded bytes by column, of a body that may be decoded.

    Raises:
        MalformedBatchError: it is no Arrow message of this schema, or decodes to more than `DECODED_BYTES_MAX`.
    """
    try:
        sizes = decoded_sizes(body)
    except LayoutError as error:
        raise _malformed(f"its Arrow message cannot be read: {error}") from error
    if (total := sum(sizes.values())) > DECODED_BYTES_MAX:
        raise _malformed(f"it decodes to {total:,} bytes, more than the {DECODED_BYTES_MAX:,} of an entry")
    return sizes


def _read_arrow(body: memoryview, header: BatchHeader) -> pa.RecordBatch:
    import pyarrow as pa

    _arrow_sizes(body)
    try:
        batch = pa.ipc.read_record_batch(pa.py_buffer(body), arrow_schema())
        batch.validate(full=True)
    except (pa.ArrowException, OSError) as error:
        raise _malformed(f"its Arrow message cannot be read: {error}") from error
    if batch.num_rows != header.count:
        raise _malformed(f"its Arrow message has {batch.num_rows} records, the header says {header.count}")
    return batch


def with_gaps(entry: bytes, positions: Sequence[int]) -> bytes:
    """A batch of which some offsets have no record.

    Args:
        entry: the batch as if it had all.
        positions: of each record the offset, counted from the first one's: ascending from 0.

    Raises:
        MisuseError: they do not ascend from 0, are not as many as the records, or are more than 2^32 apart.
    """
    header = BatchHeader.parse(entry)
    ascending = all(before < after for before, after in pairwise(positions))
    if len(positions) != header.count or positions[0] != 0 or not ascending or positions[-1] >= SPAN_MAX:
        msg = f"{header.count} records need as many positions that ascend from 0 and stay below {SPAN_MAX}"
        raise MisuseError(msg)
    span = positions[-1] + 1
    if span == header.count:
        return entry
    table = struct.pack(f"<{header.count}I", *positions)
    header = replace(
        header, flags=header.flags | BatchFlags.GAPS, span=span, body_bytes=header.body_bytes + len(table)
    )
    return b"".join((header.encode(), memoryview(entry)[header.header_bytes :], table))


def _split(header: BatchHeader, body: memoryview) -> tuple[memoryview, memoryview, tuple[int, ...]]:
    """The codec's part of a body, the table of positions behind it, and the positions."""
    at = len(body) - 4 * header.count
    if at < 0:
        raise _malformed(f"{header.count} positions do not fit a body of {len(body)} bytes")
    found = struct.unpack_from(f"<{header.count}I", body, at)
    ascending = all(before < after for before, after in pairwise(found))
    if found[0] != 0 or found[-1] + 1 != header.span or not ascending:
        raise _malformed(f"its positions do not ascend from 0 to {header.span - 1}")
    return body[:at], body[at:], found


def _malformed(what: str) -> MalformedBatchError:
    return MalformedBatchError(f"this entry is not a readable batch: {what}")

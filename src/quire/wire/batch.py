"""The batch entry: how many records of a log travel in one ledger entry.

Here are the header and what is the same for all codecs; `batch_rows.py` and `batch_arrow.py` know the bodies, and
`docs/formats/batch-entry.md` is the same in prose. Whether a ledger holds batch entries is said by its metadata
(`quire.format` = `batch1`), never guessed from bytes. None of these modules knows ledgers, offsets of a log or the
network, and pyarrow is imported only when the `arrow` codec is used.

Source: docs/formats/batch-entry.md; docs/decisions/021-batch-header.md.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from crc32c import crc32c

from quire.core.errors import MisuseError
from quire.wire.batch_arrow import (
    ArrowColumns,
    arrow_schema,
    arrow_sizes,
    encode_arrow,
    read_arrow,
    serialize_arrow,
    without_empty_headers,
)
from quire.wire.batch_format import BODY_BYTES_MAX, SPAN_MAX, BatchFlags, Buffer, Codec, Headers, malformed
from quire.wire.batch_rows import RowColumns, encode_rows

if TYPE_CHECKING:
    import pyarrow as pa

MAGIC: Final = b"QB"
VERSION: Final = 1
HEADER: Final = struct.Struct(">2sBBHHIIQqqqqqQII")
HEADER_BYTES: Final = HEADER.size
_KNOWN_FLAGS: Final = 127
_CHECKSUM_AT: Final = HEADER_BYTES - 4


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
            raise malformed(f"it has {len(entry)} bytes, a batch header has {HEADER_BYTES}")
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
            raise malformed(f"it starts with {magic!r}, not {MAGIC!r}")
        if not HEADER_BYTES <= header_bytes <= len(entry):
            raise malformed(f"its header claims {header_bytes} bytes of {len(entry)}")
        # What a later version adds stands behind the checksum's place and is covered as well.
        found = crc32c(entry[HEADER_BYTES:header_bytes], crc32c(entry[:_CHECKSUM_AT]))
        if found != checksum:
            raise malformed(f"its header's checksum is {checksum:#010x}, the bytes give {found:#010x}")
        if version != VERSION:
            raise malformed(f"it has version {version}; this program reads version {VERSION}")
        if codec not in Codec._value2member_map_ or flags & ~_KNOWN_FLAGS:
            raise malformed(
                f"codec {codec} with flags {flags:#x} is unknown to this program: use a newer one"
            )
        if count < 1:
            raise malformed("it holds no record")
        if flags & BatchFlags.GAPS and span <= count:
            raise malformed(f"it has {count} records in {span} offsets, and says that some are missing")
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
        base_ms: the time of all records, where `times_ms` is None.
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
        flags, parts = encode_rows(values, times_ms, keys, headers)
    else:
        flags, parts = encode_arrow(values, base_ms, times_ms, keys, headers, compression)
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
    flags, (body,) = serialize_arrow(batch, compression)
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


# --- reading --------------------------------------------------------------------------------------------------


_Columns: TypeAlias = RowColumns | ArrowColumns


class BatchView:
    """One batch entry, decoded column by column and only when asked.

    What decodes a body with the arrow codec raises `MissingExtraError` where pyarrow is not installed.

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
            raise malformed(f"its header names a body of {header.body_bytes} bytes, {len(body)} follow")
        if header.codec is Codec.RAW and header.count != 1:
            raise malformed(f"the raw codec holds one record, the header says {header.count}")
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
        """The headers of each record, as (name, value) pairs in the order in which they were passed."""
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
        schema = arrow_schema()
        import pyarrow as pa

        names = list(schema.names if columns is None else columns)
        if self.header.codec is Codec.ARROW:
            whole = read_arrow(self._body, self.count)
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
        sizes = arrow_sizes(self._body)
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
        assert isinstance(rows, RowColumns)
        return rows.arrow(pa, name)

    def _decoded(self) -> _Columns:
        if self._columns is None:
            header = self.header
            self._columns = (
                ArrowColumns(header.count, self._body)
                if header.codec is Codec.ARROW
                else RowColumns(header.count, header.flags, self._body)
            )
        return self._columns


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
    """The codec's part of a body, the table of positions after it, and the positions."""
    at = len(body) - 4 * header.count
    if at < 0:
        raise malformed(f"{header.count} positions do not fit a body of {len(body)} bytes")
    found = struct.unpack_from(f"<{header.count}I", body, at)
    ascending = all(before < after for before, after in pairwise(found))
    if found[0] != 0 or found[-1] + 1 != header.span or not ascending:
        raise malformed(f"its positions do not ascend from 0 to {header.span - 1}")
    return body[:at], body[at:], found

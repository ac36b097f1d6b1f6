"""The `rows` codec of a batch entry: tables of offsets, then the bytes of the columns. It needs no library.

Source: docs/formats/batch-entry.md.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

from quire.wire.batch_format import BatchFlags, Headers, malformed

if TYPE_CHECKING:
    import pyarrow as pa


def encode_rows(
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
        raise malformed(f"a record's headers cannot be read: {error}") from error
    if at != len(blob):
        raise malformed(f"a record's headers end at {at} of {len(blob)} bytes")
    return tuple(found)


class RowColumns:
    """The tables and bytes of a `rows` body, found once."""

    __slots__ = ("_count", "_data", "_nulls", "_offsets", "_times", "_times_ms")

    def __init__(self, count: int, flags: int, body: memoryview) -> None:
        self._count = count
        self._offsets: dict[str, memoryview] = {}
        self._nulls: dict[str, memoryview] = {}
        self._data: dict[str, memoryview] = {}
        columns = [
            ("key", flags & BatchFlags.KEYS, flags & BatchFlags.KEY_NULLS),
            ("value", True, flags & BatchFlags.VALUE_NULLS),
            ("headers", flags & BatchFlags.HEADERS, False),
        ]
        at = 8 * self._count if flags & BatchFlags.TIMES else 0
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
            raise malformed(f"its tables need {at} bytes, the body has {len(body)}")
        for name, table in self._offsets.items():
            first, end = *struct.unpack_from("<I", table), *struct.unpack_from("<I", table, 4 * self._count)
            if first != 0 or at + end > len(body):
                raise malformed(f"column {name} runs from {first} to {end}, {len(body) - at} bytes are left")
            self._data[name] = body[at : at + end]
            at += end
        if at != len(body):
            raise malformed(f"its columns end at {at}, the body at {len(body)}")

    def _slices(self, name: str, start: int, stop: int | None) -> list[bytes]:
        first, end, _ = slice(start, stop).indices(self._count)
        if end <= first:
            return []
        table = struct.unpack_from(f"<{end - first + 1}I", self._offsets[name], 4 * first)
        low, high = table[0], table[-1]
        if list(table) != sorted(table) or high > len(self._data[name]):
            raise malformed(f"column {name}: its offsets do not ascend within {len(self._data[name])} bytes")
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
        """The values, None where a record has none."""
        return self._nullable("value", start, stop)

    def keys(self, start: int, stop: int | None) -> list[bytes | None]:
        """The keys, None where a record has none."""
        return self._nullable("key", start, stop)

    def times_ms(self, start: int, stop: int | None) -> Sequence[int]:
        """The times, milliseconds since 1970."""
        if not self._times_ms:
            self._times_ms = struct.unpack(f"<{self._count}q", self._times)
        return self._times_ms[start:stop]

    def headers(self, start: int, stop: int | None) -> list[tuple[tuple[str, bytes | None], ...]]:
        """The headers of each record."""
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
            raise malformed(f"column {name}: {error}") from error
        return column

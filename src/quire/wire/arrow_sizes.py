"""How many bytes an Arrow record batch message decodes to, read off its tables before anything is decoded.

A compressed message may hold far more than its size: code that collects or allocates by size calls this first. The
module knows the layout of the one schema of batch entries (`wire/batch.py`) and imports no library.

Source: `docs/formats/batch-entry.md`; Arrow columnar format, "Encapsulated message format", "Compression".
"""

from __future__ import annotations

import struct
from typing import Final, TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview

DECODED_BYTES_MAX: Final = 1 << 30
"""An entry that decodes to more is refused, by readers and by writers: Arrow's columns end at 2 GiB."""

_CONTINUATION: Final = 0xFFFFFFFF
_RECORD_BATCH: Final = 3
_STORED_AS_IS: Final = -1
_BUFFERS_OF: Final = {"key": 3, "value": 3, "timestamp_ms": 2, "headers": 9}
"""Buffers of each column, in the order of the schema: validity, offsets and data, also of what is nested."""
_HEADER_TYPE, _HEADER = 1, 2
_BUFFERS, _COMPRESSION = 2, 3


class LayoutError(ValueError):
    """The message is no record batch of this schema, or its tables point outside of it."""


def decoded_sizes(message: Buffer) -> dict[str, int]:
    """Bytes of each column once decoded.

    Args:
        message: a record batch message with its body, as a batch entry of the codec `arrow` holds it.

    Returns:
        Sizes by the column's name: `key`, `value`, `timestamp_ms`, `headers`.

    Raises:
        LayoutError: it is no such message.
    """
    try:
        continuation, length = struct.unpack_from("<Ii", message)
        if continuation != _CONTINUATION or not 0 < length <= len(message) - 8:
            raise LayoutError(f"its metadata has {length} bytes of {len(message)}")
        body = 8 + length
        root = 8 + _u32(message, 8)
        kind = _field(message, root, _HEADER_TYPE)
        header = _field(message, root, _HEADER)
        if kind is None or message[kind] != _RECORD_BATCH or header is None:
            raise LayoutError("it is no record batch")
        batch = header + _u32(message, header)
        compressed = _field(message, batch, _COMPRESSION) is not None
        at = _field(message, batch, _BUFFERS)
        vector = 0 if at is None else at + _u32(message, at)
        count = _u32(message, vector) if vector else 0
        if count != sum(_BUFFERS_OF.values()):
            raise LayoutError(f"it has {count} buffers, the schema {sum(_BUFFERS_OF.values())}")
        sizes = [_decoded(message, body, vector + 4 + 16 * number, compressed) for number in range(count)]
    except (struct.error, IndexError) as error:
        raise LayoutError(f"its tables point outside of it: {error}") from error
    found, number = {}, 0
    for name, buffers in _BUFFERS_OF.items():
        found[name] = sum(sizes[number : number + buffers])
        number += buffers
    return found


def _decoded(message: Buffer, body: int, at: int, compressed: bool) -> int:
    """The size of one buffer of a body, named by its line of the table; a compressed one begins with it."""
    start, size = struct.unpack_from("<qq", message, at)
    if start < 0 or size < 0 or body + start + size > len(message):
        raise LayoutError(f"a buffer of {size} bytes at {start} lies outside of it")
    if not compressed or not size:
        return int(size)
    (decoded,) = struct.unpack_from("<q", message, body + start)
    if decoded == _STORED_AS_IS:
        return int(size) - 8
    if decoded < 0:
        raise LayoutError(f"a buffer claims to decode to {decoded} bytes")
    return int(decoded)


def _u32(message: Buffer, at: int) -> int:
    return int(struct.unpack_from("<I", message, at)[0])


def _field(message: Buffer, table: int, number: int) -> int | None:
    """Where a field of a flatbuffers table lies; None for one that is not there."""
    vtable = table - int(struct.unpack_from("<i", message, table)[0])
    if vtable < 0:
        raise LayoutError("a table lies outside of it")
    (size,) = struct.unpack_from("<H", message, vtable)
    if 4 + 2 * number >= size:
        return None
    (offset,) = struct.unpack_from("<H", message, vtable + 4 + 2 * number)
    return table + offset if offset else None

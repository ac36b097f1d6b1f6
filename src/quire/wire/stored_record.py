"""A record as it lies in a bookie's files: its header, and how a reader sees that it is the record of its offset.

Storage writes and reads records; clients on the same machine read runs out of the same files.

Layout: `docs/formats/segment.md`, "Record".
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from crc32c import crc32c

from quire.wire.entry import Buffer

RECORD_HEADER_BYTES: Final = 104
SEGMENTS_FOLDER: Final = "segments"
"""The folder of the segments in a bookie's directory."""
RECORD_HEAD = struct.Struct(">IBBBBQqqqQQqQIIIIIII")
_CHECKSUM = struct.Struct(">I")


def padded(size: int) -> int:
    """A size rounded up to 8."""
    return (size + 7) & ~7


def seed_at(seed: int, offset: int) -> int:
    """What the checksum of something at an offset starts from: no block verifies at another offset."""
    return seed ^ (offset & 0xFFFFFFFF)


class RecordHeader(NamedTuple):
    """The 104 bytes before a record's body. `codec`, `key_id` and `tenant` are reserved for later versions, and 0."""

    length: int
    kind: int
    codec: int
    digest_type: int
    period: int
    lsn: int
    ledger_id: int
    first: int
    last: int
    origin_term: int
    token: int
    lac: int
    stripes: int
    entries: int
    key_id: int
    tenant: int
    flags: int
    body_bytes: int
    body_checksum: int
    zero: int


def decode_record_header(data: Buffer, offset: int, seed: int) -> RecordHeader | None:
    """The record header at an offset, or None if it does not verify."""
    if len(data) < RECORD_HEADER_BYTES:
        return None
    (checksum,) = _CHECKSUM.unpack_from(data, RECORD_HEADER_BYTES - 4)
    if checksum != crc32c(memoryview(data)[: RECORD_HEADER_BYTES - 4], seed_at(seed, offset)):
        return None
    header = RecordHeader._make(RECORD_HEAD.unpack_from(data))
    if header.length != padded(RECORD_HEADER_BYTES + header.body_bytes):
        return None
    return header

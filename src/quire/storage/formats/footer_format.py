"""The bytes of a sealed segment's footer and trailer: rows of runs, a directory of them, the state (fence, term, LAC) of ledgers.

A *row* says of one run which entries it has and where it lies; rows are sorted by ledger and first entry. The *directory* has
for each ledger where its rows begin and end, so that a search reads few of them. All of it is derived from the segment's
records.

Layout: `docs/formats/segment.md`, "Footer and trailer".
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from operator import eq, itemgetter, lt
from typing import Final, NamedTuple

from crc32c import crc32c

from quire.storage.formats.segment_format import BLOCK_BYTES, U32, FormatError
from quire.wire.entry import Buffer
from quire.wire.layout import Field, FieldUse, Layout
from quire.wire.stored_record import seed_at

TRAILER_MAGIC = b"\xd1QFOO\r\n\x1a"
ROW = struct.Struct(">qQqqQIIIBBBBQ")
ROW_BYTES = ROW.size
DIRECTORY = struct.Struct(">qqqqQQQIIII")
DIRECTORY_BYTES = DIRECTORY.size
_BOOKIE = FieldUse(writer="bookie", reader="bookie")
TRAILER_LAYOUT: Final = Layout(
    "Trailer",
    [
        Field("magic d1 51 46 4f 4f 0d 0a 1a", "8s", _BOOKIE),
        Field("sequence", "Q", _BOOKIE),
        Field("end of the last group", "Q", _BOOKIE),
        Field("first LSN, 0 if none", "Q", _BOOKIE),
        Field("last LSN", "Q", _BOOKIE),
        Field("offset of the states", "Q", _BOOKIE),
        Field("offset of the rows", "Q", _BOOKIE),
        Field("offset of the directory", "Q", _BOOKIE),
        Field("end of the directory", "Q", _BOOKIE),
        Field("ledgers with state", "I", _BOOKIE),
        Field("rows", "I", _BOOKIE),
        Field("ledgers in the directory", "I", _BOOKIE),
        Field("checksum of the states", "I", _BOOKIE),
        Field("checksum of the directory", "I", _BOOKIE),
        Field("zero", "I", _BOOKIE),
        Field("offset of the kept records", "Q", _BOOKIE),
        Field("kept records", "I", _BOOKIE),
        Field("checksum of the kept records", "I", _BOOKIE),
    ],
)
TRAILER = TRAILER_LAYOUT.struct
STATE_HEAD = struct.Struct(">qQI")
KEPT_RECORD = Layout(
    "Kept record in a footer",
    [
        Field("ledger, -1 if it concerns all", "q", _BOOKIE),
        Field("LSN", "Q", _BOOKIE),
        Field("offset of the record / 8", "I", _BOOKIE),
        Field("length of the body", "I", _BOOKIE),
        Field("kind", "B", _BOOKIE),
        Field("zero", "3s", _BOOKIE),
        Field("zero, to 32 bytes", "I", _BOOKIE),
    ],
)
OFFSET_UNIT = 8
SECTOR_BYTES = 512
DENSE = 1
"""Flag of a ledger in the directory: its rows have no stripes, one term, and do not overlap."""
_ROW_ORDER = struct.Struct(">qQq8xQ24x")
_LAST_AT = 24
"""Where in a row its last id begins: after all but one of what rows are ordered by."""
_ROW_LSN = struct.Struct(">32xQ24x")
_ROW_SPAN = struct.Struct(">qQqqQ4xI4xB11x")
_BEFORE_ZERO = 13
"""Fields of a trailer before the one that is zero."""


class RowFlag:
    """Flags of a row."""

    RECOVERY: Final = 1
    DAMAGED: Final = 2


class Row(NamedTuple):
    """One run in a segment. `offset8`: where its record starts, in units of 8 bytes."""

    ledger_id: int
    origin_term: int
    first: int
    last: int
    lsn: int
    offset8: int
    body_bytes: int
    entries: int
    period: int
    flags: int
    digest_type: int
    kind: int
    stripes: int

    @property
    def offset(self) -> int:
        """Where the record starts in the file."""
        return self.offset8 * OFFSET_UNIT


def row_at(rows: Buffer, index: int) -> Row:
    """The row at an index of packed rows."""
    return Row._make(ROW.unpack_from(rows, index * ROW_BYTES))


def lsns_of(rows: Buffer) -> list[int]:
    """The LSN of each of some packed rows."""
    return [lsn for (lsn,) in _ROW_LSN.iter_unpack(rows)]


class DirectoryEntry(NamedTuple):
    """What a sealed segment holds of one ledger; its rows are `row_index .. row_index + rows - 1`."""

    ledger_id: int
    first: int
    last: int
    lac: int
    lowest_lsn: int
    highest_lsn: int
    data_bytes: int
    row_index: int
    rows: int
    checksum: int
    flags: int


class Trailer(NamedTuple):
    """The last block: where the parts of the footer are, and their checksums."""

    sequence: int
    data_end: int
    first_lsn: int
    last_lsn: int
    states_offset: int
    rows_offset: int
    directory_offset: int
    directory_end: int
    states: int
    rows: int
    ledgers: int
    states_checksum: int
    directory_checksum: int
    kept_offset: int = 0
    kept: int = 0
    kept_checksum: int = 0


class KeptLocation(NamedTuple):
    """Where a record lies that is relocated as it is: the newest of its kind and ledger in a segment."""

    ledger_id: int
    lsn: int
    offset8: int
    body_bytes: int
    kind: int


def footer_bytes(states_bytes: int, rows: int, ledgers: int) -> int:
    """How much of a segment its footer and trailer take; `states_bytes` with the 20 bytes before each body."""
    return BLOCK_BYTES + states_bytes + rows * ROW_BYTES + ledgers * DIRECTORY_BYTES


def sort_rows(rows: Buffer) -> bytes:
    """Packed rows in the order of the footer: by ledger, term, first id, LSN.

    A row begins with the first three, big-endian and not negative, so the order of the rows' bytes is right, except where
    two begin alike: there the last id stands between the first id and the LSN, and has no part in the order.
    """
    packed = bytes(rows)
    ordered = sorted([packed[at : at + ROW_BYTES] for at in range(0, len(packed), ROW_BYTES)])
    starts = [row[:_LAST_AT] for row in ordered]
    if any(map(eq, starts, starts[1:])):
        ordered.sort(key=_ROW_ORDER.unpack)
    return b"".join(ordered)


def build_directory(rows: bytes, lacs: Mapping[int, int], seed: int) -> bytes:
    """The directory over sorted rows. `lacs`: highest LAC of each ledger, -1 where missing."""
    entries: list[bytes] = []
    start = 0
    for ledger_id, of_ledger in groupby(_ROW_SPAN.iter_unpack(rows), key=itemgetter(0)):
        _, terms, firsts, lasts, lsns, sizes, periods = zip(*of_ledger, strict=True)
        end = start + len(firsts)
        dense = (
            min(periods) == max(periods) == 1 and all(map(lt, lasts, firsts[1:])) and terms[0] == terms[-1]
        )
        checksum = crc32c(memoryview(rows)[start * ROW_BYTES : end * ROW_BYTES], seed_at(seed, start))
        entries.append(
            DIRECTORY.pack(
                ledger_id,
                min(firsts),
                max(lasts),
                lacs.get(ledger_id, -1),
                min(lsns),
                max(lsns),
                sum(sizes),
                start,
                end - start,
                checksum,
                DENSE if dense else 0,
            )
        )
        start = end
    return b"".join(entries)


def read_directory(data: Buffer) -> Iterator[DirectoryEntry]:
    """The entries of a directory whose checksum was verified."""
    return map(DirectoryEntry._make, DIRECTORY.iter_unpack(data))


def encode_states(states: Iterable[tuple[int, int, bytes]]) -> bytes:
    """(ledger, LSN, body) of each, in the order of the argument."""
    parts: list[bytes] = []
    for ledger_id, lsn, body in states:
        parts += [STATE_HEAD.pack(ledger_id, lsn, len(body)), body]
    return b"".join(parts)


def read_states(data: Buffer, count: int) -> Iterator[tuple[int, int, memoryview]]:
    """(ledger, LSN, body) of states whose checksum was verified."""
    view = memoryview(data)
    position = 0
    for _ in range(count):
        ledger_id, lsn, length = STATE_HEAD.unpack_from(view, position)
        position += STATE_HEAD.size
        yield ledger_id, lsn, view[position : position + length]
        position += length


def encode_kept(locations: Iterable[KeptLocation]) -> bytes:
    """The kept records of a segment, in the order of the argument."""
    pack = KEPT_RECORD.struct.pack
    return b"".join([pack(*location, b"", 0) for location in locations])


def read_kept(data: Buffer) -> list[KeptLocation]:
    """Kept records whose checksum was verified."""
    return [KeptLocation._make(fields[:5]) for fields in KEPT_RECORD.struct.iter_unpack(data)]


def encode_trailer(trailer: Trailer, seed: int, offset: int) -> bytes:
    """The whole last block. All that matters is in its first sector, which a disk writes whole or not at all."""
    head = TRAILER.pack(TRAILER_MAGIC, *trailer[:_BEFORE_ZERO], 0, *trailer[_BEFORE_ZERO:])
    head = head.ljust(SECTOR_BYTES - 4, b"\0")
    return (head + U32.pack(crc32c(head, seed_at(seed, offset)))).ljust(BLOCK_BYTES, b"\0")


def decode_trailer(block: Buffer, sequence: int, seed: int, offset: int) -> Trailer | None:
    """The trailer, or None if this segment's is not there.

    Raises:
        FormatError: the block begins like this segment's trailer but is damaged.
    """
    if len(block) < SECTOR_BYTES or bytes(block[:8]) != TRAILER_MAGIC:
        return None
    fields = TRAILER.unpack_from(block)
    checksum = crc32c(memoryview(block)[: SECTOR_BYTES - 4], seed_at(seed, offset))
    if checksum != U32.unpack_from(block, SECTOR_BYTES - 4)[0]:
        if fields[1] == sequence:
            raise FormatError("the checksum of the trailer differs")
        return None
    return Trailer(*fields[1 : _BEFORE_ZERO + 1], *fields[_BEFORE_ZERO + 2 :])

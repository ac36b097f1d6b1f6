"""The bytes of a segment's header, groups and records: one file for writer and reader.

A file may be used for one segment after another. So every checksum begins with the segment's *seed*, made of its sequence and
nonce: bytes of an earlier segment do not verify in the file's next one.

Layout, reasons and what a crash can leave: `docs/formats/segment.md`. Nothing here opens a file.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import Final, NamedTuple

from crc32c import crc32c

from quire.core.version import FORMAT, UNRELEASED
from quire.wire.entry import Buffer
from quire.wire.layout import Field, FieldUse, Layout, NamedValues
from quire.wire.stored_record import RecordHeader, seed_at

BLOCK_BYTES = 4096
GROUP_HEADER_BYTES = 1024
RANGES_MAX = 39
LSN_GAP = 1 << 32
"""How far the LSN jumps after an unclean stop: more than any group can have assigned."""

SEGMENT_MAGIC = b"\xd1QSEG\r\n\x1a"
GROUP_MAGIC = b"\xd1QGRP\r\n\x1a"

GROUP_HEAD = struct.Struct(">8sQQQQQIIIHH")
RANGE = struct.Struct(">qqq")
U16 = struct.Struct(">H")
U32 = struct.Struct(">I")
U64 = struct.Struct(">Q")
_U64_PAIR = struct.Struct(">QQ")

_BOOKIE = FieldUse("bookie", "bookie")
SEGMENT_HEADER: Final = Layout(
    "Segment header",
    [
        Field("magic d1 51 53 45 47 0d 0a 1a", "8s", _BOOKIE),
        Field(
            "format version",
            "H",
            FieldUse("bookie", "bookie"),
        ),
        Field("flags: 1 = the file was recycled", "H", _BOOKIE),
        Field("block size, 4096", "I", _BOOKIE),
        Field("size of the segment in bytes", "Q", _BOOKIE),
        Field("sequence", "Q", _BOOKIE),
        Field("nonce", "Q", _BOOKIE),
        Field("first LSN that may be in it", "Q", _BOOKIE),
        Field("incompatible features", "Q", FieldUse("bookie", "bookie")),
        Field("compatible features", "Q", FieldUse("none yet", "none yet")),
    ],
)
SEGMENT_HEAD = SEGMENT_HEADER.struct

RECYCLED = 1
TERMS: Final = 1
"""Incompatible feature: the segment may hold entries with origin terms, and terms of streams."""
SEGMENT_FEATURES: Final = NamedValues(
    "Incompatible features of a segment",
    {
        str(TERMS): (
            "terms: it may hold entries and states of streams",
            FieldUse("bookie", "bookie"),
        )
    },
)
CRITICAL = 0x80
ALL_LEDGERS = -1


class SegmentRecordKind(IntEnum):
    """What a record is. Numbers are on disk: never renumber. Bit 7 says that a reader must know it."""

    RUN = 0x81
    LEDGER_STATE = 0x82
    DELETE = 0x83
    TRUNCATE = 0x84
    EXPLICIT_LAC = 0x85
    SEGMENT_LIST = 0x86
    RETIREMENT = 0x87
    UNNAMED_LIMBO = 0x88
    START = 0x09
    CLEAN_STOP = 0x0A
    DAMAGED = 0x8B
    RECORD_COPY = 0x0B
    TOMBSTONES = 0x8C


KINDS: Final = NamedValues(
    "Kinds of records",
    {
        "0x81": ("run", _BOOKIE),
        "0x82": ("ledger state", _BOOKIE),
        "0x83": ("delete: a ledger state; entries with a lower LSN are dead", _BOOKIE),
        "0x84": (
            "truncation; reserved, a truncation is a dead range of the ledger state",
            FieldUse("none", "none"),
        ),
        "0x85": (
            "explicit LAC; reserved, it travels in the ledger state",
            FieldUse("none", "none"),
        ),
        "0x86": ("segment list", _BOOKIE),
        "0x87": ("retirement", _BOOKIE),
        "0x88": ("unnamed limbo", _BOOKIE),
        "0x09": ("start", _BOOKIE),
        "0x0a": ("clean stop", _BOOKIE),
        "0x0b": (
            "copy of a metadata record",
            FieldUse("none yet", "none yet"),
        ),
        "0x8b": ("damaged intervals", FieldUse("bookie", "bookie")),
        "0x8c": ("shrunk tombstones", FieldUse("bookie", "bookie")),
    },
)

UNDERSTOOD: Final = frozenset(SegmentRecordKind) - {
    SegmentRecordKind.TRUNCATE,
    SegmentRecordKind.EXPLICIT_LAC,
}
"""What this program acts on. Two kinds are reserved; it refuses a directory with them."""
STATE_KINDS = frozenset({SegmentRecordKind.LEDGER_STATE, SegmentRecordKind.DELETE})


def is_kept(kind: int) -> bool:
    """Whether a record of this kind is relocated as it is, until a newer one of its kind and ledger supersedes it."""
    return not kind & CRITICAL and kind not in {SegmentRecordKind.START, SegmentRecordKind.CLEAN_STOP}


class GroupFlag:
    """What a group's header says about its contents. Plain numbers: `IntFlag` costs a microsecond an operation."""

    UNNAMED: Final = 1
    """More ledgers than the header names."""
    CONCERNS_ALL: Final = 2
    """Has a record that concerns all ledgers: an unnamed limbo."""


class RecordFlag:
    """Flags of a record."""

    RECOVERY: Final = 1
    RELOCATED: Final = 2


class FormatError(Exception):
    """Bytes that are not what should be there; the caller knows the file and adds it."""


def aligned(size: int) -> int:
    """A size rounded up to whole blocks."""
    return -(-size // BLOCK_BYTES) * BLOCK_BYTES


def seed_of(sequence: int, nonce: int) -> int:
    """What all checksums of a segment start from, apart from the offset."""
    return crc32c(_U64_PAIR.pack(sequence, nonce))


# --- segment header ---------------------------------------------------------------------------------------------


class SegmentHeader(NamedTuple):
    """Block 0 of a segment. `terms`: it may hold terms."""

    segment_bytes: int
    sequence: int
    nonce: int
    first_lsn: int
    recycled: bool
    cluster_instance: str
    bookie_id: str
    terms: bool = False


def encode_segment_header(header: SegmentHeader) -> bytes:
    """The whole block."""
    flags = RECYCLED if header.recycled else 0
    parts = [
        SEGMENT_HEAD.pack(
            SEGMENT_MAGIC,
            FORMAT,
            flags,
            BLOCK_BYTES,
            header.segment_bytes,
            header.sequence,
            header.nonce,
            header.first_lsn,
            TERMS if header.terms else 0,
            0,
        )
    ]
    for text in (header.cluster_instance, header.bookie_id):
        encoded = text.encode()
        parts += [U16.pack(len(encoded)), encoded]
    block = b"".join(parts).ljust(BLOCK_BYTES - 4, b"\0")
    if len(block) > BLOCK_BYTES - 4:
        raise FormatError("the cluster instance and the bookie id are too long for a segment header")
    return block + U32.pack(crc32c(block))


def decode_segment_header(block: Buffer) -> SegmentHeader:
    """Read block 0.

    Raises:
        FormatError: it is damaged, or written by a version that this one must not read.
    """
    if len(block) < BLOCK_BYTES:
        raise FormatError(f"the segment header is truncated after {len(block)} bytes")
    if bytes(block[:8]) != SEGMENT_MAGIC:
        raise FormatError("the file does not begin with a segment header")
    if crc32c(memoryview(block)[: BLOCK_BYTES - 4]) != U32.unpack_from(block, BLOCK_BYTES - 4)[0]:
        raise FormatError("the checksum of the segment header differs")
    _, version, flags, block_bytes, size, sequence, nonce, first_lsn, incompatible, _ = (
        SEGMENT_HEAD.unpack_from(block)
    )
    unknown = incompatible & ~TERMS or flags & ~RECYCLED
    if version < FORMAT:
        raise FormatError(f"format {version} was written by {UNRELEASED}")
    if version > FORMAT or unknown or block_bytes != BLOCK_BYTES:
        raise FormatError(
            f"written by a newer version (format {version}, features {incompatible:#x}, flags {flags:#x}); "
            "start that version, or upgrade this one"
        )
    texts: list[str] = []
    position = SEGMENT_HEAD.size
    for _ in range(2):
        (length,) = U16.unpack_from(block, position)
        if position + 2 + length + 2 > BLOCK_BYTES - 4:
            raise FormatError(
                f"a name of {length} bytes at offset {position} does not fit the segment header"
            )
        texts.append(bytes(block[position + 2 : position + 2 + length]).decode())
        position += 2 + length
    return SegmentHeader(
        size,
        sequence,
        nonce,
        first_lsn,
        bool(flags & RECYCLED),
        texts[0],
        texts[1],
        bool(incompatible & TERMS),
    )


# --- groups -----------------------------------------------------------------------------------------------------


_BLANK_HEADER: Final = memoryview(bytes(GROUP_HEADER_BYTES))


class GroupHeader(NamedTuple):
    """What was written and synced together. `ranges`: (ledger, first, last), first -1 where it has no runs."""

    offset: int
    first_lsn: int
    last_lsn: int
    before_lsn: int
    before_checksum: int
    data_bytes: int
    records: int
    flags: int
    ranges: Sequence[tuple[int, int, int]]
    checksum: int = 0

    @property
    def end(self) -> int:
        """Where the next group begins."""
        return self.offset + aligned(GROUP_HEADER_BYTES + self.data_bytes)

    @property
    def names_all(self) -> bool:
        """Every ledger that the group says anything about is in `ranges`."""
        return not self.flags


def write_group_header(
    view: memoryview,
    offset: int,
    lsns: tuple[int, int],
    before: tuple[int, int],
    data_bytes: int,
    records: int,
    flags: int,
    ranges: Iterable[tuple[int, int, int]],
    sequence: int,
    seed: int,
) -> int:
    """Lay a group's header out at the start of its buffer: 1024 bytes, the checksum last.

    Args:
        view: the group's buffer.
        offset: where the group will lie in its segment.
        lsns: of its first and its last record.
        before: last LSN and checksum of the group before it.
        data_bytes: of its records.
        records: how many.
        flags: see `GroupFlag`.
        ranges: (ledger, first, last) of what it names, at most `RANGES_MAX`.
        sequence: the segment's.
        seed: the segment's.

    Returns:
        The checksum.
    """
    at = GROUP_HEAD.size
    for item in ranges:
        RANGE.pack_into(view, at, *item)
        at += RANGE.size
    GROUP_HEAD.pack_into(
        view, 0, GROUP_MAGIC, sequence, offset, *lsns, *before, data_bytes, records, flags,
        (at - GROUP_HEAD.size) // RANGE.size,
    )  # fmt: skip
    end = GROUP_HEADER_BYTES - U32.size
    view[at:end] = _BLANK_HEADER[: end - at]
    checksum = crc32c(view[:end], seed ^ (offset & 0xFFFFFFFF))
    U32.pack_into(view, end, checksum)
    return checksum


def decode_group_header(data: Buffer, offset: int, sequence: int, seed: int) -> GroupHeader | None:
    """The group header at an offset, or None if none of this segment is there."""
    if len(data) < GROUP_HEADER_BYTES or bytes(data[:8]) != GROUP_MAGIC:
        return None
    fields = GROUP_HEAD.unpack_from(data)
    (checksum,) = U32.unpack_from(data, GROUP_HEADER_BYTES - 4)
    if fields[1] != sequence or fields[2] != offset:
        return None
    if checksum != crc32c(memoryview(data)[: GROUP_HEADER_BYTES - 4], seed_at(seed, offset)):
        return None
    ranges = [
        RANGE.unpack_from(data, GROUP_HEAD.size + RANGE.size * i) for i in range(min(fields[10], RANGES_MAX))
    ]
    return GroupHeader(
        offset,
        first_lsn=fields[3],
        last_lsn=fields[4],
        before_lsn=fields[5],
        before_checksum=fields[6],
        data_bytes=fields[7],
        records=fields[8],
        flags=fields[9],
        ranges=ranges,
        checksum=checksum,
    )


# --- records ----------------------------------------------------------------------------------------------------


def check_understood(header: RecordHeader) -> None:
    """A record that verifies but means something this version does not know.

    Raises:
        FormatError: saying which part is unknown.
    """
    if header.kind not in UNDERSTOOD:
        if header.kind in set(SegmentRecordKind):
            name = SegmentRecordKind(header.kind).name.lower().replace("_", " ")
            raise FormatError(
                f"a record of kind {header.kind:#x} ({name}), which this version does not act on; start the version that "
                "wrote it"
            )
        if header.kind & CRITICAL:
            raise FormatError(f"a record of kind {header.kind:#x} from a newer version; start that version")
        return
    termed = header.origin_term and header.kind != SegmentRecordKind.RUN
    if header.codec or header.key_id or header.tenant or termed or header.zero:
        raise FormatError(
            "a record uses compression, encryption, tenants or terms of a newer version; start that one"
        )
    if header.flags & ~(RecordFlag.RECOVERY | RecordFlag.RELOCATED):
        raise FormatError(f"a record has flags {header.flags:#x} of a newer version; start that version")

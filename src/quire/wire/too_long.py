"""What the first bytes of a frame say that is too long to be taken: which add it is, so that it can be refused alone.

Source: `docs/formats/bookkeeper-protocol.md`, "How long a frame may be".
"""

from __future__ import annotations

from typing import Final, NamedTuple

from google.protobuf.message import DecodeError

from quire.wire import v2, v3
from quire.wire.proto import bookkeeper_protocol_pb2 as pb

HEAD_BYTES: Final = 160
"""So many bytes tell: an add's head in V3, as Java or we write it, and one in V2 up to its entry's ids are shorter."""
_HEADER: Final = 1
_ADD_REQUEST: Final = 101
_LEDGER_ID: Final = 1
_ENTRY_ID: Final = 2
_VARINT: Final = 0
_SIZED: Final = 2
_ID_LIMIT: Final = 1 << 63


class LongAdd(NamedTuple):
    """An add whose entry is longer than a frame may be.

    Attributes:
        txn_id: of V3; 0 in V2.
        version: the packet's, in V2; `v3.VERSION` in V3.
        is_v3: which of the two it is.
    """

    ledger_id: int
    entry_id: int
    txn_id: int
    version: int
    is_v3: bool


def long_add(head: memoryview) -> LongAdd | None:
    """The add that a frame begins with, its length field included; None for every other beginning."""
    if len(head) < HEAD_BYTES:
        return None
    return _v3_add(head) if head[4] == v3.FIRST_BYTE else _v2_add(head)


def _v2_add(head: memoryview) -> LongAdd | None:
    version, opcode, _ = v2.split_packet_header(v2.HEAD.unpack_from(head)[1])
    if opcode != v2.Op.ADD or version > v2.VERSION:
        return None
    ledger_id, entry_id = v2.IDS.unpack_from(head, v2.ADD_ENTRY_AT)
    return LongAdd(ledger_id, entry_id, 0, version, is_v3=False) if min(ledger_id, entry_id) >= 0 else None


def _v3_add(head: memoryview) -> LongAdd | None:
    """Protobuf by hand: what is not here whole cannot be parsed, and the ids come first."""
    try:
        field, size, at = _field(head, 4)
        if field != (_HEADER, _SIZED):
            return None
        header = pb.BKPacketHeader.FromString(bytes(head[at : at + size]))
        field, _, at = _field(head, at + size)
        if (
            field != (_ADD_REQUEST, _SIZED)
            or header.operation != pb.ADD_ENTRY
            or header.version != v3.VERSION
        ):
            return None
        first, ledger_id, at = _field(head, at)
        second, entry_id, _ = _field(head, at)
    except (DecodeError, IndexError):
        return None
    known = first == (_LEDGER_ID, _VARINT) and second == (_ENTRY_ID, _VARINT)
    if not known or max(ledger_id, entry_id) >= _ID_LIMIT:
        return None
    return LongAdd(ledger_id, entry_id, header.txnId, v3.VERSION, is_v3=True)


def _field(head: memoryview, at: int) -> tuple[tuple[int, int], int, int]:
    """((field, wire type), its number or size, where what follows begins)."""
    tag, at = _varint(head, at)
    value, at = _varint(head, at)
    return (tag >> 3, tag & 7), value, at


def _varint(head: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 70:
        byte = head[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
    raise IndexError

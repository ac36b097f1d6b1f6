"""BookKeeper's V3 protocol: each frame is one protobuf message, a Request or a Response. Pure functions.

Layouts: `docs/formats/bookkeeper-protocol.md`. Adds and their responses, the frames that come by the thousand, are put
together and taken apart here as well, by the same layout; whatever looks otherwise goes through protobuf.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from google.protobuf.message import DecodeError, Message

from quire.core.errors import MalformedFrameError
from quire.wire.bookkeeper import KEY_BYTES
from quire.wire.entry import Buffer
from quire.wire.proto.bookkeeper_protocol_pb2 import (
    READ_ENTRY,
    VERSION_THREE,
    AddRequest,
    BKPacketHeader,
    OperationType,
    ReadRequest,
    Request,
    Response,
)

VERSION: Final = VERSION_THREE
HIGH_PRIORITY: Final = 100
"""What Java sends with requests of a recovery; everything above 0 counts as high."""
FENCE_LEDGER: Final = ReadRequest.FENCE_LEDGER
ENTRY_PIGGYBACK: Final = ReadRequest.ENTRY_PIGGYBACK
RECOVERY_ADD: Final = AddRequest.RECOVERY_ADD
DEFERRED_SYNC: Final = 1
TOTAL_DISK_CAPACITY: Final = 1
FREE_DISK_SPACE: Final = 2
FIRST_BYTE: Final = 0x0A
"""How the body of each V3 frame begins in practice: the header is the first field. V2 has its version there, 0 to 2."""

_LENGTH = struct.Struct(">I")
_BODIES: Final = {
    "READ_ENTRY": "readRequest",
    "ADD_ENTRY": "addRequest",
    "AUTH": "authRequest",
    "WRITE_LAC": "writeLacRequest",
    "READ_LAC": "readLacRequest",
    "GET_BOOKIE_INFO": "getBookieInfoRequest",
    "START_TLS": "startTLSRequest",
    "FORCE_LEDGER": "forceLedgerRequest",
    "GET_LIST_OF_ENTRIES_OF_LEDGER": "getListOfEntriesOfLedgerRequest",
}
REQUEST_BODY: Final = {OperationType.Value(name): field for name, field in _BODIES.items()}
"""The field of `Request` that an operation's body is in."""
RESPONSE_BODY: Final = {
    operation: field.replace("Request", "Response") for operation, field in REQUEST_BODY.items()
}
"""The field of `Response` that an operation's body is in."""


class Add(NamedTuple):
    """An ADD_ENTRY taken off the wire; `body` is the entry."""

    txn_id: int
    priority: int
    ledger_id: int
    entry_id: int
    key: bytes
    body: Buffer
    recovery: bool


# --- any message ------------------------------------------------------------------------------------------------


def frame_of(message: Message) -> bytes:
    """A message with its length in front."""
    body: bytes = message.SerializeToString()
    return _LENGTH.pack(len(body)) + body


def request(operation: int, txn_id: int, *, priority: int = 0) -> Request:
    """A request with its header; the caller fills in the body that the operation has."""
    message = Request()
    message.header.version = VERSION
    message.header.operation = operation  # type: ignore[assignment] # a number of the enum
    message.header.txnId = txn_id
    if priority:
        message.header.priority = priority
    return message


def response(header: BKPacketHeader, status: int) -> Response:
    """A response to the request with this header, without a body: what an error before any work looks like."""
    message = Response()
    message.header.version = VERSION
    message.header.operation = header.operation
    message.header.txnId = header.txnId
    message.status = status  # type: ignore[assignment] # a number that `bookkeeper.v3_code` gave
    return message


def decode_request(frame: Buffer) -> Request:
    """A request from a whole frame, length field included.

    Raises:
        MalformedFrameError: it does not parse, or lacks a field that is required.
    """
    message = Request()
    _parse(message, frame, "request")
    return message


def decode_response(frame: Buffer) -> Response:
    """A response from a whole frame, length field included.

    Raises:
        MalformedFrameError: it does not parse, or lacks a field that is required.
    """
    message = Response()
    _parse(message, frame, "answer")
    return message


def is_plain_read(request: Request) -> bool:
    """Whether it asks for an entry, fences nothing and waits for nothing."""
    if request.header.operation != READ_ENTRY or request.header.version != VERSION:
        return False
    read = request.readRequest
    return not (has_flag(read, FENCE_LEDGER) or read.HasField("previousLAC"))


def has_flag(body: AddRequest | ReadRequest, flag: int) -> bool:
    """Whether an add or a read carries a flag.

    An optional enum that is absent reads as the first of its values: `RECOVERY_ADD`, `FENCE_LEDGER`. So ask here.
    """
    return body.HasField("flag") and body.flag == flag


def status_of(message: Response) -> int:
    """A response's status: the outer one unless that is EOK, then the one inside, as Java's client takes them."""
    if message.status:
        return int(message.status)
    name = RESPONSE_BODY.get(message.header.operation)
    if name is None or name in {"authResponse", "startTLSResponse"} or not message.HasField(name):
        return 0
    return int(getattr(message, name).status)


def _parse(message: Message, frame: Buffer, what: str) -> None:
    (size,) = _LENGTH.unpack_from(frame)
    if size != len(frame) - 4:
        msg = f"a V3 {what} says it has {size} bytes after its length and has {len(frame) - 4}"
        raise MalformedFrameError(msg)
    try:
        message.ParseFromString(bytes(memoryview(frame)[4:]))
    except DecodeError as error:
        msg = f"a V3 {what} of {size} bytes does not parse: {error}"
        raise MalformedFrameError(msg) from error
    if not message.IsInitialized():
        msg = f"a V3 {what} of {size} bytes lacks a required field"
        raise MalformedFrameError(msg)


# --- adds, by hand ----------------------------------------------------------------------------------------------
#
# 0a n (08 03 10 02 18 txn [20 priority]) aa06 n (08 ledger 10 entry 1a 14 key 22 n body [28 write flags] [a006 01])


def _varint(value: int) -> bytes:
    """A number as protobuf writes it; a negative one takes ten bytes."""
    if value < 0:
        value += 1 << 64
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


_ONE_BYTE: Final = [bytes([value]) for value in range(0x80)]


_MORE_FOLLOWS: Final = [bytes([value | 0x80]) for value in range(0x80)]


def number(value: int) -> bytes:
    """A number as protobuf writes it."""
    return _ONE_BYTE[value] if 0 <= value < 0x80 else _varint(value)


def numbers(values: Sequence[int]) -> list[bytes]:
    """Numbers as protobuf writes them; consecutive ones, a `range`, share the making of all bytes but the first."""
    if not isinstance(values, range) or values.step != 1 or values.start < 0:
        return list(map(number, values))
    made: list[bytes] = []
    at, end = values.start, values.stop
    while at < end:
        high, low = at >> 7, at & 0x7F
        stop = min(0x80, low + end - at)
        if high:
            rest = number(high)
            made += [first + rest for first in _MORE_FOLLOWS[low:stop]]
        else:
            made += _ONE_BYTE[low:stop]
        at += stop - low
    return made


def encode_add(
    txn_id: int,
    ledger_id: int,
    entry_id: int,
    key: bytes,
    body: Buffer,
    *,
    recovery: bool = False,
    priority: int = 0,
    write_flags: int = 0,
) -> list[Buffer]:
    """The buffers of an ADD_ENTRY; the entry stays by reference."""
    header = b"\x08\x03\x10\x02\x18" + number(txn_id)
    if priority:
        header += b"\x20" + number(priority)
    before = b"".join(
        (b"\x08", number(ledger_id), b"\x10", number(entry_id), b"\x1a", number(len(key)), key,
         b"\x22", number(len(body)))
    )  # fmt: skip
    after = b"\x28" + number(write_flags) if write_flags else b""
    if recovery:
        after += b"\xa0\x06\x01"
    inner = number(len(before) + len(body) + len(after))
    head = b"".join((b"\x0a", number(len(header)), header, b"\xaa\x06", inner, before))
    size = len(head) + len(body) + len(after)
    parts: list[Buffer] = [_LENGTH.pack(size) + head, body]
    if after:
        parts.append(after)
    return parts


def around_add(
    txn_size: int,
    entry_id_size: int,
    body_size: int,
    ledger_id: int,
    key: bytes,
    *,
    recovery: bool = False,
    priority: int = 0,
) -> tuple[bytes, bytes, bytes, bytes]:
    """What stands around the three parts of an ADD_ENTRY that differ from entry to entry.

    Args:
        txn_size, entry_id_size: the bytes of both numbers.
        body_size: the bytes of the entry.

    Returns:
        What comes before the transaction id, between it and the entry id, after that, and after the entry.
    """
    urgent = b"\x20" + number(priority) if priority else b""
    ledger = b"\x08" + number(ledger_id) + b"\x10"
    behind = b"\x1a" + number(len(key)) + key + b"\x22" + number(body_size)
    end = b"\xa0\x06\x01" if recovery else b""
    inner = number(len(ledger) + entry_id_size + len(behind) + body_size + len(end))
    header = number(5 + txn_size + len(urgent))
    between = urgent + b"\xaa\x06" + inner + ledger
    size = 1 + len(header) + 5 + txn_size + len(between) + entry_id_size + len(behind) + body_size + len(end)
    before = _LENGTH.pack(size) + b"\x0a" + header + b"\x08\x03\x10\x02\x18"
    return before, between, behind, end


def encode_add_answers(
    status: int, ledger_id: int, txns: Sequence[bytes], entry_ids: Sequence[bytes]
) -> bytes:
    """Answers to adds of one ledger, one after another.

    Args:
        status: of all of them.
        ledger_id: the ledger.
        txns: the transaction ids, as `number` writes them.
        entry_ids: the entry ids, likewise.
    """
    code = number(status)
    inner = b"\x08" + code + b"\x10" + number(ledger_id) + b"\x18"

    def around(txn_size: int, entry_id_size: int) -> tuple[bytes, bytes]:
        between = b"\x10" + code + b"\xaa\x06" + _ONE_BYTE[len(inner) + entry_id_size] + inner
        size = 7 + txn_size + len(between) + entry_id_size
        return _LENGTH.pack(size) + b"\x0a" + _ONE_BYTE[5 + txn_size] + b"\x08\x03\x10\x02\x18", between

    count = len(txns)
    out = [b""] * (4 * count)
    if len(set(map(len, txns))) == 1 == len(set(map(len, entry_ids))):
        before, between = around(len(txns[0]), len(entry_ids[0]))
        out[0::4], out[2::4] = [before] * count, [between] * count
    else:
        shapes = list(zip(map(len, txns), map(len, entry_ids), strict=True))
        fixed = {shape: around(*shape) for shape in dict.fromkeys(shapes)}
        out[0::4] = [fixed[shape][0] for shape in shapes]
        out[2::4] = [fixed[shape][1] for shape in shapes]
    out[1::4], out[3::4] = txns, entry_ids
    return b"".join(out)


class AddPlaces(NamedTuple):
    """Where the parts of an ADD_ENTRY are in a buffer, and what is the same in each add of a ledger."""

    txn_at: int
    txn_end: int
    txn_id: int
    priority: int
    ledger_id: int
    entry_at: int
    entry_end: int
    entry_id: int
    key: bytes
    body_at: int
    body_end: int
    recovery: bool


def take_add(data: Buffer, at: int) -> Add | None:
    """An ADD_ENTRY that begins (with its length field) at an offset of a buffer, if it has the layout that Java writes.

    Returns:
        None for every other request, and for an add that looks otherwise: those are protobuf's.
    """
    found = places_of_add(data, at)
    if found is None:
        return None
    body = data[found.body_at : found.body_end]
    return Add(found.txn_id, found.priority, found.ledger_id, found.entry_id, found.key, body, found.recovery)


def places_of_add(data: Buffer, at: int) -> AddPlaces | None:
    """The parts of an ADD_ENTRY that begins (with its length field) at an offset of a buffer; None as for `take_add`."""
    if data[at + 4] != FIRST_BYTE or bytes(data[at + 6 : at + 11]) != b"\x08\x03\x10\x02\x18":
        return None
    end = at + 4 + _LENGTH.unpack_from(data, at)[0]
    try:
        header_end = at + 6 + data[at + 5]
        txn_at = at + 11
        txn_id, txn_end = _take(data, txn_at)
        at = txn_end
        priority = 0
        if at != header_end:
            if data[at] != 0x20:
                return None
            priority, at = _take(data, at + 1)
            if at != header_end:
                return None
        if data[at] != 0xAA or data[at + 1] != 0x06:
            return None
        size, at = _take(data, at + 2)
        if at + size != end or data[at] != 0x08:
            return None
        ledger_id, at = _take(data, at + 1)
        if data[at] != 0x10:
            return None
        entry_at = at + 1
        entry_id, at = _take(data, entry_at)
        if data[at] != 0x1A or data[at + 1] != KEY_BYTES or data[at + 22] != 0x22:
            return None
        entry_end = at
        key = bytes(data[at + 2 : at + 22])
        size, at = _take(data, at + 23)
        body_end = at + size
        if body_end > end:
            return None
        recovery = False
        if body_end != end:
            recovery = bytes(data[body_end:end]) == b"\xa0\x06\x01"
            if not recovery:
                return None
    except IndexError:
        return None
    if ledger_id >> 63 or entry_id >> 63 or txn_id >> 64:
        return None
    return AddPlaces(
        txn_at, txn_end, txn_id, priority, ledger_id, entry_at, entry_end, entry_id, key, at, body_end, recovery
    )  # fmt: skip


def _take(data: Buffer, at: int) -> tuple[int, int]:
    """(number, where it ends)."""
    value = data[at]
    if value < 0x80:
        return value, at + 1
    value &= 0x7F
    for shift in range(7, 70, 7):
        at += 1
        byte = data[at]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at + 1
    raise IndexError


def take_add_answer(data: Buffer, at: int) -> tuple[int, int] | None:
    """(transaction id, status) of a response to an add that begins at an offset of a buffer and has Java's layout."""
    if data[at + 4] != FIRST_BYTE or bytes(data[at + 6 : at + 11]) != b"\x08\x03\x10\x02\x18":
        return None
    try:
        header_end = at + 6 + data[at + 5]
        txn_id, at = _take(data, at + 11)
        if at != header_end or data[at] != 0x10:
            return None
        status, at = _take(data, at + 1)
        if bytes(data[at : at + 2]) != b"\xaa\x06" or data[at + 3] != 0x08:
            return None
        inner, _ = _take(data, at + 4)
    except IndexError:
        return None
    return txn_id, status or inner


def ledger_of_add_answer(data: Buffer, at: int) -> int:
    """The ledger of a response that says that an add is done; -1 if it is not clearly that."""
    try:
        at += 6 + data[at + 5]
        if data[at : at + 2] == b"\x10\x00" and data[at + 5 : at + 8] == b"\x08\x00\x10":
            return _take(data, at + 8)[0]
    except IndexError:
        pass
    return -1


# --- requests by name -------------------------------------------------------------------------------------------


def encode_read(
    txn_id: int,
    ledger_id: int,
    entry_id: int,
    *,
    key: bytes = b"",
    flag: int | None = None,
    previous_lac: int | None = None,
    timeout_ms: int | None = None,
    priority: int = 0,
) -> bytes:
    """A READ_ENTRY: plain, fencing (flag and key), or a long poll (previous LAC)."""
    message = request(READ_ENTRY, txn_id, priority=priority)
    read = message.readRequest
    read.ledgerId, read.entryId = ledger_id, entry_id
    if key:
        read.masterKey = key
    if previous_lac is not None:
        read.previousLAC = previous_lac
    if timeout_ms is not None:
        read.timeOut = timeout_ms
    if flag is not None:
        read.flag = flag  # type: ignore[assignment] # a number of the enum
    return frame_of(message)


def encode_plain_reads(txn_id: int, ledger_id: int, entry_ids: Sequence[int]) -> bytes:
    """Plain READ_ENTRY requests, one for each entry, with transaction ids from `txn_id` on."""
    out: list[bytes] = []
    ledger = b"\x08" + number(ledger_id) + b"\x10"
    txns = numbers(range(txn_id, txn_id + len(entry_ids)))
    for txn, entry in zip(txns, numbers(entry_ids), strict=True):
        out += (
            _LENGTH.pack(2 + 5 + len(txn) + 3 + len(ledger) + len(entry)),
            b"\x0a",
            _ONE_BYTE[5 + len(txn)],
            b"\x08\x03\x10\x01\x18",
            txn,
            b"\xa2\x06",
            _ONE_BYTE[len(ledger) + len(entry)],
            ledger,
            entry,
        )
    return b"".join(out)

"""BookKeeper's V2 protocol: packed frames of four operations, both directions. Pure functions.

Layouts: `docs/formats/bookkeeper-protocol.md`. Every function that reads takes a whole frame, length field included.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import IntEnum
from typing import Final, NamedTuple, TypeAlias

from google.protobuf.message import DecodeError

from quire.core.errors import MalformedFrameError
from quire.wire.bookkeeper import KEY_BYTES
from quire.wire.entry import Buffer
from quire.wire.proto.bookkeeper_protocol_pb2 import AuthMessage

VERSION: Final = 2


class Op(IntEnum):
    """What a packet is about. 4, 5 and 6 have numbers in the Java product, but no encoding."""

    ADD = 1
    READ = 2
    AUTH = 3
    BATCH_READ = 7


class V2Flag(IntEnum):
    """What a request adds to its operation."""

    NONE = 0
    DO_FENCING = 1
    RECOVERY_ADD = 2
    HIGH_PRIORITY = 4


HEAD = struct.Struct(">II")
IDS = struct.Struct(">qq")
_READ = struct.Struct(">IIqq")
_BATCH = struct.Struct(">IIqqqiq")
ANSWER = struct.Struct(">IIIqq")
_BATCH_ANSWER = struct.Struct(">IIIqqq")
_U32 = struct.Struct(">I")
ADD_ENTRY_AT: Final = 8 + KEY_BYTES
"""Where the entry of an ADD begins in its frame."""


class AddRequest(NamedTuple):
    """Store an entry; ledger and entry id are the entry's own."""

    version: int
    flags: int
    key: bytes
    ledger_id: int
    entry_id: int
    entry: Buffer


class ReadRequest(NamedTuple):
    """Serve an entry, or with entry -1 the last one. `key` is empty unless the request fences."""

    version: int
    flags: int
    ledger_id: int
    entry_id: int
    key: bytes


class BatchReadRequest(NamedTuple):
    """Serve entries from `first` on without a gap: at most `count_max` (0 or less: any number)."""

    version: int
    flags: int
    ledger_id: int
    first: int
    request_id: int
    count_max: int
    bytes_max: int
    key: bytes


class AuthPacket(NamedTuple):
    """A step of an authentication, in either direction."""

    version: int
    flags: int
    plugin: str
    payload: bytes


class AddAnswer(NamedTuple):
    """The response to an ADD; it is matched by ledger and entry."""

    version: int
    code: int
    ledger_id: int
    entry_id: int


class ReadAnswer(NamedTuple):
    """The response to a READ; the ids repeat the request's. `entry` is empty on errors."""

    version: int
    code: int
    ledger_id: int
    entry_id: int
    entry: Buffer


class BatchReadAnswer(NamedTuple):
    """The response to a BATCH_READ; it is matched by the request id."""

    version: int
    code: int
    ledger_id: int
    first: int
    request_id: int
    entries: tuple[Buffer, ...]


Request: TypeAlias = AddRequest | ReadRequest | BatchReadRequest | AuthPacket
Response: TypeAlias = AddAnswer | ReadAnswer | BatchReadAnswer | AuthPacket


def packet_header(version: int, opcode: int, flags: int = 0) -> int:
    """The first four bytes after the length. Version 0 has nothing but the opcode."""
    return opcode if version == 0 else version << 24 | opcode << 16 | flags


def split_packet_header(header: int) -> tuple[int, int, int]:
    """(version, opcode, flags)."""
    version = header >> 24
    return (0, header, 0) if version == 0 else (version, header >> 16 & 0xFF, header & 0xFFFF)


# --- requests ---------------------------------------------------------------------------------------------------


def encode_add(key: bytes, entry: Buffer, flags: int = 0, version: int = VERSION) -> list[Buffer]:
    """The buffers of an ADD; the entry stays by reference."""
    header = packet_header(version, Op.ADD, flags)
    return [HEAD.pack(4 + KEY_BYTES + len(entry), header) + check_key(key), entry]


def encode_read(
    ledger_id: int, entry_id: int, flags: int = 0, key: bytes = b"", version: int = VERSION
) -> bytes:
    """A READ; a key is sent with a fence."""
    header = packet_header(version, Op.READ, flags)
    return _READ.pack(_READ.size - 4 + len(key), header, ledger_id, entry_id) + (key and check_key(key))


def encode_batch_read(
    ledger_id: int,
    first: int,
    request_id: int,
    count_max: int,
    bytes_max: int,
    flags: int = 0,
    key: bytes = b"",
    version: int = VERSION,
) -> bytes:
    """A BATCH_READ; a key is sent with a fence."""
    head = _BATCH.pack(
        _BATCH.size - 4 + len(key),
        packet_header(version, Op.BATCH_READ, flags),
        ledger_id,
        first,
        request_id,
        count_max,
        bytes_max,
    )
    return head + (key and check_key(key))


def encode_auth(plugin: str, payload: bytes, flags: int = 0, version: int = VERSION) -> bytes:
    """A step of an authentication, in either direction."""
    body: bytes = AuthMessage(authPluginName=plugin, payload=payload).SerializeToString()
    return HEAD.pack(4 + len(body), packet_header(version, Op.AUTH, flags)) + body


def decode_request(frame: Buffer) -> Request:
    """A request from a whole frame.

    Raises:
        MalformedFrameError: an operation that V2 has not, or a frame too short for its operation.
    """
    version, opcode, flags = split_packet_header(_header(frame))
    size = len(frame)
    if opcode == Op.ADD:
        _need(size, ADD_ENTRY_AT + IDS.size, "an ADD")
        ledger_id, entry_id = IDS.unpack_from(frame, ADD_ENTRY_AT)
        key = bytes(frame[8:ADD_ENTRY_AT])
        return AddRequest(version, flags, key, ledger_id, entry_id, memoryview(frame)[ADD_ENTRY_AT:])
    if opcode == Op.READ:
        _need(size, _READ.size, "a READ")
        _, _, ledger_id, entry_id = _READ.unpack_from(frame)
        return ReadRequest(version, flags, ledger_id, entry_id, _fence_key(frame, _READ.size, version, flags))
    if opcode == Op.BATCH_READ:
        _need(size, _BATCH.size, "a BATCH_READ")
        _, _, ledger_id, first, request_id, count, bytes_max = _BATCH.unpack_from(frame)
        key = _fence_key(frame, _BATCH.size, version, flags)
        return BatchReadRequest(version, flags, ledger_id, first, request_id, count, bytes_max, key)
    return _auth(frame, version, opcode, flags)


def _fence_key(frame: Buffer, at: int, version: int, flags: int) -> bytes:
    """The key after a read: it is there when the read fences, since version 2 of the packets."""
    if not flags & V2Flag.DO_FENCING or version < 2:
        return b""
    _need(len(frame), at + KEY_BYTES, "a fencing read")
    return bytes(frame[at : at + KEY_BYTES])


# --- responses --------------------------------------------------------------------------------------------------


def encode_add_answer(code: int, ledger_id: int, entry_id: int, version: int = VERSION) -> bytes:
    """The response to an ADD."""
    return ANSWER.pack(ANSWER.size - 4, packet_header(version, Op.ADD), code, ledger_id, entry_id)


def encode_add_answers(code: int, ledger_id: int, entry_ids: Sequence[int], version: int = VERSION) -> bytes:
    """The responses to many ADDs of one ledger, one after another."""
    head = struct.pack(">IIIq", ANSWER.size - 4, packet_header(version, Op.ADD), code, ledger_id)
    count = len(entry_ids)
    ids = struct.pack(f">{count}q", *entry_ids)
    return head + head.join(struct.unpack("8s" * count, ids)) if count else b""


def encode_read_answer(
    code: int, ledger_id: int, entry_id: int, entry: Buffer = b"", version: int = VERSION
) -> list[Buffer]:
    """The buffers of a response to a READ; the entry stays by reference."""
    size = ANSWER.size - 4 + len(entry)
    head = ANSWER.pack(size, packet_header(version, Op.READ), code, ledger_id, entry_id)
    return [head, entry] if len(entry) else [head]


def encode_batch_read_answer(
    code: int,
    ledger_id: int,
    first: int,
    request_id: int,
    entries: Sequence[Buffer] = (),
    version: int = VERSION,
) -> list[Buffer]:
    """The buffers of a response to a BATCH_READ; entries stay by reference."""
    size = _BATCH_ANSWER.size - 4 + sum(map(len, entries)) + 4 * len(entries)
    header = packet_header(version, Op.BATCH_READ)
    parts: list[Buffer] = [_BATCH_ANSWER.pack(size, header, code, ledger_id, first, request_id)]
    for entry in entries:
        parts += (_U32.pack(len(entry)), entry)
    return parts


def decode_answer(frame: Buffer) -> Response:
    """A response from a whole frame.

    Raises:
        MalformedFrameError: an operation that V2 has not, or a frame that does not fit its operation.
    """
    version, opcode, flags = split_packet_header(_header(frame))
    size, view = len(frame), memoryview(frame)
    if opcode in (Op.ADD, Op.READ):
        _need(size, ANSWER.size, "an answer")
        _, _, code, ledger_id, entry_id = ANSWER.unpack_from(frame)
        if opcode == Op.ADD:
            return AddAnswer(version, code, ledger_id, entry_id)
        return ReadAnswer(version, code, ledger_id, entry_id, view[ANSWER.size :])
    if opcode == Op.BATCH_READ:
        _need(size, _BATCH_ANSWER.size, "an answer to a BATCH_READ")
        _, _, code, ledger_id, first, request_id = _BATCH_ANSWER.unpack_from(frame)
        entries: list[Buffer] = []
        at = _BATCH_ANSWER.size
        while at < size:
            _need(size, at + 4, "an answer to a BATCH_READ")
            start = at + 4
            at = start + _U32.unpack_from(frame, at)[0]
            _need(size, at, "an answer to a BATCH_READ")
            entries.append(view[start:at])
        return BatchReadAnswer(version, code, ledger_id, first, request_id, tuple(entries))
    return _auth(frame, version, opcode, flags)


# --- pieces -----------------------------------------------------------------------------------------------------


def check_key(key: bytes) -> bytes:
    """The key, if it has its 20 bytes.

    Raises:
        MalformedFrameError: it has not; no frame can be made with it.
    """
    if len(key) != KEY_BYTES:
        msg = f"a key of {len(key)} bytes; V2 has room for {KEY_BYTES} exactly"
        raise MalformedFrameError(msg)
    return key


def _header(frame: Buffer) -> int:
    _need(len(frame), HEAD.size, "a V2 frame")
    size, header = HEAD.unpack_from(frame)
    if size != len(frame) - 4:
        msg = f"a V2 frame says it has {size} bytes after its length and has {len(frame) - 4}"
        raise MalformedFrameError(msg)
    return int(header)


def _auth(frame: Buffer, version: int, opcode: int, flags: int) -> AuthPacket:
    if opcode != Op.AUTH:
        msg = f"V2 has no operation {opcode} (packet version {version})"
        raise MalformedFrameError(msg)
    message = AuthMessage()
    try:
        message.ParseFromString(bytes(memoryview(frame)[HEAD.size :]))
    except DecodeError as error:
        msg = f"the message of a V2 AUTH does not parse: {error}"
        raise MalformedFrameError(msg) from error
    if not message.IsInitialized():
        msg = "the message of a V2 AUTH lacks its plugin or its payload"
        raise MalformedFrameError(msg)
    plugin: object = message.authPluginName
    if not isinstance(plugin, str):  # protobuf hands over what is no UTF-8 as bytes
        msg = "the plugin of a V2 AUTH is not UTF-8"
        raise MalformedFrameError(msg)
    return AuthPacket(version, flags, plugin, message.payload)


def _need(size: int, wanted: int, what: str) -> None:
    if size < wanted:
        msg = f"{what} of {size} bytes is shorter than the {wanted} that it has at least"
        raise MalformedFrameError(msg)

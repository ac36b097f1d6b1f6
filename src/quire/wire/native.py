"""The frames of the native protocol, both directions: one file that both sides read and write by.

Layouts: `docs/formats/native-protocol.md`. Functions only; limits are checked before anything is allocated.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from crc32c import crc32c

from quire.core.answers import Answer
from quire.core.errors import MalformedFrameError
from quire.core.ids import ENSEMBLE_MAX, ID_MAX, NO_ENTRY
from quire.core.ledger_metadata import DigestType
from quire.wire.entry import Buffer
from quire.wire.run import RunPlace, RunView

MAGIC = b"\xd1QUIRE\r\n"
VERSION = 1
HELLO_BYTES_MAX = 64 * 1024
FRAME_BYTES_MAX = 8 * 1024 * 1024
"""Longest frame that either side takes, after the length field."""

REQUEST = struct.Struct(">IBBHIIqQ20sQqqI12sI")
REQUEST_BYTES = REQUEST.size
_REQUEST_HEAD = struct.Struct(">IBBHIIqQ20sQqqI12s")
ANSWER = struct.Struct(">IBBHIqQqQIII")
ANSWER_BYTES = ANSWER.size
_ANSWER_HEAD = struct.Struct(">IBBHIqQqQII")
_U16 = struct.Struct(">H")
_U32 = struct.Struct(">I")
_NO_KEY = b"\0" * 20
_RESERVED = b"\0" * 12
_ANSWER_BIT = 128
_DIGEST_TYPE_MAX = max(DigestType)
_NO_BODY = memoryview(b"")
FOLLOWED = 1
"""Flag of an answer to an ADD: a reader waits here for the ledger's LAC, so its writer does well to tell it."""
PLACED = 2
"""Flag of an answer to a READ: places stand before the runs."""


class Kind(IntEnum):
    """What a request asks for. The numbers are on the wire."""

    ADD = 1
    READ = 2
    READ_LAC = 3
    WRITE_LAC = 4
    LONG_POLL = 5
    LIST_ENTRIES = 6
    INFO = 7
    CLEAR_LIMBO = 8
    AUTH = 9


class Flag(IntEnum):
    """What a request adds to its kind. A bit that is not known here is refused.

    Plain numbers once combined: `IntFlag` costs a microsecond an operation.
    """

    NONE = 0
    RECOVERY = 1
    FENCE = 2
    HIGH_PRIORITY = 4
    TRUNCATE = 8
    NO_OP = 16
    DEFERRED_SYNC = 32
    CRITICAL_EXTENSION = 64
    PLACES = 128
    """A READ may be answered with places of runs in files, by a bookie that said `BESIDE`."""


KNOWN_FLAGS = Flag.RECOVERY | Flag.FENCE | Flag.HIGH_PRIORITY | Flag.PLACES
"""What this version acts on; the others are reserved and refused."""
_UNKNOWN_FLAGS = ~KNOWN_FLAGS


# --- hello ------------------------------------------------------------------------------------------------------

START_TLS = 1
"""Feature: in a hello, "TLS first, then my hello"; in its answer, "yes, begin". Nothing else of that hello counts."""
AUTHENTICATE = 2
"""Feature of an answer: nothing is served before AUTH requests have shown who the client is."""
BESIDE = 4
"""Feature of an answer: both run on one machine, so a READ may have the flag `PLACES`."""


@dataclass(frozen=True, slots=True)
class Hello:
    """The client's first words: who it speaks, and which bookie of which cluster it means."""

    cluster_instance: str
    bookie_id: str
    version_min: int = VERSION
    version_max: int = VERSION
    features: int = 0
    auth_scheme: str = ""
    auth: bytes = b""


@dataclass(frozen=True, slots=True)
class HelloAnswer:
    """The bookie's: the version both will speak, or 0 and the reason."""

    version: int
    answer: Answer
    bookie_id: str
    cluster_instance: str
    message: str = ""
    features: int = 0


def encode_hello(hello: Hello) -> bytes:
    """The bytes that open a connection."""
    return _framed(
        struct.pack(">HHQ", hello.version_min, hello.version_max, hello.features)
        + _text(hello.cluster_instance)
        + _text(hello.bookie_id)
        + _text(hello.auth_scheme)
        + _U32.pack(len(hello.auth))
        + hello.auth
    )


def decode_hello(body: Buffer) -> Hello:
    """A hello from the bytes between its length and its checksum.

    Raises:
        MalformedFrameError: it is cut or not text.
    """
    fields = _Fields(body, "hello")
    low, high, features = fields.struct(">HHQ")
    cluster, bookie, scheme = fields.text(), fields.text(), fields.text()
    auth = fields.take(fields.struct(">I")[0])
    return Hello(cluster, bookie, low, high, features, scheme, bytes(auth))


def encode_hello_answer(answer: HelloAnswer) -> bytes:
    """The bytes that answer a hello."""
    return _framed(
        struct.pack(">HQH", answer.version, answer.features, answer.answer)
        + _text(answer.bookie_id)
        + _text(answer.cluster_instance)
        + _text(answer.message)
    )


def decode_hello_answer(body: Buffer) -> HelloAnswer:
    """A hello's answer from the bytes between its length and its checksum.

    Raises:
        MalformedFrameError: it is cut, not text, or carries a code that is not known.
    """
    fields = _Fields(body, "answer to a hello")
    version, features, code = fields.struct(">HQH")
    return HelloAnswer(version, _answer(code), fields.text(), fields.text(), fields.text(), features)


def split_hello(buffer: Buffer) -> tuple[memoryview, int] | None:
    """The hello (or its answer) at the start of a buffer.

    Returns:
        (the bytes between length and checksum, bytes used), or None when more bytes are needed.

    Raises:
        MalformedFrameError: another magic, too long, or a wrong checksum.
    """
    view = memoryview(buffer)
    head = len(MAGIC) + 4
    if bytes(view[: len(MAGIC)]) != MAGIC[: len(view)]:
        msg = f"not the native protocol: the connection starts with {bytes(view[:8]).hex()}"
        raise MalformedFrameError(msg)
    if len(view) < head:
        return None
    (size,) = _U32.unpack_from(view, len(MAGIC))
    if size > HELLO_BYTES_MAX:
        msg = f"a hello of {size} bytes is longer than {HELLO_BYTES_MAX}"
        raise MalformedFrameError(msg)
    if len(view) < head + size + 4:
        return None
    body = view[head : head + size]
    if _U32.unpack_from(view, head + size)[0] != crc32c(body):
        msg = "the checksum of a hello differs"
        raise MalformedFrameError(msg)
    return body, head + size + 4


# --- requests ---------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Request:
    """One request as the bookie sees it.

    `number` is the client's; `key` is empty when none was sent; `body_crc` is what the header promises for the body.
    """

    kind: Kind
    digest_type: int
    flags: int
    number: int
    deadline_ms: int
    ledger_id: int
    token: int
    key: bytes
    term: int
    lac: int
    lafr: int
    body_crc: int
    body: memoryview

    def is_possible(self) -> bool:
        """Whether its ids are such as there can be."""
        return (
            self.ledger_id >= -1
            and self.lac >= NO_ENTRY
            and self.lafr >= NO_ENTRY
            and self.term <= ID_MAX
            and self.digest_type <= _DIGEST_TYPE_MAX
        )

    def is_intact(self) -> bool:
        """Whether the body is what was sent."""
        return bool(crc32c(self.body) == self.body_crc)


def encode_request(
    kind: Kind,
    number: int,
    body_bytes: int,
    body_crc: int,
    *,
    ledger_id: int = -1,
    digest_type: int = 0,
    flags: int = 0,
    deadline_ms: int = 0,
    token: int = 0,
    key: bytes = _NO_KEY,
    term: int = 0,
    lac: int = NO_ENTRY,
    lafr: int = NO_ENTRY,
) -> bytes:
    """The header of a request whose body of `body_bytes` with checksum `body_crc` follows."""
    head = _REQUEST_HEAD.pack(
        REQUEST_BYTES - 4 + body_bytes,
        kind,
        digest_type,
        flags,
        number,
        deadline_ms,
        ledger_id,
        token,
        key,
        term,
        lac,
        lafr,
        body_crc,
        _RESERVED,
    )
    return head + _U32.pack(crc32c(head))


def decode_request(frame: memoryview) -> Request:
    """A request from a whole frame, length field included.

    Raises:
        MalformedFrameError: naming what does not fit. A damaged *body* is not an error here, nor are ids that cannot
            be: see `Request.is_intact` and `is_possible`.
    """
    if len(frame) < REQUEST_BYTES:
        msg = f"a request of {len(frame)} bytes is shorter than its header of {REQUEST_BYTES}"
        raise MalformedFrameError(msg)
    (
        _,
        kind,
        digest_type,
        flags,
        number,
        deadline,
        ledger_id,
        token,
        key,
        term,
        lac,
        lafr,
        body_crc,
        reserved,
        head_crc,
    ) = REQUEST.unpack_from(frame)
    if head_crc != crc32c(frame[: _REQUEST_HEAD.size]):
        msg = "the checksum of a request's header differs"
        raise MalformedFrameError(msg)
    if kind not in _KINDS:
        msg = f"a request of kind {kind} is not known here"
        raise MalformedFrameError(msg)
    if flags & _UNKNOWN_FLAGS or reserved != _RESERVED:
        msg = f"a request carries flags {flags:#x} or extensions that this version does not know"
        raise MalformedFrameError(msg)
    return Request(
        _KINDS[kind],
        digest_type,
        flags,
        number,
        deadline,
        ledger_id,
        token,
        b"" if key == _NO_KEY else key,
        term,
        lac,
        lafr,
        body_crc,
        frame[REQUEST_BYTES:],
    )


def encode_read(first: int, last: int, bytes_max: int) -> bytes:
    """The body of a READ."""
    return _READ.pack(first, last, bytes_max)


def decode_read(body: Buffer) -> tuple[int, int, int]:
    """(first, last, bytes at most) of a READ.

    Raises:
        MalformedFrameError: another size, or ids that are no range.
    """
    if len(body) != _READ.size:
        msg = f"the body of a READ has {len(body)} bytes, not {_READ.size}"
        raise MalformedFrameError(msg)
    first, last, bytes_max = _READ.unpack(body)
    if not 0 <= first <= last:
        msg = f"a READ of entries {first}..{last}"
        raise MalformedFrameError(msg)
    return first, last, bytes_max


def encode_long_poll(previous_lac: int, first: int, last: int, bytes_max: int, wait_ms: int) -> bytes:
    """The body of a LONG_POLL."""
    return _LONG_POLL.pack(previous_lac, first, last, bytes_max, wait_ms)


def decode_long_poll(body: Buffer) -> tuple[int, int, int, int, int]:
    """(previous LAC, first, last, bytes at most, wait in ms) of a LONG_POLL.

    Raises:
        MalformedFrameError: another size, or ids that are no range.
    """
    if len(body) != _LONG_POLL.size:
        msg = f"the body of a LONG_POLL has {len(body)} bytes, not {_LONG_POLL.size}"
        raise MalformedFrameError(msg)
    previous, first, last, bytes_max, wait_ms = _LONG_POLL.unpack(body)
    if previous < NO_ENTRY or not 0 <= first <= last:
        msg = f"a LONG_POLL above {previous} for entries {first}..{last}"
        raise MalformedFrameError(msg)
    return previous, first, last, bytes_max, wait_ms


# --- answers ----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class AnswerFrame:
    """One answer as the client sees it."""

    kind: int
    flags: int
    answer: Answer
    number: int
    ledger_id: int
    term: int
    lac: int
    durable_lsn: int
    body: memoryview


def encode_answer(
    kind: int,
    answer: int,
    number: int,
    *,
    flags: int = 0,
    ledger_id: int = -1,
    term: int = 0,
    lac: int = NO_ENTRY,
    durable_lsn: int = 0,
    body: Sequence[Buffer] = (),
    runs: Sequence[Buffer] = (),
) -> list[Buffer]:
    """The buffers of an answer, to be written one after another.

    Args:
        body: what the answer's own checksum covers.
        runs: what follows in the body with checksums of its own.
    """
    crc, covered = 0, 0
    for part in body:
        crc, covered = crc32c(part, crc), covered + len(part)
    head = _ANSWER_HEAD.pack(
        ANSWER_BYTES - 4 + covered + sum(map(len, runs)),
        kind | _ANSWER_BIT,
        flags,
        answer,
        number,
        ledger_id,
        term,
        lac,
        durable_lsn,
        crc,
        covered,
    )
    return [head + _U32.pack(crc32c(head)), *body, *runs]


def decode_answer(frame: memoryview) -> AnswerFrame:
    """An answer from a whole frame, length field included.

    Raises:
        MalformedFrameError: naming what does not fit; the connection is not to be trusted any more.
    """
    if len(frame) < ANSWER_BYTES:
        msg = f"an answer of {len(frame)} bytes is shorter than its header of {ANSWER_BYTES}"
        raise MalformedFrameError(msg)
    _, kind, flags, code, number, ledger_id, term, lac, lsn, crc, covered, head_crc = ANSWER.unpack_from(
        frame
    )
    if head_crc != crc32c(frame[: _ANSWER_HEAD.size]) or not kind & _ANSWER_BIT:
        msg = "the checksum or the kind of an answer's header differs"
        raise MalformedFrameError(msg)
    body = frame[ANSWER_BYTES:] if len(frame) > ANSWER_BYTES else _NO_BODY
    if covered > len(body) or crc != crc32c(body[:covered]):
        msg = f"the checksum of an answer's body for ledger {ledger_id} differs"
        raise MalformedFrameError(msg, ledger_id=ledger_id)
    return AnswerFrame(kind & ~_ANSWER_BIT, flags, _answer(code), number, ledger_id, term, lac, lsn, body)


@dataclass(slots=True)
class RangeAnswer:
    """What a bookie said about a range of entries.

    Every id asked for, up to `vouched_through`, that is in no run and in no unknown interval is "no such entry".
    """

    runs: list[RunView]
    vouched_through: int
    unknown: list[tuple[int, int]]
    places: list[RunPlace] = field(default_factory=list)


def encode_told(vouched_through: int, unknown: Sequence[tuple[int, int]]) -> bytes:
    """The first part of the body of an answer to READ or LONG_POLL."""
    intervals = b"".join([_INTERVAL.pack(*interval) for interval in unknown])
    return struct.pack(">qI", vouched_through, len(unknown)) + intervals


def encode_places(places: Sequence[RunPlace]) -> bytes:
    """The next part, in an answer with the flag `PLACED`."""
    parts = [_U32.pack(len(places))]
    for place in places:
        parts += (_PLACE.pack(place.offset, place.size, place.seed), _text(place.path))
    return b"".join(parts)


def encode_runs(runs: Sequence[Buffer]) -> list[Buffer]:
    """The rest of it; run bodies stay by reference."""
    parts: list[Buffer] = []
    for run in runs:
        parts += (_U32.pack(len(run)), run)
    return parts


def decode_entries(body: memoryview, *, placed: bool = False) -> RangeAnswer:
    """The body of an answer to READ or LONG_POLL; `placed`: its flag says that there are places.

    Raises:
        MalformedFrameError: it is cut or a run in it does not fit.
    """
    fields = _Fields(body, "list of entries")
    vouched, unknown_count = fields.struct(">qI")
    if unknown_count * _INTERVAL.size > fields.left():
        msg = f"{unknown_count} unknown intervals do not fit into {fields.left()} bytes"
        raise MalformedFrameError(msg)
    unknown = [_INTERVAL.unpack(fields.take(_INTERVAL.size)) for _ in range(unknown_count)]
    places = []
    if placed:
        for _ in range(fields.struct(">I")[0]):
            offset, size, seed = _PLACE.unpack(fields.take(_PLACE.size))
            if size > FRAME_BYTES_MAX:
                msg = f"a place of {size} bytes is longer than {FRAME_BYTES_MAX}"
                raise MalformedFrameError(msg)
            places.append(RunPlace(fields.text(), offset, size, seed))
    runs = []
    while fields.left():
        runs.append(RunView.parse(fields.take(fields.struct(">I")[0])))
    return RangeAnswer(runs, vouched, unknown, places)


def encode_lac_body(explicit_lac: Buffer, evidence: Buffer) -> list[Buffer]:
    """The body of an answer to READ_LAC."""
    return [_U32.pack(len(explicit_lac)), explicit_lac, _U32.pack(len(evidence)), evidence]


def decode_lac_body(body: memoryview) -> tuple[bytes, bytes]:
    """(explicit LAC body, LAC evidence) of an answer to READ_LAC; each may be empty.

    Raises:
        MalformedFrameError: it is cut.
    """
    fields = _Fields(body, "answer to READ_LAC")
    explicit = bytes(fields.take(fields.struct(">I")[0]))
    return explicit, bytes(fields.take(fields.struct(">I")[0]))


def encode_intervals(intervals: Sequence[tuple[int, int, int, int]]) -> bytes:
    """The body of an answer to LIST_ENTRIES: (first, last, period, residues) each."""
    return _U32.pack(len(intervals)) + b"".join(_HELD.pack(*interval) for interval in intervals)


def decode_intervals(body: memoryview) -> list[tuple[int, int, int, int]]:
    """The intervals of an answer to LIST_ENTRIES.

    Raises:
        MalformedFrameError: it is cut, or names what is no interval of ids.
    """
    fields = _Fields(body, "list of intervals")
    (count,) = fields.struct(">I")
    if count * _HELD.size != fields.left():
        msg = f"{count} intervals do not fit into {fields.left()} bytes"
        raise MalformedFrameError(msg)
    intervals = list(_HELD.iter_unpack(fields.take(fields.left())))
    for first, last, period, residues in intervals:
        if not (0 <= first <= last and 1 <= period <= ENSEMBLE_MAX and 0 < residues < 1 << period):
            msg = f"a list of intervals has {first}..{last}, period {period}, residues {residues:#x}"
            raise MalformedFrameError(msg)
    return intervals


def encode_info(info: dict[str, Any]) -> bytes:
    """The body of an answer to INFO."""
    return json.dumps(info, separators=(",", ":"), sort_keys=True).encode()


def decode_info(body: Buffer) -> dict[str, Any]:
    """The object of an answer to INFO.

    Raises:
        MalformedFrameError: it is no JSON object.
    """
    try:
        info = json.loads(bytes(body))
    except ValueError as error:
        msg = "the body of an answer to INFO is not JSON"
        raise MalformedFrameError(msg) from error
    if not isinstance(info, dict):
        msg = "the body of an answer to INFO is not an object"
        raise MalformedFrameError(msg)
    return info


# --- pieces -----------------------------------------------------------------------------------------------------

_READ = struct.Struct(">qqI")
_LONG_POLL = struct.Struct(">qqqII")
_INTERVAL = struct.Struct(">qq")
_PLACE = struct.Struct(">QII")
_HELD = struct.Struct(">qqBQ")
_KINDS = {int(kind): kind for kind in Kind}
_ANSWERS = {int(answer): answer for answer in Answer}


def _answer(code: int) -> Answer:
    try:
        return _ANSWERS[code]
    except KeyError:
        msg = f"answer code {code} is not known here"
        raise MalformedFrameError(msg) from None


def _framed(body: bytes) -> bytes:
    return MAGIC + _U32.pack(len(body)) + body + _U32.pack(crc32c(body))


def _text(value: str) -> bytes:
    encoded = value.encode()
    return _U16.pack(len(encoded)) + encoded


class _Fields:
    """Takes fields off a buffer, and says which message it was when one is missing."""

    __slots__ = ("_at", "_view", "_what")

    def __init__(self, buffer: Buffer, what: str) -> None:
        self._view = memoryview(buffer)
        self._at = 0
        self._what = what

    def left(self) -> int:
        return len(self._view) - self._at

    def take(self, size: int) -> memoryview:
        if size > self.left():
            msg = f"a {self._what} ends {size - self.left()} bytes too early"
            raise MalformedFrameError(msg)
        self._at += size
        return self._view[self._at - size : self._at]

    def struct(self, layout: str) -> tuple[Any, ...]:
        return struct.unpack(layout, self.take(struct.calcsize(layout)))

    def text(self) -> str:
        (size,) = self.struct(">H")
        try:
            return str(self.take(size), "utf-8")
        except UnicodeDecodeError as error:
            msg = f"a text in a {self._what} is not UTF-8"
            raise MalformedFrameError(msg) from error

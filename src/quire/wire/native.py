"""The frames of the native protocol, both directions: kinds, flags and headers, which both sides read and write by.

Layouts: `docs/formats/native-protocol.md`. Functions only; limits are checked before anything is allocated. The hello
is in `native_hello.py`, what follows a header in `native_bodies.py`; what both read with, parts of no fixed size, is here.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from crc32c import crc32c

from quire.core.answers import Answer
from quire.core.errors import MalformedFrameError
from quire.core.ids import ID_MAX, NO_ENTRY
from quire.core.ledger.metadata import DigestType
from quire.wire.entry import Buffer
from quire.wire.layout import Field, FieldUse, Layout, NamedValues

_U16 = struct.Struct(">H")
ANSWERS = {int(answer): answer for answer in Answer}


def encode_text(value: str) -> bytes:
    """A text: u16 length and UTF-8."""
    encoded = value.encode()
    return _U16.pack(len(encoded)) + encoded


def answer_of(code: int) -> Answer:
    """The response with this number.

    Raises:
        MalformedFrameError: there is none.
    """
    try:
        return ANSWERS[code]
    except KeyError:
        msg = f"answer code {code} is not known here"
        raise MalformedFrameError(msg) from None


class BodyParts:
    """Takes the parts of a message off its bytes, one after another.

    Args:
        buffer: the message.
        what: what it is, for the error when something is missing.
    """

    __slots__ = ("_at", "_view", "_what")

    def __init__(self, buffer: Buffer, what: str) -> None:
        self._view = memoryview(buffer)
        self._at = 0
        self._what = what

    def left(self) -> int:
        """Bytes that have not been taken."""
        return len(self._view) - self._at

    def take(self, size: int, what: str) -> memoryview:
        """The next bytes; `what` they are, for the error.

        Raises:
            MalformedFrameError: the message ends before them.
        """
        if size > self.left():
            msg = f"a {self._what} ends {size - self.left()} bytes too early, in its {what}"
            raise MalformedFrameError(msg)
        self._at += size
        return self._view[self._at - size : self._at]

    def fixed(self, layout: struct.Struct, what: str) -> tuple[Any, ...]:
        """The next fields.

        Raises:
            MalformedFrameError: the message ends within them.
        """
        return layout.unpack(self.take(layout.size, what))

    def text(self, what: str) -> str:
        """The next text.

        Raises:
            MalformedFrameError: the message ends within it, or it is not UTF-8.
        """
        (size,) = self.fixed(_U16, what)
        try:
            return str(self.take(size, what), "utf-8")
        except UnicodeDecodeError as error:
            msg = f"the {what} in a {self._what} is not UTF-8"
            raise MalformedFrameError(msg) from error

    def end(self) -> None:
        """Check that nothing follows.

        Raises:
            MalformedFrameError: something does.
        """
        if self.left():
            msg = f"a {self._what} has {self.left()} bytes beyond its end"
            raise MalformedFrameError(msg)


FRAME_BYTES_MAX = 8 * 1024 * 1024
"""Longest frame that either side takes, after the length field."""

_ASKED = FieldUse(writer="client", reader="bookie")
_ANSWERED = FieldUse(writer="bookie", reader="client")
REQUEST_FIELDS = Layout(
    "Request",
    [
        Field("length of the frame after this field", "I", _ASKED),
        Field("kind", "B", _ASKED),
        Field("digest type", "B", _ASKED),
        Field("flags", "H", _ASKED),
        Field("request number", "I", _ASKED),
        Field("deadline", "I", FieldUse("none yet", "none yet")),
        Field("ledger id", "q", _ASKED),
        Field("ledger token", "Q", _ASKED),
        Field("key", "20s", _ASKED),
        Field("sender's term", "Q", FieldUse("client of a stream: above 0", "bookie")),
        Field("LAC", "q", _ASKED),
        Field("LAFR", "q", FieldUse("writer of a ledger that guarantees its write quorum", "bookie")),
        Field("checksum of the body", "I", _ASKED),
        Field("zero", "12s", _ASKED),
        Field("checksum of the header", "I", _ASKED),
    ],
)
ANSWER_FIELDS = Layout(
    "Answer",
    [
        Field("length of the frame after this field", "I", _ANSWERED),
        Field("kind + 128", "B", _ANSWERED),
        Field("flags", "B", _ANSWERED),
        Field("answer code", "H", _ANSWERED),
        Field("request number", "I", _ANSWERED),
        Field("ledger id", "q", _ANSWERED),
        Field("bookie's term", "Q", _ANSWERED),
        Field("LAC", "q", _ANSWERED),
        Field("durable LSN", "Q", _ANSWERED),
        Field("checksum of the first bytes of the body", "I", _ANSWERED),
        Field("bytes that it covers", "I", _ANSWERED),
        Field("checksum of the header", "I", _ANSWERED),
    ],
)


def _without_last(layout: Layout) -> struct.Struct:
    """All fields but the last: what the header's checksum covers."""
    return struct.Struct(">" + "".join(field.code for field in layout.fields[:-1]))


REQUEST = REQUEST_FIELDS.struct
REQUEST_BYTES = REQUEST.size
_REQUEST_HEAD = _without_last(REQUEST_FIELDS)
ANSWER = ANSWER_FIELDS.struct
ANSWER_BYTES = ANSWER.size
_ANSWER_HEAD = _without_last(ANSWER_FIELDS)
_U32 = struct.Struct(">I")
NO_KEY = b"\0" * 20
"""Where a request has none."""
_RESERVED = b"\0" * 12
_ANSWER_BIT = 128
_DIGEST_TYPE_MAX = max(DigestType)
_NO_BODY = memoryview(b"")
FOLLOWED = 1
"""Flag of a response to an ADD: a reader waits here for the ledger's LAC, so its writer should send it."""
LOCATED = 2
"""Flag of a response to a READ: locations stand before the runs."""
ANSWER_FLAGS = NamedValues(
    "Flags of an answer",
    {
        str(FOLLOWED): ("followed", _ANSWERED),
        str(LOCATED): ("located", _ANSWERED),
    },
)


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
    WRITE_LACS = 10
    """The LACs of many ledgers, to a bookie that announces `LACS`."""
    TRUNCATE = 11
    """Drop a stream's entries in a range of ids, to a bookie that announces `TRUNCATE`; every other refuses it."""
    ADD_BUNDLE = 12
    """Runs of many ledgers, to a bookie that announces `BUNDLES`; see `bundles.py`."""


KINDS = NamedValues("Kinds of requests", {str(int(kind)): (kind.name, _ASKED) for kind in Kind})


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
    LOCATIONS = 128
    """A READ may be answered with locations of runs in files, by a bookie that said `COLOCATED`."""
    LOW_PRIORITY = 256
    """An ADD, of a recoverer too, that stops before the space that is kept for fences and recovery."""


KNOWN_FLAGS = Flag.RECOVERY | Flag.FENCE | Flag.HIGH_PRIORITY | Flag.LOCATIONS | Flag.LOW_PRIORITY
"""What this version acts on; the others are reserved and refused."""
_UNKNOWN_FLAGS = ~KNOWN_FLAGS
FLAGS = NamedValues(
    "Flags of a request",
    {
        str(int(flag)): (
            flag.name.lower().replace("_", " "),
            _ASKED if flag & KNOWN_FLAGS else FieldUse("none yet", "bookie: refuses it"),
        )
        for flag in Flag
        if flag
    },
)


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
        """Whether the body is what was sent. Of a bundle `open_bundle` checks it, and each of its rows a run."""
        return self.kind is Kind.ADD_BUNDLE or bool(crc32c(self.body) == self.body_crc)


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
    key: bytes = NO_KEY,
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
        b"" if key == NO_KEY else key,
        term,
        lac,
        lafr,
        body_crc,
        frame[REQUEST_BYTES:],
    )


def receive_request(frame: memoryview, *, terms: bool = False) -> tuple[Request, Answer]:
    """A request, and whether it may be served: OK, DAMAGED_IN_TRANSIT, or BAD_REQUEST for ids or a term that cannot be.

    `terms`: the client announced that its requests may have some.

    Raises:
        MalformedFrameError: see `decode_request`.
    """
    request = decode_request(frame)
    if not request.is_intact():
        return request, Answer.DAMAGED_IN_TRANSIT
    return request, Answer.OK if request.is_possible() and (terms or not request.term) else Answer.BAD_REQUEST


# --- responses --------------------------------------------------------------------------------------------------


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
    """The buffers of a response, to be written one after another.

    Args:
        body: what the response's own checksum covers.
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


def encode_added(stored: Iterable[tuple[int, int, int, int]], durable_lsn: int) -> bytes:
    """Responses to ADDs that are stored, one after another: of each its number, its ledger, its term and the flags."""
    pack, word = _ANSWER_HEAD.pack, _U32.pack
    parts: list[bytes] = []
    for number, ledger_id, term, flags in stored:
        head = pack(
            ANSWER_BYTES - 4, ADDED, flags, Answer.OK, number, ledger_id, term, NO_ENTRY, durable_lsn, 0, 0
        )
        parts += (head, word(crc32c(head)))
    return b"".join(parts)


def added(data: memoryview, at: int) -> list[int]:
    """The numbers of the requests that plain responses say are stored: those that begin at `at`, up to any other frame.

    A plain response is intact, OK, without a flag and without a body, and to an ADD.
    """
    numbers: list[int] = []
    unpack_from, covered = ANSWER.unpack_from, _ANSWER_HEAD.size
    for start in range(at, len(data) - ANSWER_BYTES + 1, ANSWER_BYTES):
        size, kind, flags, code, number, _, _, _, _, crc, length, head_crc = unpack_from(data, start)
        if (
            size != ANSWER_BYTES - 4
            or kind != ADDED
            or flags
            or code
            or crc
            or length
            or head_crc != crc32c(data[start : start + covered])
        ):
            break
        numbers.append(number)
    return numbers


def decode_answer(frame: memoryview) -> AnswerFrame:
    """A response from a whole frame, length field included.

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
    answer = ANSWERS[code] if code in ANSWERS else answer_of(code)
    return AnswerFrame(kind & ~_ANSWER_BIT, flags, answer, number, ledger_id, term, lac, lsn, body)


ADDED = Kind.ADD | _ANSWER_BIT
"""The kind of responses to ADDs, on the wire."""
NUMBER_MAX = 0xFFFFFFFF
"""The highest number of a request."""
_KINDS = {int(kind): kind for kind in Kind}

"""The native codec of a client: requests become frames, and frames the responses to them; a bookie opens plain ADDs here.

The features that the hello settled say what a bookie can be asked.

Source: `docs/formats/native-protocol.md`.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from crc32c import crc32c

from quire.core.answers import Answer
from quire.core.errors import MalformedFrameError
from quire.core.ids import ID_MAX, NO_ENTRY
from quire.core.ledger.metadata import DigestType
from quire.wire import native, native_bodies, native_info
from quire.wire.bundles import encode_bundle
from quire.wire.entry import HEADER_BYTES, IDENTITY, TERM_HEADER_BYTES, TERM_IDENTITY, Buffer
from quire.wire.native import NO_KEY, REQUEST, REQUEST_BYTES, AnswerFrame, Flag, Kind
from quire.wire.native_bodies import ANY_TERM, BY_ID, PAGE_INTERVALS, LongPollBody, ReadBody, fits_term
from quire.wire.native_hello import LACS, LOW_PRIORITY, TERMS, TRUNCATE
from quire.wire.plain_adds import PlainAdd
from quire.wire.requests import (
    AddRun,
    AnyRequest,
    AskInfo,
    Authenticate,
    ClearLimbo,
    ListEntries,
    LongPoll,
    ReadLac,
    ReadRange,
    Truncate,
    WriteLac,
    WriteLacs,
)
from quire.wire.responses import (
    AddReply,
    AuthReply,
    EntryListReply,
    InfoReply,
    LacReply,
    LacsReply,
    ReadReply,
)
from quire.wire.run import (
    RUN_HEADER,
    RUN_HEADER_BYTES,
    RUN_VERSION,
    SCHEME_TERMS,
    RunView,
)

log = logging.getLogger(__name__)

_ADD: Final = int(Kind.ADD)
_RECOVERY: Final = int(Flag.RECOVERY)
_DIGEST_TYPE_MAX: Final = max(DigestType)
_HEADER_END: Final = REQUEST_BYTES - 4
_RUN_HEADER_END: Final = RUN_HEADER_BYTES - 4
_ENTRY_AT: Final = RUN_HEADER_BYTES + 4
_BODY_BYTES_MIN: Final = _ENTRY_AT + HEADER_BYTES
_RUN_OF_ONE: Final = struct.Struct(RUN_HEADER.format + "Iqq")
_RESERVED: Final = bytes(12)
_SHORT_RUN: Final = 64
"""Runs below this many entries are checked with one unpack of their table; `RunView`'s array pays for longer ones."""
_TABLES: Final = [struct.Struct(f">{count}I") for count in range(_SHORT_RUN)]

JOINED_BYTES_MAX: Final = 2048
"""A run up to this long is copied after its header, once for all bookies."""
ADDED: Final = AddReply(Answer.OK)
"""Nearly every response to an add."""
_FOLLOWED: Final = AddReply(Answer.OK, followed=True)


class _FrameParts(NamedTuple):
    """What of a frame depends on the kind of request."""

    kind: Kind
    body: Buffer = b""
    flags: int = 0
    lac: int = NO_ENTRY
    term: int = 0


def encode_add(request: AddRun, number: int, features: int = 0) -> list[Buffer]:
    """The buffers of an ADD, the same for every bookie; the run stays by reference. One of low priority needs the hello."""
    ledger, body, body_crc, lac, recovery, low_priority, term, lafr = request
    header = native.encode_request(
        Kind.ADD,
        number,
        len(body),
        body_crc,
        ledger_id=ledger.ledger_id,
        digest_type=ledger.digest.digest_type,
        flags=Flag.RECOVERY * recovery | Flag.LOW_PRIORITY * (low_priority and bool(features & LOW_PRIORITY)),
        token=ledger.token,
        key=ledger.key,
        term=term,
        lac=lac,
        lafr=lafr,
    )
    return [header, body]


class AddEncoder:
    """Makes ADDs for all connections of a client: a run mostly goes to several bookies, in the same bytes.

    Attributes:
        number: of the client's next request; 0 is none's. They are the whole client's, so that they fit every connection.
    """

    __slots__ = ("_last", "number")

    def __init__(self) -> None:
        self._last: tuple[AddRun, int, Sequence[Buffer]] | None = None
        self.number = 1

    def add(self, run: AddRun, *, after: int) -> tuple[int, Sequence[Buffer]]:
        """The number and the buffers of an ADD; the number is above `after`, unless the numbers begin again."""
        last = self._last
        if last is not None and last[0] is run and last[1] > after:
            return last[1], last[2]
        number = self._take_number()
        frame: Sequence[Buffer] = encode_add(run, number)
        if len(run.body) <= JOINED_BYTES_MAX:
            frame = (b"".join(frame),)
        self._last = run, number, frame
        return number, frame

    def bundle(self, rows: Sequence[bytes], bodies: Sequence[Buffer]) -> tuple[int, bytes]:
        """The number and the frame of a bundle, which is new on every connection, and not kept here."""
        number = self._take_number()
        return number, encode_bundle(number, rows, bodies)

    def _take_number(self) -> int:
        number = self.number
        self.number = number + 1 & native.NUMBER_MAX or 1
        return number


def encode(request: AnyRequest, number: int, features: int) -> list[Buffer] | None:
    """The buffers of any request; None if a bookie with these features cannot do it."""
    if isinstance(request, AddRun):
        return encode_add(request, number, features)
    parts = _frame_parts(request, features)
    if parts is None:
        return None
    kind, body, flags, lac, term = parts
    if term and not features & TERMS:
        return None
    ledger = request.ledger
    if ledger is None:
        return [native.encode_request(kind, number, len(body), crc32c(body), flags=flags, lac=lac), body]
    header = native.encode_request(
        kind,
        number,
        len(body),
        crc32c(body),
        ledger_id=ledger.ledger_id,
        digest_type=ledger.digest.digest_type,
        flags=flags,
        token=ledger.token,
        key=ledger.key,
        term=term,
        lac=lac,
    )
    return [header, body]


def _frame_parts(request: Any, features: int) -> _FrameParts | None:
    match request:
        case ReadRange(_, first, last, bytes_max, origin, fence, recovery, locations, low_priority, term):
            flags = Flag.FENCE * fence | Flag.RECOVERY * recovery | Flag.LOCATIONS * locations
            flags |= Flag.LOW_PRIORITY * (low_priority and bool(features & LOW_PRIORITY))
            body = native_bodies.encode_body(ReadBody(first, last, bytes_max, origin))
            return _FrameParts(Kind.READ, body, flags, term=term)
        case LongPoll():
            return _FrameParts(Kind.LONG_POLL, native_bodies.encode_body(LongPollBody(*request[1:])))
        case ReadLac(_, fence, term):
            return _FrameParts(Kind.READ_LAC, flags=(Flag.FENCE | Flag.RECOVERY) * fence, term=term)
        case WriteLac(_, lac, body, term):
            return _FrameParts(Kind.WRITE_LAC, body, lac=lac, term=term)
        case WriteLacs(items):
            return _FrameParts(Kind.WRITE_LACS, native_bodies.join_lacs(items)) if features & LACS else None
        case ListEntries(_, first):
            body = native_bodies.encode_body(native_bodies.ListBody(first, PAGE_INTERVALS))
            return _FrameParts(Kind.LIST_ENTRIES, body)
        case AskInfo(_, question):
            return _FrameParts(Kind.INFO, native_info.encode_info_question(question))
        case ClearLimbo(_, lsn):
            return _FrameParts(Kind.CLEAR_LIMBO, native_bodies.encode_body(native_bodies.ClearLimboBody(lsn)))
        case Truncate(_, first, last, kept, term):
            body = native_bodies.encode_body(native_bodies.TruncateBody(first, last, kept))
            return _FrameParts(Kind.TRUNCATE, body, term=term) if features & TRUNCATE else None
        case Authenticate(token):
            return _FrameParts(Kind.AUTH, token)
    msg = f"{type(request).__name__} has no frame here"
    raise NotImplementedError(msg)


def response_to(request: AnyRequest, frame: AnswerFrame) -> Any:
    """The response that a frame is to a request; one that does not fit becomes BAD_DIGEST or ERROR."""
    if frame.answer is not Answer.OK:
        return request.refused(frame.answer, frame.lac)
    if isinstance(request, AddRun):
        return _FOLLOWED if frame.flags & native.FOLLOWED else ADDED
    try:
        return _opened(request, frame)
    except MalformedFrameError as error:
        is_read = isinstance(request, ReadRange | LongPoll)
        level = logging.DEBUG if is_read else logging.WARNING
        log.log(level, "ignoring a malformed response about ledger %d: %s", frame.ledger_id, error)
        return request.refused(Answer.BAD_DIGEST if is_read else Answer.ERROR)


def _opened(request: Any, frame: AnswerFrame) -> Any:
    body = frame.body
    match request:
        case ReadRange() | LongPoll():
            located = bool(frame.flags & native.LOCATED)
            if located and not (isinstance(request, ReadRange) and request.locations):
                # Their runs would count as entries that the bookie does not hold.
                msg = "it has file offsets that were not requested"
                raise MalformedFrameError(msg)
            origin = request.origin_term
            found = native_bodies.decode_entries(body, located=located, origin_term=origin)
            meant = 0 if origin == ANY_TERM else origin
            if any(location.origin_term != meant and origin != BY_ID for location in found.locations):
                msg = f"it has file offsets of entries of another origin term than {origin}"
                raise MalformedFrameError(msg)
            return ReadReply(
                Answer.OK,
                found.runs,
                found.conclusive_through,
                found.unknown,
                frame.lac,
                found.locations,
                found.damaged,
                found.lac_term,
            )
        case ReadLac():
            return LacReply(Answer.OK, frame.lac, *native_bodies.decode_lac_body(body))
        case WriteLacs():
            return LacsReply(Answer.OK, native_bodies.decode_refused_lacs(body))
        case ListEntries(ledger, first):
            if frame.ledger_id != ledger.ledger_id:
                msg = f"it lists entries of ledger {frame.ledger_id}, but ledger {ledger.ledger_id} was requested"
                raise MalformedFrameError(msg, ledger_id=ledger.ledger_id)
            return EntryListReply(Answer.OK, *native_bodies.decode_held(body, first))
        case AskInfo():
            return InfoReply(Answer.OK, native_info.decode_info(body))
        case Authenticate():
            return AuthReply(Answer.OK, bytes(body))
    return request.refused(Answer.OK)


def plain_add(frame: bytes, *, terms: bool = False) -> PlainAdd | None:
    """The ADD in a whole frame, length field included; `terms`: the client announced that its requests may have some.

    None: it is another request, or something is wrong with it; `native.receive_request` and `native_bodies.run_of` say what.
    """
    if len(frame) < REQUEST_BYTES:
        return None
    (
        _, kind, digest_type, flags, number, _, ledger_id, token, key, term, lac, lafr, body_crc, reserved, head_crc,
    ) = REQUEST.unpack_from(frame)  # fmt: skip
    body = frame[REQUEST_BYTES:]
    if (
        kind != _ADD
        or (flags and flags != _RECOVERY)
        or not lac >= NO_ENTRY
        or lafr < NO_ENTRY
        or key == NO_KEY
        or reserved != _RESERVED
        or head_crc != crc32c(frame[:_HEADER_END])
        or body_crc != crc32c(body)
        or (run := plain_run(body, ledger_id)) is None
    ):
        return None
    scheme, run_digest, first, last, count, origin_term = run
    if (
        run_digest != digest_type
        or (lac >= last and not flags)
        or ((term or origin_term or scheme) and not (terms and fits_term(scheme, origin_term, term, flags)))
    ):
        return None
    # Half the time of a call of `PlainAdd`, which every add would pay.
    return tuple.__new__(PlainAdd, (
        number, flags, ledger_id, token, key, lac, digest_type, body_crc, body, first, last, count, term, origin_term,
        lafr,
    ))  # fmt: skip


def plain_run(body: bytes, ledger_id: int) -> tuple[int, int, int, int, int, int] | None:
    """What `RunView.parse_sent` checks of a run of a ledger with consecutive ids that is sent, with nothing made for it.

    Returns:
        (scheme, digest type, first, last, count, origin term). None: something is wrong, or is not like that.
    """
    if len(body) < _BODY_BYTES_MIN:
        return None
    # Of a run of one, its table and what its entry says it is follow.
    (
        version, scheme, digest_type, period, count, run_ledger, first, last, stripes, origin_term, table_crc, run_crc,
        size, entry_ledger, entry_id,
    ) = _RUN_OF_ONE.unpack_from(body)  # fmt: skip
    if (
        period != 1
        or stripes != 1
        or version != RUN_VERSION
        or run_ledger != ledger_id
        or digest_type > _DIGEST_TYPE_MAX
        or ledger_id < 0
        or not 0 <= first <= last <= ID_MAX
        or count != last - first + 1
    ):
        return None
    if count == 1 and scheme <= SCHEME_TERMS:
        if (
            size != len(body) - _ENTRY_AT
            or table_crc != crc32c(body[RUN_HEADER_BYTES:_ENTRY_AT])
            or run_crc != crc32c(body[:_RUN_HEADER_END])
            or entry_ledger != ledger_id
            or entry_id != first
            or (scheme and _origin_in(body) != origin_term)
        ):
            return None
    elif count < _SHORT_RUN and not scheme:
        if not _fits_short(body, count, ledger_id, first, last, table_crc, run_crc):
            return None
    else:
        try:
            RunView.parse_sent(body)
        except MalformedFrameError:
            return None
    return scheme, digest_type, first, last, count, origin_term


def _fits_short(
    body: bytes, count: int, ledger_id: int, first: int, last: int, table_crc: int, run_crc: int
) -> bool:
    """What `RunView.parse_sent` checks beyond the header's fields, of a run of a few entries, with nothing made for it."""
    table_end = RUN_HEADER_BYTES + 4 * count
    table = body[RUN_HEADER_BYTES:table_end]
    if len(table) != 4 * count or table_crc != crc32c(table):
        return False
    sizes = _TABLES[count].unpack(table)
    return (
        table_end + sum(sizes) == len(body)
        and run_crc == crc32c(body[:_RUN_HEADER_END])
        and sizes[0] >= HEADER_BYTES <= sizes[-1]
        and IDENTITY.unpack_from(body, table_end) == (ledger_id, first)
        and IDENTITY.unpack_from(body, len(body) - sizes[-1]) == (ledger_id, last)
    )


def _origin_in(body: bytes) -> int:
    """The origin term in the header of a run's only entry; -1 where it is too short to have one."""
    if len(body) < _ENTRY_AT + TERM_HEADER_BYTES:
        return -1
    return int(TERM_IDENTITY.unpack_from(body, _ENTRY_AT)[2])

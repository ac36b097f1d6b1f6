"""What follows the headers of the native protocol's requests and responses.

Whatever a body announces is compared with its size before anything is made of it.

Source: `docs/formats/native-protocol.md`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

from quire.core.answers import Answer
from quire.core.errors import MalformedFrameError
from quire.core.ids import ENSEMBLE_MAX, ID_MAX, NO_ENTRY
from quire.core.ledger.stripes import HeldInterval
from quire.core.ledger.terms import ANY_ORIGIN, NO_TERM
from quire.wire.entry import Buffer
from quire.wire.native import FRAME_BYTES_MAX, BodyParts, Flag, Kind, Request, answer_of, encode_text
from quire.wire.native_info import InfoQuestion, decode_info_question
from quire.wire.native_layouts import (
    CLEAR_LIMBO_FIELDS,
    HELD_FIELDS,
    INTERVAL_FIELDS,
    LAC_FIELDS,
    LACS_ITEM_FIELDS,
    LACS_REFUSED_FIELDS,
    LIST_FIELDS,
    LOCATION_FIELDS,
    LONG_POLL_FIELDS,
    PAGE_FIELDS,
    READ_ANSWER_FIELDS,
    READ_FIELDS,
    TRUNCATE_FIELDS,
)
from quire.wire.run import SCHEME_PLAIN, SCHEME_TERMS, RunLocation, RunView

ANY_TERM: Final = 2**64 - 1
"""The origin term of a READ that names none."""
BY_ID: Final = 2**64 - 2
"""In place of an origin term: of each id the entry that was put last, whatever its origin term, which its run names."""
ORIGINS: Final = {ANY_TERM: 0, BY_ID: ANY_ORIGIN}
"""What they mean; any other number is the origin term itself."""
WHOLE_LIST: Final = -1
"""The next id of a page after which there is nothing."""
PAGE_INTERVALS: Final = 16 * 1024
"""Intervals of a page, if the request wants no fewer."""
LACS_MAX: Final = 4096
"""LACs in one WRITE_LACS."""
INTERVALS_MAX: Final = 16 * 1024
"""Unknown intervals in one response, and as many damaged ones."""
LOCATIONS_MAX: Final = 1024
"""Locations in one response."""
_PAGE_INTERVALS_MAX: Final = 2 * PAGE_INTERVALS
"""A page that may not end between intervals with equal first ids is never longer than that."""
_LOCATED_FRAMES_MAX: Final = 2
"""Runs that are located come to no more than so many frames: what is asked for, and the rest of the last one."""


_READ_ANSWER_HEAD = READ_ANSWER_FIELDS.struct
_LOCATION = LOCATION_FIELDS.struct
_PAGE = PAGE_FIELDS.struct
_HELD = HELD_FIELDS.struct
_INTERVAL = INTERVAL_FIELDS.struct
_LACS_ITEM = LACS_ITEM_FIELDS.struct
_LACS_ITEM_EMPTY = struct.Struct(_LACS_ITEM.format.removesuffix("H") + "2x0s")
"""An item whose explicit LAC body is empty."""
_LACS_REFUSED = LACS_REFUSED_FIELDS.struct
_LAC = LAC_FIELDS.struct
_U32 = struct.Struct(">I")
BARE: Final = frozenset({Kind.READ_LAC, Kind.WRITE_LAC, Kind.INFO})
"""Of a ledger, nothing is decoded of their bodies: what they ask for is their kind."""

Interval = tuple[int, int]


# --- requests ---------------------------------------------------------------------------------------------------


class ReadBody(NamedTuple):
    """Of a READ. `origin_term`: only entries of this term are meant."""

    first: int
    last: int
    bytes_max: int
    origin_term: int = ANY_TERM


class LongPollBody(NamedTuple):
    """Of a LONG_POLL. `origin_term`: only entries of this term are meant; 0: those of a ledger."""

    previous_lac: int
    first: int
    last: int
    bytes_max: int
    wait_ms: int
    origin_term: int = 0


class ListBody(NamedTuple):
    """Of a LIST_ENTRIES: which page it asks for."""

    first: int
    intervals_max: int


class ClearLimboBody(NamedTuple):
    """Of a CLEAR_LIMBO: the LSN of the limbo that it ends."""

    lsn: int


class TruncateBody(NamedTuple):
    """Of a TRUNCATE: the ids that go, and the origin term that stays; `NO_TERM`: the sender's and later ones."""

    first: int
    last: int = ID_MAX
    kept: int = NO_TERM


FixedBody: TypeAlias = ReadBody | LongPollBody | ListBody | ClearLimboBody | TruncateBody
FIXED_BODIES: Final[dict[Kind, tuple[struct.Struct, type[FixedBody]]]] = {
    Kind.READ: (READ_FIELDS.struct, ReadBody),
    Kind.LONG_POLL: (LONG_POLL_FIELDS.struct, LongPollBody),
    Kind.LIST_ENTRIES: (LIST_FIELDS.struct, ListBody),
    Kind.CLEAR_LIMBO: (CLEAR_LIMBO_FIELDS.struct, ClearLimboBody),
    Kind.TRUNCATE: (TRUNCATE_FIELDS.struct, TruncateBody),
}
"""The kinds of requests whose bodies have nothing but fields."""
_LAYOUTS: Final = {body: layout for layout, body in FIXED_BODIES.values()}


def encode_body(body: FixedBody) -> bytes:
    """The bytes of a body that has nothing but fields."""
    return _LAYOUTS[type(body)].pack(*body)


def decode_body(kind: Kind, body: Buffer) -> FixedBody:
    """The body of a request of one of `FIXED_BODIES`; a LIST_ENTRIES gets no longer page than there are.

    Raises:
        MalformedFrameError: another size, ids that are no range, or numbers that cannot be.
    """
    layout, made = FIXED_BODIES[kind]
    if len(body) != layout.size:
        msg = f"the body of a {kind.name} has {len(body)} bytes, not {layout.size}"
        raise MalformedFrameError(msg)
    asked = made(*layout.unpack(body))
    match asked:
        case ReadBody(first, last):
            if 0 <= first <= last:
                return asked
            msg = f"a READ of entries {first}..{last}"
        case LongPollBody(previous, first, last) if previous < NO_ENTRY or not 0 <= first <= last:
            msg = f"a LONG_POLL above {previous} for entries {first}..{last}"
        case ListBody(first, intervals_max) if first < 0 or not intervals_max:
            msg = f"a LIST_ENTRIES from the first id {first} with {intervals_max} intervals at most"
        case ListBody(first, intervals_max):
            return ListBody(first, min(intervals_max, PAGE_INTERVALS))
        case TruncateBody(first, last, kept) if not 0 <= first <= last or kept > ID_MAX:
            msg = f"a TRUNCATE of entries {first}..{last}, without those of origin term {kept}"
        case _:
            return asked
    raise MalformedFrameError(msg)


LacFields: TypeAlias = tuple[int, int, int, int, int, bytes, bytes]
"""The fields of a `LacItem`, in their order."""


class LacItem(NamedTuple):
    """One ledger's LAC in a WRITE_LACS.

    Attributes:
        token: of the ledger's creation, so that an id that was used again is noticed.
        term: of the writer that sends it.
        body: the explicit LAC body with its digest where the digest has a key (HMAC), else empty.
    """

    ledger_id: int
    token: int
    lac: int
    term: int
    digest_type: int
    key: bytes
    body: bytes = b""


class LacsBody(NamedTuple):
    """Of a WRITE_LACS: its items, as plain tuples."""

    items: Sequence[LacFields]


def encode_lac_item(
    ledger_id: int, token: int, lac: int, term: int, digest_type: int, key: bytes, body: bytes = b""
) -> bytes:
    """One item of a WRITE_LACS, with the fields of a `LacItem`; it is the same for every bookie."""
    return _LACS_ITEM.pack(ledger_id, token, lac, term, digest_type, key, len(body)) + body


def join_lacs(items: Sequence[bytes]) -> bytes:
    """The body of a WRITE_LACS of items that are encoded already."""
    return b"".join((_U32.pack(len(items)), *items))


def decode_lacs(body: Buffer) -> Sequence[LacFields]:
    """The items of a WRITE_LACS, as plain tuples: a bookie looks at one once, and makes a `LacItem` of few.

    Raises:
        MalformedFrameError: too many, cut, or an item that cannot be.
    """
    parts = BodyParts(body, "WRITE_LACS")
    (count,) = parts.fixed(_U32, "count")
    if count > LACS_MAX or count * _LACS_ITEM.size > parts.left():
        msg = f"a WRITE_LACS with a count of {count} does not fit into {parts.left()} bytes, or is above {LACS_MAX}"
        raise MalformedFrameError(msg)
    items = _lacs_without_bodies(bytes(body[_U32.size :]), count)
    if items is None:
        items = [_lac_item(parts) for _ in range(count)]
        parts.end()
    for item in items:
        if item[0] < 0 or item[2] < NO_ENTRY or item[3] > ID_MAX:
            msg = f"a WRITE_LACS says that ledger {item[0]} is confirmed up to {item[2]} in term {item[3]}"
            raise MalformedFrameError(msg)
    return items


def _lacs_without_bodies(items: bytes, count: int) -> list[LacFields] | None:
    """The items, if none of them has an explicit LAC body, which is what most frames are like."""
    size = _LACS_ITEM.size
    if len(items) != count * size or any(items[size - 2 :: size]) or any(items[size - 1 :: size]):
        return None
    return list(_LACS_ITEM_EMPTY.iter_unpack(items))


def _lac_item(parts: BodyParts) -> LacFields:
    ledger_id, token, lac, term, digest_type, key, size = parts.fixed(_LACS_ITEM, "items")
    body = bytes(parts.take(size, "explicit LAC body"))
    return ledger_id, token, lac, term, digest_type, key, body


def run_of(request: Request) -> RunView:
    """The run that an intact ADD with possible ids brings, whatever its kind.

    Raises:
        MalformedFrameError: there is none, or the request says something else of it.
    """
    if request.ledger_id < 0 or not request.key:
        msg = f"an add request for ledger {request.ledger_id} has no ledger or no key"
        raise MalformedFrameError(msg)
    run = RunView.parse_sent(request.body)
    if not fits_term(run.scheme, run.origin_term, request.term, request.flags):
        msg = f"an add request of term {request.term} contains a run of term {run.origin_term}, scheme {run.scheme}"
        raise MalformedFrameError(msg)
    if run.ledger_id != request.ledger_id:
        msg = f"an add request for ledger {request.ledger_id} contains a run of ledger {run.ledger_id}"
        raise MalformedFrameError(msg)
    if request.lac >= run.last and not request.flags & Flag.RECOVERY:
        msg = (
            f"an add request for entry {run.last} of ledger {run.ledger_id} claims the last add "
            f"confirmed {request.lac}"
        )
        raise MalformedFrameError(msg)
    return run


def fits_term(scheme: int, origin_term: int, term: int, flags: int) -> bool:
    """Whether a run may come with an ADD of this term.

    Without one it has none either. A writer's own entries are of its term; a recovery's of any term up to its own.
    """
    if not term:
        return not origin_term and scheme == SCHEME_PLAIN
    own = 0 < origin_term <= term if flags & Flag.RECOVERY else origin_term == term
    return own and scheme == SCHEME_TERMS and term <= ID_MAX


Asked: TypeAlias = RunView | FixedBody | LacsBody | InfoQuestion | Kind
"""What a request asks for besides what its header says; one of `BARE`: no more than that."""


def asked_of(request: Request, *, terms: bool) -> Asked:
    """What an intact request with possible ids asks for, which is none of `BARE`; `bundles.open_bundle` opens bundles.

    Args:
        request: the request.
        terms: the client announced that its requests may have some.

    Raises:
        MalformedFrameError: its body is not one of its kind, it names a term that it cannot have, or is about a ledger
            that its kind is not about.
    """
    kind, ledger_id = request.kind, request.ledger_id
    if kind is Kind.ADD:
        return run_of(request)
    if ledger_id >= 0 and kind in FIXED_BODIES:
        asked = decode_body(kind, request.body)
        origin = asked.origin_term if isinstance(asked, (ReadBody, LongPollBody)) else 0
        none = not origin or (origin == ANY_TERM and kind is Kind.READ)
        if not none and not (terms and (origin <= ID_MAX or origin == BY_ID)):
            msg = f"a request for entries of ledger {ledger_id} names origin term {origin}, which it cannot have"
            raise MalformedFrameError(msg)
        return asked
    if ledger_id < 0 and kind is Kind.INFO:
        return decode_info_question(request.body)
    if ledger_id < 0 and kind is Kind.WRITE_LACS:
        lacs = LacsBody(decode_lacs(request.body))
        if not terms and any(term for _, _, _, term, *_ in lacs.items):
            raise MalformedFrameError("a WRITE_LACS names terms, which its client has not announced")
        return lacs
    msg = f"a request of kind {kind.name} for ledger {ledger_id}"
    raise MalformedFrameError(msg)


# --- responses --------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class RangeAnswer:
    """What a bookie said about a range of entries.

    Every id asked for, up to `conclusive_through`, that is in no run and in no unknown interval is "no such entry".
    `damaged`: those of the unknown intervals whose bytes were there and do not verify; they are in both lists, so that
    code that looks at one of them only takes nothing for a negative. `lac_term`: of the writer that sent the LAC.
    """

    runs: list[RunView]
    conclusive_through: int
    unknown: list[Interval]
    locations: list[RunLocation] = field(default_factory=list)
    damaged: list[Interval] = field(default_factory=list)
    lac_term: int = 0


def encode_read_fields(
    conclusive_through: int,
    unknown: Sequence[Interval],
    damaged: Sequence[Interval] = (),
    lac_term: int = 0,
) -> bytes:
    """The first part of the body of a response to READ or LONG_POLL.

    Args:
        conclusive_through: the last id that the response covers.
        unknown: all intervals that are no negatives.
        damaged: those of them that are damaged.
        lac_term: of the writer that sent the LAC.
    """
    intervals: Sequence[Interval] = unknown
    if damaged:
        apart = set(damaged)
        intervals = [*(interval for interval in unknown if interval not in apart), *damaged]
    head = _READ_ANSWER_HEAD.pack(conclusive_through, lac_term, len(intervals) - len(damaged), len(damaged))
    return head + b"".join([_INTERVAL.pack(*interval) for interval in intervals])


def encode_locations(locations: Sequence[RunLocation]) -> bytes:
    """The next part, in a response with the flag `LOCATED`."""
    parts = [_U32.pack(len(locations))]
    for location in locations:
        fields = (location.offset, location.size, location.seed, location.origin_term)
        parts += (_LOCATION.pack(*fields), encode_text(location.path))
    return b"".join(parts)


def encode_runs(runs: Sequence[Buffer]) -> list[Buffer]:
    """The rest of it; run bodies stay by reference."""
    parts: list[Buffer] = []
    for run in runs:
        parts += (_U32.pack(len(run)), run)
    return parts


def decode_entries(body: memoryview, *, located: bool = False, origin_term: int = ANY_TERM) -> RangeAnswer:
    """The body of a response to READ or LONG_POLL.

    Args:
        body: the bytes.
        located: its flag says that there are locations.
        origin_term: of the entries that were requested; `ANY_TERM`: those of a ledger, which have none; `BY_ID`: each run
            names its own.

    Raises:
        MalformedFrameError: it is cut, or a run in it does not fit or is of another term.
    """
    parts = BodyParts(body, "list of entries")
    through, lac_term, unknown_count, damaged_count = parts.fixed(_READ_ANSWER_HEAD, "first fields")
    unknown = _intervals(parts, unknown_count, "unknown") if unknown_count else []
    damaged = _intervals(parts, damaged_count, "damaged") if damaged_count else []
    locations = _locations(parts) if located else []
    runs = []
    term = ORIGINS.get(origin_term, origin_term)
    while parts.left():
        runs.append(RunView.parse_of_term(parts.take(parts.fixed(_U32, "size of a run")[0], "run"), term))
    return RangeAnswer(runs, through, unknown + damaged, locations, damaged, lac_term)


def _intervals(parts: BodyParts, count: int, what: str) -> list[Interval]:
    if count > INTERVALS_MAX or count * _INTERVAL.size > parts.left():
        msg = (
            f"{count} {what} intervals do not fit into {parts.left()} bytes, or are more than {INTERVALS_MAX}"
        )
        raise MalformedFrameError(msg)
    intervals = list(_INTERVAL.iter_unpack(parts.take(count * _INTERVAL.size, what)))
    for first, last in intervals:
        if not 0 <= first <= last:
            msg = f"{what} entries {first}..{last} are no interval"
            raise MalformedFrameError(msg)
    return intervals


def _locations(parts: BodyParts) -> list[RunLocation]:
    locations = []
    left = _LOCATED_FRAMES_MAX * FRAME_BYTES_MAX
    (count,) = parts.fixed(_U32, "count of locations")
    if count > LOCATIONS_MAX or count * _LOCATION.size > parts.left():
        msg = f"{count} locations do not fit into {parts.left()} bytes, or are more than {LOCATIONS_MAX}"
        raise MalformedFrameError(msg)
    for _ in range(count):
        offset, size, seed, term = parts.fixed(_LOCATION, "locations")
        left -= size
        if size > FRAME_BYTES_MAX or left < 0:
            msg = f"a location of {size} bytes is longer than {FRAME_BYTES_MAX}, or all are than {_LOCATED_FRAMES_MAX} of it"
            raise MalformedFrameError(msg)
        if offset + size > ID_MAX:
            msg = f"the offset {offset} of a location of {size} bytes is in no file"
            raise MalformedFrameError(msg)
        locations.append(RunLocation(parts.text("path of a location"), offset, size, seed, term))
    return locations


def encode_lac_body(
    explicit_lac: Buffer, evidence: Buffer, lac_term: int = 0, lafr: int = NO_ENTRY
) -> list[Buffer]:
    """The body of a response to READ_LAC.

    Args:
        explicit_lac: the explicit LAC body; empty if the bookie has none.
        evidence: the stored entry whose digest proves the LAC in its header; empty if there is none.
        lac_term: of the writer that sent the LAC.
        lafr: the last add fully replicated.
    """
    sizes = _U32.pack(len(explicit_lac)), _U32.pack(len(evidence))
    return [sizes[0], explicit_lac, sizes[1], evidence, _LAC.pack(lac_term, lafr)]


def decode_lac_body(body: memoryview) -> tuple[bytes, bytes, int, int]:
    """(explicit LAC body, LAC evidence, LAC's term, LAFR) of a response to READ_LAC; the first two may be empty.

    Raises:
        MalformedFrameError: it is cut, or its LAFR is no entry.
    """
    parts = BodyParts(body, "answer to READ_LAC")
    explicit = bytes(parts.take(parts.fixed(_U32, "size of the explicit LAC")[0], "explicit LAC"))
    evidence = bytes(parts.take(parts.fixed(_U32, "size of the evidence")[0], "evidence"))
    lac_term, lafr = parts.fixed(_LAC, "LAC's term and LAFR")
    if lafr < NO_ENTRY:
        msg = f"an answer to READ_LAC has the LAFR {lafr}"
        raise MalformedFrameError(msg)
    return explicit, evidence, lac_term, lafr


def encode_held(intervals: Iterable[HeldInterval], following: int = WHOLE_LIST) -> bytes:
    """The body of a response to LIST_ENTRIES: a page, and the first id of the next one."""
    packed = [_HELD.pack(*held) for held in intervals]
    return _PAGE.pack(following, len(packed)) + b"".join(packed)


def decode_held(body: memoryview, first: int) -> tuple[list[HeldInterval], int]:
    """(the intervals, the first id of the next page or `WHOLE_LIST`) of the page from an id on.

    Raises:
        MalformedFrameError: it is cut, names what is no interval of ids, or is out of order.
    """
    parts = BodyParts(body, "list of intervals")
    following, count = parts.fixed(_PAGE, "next id and count")
    if count * _HELD.size != parts.left() or count > _PAGE_INTERVALS_MAX:
        msg = (
            f"{count} intervals do not fit into {parts.left()} bytes, or are more than {_PAGE_INTERVALS_MAX}"
        )
        raise MalformedFrameError(msg)
    intervals = [HeldInterval(*held) for held in _HELD.iter_unpack(parts.take(parts.left(), "intervals"))]
    for low, high, period, stripes, _ in intervals:
        if not (0 <= low <= high and 1 <= period <= ENSEMBLE_MAX and 0 < stripes < 1 << period):
            msg = f"a list of intervals has {low}..{high}, period {period}, stripes {stripes:#x}"
            raise MalformedFrameError(msg)
    reached = first
    for held in intervals:
        if held.first < reached:
            msg = f"a list of intervals from {first} on is out of order: the first id {held.first} follows {reached}"
            raise MalformedFrameError(msg)
        reached = held.first
    if following != WHOLE_LIST and (not intervals or following <= reached):
        msg = f"a list of {len(intervals)} intervals up to the first id {reached} names {following} as the next id"
        raise MalformedFrameError(msg)
    return intervals, following


def encode_refused_lacs(refused: Sequence[tuple[int, Answer]]) -> bytes:
    """The body of a response to WRITE_LACS: (ledger id, answer) of what was refused."""
    return _U32.pack(len(refused)) + b"".join(_LACS_REFUSED.pack(*one) for one in refused)


def decode_refused_lacs(body: Buffer) -> list[tuple[int, Answer]]:
    """(ledger id, answer) of what was refused of a WRITE_LACS.

    Raises:
        MalformedFrameError: cut, or a response that is not known.
    """
    parts = BodyParts(body, "answer to WRITE_LACS")
    (count,) = parts.fixed(_U32, "count")
    if count > LACS_MAX or count * _LACS_REFUSED.size != parts.left():
        msg = f"a count of {count} refused LACs does not fit into {parts.left()} bytes"
        raise MalformedFrameError(msg)
    refused = _LACS_REFUSED.iter_unpack(parts.take(parts.left(), "refused LACs"))
    return [(ledger_id, answer_of(code)) for ledger_id, code in refused]

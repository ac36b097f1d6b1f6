"""What follows the headers of the native protocol's requests and responses.

Whatever a body announces is compared with its size before anything is made of it.

Source: `docs/formats/native-protocol.md`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias

from quire.core.answers import Answer
from quire.core.errors import MalformedFrameError
from quire.core.ids import ENSEMBLE_MAX, ID_MAX, NO_ENTRY
from quire.core.ledger.stripes import HeldInterval
from quire.core.ledger.terms import ANY_ORIGIN, NO_TERM
from quire.wire.entry import Buffer
from quire.wire.native import FRAME_BYTES_MAX, BodyParts, answer_of, encode_text
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
from quire.wire.run import RunLocation, RunView

ANY_TERM: Final = 2**64 - 1
"""The origin term of a READ that names none."""
BY_ID: Final = 2**64 - 2
"""In place of an origin term: of each id the entry that was put last, whatever its origin term, which its run names."""
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


_READ = READ_FIELDS.struct
_LONG_POLL = LONG_POLL_FIELDS.struct
_READ_ANSWER_HEAD = READ_ANSWER_FIELDS.struct
_LOCATION = LOCATION_FIELDS.struct
_PAGE = PAGE_FIELDS.struct
_HELD = HELD_FIELDS.struct
_INTERVAL = INTERVAL_FIELDS.struct
_LIST = LIST_FIELDS.struct
_CLEAR_LIMBO = CLEAR_LIMBO_FIELDS.struct
_TRUNCATE = TRUNCATE_FIELDS.struct
_LACS_ITEM = LACS_ITEM_FIELDS.struct
_LACS_ITEM_EMPTY = struct.Struct(_LACS_ITEM.format.removesuffix("H") + "2x0s")
"""An item whose explicit LAC body is empty."""
_LACS_REFUSED = LACS_REFUSED_FIELDS.struct
_LAC = LAC_FIELDS.struct
_U32 = struct.Struct(">I")

Interval = tuple[int, int]


def _whole(layout: struct.Struct, body: Buffer, what: str) -> tuple[Any, ...]:
    """All fields of a body that has nothing else."""
    if len(body) != layout.size:
        msg = f"the body of a {what} has {len(body)} bytes, not {layout.size}"
        raise MalformedFrameError(msg)
    return layout.unpack(body)


# --- requests ---------------------------------------------------------------------------------------------------


def encode_read(first: int, last: int, bytes_max: int, origin_term: int = ANY_TERM) -> bytes:
    """The body of a READ. `origin_term`: only entries of this term are meant."""
    return _READ.pack(first, last, bytes_max, origin_term)


def decode_read(body: Buffer) -> tuple[int, int, int, int]:
    """(first, last, bytes at most, origin term) of a READ.

    Raises:
        MalformedFrameError: another size, or ids that are no range.
    """
    first, last, bytes_max, term = _whole(_READ, body, "READ")
    if not 0 <= first <= last:
        msg = f"a READ of entries {first}..{last}"
        raise MalformedFrameError(msg)
    return first, last, bytes_max, term


def encode_long_poll(
    previous_lac: int,
    first: int,
    last: int,
    bytes_max: int,
    wait_ms: int,
    origin_term: int = 0,
) -> bytes:
    """The body of a LONG_POLL. `origin_term`: only entries of this term are meant."""
    return _LONG_POLL.pack(previous_lac, first, last, bytes_max, wait_ms, origin_term)


def decode_long_poll(body: Buffer) -> tuple[int, int, int, int, int, int]:
    """(previous LAC, first, last, bytes at most, wait in ms, origin term) of a LONG_POLL.

    Raises:
        MalformedFrameError: another size, or ids that are no range.
    """
    previous, first, last, bytes_max, wait_ms, term = _whole(_LONG_POLL, body, "LONG_POLL")
    if previous < NO_ENTRY or not 0 <= first <= last:
        msg = f"a LONG_POLL above {previous} for entries {first}..{last}"
        raise MalformedFrameError(msg)
    return previous, first, last, bytes_max, wait_ms, term


def encode_list(first: int, intervals_max: int) -> bytes:
    """The body of a LIST_ENTRIES."""
    return _LIST.pack(first, intervals_max)


def decode_list(body: Buffer) -> tuple[int, int]:
    """(first id, intervals at most) of the page that a LIST_ENTRIES asks for.

    Raises:
        MalformedFrameError: another size, or numbers that cannot be.
    """
    first, intervals_max = _whole(_LIST, body, "LIST_ENTRIES")
    if first < 0 or not intervals_max:
        msg = f"a LIST_ENTRIES from the first id {first} with {intervals_max} intervals at most"
        raise MalformedFrameError(msg)
    return first, min(intervals_max, PAGE_INTERVALS)


def encode_clear_limbo(lsn: int) -> bytes:
    """The body of a CLEAR_LIMBO: the LSN of the limbo that it ends."""
    return _CLEAR_LIMBO.pack(lsn)


def decode_clear_limbo(body: Buffer) -> int:
    """The LSN of the limbo that a CLEAR_LIMBO ends.

    Raises:
        MalformedFrameError: another size.
    """
    return int(_whole(_CLEAR_LIMBO, body, "CLEAR_LIMBO")[0])


def encode_truncate(first: int, last: int = ID_MAX, kept: int = NO_TERM) -> bytes:
    """The body of a TRUNCATE: the ids that go, and the origin term that stays; `NO_TERM`: the sender's and later ones."""
    return _TRUNCATE.pack(first, last, kept)


def decode_truncate(body: Buffer) -> tuple[int, int, int]:
    """(first id that goes, last, origin term that stays) of a TRUNCATE.

    Raises:
        MalformedFrameError: another size, ids that are no range, or no term.
    """
    first, last, kept = _whole(_TRUNCATE, body, "TRUNCATE")
    if not 0 <= first <= last or kept > ID_MAX:
        msg = f"a TRUNCATE of entries {first}..{last}, without those of origin term {kept}"
        raise MalformedFrameError(msg)
    return first, last, kept


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
    term = {ANY_TERM: 0, BY_ID: ANY_ORIGIN}.get(origin_term, origin_term)
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

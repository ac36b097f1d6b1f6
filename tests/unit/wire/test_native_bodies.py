"""What follows the headers of the native protocol: there and back, and what does not fit by its name."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.core.answers import Answer
from quire.core.errors import MalformedFrameError
from quire.core.ids import ID_MAX
from quire.core.ledger.metadata import DigestType
from quire.core.ledger.stripes import HeldInterval
from quire.wire import native, native_bodies, native_info
from quire.wire.entry import EntryDigest
from quire.wire.native import Kind
from quire.wire.native_bodies import ANY_TERM, WHOLE_LIST, LacItem
from quire.wire.run import SCHEME_TERMS, RunLocation, encode_run
from support.many_lacs import encode_lacs

IDS = st.integers(0, ID_MAX)
TERMS = st.integers(0, ANY_TERM)
U32 = st.integers(0, 2**32 - 1)
RANGES = st.tuples(IDS, IDS).map(lambda pair: (min(pair), max(pair)))
INTERVALS = st.lists(RANGES, max_size=5)


def joined(parts: list[Any]) -> memoryview:
    return memoryview(b"".join(bytes(part) for part in parts))


# --- there and back -------------------------------------------------------------------------------------------------


@given(RANGES, U32, TERMS)
def test_read(ids: tuple[int, int], bytes_max: int, term: int) -> None:
    body = native_bodies.encode_body(native_bodies.ReadBody(*ids, bytes_max, term))
    assert native_bodies.decode_body(Kind.READ, body) == (*ids, bytes_max, term)


@given(st.integers(-1, ID_MAX), RANGES, U32, U32, TERMS)
def test_long_poll(lac: int, ids: tuple[int, int], size: int, wait: int, term: int) -> None:
    body = native_bodies.encode_body(native_bodies.LongPollBody(lac, *ids, size, wait, term))
    assert native_bodies.decode_body(Kind.LONG_POLL, body) == (lac, *ids, size, wait, term)


@given(IDS, st.integers(1, 2**32 - 1))
def test_list(first: int, intervals_max: int) -> None:
    body = native_bodies.encode_body(native_bodies.ListBody(first, intervals_max))
    limit = min(intervals_max, native_bodies.PAGE_INTERVALS)
    assert native_bodies.decode_body(Kind.LIST_ENTRIES, body) == (first, limit)


@given(TERMS, IDS)
def test_clear_limbo_and_truncate(lsn: int, first: int) -> None:
    body = native_bodies.encode_body(native_bodies.ClearLimboBody(lsn))
    assert native_bodies.decode_body(Kind.CLEAR_LIMBO, body) == (lsn,)
    assert native_bodies.decode_body(
        Kind.TRUNCATE, native_bodies.encode_body(native_bodies.TruncateBody(first))
    ) == (first, ID_MAX, 0)
    assert native_bodies.decode_body(
        Kind.TRUNCATE, native_bodies.encode_body(native_bodies.TruncateBody(first, first, 7))
    ) == (first, first, 7)


LAC_ITEMS = st.lists(
    st.builds(
        LacItem, IDS, TERMS, st.integers(-1, ID_MAX), IDS, st.integers(0, 255),
        st.binary(min_size=20, max_size=20), st.binary(max_size=40),
    ),
    max_size=5,
)  # fmt: skip


@given(LAC_ITEMS)
def test_lacs(items: list[LacItem]) -> None:
    assert native_bodies.decode_lacs(encode_lacs(items)) == items


@given(st.lists(st.tuples(IDS, st.sampled_from(Answer)), max_size=5))
def test_refused_lacs(refused: list[tuple[int, Answer]]) -> None:
    assert native_bodies.decode_refused_lacs(native_bodies.encode_refused_lacs(refused)) == refused


@given(st.integers(-1, ID_MAX), INTERVALS, INTERVALS, TERMS)
def test_entries(
    conclusive: int, unknown: list[tuple[int, int]], damaged: list[tuple[int, int]], term: int
) -> None:
    unknown = [each for each in unknown if each not in damaged]
    told = native_bodies.encode_read_fields(conclusive, unknown + damaged, damaged, term)
    found = native_bodies.decode_entries(memoryview(told))
    assert found.conclusive_through == conclusive
    assert found.unknown == unknown + damaged, "what is damaged is never a negative"
    assert (found.damaged, found.lac_term) == (damaged, term)


LOCATIONS = st.lists(
    st.builds(
        RunLocation, st.text(max_size=80), st.integers(0, ID_MAX - native.FRAME_BYTES_MAX),
        st.integers(0, native.FRAME_BYTES_MAX // 4), U32, TERMS,
    ),
    max_size=5,
)  # fmt: skip


@given(LOCATIONS)
def test_locations(locations: list[RunLocation]) -> None:
    told = native_bodies.encode_read_fields(7, [])
    told += native_bodies.encode_locations(locations)
    found = native_bodies.decode_entries(memoryview(told), located=True)
    assert found.locations == locations


@given(st.binary(max_size=40), st.binary(max_size=40), TERMS, st.integers(-1, ID_MAX))
def test_lac_body(explicit: bytes, evidence: bytes, term: int, lafr: int) -> None:
    body = joined(native_bodies.encode_lac_body(explicit, evidence, term, lafr))
    assert native_bodies.decode_lac_body(body) == (explicit, evidence, term, lafr)


HELD = st.lists(
    st.builds(
        lambda ids, period, term: HeldInterval(*ids, period, (1 << period) - 1, term),
        RANGES, st.integers(1, 64), TERMS,
    ),
    max_size=5,
).map(sorted)  # fmt: skip


@given(HELD, st.data())
def test_held(held: list[HeldInterval], data: st.DataObject) -> None:
    following = WHOLE_LIST
    if held and held[-1].first < ID_MAX and data.draw(st.booleans()):
        following = data.draw(st.integers(held[-1].first + 1, ID_MAX))
    first = data.draw(st.integers(0, held[0].first)) if held else 0
    body = memoryview(native_bodies.encode_held(held, following))
    assert native_bodies.decode_held(body, first) == (held, following)


def test_info() -> None:
    assert native_info.decode_info(native_info.encode_info({"a": 1})) == {"a": 1}


# --- what does not fit ----------------------------------------------------------------------------------------------


def told() -> bytes:
    return native_bodies.encode_read_fields(7, [])


def entries(body: bytes, *, located: bool = False) -> Callable[[], object]:
    return lambda: native_bodies.decode_entries(memoryview(body), located=located)


def located(*locations: RunLocation) -> Callable[[], object]:
    return entries(told() + native_bodies.encode_locations(locations), located=True)


def page(held: list[HeldInterval], following: int = WHOLE_LIST, first: int = 0) -> Callable[[], object]:
    body = memoryview(native_bodies.encode_held(held, following))
    return lambda: native_bodies.decode_held(body, first)


def lacs(**changes: Any) -> Callable[[], object]:
    item = LacItem(1, 0, 5, 0, 3, bytes(20))._replace(**changes)
    return lambda: native_bodies.decode_lacs(encode_lacs([item]))


def a_scheme_1_run() -> bytes:
    entry = EntryDigest(DigestType.CRC32C, b"").seal_with_term(1, 0, -1, 1, b"x", origin_term=3) + b"x"
    run = encode_run(1, 0, 0, [entry], [len(entry)], digest_type=3, scheme=SCHEME_TERMS)
    return struct.pack(">I", len(run)) + run


FRAME = native.FRAME_BYTES_MAX
BAD = {
    "the body of a READ has 20 bytes, not 28": lambda: native_bodies.decode_body(Kind.READ, bytes(20)),
    "a READ of entries 9..3": lambda: native_bodies.decode_body(Kind.READ, struct.pack(">qqIQ", 9, 3, 1, 0)),
    "a READ of entries -1..3": lambda: native_bodies.decode_body(Kind.READ,
        struct.pack(">qqIQ", -1, 3, 1, 0)
    ),
    "the body of a LONG_POLL has 32 bytes, not 40": lambda: native_bodies.decode_body(Kind.LONG_POLL,
        bytes(32)
    ),
    "a LONG_POLL above -2": lambda: native_bodies.decode_body(Kind.LONG_POLL,
        native_bodies.encode_body(native_bodies.LongPollBody(-2, 0, 1, 1, 1))
    ),
    "the body of a LIST_ENTRIES has 0 bytes": lambda: native_bodies.decode_body(Kind.LIST_ENTRIES, b""),
    "from the first id -1": lambda: native_bodies.decode_body(Kind.LIST_ENTRIES, struct.pack(">qI", -1, 1)),
    "with 0 intervals at most": lambda: native_bodies.decode_body(Kind.LIST_ENTRIES, struct.pack(">qI", 0, 0)),
    "the body of a CLEAR_LIMBO has 0 bytes": lambda: native_bodies.decode_body(Kind.CLEAR_LIMBO, b""),
    "the body of a TRUNCATE has 9 bytes": lambda: native_bodies.decode_body(Kind.TRUNCATE, bytes(9)),
    "a TRUNCATE of entries -3..5": lambda: native_bodies.decode_body(Kind.TRUNCATE, struct.pack(">qqQ", -3, 5, 0)),
    "a TRUNCATE of entries 6..5": lambda: native_bodies.decode_body(Kind.TRUNCATE, struct.pack(">qqQ", 6, 5, 0)),
    "those of origin term": lambda: native_bodies.decode_body(Kind.TRUNCATE, struct.pack(">qqQ", 1, 5, 1 << 63)),
    "a count of 4097 does not fit": lambda: native_bodies.decode_lacs(
        struct.pack(">I", 4097) + bytes(55 * 4097)
    ),
    "a count of 2 does not fit into 55 bytes": lambda: native_bodies.decode_lacs(
        struct.pack(">I", 2) + bytes(55)
    ),
    "has 1 bytes beyond its end": lambda: native_bodies.decode_lacs(struct.pack(">I", 0) + b"x"),
    "in its explicit LAC body": lambda: native_bodies.decode_lacs(
        struct.pack(">I", 1) + bytes(53) + b"\0\1"
    ),
    "says that ledger -4 is confirmed": lacs(ledger_id=-4),
    "is confirmed up to -2": lacs(lac=-2),
    "in term 9223372036854775808": lacs(term=1 << 63),
    "3 unknown intervals do not fit": entries(struct.pack(">qQII", 7, 0, 3, 0)),
    "4294967295 damaged intervals do not fit": entries(struct.pack(">qQII", 7, 0, 0, 2**32 - 1)),
    "unknown entries 9..3 are no interval": entries(native_bodies.encode_read_fields(1, [(9, 3)])),
    "damaged entries -1..3 are no interval": entries(
        native_bodies.encode_read_fields(1, [(-1, 3)], [(-1, 3)])
    ),
    "in its first fields": entries(bytes(23)),
    "in its run": entries(told() + struct.pack(">I", 77)),
    "requested are entries of origin term 0, scheme 0": entries(told() + a_scheme_1_run()),
    "the offset 18446744073709551615 of a location": located(RunLocation("/1.seg", 2**64 - 1, 10, 0)),
    "the offset 9223372036854775800 of a location": located(RunLocation("/1.seg", 2**63 - 8, 10, 0)),
    "longer than": located(RunLocation("/1.seg", 0, FRAME + 1, 0)),
    "or all are than 2 of it": located(*[RunLocation("/1.seg", 0, FRAME, 0)] * 3),
    "4096 locations do not fit": entries(told() + struct.pack(">I", 4096), located=True),
    "in its path of a location": entries(told() + struct.pack(">IQIIQ", 1, 0, 1, 1, 0) + b"\0\7", located=True),
    "the path of a location in a list of entries is not UTF-8": entries(
        told() + struct.pack(">IQIIQ", 1, 0, 1, 1, 0) + b"\0\1\xff", located=True
    ),
    "in its size of the explicit LAC": lambda: native_bodies.decode_lac_body(memoryview(b"")),
    "in its LAC's term and LAFR": lambda: native_bodies.decode_lac_body(memoryview(bytes(8))),
    "has the LAFR -2": lambda: native_bodies.decode_lac_body(
        joined(native_bodies.encode_lac_body(b"", b"", 0, -2))
    ),
    "9 intervals do not fit": lambda: native_bodies.decode_held(
        memoryview(struct.pack(">qI", -1, 9)), 0
    ),
    "has 3..1, period 1": page([HeldInterval(3, 1, 1, 1)]),
    "period 65": page([HeldInterval(0, 1, 65, 1)]),
    "stripes 0x2": page([HeldInterval(0, 1, 1, 2)]),
    "the first id 4 follows 5": page([HeldInterval(4, 9, 1, 1)], first=5),
    "the first id 4 follows 8": page([HeldInterval(8, 9, 1, 1), HeldInterval(4, 6, 1, 1)]),
    "up to the first id 8 names 8 as the next id": page([HeldInterval(8, 9, 1, 1)], following=8),
    "a list of 0 intervals up to the first id 3 names 9": page([], following=9, first=3),
    "names -2 as the next id": page([HeldInterval(8, 9, 1, 1)], following=-2),
    "a count of 1 refused LACs": lambda: native_bodies.decode_refused_lacs(struct.pack(">I", 1)),
    "answer code 999": lambda: native_bodies.decode_refused_lacs(struct.pack(">IqH", 1, 5, 999)),
    "not JSON": lambda: native_info.decode_info(b"{"),
    "is not an object": lambda: native_info.decode_info(b"[]"),
}  # fmt: skip


@pytest.mark.parametrize("said", BAD)
def test_what_does_not_fit_is_refused_by_its_name(said: str) -> None:
    with pytest.raises(MalformedFrameError) as found:
        BAD[said]()
    assert said in found.value.message


def test_json_that_is_too_deep_is_no_json() -> None:
    with pytest.raises(MalformedFrameError, match="not JSON"):
        native_info.decode_info(b"[" * 200_000)

"""A request whose body is damaged gets the same answer whatever its kind, and its client goes on."""

from __future__ import annotations

from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.core.answers import Answer
from quire.wire import native, native_bodies
from quire.wire.entry import LAC_BODY_BYTES
from quire.wire.native import Kind
from quire.wire.native_bodies import LacItem
from quire.wire.run import checksum
from support.hostile_inputs import bundle, frames_of
from support.hostile_worlds import ACCESS, GOOD, LEDGER, StillBookie, a_run
from support.many_lacs import encode_lacs

OF_LEDGER: Final[dict[str, Any]] = {"ledger_id": LEDGER, "key": ACCESS.key, "digest_type": 3}
OF_BOOKIE: Final[dict[str, Any]] = {}
B = native_bodies
REQUESTS: Final[list[tuple[Kind, bytes, dict[str, Any]]]] = [
    (Kind.ADD, a_run(20, 22), OF_LEDGER),
    (Kind.READ, B.encode_body(B.ReadBody(0, 1, 100)), OF_LEDGER),
    (Kind.READ_LAC, b"", OF_LEDGER),
    (Kind.WRITE_LAC, GOOD.digest.lac_body(LEDGER, 3), OF_LEDGER),
    (Kind.LONG_POLL, B.encode_body(B.LongPollBody(-1, 0, 1, 100, 10)), OF_LEDGER),
    (Kind.LIST_ENTRIES, B.encode_body(B.ListBody(0, 9)), OF_LEDGER),
    (Kind.INFO, b"", OF_LEDGER),
    (Kind.INFO, b'{"orphans_after":5}', OF_BOOKIE),
    (Kind.CLEAR_LIMBO, B.encode_body(B.ClearLimboBody(9)), OF_LEDGER),
    (Kind.AUTH, b"token", OF_BOOKIE),
    (Kind.WRITE_LACS, encode_lacs([LacItem(LEDGER, 0, 3, 0, 3, ACCESS.key)]), OF_BOOKIE),
    (Kind.TRUNCATE, B.encode_body(B.TruncateBody(5)), OF_LEDGER),
]


@pytest.fixture(scope="module")
def bookie() -> StillBookie:
    return StillBookie()


def request(kind: Kind, number: int, body: bytes, crc: int, fields: dict[str, Any]) -> bytes:
    return native.encode_request(kind, number, len(body), crc, **fields) + body


def answers(bookie: StillBookie, frame: bytes) -> list[tuple[int, Answer]]:
    """What the bookie says to a request, and to the next one of the same client."""
    after = B.encode_body(B.ReadBody(0, 1, 100))
    good = request(Kind.READ, 8, after, checksum(after), {"ledger_id": LEDGER})
    said = bookie.serve_pieces([bookie.hello, frame + good])[bookie.greeting :]
    found = [native.decode_answer(memoryview(one)) for one in frames_of(said)]
    return [(one.number, one.answer) for one in found]


def spoilt(data: st.DataObject, body: bytes) -> bytes:
    """A body that is cut, too long, or has other bits."""
    cut = st.integers(0, max(0, len(body) - 1)).map(lambda size: body[:size])
    longer = st.binary(min_size=1, max_size=50).map(lambda more: body + more)
    return data.draw(st.one_of(cut, longer, st.binary(max_size=99)).filter(lambda one: one != body))


@given(st.sampled_from(REQUESTS), st.data())
def test_what_was_damaged_on_its_way_is_said_to_be(
    bookie: StillBookie, asked: tuple[Kind, bytes, dict[str, Any]], data: st.DataObject
) -> None:
    kind, body, fields = asked
    frame = request(kind, 7, spoilt(data, body), checksum(body), fields)
    assert answers(bookie, frame) == [(7, Answer.DAMAGED_IN_TRANSIT), (8, Answer.OK)]


@given(st.sampled_from([one for one in REQUESTS if one[1]]), st.data())
def test_what_is_no_body_of_its_kind_is_a_bad_request(
    bookie: StillBookie, asked: tuple[Kind, bytes, dict[str, Any]], data: st.DataObject
) -> None:
    kind, body, fields = asked
    # Of an explicit LAC a bookie does not know how long its digest is.
    most = LAC_BODY_BYTES - 1 if kind is Kind.WRITE_LAC else len(body) - 1
    cut = body[: data.draw(st.integers(1, most))]
    wrong = data.draw(st.sampled_from([cut, body + bytes(60)]))
    frame = request(kind, 7, wrong, checksum(wrong), fields)
    assert answers(bookie, frame) == [(7, Answer.BAD_REQUEST), (8, Answer.OK)]


@given(st.integers(1, 60))
def test_a_bundle_whose_rows_are_damaged_ends_the_connection(bookie: StillBookie, at: int) -> None:
    """Nothing separates its runs any more; the bookie serves the next client."""
    frame = bytearray(bundle())
    frame[native.REQUEST_BYTES + at % (len(frame) - native.REQUEST_BYTES)] ^= 1
    assert answers(bookie, bytes(frame)) == []
    assert answers(bookie, b"") == [(8, Answer.OK)]


def test_every_kind_is_here() -> None:
    assert {kind for kind, _, _ in REQUESTS} | {Kind.ADD_BUNDLE} == set(Kind)

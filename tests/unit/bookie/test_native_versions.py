"""A bookie between versions: what it agrees on, what it tells, and what it refuses of terms."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from quire.core.answers import Answer
from quire.core.bookie.limbo import Limbo
from quire.core.ledger.metadata import DigestType
from quire.core.ledger.stripes import HeldInterval
from quire.core.version import UNRELEASED
from quire.wire import native, native_bodies, native_hello, native_info
from quire.wire.entry import EntryDigest
from quire.wire.native import Flag, Kind
from quire.wire.native_bodies import ANY_TERM, WHOLE_LIST, LacItem
from quire.wire.native_hello import Hello, HelloAnswer
from quire.wire.run import SCHEME_TERMS, checksum, encode_run
from support.hostile_worlds import ACCESS, ENTRIES, GOOD, LEDGER, StillBookie, a_run
from support.many_lacs import encode_lacs

HMAC = EntryDigest(DigestType.HMAC, b"secret")


@pytest.fixture
def bookie() -> StillBookie:
    return StillBookie()


def greet(bookie: StillBookie, **fields: Any) -> HelloAnswer:
    hello = Hello("cluster", bookie.server.bookie_id, **fields)
    split = native_hello.split_hello(bookie.serve_pieces([native_hello.encode_hello(hello)]))
    assert split is not None
    return native_hello.decode_hello_answer(split[0])


def ask(
    bookie: StillBookie,
    kind: Kind,
    body: bytes = b"",
    *,
    features: int = 0,
    **fields: Any,
) -> native.AnswerFrame:
    head = native.encode_request(kind, 7, len(body), checksum(body), **fields)
    said = memoryview(bookie.serve_pieces([bookie.hello_of(features), head + body]))
    split = native_hello.split_hello(said)
    assert split is not None
    return native.decode_answer(said[split[1] :])


# --- the hello ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("offered", [(1, 2), (2, 2), (1, 9), (2, 9)])
def test_the_version_that_both_know(bookie: StillBookie, offered: tuple[int, int]) -> None:
    bookie.server.boot = 12
    answer = greet(bookie, version_min=offered[0], version_max=offered[1])
    assert (answer.version, answer.answer, answer.boot) == (2, Answer.OK, 12)
    assert answer.features & ~native_hello.COLOCATED == native_hello.OFFERED


@pytest.mark.parametrize("offered", [(3, 9), (0, 0), (2, 1), (9, 9), (1, 1)])
def test_no_common_version_is_refused_in_a_sentence(bookie: StillBookie, offered: tuple[int, int]) -> None:
    answer = greet(bookie, version_min=offered[0], version_max=offered[1])
    assert (answer.version, answer.answer) == (0, Answer.BAD_REQUEST)
    older = f", as spoken by {UNRELEASED}" if offered[1] < 2 else ""
    said = f"this bookie speaks versions 2..2 of the native protocol, not {offered[0]}..{offered[1]}"
    assert answer.message == said + older


def test_features_that_nobody_knows_are_left_alone(bookie: StillBookie) -> None:
    answer = greet(bookie, features=(1 << 63) | native_hello.OFFERED)
    assert (answer.version, answer.answer) == (2, Answer.OK)


# --- what it tells ------------------------------------------------------------------------------------------------------


def test_answers_carry_the_term_and_the_lac_its_own(bookie: StillBookie) -> None:
    ledgers = bookie.server.ledgers
    assert ask(bookie, Kind.READ_LAC, ledger_id=LEDGER).term == 0
    facts = ledgers._machine(LEDGER).facts
    facts.term, facts.lac_term, facts.lafr = 9, 8, 3
    body = native_bodies.encode_body(native_bodies.ReadBody(0, 1, 100, 9))
    found = ask(bookie, Kind.READ, body, ledger_id=LEDGER, features=native_hello.TERMS)
    assert found.term == 9
    assert native_bodies.decode_entries(found.body).lac_term == 8
    told = ask(bookie, Kind.READ_LAC, ledger_id=LEDGER)
    assert (told.term, native_bodies.decode_lac_body(told.body)[2:]) == (9, (8, 3))
    poll = native_bodies.encode_body(native_bodies.LongPollBody(-1, 0, 3, 100, 10, 9))
    polled = ask(bookie, Kind.LONG_POLL, poll, ledger_id=LEDGER, features=native_hello.TERMS)
    assert (polled.term, native_bodies.decode_entries(polled.body).lac_term) == (9, 8)
    run = a_run(20, 21)
    refused = ask(bookie, Kind.ADD, run, ledger_id=LEDGER, digest_type=3, key=ACCESS.key)
    assert (refused.answer, refused.term) == (Answer.INVALID_TERM, 9), "the writer learns who came after it"
    assert ask(bookie, Kind.READ_LAC, ledger_id=99).term == 0
    assert 99 not in ledgers._machines, "nothing is remembered of a ledger that may not exist"


def test_a_stored_add_carries_the_term(bookie: StillBookie) -> None:
    added = ask(bookie, Kind.ADD, a_run(20, 21), ledger_id=LEDGER, digest_type=3, key=ACCESS.key)
    assert (added.answer, added.term) == (Answer.OK, 0)


def test_pages_of_entries(bookie: StillBookie) -> None:
    for first in (20, 30, 40):
        run = a_run(first, first + 3)
        assert ask(bookie, Kind.ADD, run, ledger_id=LEDGER, digest_type=3, key=ACCESS.key).answer is Answer.OK
    whole = [HeldInterval(low, high, 1, 1) for low, high in ((0, 9), (20, 23), (30, 33), (40, 43))]
    at, pages = 0, []
    while at != WHOLE_LIST:
        frame = ask(
            bookie,
            Kind.LIST_ENTRIES,
            native_bodies.encode_body(native_bodies.ListBody(at, 2)),
            ledger_id=LEDGER,
        )
        page, at = native_bodies.decode_held(frame.body, at)
        pages.append(page)
    assert pages == [whole[:2], whole[2:]]
    frame = ask(
        bookie, Kind.LIST_ENTRIES, native_bodies.encode_body(native_bodies.ListBody(5, 9)), ledger_id=LEDGER
    )
    clipped = [HeldInterval(5, 9, 1, 1), *whole[1:]]
    assert native_bodies.decode_held(frame.body, 5) == (clipped, WHOLE_LIST)
    frame = ask(
        bookie, Kind.LIST_ENTRIES, native_bodies.encode_body(native_bodies.ListBody(44, 9)), ledger_id=LEDGER
    )
    assert native_bodies.decode_held(frame.body, 44) == ([], WHOLE_LIST)


def test_clear_limbo_names_the_limbo_that_it_ends(bookie: StillBookie) -> None:
    machine = bookie.server.ledgers._machine(LEDGER)
    machine.facts.limbo, machine.facts.fenced = Limbo(77, 0, ((3, 5), (8, 9))), True
    info = native_info.decode_info(ask(bookie, Kind.INFO, ledger_id=LEDGER).body)
    assert (info["limbo"], info["doubt_lsn"], info["doubt_below"]) == (True, 77, 0)
    assert info["doubt_ranges"] == [[3, 5], [8, 9]]
    for body, answer, limbo in (
        (b"", Answer.BAD_REQUEST, True),
        (struct.pack(">Q", 76), Answer.BAD_REQUEST, True),
        (struct.pack(">Q", 77), Answer.OK, False),
    ):
        said = ask(bookie, Kind.CLEAR_LIMBO, body, ledger_id=LEDGER, key=ACCESS.key)
        assert (said.answer, machine.facts.in_limbo) == (answer, limbo)
    info = native_info.decode_info(ask(bookie, Kind.INFO, ledger_id=LEDGER).body)
    assert (info["doubt_lsn"], info["doubt_ranges"]) == (None, [])


# --- many LACs ----------------------------------------------------------------------------------------------------------


def item(ledger_id: int, lac: int, **changes: Any) -> LacItem:
    return LacItem(ledger_id, 0, lac, 0, int(DigestType.CRC32C), ACCESS.key)._replace(**changes)


def tell(bookie: StillBookie, items: list[LacItem]) -> dict[int, Answer]:
    said = ask(bookie, Kind.WRITE_LACS, encode_lacs(items))
    assert said.answer is Answer.OK
    return dict(native_bodies.decode_refused_lacs(said.body))


def lac_of(bookie: StillBookie, ledger_id: int) -> tuple[int, bytes]:
    said = ask(bookie, Kind.READ_LAC, ledger_id=ledger_id)
    return said.lac, native_bodies.decode_lac_body(said.body)[0]


def test_the_lacs_of_many_ledgers(bookie: StillBookie) -> None:
    mac = HMAC.lac_body(5, 4)
    bookie.create(5, 13)
    refused = tell(
        bookie,
        [
            item(LEDGER, 6),
            item(GOOD.ledger_id, 6),
            item(5, 4, digest_type=int(DigestType.HMAC), body=mac),
            item(6, 4, digest_type=int(DigestType.HMAC)),
            item(7, 4, digest_type=int(DigestType.HMAC), body=mac),
            item(8, 4, digest_type=int(DigestType.HMAC), body=HMAC.lac_body(8, 5)),
            item(9, 4, body=ACCESS.digest.lac_body(9, 4)),
            item(11, 4, digest_type=77),
            item(12, 4, key=bytes(20)),
            item(13, 4, digest_type=int(DigestType.DUMMY)),
        ],
    )
    no = Answer.BAD_REQUEST
    unauthorised = Answer.UNAUTHORISED
    assert refused == {
        GOOD.ledger_id: unauthorised, 6: no, 7: no, 8: no, 9: no, 11: no, 12: unauthorised
    }  # fmt: skip
    assert lac_of(bookie, LEDGER) == (6, ACCESS.digest.lac_body(LEDGER, 6)), "readers can check it"
    assert lac_of(bookie, 5) == (4, mac)
    assert lac_of(bookie, 13)[0] == 4
    assert tell(bookie, [item(LEDGER, 8)]) == {}
    assert lac_of(bookie, LEDGER) == (8, ACCESS.digest.lac_body(LEDGER, 8)), "no stale body with a lower LAC"
    assert tell(bookie, []) == {}


@pytest.mark.parametrize(
    "body", [struct.pack(">I", 4097), struct.pack(">I", 1), b"", struct.pack(">I", 0) + b"more"]
)
def test_a_count_that_does_not_fit_is_refused(bookie: StillBookie, body: bytes) -> None:
    assert ask(bookie, Kind.WRITE_LACS, body).answer is Answer.BAD_REQUEST


def test_write_lacs_is_for_no_one_ledger(bookie: StillBookie) -> None:
    body = encode_lacs([item(LEDGER, 6)])
    assert ask(bookie, Kind.WRITE_LACS, body, ledger_id=LEDGER).answer is Answer.BAD_REQUEST


# --- what it refuses of a client that does not know terms -----------------------------------------------------------------------------------


def scheme_1_run() -> bytes:
    entry = ACCESS.digest.seal_with_term(LEDGER, 20, 9, 1, b"x", origin_term=0) + b"x"
    return encode_run(LEDGER, 20, 20, [entry], [len(entry)], digest_type=3, scheme=SCHEME_TERMS)


def run_with_a_term() -> bytes:
    entry = ACCESS.digest.seal_one(LEDGER, 20, 9, 1, b"x") + b"x"
    return encode_run(LEDGER, 20, 20, [entry], [len(entry)], digest_type=3, origin_term=1)


@pytest.mark.parametrize(
    ("kind", "body", "fields"),
    [
        (Kind.ADD, a_run(20, 21), {"term": 1}),
        (Kind.ADD, run_with_a_term(), {}),
        (Kind.ADD, scheme_1_run(), {}),
        (Kind.WRITE_LAC, ACCESS.digest.lac_body(LEDGER, 3), {"term": 1}),
        (Kind.READ_LAC, b"", {"term": 1, "flags": int(Flag.FENCE)}),
        (
            Kind.WRITE_LACS,
            encode_lacs([LacItem(LEDGER, 0, 4, 1, 3, ACCESS.key)]),
            {"ledger_id": -1},
        ),
    ],
)
def test_terms_of_a_client_that_does_not_announce_them_are_refused(
    bookie: StillBookie, kind: Kind, body: bytes, fields: dict[str, Any]
) -> None:
    fields = {"ledger_id": LEDGER, "digest_type": 3, "key": ACCESS.key} | fields
    said = ask(bookie, kind, body, **fields)
    assert said.answer is Answer.BAD_REQUEST
    info = native_info.decode_info(ask(bookie, Kind.INFO, ledger_id=LEDGER).body)
    assert (info["term"], info["fenced"], info["last_entry"]) == (0, False, ENTRIES - 1)


@pytest.mark.parametrize(("term", "answer"), [(0, Answer.OK), (ANY_TERM, Answer.OK), (1, Answer.BAD_REQUEST)])
def test_a_read_of_such_a_client_names_no_term_but_0(bookie: StillBookie, term: int, answer: Answer) -> None:
    body = native_bodies.encode_body(native_bodies.ReadBody(0, 1, 100, term))
    assert ask(bookie, Kind.READ, body, ledger_id=LEDGER).answer is answer


def test_a_long_poll_of_such_a_client_names_no_term(bookie: StillBookie) -> None:
    body = native_bodies.encode_body(native_bodies.LongPollBody(-1, 0, 3, 100, 10, 1))
    assert ask(bookie, Kind.LONG_POLL, body, ledger_id=LEDGER).answer is Answer.BAD_REQUEST


def test_a_truncate_is_refused(bookie: StillBookie) -> None:
    body = native_bodies.encode_body(native_bodies.TruncateBody(5))
    said = ask(bookie, Kind.TRUNCATE, body, ledger_id=LEDGER, key=ACCESS.key)
    assert said.answer is Answer.BAD_REQUEST
    assert bookie.intact()


# --- low-priority work --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "answer"),
    [
        (Flag.RECOVERY, Answer.OK),
        (Flag.RECOVERY | Flag.LOW_PRIORITY, Answer.READ_ONLY),
        (Flag.LOW_PRIORITY, Answer.READ_ONLY),
        (0, Answer.READ_ONLY),
    ],
)
def test_low_priority_adds_leave_the_reserve_alone(bookie: StillBookie, flags: int, answer: Answer) -> None:
    run = a_run(20, 21)
    add = {"ledger_id": LEDGER, "digest_type": 3, "key": ACCESS.key, "flags": int(flags)}
    bookie.server.ledgers.read_only = True
    assert ask(bookie, Kind.ADD, run, **add).answer is answer
    bookie.server.ledgers.read_only = False
    assert ask(bookie, Kind.ADD, run, **add).answer is Answer.OK

"""A bookie and a stream: terms in requests and responses, entries by their origin term, and what it reads in the record."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from quire.core.answers import Answer
from quire.core.bookie.ledger import LedgerFacts
from quire.core.ids import LedgerId
from quire.core.ledger.metadata import LedgerMetadata, new_stream
from quire.core.ledger.terms import Terms
from quire.metadata.bookies import BookieRegistry
from quire.metadata.records import OF_STREAMS, RecordStore
from quire.wire import bookkeeper, native, native_bodies, native_hello, native_info, v2, v3
from quire.wire.bookie_service_info import FEATURES_PROPERTY, parse_features_property
from quire.wire.native import Flag, Kind
from quire.wire.native_bodies import ANY_TERM, LacItem
from quire.wire.proto import bookkeeper_protocol_pb2 as pb
from quire.wire.run import SCHEME_TERMS, RunView, checksum, encode_run
from support.hostile_worlds import ACCESS, ENTRIES, LEDGER, PASSWORD, StillBookie
from support.many_lacs import encode_lacs
from support.records import record_of

STREAM = LedgerId(77)
KEY = ACCESS.key
FENCE = int(Flag.FENCE | Flag.RECOVERY)
RECOVERY = int(Flag.RECOVERY)


class StreamBookie(StillBookie):
    """A bookie, and a stream in term 3 that it has not heard of."""

    def __init__(self) -> None:
        super().__init__()
        self.record = new_stream(record_of(STREAM, [self.server.bookie_id], password=PASSWORD), owner=5)
        self.record = self.in_term(3)
        self.until_done(RecordStore(self.store, OF_STREAMS).create(self.record, "stream"))

    def in_term(self, term: int) -> LedgerMetadata:
        terms = self.record.terms
        assert isinstance(terms, Terms)
        return replace(self.record, terms=replace(terms, term=term))

    def announce(self, term: int) -> None:
        """A take-over begins: its term is in the record."""
        streams = RecordStore(self.store, OF_STREAMS)
        _, version = self.until_done(streams.read(STREAM))
        self.until_done(streams.write(self.in_term(term), version))

    def ask(
        self, kind: Kind, body: bytes = b"", *, features: int = native_hello.TERMS, **fields: Any
    ) -> native.AnswerFrame:
        fields = {"ledger_id": STREAM, "digest_type": 3, "key": KEY} | fields
        head = native.encode_request(kind, 7, len(body), checksum(body), **fields)
        said = memoryview(self.serve_pieces([self.hello_of(features), head + body]))
        split = native_hello.split_hello(said)
        assert split is not None
        return native.decode_answer(said[split[1] :])

    def add(
        self, term: int, entry_id: int, origin_term: int | None = None, count: int = 1, **fields: Any
    ) -> Answer:
        origin = term if origin_term is None else origin_term
        body = stream_run(entry_id, entry_id + count - 1, origin)
        return self.ask(Kind.ADD, body, term=term, **{"lac": entry_id - 1} | fields).answer

    def read(
        self, first: int, last: int, origin_term: int, **fields: Any
    ) -> tuple[Answer, dict[int, bytes], int]:
        body = native_bodies.encode_body(native_bodies.ReadBody(first, last, 1 << 20, origin_term))
        said = self.ask(Kind.READ, body, **fields)
        if said.answer is not Answer.OK:
            return said.answer, {}, -1
        found = native_bodies.decode_entries(said.body, origin_term=origin_term)
        here = payloads(found.runs, origin_term).items()  # runs may reach beyond
        return (
            said.answer,
            {one: what for one, what in here if first <= one <= last},
            found.conclusive_through,
        )

    def until_stored(self, work: Any) -> Any:
        """As `until_done`, with a disk that does what is asked of it."""
        task = self.loop.spawn(work)
        for _ in range(100):
            self.pass_time(10**7)
            self.inside(self.worker.finish)
            if task.done():
                return task.result()
        raise AssertionError("it does not end")

    def info(self) -> dict[str, Any]:
        return native_info.decode_info(self.ask(Kind.INFO).body)


def stream_run(first: int, last: int, origin_term: int, inside: int | None = None, **fields: Any) -> bytes:
    """Entries of a stream; `inside`: what their own headers say is their origin term."""
    term = origin_term if inside is None else inside
    entries = []
    for entry_id in range(first, last + 1):
        payload = b"%d of %d" % (entry_id, origin_term)
        head = ACCESS.digest.seal_with_term(STREAM, entry_id, first - 1, 0, payload, origin_term=term)
        entries.append(head + payload)
    fields = {"digest_type": 3, "origin_term": origin_term, "scheme": SCHEME_TERMS} | fields
    return encode_run(STREAM, first, last, entries, list(map(len, entries)), **fields)


def payloads(runs: list[RunView], origin_term: int) -> dict[int, bytes]:
    found = {}
    for run in runs:
        for entry_id, entry in run.entries():
            opened = ACCESS.digest.open_with_term(entry, STREAM, entry_id)
            assert opened.origin_term == origin_term
            found[entry_id] = bytes(opened.entry.payload)
    return found


@pytest.fixture
def bookie() -> StreamBookie:
    return StreamBookie()


# --- terms -----------------------------------------------------------------------------------------------------------


def test_it_announces_that_it_knows_terms(bookie: StreamBookie) -> None:
    bookies = bookie.until_done(BookieRegistry(bookie.store).available())
    properties = bookies[bookie.server.bookie_id].properties
    assert "terms" in parse_features_property(properties[FEATURES_PROPERTY])


def test_a_writer_appends_until_another_takes_over(bookie: StreamBookie) -> None:
    assert [bookie.add(3, entry_id) for entry_id in range(3)] == [Answer.OK] * 3
    said = bookie.ask(Kind.READ_LAC, term=4, flags=FENCE)
    assert (said.answer, said.term, said.lac) == (Answer.OK, 4, 1)
    assert native_bodies.decode_lac_body(said.body)[2] == 3, "the LAC is of the old writer's term"
    refused = bookie.ask(Kind.ADD, stream_run(3, 3, 3), term=3)
    assert (refused.answer, refused.term) == (Answer.INVALID_TERM, 4), (
        "it learns which term came after its own"
    )
    assert bookie.add(4, 2, 3, flags=RECOVERY) is Answer.OK, "the recoverer writes back what it read"
    assert bookie.add(4, 3) is Answer.OK
    assert bookie.read(0, 9, 3) == (Answer.OK, {n: b"%d of 3" % n for n in range(3)}, 9)
    assert bookie.read(0, 9, 4) == (Answer.OK, {3: b"3 of 4"}, 9)
    info = bookie.info()
    assert (info["term"], info["fenced"], info["lac"]) == (4, False, 2)


def test_an_entry_of_another_term_is_no_such_entry(bookie: StreamBookie) -> None:
    assert bookie.add(3, 0, count=5) is Answer.OK
    assert bookie.add(4, 2, count=2) is Answer.OK, "the old writer's 2 and 3 were never acknowledged"
    assert bookie.read(2, 3, 4)[1] == {2: b"2 of 4", 3: b"3 of 4"}
    assert bookie.read(2, 3, 3)[1] == {2: b"2 of 3", 3: b"3 of 3"}
    assert bookie.read(2, 3, 5) == (Answer.OK, {}, 3)
    page, _ = native_bodies.decode_held(
        bookie.ask(Kind.LIST_ENTRIES, native_bodies.encode_body(native_bodies.ListBody(0, 9))).body, 0
    )
    assert [(one.first, one.last, one.origin_term) for one in page] == [(0, 4, 3), (2, 3, 4)]


def test_a_stored_add_carries_its_term(bookie: StreamBookie) -> None:
    added = bookie.ask(Kind.ADD, stream_run(0, 0, 3), term=3)
    assert (added.answer, added.term) == (Answer.OK, 3)
    added = bookie.ask(Kind.ADD, stream_run(1, 1, 3), term=3, flags=int(Flag.HIGH_PRIORITY))
    assert (added.answer, added.term) == (Answer.OK, 3), "nor do those that are opened the long way"


def test_a_poll_gets_entries_of_its_term(bookie: StreamBookie) -> None:
    assert bookie.add(3, 0, count=2) is Answer.OK
    assert bookie.add(3, 2) is Answer.OK
    body = native_bodies.encode_body(native_bodies.LongPollBody(-1, 0, 5, 1 << 20, 10, 3))
    said = bookie.ask(Kind.LONG_POLL, body)
    found = native_bodies.decode_entries(said.body, origin_term=3)
    assert (said.lac, found.lac_term) == (1, 3)
    assert set(payloads(found.runs, 3)) >= {0, 1}
    without = native_bodies.encode_body(native_bodies.LongPollBody(-1, 0, 5, 1 << 20, 10))
    assert bookie.ask(Kind.LONG_POLL, without).answer is Answer.BAD_REQUEST


def test_lacs_of_many_ledgers_have_terms(bookie: StreamBookie) -> None:
    assert bookie.add(3, 0, count=4) is Answer.OK

    def tell(lac: int, term: int) -> list[tuple[int, Answer]]:
        body = encode_lacs([LacItem(STREAM, 0, lac, term, 3, KEY)])
        said = bookie.ask(Kind.WRITE_LACS, body, ledger_id=-1, digest_type=0, key=bytes(20))
        return native_bodies.decode_refused_lacs(said.body)

    assert tell(2, 3) == []
    assert bookie.info()["lac"] == 2
    assert tell(3, 2) == [(STREAM, Answer.INVALID_TERM)]
    assert tell(3, 0) == [(STREAM, Answer.INVALID_TERM)]
    assert tell(3, 4) == []
    assert (bookie.info()["lac"], bookie.info()["term"]) == (3, 4)
    facts = bookie.server.storage.facts(STREAM)
    assert facts is not None
    assert facts.term == 4


# --- the record ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("term", "answer"),
    [(1, Answer.INVALID_TERM), (2, Answer.INVALID_TERM), (3, Answer.OK), (3 + (1 << 40), Answer.BAD_REQUEST)],
)
def test_the_first_request_is_compared_with_the_record(
    bookie: StreamBookie, term: int, answer: Answer
) -> None:
    assert bookie.add(term, 0) is answer
    assert (bookie.server.storage.facts(STREAM) is not None) == (answer is Answer.OK)


def test_a_fence_of_an_earlier_term_leaves_an_unknown_ledger_unknown(bookie: StreamBookie) -> None:
    assert bookie.ask(Kind.READ_LAC, term=2, flags=FENCE).answer is Answer.INVALID_TERM
    assert bookie.server.storage.facts(STREAM) is None
    assert bookie.ask(Kind.READ_LAC, term=3, flags=FENCE).answer is Answer.OK


def test_what_was_here_before_a_term_was_taken_is_known(bookie: StreamBookie) -> None:
    """Compaction merges nothing across that LSN: an entry of an earlier term would get one above those of the new term."""
    storage = bookie.server.storage
    assert bookie.add(3, 0) is Answer.OK
    before = storage.journal.last_lsn
    assert bookie.ask(Kind.READ_LAC, term=5, flags=FENCE).answer is Answer.OK
    assert storage.facts(STREAM).term_lsn == before  # type: ignore[union-attr]
    assert bookie.add(5, 1) is Answer.OK
    assert bookie.add(5, 2) is Answer.OK
    assert storage.facts(STREAM).term_lsn == before  # type: ignore[union-attr]
    assert bookie.ask(Kind.READ_LAC, term=6, flags=FENCE).answer is Answer.OK
    assert storage.facts(STREAM).term_lsn > before  # type: ignore[union-attr]


def test_a_ledgers_id_is_no_streams_and_back(bookie: StreamBookie) -> None:
    assert bookie.ask(Kind.READ_LAC, ledger_id=LEDGER, term=1, flags=FENCE).answer is Answer.BAD_REQUEST
    assert bookie.add(0, 0, 3) is Answer.BAD_REQUEST, "entries of a stream, and no term"
    assert bookie.ask(Kind.READ_LAC, flags=FENCE).answer is Answer.INVALID_TERM
    info = native_info.decode_info(bookie.ask(Kind.INFO, ledger_id=LEDGER).body)
    assert (info["term"], info["fenced"], info["last_entry"]) == (0, False, ENTRIES - 1)


def in_limbo(bookie: StreamBookie, term: int) -> None:
    told: list[Any] = []
    facts = LedgerFacts(STREAM, KEY, term=term)
    bookie.inside(lambda: bookie.server.ledgers.put_in_limbo(facts, told.append))
    bookie.pass_time(10**8)
    assert told == [None]


def test_in_limbo_it_takes_the_term_of_the_record(bookie: StreamBookie) -> None:
    """It forgot a take-over: the old writer's entry waits for the record, and is refused."""
    assert bookie.add(3, 0) is Answer.OK
    in_limbo(bookie, 3)
    bookie.announce(5)
    assert bookie.add(3, 1) is Answer.INVALID_TERM
    assert bookie.info()["term"] == 5
    assert bookie.ask(Kind.READ_LAC, term=4, flags=FENCE).answer is Answer.INVALID_TERM
    assert bookie.add(5, 1) is Answer.OK
    assert bookie.read(0, 9, 3, term=5, flags=FENCE)[1:] == ({0: b"0 of 3"}, -1), (
        "what is not here is unknown"
    )
    lsn = bookie.info()["doubt_lsn"]
    clear = native_bodies.encode_body(native_bodies.ClearLimboBody(lsn))
    assert bookie.ask(Kind.CLEAR_LIMBO, clear).answer is Answer.OK
    assert bookie.read(0, 9, 3, term=5, flags=FENCE)[1:] == ({0: b"0 of 3"}, 9)
    assert not bookie.info()["fenced"]


@pytest.mark.parametrize("kind", [Kind.READ_LAC, Kind.CLEAR_LIMBO])
def test_in_limbo_the_first_request_of_any_kind_reads_the_record(bookie: StreamBookie, kind: Kind) -> None:
    assert bookie.add(3, 0) is Answer.OK
    in_limbo(bookie, 3)
    bookie.announce(5)
    if kind is Kind.READ_LAC:
        assert bookie.ask(kind, term=3, flags=FENCE).answer is Answer.INVALID_TERM
    else:
        clear = native_bodies.encode_body(native_bodies.ClearLimboBody(bookie.info()["doubt_lsn"]))
        assert bookie.ask(kind, clear).answer is Answer.OK
    assert bookie.info()["term"] == 5


def test_a_bookie_that_lost_everything_finds_its_streams_in_their_records(bookie: StreamBookie) -> None:
    bookie.announce(4)
    bookie.until_stored(bookie.server.lost.search())
    assert (bookie.info()["limbo"], bookie.info()["term"]) == (True, 4)
    assert bookie.add(3, 0) is Answer.INVALID_TERM


# --- collection ------------------------------------------------------------------------------------------------------


def test_a_stream_is_kept_until_it_is_deleted(bookie: StreamBookie) -> None:
    collector = bookie.server.collector
    assert bookie.add(3, 0, count=3) is Answer.OK
    orphan = LedgerFacts(99, KEY)
    bookie.inside(lambda: bookie.server.ledgers.put_in_limbo(orphan, lambda _: None))
    for _ in range(3):
        bookie.until_stored(collector.collect())
    assert collector.report.dropped == 0
    assert collector.orphans(-1)["unknown"] == [99], "that has no record of either kind"
    assert bookie.read(0, 2, 3)[1].keys() == {0, 1, 2}
    bookie.until_done(RecordStore(bookie.store, OF_STREAMS).delete(STREAM, name="stream"))
    for _ in range(2):
        bookie.until_stored(collector.collect())
    assert collector.report.dropped == 1
    assert bookie.add(3, 3) is Answer.DELETED
    assert list(bookie.server.storage.held_from(STREAM, 0)) == []


# --- what it refuses -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "fields"),
    [
        (stream_run(0, 0, 3), {"term": 4}),
        (stream_run(0, 0, 4), {"term": 3, "flags": RECOVERY}),
        (stream_run(0, 0, 3, inside=2), {"term": 3}),
        (stream_run(0, 1, 3, inside=2), {"term": 3}),
        (stream_run(0, 0, 3, scheme=0), {"term": 3}),
        (stream_run(0, 0, 3), {}),
        (stream_run(0, 0, 3), {"term": 1 << 63}),
        (stream_run(0, 0, 0, scheme=0), {"term": 3}),
    ],
)
def test_adds_whose_terms_do_not_fit(bookie: StreamBookie, body: bytes, fields: dict[str, int]) -> None:
    for high in (0, int(Flag.HIGH_PRIORITY)):  # the short way and the long way
        flags = fields.get("flags", 0) | high
        assert bookie.ask(Kind.ADD, body, **fields | {"flags": flags}).answer is Answer.BAD_REQUEST
    assert bookie.server.storage.facts(STREAM) is None


def test_reads_without_a_possible_term(bookie: StreamBookie) -> None:
    assert bookie.add(3, 0) is Answer.OK
    for term in (0, ANY_TERM, 1 << 63):
        body = native_bodies.encode_body(native_bodies.ReadBody(0, 9, 100, term))
        assert bookie.ask(Kind.READ, body).answer is Answer.BAD_REQUEST
    body = native_bodies.encode_body(native_bodies.ReadBody(0, 9, 100, 3))
    assert bookie.ask(Kind.READ, body, features=0).answer is Answer.BAD_REQUEST
    assert bookie.read(0, 9, 3, ledger_id=LEDGER) == (Answer.OK, {}, 9), "a ledger has no entry of a term"


def test_java_gets_nothing_of_a_stream(bookie: StreamBookie) -> None:
    assert bookie.add(3, 0) is Answer.OK
    payload = b"from V2"
    entry = ACCESS.digest.seal_one(STREAM, 1, 0, 1, payload) + payload

    def v2_code(frame: bytes) -> int:
        said = bookie.serve_pieces([frame])
        return int(v2.ANSWER.unpack_from(said)[2])

    assert v2_code(b"".join(v2.encode_add(KEY, entry))) == bookkeeper.v2_code(Answer.INVALID_TERM)
    assert v2_code(v2.encode_read(STREAM, 0, v2.V2Flag.NONE, b"")) == bookkeeper.v2_code(Answer.BAD_REQUEST)
    fence = v2.encode_read(STREAM, bookkeeper.LAST_ENTRY, v2.V2Flag.DO_FENCING, KEY)
    assert v2_code(fence) == bookkeeper.v2_code(Answer.INVALID_TERM)
    assert (bookie.info()["fenced"], bookie.info()["last_entry"]) == (False, 0)


@pytest.mark.parametrize(
    ("operation", "fill", "answer"),
    [
        (pb.ADD_ENTRY, {"entryId": 1, "masterKey": KEY, "body": b"from V3"}, Answer.INVALID_TERM),
        (pb.READ_ENTRY, {"entryId": 0}, Answer.BAD_REQUEST),
        (pb.READ_ENTRY, {"entryId": 0, "flag": v3.FENCE_LEDGER, "masterKey": KEY}, Answer.INVALID_TERM),
        (
            pb.READ_ENTRY,
            {"entryId": -1, "previousLAC": -1, "flag": v3.ENTRY_PIGGYBACK, "timeOut": 1},
            Answer.BAD_REQUEST,
        ),
        (pb.READ_LAC, {}, Answer.BAD_REQUEST),
        (
            pb.WRITE_LAC,
            {"lac": 0, "masterKey": KEY, "body": ACCESS.digest.lac_body(STREAM, 0)},
            Answer.INVALID_TERM,
        ),
        (pb.GET_LIST_OF_ENTRIES_OF_LEDGER, {}, Answer.BAD_REQUEST),
    ],
)
def test_no_request_of_v3_changes_a_stream_or_gets_an_entry_of_it(
    bookie: StreamBookie, operation: int, fill: dict[str, Any], answer: Answer
) -> None:
    assert bookie.add(3, 0) is Answer.OK
    if operation == pb.ADD_ENTRY:
        fill = fill | {"body": ACCESS.digest.seal_one(STREAM, 1, 0, 7, fill["body"]) + fill["body"]}
    message = v3.request(operation, 9)
    body = getattr(message, v3.REQUEST_BODY[operation])
    for name, value in {"ledgerId": STREAM, **fill}.items():
        setattr(body, name, value)
    said = v3.decode_response(bookie.serve_pieces([v3.frame_of(message)]))
    assert v3.status_of(said) == bookkeeper.v3_code(answer) != 0
    assert (bookie.info()["fenced"], bookie.info()["last_entry"]) == (False, 0)
    assert bookie.read(0, 0, 3) == (Answer.OK, {0: b"0 of 3"}, 0)
    assert bookie.add(3, 1) is Answer.OK


# --- truncation, where terms only fence ------------------------------------------------------------------------------


def truncated(bookie: StreamBookie, first: int, term: int, **fields: Any) -> Answer:
    return bookie.ask(
        Kind.TRUNCATE, native_bodies.encode_body(native_bodies.TruncateBody(first)), term=term, **fields
    ).answer


def test_a_truncation_takes_what_earlier_terms_left_and_no_second_one_takes_more(
    bookie: StreamBookie,
) -> None:
    for entry_id in range(5):
        bookie.add(3, entry_id)
    assert truncated(bookie, 2, 4) is Answer.OK
    assert bookie.read(0, 9, 3) == (Answer.OK, {n: b"%d of 3" % n for n in range(2)}, 9)
    assert bookie.add(3, 5) is Answer.INVALID_TERM, "it is in term 4"
    assert bookie.add(4, 2, flags=RECOVERY) is Answer.OK, "the no-op"
    assert bookie.add(4, 3) is Answer.OK
    for first in (2, 700, 0):
        assert truncated(bookie, first, 4) is Answer.OK
    assert bookie.read(0, 9, 4) == (Answer.OK, {n: b"%d of 4" % n for n in (2, 3)}, 9)
    assert bookie.read(0, 9, 3) == (Answer.OK, {}, 9)


def test_a_truncation_is_refused_of_a_lower_term_a_wrong_key_and_an_impossible_id(
    bookie: StreamBookie,
) -> None:
    for entry_id in range(3):
        bookie.add(4, entry_id)
    assert truncated(bookie, 0, 3) is Answer.INVALID_TERM
    assert truncated(bookie, 0, 0) is Answer.INVALID_TERM
    assert truncated(bookie, 0, 5, features=0) is Answer.BAD_REQUEST, "who did not announce terms has none"
    assert truncated(bookie, 0, 5, key=b"x" * 20) is Answer.UNAUTHORISED
    assert truncated(bookie, 0, 4 + (1 << 33)) is Answer.BAD_REQUEST
    impossible = (-1).to_bytes(8, "big", signed=True)
    assert bookie.ask(Kind.TRUNCATE, impossible, term=5).answer is Answer.BAD_REQUEST
    assert bookie.ask(Kind.TRUNCATE, b"", term=5).answer is Answer.BAD_REQUEST
    assert bookie.read(0, 9, 4) == (Answer.OK, {n: b"%d of 4" % n for n in range(3)}, 9)


def test_the_first_request_for_a_stream_may_be_a_truncation(bookie: StreamBookie) -> None:
    assert truncated(bookie, 0, 2) is Answer.INVALID_TERM, "the record is in term 3"
    assert truncated(bookie, 0, 3) is Answer.OK
    assert bookie.info()["term"] == 3

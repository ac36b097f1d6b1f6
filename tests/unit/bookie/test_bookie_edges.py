"""Requests for what cannot be: each is refused by its code, nothing is remembered of it, and no negative is given."""

from __future__ import annotations

import errno
import struct
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from quire.bookie.connections.polls import POLLS_MAX
from quire.core.answers import Answer
from quire.core.bookie.ledger import LedgerFacts
from quire.core.ids import ID_MAX
from quire.core.ledger.metadata import DigestType
from quire.core.ledger.stripes import HeldInterval
from quire.wire import bookkeeper, native, native_bodies, native_hello, v2, v3
from quire.wire.entry import Buffer, EntryDigest, master_key
from quire.wire.native import Flag, Kind
from quire.wire.native_hello import VERSION
from quire.wire.proto import bookkeeper_protocol_pb2 as pb
from quire.wire.run import checksum
from support.hostile_inputs import frames_of
from support.hostile_worlds import ACCESS, ENTRIES, GOOD, LEDGER, PASSWORD, StillBookie, a_run
from support.records import put_record, record_of

MINUS = -5
NOT_KNOWN = 0x77777777


@pytest.fixture(scope="module")
def bookie() -> StillBookie:
    return StillBookie()


def ask(bookie: StillBookie, kind: Kind, body: bytes = b"", **fields: Any) -> native.AnswerFrame:
    head = native.encode_request(kind, 7, len(body), checksum(body), **fields)
    said = memoryview(bookie.serve_pieces([bookie.hello, head + body]))
    greeting, used = native_hello.split_hello(said) or (b"", 0)
    assert native_hello.decode_hello_answer(greeting).version == VERSION
    return native.decode_answer(said[used:])


def read_body(first: int, last: int, bytes_max: int = 100) -> bytes:
    return struct.pack(">qqIQ", first, last, bytes_max, native_bodies.ANY_TERM)


@pytest.mark.parametrize(
    ("kind", "body", "fields"),
    [
        (Kind.READ, read_body(0, 1), {"ledger_id": MINUS}),
        (Kind.READ, read_body(0, 1), {"ledger_id": -1}),
        (Kind.READ, read_body(MINUS, 1), {"ledger_id": LEDGER}),
        (Kind.READ, read_body(3, 1), {"ledger_id": LEDGER}),
        (Kind.READ, read_body(0, 1)[:-1], {"ledger_id": LEDGER}),
        (Kind.READ, read_body(0, 1), {"ledger_id": LEDGER, "lac": MINUS}),
        (Kind.READ, read_body(0, 1), {"ledger_id": LEDGER, "term": 1 << 63}),
        (Kind.READ, read_body(0, 1), {"ledger_id": LEDGER, "digest_type": 200}),
        (Kind.READ, read_body(MINUS, 1), {"ledger_id": LEDGER, "key": ACCESS.key, "flags": int(Flag.FENCE)}),
        (Kind.READ_LAC, b"", {"ledger_id": -1}),
        (Kind.LONG_POLL, native_bodies.encode_body(native_bodies.LongPollBody(-1, 0, 9, 100, 10)), {"ledger_id": -1}),
        (Kind.LONG_POLL, native_bodies.encode_body(native_bodies.LongPollBody(MINUS, 0, 9, 100, 10)), {"ledger_id": LEDGER}),
        (Kind.LIST_ENTRIES, b"", {"ledger_id": -1}),
        (Kind.INFO, b"", {"ledger_id": MINUS}),
        (Kind.CLEAR_LIMBO, b"", {"ledger_id": -1, "key": ACCESS.key}),
        (Kind.WRITE_LAC, GOOD.digest.lac_body(LEDGER, MINUS), {"ledger_id": LEDGER, "key": ACCESS.key}),
        (Kind.WRITE_LAC, GOOD.digest.lac_body(8, 3), {"ledger_id": LEDGER, "key": ACCESS.key}),
        (Kind.WRITE_LAC, bytes(15), {"ledger_id": 0, "key": ACCESS.key}),
        (Kind.WRITE_LAC, bytes(1000), {"ledger_id": 0, "key": ACCESS.key}),
        (Kind.ADD, a_run(20, 22), {"ledger_id": 8, "key": ACCESS.key}),
        (Kind.ADD, a_run(20, 22), {"ledger_id": LEDGER, "key": ACCESS.key, "lac": ID_MAX}),
        (Kind.ADD, a_run(20, 22), {"ledger_id": LEDGER}),
        (Kind.ADD, a_run(20, 22)[:-1], {"ledger_id": LEDGER, "key": ACCESS.key}),
        (Kind.ADD, b"", {"ledger_id": LEDGER, "key": ACCESS.key}),
    ],
)  # fmt: skip
def test_our_protocol(bookie: StillBookie, kind: Kind, body: bytes, fields: dict[str, Any]) -> None:
    assert ask(bookie, kind, body, **fields).answer is Answer.BAD_REQUEST
    assert bookie.server.ledgers.lac(LEDGER) == ENTRIES - 2 or bookie.server.ledgers.lac(LEDGER) == -1


def test_a_frame_behind_a_bad_request_is_served(bookie: StillBookie) -> None:
    bad, good = read_body(5, 1), read_body(0, ENTRIES - 1, 1 << 20)
    heads = [
        native.encode_request(Kind.READ, n, len(b), checksum(b), ledger_id=LEDGER)
        for n, b in ((1, bad), (2, good))
    ]
    said = bookie.serve_pieces([bookie.hello, heads[0] + bad + heads[1] + good])[bookie.greeting :]
    answers = [native.decode_answer(memoryview(frame)) for frame in frames_of(said)]
    assert [(answer.number, answer.answer) for answer in answers] == [(1, Answer.BAD_REQUEST), (2, Answer.OK)]


@pytest.mark.parametrize(
    "name", ["b" * 65_400, "\x01" * 30_000, "b1\nclosing the log"], ids=["long", "quoted", "lines"]
)
@pytest.mark.parametrize("field", ["cluster_instance", "bookie_id", "auth_scheme"])
def test_a_name_in_a_hello_may_be_anything(
    bookie: StillBookie, field: str, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It is repeated in the response and in the log: in one line of a bounded length."""
    names = {"cluster_instance": "", "bookie_id": "", field: name}
    bookie.server._closing_log.sweep()
    said = bookie.serve_pieces([native_hello.encode_hello(native_hello.Hello(**names))])
    greeting, _ = native_hello.split_hello(memoryview(said)) or (b"", 0)
    answer = native_hello.decode_hello_answer(greeting)
    assert answer.answer in {Answer.WRONG_BOOKIE, Answer.UNAUTHORISED}
    [record] = caplog.records
    assert answer.message in record.getMessage()
    assert record.getMessage().isprintable()
    assert len(record.getMessage()) < 2000


def test_nothing_is_remembered_of_who_has_no_key(bookie: StillBookie) -> None:
    lac_body = GOOD.digest.lac_body(NOT_KNOWN, 5)
    for kind, body, flags in (
        (Kind.READ, read_body(0, 1), Flag.FENCE),
        (Kind.READ_LAC, b"", Flag.FENCE),
        (Kind.WRITE_LAC, lac_body, Flag.NONE),
    ):
        answer = ask(bookie, kind, body, ledger_id=NOT_KNOWN, flags=int(flags)).answer
        assert answer is Answer.UNAUTHORISED
    fence = v2.encode_read(NOT_KNOWN, 0, v2.V2Flag.DO_FENCING, version=1)
    assert v2.decode_answer(bookie.serve_pieces([fence])).code == bookkeeper.v2_code(Answer.UNAUTHORISED)
    assert NOT_KNOWN not in bookie.server.ledgers._machines
    assert ask(bookie, Kind.READ, read_body(0, 1), ledger_id=NOT_KNOWN).answer is Answer.NO_LEDGER


def test_a_read_of_no_bytes_brings_the_first_entries(bookie: StillBookie) -> None:
    """It once was looked for without end: one request and the bookie served nobody any more."""
    answer = ask(bookie, Kind.READ, read_body(0, ENTRIES - 1, 0), ledger_id=GOOD.ledger_id)
    found = native_bodies.decode_entries(answer.body)
    assert found.runs[0].first == 0


def entry(ledger_id: int, entry_id: int, lac: int = -1, length: int = 5) -> bytes:
    return struct.pack(">qqqq", ledger_id, entry_id, lac, length) + bytes(9)


@pytest.mark.parametrize(
    "parts",
    [
        v2.encode_add(ACCESS.key, entry(MINUS, 1)),
        v2.encode_add(ACCESS.key, entry(8, MINUS)),
        v2.encode_add(ACCESS.key, entry(8, 1, length=MINUS)),
        [v2.encode_read(MINUS, 0)],
        [v2.encode_read(8, MINUS)],
        [v2.encode_read(MINUS, 0, v2.V2Flag.DO_FENCING, ACCESS.key)],
        [v2.encode_batch_read(MINUS, 0, 1, 10, 1000)],
        [v2.encode_batch_read(LEDGER, MINUS, 1, 10, 1000)],
    ],
)
def test_v2(bookie: StillBookie, parts: Sequence[Buffer]) -> None:
    answer = v2.decode_answer(bookie.serve_pieces([b"".join(parts)]))
    assert answer.code == bookkeeper.v2_code(Answer.BAD_REQUEST)  # type: ignore[union-attr]


def test_a_ledger_with_the_id_of_another_gets_its_own_digest_type(bookie: StillBookie) -> None:
    """Which type the other one had was learned from its record, without an entry of it."""
    ledger_id = NOT_KNOWN + 1
    key = master_key(PASSWORD)
    record = record_of(ledger_id, [bookie.server.bookie_id], password=PASSWORD)
    bookie.until_done(put_record(bookie.store, record))
    bookie.serve_pieces([b"".join(v2.encode_add(bytes(20), entry(ledger_id, 0)))])
    assert bookie.server.digest_types.get(ledger_id) is DigestType.CRC32C
    bookie.until_done(put_record(bookie.store, replace(record, digest_type=DigestType.CRC32)))
    sealed = EntryDigest(DigestType.CRC32, b"").seal(ledger_id, 0, -1, 0, [b"good"])[0] + b"good"
    said = [v2.decode_answer(bookie.serve_pieces([b"".join(v2.encode_add(key, sealed))])).code for _ in "12"]
    assert said == [0, 0]
    damaged = b"".join(v2.encode_add(key, sealed[:-1] + b"?"))
    answer = v2.decode_answer(bookie.serve_pieces([damaged]))
    assert answer.code == bookkeeper.v2_code(Answer.DAMAGED_IN_TRANSIT)


@pytest.mark.parametrize(
    ("count", "size"), [(-1, 1 << 62), (0, -1), (1 << 31 - 1, 0), (-(1 << 31), -(1 << 63))]
)
def test_absurd_sizes_of_a_batch_bring_the_first_entry_at_least(
    bookie: StillBookie, count: int, size: int
) -> None:
    answer = v2.decode_answer(bookie.serve_pieces([v2.encode_batch_read(LEDGER, 0, 1, count, size)]))
    assert isinstance(answer, v2.BatchReadAnswer)
    assert answer.code == 0
    assert len(answer.entries) == (ENTRIES if size > 1000 else 1)


@pytest.mark.parametrize("entry_id", [ID_MAX, ID_MAX - 1, ID_MAX - 1024])
def test_the_last_ids_there_are(bookie: StillBookie, entry_id: int) -> None:
    ledger_id = entry_id
    bookie.create(ledger_id)
    added = bookie.serve_pieces([b"".join(v2.encode_add(ACCESS.key, entry(ledger_id, entry_id)))])
    assert v2.decode_answer(added).code == 0  # type: ignore[union-attr]
    for frame in (v2.encode_read(ledger_id, entry_id), v2.encode_read(ledger_id, -1)):
        answer = v2.decode_answer(bookie.serve_pieces([frame]))
        assert isinstance(answer, v2.ReadAnswer)
        assert (answer.code, bytes(answer.entry)) == (0, entry(ledger_id, entry_id))
    batch = v2.decode_answer(bookie.serve_pieces([v2.encode_batch_read(ledger_id, entry_id, 1, 0, 1 << 20)]))
    assert len(batch.entries) == 1  # type: ignore[union-attr]
    held = ask(
        bookie,
        Kind.LIST_ENTRIES,
        native_bodies.encode_body(native_bodies.ListBody(0, 9)),
        ledger_id=ledger_id,
    )
    assert native_bodies.decode_held(held.body, 0) == (
        [HeldInterval(entry_id, entry_id, 1, 1)],
        -1,
    )
    found = native_bodies.decode_entries(
        ask(bookie, Kind.READ, read_body(entry_id, ID_MAX), ledger_id=ledger_id).body
    )
    assert [run.first for run in found.runs] == [entry_id]


def v3_request(operation: int, fill: dict[str, Any]) -> bytes:
    message = v3.request(operation, 9)
    body = getattr(message, v3.REQUEST_BODY[operation])
    for name, value in fill.items():
        setattr(body, name, value)
    return v3.frame_of(message)


@pytest.mark.parametrize(
    ("operation", "fill"),
    [
        (pb.READ_ENTRY, {"ledgerId": MINUS, "entryId": 0}),
        (pb.READ_ENTRY, {"ledgerId": 8, "entryId": MINUS}),
        (pb.READ_ENTRY, {"ledgerId": MINUS, "entryId": 0, "flag": v3.FENCE_LEDGER, "masterKey": ACCESS.key}),
        (
            pb.READ_ENTRY,
            {"ledgerId": 8, "entryId": -1, "previousLAC": MINUS, "flag": v3.ENTRY_PIGGYBACK, "timeOut": 1},
        ),
        (pb.READ_ENTRY, {"ledgerId": 8, "entryId": 1, "previousLAC": 1, "flag": v3.ENTRY_PIGGYBACK}),
        (pb.ADD_ENTRY, {"ledgerId": MINUS, "entryId": 0, "masterKey": ACCESS.key, "body": entry(MINUS, 0)}),
        (pb.ADD_ENTRY, {"ledgerId": 8, "entryId": MINUS, "masterKey": ACCESS.key, "body": entry(8, MINUS)}),
        (pb.ADD_ENTRY, {"ledgerId": 8, "entryId": 0, "masterKey": ACCESS.key, "body": entry(8, 1)}),
        (pb.ADD_ENTRY, {"ledgerId": 8, "entryId": 0, "masterKey": ACCESS.key, "body": b"short"}),
        (pb.WRITE_LAC, {"ledgerId": MINUS, "lac": 1, "masterKey": ACCESS.key, "body": bytes(20)}),
        (pb.WRITE_LAC, {"ledgerId": 0, "lac": 1, "masterKey": ACCESS.key, "body": bytes(1000)}),
        (pb.WRITE_LAC, {"ledgerId": 0, "lac": 1, "masterKey": ACCESS.key, "body": b""}),
        (pb.READ_LAC, {"ledgerId": MINUS}),
        (pb.FORCE_LEDGER, {"ledgerId": MINUS}),
        (pb.GET_LIST_OF_ENTRIES_OF_LEDGER, {"ledgerId": MINUS}),
    ],
)
def test_v3(bookie: StillBookie, operation: int, fill: dict[str, Any]) -> None:
    answer = v3.decode_response(bookie.serve_pieces([v3_request(operation, fill)]))
    assert answer.header.txnId == 9
    assert v3.status_of(answer) == bookkeeper.v3_code(Answer.BAD_REQUEST)


@pytest.mark.parametrize(("lost", "said"), [(False, Answer.NO_ENTRY), (True, Answer.ERROR)])
def test_a_lac_that_may_be_lost_is_not_denied_to_v3(bookie: StillBookie, lost: bool, said: Answer) -> None:
    """Of the ledger the bookie has no entry. In limbo it may have had some; "no entry" would say that it is empty."""
    ledger_id = NOT_KNOWN + 2 + lost
    facts = LedgerFacts(ledger_id, ACCESS.key)
    bookie.create(ledger_id)
    if lost:
        bookie.inside(lambda: bookie.server.ledgers.put_in_limbo(facts, lambda _: None))
    else:
        fence = v2.encode_read(ledger_id, 0, v2.V2Flag.DO_FENCING, ACCESS.key)
        bookie.serve_pieces([fence])
    answer = v3.decode_response(bookie.serve_pieces([v3_request(pb.READ_LAC, {"ledgerId": ledger_id})]))
    assert v3.status_of(answer) == answer.readLacResponse.status == bookkeeper.v3_code(said)
    assert not answer.readLacResponse.HasField("lacBody")


def test_a_disk_that_says_nothing_of_itself_is_an_error_to_who_asks(
    bookie: StillBookie, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("shutil.disk_usage", fails)
    asked = v3_request(pb.GET_BOOKIE_INFO, {"requested": v3.TOTAL_DISK_CAPACITY})
    answer = v3.decode_response(bookie.serve_pieces([asked]))
    assert v3.status_of(answer) == bookkeeper.v3_code(Answer.ERROR)


def test_polls_do_not_outlive_their_connection(bookie: StillBookie) -> None:
    body = native_bodies.encode_body(native_bodies.LongPollBody(ENTRIES, ENTRIES, 99, 1000, 50_000))
    head = native.encode_request(Kind.LONG_POLL, 1, len(body), checksum(body), ledger_id=LEDGER)
    said = bookie.serve_pieces([bookie.hello, (head + body) * (POLLS_MAX + 6)])[bookie.greeting :]
    # Those beyond the limit were refused; the others are gone with their client.
    answers = [native.decode_answer(memoryview(frame)).answer for frame in frames_of(said)]
    assert answers == [Answer.TOO_BUSY] * 6
    assert not bookie.server.ledgers.followers.polls

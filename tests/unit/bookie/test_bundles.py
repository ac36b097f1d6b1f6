"""Bundles: the runs of one request are judged in one step, stored together, and answered part by part."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.bookie.ledgers.unknown_ledgers import RECORD_WAITS_MAX
from quire.client.access import LedgerAccess
from quire.core.answers import Answer
from quire.core.ids import LedgerId
from quire.core.ledger.metadata import DigestType
from quire.wire import native
from quire.wire.bundles import ROW, ROWS_AT
from quire.wire.entry import EntryDigest, master_key
from quire.wire.native import Flag, Kind
from quire.wire.native_bodies import LacItem
from quire.wire.run import checksum, encode_run
from support.hostile_worlds import ACCESS, GOOD, StillBookie, seal
from support.many_lacs import encode_lacs
from support.native_peer import Peer, add, bundle_of, parts_of
from unit.bookie.test_adds_together import FIRST, fencing_read

OK = Answer.OK


@pytest.fixture
def peer() -> Iterator[Peer]:
    one = Peer()
    yield one
    assert one.bookie.server._pending_bytes == 0, "what was admitted is settled"


def new_ledger(ledger_id: int) -> LedgerAccess:
    return LedgerAccess(LedgerId(ledger_id), master_key(b""), 0, EntryDigest(DigestType.CRC32C, b""))


def both(entry_id: int, *, number: int = 1) -> bytes:
    return bundle_of([add(entry_id), add(entry_id, ledger=GOOD)], number=number)


def with_slow_records(bookie: StillBookie) -> asyncio.Event:
    """No record is read before this event is set."""
    gate: asyncio.Event = bookie.inside(asyncio.Event)
    get = bookie.store.get

    async def late(key: str) -> Any:
        await gate.wait()
        return await get(key)

    bookie.store.get = late  # type: ignore[method-assign]
    return gate


def answers_to(peer: Peer, count: int, *, number: int = 1) -> list[Answer]:
    """Of each row."""
    found = [OK] * count
    for first, rows, answer, _ in parts_of(peer.answers(), number=number, count=count):
        found[first : first + rows] = [answer] * rows
    return found


def test_a_bundle_of_two_ledgers_has_one_response_with_one_part_and_one_item_of_one_group(peer: Peer) -> None:
    server = peer.bookie.server
    groups, adds, items = server.storage.journal.groups_written, server.ledgers.adds, []
    tell = server.storage.journal._tell
    server.storage.journal._tell = lambda some, error: (items.extend(some), tell(some, error))  # type: ignore[assignment,func-returns-value]
    peer.send([both(FIRST)])
    assert parts_of(peer.answers(), count=2) == [(0, 2, OK, 0)]
    assert (peer.line.writes, len(items), server.storage.journal.groups_written) == (1, 1, groups + 1)
    assert peer.holds() == peer.holds(GOOD) == list(range(FIRST + 1))
    assert server.ledgers.adds == adds + 2


def test_a_fence_between_two_bundles_sees_all_of_the_first_and_refuses_its_ledger_in_the_second(
    peer: Peer,
) -> None:
    peer.send([both(FIRST) + fencing_read(99, FIRST, FIRST + 5) + both(FIRST + 1, number=2)])
    assert answers_to(peer, 2) == [OK, OK]
    assert answers_to(peer, 2, number=2) == [Answer.FENCED, OK]
    assert peer.holds() == list(range(FIRST + 1))
    assert peer.holds(GOOD) == list(range(FIRST + 2))


def test_a_damaged_body_costs_its_own_answer_only(peer: Peer) -> None:
    frame = bytearray(both(FIRST))
    frame[-1] ^= 1
    peer.send([bytes(frame)])
    assert answers_to(peer, 2) == [OK, Answer.DAMAGED_IN_TRANSIT]
    assert (peer.holds(), peer.holds(GOOD)) == (list(range(FIRST + 1)), list(range(FIRST)))


def test_one_refused_ledger_among_999_others(peer: Peer) -> None:
    """The first bundle finds them unknown: each waits for its record. The second is ordinary, but for one."""
    ledgers = [new_ledger(ledger_id) for ledger_id in range(1000, 1999)]
    peer.bookie.create(*(one.ledger_id for one in ledgers))
    wrong_key = replace(GOOD, key=b"x" * 20)
    for entry_id, number in ((0, 1), (1, 2)):
        adds = [add(entry_id, ledger=one) for one in ledgers]
        adds[500:500] = [add(FIRST, ledger=wrong_key)]
        peer.send([bundle_of(adds, number=number)])
    for number in (1, 2):
        refused = {at: one for at, one in enumerate(answers_to(peer, 1000, number=number)) if one is not OK}
        assert refused == {500: Answer.UNAUTHORISED}
    assert len(parts_of(peer.answers(), number=2, count=1000)) == 3
    assert all(peer.holds(one) == [0, 1] for one in ledgers)
    assert peer.holds(GOOD) == list(range(FIRST))


def test_a_ledger_that_waits_for_its_record_holds_up_no_other_and_keeps_only_its_own_bytes(
    peer: Peer,
) -> None:
    bookie, slow = peer.bookie, new_ledger(77)
    bookie.create(slow.ledger_id)
    gate = with_slow_records(bookie)
    peer.send([bundle_of([add(FIRST, size=100_000), add(0, ledger=slow), add(FIRST, ledger=GOOD)])])
    [[(_, run, *_)]] = [
        [one.decide.args for one in some] for some in bookie.server.ledgers.unknown_ledgers._waiting.values()
    ]
    assert memoryview(run.body.obj).nbytes == bookie.server._pending_bytes == len(run.body)
    early = [(one.number, len(one.body)) for one in peer.answers()]
    assert early == [(1, 2 * 11)]
    bookie.inside(gate.set)
    peer.wait()
    assert parts_of(peer.answers(), count=3) == [(0, 1, OK, 0), (2, 1, OK, 0), (1, 1, OK, 0)]
    assert peer.holds(slow) == [0]


def test_a_bundle_of_unknown_ledgers_waits_for_no_more_records_than_plain_adds_do(peer: Peer) -> None:
    """The rest of it waits, and all that this client sent after it; another client does not."""
    bookie, count = peer.bookie, 2 * RECORD_WAITS_MAX + 10
    ledgers = [new_ledger(ledger_id) for ledger_id in range(1000, 1000 + count)]
    bookie.create(77, *(one.ledger_id for one in ledgers))
    gate = with_slow_records(bookie)
    whole = bundle_of([add(FIRST), *(add(0, ledger=one) for one in ledgers)])
    last = ledgers[-1]
    fence = native.encode_request(
        Kind.READ_LAC, 2, 0, 0, flags=Flag.FENCE, ledger_id=last.ledger_id, key=last.key
    )
    peer.send([whole, fence])
    waiting = bookie.server.ledgers.unknown_ledgers._waiting
    assert list(waiting) == [one.ledger_id for one in ledgers[:RECORD_WAITS_MAX]]
    assert peer.line.owner.record_waits == RECORD_WAITS_MAX
    assert peer.holds() == list(range(FIRST + 1)), "what is ordinary does not wait"
    other = Peer(bookie)
    other.send([add(FIRST, ledger=GOOD), add(0, ledger=new_ledger(77), number=8)])
    assert other.told() == [(FIRST, OK)]
    assert len(waiting) == RECORD_WAITS_MAX + 1
    bookie.inside(gate.set)
    for _ in range(10):
        peer.wait()
    assert answers_to(peer, count + 1) == [OK] * (count + 1)
    assert other.told() == [(FIRST, OK), (8, OK)]
    assert (2, OK) in peer.told(), "the fence of the last ledger did not overtake its run"
    assert all(peer.holds(one) == [0] for one in ledgers)


def test_the_rest_of_a_bundle_waits_while_the_bookie_holds_and_its_client_may_be_gone_by_then(
    peer: Peer,
) -> None:
    bookie, count = peer.bookie, RECORD_WAITS_MAX + 10
    ledgers = [new_ledger(ledger_id) for ledger_id in range(1000, 1000 + count)]
    bookie.create(*(one.ledger_id for one in ledgers))
    gate, others = with_slow_records(bookie), Peer(bookie)
    for one in (peer, others):
        one.send([bundle_of([add(0, ledger=ledger) for ledger in ledgers])])
    bookie.inside(lambda: others.line.owner.connection_lost(None))
    bookie.server.lease.pending = True
    bookie.inside(gate.set)
    for _ in range(10):
        peer.wait()
    assert peer.answers() == []
    assert not any(map(peer.holds, ledgers[RECORD_WAITS_MAX:]))
    bookie.server.lease.pending = False
    bookie.inside(peer.line.owner.send_deferred)
    for _ in range(10):
        peer.wait()
    assert answers_to(peer, count) == [OK] * count
    assert all(peer.holds(one) == [0] for one in ledgers)


def test_a_failed_sync_of_the_second_group_is_the_answer_to_its_runs_only(peer: Peer) -> None:
    bookie = peer.bookie
    long = 1_200_000
    peer.send([bundle_of([add(FIRST, size=long), add(FIRST, ledger=GOOD, size=long)])], wait=False)
    bookie.inside(bookie.worker.step)
    files: Any = bookie.server._files
    files.fail_at = files.steps + 1  # the write is done, its sync is not
    bookie.inside(bookie.worker.step)
    peer.wait()
    assert bookie.server.storage.failure is not None
    assert parts_of(peer.answers(), count=2) == [(0, 1, OK, 0), (1, 1, Answer.ERROR, 0)]
    peer.send([both(FIRST + 1, number=2)])
    assert answers_to(peer, 2, number=2) == [Answer.ERROR] * 2


def test_followed_ledgers_are_marked_each_in_its_part(peer: Peer) -> None:
    peer.bookie.server.ledgers.followers.polled(GOOD.ledger_id)
    peer.send([both(FIRST)])
    assert parts_of(peer.answers(), count=2) == [(0, 1, OK, 0), (1, 1, OK, native.FOLLOWED)]


def test_a_waiting_reader_is_told_of_the_lac_that_a_bundle_brings(peer: Peer) -> None:
    told: list[int] = []
    ledgers = peer.bookie.server.ledgers
    peer.bookie.inside(lambda: ledgers.poll(GOOD.ledger_id, FIRST - 2, 10, lambda: told.append(1)))
    peer.send([both(FIRST)])
    assert told == [1]


def test_a_bookie_that_takes_no_adds_refuses_each_row(peer: Peer) -> None:
    peer.bookie.server.ledgers.read_only = True
    peer.send([both(FIRST)])
    assert parts_of(peer.answers(), count=2) == [(0, 2, Answer.READ_ONLY, 0)]
    assert peer.holds() == list(range(FIRST))


def test_a_bookie_that_holds_serves_a_bundle_when_it_holds_no_more(peer: Peer) -> None:
    server = peer.bookie.server
    server.lease.pending = True
    peer.send([both(FIRST)])
    assert (peer.answers(), peer.holds()) == ([], list(range(FIRST)))
    server.lease.pending = False
    peer.bookie.inside(peer.line.owner.send_deferred)
    peer.wait()
    assert answers_to(peer, 2) == [OK, OK]


def test_a_bundle_counts_against_what_may_be_on_its_way_until_it_is_durable(peer: Peer) -> None:
    server = peer.bookie.server
    object.__setattr__(server.config, "pending_bytes_max", 150_000)
    peer.send([bundle_of([add(FIRST, size=100_000), add(FIRST, ledger=GOOD, size=100_000)])], wait=False)
    assert server.reads_paused
    peer.wait()
    assert not server.reads_paused
    assert answers_to(peer, 2) == [OK, OK]


# --- bad input ------------------------------------------------------------------------------------------------------


def sealed(frame: bytes, *, rows: bool = True) -> bytes:
    """The frame with a length and a header that are right, and rows whose checksum is."""
    out = bytearray(frame)
    out[:4] = (len(out) - 4).to_bytes(4, "big")
    if rows and len(out) >= ROWS_AT:
        count = int.from_bytes(out[native.REQUEST_BYTES : ROWS_AT], "big")
        out[76:80] = struct.pack(
            ">I", checksum(bytes(out[native.REQUEST_BYTES : ROWS_AT + count * ROW.size]))
        )
    out[92:96] = struct.pack(">I", checksum(bytes(out[:92])))
    return bytes(out)


def with_row(frame: bytes, at: int, **fields: Any) -> bytes:
    """The bundle with other fields in a row."""
    names = ("ledger_id", "token", "key", "lac", "size", "body_crc")
    start = ROWS_AT + at * ROW.size
    row = dict(zip(names, ROW.unpack_from(frame, start), strict=True)) | fields
    return sealed(frame[:start] + ROW.pack(*row.values()) + frame[start + ROW.size :])


def test_a_bundle_that_is_cut_after_any_byte_or_counts_what_it_has_not_ends_the_connection() -> None:
    bookie, whole = StillBookie(), both(FIRST)
    bad = [sealed(whole[:end], rows=rows) for end in range(8, len(whole)) for rows in (False, True)]
    for count in (0, 1, 3, 1000, 1001, 1 << 31, (1 << 32) - 1):
        bad.append(sealed(whole[: native.REQUEST_BYTES] + struct.pack(">I", count) + whole[ROWS_AT:]))
    sizes = [ROW.unpack_from(whole, ROWS_AT + at * ROW.size)[4] for at in (0, 1)]
    bad += [with_row(whole, 0, size=size) for size in (0, sizes[0] + 1, (1 << 32) - sizes[1], (1 << 32) - 1)]
    wrapping = with_row(whole, 0, size=(1 << 32) - 5)
    bad.append(with_row(wrapping, 1, size=sum(sizes) + 5))
    damaged = bytearray(whole)
    damaged[ROWS_AT + 3] ^= 1
    bad.append(bytes(damaged))
    lsn = bookie.server.storage.journal.last_lsn
    for frame in bad:
        peer = Peer(bookie)
        peer.send([frame + both(FIRST)])
        assert peer.line.closed, frame.hex()
        assert peer.answers() == []
        bookie.inside(lambda peer=peer: peer.line.owner.connection_lost(None))
    assert bookie.server.storage.journal.last_lsn == lsn, "not a byte is stored"


@pytest.mark.parametrize(
    ("fields", "answer"),
    [
        ({"ledger_id": -1}, Answer.BAD_REQUEST),
        ({"ledger_id": -(1 << 63)}, Answer.BAD_REQUEST),
        ({"ledger_id": 5}, Answer.BAD_REQUEST),
        ({"key": bytes(20)}, Answer.BAD_REQUEST),
        ({"key": b"x" * 20}, Answer.UNAUTHORISED),
        ({"lac": -2}, Answer.BAD_REQUEST),
        ({"lac": FIRST}, Answer.BAD_REQUEST),
        ({"lac": (1 << 63) - 1}, Answer.BAD_REQUEST),
        ({"body_crc": 7}, Answer.DAMAGED_IN_TRANSIT),
    ],
)
def test_a_row_that_cannot_be_is_refused_alone_and_nothing_of_it_is_stored(
    peer: Peer, fields: dict[str, Any], answer: Answer
) -> None:
    records = peer.bookie.server.storage.journal.last_lsn
    peer.send([with_row(both(FIRST), 1, **fields)])
    assert answers_to(peer, 2) == [OK, answer]
    assert peer.bookie.server.storage.journal.last_lsn == records + 1
    assert peer.holds(GOOD) == list(range(FIRST))


def test_a_run_that_is_cut_after_any_byte_is_refused_alone_and_nothing_of_it_is_stored(peer: Peer) -> None:
    body = add(FIRST, ledger=GOOD)[native.REQUEST_BYTES :]
    records = peer.bookie.server.storage.journal.last_lsn
    for end in range(len(body)):
        head = native.encode_request(
            Kind.ADD, 1, end, checksum(body[:end]), ledger_id=GOOD.ledger_id, key=GOOD.key, lac=FIRST - 1
        )
        frame = bundle_of([add(FIRST + end), head + body[:end]], number=end)
        peer.send([seal(frame, native.REQUEST_BYTES) if end % 2 else frame])
        assert answers_to(peer, 2, number=end) == [OK, Answer.BAD_REQUEST]
    assert peer.bookie.server.storage.journal.last_lsn == records + len(body)
    assert peer.holds(GOOD) == list(range(FIRST))


@pytest.mark.parametrize(
    ("at", "field"),
    [
        (0, b"\2"), (1, b"\7"), (2, b"\x63"), (3, b"\0"), (4, struct.pack(">I", 0)), (4, struct.pack(">I", 2)),
        (4, struct.pack(">I", (1 << 32) - 1)), (8, struct.pack(">q", -1)), (16, struct.pack(">q", -1)),
        (16, struct.pack(">q", -(1 << 63))), (16, struct.pack(">qq", -1, -1)), (16, struct.pack(">q", FIRST + 1)),
        (24, struct.pack(">q", -1)), (24, struct.pack(">q", (1 << 63) - 1)), (32, bytes(8)), (40, b"\xff" * 8),
        (56, struct.pack(">I", (1 << 32) - 1)),
    ],
)  # fmt: skip
def test_a_run_that_cannot_be_is_refused_alone_and_nothing_of_it_is_stored(
    peer: Peer, at: int, field: bytes
) -> None:
    """Its checksums are right; `at`: where in its header or table the field is."""
    whole = add(FIRST, ledger=GOOD)
    at += native.REQUEST_BYTES
    frame = bundle_of([add(FIRST), whole[:at] + field + whole[at + len(field) :]])
    records = peer.bookie.server.storage.journal.last_lsn
    peer.send([seal(frame, native.REQUEST_BYTES)])
    assert answers_to(peer, 2) == [OK, Answer.BAD_REQUEST]
    assert peer.bookie.server.storage.journal.last_lsn == records + 1
    assert peer.holds(GOOD) == list(range(FIRST))


def test_a_second_run_of_a_ledger_is_refused(peer: Peer) -> None:
    peer.send([bundle_of([add(FIRST), add(FIRST, ledger=GOOD), add(FIRST + 1), add(FIRST)])])
    assert answers_to(peer, 4) == [OK, OK, Answer.BAD_REQUEST, Answer.BAD_REQUEST]
    assert peer.holds() == list(range(FIRST + 1))
    assert peer.bookie.server.ledgers.entries_added == 2 * FIRST + 2


def test_sizes_that_move_the_border_of_two_bodies_refuse_both(peer: Peer) -> None:
    frame = both(FIRST)
    sizes = [ROW.unpack_from(frame, ROWS_AT + at * ROW.size)[4] for at in (0, 1)]
    frame = with_row(with_row(frame, 0, size=0), 1, size=sum(sizes))
    peer.send([frame])
    assert answers_to(peer, 2) == [Answer.DAMAGED_IN_TRANSIT] * 2
    assert peer.holds() == peer.holds(GOOD) == list(range(FIRST))


@pytest.mark.parametrize("fields", [{"flags": Flag.RECOVERY}, {"ledger_id": 1}, {"term": 3}])
def test_a_header_that_says_more_than_a_bundle_has_refuses_all_of_it(
    peer: Peer, fields: dict[str, Any]
) -> None:
    frame = both(FIRST)
    body = frame[native.REQUEST_BYTES :]
    crc = native.REQUEST.unpack_from(frame)[12]
    peer.send([native.encode_request(Kind.ADD_BUNDLE, 1, len(body), crc, **fields) + body])
    assert [(one.kind, one.answer, len(one.body)) for one in peer.answers()] == [
        (Kind.ADD_BUNDLE, Answer.BAD_REQUEST, 0)
    ]
    assert peer.holds() == list(range(FIRST))


# --- a bundle is its ADDs -------------------------------------------------------------------------------------------

LEDGERS = [ACCESS, GOOD, new_ledger(101), new_ledger(102), new_ledger(103)]
"""101 and 102 have a record, 103 has none."""


def an_add(ledger: LedgerAccess, first: int, what: str) -> bytes:
    """An ADD for a ledger, ordinary or not."""
    count = {"long": 70, "three": 3, "striped": 3}.get(what, 1)
    digest_type = {"no digest": 0, "digest of no kind": 77}.get(what, 3)
    ids = range(first, first + count * 2 - 1, 2) if what == "striped" else range(first, first + count)
    payloads = [b"entry %d" % entry_id for entry_id in ids]
    heads = [
        ledger.digest.seal(ledger.ledger_id, n, first - 1, 0, [p])[0]
        for n, p in zip(ids, payloads, strict=True)
    ]
    entries = [head + payload for head, payload in zip(heads, payloads, strict=True)]
    striped = {"period": 2, "stripes": 1 << first % 2} if what == "striped" else {}
    inner = ledger.ledger_id + (what == "of another")
    body = encode_run(
        inner, ids[0], ids[-1], entries, list(map(len, entries)), digest_type=digest_type, **striped
    )
    lac = ids[-1] if what == "lac" else first - 1
    head = native.encode_request(
        Kind.ADD, 1, len(body), checksum(body), ledger_id=ledger.ledger_id, digest_type=digest_type,
        token=5 if what == "token" else ledger.token, key=b"x" * 20 if what == "key" else ledger.key, lac=lac,
    )  # fmt: skip
    if what == "damaged":
        body = body[:-1] + bytes([body[-1] ^ 1])
    return head + body


WAYS = ("one", "one", "one", "three", "long", "striped", "no digest", "digest of no kind", "of another", "token", "lac",
        "key", "damaged")  # fmt: skip
BUNDLE = st.lists(
    st.tuples(st.integers(0, 4), st.sampled_from(WAYS)), min_size=1, max_size=5, unique_by=lambda row: row[0]
)
STEP = st.one_of(BUNDLE, BUNDLE, BUNDLE, st.integers(0, 1), st.just("lacs"))


def known_of(peer: Peer) -> Any:
    """All that a bookie knows of the ledgers."""
    server = peer.bookie.server
    ledgers, storage = server.ledgers, server.storage
    return (
        {ledger_id: (machine.facts, machine.fence) for ledger_id, machine in ledgers._machines.items()},
        (ledgers.adds, ledgers.entries_added, ledgers.bytes_added),
        (ledgers._evidence, dict(ledgers.explicit_lacs), list(ledgers._unsaved_lacs)),
        [storage.read(one.ledger_id, 0, 1000, 1 << 20).runs for one in LEDGERS],
        [(facts.lac, facts.lac_term) for one in LEDGERS if (facts := storage.facts(one.ledger_id))],
    )


def segments_of(peer: Peer) -> list[bytes]:
    files: Any = peer.bookie.server._files
    return [bytes(files.nodes[path].data) for path in files.segments()]


@given(st.lists(STEP, min_size=1, max_size=4))
def test_a_bundle_has_the_answers_and_effects_of_its_adds(steps: list[Any]) -> None:
    peers = [Peer(), Peer()]
    ordinary = True
    for peer in peers:
        peer.bookie.create(101, 102)
    for at, step in enumerate(steps):
        answers: list[list[Answer]] = []
        if isinstance(step, list):
            firsts = [
                peers[0].bookie.server.storage.last_entry(LEDGERS[row].ledger_id) + 1 for row, _ in step
            ]
            adds = [an_add(LEDGERS[row], first, way) for (row, way), first in zip(step, firsts, strict=True)]
            ordinary &= all(row < 2 and way in {"one", "three", "long"} for row, way in step)
            before = [len(peer.answers()) for peer in peers]
            peers[0].send([b"".join(adds)])
            by_ledger = {one.ledger_id: one.answer for one in peers[0].answers()[before[0] :]}
            answers.append([by_ledger[LEDGERS[row].ledger_id] for row, _ in step])
            peers[1].send([bundle_of(adds, number=at + 1)])
            answers.append(answers_to(peers[1], len(step), number=at + 1))
            assert answers[0] == answers[1]
            continue
        for peer in peers:
            if step == "lacs":
                items = [LacItem(one.ledger_id, 0, (5, 60)[at % 2], 0, 3, one.key) for one in LEDGERS[:2]]
                body = encode_lacs(items)
                peer.send([native.encode_request(Kind.WRITE_LACS, 90 + at, len(body), checksum(body)) + body])
            else:
                peer.send([fencing_read(90 + at, 0, 0)])
    assert known_of(peers[0]) == known_of(peers[1])
    if ordinary:
        assert segments_of(peers[0]) == segments_of(peers[1]), "the same bytes"
    for peer in peers:
        assert peer.bookie.server._pending_bytes == 0

"""Adds that are handled by the hundred: the same bytes and the same answers as one by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from quire.client.access import LedgerAccess
from quire.core.answers import Answer
from quire.core.ledger.metadata import DigestType
from quire.core.ledger.quorum import stripes_of_slot
from quire.net.bookkeeper.pending_requests import PendingRun
from quire.net.bookkeeper.runs_expected import RunsExpected, v2_ledger_of, v2_place_of, v3_place_of
from quire.net.run_frames import RunEncoder
from quire.wire import add_columns, bookkeeper, v2, v3
from quire.wire.entry import HEADER, EntryDigest
from quire.wire.requests import AddRun
from quire.wire.run import RunView, encode_run, ids_in

KEY = bytes(range(20))
SOME_IDS = st.one_of(
    st.integers(0, 400),
    st.integers(2**14 - 40, 2**14 + 40),
    st.integers(2**21 - 40, 2**21 + 5),
    st.integers(2**62, 2**63 - 200),
)
SHAPES = st.sampled_from([(1, 1), (3, 2), (5, 3)])


@st.composite
def runs(draw: st.DrawFn) -> RunView:
    """A run with consecutive ids, or a bookie's stripes of one; entries of one size, or of several."""
    ensemble, quorum = draw(SHAPES)
    period = ensemble if quorum < ensemble else 1
    stripes = stripes_of_slot(draw(st.integers(0, 4)) % ensemble, ensemble, quorum) if period > 1 else 1
    start = draw(SOME_IDS)
    ids = list(ids_in(start, start + draw(st.integers(6, 150)), period, stripes))
    ledger_id = draw(SOME_IDS)
    sizes = draw(st.lists(st.integers(32, 40), min_size=1, max_size=draw(st.sampled_from([1, 3]))))
    entries = [
        HEADER.pack(ledger_id, entry_id, max(entry_id - 3, -1), 9) + bytes(sizes[number % len(sizes)] - 32)
        for number, entry_id in enumerate(ids)
    ]
    body = encode_run(
        ledger_id, ids[0], ids[-1], entries, list(map(len, entries)), digest_type=0, period=period, stripes=stripes
    )  # fmt: skip
    return RunView.parse(body)


def stretches_of(data: bytes) -> list[Sequence[int]]:
    stretches, end = bookkeeper.whole_frames(data)
    assert end == len(data)
    return stretches


@given(runs(), SOME_IDS, st.booleans())
def test_runs_become_the_frames_that_entries_alone_become(run: RunView, txn_id: int, recovery: bool) -> None:
    flags = v2.V2Flag.RECOVERY_ADD if recovery else 0
    assert add_columns.encode_v2(run, KEY, flags) == b"".join(
        b"".join(v2.encode_add(KEY, entry, flags)) for _, entry in run.entries()
    )
    priority = 100 if recovery else 0
    made = add_columns.encode_v3(txn_id, run, KEY, recovery=recovery, priority=priority)
    assert made == b"".join(
        b"".join(
            v3.encode_add(number, run.ledger_id, entry_id, KEY, entry, recovery=recovery, priority=priority)
        )
        for number, (entry_id, entry) in enumerate(run.entries(), txn_id)
    )


@given(runs(), SOME_IDS, st.booleans())
def test_columns_say_what_the_frames_say_alone(run: RunView, txn_id: int, recovery: bool) -> None:
    flags = v2.V2Flag.RECOVERY_ADD if recovery else 0
    check_columns(add_columns.encode_v2(run, KEY, flags), run, recovery, 2)
    check_columns(
        add_columns.encode_v3(txn_id, run, KEY, recovery=recovery, priority=0), run, recovery, None, txn_id
    )


def check_columns(data: bytes, run: RunView, recovery: bool, version: int | None, txn_id: int = 0) -> None:
    entries = [bytes(entry) for _, entry in run.entries()]
    ids, at = list(run.ids()), 0
    for starts in stretches_of(data):
        count = len(starts)
        if isinstance(starts, range):
            adds = (add_columns.take_v3 if version is None else add_columns.take_v2)(data, starts)
            assert adds is not None
            assert adds[:4] == (version, run.ledger_id, KEY, recovery)
            assert list(adds.entry_ids) == ids[at : at + count]
            assert list(adds.entries) == entries[at : at + count]
            assert adds.lac == max(ids[at + count - 1] - 3, -1)
            if version is None:
                txns = range(txn_id + at, txn_id + at + count)
                assert list(adds.txns) == [v3.number(txn) for txn in txns]
        at += count
    assert at == len(ids)


@settings(max_examples=60)
@given(runs(), SOME_IDS, st.integers(0, 10**6), st.integers(0, 255))
def test_a_changed_byte_is_seen_or_said(run: RunView, txn_id: int, place: int, value: int) -> None:
    """Whatever stands in the frames: the columns say the same as each frame alone, or leave it to that."""
    for data, take in (
        (add_columns.encode_v2(run, KEY, 0), add_columns.take_v2),
        (add_columns.encode_v3(txn_id, run, KEY, recovery=False, priority=0), add_columns.take_v3),
    ):
        starts = stretches_of(data)[0]
        if not isinstance(starts, range):
            continue
        changed = bytearray(data)
        at = starts.start + place % (len(starts) * starts.step)
        if (at - starts.start) % starts.step < 4:
            continue
        changed[at] = value
        adds = take(bytes(changed), starts)
        if adds is None:
            continue
        for number, start in enumerate(starts):
            frame = bytes(changed[start : start + starts.step])
            entry_id, entry = adds.entry_ids[number], adds.entries[number]
            if adds.version is None:
                alone: Any = v3.take_add(frame, 0)
                assert alone is not None
                message = v3.decode_request(frame)
                assert (message.header.txnId, message.addRequest.entryId) == (alone.txn_id, entry_id)
                assert v3.number(alone.txn_id) == adds.txns[number]
                assert (alone.ledger_id, alone.body) == (adds.ledger_id, entry)
            else:
                alone = v2.decode_request(frame)
                assert isinstance(alone, v2.AddRequest)
                assert (alone.ledger_id, alone.entry_id) == (adds.ledger_id, entry_id)
                assert alone.entry == entry
            assert alone.key == adds.key
            ledger_id, own_id, lac, length = HEADER.unpack_from(entry)
            assert (ledger_id, own_id) == (adds.ledger_id, entry_id)
            assert length >= 0
            assert min(lac, own_id - 1) <= adds.lac


@given(st.integers(0, 2**64 - 200), st.integers(0, 300))
def test_numbers_of_a_range(first: int, count: int) -> None:
    values = range(first, first + count)
    assert v3.numbers(values) == [v3.number(value) for value in values]


@given(st.lists(st.tuples(st.integers(4, 12), st.integers(1, 9)), max_size=12), st.integers(0, 12))
def test_frames_of_one_size_are_stretches(parts: list[tuple[int, int]], cut: int) -> None:
    frames = [size.to_bytes(4, "big") + bytes(size) for size, count in parts for _ in range(count)]
    data = b"".join(frames)
    whole = data[: max(0, len(data) - cut)]
    stretches, end = bookkeeper.whole_frames(whole)
    starts, at = [], 0
    for frame in frames:
        if at + len(frame) > len(whole):
            break
        starts.append(at)
        at += len(frame)
    assert [start for stretch in stretches for start in stretch] == starts
    assert end == at
    for stretch in stretches:
        if isinstance(stretch, range):
            assert {int.from_bytes(data[start : start + 4], "big") + 4 for start in stretch} == {stretch.step}


class Sink:
    """Takes the answers to runs, and is the connection that they go out on."""

    def __init__(self) -> None:
        self.answers: dict[object, Answer] = {}
        self.runs: RunsExpected

    def answered(self, tag: object, frame: Any) -> None:
        assert tag not in self.answers
        self.answers[tag] = frame.answer

    def ask_entries(self, asked: object, entry_ids: Sequence[int]) -> None:
        raise NotImplementedError

    def finished(self, asked: Any) -> None:
        if asked.expected:
            self.runs.forget(asked)


@settings(max_examples=40)
@given(
    st.lists(runs(), min_size=1, max_size=4),
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)), max_size=6),
    st.dictionaries(st.integers(0, 10**6), st.sampled_from([101, 104]), max_size=2),
    st.integers(1, 4000),
    st.booleans(),
)
def test_answers_in_any_order_are_counted(
    sent: list[RunView], swaps: list[tuple[int, int]], failures: dict[int, int], piece: int, is_v3: bool
) -> None:
    """Answers in the order of the entries, or with some exchanged, or some that say no: each run gets what it is due."""
    sink, encoder = Sink(), RunEncoder()
    sink.runs = runs_out = RunsExpected(
        v3.ledger_of_add_answer if is_v3 else v2_ledger_of, v3_place_of if is_v3 else v2_place_of
    )
    places: list[tuple[int, PendingRun, int]] = []
    for number, run in enumerate(sent):
        if any(run.ledger_id == other.ledger_id for other in sent[:number]):
            return
        frames = (
            encoder.adds_v3(run.body, KEY, recovery=False, after_txn=0)
            if is_v3
            else encoder.adds_v2(run.body, KEY, recovery=False)
        )
        ledger = LedgerAccess(run.ledger_id, KEY, 0, EntryDigest(DigestType.CRC32C, b""))
        asked = PendingRun(sink, AddRun(ledger, bytes(run.body), 0, -1), sink, number, 0.0, frames)
        runs_out.expect(asked)
        places += [(number, asked, position) for position in range(run.count)]
    for one, other in swaps:
        here, there = one % len(places), other % len(places)
        places[here], places[there] = places[there], places[here]
    bad = {number % len(places): code for number, code in failures.items()}
    frames_back = [
        answer_frame(asked, position, bad.get(number, 0), is_v3)
        for number, (_, asked, position) in enumerate(places)
    ]
    for start in range(0, len(frames_back), piece):
        receive(runs_out, b"".join(frames_back[start : start + piece]), is_v3)
    failed = {places[number][0] for number in bad}
    assert sink.answers == {
        number: Answer.FENCED if number in failed else Answer.OK for number in range(len(sent))
    }
    assert not runs_out.odd("anything else")


def answer_frame(asked: PendingRun, position: int, code: int, is_v3: bool) -> bytes:
    entry_id = asked.ids[position]
    if not is_v3:
        return v2.encode_add_answer(code and 104, asked.ledger_id, entry_id)
    txns, entry_ids = [v3.number(asked.txn_id + position)], [v3.number(entry_id)]
    return v3.encode_add_answers(code and 504, asked.ledger_id, txns, entry_ids)


def receive(runs_out: RunsExpected, data: bytes, is_v3: bool) -> None:
    """What a connection does."""
    for starts in stretches_of(data):
        number = 0
        while number < len(starts):
            number = runs_out.take(data, starts, number)
            if number == len(starts):
                break
            at = starts[number]
            number += 1
            if is_v3:
                answer = v3.take_add_answer(data, at)
                assert answer is not None
                place: Any = answer[0]
                said = bookkeeper.v3_answer(answer[1])
            else:
                _, _, code, ledger_id, entry_id = v2.ANSWER.unpack_from(data, at)
                place, said = (ledger_id, entry_id), bookkeeper.v2_answer(code)
            found = runs_out.odd(place)
            if found is not None:
                run, position = found
                run.got(run.ids[position], said, b"", -1)

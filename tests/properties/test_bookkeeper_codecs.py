"""BookKeeper's protocols: whatever is written is read back, and whatever comes is understood or refused."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.core.errors import MalformedFrameError
from quire.core.ledger.quorum import stripes_of_slot
from quire.wire import bookkeeper, v2, v3
from quire.wire.proto.bookkeeper_protocol_pb2 import ADD_ENTRY, Request
from quire.wire.run import ids_in

int64 = st.integers(-(2**63), 2**63 - 1)
some_id = st.integers(0, 2**63 - 1)
uint64 = st.integers(0, 2**64 - 1)
keys = st.binary(min_size=20, max_size=20)
flags = st.integers(0, 7)


def starts_of(data: bytes) -> tuple[list[int], int]:
    stretches, end = bookkeeper.whole_frames(data)
    return [start for stretch in stretches for start in stretch], end


@given(keys, some_id, some_id, st.binary(max_size=64), flags)
def test_v2_adds(key: bytes, ledger_id: int, entry_id: int, rest: bytes, flag: int) -> None:
    entry = v2.IDS.pack(ledger_id, entry_id) + rest
    frame = b"".join(v2.encode_add(key, entry, flag))
    assert v2.decode_request(frame) == v2.AddRequest(2, flag, key, ledger_id, entry_id, memoryview(entry))


@given(int64, int64, flags, keys, int64, st.integers(-(2**31), 2**31 - 1), int64)
def test_v2_reads(
    ledger_id: int, entry_id: int, flag: int, key: bytes, number: int, count: int, size: int
) -> None:
    seen = key if flag & v2.V2Flag.DO_FENCING else b""
    read = v2.encode_read(ledger_id, entry_id, flag, key)
    assert v2.decode_request(read) == v2.ReadRequest(2, flag, ledger_id, entry_id, seen)
    batch = v2.encode_batch_read(ledger_id, entry_id, number, count, size, flag, key)
    wanted = v2.BatchReadRequest(2, flag, ledger_id, entry_id, number, count, size, seen)
    assert v2.decode_request(batch) == wanted


@given(st.integers(0, 2**32 - 1), int64, int64, int64, st.lists(st.binary(max_size=40), max_size=5))
def test_v2_answers(code: int, ledger_id: int, entry_id: int, number: int, entries: list[bytes]) -> None:
    parts = v2.encode_batch_read_answer(code, ledger_id, entry_id, number, entries)
    answer = v2.decode_answer(b"".join(parts))
    views = tuple(memoryview(entry) for entry in entries)
    assert answer == v2.BatchReadAnswer(2, code, ledger_id, entry_id, number, views)


@given(
    uint64,
    st.integers(0, 2**32 - 1),
    int64,
    int64,
    st.binary(max_size=30),
    st.binary(max_size=300),
    st.booleans(),
    st.integers(0, 2**31 - 1),
)
def test_v3_adds_by_hand_are_protobufs(
    txn_id: int,
    priority: int,
    ledger_id: int,
    entry_id: int,
    key: bytes,
    body: bytes,
    recovery: bool,
    write: int,
) -> None:
    message = v3.request(ADD_ENTRY, txn_id, priority=priority)
    add = message.addRequest
    add.ledgerId, add.entryId, add.masterKey, add.body = ledger_id, entry_id, key, body
    if recovery:
        add.flag = v3.RECOVERY_ADD
    if write:
        add.writeFlags = write
    frame = v3.frame_of(message)
    made = v3.encode_add(
        txn_id, ledger_id, entry_id, key, body, recovery=recovery, priority=priority, write_flags=write
    )
    assert b"".join(made) == frame
    taken = v3.take_add(b"xyz" + frame + b"rest", 3)
    by_hand = len(key) == 20 and ledger_id >= 0 and entry_id >= 0 and not write
    assert taken == (v3.Add(txn_id, priority, ledger_id, entry_id, key, body, recovery) if by_hand else None)


@given(st.sampled_from([0, 402, 404, 501, 504]), int64, st.lists(st.tuples(uint64, int64), max_size=4))
def test_v3_add_answers_by_hand_are_protobufs(
    status: int, ledger_id: int, answers: list[tuple[int, int]]
) -> None:
    txns, entry_ids = v3.numbers([txn for txn, _ in answers]), v3.numbers([entry for _, entry in answers])
    made = v3.encode_add_answers(status, ledger_id, txns, entry_ids)
    starts, end = starts_of(made)
    assert end == len(made)
    for start, (txn_id, entry_id) in zip(starts, answers, strict=True):
        size = int.from_bytes(made[start : start + 4], "big") + 4
        message = v3.decode_response(made[start : start + size])
        assert v3.status_of(message) == status == message.status
        assert (message.addResponse.ledgerId, message.addResponse.entryId) == (ledger_id, entry_id)
        assert v3.frame_of(message) == made[start : start + size]
        assert v3.take_add_answer(made, start) == (txn_id, status)
        assert v3.ledger_of_add_answer(made, start) == (ledger_id % 2**64 if status == 0 else -1)


@given(st.binary(max_size=80))
def test_what_comes_is_read_or_refused(body: bytes) -> None:
    frame = len(body).to_bytes(4, "big") + body
    for read in (v2.decode_request, v2.decode_answer, v3.decode_request, v3.decode_response):
        try:
            read(frame)
        except MalformedFrameError:
            continue
    if len(frame) > 4:
        taken = v3.take_add(frame, 0)
        if taken is not None:
            message = Request.FromString(body)
            assert message.addRequest.body == taken.body
        v3.take_add_answer(frame, 0)
    for entries in (bookkeeper.decode_entry_list,):
        try:
            entries(body)
        except MalformedFrameError:
            continue


@given(st.binary(max_size=120), st.integers(0, 120))
def test_frames_are_found_in_whatever_piece_they_come(data: bytes, cut: int) -> None:
    try:
        starts, end = starts_of(data)
    except MalformedFrameError:
        return
    before, middle = starts_of(data[:cut])
    after, last = starts_of(data[middle:])
    assert before + [start + middle for start in after] == starts
    assert last + middle == end


@given(st.integers(0, 50), st.integers(0, 60), st.integers(1, 9), st.integers(1, 9), st.integers(0, 8))
def test_lists_of_striped_entries(first: int, count: int, ensemble: int, quorum: int, slot: int) -> None:
    quorum, slot = min(quorum, ensemble), slot % ensemble
    stripes = stripes_of_slot(slot, ensemble, quorum) if quorum < ensemble else 1
    period = ensemble if quorum < ensemble else 1
    ids = list(ids_in(first, first + count, period, stripes))
    if not ids:
        return
    made = bookkeeper.encode_entry_list([(ids[0], ids[-1], period, stripes)])
    listed = [entry_id for held in bookkeeper.decode_entry_list(made) for entry_id in ids_in(*held)]
    assert sorted(listed) == ids


def test_a_list_of_few_bytes_stays_small_whatever_it_stands_for() -> None:
    head = struct.pack(">II56x", 0, 1)
    striped = head + struct.pack(">qqii", 5, 5 + 10 * (1 << 40), 3, 10)
    assert bookkeeper.decode_entry_list(striped) == [(5, 7 + 10 * (1 << 40), 10, 0b11100000)]
    with pytest.raises(MalformedFrameError, match="stretches"):
        bookkeeper.decode_entry_list(head + struct.pack(">qqii", 5, 5 + 1000 * (1 << 40), 3, 1000))
    few = bookkeeper.decode_entry_list(head + struct.pack(">qqii", 5, 2005, 3, 1000))
    assert few == [(5, 7, 1, 1), (1005, 1007, 1, 1), (2005, 2007, 1, 1)]

"""Sealed segments are installed, and damaged ones read again, while requests go on; a read costs what it answers."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.core.bookie.ledger import LedgerFacts
from quire.core.ids import ID_MAX
from quire.storage.config import StorageConfig
from quire.storage.formats.footer_format import DirectoryEntry
from quire.storage.ledger_storage import LedgerStorage
from quire.storage.segments.segment_files import SegmentFiles
from quire.storage.states import StoredLedger
from quire_testing.kit.stepped import HurriedClock, StepWorker
from support.storage_disk import (
    SMALL,
    Answers,
    FaultyFiles,
    make_run,
    open_storage,
    put,
    read_all,
    settle,
)

LEDGERS = range(1, 601)
MIB = 1024 * 1024


# --- spans ----------------------------------------------------------------------------------------------------------


def entry(first: int, last: int) -> DirectoryEntry:
    return DirectoryEntry(1, first, last, -1, 1, 1, 1, 7, 1, 5, 1)


@given(
    ranges=st.lists(st.tuples(st.integers(0, 60), st.integers(0, 12)), max_size=12),
    dropped=st.integers(0, 12),
    first=st.integers(0, 70),
    length=st.integers(0, 20),
)
def test_spans_are_found_by_bisection(
    ranges: list[tuple[int, int]], dropped: int, first: int, length: int
) -> None:
    ledger = StoredLedger()
    for sequence, (low, more) in enumerate(ranges):
        ledger.add_span(sequence, entry(low, low + more))
    ledger.drop_span(dropped)
    found = [(span.sequence, span.first, span.last) for span in ledger.spans_within(first, first + length)]
    assert [span[1] for span in found] == sorted(span[1] for span in found)
    assert sorted(found) == [
        (sequence, low, low + more)
        for sequence, (low, more) in enumerate(ranges)
        if sequence != dropped and low <= first + length and low + more >= first
    ]


def test_a_read_with_a_far_end_asks_for_the_footers_that_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    files, callback = FaultyFiles(), Answers()
    storage = open_storage(files)
    for number in range(80):
        put(storage, make_run(1, number, number, payload=bytes(60_000)), callback)
        settle(storage)
    storage.close()
    storage = open_storage(files)
    assert len(storage.segments) > 70
    expected: list[int] = []
    read: list[int] = []

    def expecting(self: SegmentFiles, sequence: int, offset: int, size: int) -> None:
        expected.append(sequence)

    def reading(
        self: SegmentFiles, sequence: int, offset: int, size: int, then: object = SegmentFiles.read_at
    ) -> bytes:
        read.append(sequence)
        return then(self, sequence, offset, size)  # type: ignore[operator]

    monkeypatch.setattr(SegmentFiles, "expect", expecting)
    monkeypatch.setattr(SegmentFiles, "read_at", reading)
    held = storage.read(1, 40, ID_MAX, 1)
    assert len(held.runs) == 1
    assert held.conclusive_through < 79
    assert len(expected) + len(set(read)) <= 4, "one byte out of eighty segments"
    del expected[:]
    assert len(read_all(storage, 1, 0, 79, 8 * MIB)) == 80
    assert len(expected) > 40, "the rows of a long answer are fetched together"


# --- sealing --------------------------------------------------------------------------------------------------------


def full_segment(files: FaultyFiles, worker: StepWorker) -> LedgerStorage:
    """A bookie with small ledgers, whose first segment is sealed and not installed yet."""
    storage = open_storage(
        files, StorageConfig(segment_bytes=MIB, recent_bytes_max=0), worker=worker, clock=HurriedClock()
    )
    callback = Answers()
    for ledger_id in LEDGERS:
        storage.put_facts(LedgerFacts(ledger_id, key=b"k" * 20), callback, None)
        put(storage, make_run(ledger_id, 0, 0), callback)
    settle(storage)
    number = 0
    while len(storage.segments) == 1:
        put(storage, make_run(9999, number, number, payload=bytes(10_000)), callback)
        number += 1
    storage.flush()
    for _ in range(3):  # the group that opens the next segment, its spare, the footer
        if storage.segments[1].contents.entries:
            break
        worker.step()
    return storage


def steps(worker: StepWorker) -> Iterator[None]:
    while worker.jobs:
        worker.step()
        yield


def test_a_segment_of_many_ledgers_is_taken_up_in_slices_and_anything_may_happen_there() -> None:
    files, worker, callback = FaultyFiles(), StepWorker(), Answers()
    storage = full_segment(files, worker)
    segment = storage.segments[1]
    assert segment.trailer is None
    chance = random.Random(3)
    deleted: set[int] = set()
    turns = 0
    for _ in steps(worker):
        turns += 1
        ledger_id = chance.choice(LEDGERS)
        if ledger_id not in deleted and chance.getrandbits(1):
            storage.delete(ledger_id, 10**15, callback, None)
            storage.flush()
            deleted.add(ledger_id)
        other = chance.choice(LEDGERS)
        assert len(read_all(storage, other, 0, 0)) == (other not in deleted)
        assert not storage.drops.written_since(other, storage.journal.last_lsn)
        if segment.trailer is None:
            assert 1 in storage.unsealed
    assert turns > 5
    assert deleted
    assert segment.trailer is not None
    assert segment.table is None
    assert segment.states == {}
    settle(storage)
    assert segment.live == len(LEDGERS) + 1 - len(deleted)
    for ledger_id in LEDGERS:
        assert len(read_all(storage, ledger_id, 0, 0)) == (ledger_id not in deleted)
    for ledger_id in (*LEDGERS, 9999):
        if ledger_id not in deleted:
            storage.delete(ledger_id, 10**15, callback, None)
    settle(storage)
    assert segment.live == 0
    storage.close()
    again = open_storage(files, StorageConfig(segment_bytes=MIB))
    assert list(again.states.ledgers) == []


def test_a_bookie_that_stops_while_it_takes_a_segment_up_has_it_at_the_next_start() -> None:
    files, worker = FaultyFiles(), StepWorker()
    storage = full_segment(files, worker)
    storage.close(clean=False)
    again = open_storage(files.copy(), StorageConfig(segment_bytes=MIB))
    assert again.damages.kept == []
    assert all(len(read_all(again, ledger_id, 0, 0)) == 1 for ledger_id in LEDGERS)


# --- reading again --------------------------------------------------------------------------------------------------


def rotten(files: FaultyFiles, worker: StepWorker) -> tuple[LedgerStorage, int]:
    """A bookie of many small ledgers with a footer in which no rows verify."""
    storage = full_segment(files, worker)
    settle(storage)
    trailer = storage.segments[1].trailer
    assert trailer is not None
    data = files.nodes[files.segments()[0]].data
    for offset in range(trailer.rows_offset, trailer.directory_offset, 64):
        data[offset] ^= 1
    return storage, trailer.rows


def test_records_are_read_again_beside_the_loop_a_group_at_a_time() -> None:
    files, worker, callback = FaultyFiles(), StepWorker(), Answers()
    storage, _ = rotten(files, worker)
    assert storage.read(5, 0, 0, 1).unknown == [(0, 0)]
    assert storage.read(6, 0, 0, 1).unknown == [(0, 0)]
    assert list(storage.good_from(5, 0)) == [], "whoever repairs it need not wait"
    assert len(storage.damages.kept) == 2
    groups = turns = 0
    for _ in steps(worker):
        turns += 1
        put(storage, make_run(7777, turns, turns), callback)
        storage.flush()
        groups += bool(storage.read(5, 0, 0, 1).unknown)
        if turns == 5:
            storage.delete(7, 10**15, callback, None)
        if turns > 500:
            break
    assert groups > 3, "it takes several turns"
    settle(storage)
    assert storage.damages.kept == []
    assert storage.segments[1].trailer is not None
    assert all(len(read_all(storage, ledger_id, 0, 0)) == (ledger_id != 7) for ledger_id in LEDGERS)
    assert storage.segments[1].live == len(LEDGERS)
    assert len(read_all(storage, 7777, 0, ID_MAX, MIB)) == turns
    storage.close()
    again = open_storage(files, StorageConfig(segment_bytes=MIB))
    assert again.report.damages == []


def test_a_segment_that_is_given_back_meanwhile_stays_so() -> None:
    files, worker, callback = FaultyFiles(), StepWorker(), Answers()
    storage, _ = rotten(files, worker)
    settle(storage)
    assert storage.read(5, 0, 0, 1).unknown
    for ledger_id in (*LEDGERS, 9999):
        storage.delete(ledger_id, 1, callback, None)
    storage.flush()
    storage.housekeeping.reclaim()
    settle(storage)
    assert storage.damages.kept == []
    assert all(not storage.read(ledger_id, 0, 0, 1).runs for ledger_id in LEDGERS)
    storage.close()
    assert open_storage(files, StorageConfig(segment_bytes=MIB)).report.damages == []


def test_records_that_cannot_be_read_leave_what_they_hold_unknown() -> None:
    files, worker = FaultyFiles(), StepWorker()
    storage, _ = rotten(files, worker)
    assert storage.read(5, 0, 0, 1).unknown
    files.nodes[files.segments()[0]].data[8192] ^= 1
    settle(storage)
    assert storage.damages.kept
    assert storage.states.in_limbo(12345), "a record that cannot be read may be of any ledger"
    held = storage.read(5, 0, 0, 1)
    assert held.runs or held.conclusive_through < 0


def test_a_bookie_that_stops_meanwhile_stops() -> None:
    files, worker = FaultyFiles(), StepWorker()
    storage, _ = rotten(files, worker)
    assert storage.read(5, 0, 0, 1).unknown
    storage.close()
    again = open_storage(files, SMALL)
    assert again.read(5, 0, 0, 1).unknown
    settle(again)
    assert len(read_all(again, 5, 0, 0)) == 1

"""What a deleted ledger leaves: a tombstone until its time, a small one while a segment holds anything of it, nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from quire.bookie.ledgers.ledgers import Ledgers
from quire.core.answers import Answer
from quire.core.bookie.ledger import LedgerFacts
from quire.storage.formats.segment_format import SegmentRecordKind as RecordKind
from quire.storage.ledger_storage import LedgerStorage
from quire.wire.stored_record import RECORD_HEADER_BYTES
from quire_testing.kit.stepped import HurriedClock, StepWorker
from support.one_bookie import KEY, OneBookie
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

UNTIL_MS = 5000
FILLER = 99


def make(storage: LedgerStorage, *ledger_ids: int, callback: Answers | None = None) -> None:
    """Ledgers with ten entries and facts each."""
    callback = callback or Answers()
    for ledger_id in ledger_ids:
        storage.put_facts(LedgerFacts(ledger_id, key=KEY, token=70 + ledger_id), callback, None)
        put(storage, make_run(ledger_id, 0, 9), callback)
    settle(storage)


def fill(storage: LedgerStorage, ledger_id: int = FILLER, segments: int = 1) -> None:
    """Entries of a ledger until so many segments were sealed."""
    newest = max(storage.segments)
    first = storage.last_entry(ledger_id) + 1
    while max(storage.segments) < newest + segments:
        put(storage, make_run(ledger_id, first, first, payload=bytes(12_000)), Answers())
        settle(storage)
        first += 1


def delete(storage: LedgerStorage, *ledger_ids: int) -> None:
    for ledger_id in ledger_ids:
        storage.delete(ledger_id, UNTIL_MS, Answers(), None)
    settle(storage)


def shrink(storage: LedgerStorage, wall_ms: int = UNTIL_MS) -> list[int]:
    gone = [ledger_id for some in storage.housekeeping.shrink_tombstones(wall_ms) for ledger_id in some]
    settle(storage)
    return sorted(gone)


def reclaim(storage: LedgerStorage) -> int:
    """Give back, and forget what was given back."""
    retired = storage.housekeeping.reclaim()
    settle(storage)
    return retired + storage.housekeeping.reclaim()


def shrunk(storage: LedgerStorage) -> dict[int, int]:
    return dict(storage.states.shrunk)


def records(storage: LedgerStorage, kind: int) -> int:
    return sum(record.kind == kind for record in storage.scan())


def test_a_tombstone_shrinks_at_its_time_and_goes_with_the_last_segment_that_holds_anything() -> None:
    files = FaultyFiles()
    storage = open_storage(files)
    make(storage, 1, 2, 3)
    fill(storage)
    make(storage, 2)
    fill(storage)
    delete(storage, 1, 2)
    assert list(storage.states.ledgers) == [3, FILLER]
    assert shrink(storage, UNTIL_MS - 1) == []
    assert storage.statistics()["tombstones"] == 2
    assert shrink(storage) == [1, 2]
    assert shrink(storage) == []
    assert records(storage, RecordKind.TOMBSTONES) == 1
    assert shrunk(storage) == {1: 1, 2: 2}
    assert storage.facts(1) is None
    assert storage.token(1) == 0
    for clean in (True, False, True):
        storage.close(clean=clean)
        storage = open_storage(files)
        assert shrunk(storage) == {1: 1, 2: 2}
        assert read_all(storage, 1, 0, 9) == read_all(storage, 2, 0, 9) == {}
        assert list(storage.states.ledgers) == [3, FILLER]
    delete(storage, 3)
    assert reclaim(storage) == 0, "the filler lives in all of them"
    delete(storage, FILLER)
    fill(storage, FILLER + 1)
    assert reclaim(storage) > 1
    assert shrunk(storage) == {}
    storage.close()
    storage = open_storage(files)
    assert shrunk(storage) == {}
    assert storage.statistics()["tombstones"] == 2, "of ledger 3 and the filler"


def test_one_of_which_nothing_is_held_goes_without_a_record() -> None:
    files = FaultyFiles()
    storage = open_storage(files)
    make(storage, 1)
    fill(storage, 2)
    delete(storage, 1, 2, 3)
    assert reclaim(storage) == 1
    written = storage.journal.last_lsn
    assert shrink(storage) == [1, 2, 3]
    assert storage.journal.last_lsn == written + 1, "of ledger 2 some is in the segment that is being filled"
    assert shrunk(storage) == {2: 0}
    storage.close()
    storage = open_storage(files)
    assert storage.statistics()["tombstones"] == 2, "what is left of them comes back, and goes again"
    assert shrink(storage) == [1, 3]


def test_the_state_of_a_living_ledger_counts_until_it_is_gone() -> None:
    """Without its tombstone the ledger would be alive again, with its fence, without an entry."""
    worker = StepWorker()
    storage = open_storage(FaultyFiles(), replace(SMALL, inline_bytes_max=0), worker=worker)
    storage.put_facts(LedgerFacts(1, key=KEY, fenced=True), Answers(), None)
    settle(storage)
    first = storage.segments[max(storage.segments)]
    entry_id = 0
    while max(storage.segments) == first.sequence:
        put(storage, make_run(2, entry_id, entry_id, payload=bytes(12_000)), Answers())
        entry_id += 1
    storage.delete(1, UNTIL_MS, callback := Answers(), "deleted")
    storage.flush()
    while not callback.ok:
        worker.step()
    assert first.trailer is None, "it is not sealed yet"
    assert [one for some in storage.housekeeping.shrink_tombstones(UNTIL_MS) for one in some] == [1]
    assert shrunk(storage) == {1: 0}
    settle(storage)
    assert shrunk(storage) == {1: 1}
    storage.delete(2, UNTIL_MS, Answers(), None)
    settle(storage)
    assert reclaim(storage) == 1
    assert shrunk(storage) == {}


def test_deletions_again_count_once_and_the_last_time_is_right() -> None:
    storage = open_storage(FaultyFiles())
    make(storage, 1, 2)
    delete(storage, 1, 2)
    delete(storage, 1)
    storage.delete(2, UNTIL_MS + 1, Answers(), None)
    settle(storage)
    storage.delete(3, 1 << 40, Answers(), None)
    settle(storage)
    assert shrink(storage) == [1]
    assert shrink(storage) == []
    assert shrink(storage, UNTIL_MS + 1) == [2]
    assert shrunk(storage) == {1: 0, 2: 0}
    assert shrink(storage, (1 << 40) - 1) == []
    assert shrink(storage, 1 << 40) == [3]
    assert not storage.states.due


def test_a_deletion_that_is_not_durable_keeps_its_tombstone() -> None:
    storage = open_storage(FaultyFiles())
    make(storage, 1)
    storage.delete(1, UNTIL_MS, Answers(), None)
    assert list(storage.housekeeping.shrink_tombstones(UNTIL_MS)) == []
    settle(storage)
    assert shrink(storage) == [1]


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("facts", [True, False])
def test_another_ledger_with_the_id_gets_none_of_the_old_entries(facts: bool, clean: bool) -> None:
    files = FaultyFiles()
    storage = open_storage(files)
    make(storage, 1)
    delete(storage, 1)
    shrink(storage)
    storage.close(clean=clean)
    storage = open_storage(files)
    if facts:
        storage.put_facts(LedgerFacts(1, key=b"n" * 20, token=5), Answers(), None)
    put(storage, make_run(1, 5, 6, payload=b"new"), Answers())
    expected = {5: b"new/5", 6: b"new/6"}
    assert read_all(storage, 1, 0, 9) == expected
    fill(storage)
    for _ in range(2):
        settle(storage)
        assert read_all(storage, 1, 0, 9) == expected
        assert list(storage.states.ledgers) == [1, FILLER]
        storage.close(clean=clean)
        storage = open_storage(files)
    # It is deleted in its turn.
    delete(storage, 1)
    assert shrink(storage) == [1]
    assert read_all(storage, 1, 0, 9) == {}


async def test_what_a_bookie_remembers_of_a_shrunk_tombstone_goes_too() -> None:
    bookie = OneBookie(open_storage(FaultyFiles()))
    assert bookie.add(1, 0, 4) is Answer.OK
    bookie.ledgers.delete(1, UNTIL_MS)
    settle(bookie.storage)
    assert bookie.add(1, 5, 5) is Answer.DELETED
    gone = shrink(bookie.storage)
    assert bookie.add(1, 5, 5) is Answer.DELETED, "until its ledgers hear of it"
    bookie.ledgers.forget(gone)
    assert bookie.add(1, 5, 5) is Answer.OK
    settle(bookie.storage)
    assert list(read_all(bookie.storage, 1, 0, 9)) == [5]
    bookie.ledgers.forget([1])
    assert Ledgers(bookie.storage, lambda: None).info(1) == bookie.ledgers.info(1), (
        "a living one is not forgotten"
    )


@pytest.mark.parametrize("behind", [False, True])
def test_the_loss_of_a_record_of_tombstones_puts_no_ledger_in_limbo(behind: bool) -> None:
    """Torn, or rotten with more behind it: no entry is missing for that, and the older tombstones are still there."""
    files = FaultyFiles()
    storage = open_storage(files)
    make(storage, 1, 2, 3)
    delete(storage, 1, 2)
    assert shrink(storage) == [1, 2]
    [record] = [one for one in storage.scan() if one.kind == RecordKind.TOMBSTONES]
    if behind:
        make(storage, 4)
    storage.close(clean=False)
    files.nodes[files.segments()[0]].data[record.offset + RECORD_HEADER_BYTES] ^= 1
    storage = open_storage(files)
    assert len(storage.report.torn) == (not behind)
    assert [damage.what for damage in storage.damages.kept] == (
        ["the body of a record of kind 0x8c does not verify"] if behind else []
    )
    assert not storage.report.unknown_in_limbo
    assert storage.report.limbo == []
    assert read_all(storage, 1, 0, 9) == {}
    assert len(read_all(storage, 3, 0, 9)) == 10
    assert shrink(storage) == [1, 2]
    assert shrunk(storage) == {1: 1, 2: 1}


def test_the_loop_is_given_back_between_slices_and_anything_may_happen_there() -> None:
    files = FaultyFiles()
    storage = open_storage(files, clock=HurriedClock(1_000_000))
    make(storage, *range(1, 60))
    fill(storage)
    make(storage, *range(100, 130))
    for ledger_id in range(500, 560):
        storage.put_facts(LedgerFacts(ledger_id, key=KEY, fenced=True), Answers(), None)
    delete(storage, *range(1, 40))
    assert len(list(storage.housekeeping.shrink_tombstones(UNTIL_MS))) == 39, "a ledger in each slice"
    settle(storage)
    assert len(shrunk(storage)) == 39
    fill(storage, 2000)
    delete(storage, *range(100, 130), FILLER, 2000)
    fill(storage, 2001)
    steps, turns = storage.housekeeping.reclaim_slices(), 0
    with pytest.raises(StopIteration) as end:
        while True:
            next(steps)
            turns += 1
            assert storage.housekeeping.reclaim() == 0, "one at a time"
            put(storage, make_run(3000, turns, turns), Answers())
            if turns == 3:
                storage.put_facts(LedgerFacts(1, key=KEY, token=9), Answers(), None)
                put(storage, make_run(1, 3, 3), Answers())
            if turns == 5:
                delete(storage, 50)
    settle(storage)
    assert end.value.value == 2, "entries of ledgers 40 to 59 are in another one"
    assert turns > 30
    storage.close()
    storage = open_storage(files)
    assert list(read_all(storage, 1, 0, 9)) == [3]
    assert storage.token(1) == 9
    for ledger_id in range(500, 560):
        facts = storage.facts(ledger_id)
        assert facts is not None
        assert facts.fenced
    for ledger_id in (*range(2, 40), 50, *range(100, 130)):
        assert read_all(storage, ledger_id, 0, 9) == {}
    assert all(len(read_all(storage, ledger_id, 0, 9)) == 10 for ledger_id in range(40, 50))
    assert len(read_all(storage, 3000, 0, turns)) == turns


def test_work_that_is_given_up_is_taken_up_by_the_next_call() -> None:
    storage = open_storage(FaultyFiles(), clock=HurriedClock(1_000_000))
    make(storage, *range(1, 20))
    fill(storage)
    delete(storage, *range(1, 10), FILLER)
    steps = storage.housekeeping.shrink_tombstones(UNTIL_MS)
    given_up = next(iter(steps))
    steps.close()  # type: ignore[attr-defined]
    assert sorted([*given_up, *shrink(storage)]) == [*range(1, 10), FILLER]
    delete(storage, *range(10, 20))
    fill(storage, 50)
    work = storage.housekeeping.reclaim_slices()
    next(work)
    work.close()
    assert storage.housekeeping.reclaim() == 1
    settle(storage)
    assert storage.housekeeping.reclaim() == 0
    assert shrunk(storage) == {FILLER: 1}


def test_a_segment_of_little_but_live_states_is_not_moved_again_and_again() -> None:
    storage = open_storage(FaultyFiles())
    callback = Answers()
    for ledger_id in range(1, 1000):
        storage.put_facts(LedgerFacts(ledger_id, key=KEY, fenced=True), callback, None)
    settle(storage)
    full = len(storage.segments)
    written = storage.statistics()["bytes_written"]
    assert full > 3
    for _ in range(3):
        assert reclaim(storage) == 0
    assert storage.statistics()["bytes_written"] == written
    storage.journal.full = True
    assert storage.housekeeping.reclaim() == 1, (
        "on a full disk each segment counts, but it takes one after the other"
    )


def test_on_a_full_disk_tombstones_stay_as_they_are() -> None:
    files = FaultyFiles()
    files.space = 4 * SMALL.segment_bytes
    storage = open_storage(files)
    make(storage, 1)
    for entry_id in range(100):
        put(storage, make_run(2, entry_id, entry_id, payload=bytes(9000)), Answers())
        settle(storage)
    assert not storage.writable
    delete(storage, 1)
    assert shrink(storage) == []
    assert storage.statistics()["tombstones"] == 1
    files.space = 100 * SMALL.segment_bytes
    storage.check_disk()
    assert shrink(storage) == [1]


# --- what the collector asks --------------------------------------------------------------------------------------


@pytest.mark.parametrize("restart", [None, True, False])
def test_whether_a_ledger_was_written_to_since(restart: bool | None) -> None:
    files = FaultyFiles()
    storage = open_storage(files)
    before = storage.journal.last_lsn
    make(storage, 1, 2)
    middle = storage.journal.last_lsn
    make(storage, 2)
    late = storage.journal.last_lsn
    fill(storage, segments=2)
    put(storage, make_run(3, 0, 0), Answers())
    settle(storage)
    storage.put_facts(LedgerFacts(1, key=KEY, fenced=True), Answers(), None)
    settle(storage)
    if restart is not None:
        storage.close(clean=restart)
        storage = open_storage(files)
    found = {
        ledger_id: [
            storage.drops.written_since(ledger_id, lsn)
            for lsn in (before, middle, late, storage.journal.last_lsn)
        ]
        for ledger_id in (1, 2, 3, FILLER, 77)
    }
    assert found == {
        1: [True, False, False, False],
        2: [True, True, False, False],
        3: [True, True, True, False],
        FILLER: [True, True, True, False],
        77: [False] * 4,
    }
    delete(storage, 2)
    assert not storage.drops.written_since(2, before)


def test_rows_that_cannot_be_read_may_be_new() -> None:
    files = FaultyFiles()
    storage = open_storage(files)
    make(storage, 1)
    lsn = storage.journal.last_lsn
    fill(storage)
    storage.reader.cache.forget(min(storage.segments), 1)
    assert not storage.drops.written_since(1, lsn)
    storage.reader.cache.forget(min(storage.segments), 1)
    files.bad_reads = ".seg"
    assert storage.drops.written_since(1, lsn)


def test_ids_and_tokens() -> None:
    storage = open_storage(FaultyFiles())
    make(storage, 1, 2)
    put(storage, make_run(3, 0, 0), Answers())
    delete(storage, 2)
    assert list(storage.states.ledgers) == [1, 3]
    assert [storage.token(ledger_id) for ledger_id in (1, 2, 3, 4)] == [71, 72, 0, 0]
    assert [storage.facts(ledger_id) is not None for ledger_id in (1, 2, 3)] == [True, True, False]

"""What holds a disk's space: each reason is made on a disk in memory, and what it names ends it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from quire.core.bookie.ledger import LedgerFacts
from quire.core.ids import ID_MAX
from quire.storage.ledger_storage import LedgerStorage
from quire.storage.slices import run_through
from quire.storage.space_reasons import Reason
from quire_testing.kit.stepped import StepClock, StepWorker
from support.storage_disk import (
    FILLER,
    SMALL,
    Answers,
    FaultyFiles,
    fill_oldest,
    make_run,
    open_storage,
    put,
    settle,
)

SEGMENT = 128 * 1024


def measured(storage: LedgerStorage, files: FaultyFiles) -> dict[Reason, int]:
    """Bytes by reason: together the bytes of all files."""
    found = run_through(storage.housekeeping.space_slices({}))
    sizes = [
        len(node.data) for path, node in files.nodes.items() if path.endswith((".seg", ".fresh", ".used"))
    ]
    assert sum(found.values()) == sum(sizes) == storage.statistics()["file_bytes"]
    return found


def a_sealed_segment(files: FaultyFiles) -> tuple[LedgerStorage, Answers, int]:
    """A sealed segment with entries 0..9 of two ledgers and much of another one."""
    storage, callback = open_storage(files), Answers()
    for ledger_id in (1, 2):
        storage.put_facts(LedgerFacts(ledger_id, key=b"k" * 20, token=7), callback, None)
        put(storage, make_run(ledger_id, 0, 9, payload=b"a" * 500), callback)
        settle(storage)
    return storage, callback, fill_oldest(storage, callback)


def delete(storage: LedgerStorage, ledger_id: int) -> None:
    storage.delete(ledger_id, 1 << 50, Answers(), None)
    settle(storage)


def pass_over(storage: LedgerStorage, *, compact: bool = False) -> None:
    if compact:
        run_through(storage.housekeeping.compact_slices(0.0))
    storage.housekeeping.reclaim()
    settle(storage)


def test_a_new_disk_is_a_segment_that_is_filled_and_a_reserve() -> None:
    files = FaultyFiles()
    storage = open_storage(files)
    found = measured(storage, files)
    assert found[Reason.LIVE] == 0
    assert found[Reason.SPARES] == SEGMENT, "the next segment's file is there already"
    assert found[Reason.RESERVE] == 2 * SEGMENT
    put(storage, make_run(1, 0, 9, payload=bytes(1000)), Answers())
    settle(storage)
    after = measured(storage, files)
    assert after[Reason.FILLING] < found[Reason.FILLING]
    assert 10_000 < after[Reason.LIVE] < 12_000


def test_entries_that_live_are_dead_after_a_deletion_and_return_with_a_pass() -> None:
    files = FaultyFiles()
    storage, _, first = a_sealed_segment(files)
    before = measured(storage, files)
    assert before[Reason.LIVE] > SEGMENT // 2
    assert before[Reason.DELETED] == before[Reason.SPARSE] == before[Reason.TOMBSTONES] == 0
    delete(storage, FILLER)
    sparse = measured(storage, files)
    assert sparse[Reason.SPARSE] > SEGMENT // 2
    assert sparse[Reason.LIVE] < before[Reason.LIVE] // 5
    assert sparse[Reason.TOMBSTONES]
    pass_over(storage)
    assert measured(storage, files)[Reason.SPARSE] == sparse[Reason.SPARSE], "two ledgers live in it"
    delete(storage, 1)
    delete(storage, 2)
    held = measured(storage, files)
    assert held[Reason.DELETED] == SEGMENT
    pass_over(storage)
    after = measured(storage, files)
    assert after[Reason.DELETED] == 0
    assert first not in storage.segments
    assert after[Reason.SPARES] == held[Reason.SPARES] + SEGMENT


def test_dead_entries_among_living_ones_return_by_compaction() -> None:
    files = FaultyFiles()
    storage, _, first = a_sealed_segment(files)
    delete(storage, FILLER)
    held = measured(storage, files)
    pass_over(storage, compact=True)
    after = measured(storage, files)
    assert first not in storage.segments
    assert after[Reason.SPARSE] < held[Reason.SPARSE] // 5, "what of the filler came later"
    assert abs(after[Reason.LIVE] - held[Reason.LIVE]) < 16


def test_a_range_that_was_dropped_is_dead_by_its_share() -> None:
    files = FaultyFiles()
    storage, callback, _ = a_sealed_segment(files)
    before = measured(storage, files)
    storage.drops.drop(1, 0, 4, storage.journal.last_lsn, callback, "half")
    settle(storage)
    after = measured(storage, files)
    half = before[Reason.LIVE] - after[Reason.LIVE]
    assert 2000 < half < 4000
    assert after[Reason.SPARSE] - before[Reason.SPARSE] == half
    storage.drops.drop(1, 0, ID_MAX, storage.journal.last_lsn, callback, "all")
    settle(storage)
    assert before[Reason.LIVE] - measured(storage, files)[Reason.LIVE] in range(2 * half - 8, 2 * half + 8)


def test_tombstones_return_after_their_time() -> None:
    files = FaultyFiles()
    storage, _, _ = a_sealed_segment(files)
    for ledger_id in (1, 2, FILLER):
        delete(storage, ledger_id)
    held = measured(storage, files)[Reason.TOMBSTONES]
    assert held > 3 * 200
    assert storage.housekeeping.first_tombstone_ms in range((1 << 50) - (1 << 16), (1 << 50) + 1)
    pass_over(storage)
    for _ in storage.housekeeping.shrink_tombstones((1 << 50) + (1 << 17)):
        pass
    assert measured(storage, files)[Reason.TOMBSTONES] < held // 3
    assert storage.housekeeping.first_tombstone_ms == 0


def test_a_segment_that_the_disk_does_not_give_stays_until_its_entries_were_put_back() -> None:
    files = FaultyFiles()
    storage, callback, first = a_sealed_segment(files)
    row = next(record for record in storage.scan() if record.ledger_id == 2 and record.kind == 0x81)
    delete(storage, FILLER)
    files.bad_reads, files.bad_from = f"{first:016x}", row.offset
    pass_over(storage, compact=True)
    held = measured(storage, files)
    assert held[Reason.DAMAGE] > SEGMENT // 2
    put(storage, make_run(2, 0, 9, payload=b"r" * 500), callback, recovery=True)
    settle(storage)
    pass_over(storage, compact=True)
    assert measured(storage, files)[Reason.DAMAGE] == 0
    assert first not in storage.segments


def test_a_segment_that_is_read_on_the_worker_is_not_given_back_before_the_read_has_ended() -> None:
    files = FaultyFiles()
    storage, callback, first = a_sealed_segment(files)
    segment = storage.segments[first]
    for ledger_id in (1, 2, FILLER):
        delete(storage, ledger_id)
    storage.housekeeping.reclaimer.pinned.add(first)
    assert measured(storage, files)[Reason.PINNED] == SEGMENT
    pass_over(storage)
    assert storage.segments[first] is segment
    storage.housekeeping.reclaimer.pinned.discard(first)
    pass_over(storage)
    assert measured(storage, files)[Reason.PINNED] == 0
    assert first not in storage.segments
    assert callback.told


def test_whoever_reads_records_again_pins_their_segment() -> None:
    files = FaultyFiles()
    worker = StepWorker()
    storage = open_storage(files, worker=worker, clock=StepClock(1_000_000))
    callback = Answers()
    put(storage, make_run(1, 0, 9), callback)
    settle(storage)
    first = fill_oldest(storage, callback)
    storage.read_again(storage.segments[first])
    assert storage.housekeeping.reclaimer.pinned == {first}
    until(worker, lambda: not storage.housekeeping.reclaimer.pinned)


def until(worker: StepWorker, done: Callable[[], bool]) -> None:
    for _ in range(1000):
        if done():
            return
        worker.step()
    raise AssertionError("never")


def test_a_segment_on_its_way_back_is_counted_until_its_file_is_there() -> None:
    files = FaultyFiles()
    worker = StepWorker()
    storage = open_storage(files, worker=worker)
    callback = Answers()
    number = 0
    while len(storage.segments) < 3:
        put(storage, make_run(FILLER, number, number, payload=bytes(12_000)), callback)
        settle(storage)
        number += 1
    delete(storage, FILLER)
    storage.housekeeping.reclaim()
    held = measured(storage, files)
    assert held[Reason.RETIRED] >= SEGMENT
    until(worker, partial(_all_back, storage))
    assert measured(storage, files)[Reason.RETIRED] == 0


def _all_back(storage: LedgerStorage) -> bool:
    storage.flush()
    return not storage.housekeeping.reclaimer.returning


def test_a_recycled_file_rests_before_it_is_a_segment_again_if_there_is_another() -> None:
    files, clock = FaultyFiles(), StepClock(1_000_000)
    storage, callback = open_storage(files, replace(SMALL, recycled_rest_ms=1000), clock=clock), Answers()
    number = 0

    def fill() -> int:
        """Fill a segment; returns the next one, and whether its file was one before."""
        nonlocal number
        newest = max(storage.segments)
        while max(storage.segments) == newest:
            put(storage, make_run(FILLER, number, number, payload=bytes(12_000)), callback)
            settle(storage)
            number += 1
        return max(storage.segments)

    for _ in range(3):
        fill()
    delete(storage, FILLER)
    storage.housekeeping.reclaim()
    settle(storage)
    assert [name.rpartition(".")[2] for name in storage._files.spares] == ["fresh"] * 3 + ["used"] * 3
    assert not storage.segments[fill()].recycled, "a reader may still have a place in the others"
    clock.ms += 1000
    assert storage.segments[fill()].recycled
    clock.ms -= 1000
    while len(storage._files.spares) > 3:
        fill()
    assert all(error is None for _, error in callback.told), "where there is no other it is used at once"

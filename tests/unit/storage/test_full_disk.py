"""What a full disk's reserve is for: each use leaves some to those that matter more, so that space always comes back."""

from __future__ import annotations

from quire.core.bookie.ledger import LedgerFacts
from quire.core.errors import DiskFullError
from quire.storage.ledger_storage import LedgerStorage
from quire.storage.slices import run_through
from quire_testing.kit.stepped import HurriedClock
from support.storage_disk import SMALL, Answers, FaultyFiles, make_run, open_storage, put, read_all, settle

BODY = bytes(15_100)


def a_full_disk(files: FaultyFiles) -> tuple[LedgerStorage, int]:
    """Two ledgers take turns until the disk is full; with the number of entries that were stored."""
    storage, callback, number = open_storage(files), Answers(), 0
    files.space = 8 * SMALL.segment_bytes
    while storage.writable:
        put(storage, make_run(1 + number % 2, number, number, payload=BODY), callback, number)
        settle(storage)
        number += 1
    return storage, len(callback.ok)


def recovered(storage: LedgerStorage, ledger_id: int) -> int:
    """How many recovery adds are taken until one is refused."""
    callback, number = Answers(), 0
    while len(callback.ok) == number:
        put(storage, make_run(ledger_id, number, number, payload=BODY), callback, number, recovery=True)
        settle(storage)
        number += 1
    assert isinstance(callback.told[-1][1], DiskFullError)
    return number - 1


def fenced(storage: LedgerStorage, first: int) -> int:
    """How many ledgers are fenced until one is refused."""
    callback, number = Answers(), 0
    while len(callback.ok) == number:
        storage.put_facts(LedgerFacts(first + number, b"k" * 20, fenced=True), callback, number)
        settle(storage)
        number += 1
    assert isinstance(callback.told[-1][1], DiskFullError)
    return number - 1


def given_back(storage: LedgerStorage) -> int:
    """How many segments one pass of the collector retires."""
    before = storage.housekeeping.reclaim()
    settle(storage)
    run_through(storage.housekeeping.compact_slices(0.0))
    settle(storage)
    after = storage.housekeeping.reclaim()
    settle(storage)
    storage.check_disk()
    settle(storage)
    return before + after


def test_recovery_adds_leave_room_for_fences_and_both_for_deletions() -> None:
    """Recovery adds and fences used up what deletions may have: nothing came back before a restart."""
    files = FaultyFiles()
    storage, stored = a_full_disk(files)
    added = recovered(storage, 3)
    assert added >= 3
    assert fenced(storage, 1000) > 10  # each is a block
    callback = Answers()
    storage.delete(1, 1 << 50, callback, "delete")
    storage.drops.drop(2, 0, 1, storage.journal.last_lsn, callback, "drop")
    settle(storage)
    assert callback.ok == ["delete", "drop"]
    for _ in range(10):
        given_back(storage)
    assert not storage.journal.full
    for _ in range(2):
        assert sorted(read_all(storage, 3, 0, added)) == list(range(added))
        assert sorted(read_all(storage, 2, 0, stored)) == list(range(3, stored, 2))
        assert read_all(storage, 1, 0, stored) == {}
        storage.close(clean=False)
        storage = open_storage(files.crash())


def test_a_segment_is_retired_when_deletions_have_used_what_they_may() -> None:
    """Deletions go into the space for compaction, and leave what retirements need."""
    files = FaultyFiles()
    storage, _ = a_full_disk(files)
    fenced(storage, 1000)
    callback, number = Answers(), 0
    storage.delete(1, 1 << 50, Answers(), None)
    storage.delete(2, 1 << 50, Answers(), None)
    while len(callback.ok) == number:
        storage.delete(100_000 + number, 1 << 50, callback, number)
        settle(storage)
        number += 1
    assert number > 20
    fenced(storage, 2000)
    assert isinstance(callback.told[-1][1], DiskFullError)
    in_use = len(storage.segments)
    assert given_back(storage) > 0
    assert len(storage.segments) < in_use
    assert not storage.journal.full


def test_compaction_gives_back_before_it_has_filled_the_disk() -> None:
    """It relocated whatever was worth it first: adds were refused in a pass that was to make room for them."""
    files = FaultyFiles()
    storage, callback, number = open_storage(files, clock=HurriedClock(1_000_000)), Answers(), 0
    while len(storage.segments) < 22:
        put(storage, make_run(1 + number % 2, number, number, payload=bytes(6_000)), callback)
        settle(storage)
        number += 1
    storage.drops.drop(1, 0, (1 << 63) - 1, storage.journal.last_lsn, callback, None)
    settle(storage)
    disk_bytes = 30 * SMALL.segment_bytes
    used = (len(storage.segments) + len(storage._files.spares)) * SMALL.segment_bytes
    files.space = free = disk_bytes - used

    def relocated() -> int:
        """Of how many segments all is relocated, while the disk takes adds all the time."""
        steps = storage.housekeeping.compact_slices(free / disk_bytes, free // 2)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                settle(storage)
                assert not storage.journal.full
                return int(end.value)
            settle(storage)
            assert storage.writable

    rounds = 0
    while relocated():
        rounds += 1
        storage.housekeeping.reclaim()
        settle(storage)
        assert storage.writable
        free = files.space
    assert rounds > 1
    assert len(storage.segments) < 16
    assert sorted(read_all(storage, 2, 0, number)) == list(range(1, number, 2))

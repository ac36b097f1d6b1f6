"""When a pass comes, and a compaction that a pass does not finish."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from quire.bookie.collecting import cleaning
from quire.bookie.collecting.cleaning import FULL_SECONDS, DiskCleaner
from quire.bookie.config import BookieConfig
from quire.bookie.ledgers.ledgers import Ledgers
from quire.storage.ledger_storage import LedgerStorage
from quire.storage.space_reasons import FreeSpace
from quire_testing.kit.stepped import HurriedClock, StepClock
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

EVERY = 60.0


class Disk:
    """How much is free."""

    def __init__(self) -> None:
        self.free = 500

    def __call__(self, _directory: object) -> FreeSpace:
        return FreeSpace(self.free, 1000)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    disk = Disk()
    monkeypatch.setattr(cleaning, "free_space", disk)
    return disk


def a_cleaner(directory: Path, storage: LedgerStorage, clock: StepClock) -> DiskCleaner:
    config = BookieConfig(directory, garbage_seconds=EVERY)
    return DiskCleaner(config, storage, Ledgers(storage, lambda: None), clock, lambda _: None)


def test_a_pass_comes_so_often_and_sooner_on_a_disk_that_is_full_or_will_be(
    tmp_path: Path, disk: Disk
) -> None:
    files, clock = FaultyFiles(), StepClock()
    storage, callback = open_storage(files), Answers()
    cleaner = a_cleaner(tmp_path, storage, clock)
    clock.ms = 59_999
    assert not cleaner.is_due
    clock.ms = 60_000
    assert cleaner.is_due
    cleaner.pass_begins()
    clock.ms += 2_000
    disk.free = 290
    cleaner.pass_ends()
    assert not cleaner.is_due
    clock.ms += 10_000
    disk.free = 140  # full in 9 seconds, and four passes take eight
    assert cleaner.is_due
    disk.free = 280
    assert not cleaner.is_due
    files.space = 0
    while storage.writable:
        put(storage, make_run(1, 0, 0, payload=bytes(16_000)), callback)
        settle(storage)
    assert cleaner.is_due
    cleaner.pass_begins()
    cleaner.pass_ends()
    clock.ms += int(FULL_SECONDS * 1000) - 1
    assert not cleaner.is_due
    clock.ms += 1
    assert cleaner.is_due


def sparse_segments(storage: LedgerStorage, callback: Answers, count: int) -> None:
    """Segments in which a little lives of each of eight ledgers, and the rest is dead."""
    for number in range(count):
        for ledger_id in range(1, 9):
            put(storage, make_run(ledger_id, number, number, payload=b"a" * 50), callback)
        settle(storage)
        fill_oldest(storage, callback, max(storage.segments))
    storage.delete(FILLER, 1 << 50, callback, None)
    settle(storage)


async def a_pass(cleaner: DiskCleaner, storage: LedgerStorage) -> None:
    """All that a pass does here, with a disk that does what it is asked for."""
    cleaner.pass_begins()
    cleaning_up = asyncio.ensure_future(cleaner.clean(on_request=False))
    while not cleaning_up.done():
        await asyncio.sleep(0)
        settle(storage)
    await cleaning_up
    cleaner.pass_ends()


class SlowClock(StepClock):
    """Compaction takes twenty steps, and is over."""

    def now_ms(self) -> int:
        self.ms += 3_000
        return self.ms


async def test_a_compaction_ends_when_the_next_pass_is_due_which_goes_on_with_it(
    tmp_path: Path, disk: Disk
) -> None:
    """It would have held up whatever else passes do, for as long as a large disk takes."""
    disk.free = 100
    storage, callback = open_storage(FaultyFiles(), clock=HurriedClock(1_000_000)), Answers()
    sparse_segments(storage, callback, 4)
    clock = SlowClock()
    cleaner = a_cleaner(tmp_path, storage, clock)

    await a_pass(cleaner, storage)
    before = cleaner.retired
    assert storage.statistics()["carried_bytes"]
    assert cleaner.is_due
    passes = 1
    while cleaner.retired < before + 4:
        await a_pass(cleaner, storage)
        passes += 1
        assert passes < 100
    assert passes > 2


async def test_a_disk_that_was_full_is_compacted_until_nothing_is_worth_it(
    tmp_path: Path, disk: Disk
) -> None:
    """The first segment that comes back makes it writable; the others would wait a minute, and meanwhile it would be full again."""
    files, clock = FaultyFiles(), StepClock()
    storage, callback = open_storage(files), Answers()
    cleaner = a_cleaner(tmp_path, storage, clock)
    disk.free = 30
    files.space = 6 * SMALL.segment_bytes
    sparse_segments(storage, callback, 5)
    while not storage.journal.full:
        put(storage, make_run(100, 0, 0, payload=bytes(12_000)), callback)
        settle(storage)
    sparse = len(storage.segments)
    await a_pass(cleaner, storage)
    assert cleaner.compacted == 1, "into the reserve"
    passes = 1
    while cleaner.is_due:
        await a_pass(cleaner, storage)
        passes += 1
        assert passes < 9
    assert not storage.journal.full
    assert cleaner.compacted >= 5
    assert len(storage.segments) < sparse
    assert clock.ms < FULL_SECONDS * 1000, "none of them waits"

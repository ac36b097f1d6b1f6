"""The space of segments that nobody needs goes back a part at a time: what happens between two parts."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from quire.storage.ledger_storage import LedgerStorage
from quire.storage.segments import segment_files
from quire.storage.slices import run_through
from quire.storage.space_reasons import Reason
from quire_testing.kit.stepped import StepClock, StepWorker
from support.storage_disk import FILLER, SMALL, Answers, FaultyFiles, make_run, open_storage, put, settle

PART = 32 * 1024
PARTS = SMALL.segment_bytes // PART
"""The last of which removes what is left."""


class Paused:
    """A pace that goes on when the test says so."""

    def __init__(self, storage: LedgerStorage, worker: StepWorker) -> None:
        self.calls: list[tuple[float, Callable[[], None]]] = []
        self._storage, self._worker = storage, worker
        storage.housekeeping.set_pace(
            lambda took, waiting: waiting + took, lambda *call: self.calls.append(call)
        )

    def go_on(self) -> None:
        """Let the rest end, and the disk do what it was given meanwhile."""
        [(_, call)] = self.calls
        self.calls.clear()
        call()
        self.settle()

    def settle(self) -> None:
        self._storage.flush()
        while self._worker.jobs:
            self._worker.step()


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> FaultyFiles:
    monkeypatch.setattr(segment_files, "GIVEN_BACK_BYTES", PART)
    return FaultyFiles()


def with_dead_segments(files: FaultyFiles, count: int) -> tuple[LedgerStorage, StepWorker]:
    """So many segments hold a deleted ledger only; there are as many spares as are kept."""
    worker = StepWorker()
    storage, callback = open_storage(files, worker=worker, clock=StepClock(1_000_000)), Answers()
    number = 0
    while len(storage.segments) <= count:
        put(storage, make_run(FILLER, number, number, payload=bytes(12_000)), callback)
        settle(storage)
        number += 1
    storage._files.make_spares(SMALL.spares_max)
    storage.delete(FILLER, 1 << 50, callback, None)
    settle(storage)
    return storage, worker


def sizes(files: FaultyFiles) -> list[int]:
    """Of the files that are on their way back."""
    return sorted(len(node.data) for name, node in files.nodes.items() if name.endswith(".tmp"))


def test_a_file_goes_in_parts_with_a_rest_after_each(files: FaultyFiles) -> None:
    storage, worker = with_dead_segments(files, 2)
    paused = Paused(storage, worker)
    assert storage.housekeeping.reclaim() == 2
    paused.settle()
    whole = SMALL.segment_bytes
    assert sizes(files) == [whole - PART, whole], "both have their names, one is shorter"
    for number in range(2, PARTS):
        assert paused.calls[0][0] >= 2.0, "two files wait"
        paused.go_on()
        assert sizes(files) == [whole - number * PART, whole]
    held = run_through(storage.housekeeping.space_slices({}))
    assert held[Reason.RETIRED] >= 2 * whole
    paused.go_on()
    assert sizes(files) == [whole]
    for _ in range(PARTS):
        paused.go_on()
    assert sizes(files) == []
    paused.go_on()
    assert not paused.calls
    assert not storage.housekeeping.reclaimer.returning


def test_what_is_retired_during_a_rest_does_not_cut_it_short(files: FaultyFiles) -> None:
    storage, worker = with_dead_segments(files, 1)
    paused, callback = Paused(storage, worker), Answers()
    assert storage.housekeeping.reclaim() == 1
    paused.settle()
    before, count = sizes(files), len(storage.segments)
    number = 0
    while len(storage.segments) <= count:
        put(storage, make_run(FILLER + 1, number, number, payload=bytes(12_000)), callback)
        paused.settle()
        number += 1
    storage.delete(FILLER + 1, 1 << 50, callback, None)
    paused.settle()
    storage._files.make_spares(SMALL.spares_max)
    assert storage.housekeeping.reclaim()
    paused.settle()
    assert sizes(files)[0] == before[0]
    assert len(paused.calls) == 1


def test_a_full_disk_does_not_rest(files: FaultyFiles) -> None:
    storage, worker = with_dead_segments(files, 2)
    paused = Paused(storage, worker)
    storage.journal.full = True
    later: list[float] = []
    storage.housekeeping.set_pace(lambda *_: 1.0, lambda seconds, call: (later.append(seconds), call()))
    assert storage.housekeeping.reclaim() == 2
    paused.settle()
    assert set(later) == {0.0}
    assert sizes(files) == []


@pytest.mark.parametrize("crash", [False, True])
def test_what_was_not_given_back_before_the_end_is_given_back_by_the_next_start(
    files: FaultyFiles, crash: bool
) -> None:
    storage, worker = with_dead_segments(files, 2)
    paused = Paused(storage, worker)
    assert storage.housekeeping.reclaim() == 2
    paused.settle()
    assert sizes(files)
    storage.close(clean=not crash)
    [(_, rested)] = paused.calls
    rested()
    assert not worker.jobs, "a rest that ends after the storage does begins nothing"
    disk = files.crash() if crash else files
    again = open_storage(disk)
    assert sizes(disk) == []
    assert again.damages.kept == []

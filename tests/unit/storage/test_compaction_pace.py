"""Compaction of segments with many ledgers: how long the loop is held by each of its steps, and what was written for it."""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable, Generator
from typing import Any, Self

import pytest

from quire.core.bookie.ledger import LedgerFacts
from quire.env.cyclic_garbage import ShortCollections
from quire.env.real import RealClock
from quire.storage.config import MIB, StorageConfig
from quire.storage.ledger_storage import LedgerStorage
from quire_testing.kit.memory import MemoryFiles
from quire_testing.kit.stepped import StepWorker
from support.rounds import FULL, keep_figures, rounds
from support.storage_disk import FILLER, IDENTITY, Answers, make_run, put, settle

CALLBACK_MS = 10
LOOP_MS = 50


class Held:
    """How long each step on the loop has taken, in milliseconds of CPU; Python's own collector, which may hit any step, apart."""

    def __init__(self) -> None:
        self.longest: dict[str, float] = {}
        self.steps = 0
        self._collector, self._begun = 0.0, 0.0
        self._watched = ShortCollections()

    def __enter__(self) -> Self:
        gc.callbacks.append(self._begins)
        self._watched.start()  # as a bookie does when it has opened its disk
        gc.callbacks.append(self._ends)
        return self

    def __exit__(self, *error: object) -> None:
        gc.callbacks.remove(self._begins)
        gc.callbacks.remove(self._ends)
        self._watched.stop()

    def _begins(self, phase: str, _: object) -> None:
        if phase == "start":
            self._begun = time.thread_time()

    def _ends(self, phase: str, _: object) -> None:
        if phase == "stop":
            took = time.thread_time() - self._begun
            self._collector += took
            self._took("collector", took)

    def _took(self, what: str, seconds: float) -> None:
        self.longest[what] = max(1000 * seconds, self.longest.get(what, 0.0))

    def take(self, what: str, step: Callable[[], Any]) -> Any:
        self._collector, before = 0.0, time.thread_time()
        try:
            return step()
        finally:
            self.steps += 1
            self._took(what, time.thread_time() - before - self._collector)


def driven(held: Held, what: str, steps: Generator[None, None, int], worker: StepWorker) -> int:
    """Take all slices, and do on the side what a worker thread would."""
    while True:
        try:
            held.take(what, lambda: next(steps))
        except StopIteration as end:
            return int(end.value)
        while worker.jobs:
            job, done = worker.jobs.popleft()
            result = job()
            held.take("what was written", lambda done=done, result=result: done(result))


@pytest.mark.timeout(3600)
def test_no_step_of_compaction_holds_the_loop() -> None:
    ledgers = rounds(3_000, 200_000)
    segment_bytes = 16 * MIB if FULL else MIB
    worker, callback = StepWorker(), Answers()
    storage = LedgerStorage.open(
        "/bookie", StorageConfig(segment_bytes=segment_bytes), IDENTITY, files=MemoryFiles(), worker=worker,
        clock=RealClock(), chance=random.Random(7),
    )  # fmt: skip
    filled = 0
    for ledger_id in range(1_000, 1_000 + ledgers):
        if not ledger_id % 30:
            storage.put_facts(
                LedgerFacts(ledger_id, key=b"k" * 20, token=ledger_id, fenced=True), callback, None
            )
        put(storage, make_run(ledger_id, 0, 0, payload=b"a" * 100), callback)
        if not ledger_id % 10:
            put(storage, make_run(FILLER, filled, filled, payload=bytes(12_000)), callback)
            filled += 1
        if not ledger_id % 500:
            settle(storage)
            callback.told.clear()
    settle(storage)
    storage.delete(FILLER, 1 << 50, callback, None)
    settle(storage)
    before = storage.statistics()
    held = Held()
    compacted = retired = 0
    with held:
        for _ in range(20):
            compacted += driven(held, "compaction", storage.housekeeping.compact_slices(0.0), worker)
            retired += (found := driven(held, "giving back", storage.housekeeping.reclaim_slices(), worker))
            settle(storage)
            if not found:
                break
    assert retired >= before["segments"] // 2
    after = storage.statistics()
    assert after["segment_bytes"] <= 0.7 * before["segment_bytes"]
    for ledger_id in range(1_000, 1_000 + ledgers, max(1, ledgers // 500)):
        assert storage.read(ledger_id, 0, 0, 4096).runs, ledger_id
    storage.close()
    figures = {
        "ledgers": ledgers,
        "segments_before": before["segments"],
        "compacted": compacted,
        "given_back": retired,
        "carried_mib": after["carried_bytes"] >> 20,
        "steps": held.steps,
        "longest_ms": {what: round(took, 2) for what, took in held.longest.items()},
    }
    keep_figures("compaction_of_many_ledgers", figures, seed=7)
    if FULL:
        assert held.longest["compaction"] <= CALLBACK_MS
        assert max(held.longest.values()) <= LOOP_MS

"""Runs that are put together lie on the disk as if each had been put alone, also where groups, segments and the disk end."""

from __future__ import annotations

import random

import pytest
from crc32c import crc32c

from quire.core.bookie.ledger import LedgerFacts
from quire.core.errors import DiskFullError
from quire.storage import index
from quire.storage.config import StorageConfig
from quire.storage.index import RowTable
from quire.wire.plain_adds import OrdinaryRun
from quire.wire.run import RunView
from quire_testing.kit.stepped import StepWorker
from support.storage_disk import SMALL, Answers, FaultyFiles, make_run, open_storage, settle


def ordinary(run: RunView, lac: int) -> OrdinaryRun:
    body = bytes(run.body)
    return run.ledger_id, 0, lac, body, crc32c(body), run.digest_type, run.first, run.last, run.count


def runs_of(tags: list[tuple[int, int, int]]) -> list[tuple[int, int]]:
    return [(batch, at + one) for batch, at, count in tags for one in range(count)]


@pytest.mark.parametrize("seed", range(6))
def test_the_same_bytes_and_answers_as_one_by_one(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(seed)
    monkeypatch.setattr(index, "LATE_MIN", chance.choice((1, 20, 60)))
    monkeypatch.setattr(index, "ROWS_A_LOOKUP", 10)
    disks = FaultyFiles(), FaultyFiles()
    together, alone = map(open_storage, disks)
    callbacks = Answers(), Answers()
    for disk in disks:
        disk.space = (8 + seed) * SMALL.segment_bytes
    for ledger_id in range(58):  # the others are not known
        for storage in (together, alone):
            storage.put_facts(LedgerFacts(ledger_id, b"k" * 20), Answers(), None)
    last: dict[int, int] = {}
    batch = 0
    while together.writable:
        ledger_id, what = chance.randrange(60), chance.random()
        for storage in (together, alone):
            if what < 0.2:
                storage.put_facts(LedgerFacts(ledger_id, b"k" * 20, lac=batch % 3), Answers(), None)
            elif what < 0.21 and ledger_id in last:
                storage.delete(ledger_id, 1, Answers(), None)
        runs = []
        looked_up = chance.randrange(60)
        for ledger_id in chance.sample(range(60), chance.randrange(1, 50)):
            first = last.get(ledger_id, -1) + 1
            last[ledger_id] = first + chance.choice((0, 0, 1, 4))
            payload = bytes(chance.choice((0, 7, 100, 100, 100, 100, 100, 2000, 14_000)))
            runs.append(make_run(ledger_id, first, last[ledger_id], payload=payload, lac=first - 1))
        refused = together.put_runs(
            [ordinary(run, run.first - 1) for run in runs],
            callbacks[0],
            lambda at, count, batch=batch: (batch, at, count),
        )
        taken = [
            alone.put_run(
                run,
                crc32c(run.body),
                lac=run.first - 1,
                token=0,
                recovery=False,
                callback=callbacks[1],
                tag=(batch, at, 1),
            )
            for at, run in enumerate(runs)
        ]
        assert refused == [at for at, one in enumerate(taken) if not one]
        for storage in (together, alone):
            storage.flush()
            if batch % 3 == 0:
                settle(storage)
        assert together.held(looked_up) == alone.held(looked_up)
        batch += 1
    for storage in (together, alone):
        settle(storage)
    assert runs_of(callbacks[0].ok) == runs_of(callbacks[1].ok)
    errors = [[type(error) for _, error in callback.told if error] for callback in callbacks]
    assert set(errors[0]) == {DiskFullError}
    assert {path: bytes(node.data) for path, node in disks[0].nodes.items()} == {
        path: bytes(node.data) for path, node in disks[1].nodes.items()
    }
    assert max(count for _, _, count in callbacks[0].ok) > 5, "one call of the callback for many"
    for ledger_id in last:
        assert together.held(ledger_id) == alone.held(ledger_id)
        assert together.last_entry(ledger_id) == alone.last_entry(ledger_id)
        assert together.facts(ledger_id) == alone.facts(ledger_id)


def test_a_segment_into_which_nobody_looks_is_sealed_without_an_index(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    storage, callback, ledgers = open_storage(FaultyFiles()), Answers(), range(100)
    for ledger_id in ledgers:
        storage.put_facts(LedgerFacts(ledger_id, b"k" * 20), Answers(), None)
    with monkeypatch.context() as patches:
        patches.setattr(index, "LATE_MIN", 1)  # groups are small here
        patches.delattr(RowTable, "_index_rows")
        for entry_id in range(20):
            runs = [ordinary(make_run(one, entry_id, entry_id), entry_id - 1) for one in ledgers]
            assert not storage.put_runs(runs, callback, lambda at, some: (at, some))
            storage.flush()
            settle(storage)
    assert len(storage.segments) > len(storage.unsealed)
    assert all([one[:2] for one in storage.held(ledger_id)] == [(0, 19)] for ledger_id in ledgers)


@pytest.mark.parametrize(("count", "at_once"), [(8, True), (9, False)])
def test_as_many_runs_as_are_written_on_the_loop_one_by_one(count: int, at_once: bool) -> None:
    worker, callback = StepWorker(), Answers()
    storage = open_storage(
        FaultyFiles(), StorageConfig(segment_bytes=1 << 20, inline_items_max=8), worker=worker
    )
    for ledger_id in range(count):
        storage.put_facts(LedgerFacts(ledger_id, b"k" * 20), Answers(), None)
    settle(storage)
    runs = [ordinary(make_run(ledger_id, 0, 0), -1) for ledger_id in range(count)]
    assert storage.put_runs(runs, callback, lambda at, some: (at, some)) == []
    storage.flush()
    assert bool(callback.ok) == at_once
    settle(storage)
    assert callback.ok == [(0, count)]

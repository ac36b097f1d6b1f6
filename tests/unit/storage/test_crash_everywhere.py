"""The machine stops at every single disk operation of a workload that rolls, seals, deletes and reclaims.

What the next start finds is drawn at random: unsynced sectors in any order, some of the renames. Whatever was
acknowledged before must be there; fences and tombstones too; nothing that was deleted comes back.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from quire.core.bookie.ledger import LedgerFacts
from quire.storage.ledger_storage import LedgerStorage
from quire_testing.kit.disk import Stopped
from quire_testing.kit.stepped import StepWorker
from support.rounds import rounds
from support.storage_disk import (
    Answers,
    FaultyFiles,
    make_run,
    open_storage,
    put,
    read_all,
    settle,
)


class Promise:
    """What has been acknowledged so far."""

    def __init__(self) -> None:
        self.entries: dict[int, dict[int, bytes]] = {}
        self.fenced: set[int] = set()
        self.deleted: set[int] = set()

    def stored(self, tag: object, error: object) -> None:
        assert error is None
        assert callable(tag)
        tag()


def workload(storage: LedgerStorage, promise: Promise, base: int) -> None:
    """Two ledgers in turn; one is deleted, so that its segments die while they hold another's fence."""

    def entries(ledger_id: int, first: int, size: int) -> None:
        run = make_run(ledger_id, first, first + 4, payload=bytes(size))
        content = {i: bytes(size) + b"/%d" % i for i in range(first, first + 5)}
        put(storage, run, promise, lambda: promise.entries.setdefault(ledger_id, {}).update(content))

    def fence(ledger_id: int) -> None:
        storage.put_facts(
            LedgerFacts(ledger_id, key=b"k" * 20, fenced=True), promise, lambda: promise.fenced.add(ledger_id)
        )

    fence(base + 2)
    for first in range(0, 40, 5):
        entries(base + 1, first, 4000)
        settle(storage)
    entries(base + 3, 0, 100)
    storage.delete(base + 1, 10**15, promise, lambda: promise.deleted.add(base + 1))
    settle(storage)
    promise.entries.pop(base + 1, None)
    storage.housekeeping.reclaim()
    settle(storage)
    fence(base + 3)
    for first in range(5, 30, 5):
        entries(base + 3, first, 3000)
    settle(storage)


def check(storage: LedgerStorage, promise: Promise, pending_delete: set[int]) -> None:
    assert storage.damages.kept == []
    for ledger_id, entries in promise.entries.items():
        if ledger_id in pending_delete:
            continue
        found = read_all(storage, ledger_id, 0, 60)
        assert {i: found.get(i) for i in entries} == entries
        assert None not in found.values()
    for ledger_id in promise.fenced:
        facts = storage.facts(ledger_id)
        assert facts is not None
        assert facts.fenced
    for ledger_id in promise.deleted:
        facts = storage.facts(ledger_id)
        assert facts is not None
        assert facts.deleted_until_ms
        assert read_all(storage, ledger_id, 0, 60) == {}


def crash_at(step: int, files: FaultyFiles, act: Callable[[], None]) -> bool:
    files.stop_at = step
    try:
        act()
    except Stopped:
        return True
    return False


@pytest.mark.parametrize("direct", [False, True])
def test_a_crash_at_each_operation_loses_nothing_acknowledged(direct: bool) -> None:
    step, crashes = 0, 0
    while True:
        step += rounds(2, 1)
        files = FaultyFiles(direct=direct, seed=step)
        promise = Promise()

        def act(files: FaultyFiles = files, promise: Promise = promise) -> None:
            storage = open_storage(files, worker=StepWorker())
            workload(storage, promise, 10)
            storage.close(clean=True)

        if not crash_at(step, files, act):
            break
        crashes += 1
        after = files.crash()
        # A second crash while the start puts things right, then a third start.
        if step % 3 == 0:
            again = after.copy()
            again.stop_at = 1 + step % 7
            try:
                open_storage(again)
            except Stopped:
                after = again.crash()
        storage = open_storage(after)
        check(storage, promise, {11})
        promise_two = Promise()
        workload(storage, promise_two, 20)
        check(storage, promise_two, set())
        storage.close(clean=True)
        last = open_storage(after)
        assert last.report.clean
        check(last, promise, {11})
        check(last, promise_two, set())
    assert crashes > rounds(20, 45)


def test_limbo_after_a_torn_write_survives_until_it_is_cleared() -> None:
    """Torn groups of many shapes: every ledger that the group named is denied nothing, also after further crashes."""
    limbo = 0
    for seed in range(60):
        files = FaultyFiles(direct=False, seed=seed)
        callback = Answers()
        storage = open_storage(files)
        for ledger_id in (1, 2):
            storage.put_facts(LedgerFacts(ledger_id, key=b"k" * 20), callback, None)
        settle(storage)
        put(storage, make_run(1, 0, 30), callback)
        files.stop_at = files.steps + 1
        with pytest.raises(Stopped):
            storage.flush()
        after = files.crash()
        again = open_storage(after)
        assert again.report.damages == []
        if again.report.torn:
            limbo += 1
            facts = again.facts(1)
            assert facts is not None
            assert facts.in_limbo
            assert not facts.fenced, "whether it was, nobody can tell: the fence is not set by limbo"
            third = open_storage(after.crash())
            facts = third.facts(1)
            assert facts is not None
            assert facts.in_limbo
            third.put_facts(LedgerFacts(1, key=b"k" * 20, fenced=True), callback, None)
            settle(third)
            third.close(clean=bool(seed & 1))
            facts = open_storage(after if seed & 1 else after.crash()).facts(1)
            assert facts is not None
        else:
            assert again.report.limbo == []
    assert limbo > 10

"""A worker that lists many marks, and asks bookies that are slow to respond, waits for neither where it need not.

Source: docs/protocol/repair-queue.md, "What comes first"; docs/protocol/repair.md, "Targets".
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from quire.autorecovery.targets import LOOK_AGAIN_MS, RepairTargets
from quire.core.ids import BookieId, LedgerId
from quire.core.repair.work_queue import LIMITS, MarkStatus
from quire.metadata.repairs import RepairStore
from quire.metadata.store import Registration
from support.recovering_cluster import recovering_cluster


def slow_listings(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    page = RepairStore.missing_page

    async def slow(self: RepairStore, *where: Any, **how: Any) -> Any:
        found = await page(self, *where, **how)
        await asyncio.sleep(seconds)
        return found

    monkeypatch.setattr(RepairStore, "missing_page", slow)


def test_what_is_marked_while_marks_are_listed_is_repaired_when_nothing_else_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A listing that takes long is not followed by a long pause in which workers have nothing to do."""
    with recovering_cluster(4) as cluster:
        ledgers = [LedgerId(cluster.written()) for _ in range(2)]
        slow_listings(monkeypatch, 5)
        cluster.recover()
        gone = cluster.lose("b0")
        cluster.run(cluster.marks.mark_missing(ledgers[0], [gone]))
        cluster.wait(2)
        cluster.run(cluster.marks.mark_missing(ledgers[1], [gone]))
        cluster.until(lambda: not any("b0" in cluster.named(each) for each in ledgers), 25)


def test_a_bookie_that_comes_back_is_noticed_while_many_marks_are_listed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with recovering_cluster(4, lost_delay_s=0) as cluster:
        ledger, other = LedgerId(cluster.written(20_000, 50)), LedgerId(cluster.written())
        daemon = cluster.recover(bytes_per_s=50_000)
        cluster.wait(15)
        gone = sorted(cluster.named(ledger))[0]
        cluster.bookie(gone).kill()
        cluster.until(lambda: cluster.copied > 0, 30)
        slow_listings(monkeypatch, 300)
        cluster.run(cluster.marks.mark_missing(other, [cluster.id_of(gone)]))
        cluster.wait(2)
        assert daemon.worker.queue.repairing
        cluster.restart(gone)
        cluster.until(lambda: ledger not in daemon.worker.queue.ledgers, 10)
        assert gone in cluster.named(ledger)


def test_a_bookie_that_does_not_say_how_full_it_is_holds_up_no_copies() -> None:
    with recovering_cluster(4) as cluster:
        targets = RepairTargets(cluster.client, None)

        async def candidates() -> list[BookieId]:
            return await targets.candidates(1)

        assert len(cluster.run(candidates())) == 4
        cluster.bookie("b1").pause()
        cluster.wait(LOOK_AGAIN_MS / 1000)
        began_ns = cluster.world.timeline.now_ns
        assert len(cluster.run(candidates())) == 4
        assert cluster.world.timeline.now_ns - began_ns < 100_000_000
        cluster.wait(4)
        assert cluster.id_of("b1") not in cluster.run(candidates()), "it was asked meanwhile"
        # A bookie that has just come is asked before copies are refused for want of it.
        cluster.new_bookie("b4")
        cluster.until(lambda: cluster.id_of("b4") in cluster.client.bookies.writable(), 10)
        assert cluster.id_of("b4") in cluster.run(candidates())
        cluster.run(targets.close())


def test_a_disk_that_is_full_is_written_to_once_and_not_by_every_attempt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """BookKeeper's issue 1908: without a spare that has room each attempt copied the same again, until the disk was full."""
    room = 150_000
    with recovering_cluster(4, lost_delay_s=0) as cluster:
        monkeypatch.setattr(
            "quire.autorecovery.targets.room_above_floor", lambda _: max(0, room - cluster.copied)
        )
        ledger = LedgerId(cluster.written(4_000, 50))
        daemon = cluster.recover()
        cluster.wait(15)
        cluster.lose(sorted(cluster.named(ledger))[0])
        cluster.wait(3600)
        assert daemon.worker.queue.ledgers[ledger].status is MarkStatus.GIVEN_UP
        assert daemon.worker.queue.counts.attempts == LIMITS.attempts_max
        assert 0 < cluster.copied <= room
        room = 1 << 40
        cluster.new_bookie("b4")
        cluster.until(lambda: cluster.marked() == {}, 120)
        assert cluster.all_whole([ledger])


def test_a_lock_that_is_being_taken_when_repairs_are_switched_off_is_given_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    take, taken = RepairStore.lock, list[int]()

    async def slow(self: RepairStore, ledger_id: int) -> Registration:
        found = await take(self, ledger_id)
        taken.append(ledger_id)
        await asyncio.sleep(3)
        return found

    with recovering_cluster(4) as cluster:
        ledger = LedgerId(cluster.written())
        cluster.run(cluster.marks.mark_missing(ledger, [cluster.lose("b0")]))
        monkeypatch.setattr(RepairStore, "lock", slow)
        cluster.recover()
        cluster.until(lambda: bool(taken), 20)
        cluster.run(cluster.marks.set_enabled(False))
        cluster.wait(10)
        assert cluster.run(cluster.marks.locks()) == {}
        cluster.run(cluster.marks.set_enabled(True))
        cluster.until(lambda: cluster.marked() == {}, 60)


def test_an_attempt_that_follows_another_waits_for_the_lock_of_its_own_worker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A bookie comes back in the middle of a repair: it is done again at once, and not after a pause for another's lock."""
    take, returned = RepairStore.lock, Registration.close

    async def slow(held: Registration) -> None:
        await asyncio.sleep(1)
        await returned(held)

    async def lock(self: RepairStore, ledger_id: int) -> Registration:
        found = await take(self, ledger_id)
        monkeypatch.setattr(found, "close", lambda: slow(found))
        return found

    with recovering_cluster(4, lost_delay_s=0) as cluster:
        ledger = cluster.written(4_000, 50)
        monkeypatch.setattr(RepairStore, "lock", lock)
        daemon = cluster.recover(bytes_per_s=20_000)
        cluster.wait(15)
        gone = sorted(cluster.named(ledger))[0]
        cluster.bookie(gone).kill()
        cluster.until(lambda: cluster.copied > 0, 30)
        cluster.restart(gone)
        cluster.until(lambda: cluster.marked() == {}, 5)
        cluster.wait(2)
        assert daemon.worker.queue.counts.attempts == 2
        assert not daemon.worker._attempts

"""Each line of `quire cluster repairs` is made by a fault, and what it says that the ledger waits for ends it.

Source: docs/autorecovery.md, "What an operator sees".
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from quire.autorecovery.repair import ClusterRepair
from quire.cli.cluster.marked import marked_ledgers, shown
from quire.client.repairing.ledger_repair import LedgerRepair
from quire.core.ids import LedgerId
from quire.core.ledger.metadata import LedgerState
from quire.core.ledger.notes import EntryRange
from quire.core.repair.effects import Loss, RepairEnded
from quire.core.repair.under_replicated_marks import (
    MarkReason,
    RepairAttempts,
    RepairWorkerState,
    UnderReplicatedMark,
    WaitsFor,
)
from quire.core.repair.work_queue import LIMITS, QueueLimits
from quire.metadata.keys import missing_key
from support.recovering_cluster import RecoveringCluster, recovering_cluster


def row(cluster: RecoveringCluster, ledger: int) -> dict[str, Any]:
    """The ledger's line; empty if there is none."""
    rows, _ = cluster.run(marked_ledgers(cluster.client.records, cluster.marks))
    return next((each for each in rows if each["ledger_id"] == ledger), {})


def waits_for(cluster: RecoveringCluster, ledger: int, what: str, seconds: int = 60) -> dict[str, Any]:
    """Let time pass until the line says what it waits for."""
    for _ in range(seconds):
        if what in (found := row(cluster, ledger)).get("waits_for", ""):
            return found
        cluster.wait(1)
    raise AssertionError(row(cluster, ledger))


def ends(cluster: RecoveringCluster, ledger: int, seconds: int = 120) -> None:
    """The line goes, and every copy is there."""
    cluster.until(lambda: ledger not in cluster.marked(), seconds)
    assert cluster.all_whole([ledger])


def lost_by_one(cluster: RecoveringCluster, ledger: int) -> str:
    gone = sorted(cluster.named(ledger))[0]
    cluster.lose(gone)
    return gone


def test_a_worker_that_is_not_there_is_waited_for_until_one_begins() -> None:
    with recovering_cluster(4) as cluster:
        ledger = cluster.written()
        gone = cluster.id_of(lost_by_one(cluster, ledger))
        cluster.run(cluster.marks.mark_missing(ledger, [gone]))
        found = waits_for(cluster, ledger, "a worker: start `quire autorecovery`")
        assert (found["reasons"], found["bookies"], found["copies_left"]) == (["gone"], [gone], 2)
        assert gone in shown(found)["reasons"]
        cluster.recover()
        ends(cluster, ledger)


def test_what_is_switched_off_is_waited_for_until_it_is_switched_on() -> None:
    with recovering_cluster(4, lost_delay_s=0) as cluster:
        ledger = cluster.written()
        cluster.recover()
        cluster.wait(15)
        lost_by_one(cluster, ledger)
        cluster.run(cluster.marks.mark_missing(ledger, [cluster.id_of("b0")]))
        cluster.run(cluster.marks.set_enabled(False))
        waits_for(cluster, ledger, "switched off: `quire cluster autorecovery on`")
        cluster.run(cluster.marks.set_enabled(True))
        ends(cluster, ledger)


def test_the_estimate_is_of_what_workers_can_repair_by_themselves() -> None:
    with recovering_cluster(4) as cluster:
        ledgers = [LedgerId(cluster.written(10, 1_000)) for _ in range(3)]
        for each in ledgers:
            cluster.run(cluster.marks.mark_missing(each, [cluster.id_of("b0")]))
        cluster.run(cluster.marks.note_attempts(ledgers[2], RepairAttempts(5, WaitsFor.BOOKIE, "")))

        def totals() -> dict[str, Any]:
            return cluster.run(marked_ledgers(cluster.client.records, cluster.marks))[1]

        assert (totals()["ledgers"], totals()["estimate_s"]) == (3, None)
        state = RepairWorkerState("w", bytes_per_s=100, ledgers_per_hour=3600)
        held = cluster.run(cluster.marks.register_worker(state))
        by_bytes = sum(row(cluster, each)["bytes"] for each in ledgers[:2]) / 100
        assert totals()["estimate_s"] == by_bytes > 2
        cluster.run(cluster.marks.update_worker(held, replace(state, bytes_per_s=1_000_000)))
        assert totals()["estimate_s"] == 2
        cluster.run(cluster.marks.set_enabled(False))
        assert totals()["estimate_s"] is None


def test_a_ledger_waits_for_its_turn_while_another_is_repaired() -> None:
    with recovering_cluster(4, lost_delay_s=0) as cluster:
        ledgers = [cluster.written(200, 10_000) for _ in range(4)]
        gone = cluster.id_of("b0")
        touched = [each for each in ledgers if "b0" in cluster.named(each)]
        assert len(touched) > 1
        cluster.lose("b0")
        for each in touched:
            cluster.run(cluster.marks.mark_missing(each, [gone]))
        cluster.recover(bytes_per_s=500_000, queue=QueueLimits(units_max=1, ledger_units_max=1))

        def states() -> set[str]:
            return {row(cluster, each).get("waits_for", "") for each in touched}

        for _ in range(60):
            if {"its turn", "daemon, which repairs it now"} <= states():
                break
            cluster.wait(0.5)
        else:
            raise AssertionError(states())
        for each in touched:
            ends(cluster, each)


def test_another_attempt_and_then_a_bookie_that_comes_are_waited_for() -> None:
    with recovering_cluster(3, lost_delay_s=0) as cluster:
        ledger = cluster.written()
        daemon = cluster.recover()
        cluster.wait(15)
        gone = lost_by_one(cluster, ledger)
        found = waits_for(cluster, ledger, "another attempt, after a pause")
        assert 1 <= found["attempts"] < LIMITS.attempts_max
        assert cluster.id_of(gone) in shown(found)["waits_for"], "the reason stands there"
        found = waits_for(cluster, ledger, "a bookie that comes", 3600)
        assert found["attempts"] == LIMITS.attempts_max
        cluster.wait(600)
        assert daemon.worker.queue.counts.attempts == LIMITS.attempts_max, "nothing is tried without an event"
        cluster.new_bookie("b3")
        ends(cluster, ledger)


def test_an_error_of_the_program_is_an_attempt_and_takes_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    run, failed = LedgerRepair.run, list[int]()

    async def fails_once(self: LedgerRepair) -> RepairEnded:
        if not failed:
            failed.append(self.ledger_id)
            raise ValueError("nobody thought of this")
        return await run(self)

    with recovering_cluster(4, lost_delay_s=0) as cluster:
        ledger = cluster.written()
        daemon = cluster.recover()
        cluster.wait(15)
        monkeypatch.setattr(LedgerRepair, "run", fails_once)
        lost_by_one(cluster, ledger)
        found = waits_for(cluster, ledger, "another attempt, after a pause")
        assert (found["attempts"], found["why"]) == (1, "a program error, ValueError: nobody thought of this")
        assert not daemon.worker.queue.repairing
        ends(cluster, ledger)


def test_a_bookie_that_becomes_writable_is_one_that_comes() -> None:
    with recovering_cluster(4, lost_delay_s=0) as cluster:
        ledger = cluster.written()
        spare = next(f"b{number}" for number in range(4) if f"b{number}" not in cluster.named(ledger))
        server = cluster.bookie(spare).server
        assert server is not None
        is_writable, server._writable = server._writable, lambda: False  # type: ignore[method-assign]
        daemon = cluster.recover(queue=QueueLimits(pause_ms=100, pause_ms_max=100))
        cluster.until(lambda: cluster.id_of(spare) in cluster.client.bookies.read_only(), 15)
        cluster.wait(15)
        lost_by_one(cluster, ledger)
        waits_for(cluster, ledger, "a bookie that comes")
        attempts = daemon.worker.queue.counts.attempts
        cluster.wait(60)
        assert daemon.worker.queue.counts.attempts == attempts
        server._writable = is_writable  # type: ignore[method-assign]
        ends(cluster, ledger)


def test_what_ended_without_an_event_is_found_by_the_next_attempt() -> None:
    """The bookies were there all the time, and the links to them were cut."""
    with recovering_cluster(4, lost_delay_s=0) as cluster:
        ledger, network = LedgerId(cluster.written()), cluster.world.network
        gone, *others = sorted(cluster.named(ledger))
        daemon = cluster.recover(queue=QueueLimits(pause_ms=100, pause_ms_max=100, given_up_ms=60_000))
        cluster.wait(15)

        def links(*, cut: bool) -> None:
            for bookie in others:
                network.cut("daemon", bookie, cut=cut)
                network.cut(bookie, "daemon", cut=cut)

        links(cut=True)
        cluster.lose(gone)
        waits_for(cluster, ledger, "the next attempt within an hour", 180)
        attempts = daemon.worker.queue.counts.attempts
        links(cut=False)
        ends(cluster, ledger)
        assert daemon.worker.queue.counts.attempts == attempts + 1


def test_an_open_ledger_waits_for_its_writer_which_takes_the_bookie_that_comes() -> None:
    with recovering_cluster(3, lost_delay_s=0) as cluster:

        async def opened() -> Any:
            writer = await cluster.client.create_ledger()
            await writer.append(b"first")
            return writer

        writer = cluster.run(opened())
        ledger = int(writer.ledger_id)
        cluster.recover()
        cluster.wait(15)
        gone = lost_by_one(cluster, ledger)
        waits_for(cluster, ledger, "its writer, or a bookie that could take the place", 120)
        cluster.new_bookie("b3")
        cluster.until(lambda: ledger not in cluster.marked(), 120)
        record = cluster.world.record(ledger)
        assert record is not None
        assert record.state is LedgerState.OPEN
        assert gone not in cluster.named(ledger)
        cluster.run(writer.close())
        assert cluster.all_whole([ledger])


def test_what_only_a_gone_bookie_has_waits_for_it() -> None:
    with recovering_cluster(4, lost_delay_s=0) as cluster:
        ledger = cluster.written(ensemble_size=2, write_quorum=1, ack_quorum=1)
        cluster.recover()
        cluster.wait(15)
        gone = lost_by_one(cluster, ledger)
        found = waits_for(cluster, ledger, "a lost bookie")
        assert (found["attempts"], found["copies_left"]) == (1, 0)
        cluster.bookie(gone).lost = False
        cluster.restart(gone)
        ends(cluster, ledger)


def test_what_a_person_accepts_to_be_lost_is_waited_for_no_more() -> None:
    with recovering_cluster(4, lost_delay_s=0) as cluster:
        ledger = LedgerId(cluster.written(ensemble_size=2, write_quorum=1, ack_quorum=1))
        daemon = cluster.recover()
        cluster.wait(15)
        gone = lost_by_one(cluster, ledger)
        waits_for(cluster, ledger, "a lost bookie")

        async def accept() -> RepairEnded:
            away = await cluster.client.bookies.away()
            word = Loss(1, "a person", (EntryRange(0, 9),))
            repair = ClusterRepair(cluster.client, lost=away, accepted=word)
            totals = await repair.run((await repair.look()).to_repair)
            return totals.ended[ledger]

        assert cluster.run(accept()).report.is_settled
        assert gone not in cluster.named(ledger)
        cluster.until(lambda: cluster.marked() == {}, 5)
        cluster.until(lambda: not daemon.worker.queue.ledgers, 5)
        cluster.world.problems.clear()  # the world notices that the new bookie lacks what was accepted


def test_where_nothing_can_be_copied_the_ledger_is_deleted() -> None:
    with recovering_cluster(4) as cluster:
        ledger = LedgerId(cluster.written(ensemble_size=1, write_quorum=1, ack_quorum=1))
        other = next(f"b{number}" for number in range(4) if f"b{number}" not in cluster.named(ledger))

        async def name_another_bookie() -> None:
            record, version = await cluster.client.records.ledgers.read(ledger)
            (fragment,) = record.fragments
            fragments = (replace(fragment, ensemble=(cluster.id_of(other),)),)
            await cluster.client.records.ledgers.write(replace(record, fragments=fragments), version)
            seen = UnderReplicatedMark(
                MarkReason.HOLE, cluster.id_of(other), EntryRange(0, 9), version, "", 0
            )
            await cluster.marks.mark(ledger, [seen])

        cluster.run(name_another_bookie())
        cluster.world.problems.clear()  # the world notices a record that names a bookie without its entries
        cluster.recover()
        waits_for(cluster, ledger, "nothing can be copied")
        cluster.run(cluster.client.delete_ledger(ledger))
        cluster.until(lambda: cluster.marked() == {}, 60)


def test_a_mark_that_cannot_be_read_waits_for_whoever_wrote_it() -> None:
    with recovering_cluster(4, lost_delay_s=0) as cluster:
        ledger = cluster.written()
        store = cluster.user.store
        cluster.run(store.create(missing_key(ledger), b"of a later version"))
        cluster.recover()
        found = waits_for(cluster, ledger, "the program that wrote the mark: it cannot be read, and is kept")
        assert (found["reasons"], found["attempts"]) == (["unreadable"], 0)
        assert str(ledger) in found["why"]
        cluster.wait(120)
        assert ledger in cluster.marked()
        cluster.run(store.delete(missing_key(ledger)))
        assert row(cluster, ledger) == {}

"""What a bookie lacks that takes no copies is copied to another after the cluster's delay; it keeps whatever else it has.

Source: docs/protocol/repair.md, "A bookie that takes no copies".
"""

from __future__ import annotations

from typing import Any

from quire.client.writing.writer import LedgerWriter
from quire.core.ids import LedgerId
from quire.core.repair.audit_effects import CountedState
from quire.core.repair.under_replicated_marks import WaitsFor
from quire.core.repair.work_queue import MarkStatus
from quire.metadata.keys import LOST_DELAY
from quire.metadata.repairs import LOST_DELAY_S
from support.recovering_cluster import RecoveringCluster, recovering_cluster

DELAY_S = 60


def with_a_hole(cluster: RecoveringCluster) -> tuple[int, str]:
    """A closed ledger of which one bookie lacks entries, which is read-only since."""

    async def half(count: int, writer: LedgerWriter | None = None) -> LedgerWriter:
        writer = writer or await cluster.client.create_ledger()
        for number in range(count):
            await writer.append(b"%d" % number)
        return writer

    cluster.run(cluster.marks.announce_audits())
    writer = cluster.run(half(30))
    away = str(writer.metadata.last_fragment.ensemble[1]).partition(".")[0]
    cluster.bookie(away).kill()
    cluster.run(half(30, writer))
    cluster.restart(away)
    read_only(cluster, away, on=True)
    cluster.until(lambda: cluster.id_of(away) in cluster.client.bookies.read_only(), 10)
    cluster.wait(5)  # every program knows it
    cluster.run(writer.close())
    return int(writer.ledger_id), away


def read_only(cluster: RecoveringCluster, name: str, *, on: bool) -> None:
    """As a full disk makes a bookie, which has room again whenever something is deleted: this one stays so."""
    server = cluster.bookie(name).server
    assert server is not None
    server.ledgers.read_only = on


def counted(cluster: RecoveringCluster) -> dict[Any, int]:
    times = cluster.run(cluster.marks.times(CountedState.READ_ONLY))
    return {bookie: stored.mark.seconds for bookie, stored in times.items() if stored.mark}


def test_a_hole_of_a_full_bookie_is_filled_elsewhere_after_the_delay() -> None:
    with recovering_cluster(4, lost_delay_s=DELAY_S) as cluster:
        ledger, full = with_a_hole(cluster)
        daemon = cluster.recover()
        cluster.wait(DELAY_S - 20)
        marked = daemon.worker.queue.ledgers[LedgerId(ledger)]
        assert marked.status is MarkStatus.GIVEN_UP
        assert (
            marked.attempts <= 1
        )  # that one came before the bookie had said that it is full: now it is waited for
        assert full in cluster.named(ledger)
        cluster.until(lambda: cluster.marked() == {}, 60)
        assert full not in cluster.named(ledger)
        assert cluster.all_whole([ledger])
        assert counted(cluster)[cluster.id_of(full)] >= DELAY_S
        read_only(cluster, full, on=False)
        cluster.until(lambda: counted(cluster) == {}, 120)


def test_while_no_other_bookie_may_take_its_place_it_is_waited_for() -> None:
    with recovering_cluster(3, lost_delay_s=DELAY_S) as cluster:
        ledger, full = with_a_hole(cluster)
        daemon = cluster.recover()
        cluster.wait(3 * DELAY_S)
        stored = cluster.marked()[ledger]
        assert stored.mark.attempts.waits is WaitsFor.ATTEMPT  # type: ignore[union-attr]
        cluster.wait(300)
        assert daemon.worker.queue.ledgers[LedgerId(ledger)].status is MarkStatus.GIVEN_UP
        read_only(cluster, full, on=False)
        cluster.until(lambda: cluster.marked() == {}, 120)
        assert full in cluster.named(ledger)
        assert cluster.all_whole([ledger])


def test_a_spare_that_cannot_be_reached_for_a_moment_gets_the_part_of_a_full_bookie_soon_after() -> None:
    with recovering_cluster(4, lost_delay_s=DELAY_S) as cluster:
        ledger, full = with_a_hole(cluster)
        record, _ = cluster.run(cluster.client.records.read(ledger))
        first = record.fragments[0].ensemble
        spare = next(f"b{each}" for each in range(4) if cluster.id_of(f"b{each}") not in first)
        cluster.recover()
        cluster.wait(DELAY_S - 20)
        cluster.world.network.cut("daemon", spare, cut=True)
        cluster.wait(45)
        assert full in cluster.named(ledger)
        cluster.world.network.cut("daemon", spare, cut=False)
        cluster.until(lambda: full not in cluster.named(ledger), 120)
        assert cluster.all_whole([ledger])


def test_a_delay_that_cannot_be_read_stops_no_repair() -> None:
    with recovering_cluster(4, lost_delay_s=DELAY_S) as cluster:
        ledger, full = with_a_hole(cluster)
        stored = cluster.run(cluster.client.store.get(LOST_DELAY))
        cluster.run(cluster.client.store.put(LOST_DELAY, b"soon", stored.version))
        cluster.recover()
        cluster.until(lambda: full not in cluster.named(ledger), LOST_DELAY_S + 60)
        assert cluster.all_whole([ledger])


def test_a_full_bookie_that_dies_costs_no_request_once_it_is_known_to_be_away() -> None:
    with recovering_cluster(4, lost_delay_s=DELAY_S) as cluster:
        _, full = with_a_hole(cluster)
        cluster.recover()
        cluster.wait(DELAY_S // 2)
        cluster.lose(full)
        cluster.until(lambda: cluster.marked() == {}, 3 * DELAY_S)
        cluster.wait(30)
        asked = cluster.requests_of("daemon")
        cluster.wait(300)
        assert asked == []

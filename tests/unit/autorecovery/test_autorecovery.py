"""Auto-recovery on a virtual clock: bookies die, restart and come back, and what is repaired, left alone and waited for.

Source: docs/autorecovery.md; docs/protocol/repair-queue.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from quire.bookie.low_priority import LowPriorityQueue
from quire.client.writing.writer import LedgerWriter
from quire.core.errors import AlreadyExistsError, QuireError
from quire.core.ids import BookieId
from quire.core.ledger.metadata import LedgerState
from quire.core.ledger.notes import EntryRange
from quire.core.repair.audit_effects import AuditLimits
from quire.core.repair.effects import LIMITS
from quire.core.repair.under_replicated_marks import MarkReason, UnderReplicatedMark, WaitsFor
from quire.core.repair.work_queue import MarkStatus
from quire.env.yielding import Entrance, YieldMachine
from quire.metadata.keys import missing_key
from quire_testing.sim.programs import SIM_CLIENT
from support.recovering_cluster import RecoveringCluster, recovering_cluster

PATIENT = replace(SIM_CLIENT, left_wait_ms_min=5_000, left_wait_ms_max=30_000)
"""An idle writer waits as long as in production before it looks for a spare."""


async def opened(client: Any, **shape: Any) -> LedgerWriter:
    writer: LedgerWriter = await client.create_ledger(**shape)
    await writer.append(b"first")
    return writer


def state_of(cluster: RecoveringCluster, writer: LedgerWriter) -> LedgerState:
    record = cluster.world.record(int(writer.ledger_id))
    assert record is not None
    return record.state


class Busy:
    """A writer that appends twice a second for as long as it lives."""

    def __init__(self, cluster: RecoveringCluster, name: str) -> None:
        self.process = cluster.process(name)
        self.writer = cluster.run(self._open(), self.process)
        self.appended, self.error = 0, ""
        self.process.loop.spawn(self._append(), name)

    async def _open(self) -> LedgerWriter:
        return await opened(await self.process.connect())

    async def _append(self) -> None:
        try:
            while True:
                await self.writer.append(b"more")
                self.appended += 1
                await asyncio.sleep(0.5)
        except QuireError as error:
            self.error = str(error)


def test_a_bookie_that_is_gone_for_good_is_replaced_everywhere_beside_a_writer() -> None:
    with recovering_cluster(5, lost_delay_s=30) as cluster:
        shapes: list[dict[str, int]] = [{}, {"ensemble_size": 4, "write_quorum": 3, "ack_quorum": 2}]
        ledgers = [cluster.written(count, **shape) for shape in shapes for count in (0, 1, 30) * 3]
        busy = Busy(cluster, "busy")
        daemon = cluster.recover()
        cluster.wait(15)
        assert cluster.marked() == {}
        cluster.lose("b1")
        cluster.wait(25)
        assert cluster.copied == 0, "the delay is not over"
        cluster.until(lambda: not any("b1" in cluster.named(each) for each in ledgers), 60)
        cluster.until(lambda: cluster.marked() == {}, 60)
        assert cluster.all_whole(ledgers)
        assert (busy.error, state_of(cluster, busy.writer)) == ("", LedgerState.OPEN)
        assert "b1" in cluster.named(int(busy.writer.ledger_id)) or daemon.worker.queue.counts.repaired
        assert busy.appended > 60


def test_fewer_than_qa_copies_are_not_waited_with() -> None:
    with recovering_cluster(4, lost_delay_s=600) as cluster:
        usual, narrow = cluster.written(), cluster.written(ensemble_size=2, write_quorum=2, ack_quorum=2)
        cluster.recover()
        cluster.wait(15)
        (gone, *_) = sorted(cluster.named(narrow) & cluster.named(usual))
        cluster.lose(gone)
        cluster.until(lambda: gone not in cluster.named(narrow), 30)
        cluster.wait(60)
        assert gone in cluster.named(usual)


def test_a_rolling_restart_copies_nothing_and_marks_nothing() -> None:
    with recovering_cluster(5, lost_delay_s=60) as cluster:
        wide = {"ensemble_size": 5, "write_quorum": 3, "ack_quorum": 2}
        ledgers = [cluster.written(**shape) for shape in ({}, wide) for _ in range(4)]
        writer = cluster.run(opened(cluster.client))
        daemon = cluster.recover()
        cluster.wait(15)
        for name in list(cluster.world.bookies):
            cluster.bookie(name).kill()
            for _ in range(3):
                cluster.wait(10)
                assert cluster.marked() == {}
            cluster.restart(name)
        cluster.wait(30)
        assert cluster.marked() == {}
        assert (cluster.copied, daemon.worker.queue.counts.attempts) == (0, 0)
        assert state_of(cluster, writer) is LedgerState.OPEN
        assert cluster.all_whole(ledgers)


def test_a_bookie_that_comes_back_after_the_delay_ends_what_its_absence_began() -> None:
    with recovering_cluster(3, lost_delay_s=60) as cluster:
        ledgers = [cluster.written() for _ in range(5)]
        cluster.recover()
        cluster.wait(15)
        cluster.bookie("b0").kill()
        cluster.wait(90)
        assert set(cluster.marked()) == set(ledgers), "there is no other bookie that could take their place"
        cluster.restart("b0")
        assert cluster.until(lambda: cluster.marked() == {}, 10) <= 10
        assert cluster.copied == 0


def test_a_bookie_that_comes_back_ends_the_copying_at_the_next_window() -> None:
    with recovering_cluster(4, lost_delay_s=0) as cluster:
        ledger = cluster.written(20_000, 50)
        cluster.recover(bytes_per_s=200_000)
        cluster.wait(15)
        gone = sorted(cluster.named(ledger))[0]
        cluster.bookie(gone).kill()
        cluster.until(lambda: cluster.copied > 0, 30)
        cluster.restart(gone)
        cluster.until(lambda: cluster.marked() == {}, 30)
        pieces, entry_bytes = LIMITS.pieces_max * LIMITS.piece_entries, 50 + 100
        assert 0 < cluster.copied <= pieces * entry_bytes
        assert gone in cluster.named(ledger)
        assert cluster.all_whole([ledger])


def test_copies_that_wait_for_their_rate_end_when_the_bookie_comes_back() -> None:
    """Many ledgers are repaired side by side, and what each has read waits its turn: it is not sent any more."""
    with recovering_cluster(5, lost_delay_s=0) as cluster:
        ledgers = [cluster.written(400, 1_000) for _ in range(12)]
        daemon = cluster.recover(bytes_per_s=100_000)
        cluster.wait(15)
        cluster.bookie("b0").kill()
        cluster.until(lambda: len(daemon.worker.queue.repairing) > 5 and cluster.copied > 0, 60)
        cluster.restart("b0")
        before = cluster.copied
        assert cluster.until(lambda: cluster.marked() == {}, 10) < 10
        assert cluster.copied - before <= 12 * SIM_CLIENT.run_bytes_max
        assert cluster.all_whole(ledgers)


def test_in_a_cluster_of_three_living_writers_go_on_and_a_fourth_bookie_ends_the_waiting() -> None:
    with recovering_cluster(3, lost_delay_s=20) as cluster:
        busy = Busy(cluster, "busy")
        owner = cluster.process("owner", PATIENT)
        idle = cluster.run(opened(cluster.run(owner.connect(), owner)), owner)
        killed = cluster.process("killed")
        dead = cluster.run(opened(cluster.run(killed.connect(), killed)), killed)
        killed.kill()
        cluster.recover()
        cluster.wait(15)
        cluster.lose("b2")
        cluster.wait(120)
        for writer in (busy.writer, idle, dead):
            assert state_of(cluster, writer) is LedgerState.OPEN
        assert cluster.run(idle.append(b"still"), owner) == 1
        cluster.new_bookie("b9")
        cluster.until(lambda: "b9" in cluster.named(int(busy.writer.ledger_id)), 10)
        cluster.until(lambda: "b9" in cluster.named(int(idle.ledger_id)), 40)
        assert state_of(cluster, dead) is LedgerState.OPEN
        cluster.until(lambda: state_of(cluster, dead) is LedgerState.CLOSED, 90)
        cluster.until(lambda: "b2" not in cluster.named(int(dead.ledger_id)), 60)
        cluster.until(lambda: cluster.marked() == {}, 300)
        assert cluster.all_whole([int(dead.ledger_id)])
        assert state_of(cluster, idle) is state_of(cluster, busy.writer) is LedgerState.OPEN
        assert busy.error == ""
        assert cluster.run(idle.append(b"and on"), owner) == 2


def test_an_outage_that_ends_all_registrations_marks_and_recovers_nothing() -> None:
    with recovering_cluster(4, lost_delay_s=20) as cluster:
        ledgers = [cluster.written() for _ in range(3)]
        idle = cluster.run(opened(cluster.client))
        daemon = cluster.recover()
        cluster.wait(15)
        stores = list(cluster.world.around.stores)
        for store in stores:
            store.cut = True
            store.lose_session()
        cluster.wait(30)
        for store in stores:
            store.cut = False
        cluster.wait(60)
        assert cluster.marked() == {}
        assert (cluster.copied, daemon.worker.queue.counts.attempts) == (0, 0)
        record = cluster.world.record(int(idle.ledger_id))
        assert record is not None
        assert (record.state, len(record.fragments)) == (LedgerState.OPEN, 1)
        assert cluster.run(idle.append(b"and on")) == 1
        assert cluster.all_whole(ledgers)


def test_a_marked_ledger_that_is_deleted_costs_one_attempt() -> None:
    with recovering_cluster(4) as cluster:
        ledger = cluster.written()
        cluster.run(cluster.client.delete_ledger(ledger))
        # By an auditor that had listed it before; and a Java client leaves marks of what it deletes.
        cluster.run(cluster.marks.mark_missing(ledger, [cluster.id_of("b0")]))
        daemon = cluster.recover()
        cluster.until(lambda: cluster.marked() == {}, 30)
        cluster.wait(600)
        assert daemon.worker.queue.counts.attempts == 1


def test_what_only_a_gone_bookie_has_is_tried_once_and_costs_no_request_until_it_comes() -> None:
    with recovering_cluster(4, lost_delay_s=10) as cluster:
        striped = {"ensemble_size": 2, "write_quorum": 1, "ack_quorum": 1}
        ledger = cluster.written(**striped)
        gone = sorted(cluster.named(ledger))[0]
        cluster.lose(gone)
        daemon = cluster.recover()
        one = daemon.worker.queue.ledgers
        cluster.until(lambda: ledger in one and one[ledger].status is MarkStatus.GONE_ONLY, 90)
        cluster.wait(30)
        (mark,) = [mark for mark in cluster.run(cluster.marks.marks_page())]
        assert mark[1].mark is not None
        assert mark[1].mark.attempts is not None
        assert (mark[1].mark.attempts.count, mark[1].mark.attempts.waits) == (1, WaitsFor.GONE_BOOKIE)
        asked = cluster.requests_of("daemon")
        cluster.wait(600)
        assert asked == []
        assert daemon.worker.queue.counts.attempts == 1
        cluster.bookie(gone).lost = False
        cluster.restart(gone)
        cluster.until(lambda: cluster.marked() == {}, 30)
        assert daemon.worker.queue.counts.attempts == 2
        assert cluster.all_whole([ledger])


def test_while_nothing_is_marked_nothing_is_asked_and_a_repair_takes_few_requests() -> None:
    with recovering_cluster(4, lost_delay_s=0) as cluster:
        ledgers = [cluster.written() for _ in range(20)]
        cluster.recover()
        cluster.wait(30)
        asked = cluster.requests_of("daemon")
        cluster.wait(600)
        assert asked == []
        gone = cluster.lose("b0")
        touched = [each for each in ledgers if "b0" in cluster.named(each)]
        cluster.until(lambda: not any("b0" in cluster.named(each) for each in touched), 60)
        cluster.until(lambda: cluster.marked() == {}, 60)
        counts = Counter(each.partition("/")[0] for each in asked if each != f"away/{gone}")
        # Registrations are not counted: a lock is two requests more.
        assert sum(counts.values()) <= 7 * len(touched) + 10, counts


def test_a_mark_that_does_not_parse_is_named_and_kept(caplog: pytest.LogCaptureFixture) -> None:
    with recovering_cluster(4, lost_delay_s=0) as cluster:
        ledger, other = cluster.written(), cluster.written()
        cluster.run(cluster.user.store.create(missing_key(ledger), b"of a later version"))
        logging.getLogger("quire").setLevel(logging.WARNING)
        daemon = cluster.recover()
        cluster.wait(15)
        cluster.lose("b1")
        cluster.wait(60)
        cluster.until(lambda: "b1" not in cluster.named(other), 60)
        cluster.until(lambda: list(cluster.marked()) == [ledger], 60)
        found = cluster.run(cluster.user.store.get(missing_key(ledger)))
        assert found is not None
        assert found.value == b"of a later version"
        named = [each for each in caplog.messages if f"the mark of ledger {ledger}" in each]
        assert len([each for each in named if "not acted on" in each]) == 1
        assert daemon.worker.queue.ledgers == {}


def test_a_hole_that_somebody_saw_is_filled() -> None:
    with recovering_cluster(3) as cluster:
        cluster.bookie("b2").kill()
        cluster.wait(2)
        ledger = cluster.written()
        assert "b2" in cluster.named(ledger)
        cluster.restart("b2")
        hole = UnderReplicatedMark(MarkReason.HOLE, cluster.id_of("b2"), EntryRange(0, 9), 1, "somebody", 0)
        cluster.run(cluster.marks.mark(ledger, [hole]))
        assert not cluster.all_whole([ledger])
        cluster.recover()
        cluster.until(lambda: cluster.marked() == {}, 30)
        assert cluster.all_whole([ledger])


def test_two_workers_and_a_change_of_the_auditor_neither_forget_nor_copy_twice() -> None:
    with recovering_cluster(5, lost_delay_s=60) as cluster:
        ledgers = [cluster.written(30) for _ in range(12)]
        cluster.recover("first")
        cluster.recover("second")
        cluster.wait(15)
        cluster.lose("b3")
        touched = [each for each in ledgers if "b3" in cluster.named(each)]
        cluster.wait(40)
        leader = next(name for name, each in cluster.daemons.items() if each.auditor.is_leader)
        cluster.world.clients[leader].kill()
        dead = cluster.daemons.pop(leader)
        assert dead.worker.bytes_copied == 0
        took_s = cluster.until(lambda: bool(cluster.marked()), 60)
        assert 10 <= took_s <= 45, "the delay is neither begun anew nor skipped"
        cluster.until(lambda: cluster.marked() == {}, 60)
        (left,) = cluster.daemons.values()
        assert left.worker.queue.counts.repaired == len(touched)
        assert cluster.all_whole(ledgers)


def test_switched_off_nothing_is_marked_or_repaired() -> None:
    with recovering_cluster(4, lost_delay_s=0) as cluster:
        ledger = cluster.written()
        cluster.run(cluster.marks.set_enabled(False))
        daemon = cluster.recover()
        cluster.run(cluster.marks.mark_missing(ledger, [cluster.id_of("b0")]))
        gone = next(iter(sorted(cluster.named(ledger))))
        cluster.lose(gone)
        cluster.wait(60)
        assert daemon.worker.queue.counts.attempts == 0
        cluster.run(cluster.marks.set_enabled(True))
        cluster.until(lambda: gone not in cluster.named(ledger), 60)


def test_two_workers_of_one_name_are_refused() -> None:
    with recovering_cluster(3) as cluster:
        cluster.recover("one")
        cluster.wait(5)
        process = cluster.process("other")

        async def second() -> None:
            client = await process.connect()
            daemon = type(cluster.daemons["one"])(client, "one")
            await daemon.run()

        with pytest.raises(AlreadyExistsError):
            cluster.run(second(), process)


def test_a_short_listing_or_one_that_fails_is_no_audit() -> None:
    with recovering_cluster(4, lost_delay_s=0) as cluster:
        ledger = cluster.written()
        daemon = cluster.recover(audit=AuditLimits(tick_s=10))
        cluster.wait(15)
        store = cluster.world.clients["daemon"].store
        page = store.list

        async def away(prefix: str, **how: Any) -> Any:
            if prefix == "ledgers/":
                raise AlreadyExistsError("the store is restored")
            return await page(prefix, **how)

        store.list = away  # type: ignore[method-assign,assignment]
        gone = BookieId(sorted(cluster.named(ledger))[0])
        cluster.lose(gone)
        cluster.wait(60)
        assert daemon.auditor.report is not None
        assert not daemon.auditor.report.concluded
        assert cluster.marked() == {}
        store.list = page  # type: ignore[method-assign]
        cluster.until(lambda: gone not in cluster.named(ledger), 400)


class Full(YieldMachine):
    """A bookie's low-priority queue that is full for its first thirty requests."""

    __slots__ = ("refused",)

    def __init__(self) -> None:
        super().__init__()
        self.refused = 0

    def come(self, size: int, others_bytes: int | None, now_ms: int) -> Entrance:
        if self.refused < 30:
            self.refused += 1
            return Entrance.REFUSED
        return super().come(size, others_bytes, now_ms)


def test_a_bookie_without_room_for_low_priority_is_asked_again() -> None:
    with recovering_cluster(4, lost_delay_s=0) as cluster:
        ledgers = [cluster.written(30) for _ in range(6)]
        servers = [cluster.bookie(name).server for name in ("b1", "b2", "b3")]
        for server in servers:
            assert server is not None
            server.low_priority.machine = Full()
        daemon = cluster.recover()
        cluster.lose("b0")
        cluster.until(lambda: not any("b0" in cluster.named(each) for each in ledgers), 120)
        cluster.until(lambda: cluster.marked() == {}, 60)
        assert daemon.worker.queue.counts.attempts == daemon.worker.queue.counts.repaired
        assert any(server.low_priority.machine.refused == 30 for server in servers if server is not None)
        assert cluster.all_whole(ledgers)


def test_copies_are_sent_slower_while_bookies_say_that_adds_are_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    slow_us = [2_000]
    monkeypatch.setattr(LowPriorityQueue, "add_p99_us", lambda _: slow_us[0])
    with recovering_cluster(4, lost_delay_s=0) as cluster:
        ledgers = [cluster.written(400, 10_000) for _ in range(4)]
        daemon = cluster.recover(bytes_per_s=2_000_000)
        cluster.lose("b0")
        cluster.until(lambda: cluster.copied > 0, 60)
        slow_us[0] = 9_000
        cluster.until(lambda: daemon.worker._targets._pace.bytes_per_s == 1_000_000, 60)
        slow_us[0] = 2_000
        cluster.until(lambda: not any("b0" in cluster.named(each) for each in ledgers), 120)
        assert cluster.all_whole(ledgers)

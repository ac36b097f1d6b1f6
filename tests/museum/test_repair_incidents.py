"""Incidents of auto-recovery: the auditor and the workers that ship, on a virtual clock."""

from __future__ import annotations

from dataclasses import replace

from quire.autorecovery.auditor import Auditor
from quire.core.answers import Answer
from quire.core.repair.audit_effects import ClusterBookies
from quire.core.repair.rules import RULES
from quire.core.repair.work_queue import QueueLimits, RepairQueue
from support.museum import incident, require
from support.recovering_cluster import recovering_cluster


class EndlessQueue(RepairQueue):
    """A ledger that is gone is a repair that failed, and what failed is tried again."""

    __slots__ = ()

    def whole(self, ledger_id: int) -> None:
        self.ended(ledger_id, None, "there is no such ledger", None, self._now_ms())

    def _now_ms(self) -> int:
        return max((one.due_ms for one in self.ledgers.values()), default=0)


@incident(
    ref="issues/3316",
    title="A ledger that was deleted is re-replicated for ever",
    happened=(
        "A ledger marked under-replicated was deleted or lost; the worker takes it up, fails and takes it up again, without "
        "end."
    ),
    ours=(
        "A ledger is deleted, and marked by who had listed it before. The worker takes it up once, finds that there is no "
        "record, and removes the mark by the version that it read."
    ),
    switch="a ledger without a record is a failed repair, and failed repairs are tried again",
    violates="bounded",
)
def test_3316_replicated_for_ever(fault: bool) -> None:
    with recovering_cluster(4) as cluster:
        ledger = cluster.written()
        cluster.run(cluster.client.delete_ledger(ledger))
        cluster.run(cluster.marks.mark_missing(ledger, [cluster.id_of("b0")]))
        daemon = cluster.recover()
        if fault:
            daemon.worker.queue = EndlessQueue(limits=QueueLimits(attempts_max=1 << 30, pause_ms_max=10_000))
        cluster.wait(600)
        attempts = daemon.worker.queue.counts.attempts
        require(attempts <= 5 and not cluster.marked(), "bounded", f"{attempts} attempts in ten minutes")


class SilentIsGone(Auditor):
    """A bookie that does not respond counts as one that is gone."""

    async def _bookies(self) -> ClusterBookies:
        self._stale = True
        view = await super()._bookies()
        bookies = self._client.bookies
        silent = [
            each for each in view.registered if (await bookies.info(each, timeout_ms=500))[0] is not Answer.OK
        ]
        registered = [each for each in view.registered if each not in silent]
        return replace(view, registered=registered)


@incident(
    ref="issues/1197",
    title="Every periodic check marks thousands of healthy ledgers",
    happened=(
        "After each periodic check thousands of ledgers were listed under-replicated; most went away again, some stayed: a read "
        "that timed out counted as a copy that is missing."
    ),
    ours=(
        "A bookie stands still for a minute while the cluster is audited, with no delay at all. It is registered, so it is not "
        "gone, and what it does not say is no finding: nothing is marked."
    ),
    switch="a bookie that does not respond is taken for gone",
    violates="healthy",
)
def test_1197_healthy_ledgers_marked(fault: bool) -> None:
    with recovering_cluster(4, lost_delay_s=0) as cluster:
        ledgers = [cluster.written() for _ in range(5)]
        daemon = cluster.recover()
        if fault:
            daemon.auditor.__class__ = SilentIsGone
        cluster.wait(15)
        cluster.bookie("b1").pause()
        seen = 0
        for _ in range(12):
            cluster.wait(5)
            seen = max(seen, len(cluster.marked()))
        cluster.bookie("b1").resume()
        require(seen == 0, "healthy", f"{seen} of {len(ledgers)} ledgers that lack nothing were marked")


@incident(
    ref="issues/3692",
    title="An open ledger without entries keeps a bookie from being decommissioned",
    happened=(
        "A ledger was created and never written to, and its writer is gone. Of its dead bookie nothing can be read, so nothing "
        "was re-replicated, the record went on naming the bookie, and the decommission waited for it without end."
    ),
    ours=(
        "The same ledger. It has no decided entry, so there is nothing to copy; when its writer has had its time beside a spare "
        "the ledger is recovered, closed without entries, and another bookie stands in its record."
    ),
    switch="an open ledger is left to its writer for ever",
    violates="replaced",
)
def test_3692_empty_open_ledger(fault: bool) -> None:
    with recovering_cluster(4, lost_delay_s=0) as cluster:

        async def left_open() -> int:
            writer = await cluster.client.create_ledger()
            await writer.abandon()
            return int(writer.ledger_id)

        ledger = cluster.run(left_open())
        cluster.recover(rules=RULES.but(may_recover_open=lambda **_: False) if fault else RULES)
        cluster.wait(15)
        gone = sorted(cluster.named(ledger))[0]
        cluster.lose(gone)
        cluster.wait(300)
        require(gone not in cluster.named(ledger), "replaced", f"the record names {gone} after five minutes")
        require(not cluster.marked(), "replaced", "it is marked for repair")


class PatientQueue(RepairQueue):
    """A repair is not over before its ledger is whole."""

    __slots__ = ()

    def ended(self, ledger_id: int, *_: object) -> None:
        """Its room stays taken."""


@incident(
    ref="issues/3887",
    title="One ledger that cannot be replicated holds up the decommission of a bookie",
    happened=(
        "Ledgers that cannot be read any more stay on the list of under-replicated ones, workers take them again and again, and "
        "whoever waits for the list to be empty before a bookie is taken away waits for ever."
    ),
    ours=(
        "A bookie is lost with the only copy of one ledger and a copy of five others. That one is tried once, and says that it "
        "waits for the bookie; the others are whole, and no record of theirs names the bookie."
    ),
    switch="one repair at a time, and it is not over before its ledger is whole",
    violates="replaced",
)
def test_3887_one_unreadable_ledger(fault: bool) -> None:
    with recovering_cluster(4, lost_delay_s=0) as cluster:
        only = cluster.written(ensemble_size=1, write_quorum=1, ack_quorum=1)
        (gone,) = cluster.named(only)
        beside = [ledger for ledger in (cluster.written() for _ in range(5)) if gone in cluster.named(ledger)]
        daemon = cluster.recover()
        if fault:
            daemon.worker.queue = PatientQueue(limits=QueueLimits(units_max=1))
        cluster.wait(15)
        cluster.lose(gone)
        cluster.wait(60)
        still = [ledger for ledger in beside if gone in cluster.named(ledger)]
        require(
            not still,
            "replaced",
            f"the records of {len(still)} of {len(beside)} ledgers name {gone} after a minute",
        )
        require(
            cluster.marked().keys() == {only},
            "replaced",
            f"{sorted(cluster.marked())} are marked, {only} alone waits",
        )
        require(cluster.all_whole(beside), "I2", "a copy is missing")

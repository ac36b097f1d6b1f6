"""Incidents of auto-recovery: the auditor and the workers that ship, on a virtual clock."""

from __future__ import annotations

from quire.autorecovery.auditor import Auditor
from quire.core.answers import Answer
from quire.core.audit_effects import ClusterBookies
from quire.core.repair_queue import QueueLimits, RepairQueue
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
        "A ledger is marked and deleted. The worker takes it up once, finds that there is no record, and removes the mark by "
        "the version that it read."
    ),
    switch="a ledger without a record is a failed repair, and failed repairs are tried again",
    violates="bounded",
)
def test_3316_replicated_for_ever(fault: bool) -> None:
    with recovering_cluster(4) as cluster:
        ledger = cluster.written()
        cluster.run(cluster.marks.mark_missing(ledger, [cluster.id_of("b0")]))
        cluster.run(cluster.client.delete_ledger(ledger))
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
        return ClusterBookies(registered, view.cookies, view.away, view.delay_s, view.enabled)


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

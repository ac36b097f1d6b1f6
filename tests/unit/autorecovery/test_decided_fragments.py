"""Who decides a fragment marks what bookies may lack of it, in one transaction: no one types a command, and it is copied.

Source: docs/protocol/closing.md, "What a decision marks"; docs/protocol/repair-queue.md.
"""

from __future__ import annotations

from typing import Any

import pytest

from quire.client.writing.writer import LedgerWriter
from quire.core.ledger.metadata import LedgerState
from quire.core.ledger.notes import EntryRange
from quire.core.repair.rules import RULES
from quire.core.repair.under_replicated_marks import ANY_BOOKIE, MarkReason, UnderReplicatedMark, WaitsFor
from quire.core.repair.work_queue import MarkStatus
from quire.metadata.keys import repairs_key
from quire.metadata.store import Put
from quire_testing.sim.programs import SimClient
from support.recovering_cluster import RecoveringCluster, recovering_cluster

COUNT = 30


async def append(writer: LedgerWriter, count: int = COUNT) -> None:
    for number in range(count):
        await writer.append(b"%d" % number)


def one_missed_some(cluster: RecoveringCluster, writer: LedgerWriter, process: SimClient) -> None:
    """A bookie of the writer's ensemble is away for some entries, and comes back."""
    cluster.run(append(writer), process)
    away = str(writer.metadata.last_fragment.ensemble[1]).partition(".")[0]
    cluster.bookie(away).kill()
    cluster.run(append(writer, 100), process)
    cluster.restart(away)


def written_by(cluster: RecoveringCluster, name: str) -> tuple[SimClient, LedgerWriter]:
    process = cluster.process(name)

    async def opened() -> LedgerWriter:
        return await (await process.connect()).create_ledger()

    return process, cluster.run(opened(), process)


@pytest.mark.parametrize("ends", ["closed", "killed"])
def test_what_a_bookie_missed_while_it_was_away_is_copied(ends: str) -> None:
    """231 of 330 copies, no note, no mark, and nothing saw it: a killed writer told no one what a bookie did not get."""
    with recovering_cluster(3) as cluster:
        cluster.recover()
        cluster.wait(15)
        process, writer = written_by(cluster, "writer")
        one_missed_some(cluster, writer, process)
        ledger = int(writer.ledger_id)
        if ends == "closed":
            cluster.run(writer.close(), process)
        else:
            process.kill()
            cluster.run(cluster.client.recover_ledger(ledger, b""))
        cluster.until(lambda: cluster.marked() == {}, 60)
        assert cluster.copied > 0
        assert cluster.all_whole([ledger])


def test_what_a_replaced_bookie_lacks_is_copied_while_the_writer_goes_on() -> None:
    with recovering_cluster(4) as cluster:
        cluster.recover()
        cluster.wait(15)
        process, writer = written_by(cluster, "writer")
        one_missed_some(cluster, writer, process)
        assert len(writer.metadata.fragments) == 2
        cluster.until(lambda: cluster.marked() == {}, 60)
        report = cluster.run(cluster.client.verify_ledger(int(writer.ledger_id)))
        assert [hole for hole in report.holes if hole.first < writer.metadata.last_fragment.first_entry] == []
        assert not report.closed


@pytest.mark.parametrize("mode", ["identifiers", "fencing"])
def test_a_take_over_that_begins_a_fragment_marks_the_one_before(mode: str) -> None:
    with recovering_cluster(4) as cluster:
        cluster.recover()
        cluster.wait(15)
        process = cluster.process("writer")

        async def opened() -> LedgerWriter:
            stream = (await process.connect()).unbounded_ledger("s", mode=mode)
            await stream.create(ensemble_size=3, write_quorum=3, ack_quorum=2)
            return await stream.open_writer()

        writer = cluster.run(opened(), process)
        cluster.run(append(writer), process)
        process.kill()
        gone = str(writer.metadata.last_fragment.ensemble[1]).partition(".")[0]
        cluster.bookie(gone).kill()
        cluster.wait(30)
        stream_id, marked = int(writer.ledger_id), list[bool]()

        async def taken() -> LedgerWriter:
            return await cluster.client.unbounded_ledger("s", mode=mode).open_writer()

        task = cluster.user.loop.spawn(taken())

        def over() -> bool:
            marked.append(stream_id in cluster.marked())
            return bool(task.done())

        cluster.until(over, 120)
        assert task.result().term > writer.term
        assert any(marked), "with the record that decided the fragment"
        cluster.restart(gone)
        cluster.until(lambda: cluster.marked() == {}, 60)


def test_nothing_is_marked_where_no_auditor_has_ever_run() -> None:
    with recovering_cluster(3) as cluster:
        process, writer = written_by(cluster, "writer")
        one_missed_some(cluster, writer, process)
        cluster.run(writer.close(), process)
        assert writer.holes
        assert cluster.marked() == {}, "no one would remove a mark"


def test_a_mark_of_an_undecided_fragment_that_ends_with_the_first_look_is_lost() -> None:
    """The rule taken out: the hole is there still, and no mark says so."""
    with recovering_cluster(3) as cluster:
        cluster.recover(rules=RULES.but(mark_may_end=lambda *_: True))
        cluster.wait(15)
        process, writer = written_by(cluster, "writer")
        one_missed_some(cluster, writer, process)
        cluster.run(writer.leave(), process)
        cluster.until(lambda: cluster.marked() == {}, 60)
        assert not cluster.all_whole([int(writer.ledger_id)])


def test_a_mark_of_a_fragment_that_its_writer_may_still_change_waits_for_it() -> None:
    """A client that is closed leaves its ledger open, and knows what a bookie lacks; when it is recovered nobody else does."""
    with recovering_cluster(3) as cluster:
        daemon = cluster.recover()
        cluster.wait(15)
        process, writer = written_by(cluster, "writer")
        one_missed_some(cluster, writer, process)
        ledger = int(writer.ledger_id)
        cluster.run(writer.leave(), process)
        cluster.until(lambda: ledger in daemon.worker.queue.ledgers, 30)
        queue = daemon.worker.queue.ledgers
        cluster.until(lambda: queue[ledger].status is MarkStatus.OPEN, 60)
        cluster.wait(1)
        attempts = cluster.run(cluster.marks.marks(ledger)).mark.attempts
        assert (attempts.waits, queue[ledger].attempts) == (WaitsFor.WRITER, 0)
        record = cluster.world.record(ledger)
        assert record is not None
        assert record.state is LedgerState.OPEN
        cluster.run(cluster.client.recover_ledger(ledger, b""))
        cluster.until(lambda: cluster.marked() == {}, 400)
        assert cluster.all_whole([ledger])


def test_a_mark_whose_bookie_is_away_costs_no_attempt() -> None:
    with recovering_cluster(3, lost_delay_s=3600) as cluster:
        daemon = cluster.recover()
        cluster.wait(15)
        process, writer = written_by(cluster, "writer")
        cluster.run(append(writer), process)
        cluster.bookie("b2").kill()
        cluster.run(append(writer), process)
        cluster.wait(30)  # its registration has ended
        cluster.run(writer.close(), process)
        ledger, queue = int(writer.ledger_id), daemon.worker.queue
        cluster.until(
            lambda: ledger in queue.ledgers and queue.ledgers[ledger].status is MarkStatus.GIVEN_UP, 60
        )
        cluster.wait(600)
        assert (queue.ledgers[ledger].attempts, queue.counts.attempts) == (0, 1)
        cluster.restart("b2")
        cluster.until(lambda: cluster.marked() == {}, 30)
        assert cluster.all_whole([ledger])


def test_a_mark_that_is_made_again_is_a_new_one() -> None:
    """A worker that looked at the ledger before it was made again does not remove it by its version."""
    with recovering_cluster(3) as cluster:
        ledger = cluster.written()
        mark = UnderReplicatedMark(MarkReason.HOLE, ANY_BOOKIE, EntryRange(0, 9), 1, "a person", 5)
        cluster.run(cluster.marks.mark(ledger, [mark]))
        before = cluster.run(cluster.marks.marks(ledger))
        cluster.run(cluster.marks.mark(ledger, [mark]))
        assert cluster.run(cluster.marks.marks(ledger)).mark == before.mark
        assert cluster.run(cluster.marks.remove_marks(ledger, before)) is False


@pytest.mark.parametrize("stands_in_the_way", ["unreadable", "changing"])
def test_a_mark_stops_no_close(stands_in_the_way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with recovering_cluster(3) as cluster:
        cluster.run(cluster.marks.announce_audits())
        process, writer = written_by(cluster, "writer")
        one_missed_some(cluster, writer, process)
        ledger = int(writer.ledger_id)
        store: Any = process.store
        cluster.run(store.create(repairs_key(ledger), b"\xff"), process)
        if stands_in_the_way == "changing":
            multi = store.multi

            async def others_first(ops: Any) -> Any:
                if any(op.key == repairs_key(ledger) for op in ops):
                    found = await store.get(repairs_key(ledger))
                    await multi([Put(repairs_key(ledger), found.value, found.version)])
                return await multi(ops)

            cluster.run(store.delete(repairs_key(ledger)), process)
            mark = UnderReplicatedMark(MarkReason.HOLE, ANY_BOOKIE, EntryRange(0, 9), 1, "a person", 5)
            cluster.run(cluster.marks.mark(ledger, [mark]))
            monkeypatch.setattr(store, "multi", others_first)
        cluster.run(writer.close(), process)
        record = cluster.world.record(ledger)
        assert record is not None
        assert record.state is LedgerState.CLOSED

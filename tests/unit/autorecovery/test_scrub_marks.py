"""What a scrub finds is marked, and what is marked is repaired: of closed ledgers, and of what is decided of open ones.

Source: docs/spark-jobs.md, "Scrub and audit".
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from quire.client.repairing.scrubbing import IN_LIMBO, CopyVerdict, Finding, ReplicaCheck, windows
from quire.core.answers import Answer
from quire.core.ids import BookieId, EntryId, LedgerId
from quire.core.ledger.metadata import LedgerMetadata
from quire.core.ledger.notes import EntryRange
from quire.core.ledger.stripes import bookie_stripes
from quire.core.repair.under_replicated_marks import MarkReason, UnderReplicatedMark
from support.recovering_cluster import RecoveringCluster, recovering_cluster

MARKED = {
    CopyVerdict.MISSING: MarkReason.HOLE,
    CopyVerdict.CORRUPT: MarkReason.DAMAGE,
    CopyVerdict.UNLIKE: None,
    CopyVerdict.OVER_REPLICATED: None,
    CopyVerdict.UNKNOWN: None,
}


@pytest.mark.parametrize("verdict", MARKED)
def test_what_a_bookie_said_is_marked_and_what_it_did_not_say_is_not(verdict: CopyVerdict) -> None:
    reason, bookie = MARKED[verdict], BookieId("b")
    wanted = reason and UnderReplicatedMark(reason, bookie, EntryRange(3, 7), 2, "", 9)
    assert Finding(3, 7, verdict, "TIMED_OUT").mark(bookie, 2, 9) == wanted


def test_limbo_is_marked_as_such() -> None:
    mark = Finding(0, 1, CopyVerdict.UNKNOWN, IN_LIMBO).mark(BookieId("b"), 2, 9)
    assert mark is not None
    assert mark.reason is MarkReason.LIMBO


async def findings(cluster: RecoveringCluster, ledger: LedgerId) -> dict[BookieId, list[Finding]]:
    """What the lists of its bookies show of a ledger, and what reading every decided copy shows: both the same."""
    client = cluster.client
    record, version = await client.records.ledgers.read(ledger)
    check = ReplicaCheck(client.bookies, record, 1_000)
    mine: dict[BookieId, list[Any]] = {}
    for part in bookie_stripes(record):
        mine.setdefault(part.bookie, []).append(part)
    listed = {bookie: await check.audit(bookie, each) for bookie, each in mine.items()}
    for bookie, each in mine.items():
        read = [
            one
            for part in each
            for window in windows(record, part)
            for one in (await check.scrub(window)).findings
        ]
        if bookie not in {each for each, some in listed.items() for one in some if one.detail == "TIMED_OUT"}:
            assert [one.verdict for one in read] == [one.verdict for one in listed[bookie]]
    marks = [
        mark for bookie, each in listed.items() for one in each if (mark := one.mark(bookie, version, 0))
    ]
    if marks:
        await cluster.marks.mark(ledger, marks)
    return {bookie: each for bookie, each in listed.items() if each}


def test_of_an_open_ledger_what_is_decided_is_looked_at_and_repaired() -> None:
    with recovering_cluster(4) as cluster:
        client = cluster.client

        async def opened() -> LedgerId:
            writer = await client.create_ledger()
            for number in range(600):
                writer.append_nowait(b"%d" % number)
            await writer.append(b"last")
            await writer.abandon()
            return LedgerId(writer.ledger_id)

        ledger = cluster.run(opened())
        assert cluster.run(findings(cluster, ledger)) == {}, "its one fragment is not decided"

        async def add_a_fragment() -> BookieId:
            """Entries from 400 on are of another fragment, and the first one names a bookie that has none of them."""
            record, version = await client.records.ledgers.read(ledger)
            (fragment,) = record.fragments
            other = next(each for each in client.bookies.writable() if each not in fragment.ensemble)
            fragments = (
                replace(fragment, ensemble=(other, *fragment.ensemble[1:])),
                replace(fragment, first_entry=EntryId(400)),
            )
            await client.records.ledgers.write(replace(record, fragments=fragments), version)
            return BookieId(other)

        other = cluster.run(add_a_fragment())
        found = cluster.run(findings(cluster, ledger))
        assert list(found) == [other]
        assert [(one.first, one.last, one.verdict) for one in found[other]] == [
            (0, 255, CopyVerdict.MISSING),
            (256, 399, CopyVerdict.MISSING),
        ]
        cluster.recover()
        cluster.until(lambda: cluster.marked() == {}, 60)
        assert cluster.run(findings(cluster, ledger)) == {}
        record: LedgerMetadata | None = cluster.world.record(ledger)
        assert record is not None
        assert record.last_entry < 0, "it is still open"


def test_a_bookie_that_does_not_answer_is_not_marked() -> None:
    """It listed what it holds, and stood still before it was asked whether that is all."""
    with recovering_cluster(4) as cluster:
        ledger = LedgerId(cluster.written())
        stands = cluster.id_of(sorted(cluster.named(ledger))[0])

        async def silent(bookie: str, *what: Any, **how: Any) -> Any:
            return (Answer.TIMED_OUT, {}) if bookie == stands else await info(bookie, *what, **how)

        info, cluster.client.bookies.info = cluster.client.bookies.info, silent  # type: ignore[method-assign,assignment]
        found = cluster.run(findings(cluster, ledger))
        assert [(one.verdict, one.detail) for one in found[stands]] == [(CopyVerdict.UNKNOWN, "TIMED_OUT")]
        assert cluster.marked() == {}

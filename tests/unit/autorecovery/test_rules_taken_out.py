"""Mutants of auto-recovery as whole programs on a virtual clock: a fix is taken out, and what breaks is what it prevents.

Source: docs/simulation.md; docs/decisions/034-who-may-recover-an-open-ledger.md.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from quire.core.errors import QuireError
from quire.core.ids import LedgerId
from quire.core.ledger.notes import EntryRange
from quire.core.repair.audit_effects import AuditLimits
from quire.core.repair.under_replicated_marks import MarkReason, UnderReplicatedMark
from quire.metadata.repairs import RepairStore, Stored
from quire_testing.explorer.patches import applied
from support.audited_cluster import SHORT_LISTING_IS_AN_AUDIT
from support.recovering_cluster import RecoveringCluster, recovering_cluster


async def whatever_its_version(self: RepairStore, key: str, found: Stored[Any]) -> bool:
    """X40: the mark is deleted, whatever was written since it was read."""
    if await self._store.get(key) is not None:
        await self._store.delete(key)
    return found.flaw is None


def hole(cluster: RecoveringCluster, bookie: str) -> UnderReplicatedMark:
    return UnderReplicatedMark(MarkReason.HOLE, cluster.id_of(bookie), EntryRange(0, 9), 1, "somebody", 0)


def marked_at_the_last_moment(monkeypatch: pytest.MonkeyPatch) -> tuple[bool, bool]:
    """A hole is made and marked in the moment in which a worker removes the mark of another one: (filled, marked) later."""
    with recovering_cluster(4) as cluster:
        cluster.bookie("b2").kill()
        cluster.wait(2)
        ledger = LedgerId(cluster.written(ensemble_size=4, write_quorum=3, ack_quorum=2))
        cluster.restart("b2")
        cluster.run(cluster.marks.mark(ledger, [hole(cluster, "b2")]))
        remove, done = RepairStore.remove_marks, list[int]()

        async def late(self: RepairStore, ledger_id: int, found: Stored[Any]) -> bool:
            if not done:
                done.append(ledger_id)
                await forget_to_copy(self)
            return await remove(self, ledger_id, found)

        async def forget_to_copy(marks: RepairStore) -> None:
            client = cluster.world.clients["daemon"].client
            assert client is not None
            record, version = await client.records.ledgers.read(ledger)
            (fragment,) = record.fragments
            turned = (*fragment.ensemble[1:], fragment.ensemble[0])
            await client.records.ledgers.write(
                replace(record, fragments=(replace(fragment, ensemble=turned),)), version
            )
            await marks.mark(ledger, [hole(cluster, "b0")])

        monkeypatch.setattr(RepairStore, "remove_marks", late)
        cluster.recover()
        cluster.until(lambda: bool(done), 60)
        cluster.wait(120)
        cluster.world.problems.clear()  # the world has noticed what was forgotten
        return cluster.all_whole([ledger]), bool(cluster.marked())


def test_what_is_marked_while_marks_are_removed_is_repaired(monkeypatch: pytest.MonkeyPatch) -> None:
    assert marked_at_the_last_moment(monkeypatch) == (True, False)


def test_a_mark_that_is_deleted_whatever_its_version_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """X40 breaks AR2: no mark is lost."""
    monkeypatch.setattr(RepairStore, "_remove", whatever_its_version)
    assert marked_at_the_last_moment(monkeypatch) == (False, False)


def after_a_listing_that_failed() -> bool:
    """Whether the ledgers of a bookie that is gone are marked, although the records could not be read at first."""
    with recovering_cluster(3, lost_delay_s=0) as cluster:
        ledger = cluster.written()
        cluster.recover(audit=AuditLimits(tick_s=10, again_s=100_000))
        cluster.wait(15)
        store = cluster.world.clients["daemon"].store
        page = store.list

        async def away(prefix: str, **how: Any) -> Any:
            if prefix == "ledgers/":
                raise QuireError("the store is restored")
            return await page(prefix, **how)

        store.list = away  # type: ignore[method-assign,assignment]
        cluster.lose(sorted(cluster.named(ledger))[0])
        cluster.wait(60)
        assert cluster.marked() == {}
        store.list = page  # type: ignore[method-assign]
        cluster.wait(600)
        return ledger in cluster.marked()


def test_a_listing_that_failed_is_no_audit() -> None:
    assert after_a_listing_that_failed()


def test_where_a_short_listing_is_an_audit_marks_are_missing() -> None:
    """X41 breaks AR2: no mark is lost."""
    with applied([SHORT_LISTING_IS_AN_AUDIT]):
        assert not after_a_listing_that_failed()

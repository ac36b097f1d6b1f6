"""Marks what was found of a bookie's copies for repair: one set of marks and rules for all programs that look.

Source: docs/autorecovery.md; docs/spark-jobs.md, "Scrub and audit".
"""

from __future__ import annotations

from collections.abc import Iterable

from quire.client.client import Client
from quire.client.repairing.scrubbing import Finding
from quire.core.ids import BookieId
from quire.core.repair.under_replicated_marks import UnderReplicatedMark
from quire.metadata.repairs import RepairStore


async def mark_findings(
    client: Client, ledger_id: int, bookie: str, findings: Iterable[Finding], name: str
) -> list[UnderReplicatedMark]:
    """Mark what a bookie lacks, if it said so; the repair looks again.

    Args:
        client: the cluster.
        ledger_id: of which ledger.
        bookie: whose copies were looked at.
        findings: what was found.
        name: who looked.

    Returns:
        The marks that were made or renewed.

    Raises:
        NoSuchLedgerError: the ledger was deleted.
        QuireError: it may not be marked.
    """
    _, version = await client.records.read(ledger_id)
    now_ms = client.clock.wall_ms()
    found = [finding.mark(BookieId(bookie), version, now_ms) for finding in findings]
    marks = [mark for mark in found if mark is not None]
    if marks:
        await RepairStore(client.store, client.clock, name).mark(ledger_id, marks)
    return marks

"""Java recovers a ledger that guarantees its write quorum: it does not know the promise, and that is noticed.

A bookie is away while entries are appended: callers are told, and the other two hold a last add confirmed that covers them.
Java's recovery begins above it, so nobody writes these entries to the third bookie, and the closed record carries our
custom metadata on. The auditor marks the ledger, and a repair keeps the guarantee.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import quire
from quire.autorecovery.pending_replication import PendingReplication
from quire.cli.local.local_cluster import LocalCluster
from quire.client.repairing.ledger_repair import LedgerRepair
from quire.core.ledger.guarantee import GUARANTEED, KEPT
from quire.core.repair.effects import RepairOutcome
from support.java_peers import PATIENT_JAVA, JavaPeers
from support.ledgers import payload
from support.rounds import keep_figures
from support.waiting import until_async

pytestmark = [pytest.mark.interop, pytest.mark.slow, pytest.mark.timeout(1200)]
COUNT = 50
SIZE = 200
SHORT_SESSIONS = "?session_timeout_ms=5000"


async def closed_by_java(peers: JavaPeers, folder: Path) -> dict[str, int]:
    uri = peers.another_root()
    ours = LocalCluster(folder / "ours", 3, cluster=uri + SHORT_SESSIONS)
    await asyncio.to_thread(ours.start)
    try:
        async with quire.connect(uri + SHORT_SESSIONS) as client, peers.client() as java:
            writer = await client.create_ledger(password=b"secret", digest="crc32c", guarantee="write_quorum")
            ledger = int(writer.ledger_id)
            gone = ours.bookies[1].id
            await asyncio.to_thread(ours.kill, 1)
            for number in range(COUNT):
                await writer.append(payload(number, SIZE))
            reader = await client.open_ledger(ledger, b"secret", recover=False)

            async def is_told() -> bool:
                return await reader.refresh() == COUNT - 1

            await until_async(is_told, "the bookies to know what is confirmed")
            await writer.abandon()
            await asyncio.to_thread(ours.restart, 1)
            await until_async(lambda: gone in client.bookies.writable(), "the bookie to be back")
            found = await java.run(uri, "CRC32C", "recover-open", ledger, *PATIENT_JAVA)
            assert not [event for event in found if event["event"] == "error"], found
            record = await client.ledger_metadata(ledger)
            assert record.last_entry == COUNT - 1
            assert GUARANTEED in record.custom
            assert KEPT not in record.custom
            before = await client.verify_ledger(ledger, b"secret")
            assert before.below_write_quorum
            assert not before.good
            pending = PendingReplication(client)
            assert (await pending.mark(), await pending.mark()) == (1, 0)
            ended = await LedgerRepair(ledger, client.context, password=b"secret").run()
            assert ended.outcome is RepairOutcome.WHOLE
            after = await client.verify_ledger(ledger, b"secret")
            assert after.complete
            assert KEPT in (await client.ledger_metadata(ledger)).custom
            assert await java.run(uri, "CRC32C", "read", ledger, *PATIENT_JAVA), "Java still reads it"
            return {"entries": COUNT, "copies": before.copies, "copies_after": after.copies}
    finally:
        await asyncio.to_thread(ours.stop)


async def test_what_java_closes_below_the_guarantee_is_marked_and_repaired(
    peers: JavaPeers, tmp_path: Path
) -> None:
    figures = await closed_by_java(peers, tmp_path)
    assert figures["copies"] < figures["copies_after"] == 3 * COUNT
    keep_figures("java_closes_a_guaranteed_ledger", figures, seed=None)

"""A ledger that was created while one of its bookies was away: Java's client reads it, with the bookie away and back.

Java's recovery writes entries back to whole write sets and finds no replacement among three bookies, so with one away it
fails, whoever wrote the ledger and however it began. It recovers ours once the bookie is back.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import quire
from faults.harness import judged, new_history
from quire.cli.local.local_cluster import LocalCluster
from quire_testing.history import entry_hashes
from quire_testing.recording import record_scan
from support.both_writers import read_by_java
from support.java_peers import JavaPeers
from support.ledgers import payload
from support.waiting import until_async

pytestmark = [pytest.mark.interop, pytest.mark.timeout(1200)]
COUNT = 200
SIZE = 200
SHORT_SESSIONS = "?session_timeout_ms=5000"


async def written_and_read(peers: JavaPeers, folder: Path) -> None:
    uri = peers.another_root()
    ours = LocalCluster(folder / "ours", 3, cluster=uri + SHORT_SESSIONS)
    await asyncio.to_thread(ours.start)
    try:
        async with quire.connect(uri + SHORT_SESSIONS) as client, peers.client() as java:
            gone = ours.bookies[1].id
            await asyncio.to_thread(ours.kill, 1)
            await until_async(lambda: gone not in client.bookies.writable(), "the bookie's session to end")
            history = new_history()
            # One is closed by its writer, the other by Java's recovery.
            ledgers = []
            for left_open in (False, True):
                writer = await client.create_ledger(password=b"secret", digest="crc32c")
                ledger = int(writer.ledger_id)
                history.invoke("writer", "create").ok(ledger=ledger)
                assert sorted(writer.metadata.last_fragment.ensemble) == sorted(b.id for b in ours.bookies)
                values = [payload(number, SIZE) for number in range(COUNT)]
                appending = history.invoke(
                    "writer", "append", ledger=ledger, first=0, hashes=entry_hashes(values)
                )
                await writer.append_many(values)
                appending.ok()
                assert [hole[1:] for hole in writer.holes] == [(gone, 0, COUNT - 1)]
                ledgers.append(ledger)
                if left_open:
                    await writer.abandon()
                    continue
                closing = history.invoke("writer", "close", ledger=ledger)
                await writer.close()
                closing.ok(last=COUNT - 1)
                assert await read_by_java(history, java, uri, ledger, recover=False) == COUNT
            await asyncio.to_thread(ours.restart, 1)
            await until_async(lambda: gone in client.bookies.writable(), "the bookie to be back")
            for ledger, recover in zip(ledgers, (False, True), strict=True):
                assert await read_by_java(history, java, uri, ledger, recover=recover) == COUNT
                assert await record_scan(history, client, ledger) <= COUNT
            judged(history.events, 1, 3, 4)
    finally:
        await asyncio.to_thread(ours.stop)


async def test_java_reads_a_ledger_that_began_with_an_absent_slot(peers: JavaPeers, tmp_path: Path) -> None:
    await written_and_read(peers, tmp_path)

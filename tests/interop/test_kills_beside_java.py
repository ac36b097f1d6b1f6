"""SIGKILL of a Java bookie under our writer, and of a bookie of ours under a Java writer.

Nothing that was acknowledged is lost, by the reader of the other language: what was told is recorded and judged.
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

import quire
from faults.harness import Loader, judged, new_history, pause
from quire.cli.local.local_cluster import LocalCluster
from quire_testing.history import History, entry_hashes
from quire_testing.recording import record_open, record_read, record_scan
from support.both_writers import read_by_java
from support.java_peers import PATIENT, PATIENT_JAVA, JavaClient, JavaPeers, own_peers
from support.ledgers import payload
from support.rounds import keep_figures, rounds

pytestmark = [pytest.mark.interop, pytest.mark.slow, pytest.mark.timeout(3600)]
SEED = 20261121
JAVA_BOOKIES = 4
OUR_BOOKIES = 4
COUNT = 6000
SIZE = 200
SHORT_SESSIONS = "zkTimeout=15000\n"
"""A Java bookie that was killed comes back when the session that it had has ended."""
LOOKED_AT = (1, 2, 3, 4, 5, 8, 9)


async def our_writer(peers: JavaPeers, folder: Path, count: int) -> dict[str, Any]:
    """Our writer on Java bookies, one of which dies in each round; in every second one the writer goes as well."""
    del folder
    chance = random.Random(SEED)
    figures = {"rounds": count, "acknowledged": 0, "read_by_java": 0, "fragments": 0, "holes": 0}
    async with quire.connect(peers.uri + PATIENT) as client, peers.client() as java:
        for number in range(count):
            history = new_history()
            writer = await client.create_ledger(password=b"secret")
            ledger = int(writer.ledger_id)
            loader = Loader(writer, size=SIZE, window=500, history=history)
            loading = asyncio.create_task(loader.run())
            await loader.reaches(1)
            await pause(chance)
            victim = peers.bookies().index(str(chance.choice(writer.metadata.fragments[-1].ensemble)))
            await asyncio.to_thread(peers.run, "kill-bookie", str(victim))
            await loader.reaches(loader.acknowledged + 1000)
            recover = number % 2 == 1
            if recover:
                await writer.abandon()
            loader.stop()
            await loading
            if not recover:
                assert not loader.failures, f"round {number}: {loader.failures}"
                closing = history.invoke("writer", "close", ledger=ledger)
                await writer.close()
                closing.ok(last=int(writer.last_add_confirmed))
            figures["read_by_java"] += await read_by_java(history, java, peers.uri, ledger, recover=recover)
            await asyncio.to_thread(peers.run, "start-bookie", str(victim))
            figures["acknowledged"] += loader.acknowledged
            figures["fragments"] += len((await client.ledger_metadata(ledger)).fragments)
            figures["holes"] += await record_scan(history, client, ledger)
            judged(history.events, *LOOKED_AT)
            await client.delete_ledger(ledger)
    return figures


async def written_by_java(
    history: History, java: JavaClient, uri: str, kill_at: int, ours: LocalCluster
) -> tuple[int, int]:
    """Java writes while the bookie that holds its first entries is killed: the ledger, and the number of that bookie."""
    ledger = victim = -1
    appending = None
    shape = ("--ensemble", 3, "--wq", 3, "--aq", 2)
    last: dict[str, Any] = {}
    acknowledged = 0
    async for event in java.events(
        uri, "CRC32C", "write", COUNT, SIZE, "--window", 50, *shape, *PATIENT_JAVA
    ):
        last = event
        if event["event"] == "created":
            ledger = int(event["ledger"])
            first = event["ensembles"]["0"][0]
            victim = next(index for index, bookie in enumerate(ours.bookies) if bookie.id == first)
            history.invoke("writer", "create").ok(ledger=ledger)
            hashes = entry_hashes(payload(number, SIZE) for number in range(COUNT))
            appending = history.invoke("writer", "append", ledger=ledger, first=0, hashes=hashes)
        elif event["event"] == "added":
            acknowledged += 1
            if acknowledged == kill_at:
                await asyncio.to_thread(ours.kill, victim)
    assert last["event"] == "written", last
    assert acknowledged == COUNT
    assert appending is not None
    appending.ok()
    history.invoke("writer", "close", ledger=ledger).ok(last=last["lac"])
    return ledger, victim


async def javas_writer(peers: JavaPeers, folder: Path, count: int) -> dict[str, Any]:
    """A Java writer on bookies of ours, one of which dies in each round."""
    chance = random.Random(SEED)
    figures = {"rounds": count, "acknowledged": 0, "read_by_python": 0, "fragments": 0, "holes": 0}
    uri = peers.another_root()
    ours = LocalCluster(folder / "ours", OUR_BOOKIES, cluster=uri + PATIENT)
    await asyncio.to_thread(ours.start)
    try:
        async with quire.connect(uri + PATIENT) as client, peers.client() as java:
            for _ in range(count):
                history = new_history()
                ledger, victim = await written_by_java(
                    history, java, uri, chance.randrange(1, COUNT * 3 // 4), ours
                )
                reader = await record_open(history, "python", client, ledger, password=b"secret")
                figures["read_by_python"] += await record_read(history, "python", reader, COUNT - 1)
                await asyncio.to_thread(ours.restart, victim)
                figures["acknowledged"] += COUNT
                figures["fragments"] += len((await client.ledger_metadata(ledger)).fragments)
                figures["holes"] += await record_scan(history, client, ledger)
                judged(history.events, *LOOKED_AT)
                await client.delete_ledger(ledger)
    finally:
        await asyncio.to_thread(ours.stop)
    return figures


async def test_java_bookies_killed_under_our_writer(tmp_path: Path) -> None:
    with own_peers(tmp_path / "java", JAVA_BOOKIES, SHORT_SESSIONS) as peers:
        figures = await our_writer(peers, tmp_path, rounds(2, 20))
    keep_figures("java_bookies_killed_under_our_writer", figures, seed=SEED)


async def test_our_bookies_killed_under_a_java_writer(peers: JavaPeers, tmp_path: Path) -> None:
    figures = await javas_writer(peers, tmp_path, rounds(2, 20))
    keep_figures("our_bookies_killed_under_a_java_writer", figures, seed=SEED)

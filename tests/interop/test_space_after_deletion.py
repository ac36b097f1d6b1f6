"""Half of all ledgers deleted: their space is back within three passes of the bookies, and nothing else is gone.

On SQLite, etcd and ZooKeeper; there Java deletes half of that half, which leaves no tombstone.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import quire
from quire.bookie.config import BookieConfig
from quire.bookie.server import BookieServer
from quire.client.access import LedgerAccess
from quire.metadata.connect import open_store
from quire.metadata.keys import TOMBSTONES
from quire.metadata.records import OF_LEDGERS, AllRecords, RecordStore
from quire.storage.config import KIB, StorageConfig
from support.etcd_server import etcd_or_skip
from support.java_peers import PATIENT, PATIENT_CLIENT, shared_peers
from support.rounds import keep_figures, rounds
from support.shared_server import or_skip

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900)]

LEDGERS = rounds(60, 600)
ENTRIES, SIZE = 4, 8 * KIB
BOOKIES = 3
SMALL = StorageConfig(segment_bytes=256 * KIB)
PASSES = 3
"""Within so many everything that was deleted is gone."""


def uri_of(kind: str, folder: Path) -> str:
    if kind == "sqlite":
        return f"sqlite:{folder / 'metadata.db'}"
    if kind == "etcd":
        return f"etcd://{etcd_or_skip().host}/{folder.name}"
    return or_skip(shared_peers()).another_root() + PATIENT


@asynccontextmanager
async def bookies_on(uri: str, folder: Path, count: int = BOOKIES) -> AsyncIterator[list[BookieServer]]:
    """Bookies with small segments, whose collectors make a pass when they are told to."""
    servers: list[BookieServer] = []
    try:
        for number in range(count):
            config = BookieConfig(
                directory=folder / f"b{number}",
                name=f"b{number}",
                storage=SMALL,
                garbage_seconds=0,
                tombstone_seconds=0,  # no add is late here
            )
            server = BookieServer(config, await open_store(uri, create=True))
            await server.start()
            servers.append(server)
        yield servers
    finally:
        for server in servers:
            await server.stop()
            await server.store.close()


async def passes(servers: Sequence[BookieServer], count: int) -> int:
    """Every bookie makes so many, in turn; how many ledgers they dropped."""
    return sum([await server.collector.collect() for _ in range(count) for server in servers])


def held(server: BookieServer, ledger_id: int) -> list[tuple[int, int]]:
    """What a bookie has of a ledger on its disk."""
    return [(first, last) for first, last, *_ in server.storage.held(ledger_id)]


@pytest.mark.parametrize("kind", ["sqlite", "etcd", "zookeeper"])
async def test_space_comes_back_within_three_passes(kind: str, tmp_path: Path) -> None:
    async def run() -> dict[str, int]:
        uri = uri_of(kind, tmp_path)
        async with bookies_on(uri, tmp_path) as servers, quire.connect(uri, config=PATIENT_CLIENT) as client:
            ids: list[int] = []
            for _ in range(LEDGERS):
                async with await client.create_ledger(
                    ensemble_size=3, write_quorum=3, ack_quorum=3
                ) as ledger:
                    for number in range(ENTRIES):
                        await ledger.append(bytes([number]) * SIZE)
                ids.append(int(ledger.ledger_id))
            assert await passes(servers, 2) == 0
            before = [server.storage.statistics()["segments"] for server in servers]
            gone, stays = ids[: LEDGERS // 2], ids[LEDGERS // 2 :]
            ours = gone if kind != "zookeeper" else gone[::2]
            for ledger_id in ours:
                await client.delete_ledger(ledger_id)
            if kind == "zookeeper":
                async with or_skip(shared_peers()).client() as java:
                    for ledger_id in gone[1::2]:
                        told = await java.run(uri.removesuffix(PATIENT), "CRC32C", "delete", ledger_id)
                        assert told[-1]["event"] == "deleted", told

            dropped = await passes(servers, PASSES)
            assert dropped == BOOKIES * len(gone)
            whole = [(0, ENTRIES - 1)]
            for server in servers:
                assert [held(server, ledger_id) for ledger_id in gone] == [[]] * len(gone)
                assert [held(server, ledger_id) for ledger_id in stays] == [whole] * len(stays)
                assert server.collector.info()["unknown"] == 0
            after = [server.storage.statistics()["segments"] for server in servers]
            assert all(now <= 0.6 * then + 2 for now, then in zip(after, before, strict=True)), (
                before,
                after,
            )
            async with await open_store(uri) as store:
                assert await store.list(TOMBSTONES) == [], "every watermark has passed them"
            for ledger_id in stays:
                async with await client.open_ledger(ledger_id) as reader:
                    read = [bytes(entry.payload[:1]) async for entry in reader.read()]
                    assert read == [bytes([number]) for number in range(ENTRIES)]
        return {
            "ledgers": LEDGERS,
            "deleted": len(gone),
            "by_java": len(gone) - len(ours),
            "dropped": dropped,
            "segments_before": sum(before),
            "segments_after": sum(after),
        }

    keep_figures(f"space_after_deletion_{kind}", await run(), seed=None)


async def test_a_ledger_that_java_makes_and_deletes_between_passes_is_an_orphan(tmp_path: Path) -> None:
    """No pass has found it, so there is no proof: it is kept, and a person may delete it."""
    uri = uri_of("zookeeper", tmp_path)
    bare = uri.removesuffix(PATIENT)
    async with bookies_on(uri, tmp_path) as servers, or_skip(shared_peers()).client() as java:
        await passes(servers, 1)
        written = await java.run(bare, "CRC32C", "write", 3, 100)
        ledger_id = next(int(line["ledger"]) for line in written if line["event"] == "created")
        async with await open_store(uri) as store:
            access = LedgerAccess.of((await RecordStore(store, OF_LEDGERS).read(ledger_id))[0])
            assert access.token == 0, "Java's ledgers have none"
            await java.run(bare, "CRC32C", "delete", ledger_id)
            assert await passes(servers, PASSES) == 0
            orphans = [server.collector.orphans(-1) for server in servers]
            assert all(one["unknown"] == [ledger_id] for one in orphans), orphans
            await AllRecords(store).delete_orphan(ledger_id)
            assert await passes(servers, 1) == BOOKIES
            assert all(server.collector.orphans(-1)["unknown"] == [] for server in servers)

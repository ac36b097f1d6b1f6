"""One bookie on its real disk with its collector, a client, and a store in memory that can be put back."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from quire.bookie.server import BookieServer
from quire.client.client import Client
from quire.metadata.memory import MemoryStore
from quire.metadata.records import OF_LEDGERS, AllRecords
from quire.metadata.store import Create, Op, Put
from support.small_cluster import SmallCluster, small_cluster

Scenario = Callable[["At"], Coroutine[Any, Any, None]]


class At:
    """One bookie, a client, and the store that both use."""

    def __init__(self, cluster: SmallCluster, client: Client) -> None:
        self.cluster, self.client = cluster, client
        self.store = MemoryStore(cluster.space)
        self.records = AllRecords(self.store)

    @property
    def server(self) -> BookieServer:
        (server,) = self.cluster.servers.values()
        return server

    async def write(self, count: int = 1) -> list[int]:
        """Closed ledgers of one entry."""
        made: list[int] = []
        for _ in range(count):
            async with await self.client.create_ledger(
                ensemble_size=1, write_quorum=1, ack_quorum=1
            ) as ledger:
                await ledger.append(b"entry")
                made.append(int(ledger.ledger_id))
        return made

    async def passes(self, count: int = 1) -> int:
        return sum([await self.server.collector.collect() for _ in range(count)])

    def holds(self, ledger_id: int) -> bool:
        return bool(self.server.storage.held(ledger_id))

    async def forget_record(self, ledger_id: int) -> None:
        """As Java deletes: without a tombstone."""
        await self.store.delete(OF_LEDGERS.key(ledger_id))

    async def restart(self) -> None:
        name = await self.cluster.stop_bookie(self.server.bookie_id)
        await self.cluster.start_bookie(name)

    async def kept(self) -> dict[str, bytes]:
        """A backup of the records and of what collectors wrote."""
        found: dict[str, bytes] = {}
        for prefix in ("ledgers/", "tombstones/", "passes/", "watermarks/"):
            found |= {key: value.value for key, value in await self.store.list(prefix)}
        return found

    async def put_back(self, backup: dict[str, bytes]) -> None:
        """The store as it was."""
        now = await self.kept()
        for key in now.keys() - backup.keys():
            await self.store.delete(key)
        for key, value in backup.items():
            found = await self.store.get(key)
            op: Op = Create(key, value) if found is None else Put(key, value, found.version)
            await self.store.multi((op,))

    @property
    def unknown(self) -> list[int]:
        return self.server.collector.orphans(-1)["unknown"]


@asynccontextmanager
async def one_collector(directory: Path, **settings: Any) -> AsyncIterator[At]:
    """One bookie without delays, and a client."""
    usual = {"garbage_seconds": 0, "tombstone_seconds": 0}
    async with small_cluster(directory, bookies=1, **(usual | settings)) as cluster:
        at = At(cluster, await cluster.client())
        yield at
        await at.store.close()

"""Real bookies in this process, each in its own directory, over a metadata store in memory."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from quire.bookie.config import BookieConfig
from quire.bookie.server import BookieServer
from quire.client.bookies.bookies import BookieClient
from quire.client.client import Client
from quire.client.config import ClientConfig
from quire.core.ids import BookieId
from quire.env.real import RealClock
from quire.metadata.bookies import BookieRegistry
from quire.metadata.memory import MemorySpace, MemoryStore
from quire.storage.config import StorageConfig
from support.records import create_records

SEGMENT_BYTES = 4 * 1024 * 1024

SOON = ClientConfig(explicit_lac_after_ms=300)
"""A test that waits for the last entry of an idle writer need not wait for seconds."""


class SmallCluster:
    """Some bookies and as many clients as asked for, each client with connections of its own."""

    def __init__(self, directory: Path, **settings: Any) -> None:
        self.directory = directory
        self.settings = settings
        self.space = MemorySpace()
        self.servers: dict[BookieId, BookieServer] = {}
        self.clients: list[Client] = []

    async def start_bookie(
        self, name: str, kind: type[BookieServer] = BookieServer, **settings: Any
    ) -> BookieServer:
        usual = {"storage": StorageConfig(segment_bytes=SEGMENT_BYTES)}
        config = BookieConfig(
            directory=self.directory / name, name=name, **(usual | self.settings | settings)
        )
        server = kind(config, MemoryStore(self.space))
        await server.start()
        self.servers[server.bookie_id] = server
        return server

    async def stop_bookie(self, bookie: BookieId, *, clean: bool = True) -> str:
        """Stop a bookie; returns the name to start it with again."""
        server = self.servers.pop(bookie)
        await server.stop(clean=clean)
        await server.store.close()
        return server.config.name

    async def client(self, config: ClientConfig | None = None) -> Client:
        store = MemoryStore(self.space)
        config = config or SOON
        bookies = BookieClient(
            BookieRegistry(store),
            store.instance_id,
            protocol=config.protocol,
            protocol_of=config.protocol_of,
            frame_bytes_max=config.frame_bytes_max,
            security=config.security,
            short_circuit_reads=config.short_circuit_reads,
        )
        await bookies.start()
        client = Client(store, bookies, RealClock(), random.Random(1 + len(self.clients)), config)
        self.clients.append(client)
        return client

    async def close(self) -> None:
        for client in self.clients:
            await client.close()
        for bookie in list(self.servers):
            await self.stop_bookie(bookie)


@asynccontextmanager
async def small_cluster(
    directory: Path,
    bookies: int = 3,
    kind: type[SmallCluster] = SmallCluster,
    *,
    records: Iterable[int] = (),
    **settings: Any,
) -> AsyncIterator[SmallCluster]:
    """`async with small_cluster(tmp_path) as cluster`: bookies b1, b2, … are up, with these settings.

    `kind`: the cluster, with what else a test needs. `records`: ledgers that tests speak of to bookies without having
    created them.
    """
    cluster = kind(directory, **settings)
    try:
        for number in range(1, bookies + 1):
            await cluster.start_bookie(f"b{number}")
        await create_records(MemoryStore(cluster.space), records)
        yield cluster
    finally:
        await cluster.close()

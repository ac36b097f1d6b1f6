"""A small cluster in this process for tests of logs: three real bookies, a memory store, a client."""

from __future__ import annotations

import contextlib
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quire.bookie.config import BookieConfig
from quire.bookie.server import BookieServer
from quire.client.bookies.bookies import BookieClient
from quire.core.log.list import LogItem, LogSettings
from quire.env.real import RealClock
from quire.log.client import QuireClient
from quire.log.config import LogConfig
from quire.log.heads import LogHeads
from quire.log.log import Log
from quire.log.records import Record
from quire.log.staging import StagedBy, stage
from quire.metadata.bookies import BookieRegistry
from quire.metadata.memory import MemoryStore
from quire.metadata.store import MetadataStore
from quire.storage.config import StorageConfig
from quire.wire.batch import encode_batch

SMALL = StorageConfig(segment_bytes=4 * 1024 * 1024)
LIMIT_S = 30
FAST = LogConfig(back_off_ms_min=1, back_off_ms_max=20, page_items=2, fan_out=2)
BY = StagedBy("query-1", 0, partition=0, attempt=0, host="here")


@dataclass
class World:
    """Three bookies and a client."""

    store: MetadataStore
    client: QuireClient
    bookies: list[BookieServer]

    def log(self, name: str = "orders", config: LogConfig = FAST, password: bytes = b"") -> Log:
        return self.client.log(name, password, config)

    async def made(self, name: str = "orders", config: LogConfig = FAST, **settings: Any) -> Log:
        log = self.log(name, config)
        await log.create(**settings)
        return log

    async def ledgers(self) -> list[int]:
        return [int(ledger) async for ledger in self.client.ledgers()]


@contextlib.asynccontextmanager
async def world(directory: Path, store: MetadataStore | None = None) -> AsyncIterator[World]:
    store = store or MemoryStore()
    bookies = [
        BookieServer(
            BookieConfig(directory=directory / f"b{n}", name=f"b{n}", storage=SMALL, garbage_seconds=0), store
        )
        for n in range(3)
    ]
    for bookie in bookies:
        await bookie.start()
    connections = BookieClient(BookieRegistry(store), store.instance_id)
    await connections.start()
    client = QuireClient(store, connections, RealClock(), random.Random(7))
    try:
        yield World(store, client, bookies)
    finally:
        await client.close()
        for bookie in bookies:
            await bookie.stop()


async def log_id_of(at: World, name: str = "orders") -> bytes:
    found = await LogHeads(at.store).find(name)
    assert found is not None
    return found


async def staged(
    at: World, values_: list[bytes], name: str = "orders", by: StagedBy = BY, time_ms: int = 5
) -> LogItem:
    """What one task writes."""
    ledger = await stage(at.client, await log_id_of(at, name), LogSettings(), by)
    await ledger.append(encode_batch(values_, base_ms=time_ms))
    return await ledger.close(len(values_), time_ms, time_ms)


async def values(log: Log, start: int | None = None, end: int | None = None) -> list[bytes | None]:
    return [record.value async for record in log.read(start, end)]


async def take(records: AsyncIterator[Record], count: int) -> list[Record]:
    found: list[Record] = []
    async with contextlib.aclosing(records) as open_records:  # type: ignore[type-var]
        async for record in open_records:
            found.append(record)
            if len(found) == count:
                break
    return found


def numbers(first: int, end: int) -> list[bytes]:
    return [b"%d" % n for n in range(first, end)]

"""The drivers of the metadata store and what their tests share."""

import asyncio
from contextlib import asynccontextmanager

from quire.metadata.memory import MemorySpace, MemoryStore
from quire.metadata.sqlite import SqliteStore
from quire.metadata.sqlite_options import SqliteOptions

TIMEOUT_MS = 20_000
"""So long that no session of a busy machine expires by itself; tests of expiry bring their own."""
SHORT_TIMEOUT_MS = 500
PATIENCE_S = 30


class MemoryDriver:
    """Clients of one space in this process."""

    def __init__(self, folder):
        self.space = MemorySpace()

    async def open(self, **options):
        return MemoryStore(self.space)


class SqliteDriver:
    """Clients of one file, in this process and in others."""

    def __init__(self, folder):
        self.path = folder / "metadata.db"

    async def open(self, **options):
        options = SqliteOptions(**({"session_timeout_ms": TIMEOUT_MS} | options))
        return await SqliteStore.open(self.path, create=True, options=options)


DRIVERS = {"memory": MemoryDriver, "sqlite": SqliteDriver}


def run(scenario):
    async def bounded():
        async with asyncio.timeout(PATIENCE_S):
            return await scenario

    return asyncio.run(bounded())


@asynccontextmanager
async def clients(driver, count, **options):
    stores = [await driver.open(**options) for _ in range(count)]
    try:
        yield stores
    finally:
        for store in stores:
            await store.close()


async def until(condition):
    while not await condition():
        await asyncio.sleep(0.005)


async def gone(store, key):
    async with store.watch(key) as changes:
        async for _ in changes:
            if await store.get(key) is None:
                return


async def collect(changes, wanted):
    seen = set()
    while not wanted <= seen:
        keys = await anext(changes)
        assert not keys.reread_all
        seen |= keys
    return seen


async def present(store, key, value):
    found = await store.get(key)
    return found is not None and found.value == value

"""The drivers of the metadata store and what their tests share."""

import asyncio
import uuid
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from kazoo.client import KazooClient

from quire.metadata.etcd.connection import REVOKE
from quire.metadata.etcd.options import EtcdAddress, EtcdOptions
from quire.metadata.etcd.store import EtcdStore
from quire.metadata.memory import MemorySpace, MemoryStore
from quire.metadata.sqlite.file import SqliteOptions
from quire.metadata.sqlite.store import SqliteStore
from quire.metadata.zookeeper.options import ZookeeperAddress, ZookeeperOptions
from quire.metadata.zookeeper.store import ZookeeperStore
from quire.wire.proto.etcd_pb2 import LeaseRevokeRequest
from support.etcd_server import etcd_or_skip
from support.sqlite_inside import on_its_thread, thread_of
from support.zookeeper_server import zookeeper_or_skip

TIMEOUT_MS = 20_000
"""So long that no session of a busy machine expires by itself; tests of expiry bring their own."""
SHORT_TIMEOUT_MS = 500


class Driver:
    """What tests need of a driver besides opening clients.

    Attributes:
        versions_restart: a key that was deleted and made again begins with an old version.
        mortal_timeout_ms: a session's timeout for tests in which an owner dies: beyond all patience where death itself
            is noticed, short where only silence is.
        short_timeout_ms: a session's timeout for tests that end one themselves.
        ops_max: how many operations one multi-operation may have.
    """

    ops_max = 1000

    versions_restart = False
    mortal_timeout_ms = 600_000
    short_timeout_ms = SHORT_TIMEOUT_MS

    async def lose_session(self, owner, other):
        """What an owner meets that stood still for too long, done at once."""
        raise NotImplementedError

    async def kill(self, store):
        """End a client as SIGKILL would; when this returns everybody may know."""
        store.abandon()


class MemoryDriver(Driver):
    """Clients of one space in this process."""

    def __init__(self, folder):
        self.space = MemorySpace()

    async def open(self, **options):
        return MemoryStore(self.space)

    async def lose_session(self, owner, other):
        owner.lose_session()


class SqliteDriver(Driver):
    """Clients of one file, in this process and in others."""

    def __init__(self, folder):
        self.path = folder / "metadata.db"

    async def open(self, **options):
        options = SqliteOptions(**({"session_timeout_ms": TIMEOUT_MS} | options))
        return await SqliteStore.open(self.path, create=True, options=options)

    async def lose_session(self, owner, other):
        # What an observer does when the counter stands still.
        thread, name = thread_of(other), thread_of(owner).registrations._session.name
        number = thread_of(owner).registrations._number
        await on_its_thread(other, lambda: thread.file.end_session(number, name), changes=True)


class ZookeeperDriver(Driver):
    """Clients of one cluster in a real ZooKeeper, which tests share."""

    versions_restart = True
    mortal_timeout_ms = 1500
    short_timeout_ms = TIMEOUT_MS

    def __init__(self, folder, layout=None):
        self.server = zookeeper_or_skip()
        self.address = ZookeeperAddress((self.server.host,), f"/t{uuid.uuid4().hex}/ledgers", layout)

    async def open(self, **options):
        options = ZookeeperOptions(**({"session_timeout_ms": TIMEOUT_MS} | options))
        return await ZookeeperStore.open(replace(self.address, options=options), create=True)

    async def lose_session(self, owner, other):
        await asyncio.to_thread(end_session, self.server.host, owner._session.client.client_id)

    async def kill(self, store):
        session = store._session.client.client_id
        store.abandon()
        await asyncio.to_thread(end_session, self.server.host, session)


class EtcdDriver(Driver):
    """Clients of one cluster in a real etcd, which tests share."""

    mortal_timeout_ms = 2000
    short_timeout_ms = TIMEOUT_MS
    ops_max = 100

    def __init__(self, folder):
        self.server = etcd_or_skip()
        self.address = EtcdAddress((self.server.host,), f"/t{uuid.uuid4().hex}/ledgers")

    async def open(self, **options):
        options = EtcdOptions(**({"session_timeout_ms": TIMEOUT_MS} | options))
        return await EtcdStore.open(replace(self.address, options=options), create=True)

    async def lose_session(self, owner, other):
        await revoke(other, owner._registrations.lease)

    async def kill(self, store):
        lease = store._registrations.lease
        store.abandon()
        if lease:
            async with await self.open() as other:
                await revoke(other, lease)


async def revoke(store, lease):
    """End a client's session: it learns of it by its keys, or when it next keeps the lease alive."""
    await store._connection.read(REVOKE, LeaseRevokeRequest(ID=lease))


def end_session(host, client_id):
    """Take a session over and close it: its owner learns that it is gone when it next speaks."""
    thief = KazooClient(hosts=host, client_id=client_id)
    thief.start()
    thief.stop()
    thief.close()


DRIVERS = {"memory": MemoryDriver, "sqlite": SqliteDriver, "zookeeper": ZookeeperDriver, "etcd": EtcdDriver}
EACH_DRIVER = [
    pytest.param(name, marks=pytest.mark.interop if name in {"zookeeper", "etcd"} else ()) for name in DRIVERS
]


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

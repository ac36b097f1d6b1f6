"""An etcd store behind a proxy that fails like a network."""

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace

from conformance.metadata_drivers import clients
from quire.metadata.etcd import EtcdStore
from quire.metadata.etcd_options import EtcdOptions
from support.rounds import PROOF
from support.tcp_proxy import tcp_proxy

SESSION_MS = 10_000 if PROOF else 2000
PARTITION_S = 30 if PROOF else 5
PATIENCE_S = 120


def run(scenario):
    async def bounded():
        async with asyncio.timeout(PATIENCE_S):
            return await scenario

    return asyncio.run(bounded())


@asynccontextmanager
async def behind_proxy(driver, **options):
    """A store that a test may cut off, and one that it may not."""
    host, port = driver.server.host.split(":")
    async with clients(driver, 1) as (other,), tcp_proxy(host, int(port)) as proxy:
        options = EtcdOptions(**({"session_timeout_ms": SESSION_MS} | options))
        address = replace(driver.address, hosts=(f"127.0.0.1:{proxy.port}",), options=options)
        store = await EtcdStore.open(address)
        try:
            yield store, other, proxy
        finally:
            await store.close()

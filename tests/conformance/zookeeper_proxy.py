"""A ZooKeeper store behind a proxy that fails like a network."""

from dataclasses import replace

from conformance.proxied import behind
from quire.metadata.zookeeper.options import ZookeeperOptions
from quire.metadata.zookeeper.store import ZookeeperStore
from support.rounds import FULL

SESSION_MS = 10_000 if FULL else 1500
PARTITION_S = 30 if FULL else 4


def via(address, proxy, **options):
    """The same cluster through a proxy."""
    options = ZookeeperOptions(**({"session_timeout_ms": SESSION_MS} | options))
    return replace(address, hosts=(f"127.0.0.1:{proxy.port}",), options=options)


def behind_proxy(driver, **options):
    """A store that a test may cut off, and one that it may not."""
    return behind(driver, lambda proxy: ZookeeperStore.open(via(driver.address, proxy, **options)))

"""An etcd store behind a proxy that fails like a network."""

from dataclasses import replace

from conformance.proxied import behind
from quire.metadata.etcd.options import EtcdOptions
from quire.metadata.etcd.store import EtcdStore
from support.rounds import FULL

SESSION_MS = 10_000 if FULL else 2000
PARTITION_S = 30 if FULL else 5


def behind_proxy(driver, **options):
    """A store that a test may cut off, and one that it may not."""
    options = EtcdOptions(**({"session_timeout_ms": SESSION_MS} | options))

    def through(proxy):
        return EtcdStore.open(replace(driver.address, hosts=(f"127.0.0.1:{proxy.port}",), options=options))

    return behind(driver, through)

"""From a cluster's URI to a client: opens the metadata store, finds the bookies, and undoes both on failure."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from quire.client.bookies.bookies import BookieClient
from quire.client.client import Client
from quire.client.config import ClientConfig
from quire.client.opening import Opening
from quire.core.errors import NoClusterError
from quire.core.ledger.placement import RandomSource
from quire.env.interfaces import Clock
from quire.env.real import RealClock, keep_freed_memory
from quire.metadata.bookies import BookieRegistry
from quire.metadata.connect import open_store
from quire.metadata.store import MetadataStore
from quire.net.security.settings import ClientSecurity

CLUSTER_VARIABLE = "QUIRE_CLUSTER"
SECURITY_VARIABLE = "QUIRE_SECURITY"
"""Names the file with TLS and the password for bookies; see `docs/security.md`."""

C = TypeVar("C", bound=Client)
MakeClient = Callable[[MetadataStore, BookieClient, Clock, RandomSource, ClientConfig], C]


def security_of_environment() -> ClientSecurity | None:
    """What the file says that `QUIRE_SECURITY` names; None if it names none.

    Raises:
        MisuseError: there is no such file, or it says something that is not known.
    """
    path = os.environ.get(SECURITY_VARIABLE)
    return ClientSecurity.load(Path(path)) if path else None


class Connecting(Opening[C]):
    """What `quire.connect` returns: `async with` it, or `await` it and close the client yourself.

    Args:
        uri: the cluster; None takes the environment's `QUIRE_CLUSTER`.
        make: the client's class.
        config: settings.
    """

    def __init__(self, uri: str | None, make: MakeClient[C], config: ClientConfig | None = None) -> None:
        self._uri = uri
        self._make = make
        self._config = config or ClientConfig()
        super().__init__(self._connect)

    async def _connect(self) -> C:
        uri = self._uri or os.environ.get(CLUSTER_VARIABLE)
        if not uri:
            msg = f"no cluster is named: pass its URI, or set {CLUSTER_VARIABLE} (for example sqlite:PATH)"
            raise NoClusterError(msg)
        security = self._config.security or security_of_environment()
        store = await open_store(uri)
        keep_freed_memory()
        try:
            bookies = BookieClient(
                BookieRegistry(store),
                store.instance_id,
                protocol=self._config.protocol,
                protocol_of=self._config.protocol_of,
                frame_bytes_max=self._config.frame_bytes_max,
                security=security,
                short_circuit_reads=self._config.short_circuit_reads,
            )
            await bookies.start()
        except BaseException:
            await store.close()
            raise
        client = self._make(store, bookies, RealClock(), random.SystemRandom(), self._config)
        client.close_with_loop()
        return client

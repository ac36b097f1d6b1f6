"""What commands that look inside a cluster need: its records, its registrations, its bookies."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from quire.client.bookies.bookies import BookieClient
from quire.client.connecting import security_of_environment
from quire.metadata.bookies import BookieRegistry
from quire.metadata.connect import open_store
from quire.metadata.records import AllRecords

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from quire.metadata.store import MetadataStore


@dataclass(slots=True)
class Toolbox:
    """The parts of a client with which commands look into a cluster."""

    store: MetadataStore
    records: AllRecords
    registry: BookieRegistry
    bookies: BookieClient


@asynccontextmanager
async def open_toolbox(uri: str) -> AsyncIterator[Toolbox]:
    """Connect to the cluster's metadata; bookies are connected to when they are asked something."""
    store = await open_store(uri)
    try:
        registry = BookieRegistry(store)
        bookies = BookieClient(registry, store.instance_id, security=security_of_environment())
        try:
            yield Toolbox(store, AllRecords(store), registry, bookies)
        finally:
            await bookies.close()
    finally:
        await store.close()

"""What commands that look inside a cluster need: its records, its registrations, its bookies."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from quire.client.access import LedgerAccess
from quire.client.bookies import BookieClient
from quire.core.answers import Answer
from quire.metadata.bookies import BookieRegistry
from quire.metadata.connect import open_store
from quire.metadata.ledgers import LedgerStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from quire.core.ledger_metadata import LedgerMetadata
    from quire.metadata.store import MetadataStore


@dataclass(slots=True)
class Toolbox:
    """One cluster, opened for looking."""

    store: MetadataStore
    ledgers: LedgerStore
    registry: BookieRegistry
    bookies: BookieClient


@asynccontextmanager
async def open_toolbox(uri: str) -> AsyncIterator[Toolbox]:
    """Connect to the cluster's metadata; bookies are connected to when they are asked something."""
    store = await open_store(uri)
    try:
        registry = BookieRegistry(store)
        bookies = BookieClient(registry, store.instance_id)
        try:
            yield Toolbox(store, LedgerStore(store), registry, bookies)
        finally:
            await bookies.close()
    finally:
        await store.close()


async def clear_limbo(tools: Toolbox, record: LedgerMetadata) -> tuple[list[str], list[str]]:
    """Let every bookie of a recovered ledger vouch for it again.

    Args:
        tools: the cluster.
        record: the ledger's record, CLOSED: recovery has written back what lay in doubt.

    Returns:
        The bookies whose doubts ended, and those that could not be asked.
    """
    access = LedgerAccess.of(record)
    cleared, silent = [], []
    for bookie in dict.fromkeys(bookie for fragment in record.fragments for bookie in fragment.ensemble):
        answer, facts = await tools.bookies.info(bookie, access)
        if answer is Answer.OK and not facts.get("limbo"):
            continue
        if answer is Answer.OK:
            answer = await tools.bookies.clear_limbo(bookie, access)
            if answer is Answer.OK:
                cleared.append(str(bookie))
                continue
        silent.append(str(bookie))
    return cleared, silent

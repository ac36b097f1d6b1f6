"""All that a log's records name at one moment, and deletion of what they do not name, proven in the deletion.

The proof: everything that the head of one version names was looked through, and the ledger's record or the page goes
only if the head still has that version. No list can adopt the ledger afterwards, because a commit requires the records
of the ledgers that it lists. Nor the page: its deletion gives the head another version, so a client that was about to name it
reads again, and stores its pages anew.

Source: docs/spark-sink.md, "Exactly once: how": a deletion proves itself.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import Final

from quire.core.errors import (
    CorruptMetadataError,
    NoSuchLedgerError,
    NoSuchLogError,
)
from quire.core.log.list import ItemLocation, LogHead, LogItem, PageRef
from quire.log.heads import HEADS, LogHeads
from quire.metadata.records import RecordStore
from quire.metadata.retries import LOST, StoreRetries
from quire.metadata.store import MetadataStore, Require, StoreBusyError

_TRIES: Final = 20


@dataclass(slots=True)
class Listing:
    """Everything that a log's records name at one moment.

    Attributes:
        version: of the head; None when there is no such log.
        head: as it was then.
        ledgers: in items, waiting adoptions, intents and pages.
        pages: their names.
    """

    version: int | None = None
    head: LogHead | None = None
    ledgers: set[int] = field(default_factory=set)
    pages: set[str] = field(default_factory=set)

    def note(self, items: tuple[LogItem, ...]) -> None:
        """These are named; what is only in the archive has no ledger any more."""
        self.ledgers.update(item.ledger_id for item in items if item.location is not ItemLocation.ARCHIVE)


async def read_listing(store: MetadataStore, heads: LogHeads, log_id: bytes) -> Listing | None:
    """Everything that a log's records name, None when they cannot be read now. A log that is deleted names nothing."""
    if await store.get(HEADS + log_id.hex()) is None:
        return Listing()
    try:
        found = await heads.read(log_id)
        if found is None:
            return None
        head, version = found
        listing = Listing(version, head)
        listing.note(head.items)
        for adoption in head.adoptions:
            listing.note(adoption.items)
        for intent in head.intents:
            listing.note(intent.items)
        for page in (*head.pages, *(page for intent in head.intents for page in intent.pages)):
            await _walk(heads, head, page, listing)
    except (CorruptMetadataError, NoSuchLogError):
        return None
    return listing


async def _walk(heads: LogHeads, head: LogHead, page: PageRef, listing: Listing) -> None:
    listing.pages.add(page.name)
    stored = await heads.read_page(head.log_id, page.name)
    if stored is None and page.next_offset <= head.start_offset:
        return  # truncated: what it named is deleted, or in an intent
    if stored is None:
        msg = f"page {page.name} of log {head.name!r} is missing, and the list names it"
        raise CorruptMetadataError(msg, log=head.name, page=page.name)
    listing.note(stored.items)
    for child in stored.children:
        await _walk(heads, head, child, listing)


async def delete_unlisted(
    store: MetadataStore,
    records: RecordStore,
    heads: LogHeads,
    log_id: bytes,
    ledger_id: int,
    *,
    looks: bool = True,
) -> bool:
    """Delete a ledger if its log does not name it, at the moment of the deletion.

    Args:
        store: the metadata store.
        records: the ledgers' records in it.
        heads: the logs' records.
        log_id: the log that the ledger was made for.
        ledger_id: the ledger; a missing one counts as deleted.
        looks: False deletes without looking whether the log names it: for a test that shows what is lost then.

    Returns:
        Whether it is deleted. False: it is listed, or that is unknown now.
    """

    async def once() -> bool:
        guards: tuple[Require, ...] = ()
        if looks:
            listing = await read_listing(store, heads, log_id)
            if listing is None or ledger_id in listing.ledgers:
                return False
            guards = (Require(HEADS + log_id.hex(), listing.version),)
        with contextlib.suppress(NoSuchLedgerError):
            await records.delete(ledger_id, guards=guards)
        return True

    retried = (*LOST, StoreBusyError)
    with contextlib.suppress(*retried):
        return await StoreRetries(_TRIES).until_in(once, retried)
    return False


async def delete_unlisted_page(store: MetadataStore, heads: LogHeads, log_id: bytes, name: str) -> bool:
    """Delete a page if its log does not name it, at the moment of the deletion.

    Returns:
        Whether it is deleted. False: it is named, or that is unknown now.
    """

    async def once() -> bool:
        listing = await read_listing(store, heads, log_id)
        if listing is None or name in listing.pages:
            return False
        if listing.head is None or listing.version is None:
            await heads.remove_page(log_id, name)  # ids of logs are never used again
        else:
            await heads.remove_unnamed_page(listing.head, listing.version, name)
        return True

    retried = (*LOST, StoreBusyError)
    with contextlib.suppress(*retried):
        return await StoreRetries(_TRIES).until_in(once, retried)
    return False

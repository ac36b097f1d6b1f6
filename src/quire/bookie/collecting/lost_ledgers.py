"""The search for ledgers of which a bookie may have lost every trace: it names them by the records of all ledgers.

Source: `docs/protocol/bookie.md`, "Limbo".
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import Final

from quire.bookie.collecting.disk_work import settle
from quire.bookie.ledgers.ledgers import Ledgers
from quire.bookie.ledgers.unknown_ledgers import recorded_key
from quire.core.bookie.ledger import LedgerFacts
from quire.core.errors import CorruptMetadataError, QuireError
from quire.core.ids import BookieId, LedgerId
from quire.core.settings import doubled
from quire.metadata.records import AllRecords, ListedRecord
from quire.storage.ledger_storage import LedgerStorage
from quire.storage.segments.segment import CALL_TAG

log = logging.getLogger(__name__)

PAUSE_SECONDS: Final = 1.0
PAUSE_SECONDS_MAX: Final = 60.0


class LostLedgers:
    """One bookie's search for the ledgers whose entries it may have lost.

    Args:
        bookie_id: which records name it.
        records: of all ledgers and streams.
        storage: its disk, which knows since its start whether ledgers may be lost without a trace.
        ledgers: takes those that are named.

    Attributes:
        unknown: until the search has ended, for a ledger that the bookie does not know the response is "unknown".
    """

    def __init__(
        self,
        bookie_id: BookieId,
        records: AllRecords,
        storage: LedgerStorage,
        ledgers: Ledgers,
    ) -> None:
        self._bookie_id = bookie_id
        self._records = records
        self._storage = storage
        self._ledgers = ledgers
        self.unknown = storage.report.unknown_in_limbo

    async def search(self) -> None:
        """Put every ledger in limbo that may be lost; then responses about others are conclusive again.

        Raises:
            StorageError: the disk has failed. A full one is waited for.
        """
        after: LedgerId | None = None
        whole, pause = False, PAUSE_SECONDS
        while not whole:
            try:
                page, whole = await self._records.page(after)
                await asyncio.gather(*map(self._enter_limbo, page))
                if whole:
                    await self._all_are_named()
            except QuireError as error:
                if self._storage.failure is not None:
                    raise
                whole = False
                log.warning(
                    "the search for ledgers that may be lost failed: %s; the bookie tries again", error
                )
                await asyncio.sleep(pause)
                pause = doubled(pause, PAUSE_SECONDS_MAX)
            else:
                after = page[-1].ledger_id if page else after
        self.unknown = False

    async def _all_are_named(self) -> None:
        """Have the disk know that the search has ended."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._storage.clear_unnamed_limbo(CALL_TAG, partial(settle, done))
        self._storage.flush()
        await done

    async def _enter_limbo(self, listed: ListedRecord) -> None:
        """Put a ledger in limbo if its record names this bookie, or cannot be read: the bookies of that one are unknown."""
        ledger_id = listed.ledger_id
        if self._storage.facts(ledger_id) is not None:
            return
        facts = LedgerFacts(ledger_id)
        try:
            record = listed.parsed()
            if not self._ledgers.limbo.enters_limbo(record, self._bookie_id):
                return
            says = recorded_key(record)
            facts = LedgerFacts(ledger_id, says.key, says.token, term=record.term)
        except CorruptMetadataError as error:
            log.warning(
                "ledger %d gets no negative responses from bookie %s: %s", ledger_id, self._bookie_id, error
            )
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._ledgers.put_in_limbo(facts, partial(settle, done))
        await done

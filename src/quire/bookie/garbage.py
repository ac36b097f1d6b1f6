"""Drops the entries of ledgers whose record is gone from the metadata store, on proof and slowly.

A ledger goes only when a point read says twice, a grace time apart, that its record does not exist, in the very
store this bookie belongs to; a pass that would drop a large share of all ledgers stops and says so. A listing that is
short or fails deletes nothing: a listing only says which ledgers need not be looked at.

Source: overview (002), "Bookkeeper metadata management": bookies "cleanup ledgers that get deleted".
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from quire.bookie.config import BookieConfig
from quire.bookie.ledgers import Ledgers
from quire.core.errors import NoSuchLedgerError, QuireError
from quire.core.ids import BookieId, LedgerId
from quire.env.interfaces import Clock
from quire.metadata.ledgers import LedgerStore
from quire.storage.ledger_storage import LedgerStorage

log = logging.getLogger(__name__)

SHARE_MAX = 0.2
COUNT_ALWAYS = 100
"""So many ledgers may go in one pass whatever their share is: small clusters delete everything now and then."""


class GarbageCollector:
    """One bookie's collector; `run` never ends."""

    def __init__(
        self,
        config: BookieConfig,
        bookie_id: BookieId,
        storage: LedgerStorage,
        ledgers: Ledgers,
        records: LedgerStore,
    ) -> None:
        self._config = config
        self._bookie_id = bookie_id
        self._storage = storage
        self._ledgers = ledgers
        self._records = records
        self._gone_since: dict[int, int] = {}

    async def run(self, clock: Clock) -> None:
        """Make a pass every `garbage_seconds`."""
        if not self._config.garbage_seconds:
            return
        while True:
            await asyncio.sleep(self._config.garbage_seconds)
            try:
                await self.collect(clock.now_ms(), clock.wall_ms())
            except QuireError as error:
                log.warning(
                    "collecting deleted ledgers on %s: %s; the next pass tries again", self._bookie_id, error
                )

    async def collect(self, now_ms: int, wall_ms: int) -> int:
        """One pass.

        Args:
            now_ms: monotonic time, for the grace time.
            wall_ms: wall clock, for the tombstones.

        Returns:
            How many ledgers were dropped.

        Raises:
            QuireError: the metadata store did not answer; nothing was dropped on the strength of that.
        """
        alive = [facts.ledger_id for facts in self._storage.all_facts() if not facts.deleted_until_ms]
        gone = await self._gone(alive)
        self._gone_since = {ledger_id: self._gone_since.get(ledger_id, now_ms) for ledger_id in gone}
        grace_ms = int(self._config.garbage_grace_seconds * 1000)
        due = [ledger_id for ledger_id, since in self._gone_since.items() if now_ms - since >= grace_ms]
        if len(due) > max(COUNT_ALWAYS, SHARE_MAX * len(alive)):
            log.error(
                "%d of %d ledgers on %s have no record any more: too many to be true, nothing is dropped. Check that the "
                "metadata store is the right one",
                len(due),
                len(alive),
                self._bookie_id,
            )
            return 0
        until = wall_ms + int(self._config.tombstone_seconds * 1000)
        for ledger_id in due:
            self._ledgers.delete(ledger_id, until)
            del self._gone_since[ledger_id]
        self._storage.reclaim()
        return len(due)

    async def _gone(self, ledger_ids: Iterable[int]) -> list[int]:
        """Those that a point read does not find. What a listing shows is there, which spares all other reads."""
        unseen = set(ledger_ids)
        page = await self._records.list()
        while page and unseen:
            unseen.difference_update(page)
            page = await self._records.list(page[-1])
        gone = []
        for ledger_id in sorted(unseen):
            try:
                await self._records.read(LedgerId(ledger_id))
            except NoSuchLedgerError:
                gone.append(ledger_id)
        return gone

"""A bookie drops over-replicated entries: what it holds of ledgers whose records do not give it to the bookie.

`core/bookie/over_replication.py` says which entries are over-replicated, and what has to be known before they go. Here
are the looks at the records, in passes of the collector: a pass looks at so many ledgers for the first time, and finishes
with those whose grace period is over.

Source: docs/protocol/collection.md, "Over-replicated entries".
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple, TypeAlias

from quire.bookie.collecting.disk_work import settle
from quire.bookie.ledgers.ledgers import Ledgers
from quire.core.bookie.over_replication import (
    OverReplicatedRange,
    RecordLook,
    is_listed,
    may_drop_over_replicated,
    over_replicated_ranges,
)
from quire.core.bookie.rules import BookieRules
from quire.core.errors import CorruptMetadataError, NoSuchLedgerError, StorageError
from quire.core.ids import BookieId, LedgerId
from quire.core.ledger.metadata import LedgerMetadata
from quire.core.ledger.replica import Replica
from quire.core.ledger.stripes import HeldInterval, joined_stretches
from quire.env.interfaces import Clock
from quire.metadata.records import RecordStore
from quire.storage.ledger_storage import LedgerStorage

log = logging.getLogger(__name__)

LOOKED_AT_MAX: Final = 1000
"""Ledgers that one pass looks at for the first time, each a read of the metadata store."""
NAMED_MAX: Final = 20
"""So many of the ledgers of which one pass drops something have a line of the log each."""


MemberLists: TypeAlias = Callable[[LedgerMetadata, Sequence[BookieId]], Awaitable[Mapping[BookieId, Replica]]]
"""Asks bookies what they hold of a ledger: the lists of those that gave one."""


async def no_lists(
    record: LedgerMetadata,  # noqa: ARG001 - the shape of `MemberLists`
    members: Sequence[BookieId],  # noqa: ARG001
) -> Mapping[BookieId, Replica]:
    """No bookie can be asked: entries that need a list of another bookie stay."""
    return {}


class LookedAt(NamedTuple):
    """A first look at a ledger's record, and when that was."""

    look: RecordLook
    at_ms: int


@dataclass(slots=True)
class OverReplicationReport:
    """What operators are shown of over-replicated entries.

    Attributes:
        dropped: ledgers of which something was dropped, by this process.
        kept: those that had their last look and kept what is over-replicated, by this process.
    """

    dropped: int = 0
    kept: int = 0


class OverReplicationCollector:
    """Drops one bookie's over-replicated entries.

    Args:
        bookie_id: whose.
        storage: its disk.
        ledgers: drops there.
        records: of all ledgers.
        clock: for the grace period.
        grace_ms: between a first look and the pending deletion.
        rules: the protocol's rules (`core/rules.py`).

    Attributes:
        report: what operators are shown.
        lists: asks other bookies what they hold.
        waiting: by ledger, its first look.
        kept: ledgers of which the last look kept what is over-replicated.
    """

    def __init__(
        self,
        bookie_id: BookieId,
        storage: LedgerStorage,
        ledgers: Ledgers,
        records: RecordStore,
        clock: Clock,
        grace_ms: int,
        rules: BookieRules,
    ) -> None:
        self._bookie_id = bookie_id
        self._storage = storage
        self._ledgers = ledgers
        self._records = records
        self._clock = clock
        self._grace_ms = grace_ms
        self._rules = rules
        self._after = -1
        self.report = OverReplicationReport()
        self.lists: MemberLists = no_lists
        self.waiting: dict[int, LookedAt] = {}
        self.kept: set[int] = set()

    async def collect(self) -> None:
        """One pass.

        Raises:
            QuireError: the metadata store did not respond, or the disk failed; what was not dropped is found again.
        """
        due_ms = self._clock.now_ms() - self._grace_ms
        self.kept = {ledger_id for ledger_id in self.kept if self._storage.last_entry(ledger_id) >= 0}
        due = [ledger_id for ledger_id, looked in self.waiting.items() if looked.at_ms <= due_ms]
        dropped = 0
        for ledger_id in due:
            looked = self.waiting.pop(ledger_id)
            self.kept.discard(ledger_id)
            if await self._finish(ledger_id, looked.look):
                dropped += 1
                if dropped <= NAMED_MAX:
                    log.info(
                        "bookie %s dropped over-replicated entries of ledger %d", self._bookie_id, ledger_id
                    )
        if dropped > NAMED_MAX:
            log.info(
                "bookie %s dropped such entries of %d more ledgers", self._bookie_id, dropped - NAMED_MAX
            )
        await self._look_for_more()

    async def _look_for_more(self) -> None:
        """First looks at the next ledgers, by id, and then from the beginning again."""
        held = list(self._storage.states.ledgers)
        held.sort()
        at = bisect_right(held, self._after)
        some = held[at : at + LOOKED_AT_MAX]
        self._after = some[-1] if len(some) == LOOKED_AT_MAX else -1
        for ledger_id in some:
            if ledger_id in self.waiting or self._storage.last_entry(ledger_id) < 0:
                continue
            through = self._storage.journal.last_lsn
            shown = await self._look(ledger_id, through)
            if shown is not None and self._held_of(ledger_id, shown[1].ranges):
                self.waiting[ledger_id] = LookedAt(shown[1], self._clock.now_ms())

    async def _look(self, ledger_id: int, through: int) -> tuple[LedgerMetadata, RecordLook] | None:
        """The record, and what of the ledger is over-replicated here; None where there is no record that says it."""
        try:
            record, notes, version = await self._records.read_with_notes(LedgerId(ledger_id))
        except (NoSuchLedgerError, CorruptMetadataError):
            return None  # the deletion of a ledger has proofs of its own
        token = self._storage.token(ledger_id)
        if token and record.token and token != record.token:
            return None  # another ledger has its id now
        ranges = over_replicated_ranges(record, notes, self._bookie_id, self._rules)
        return record, RecordLook(version, through, ranges)

    def _held_of(self, ledger_id: int, ranges: Sequence[OverReplicatedRange]) -> list[HeldInterval]:
        """What is here of some ranges."""
        if not ranges:
            return []
        first = min(one.first for one in ranges)
        held = self._storage.held_from(ledger_id, first)
        return [
            each for each in held if any(each.first <= one.last and each.last >= one.first for one in ranges)
        ]

    async def _finish(self, ledger_id: int, first: RecordLook) -> bool:
        """Set the deletion pending, ask the members, look for the last time, and drop; whether something was dropped."""
        storage = self._storage
        held = self._held_of(ledger_id, first.ranges)
        if not held or self._is_written(ledger_id, first):
            return False
        try:
            # Before the last look is asked for: who lists later does not count on them.
            for one in first.ranges:
                storage.drops.set_pending_deletion(ledger_id, one.first, one.last, first.through)
            shown = await self._look(ledger_id, first.through)
            if shown is None or shown[1].version != first.version:
                return False
            listed = await self._listed(shown[0], first.ranges, held)
            shown = await self._look(ledger_id, first.through)
            if shown is None:
                return False
            dropped = [
                one
                for one in first.ranges
                if may_drop_over_replicated(
                    first,
                    shown[1],
                    one,
                    written=self._is_written(ledger_id, first),
                    listed=one in listed,
                )
            ]
            if not self._held_of_any(held, dropped):
                self.report.kept += 1
                self.kept.add(ledger_id)
                return False
            await self._drop(ledger_id, first, dropped)
        finally:
            storage.drops.cancel_deletion(ledger_id)
        self.report.dropped += 1
        return True

    def _is_written(self, ledger_id: int, first: RecordLook) -> bool:
        """Whether something was put since the first look was asked for: that ends the pending deletion."""
        return self._storage.drops.written_since(ledger_id, first.through)

    @staticmethod
    def _held_of_any(held: Sequence[HeldInterval], ranges: Sequence[OverReplicatedRange]) -> bool:
        return any(each.first <= one.last and each.last >= one.first for each in held for one in ranges)

    async def _listed(
        self, record: LedgerMetadata, ranges: Sequence[OverReplicatedRange], held: Sequence[HeldInterval]
    ) -> list[OverReplicatedRange]:
        """The ranges whose members have listed what is held of them."""
        wanted = [one for one in ranges if one.members and self._held_of_any(held, [one])]
        members = sorted({member for one in wanted for member in one.members})
        lists = await self.lists(record, members) if members else {}
        # Of a range of which nothing is held there is nothing that a member could lack.
        return [one for one in ranges if is_listed(one, held, record, lists)]

    async def _drop(self, ledger_id: int, first: RecordLook, ranges: Sequence[OverReplicatedRange]) -> None:
        """Drop some ranges; returns when that is durable.

        Raises:
            StorageError: it is not.
        """
        done: list[asyncio.Future[None]] = []
        for low, high in joined_stretches((one.first, one.last) for one in ranges):
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            done.append(future)
            self._ledgers.drop(ledger_id, low, high, first.through, partial(settle, future))
        for result in await asyncio.gather(*done, return_exceptions=True):
            if isinstance(result, StorageError):
                if self._storage.failure is not None:
                    raise result
                log.info("bookie %s keeps over-replicated entries: %s", self._bookie_id, result)

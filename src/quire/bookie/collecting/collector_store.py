"""What a bookie's collector asks the metadata store, and writes there: its counter, its watermark, the last look.

Source: `docs/protocol/collection.md`; `docs/formats/metadata.md`, "Records".
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from quire.core.bookie.garbage import By, PassCount, Proof, TombstoneMark, tombstones_over
from quire.core.errors import AlreadyExistsError, CorruptMetadataError, RefusedError
from quire.core.ids import BookieId, LedgerId
from quire.metadata.bookies import BookieRegistry
from quire.metadata.keys import PASSES, WATERMARKS, passes_key, tombstone_key, watermark_key
from quire.metadata.paging import every_key
from quire.metadata.records import AllRecords
from quire.metadata.store import (
    LIST_LIMIT,
    Create,
    MetadataStore,
    Op,
    Put,
    Require,
    StoreBusyError,
    VersionConflictError,
    Versioned,
)
from quire.metadata.tombstones import end_tombstones, tombstones_after
from quire.wire.store_records import PASSES_CODEC, TOMBSTONE_CODEC, WATERMARK_CODEC, Passes, Watermark

log = logging.getLogger(__name__)

_CONFLICTS: Final = (VersionConflictError, AlreadyExistsError)


class Doomed(NamedTuple):
    """A ledger that is to go, why, and the version of its tombstone (0 if that is not the proof)."""

    ledger_id: int
    proof: Proof
    tombstone_version: int


@dataclass(slots=True)
class Tombstones:
    """The tombstones of deleted ledgers in the metadata store.

    Attributes:
        marks: of the ledgers that were asked for: what each says, and its version.
        revisions: of all: (ledger id, revision, version).
    """

    marks: dict[int, tuple[TombstoneMark, int]] = field(default_factory=dict)
    revisions: list[tuple[int, int, int]] = field(default_factory=list)


class CollectorStore:
    """The metadata store as one bookie's collector needs it.

    Args:
        store: the cluster's.
        bookie_id: whose collector.
    """

    def __init__(self, store: MetadataStore, bookie_id: BookieId) -> None:
        self._store = store
        self.bookie_id = bookie_id
        self._passes_key = passes_key(bookie_id)
        self.revision = 0
        self._unknown = b""
        self.records = AllRecords(store)
        self._registry = BookieRegistry(store)

    @property
    def name(self) -> tuple[str, int]:
        """Instance and generation."""
        return self._store.instance_id, self._store.generation

    async def has_record(self, ledger_id: int) -> bool:
        """Whether there is a record of a ledger or stream; whether it can be read does not matter."""
        return await self.records.has(ledger_id)

    async def raise_ledger_ids(self, above: LedgerId) -> None:
        """New ledgers get higher ids than this."""
        await self._store.raise_ledger_ids(above)

    # --- the counter ---------------------------------------------------------------------------------------------

    async def passes(self) -> tuple[PassCount | None, int]:
        """This bookie's counter and its version.

        Raises:
            CorruptMetadataError: it is damaged.
        """
        found = await self._store.get(self._passes_key)
        if found is None:
            return None, 0
        says = PASSES_CODEC.decode(found.value, self.bookie_id)
        self._unknown = says.unknown
        return PassCount(says.chain, says.passes, says.own, says.held, says.accepted), found.version

    async def cas_passes(self, value: PassCount, version: int) -> int | None:
        """Replace the counter that has a version (0: there is none).

        Returns:
            The new version; None if another writer was faster, and nothing was written.

        Raises:
            StoreBusyError: it was written, and changed by another writer at once.
        """
        record = PASSES_CODEC.encode(
            Passes(
                self.bookie_id,
                value.passes,
                chain=value.chain,
                own=value.own,
                held=value.held,
                accepted=value.accepted,
                unknown=self._unknown,
            )
        )
        try:
            if version:
                mine = await self._store.put(self._passes_key, record, version)
            else:
                mine = await self._store.create(self._passes_key, record)
        except _CONFLICTS:
            return None
        found = await self._store.get(self._passes_key)
        if found is None or found.version != mine:
            raise self._not_own()
        self.revision = found.revision
        return mine

    # --- tombstones ----------------------------------------------------------------------------------------------

    async def tombstones(self, wanted: Collection[int]) -> Tombstones:
        """All tombstones; what those of some ledgers say. One that is damaged says nothing."""
        found = Tombstones()
        after: int | None = None
        while True:
            page = await tombstones_after(self._store, after)
            for ledger_id, value in page:
                found.revisions.append((ledger_id, value.revision, value.version))
                if ledger_id not in wanted:
                    continue
                try:
                    says = TOMBSTONE_CODEC.decode(value.value, ledger_id)
                except CorruptMetadataError as error:
                    log.warning("a tombstone cannot be read and is ignored: %s", error)
                    continue
                found.marks[ledger_id] = TombstoneMark(says.token, says.by_hand), value.version
            if len(page) < LIST_LIMIT:
                return found
            after = page[-1][0]

    async def look(self, batch: Sequence[Doomed], mine: int) -> list[bool]:
        """The last look, at all of them in one moment: for each whether it must stay (its record exists, or its tombstone does not).

        Args:
            batch: the ledgers.
            mine: the version of this pass's counter.

        Raises:
            StoreBusyError: the counter is not this pass's own any more.
        """
        ops: list[Op] = [Require(self._passes_key, mine)]
        for one in batch:
            ops += self.records.neither(one.ledger_id)
            if one.proof.by is not By.CHAIN:
                ops.append(Require(tombstone_key(one.ledger_id), one.tombstone_version))
        try:
            await self._store.multi(ops)
        except _CONFLICTS as error:
            self._check_own(error)
            if len(batch) == 1:
                return [True]
            return [stays for one in batch for stays in await self.look([one], mine)]
        return [False] * len(batch)

    def _check_own(self, error: RefusedError) -> None:
        if error.ids.get("key") == self._passes_key:
            raise self._not_own() from error

    def _not_own(self) -> StoreBusyError:
        return StoreBusyError(
            f"the pass counter of bookie {self.bookie_id} was changed during the pass; this pass "
            "drops no more ledgers",
            bookie=self.bookie_id,
        )

    # --- watermarks ----------------------------------------------------------------------------------------------

    async def tell_watermark(
        self, mine: int, watermark: int, tombstones: Sequence[tuple[int, int, int]]
    ) -> None:
        """Everything deleted up to a revision is dropped, durably. Written only where that may end a tombstone."""
        if not any(revision <= watermark for _, revision, _ in tombstones):
            return
        key = watermark_key(self.bookie_id)
        found = await self._store.get(key)
        instance, generation = self.name
        value = WATERMARK_CODEC.encode(Watermark(self.bookie_id, watermark, instance, generation))
        if found is None:
            op: Op = Create(key, value)
        else:
            stored = WATERMARK_CODEC.decode(found.value, self.bookie_id).revision
            if not any(stored < revision <= watermark for _, revision, _ in tombstones):
                return
            op = Put(key, value, found.version)
        try:
            await self._store.multi([op, Require(self._passes_key, mine)])
        except _CONFLICTS as error:
            self._check_own(error)

    async def end_tombstones(self, tombstones: Sequence[tuple[int, int, int]]) -> None:
        """Take away this bookie's share of the tombstones that all bookies' watermarks have passed."""
        if not tombstones:
            return
        cookies = await self._registry.list_cookies()
        collects = {key.removeprefix(PASSES) async for key, _ in every_key(self._store, PASSES)}
        bookies = sorted(str(bookie) for bookie in cookies if bookie in collects)
        if self.bookie_id not in bookies:
            return
        stored = {key: value async for key, value in every_key(self._store, WATERMARKS)}
        watermarks = [_revision_of(stored.get(watermark_key(bookie)), bookie) for bookie in bookies]
        rank = bookies.index(str(self.bookie_id))
        over = set(tombstones_over([one[:2] for one in tombstones], watermarks))
        share = [
            (LedgerId(ledger_id), version)
            for ledger_id, _, version in tombstones
            if ledger_id in over and ledger_id % len(bookies) == rank
        ]
        if share:
            await end_tombstones(self._store, share)


def _revision_of(watermark: Versioned | None, bookie: str) -> int:
    return 0 if watermark is None else WATERMARK_CODEC.decode(watermark.value, bookie).revision

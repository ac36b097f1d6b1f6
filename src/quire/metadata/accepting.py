"""What an operator decides when bookies cannot: that an older state of the metadata store is the one to keep.

Source: `docs/protocol/collection.md`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from quire.core.errors import RefusedError
from quire.core.ids import BookieId
from quire.metadata.keys import PASSES
from quire.metadata.paging import every_key
from quire.metadata.store import MetadataStore, StoreBusyError, VersionConflictError
from quire.wire.store_records import PASSES_CODEC, Passes


class StoppedCollection(NamedTuple):
    """A bookie whose collector has stopped.

    Attributes:
        bookie: which.
        why: the reason that it reports.
        accepted: an operator has accepted the store already; the bookie continues with its next pass.
        record, version: its pass counter.
    """

    bookie: BookieId
    why: str
    accepted: bool
    record: Passes
    version: int


async def stopped_collections(store: MetadataStore) -> list[StoppedCollection]:
    """The bookies that delete nothing because the metadata store is not the one that they knew.

    Raises:
        CorruptMetadataError: a bookie's counter is damaged; it names the key.
    """
    found: list[StoppedCollection] = []
    async for key, value in every_key(store, PASSES):
        bookie = BookieId(key.removeprefix(PASSES))
        says = PASSES_CODEC.decode(value.value, bookie)
        if says.held:
            found.append(StoppedCollection(bookie, says.held, says.accepted == says.own, says, value.version))
    return found


async def accept_store(store: MetadataStore) -> list[StoppedCollection]:
    """Accept this store for every stopped collection. Each continues with its next pass.

    What a bookie had noted of ledgers that it found in the store before is dropped: none of it proves a deletion here.

    Returns:
        The bookies whose records were changed.

    Raises:
        RefusedError: no collection is stopped, or the store was accepted for all already; nothing was changed.
        StoreBusyError: all those bookies wrote their records meanwhile; nothing was changed.
    """
    accepted: list[StoppedCollection] = []
    stopped = await stopped_collections(store)
    for one in stopped:
        if one.accepted:
            continue
        value = PASSES_CODEC.encode(replace(one.record, accepted=one.record.own))
        try:
            await store.put(PASSES + one.bookie, value, one.version)
        except VersionConflictError:
            continue  # it continued meanwhile, or stopped for another reason: the next call shows it
        accepted.append(one)
    if not accepted:
        why = "no bookie has stopped deleting"
        if not all(one.accepted for one in stopped):
            msg = "the bookies that have stopped deleting changed their records at this moment: nothing was changed, try again"
            raise StoreBusyError(msg)
        if stopped:
            why = (
                f"the store is already accepted; {', '.join(one.bookie for one in stopped)} will "
                "notice it with the next pass"
            )
        raise RefusedError(f"the store needs no acceptance: {why}")
    return accepted

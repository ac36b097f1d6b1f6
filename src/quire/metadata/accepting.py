"""What a person decides when bookies cannot: that a metadata store that went back is the one to go on with.

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
from quire.wire.store_records import Passes, decode_passes, encode_passes


class HeldCollection(NamedTuple):
    """A bookie that deletes nothing.

    Attributes:
        bookie: which.
        why: the reason that it gave.
        accepted: an operator has accepted the store already; the bookie goes on with its next pass.
        record, version: its pass counter.
    """

    bookie: BookieId
    why: str
    accepted: bool
    record: Passes
    version: int


async def bookies_that_hold(store: MetadataStore) -> list[HeldCollection]:
    """The bookies that delete nothing because the metadata store is not the one that they knew.

    Raises:
        CorruptMetadataError: a bookie's counter is damaged; it names the key.
    """
    found: list[HeldCollection] = []
    async for key, value in every_key(store, PASSES):
        bookie = BookieId(key.removeprefix(PASSES))
        says = decode_passes(value.value, bookie)
        if says.held:
            found.append(HeldCollection(bookie, says.held, says.accepted == says.own, says, value.version))
    return found


async def accept_store(store: MetadataStore) -> list[HeldCollection]:
    """Say to every bookie that holds: this store is the one. Each goes on with its next pass, without its evidence.

    Returns:
        The bookies whose records were changed.

    Raises:
        RefusedError: no bookie holds, or the store was accepted for all already; nothing was changed.
        StoreBusyError: all that hold wrote their records meanwhile; nothing was changed.
    """
    told: list[HeldCollection] = []
    holding = await bookies_that_hold(store)
    for one in holding:
        if one.accepted:
            continue
        value = encode_passes(replace(one.record, accepted=one.record.own))
        try:
            await store.put(PASSES + one.bookie, value, one.version)
        except VersionConflictError:
            continue  # it has gone on meanwhile, or holds for another reason: the next call shows it
        told.append(one)
    if not told:
        why = "no bookie holds back deletions"
        if not all(one.accepted for one in holding):
            msg = "the bookies that hold back deletions changed their records at this moment: nothing was changed, try again"
            raise StoreBusyError(msg)
        if holding:
            why = (
                f"the store is already accepted; {', '.join(one.bookie for one in holding)} will "
                "notice it with the next pass"
            )
        raise RefusedError(f"the store needs no acceptance: {why}")
    return told

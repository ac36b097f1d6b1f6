"""What a person decides when bookies cannot: which ledgers without a record go, and that a store is the one to go on with.

Source: `docs/protocol/collection.md`.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import NamedTuple

from quire.core.errors import AlreadyExistsError, RefusedError
from quire.core.ids import BookieId, LedgerId
from quire.metadata.keys import PASSES, tombstone_key
from quire.metadata.ledgers import ledger_key
from quire.metadata.store import (
    LIST_LIMIT,
    Create,
    MetadataStore,
    Op,
    Put,
    Require,
    StoreBusyError,
    VersionConflictError,
)
from quire.wire.store_records import Passes, Tombstone, decode_passes, encode_passes, encode_tombstone

ATTEMPTS_MAX = 5


class Held(NamedTuple):
    """A bookie that deletes nothing.

    Attributes:
        bookie: which.
        why: what it said.
        accepted: somebody has accepted the store already; the bookie goes on with its next pass.
        record, version: its pass counter.
    """

    bookie: BookieId
    why: str
    accepted: bool
    record: Passes
    version: int


async def bookies_that_hold(store: MetadataStore) -> list[Held]:
    """The bookies that delete nothing because the metadata store is not the one that they knew.

    Raises:
        CorruptMetadataError: a bookie's counter is damaged; it names the key.
    """
    found: list[Held] = []
    after: str | None = None
    while True:
        page = await store.list(PASSES, after=after)
        for key, value in page:
            bookie = BookieId(key.removeprefix(PASSES))
            says = decode_passes(value.value, bookie)
            if says.held:
                found.append(Held(bookie, says.held, says.accepted == says.own, says, value.version))
        if len(page) < LIST_LIMIT:
            return found
        after = page[-1][0]


async def accept_store(store: MetadataStore) -> list[Held]:
    """Say to every bookie that holds: this store is the one. Each goes on with its next pass, without its evidence.

    Returns:
        The bookies that were told.

    Raises:
        RefusedError: no bookie holds, or all were told already; nothing was changed.
    """
    told: list[Held] = []
    holding = await bookies_that_hold(store)
    for one in holding:
        if one.accepted:
            continue
        value = encode_passes(replace(one.record, accepted=one.record.own))
        try:
            await store.put(PASSES + one.bookie, value, one.version)
        except VersionConflictError:
            continue  # it has gone on meanwhile, or holds for another reason: whoever asks again sees
        told.append(one)
    if not told:
        why = "no bookie holds back deletions"
        if holding:
            why = f"the store is accepted already; {', '.join(one.bookie for one in holding)} will see it with the next pass"
        raise RefusedError(f"there is nothing to accept: {why}")
    return told


async def delete_by_hand(store: MetadataStore, ledger_id: int) -> None:
    """Let bookies drop a ledger that has no record: a tombstone that counts whatever they know of the ledger.

    Raises:
        RefusedError: the ledger has a record; nothing was changed.
        StoreBusyError: its tombstone was changed again and again.
    """
    key = tombstone_key(ledger_id)
    tombstone = Tombstone(LedgerId(ledger_id), 0, time.time_ns() // 1_000_000, 0, by_hand=True)
    value = encode_tombstone(tombstone)
    for _ in range(ATTEMPTS_MAX):
        found = await store.get(key)
        op: Op = Create(key, value) if found is None else Put(key, value, found.version)
        try:
            await store.multi([Require(ledger_key(ledger_id), None), op])
        except (VersionConflictError, AlreadyExistsError) as error:
            if error.ids.get("key") == ledger_key(ledger_id):
                raise RefusedError(
                    f"ledger {ledger_id} has a record, so it is no orphan; delete it with `quire ledger delete {ledger_id}`",
                    ledger_id=ledger_id,
                ) from error
        else:
            return
    raise StoreBusyError(f"the tombstone of ledger {ledger_id} is being changed by others; try again")

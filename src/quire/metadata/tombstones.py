"""Tombstones of deleted ledgers: made with the deletion, in one transaction; ended when every bookie has acted on them.

A bookie drops the entries of a ledger only on proof that it was deleted, and a missing record is none: the store may
have been restored from a backup. Java's clients leave no tombstone.

Source: `docs/formats/metadata.md`, "Tombstones".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeAlias

from quire.core.errors import AlreadyExistsError, CorruptMetadataError, MetadataUnknownError
from quire.core.ids import ID_MAX, LedgerId
from quire.core.ledger.metadata import LedgerMetadata
from quire.metadata.keys import TOMBSTONES, tombstone_key
from quire.metadata.store import (
    LIST_LIMIT,
    Delete,
    MetadataStore,
    Op,
    VersionConflictError,
    Versioned,
    putting,
)
from quire.wire import ledger_metadata
from quire.wire.records import U64_MAX
from quire.wire.store_records import TOMBSTONE_CODEC, Tombstone

ParseRecord: TypeAlias = Callable[[bytes, int], LedgerMetadata]

ENDED_AT_ONCE: Final = 100
"""etcd takes 128 operations in one transaction."""


async def get_unparsed(store: MetadataStore, key: str) -> Versioned | None:
    """A key, also one whose value is damaged: that value raises only when it is looked at."""
    try:
        return await store.get(key)
    except CorruptMetadataError:
        listed = await store.list(key, limit=1)
        return listed[0][1] if listed and listed[0][0] == key else None


def token_of(found: Versioned, ledger_id: int, parse: ParseRecord = ledger_metadata.parse) -> int:
    """The token in the record of a ledger, or of a stream; 0 where it has none, or cannot be read."""
    try:
        token = parse(found.value, ledger_id).token
    except CorruptMetadataError:
        return 0
    return token if token <= U64_MAX else 0


def tombstone_in(found: Versioned | None, ledger_id: int) -> Tombstone | None:
    """A tombstone; None where there is none, or one that cannot be read."""
    try:
        return None if found is None else TOMBSTONE_CODEC.decode(found.value, ledger_id)
    except CorruptMetadataError:
        return None


def tombstone_op(tombstone: Tombstone, found: Versioned | None) -> Op:
    """What writes a tombstone, where one may stand for an earlier ledger of the same id."""
    return putting(tombstone_key(tombstone.ledger_id), TOMBSTONE_CODEC.encode(tombstone), found)


async def tombstones_after(
    store: MetadataStore, after: int | None, limit: int = LIST_LIMIT
) -> list[tuple[LedgerId, Versioned]]:
    """A page of tombstones, ascending, which are not parsed; keys that name no ledger are left out."""
    last = None if after is None else tombstone_key(after)
    found: list[tuple[LedgerId, Versioned]] = []
    while (wanted := limit - len(found)) > 0:
        page = await store.list(TOMBSTONES, after=last, limit=wanted)
        for key, value in page:
            digits = key.removeprefix(TOMBSTONES)
            if len(digits) == 19 and digits.isascii() and digits.isdecimal() and int(digits) <= ID_MAX:
                found.append((LedgerId(int(digits)), value))
        if len(page) < wanted:
            break
        last = page[-1][0]
    return found


async def end_tombstones(store: MetadataStore, ended: Iterable[tuple[int, int]]) -> int:
    """Delete tombstones that have these versions; those that do not, or are deleted, are left out.

    Args:
        store: where they are.
        ended: ledgers and the versions of their tombstones.

    Returns:
        How many were deleted. One whose response was lost may have been, too.

    Raises:
        StoreAwayError: the store did not respond; some may have been deleted.
    """
    ops = [Delete(tombstone_key(ledger_id), version) for ledger_id, version in ended]
    count = 0
    for start in range(0, len(ops), ENDED_AT_ONCE):
        batch = ops[start : start + ENDED_AT_ONCE]
        if await _done(store, batch):
            count += len(batch)
        else:
            count += sum([await _done(store, [op]) for op in batch])
    return count


async def _done(store: MetadataStore, ops: Sequence[Op]) -> bool:
    try:
        await store.multi(ops)
    except (VersionConflictError, AlreadyExistsError, MetadataUnknownError):
        return False
    return True

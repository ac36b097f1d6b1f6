"""How a store records that its ledger ids leapt: one key with a number above which all later ids are.

A client may have ids ready that it reserved or drew before the leap; by this key it learns that they must not be issued
any more. In etcd the number is also what ids are counted from.

Source: `docs/formats/metadata.md`, "Ledger ids".
"""

from __future__ import annotations

from quire.core.errors import AlreadyExistsError, CorruptMetadataError, MetadataUnknownError, MisuseError
from quire.metadata.keys import LEDGER_IDS_ABOVE
from quire.metadata.patience import Turns
from quire.metadata.store import (
    RAISED_MAX,
    Create,
    MetadataStore,
    Op,
    Put,
    VersionConflictError,
    Versioned,
)


def check_raised(above: int) -> int:
    """The number, if ledger ids can be raised above it.

    Raises:
        MisuseError: it is negative, or beyond `RAISED_MAX`.
    """
    if not 0 <= above <= RAISED_MAX:
        msg = (
            f"ledger ids cannot be raised above {above}: only above 0 to {RAISED_MAX}; an id beyond that was chosen by"
            " its writer, no store gives it out"
        )
        raise MisuseError(msg, above=above)
    return above


def floor_of(value: bytes | None) -> int:
    """The number in a value of the key; -1 where there is none.

    Raises:
        CorruptMetadataError: it is no such number.
    """
    if value is None:
        return -1
    # Sixty bits have nineteen digits at most.
    if len(value) <= 19 and value.isdigit() and int(value) <= RAISED_MAX:
        return int(value)
    raise CorruptMetadataError(
        f"the key {LEDGER_IDS_ABOVE} in the metadata store is damaged: {value[:80]!r}; write a number there, in decimal"
        " digits, that is not below any ledger's id",
        key=LEDGER_IDS_ABOVE,
    )


def raised(found: Versioned | None, above: int) -> list[Op]:
    """What writes a number down; nothing if as high a one is there.

    Raises:
        CorruptMetadataError: what is there is no such number.
    """
    if floor_of(found.value if found else None) >= above:
        return []
    value = b"%d" % above
    if found is None:
        return [Create(LEDGER_IDS_ABOVE, value)]
    return [Put(LEDGER_IDS_ABOVE, value, found.version)]


async def raise_floor(store: MetadataStore, above: int) -> None:
    """Write a number down in a store, unless as high a one is there.

    Raises:
        CorruptMetadataError: what is there is no such number.
        MetadataUnknownError: the outcome is unknown; call again.
    """
    turns = Turns(f"the number under {LEDGER_IDS_ABOVE} was raised to {above}")
    while True:
        await turns.another()
        ops = raised(await store.get(LEDGER_IDS_ABOVE), above)
        if not ops:
            return
        try:
            await store.multi(ops)
        except (VersionConflictError, AlreadyExistsError, MetadataUnknownError):
            continue  # the next read shows it
        return

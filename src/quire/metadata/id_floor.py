"""How a store records that its ledger ids were raised: one key with a number above which all later ids are.

A client may have ids ready that it reserved or drew before that; by this key it learns that they must not be issued
any more. In etcd the number is also what ids are counted from.

Source: `docs/formats/metadata.md`, "Ledger ids".
"""

from __future__ import annotations

from quire.core.errors import CorruptMetadataError, MisuseError
from quire.metadata.keys import LEDGER_IDS_ABOVE
from quire.metadata.retries import settled
from quire.metadata.store import (
    RAISED_MAX,
    MetadataStore,
    Op,
    Versioned,
    putting,
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
    return [putting(LEDGER_IDS_ABOVE, b"%d" % above, found)]


async def raise_floor(store: MetadataStore, above: int) -> None:
    """Write a number down in a store, unless as high a one is there.

    Raises:
        CorruptMetadataError: what is there is no such number.
        MetadataUnknownError, StoreBusyError: call again.
    """

    async def once(_: bool) -> bool:
        if ops := raised(await store.get(LEDGER_IDS_ABOVE), above):
            await store.multi(ops)
        return True

    await settled(once, f"the number under {LEDGER_IDS_ABOVE}", f"raised to {above}", again=True)

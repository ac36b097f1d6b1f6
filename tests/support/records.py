"""Records of ledgers for bookies that a test speaks to directly: a bookie takes nothing of a ledger without a record."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace

from quire.core.errors import MetadataUnknownError
from quire.core.ids import BookieId, LedgerId
from quire.core.ledger.metadata import DigestType, LedgerMetadata, new_ledger
from quire.core.ledger.notes import LedgerNotes
from quire.metadata.memory import MemoryStore
from quire.metadata.records import OF_LEDGERS, AllRecords, RecordStore
from quire.metadata.store import Create, MetadataStore, Op, Put
from quire.metadata.tombstones import tombstones_after
from quire.wire.ledger_metadata import serialize
from quire.wire.store_records import TOMBSTONE_CODEC, Tombstone


def record_of(
    ledger_id: int, bookies: Sequence[str] = ("nobody",), *, password: bytes | None = None
) -> LedgerMetadata:
    """An open ledger's record; without a password as Java's format 1 stores it, so that the first key counts."""
    record = new_ledger(
        LedgerId(ledger_id),
        [BookieId(name) for name in bookies],
        write_quorum=1,
        ack_quorum=1,
        digest_type=DigestType.CRC32C,
        password=password or b"",
    )
    return record if password is not None else replace(record, format_version=1, has_password=False)


class ForgetfulStore(MemoryStore):
    """Answers to changes get lost, before or after they happened; `between` comes before a change."""

    def __init__(self, lose: Iterable[str] = ()) -> None:
        super().__init__()
        self.lose = [*lose]
        self.between: list[Callable[[], Awaitable[None]]] = []

    async def multi(self, ops: Sequence[Op]) -> Sequence[int]:
        if self.between:
            await self.between.pop(0)()
        fault = self.lose.pop(0) if self.lose else None
        given = () if fault == "before" else await super().multi(ops)
        if fault is not None:
            raise MetadataUnknownError("lost")
        return given


async def create_records(store: MetadataStore, ledger_ids: Iterable[int]) -> None:
    """Records of format 1, which name no bookie."""
    for ledger_id in ledger_ids:
        await RecordStore(store, OF_LEDGERS).create(record_of(ledger_id))


async def put_record(store: MetadataStore, record: LedgerMetadata) -> None:
    """Store a record, in the place of another one if there is one."""
    key = OF_LEDGERS.key(record.ledger_id)
    found = await store.get(key)
    op = Put(key, serialize(record), found.version) if found else Create(key, serialize(record))
    await store.multi([op])


def is_hole(notes: LedgerNotes, bookie: str, entry_id: int) -> bool:
    """Whether a bookie is known to lack an entry."""
    return any(
        place.holds(entry_id) for hole in notes.holes if hole.bookie == bookie for place in hole.ranges
    )


async def tombstone_of(records: RecordStore | AllRecords, ledger_id: int) -> tuple[Tombstone, int] | None:
    """The tombstone of a ledger and its version; None if none stands."""
    found = dict(await tombstones_after(records._store, ledger_id - 1 if ledger_id else None, limit=1)).get(
        LedgerId(ledger_id)
    )
    return None if found is None else (TOMBSTONE_CODEC.decode(found.value, ledger_id), found.version)

"""Ledger records in a store: compare-and-swap, lost answers, pages."""

import asyncio
from dataclasses import replace

import pytest

from quire.core.errors import (
    AlreadyExistsError,
    CorruptMetadataError,
    MetadataUnknownError,
    MisuseError,
    NoSuchLedgerError,
)
from quire.core.ledger_metadata import DigestType, new_ledger
from quire.metadata.ledgers import ATTEMPTS_MAX, LedgerStore, ledger_key
from quire.metadata.memory import MemoryStore
from quire.metadata.store import VersionConflictError
from quire.wire import ledger_metadata


def record_of(ledger_id, token=1):
    return new_ledger(
        ledger_id,
        ["a", "b", "c"],
        write_quorum=3,
        ack_quorum=2,
        digest_type=DigestType.CRC32C,
        password=b"secret",
        creation_token=token,
    )


class ForgetfulStore(MemoryStore):
    """A store whose answers to changes get lost, before or after they happened."""

    def __init__(self):
        super().__init__()
        self.lose = []

    async def multi(self, ops):
        fault = self.lose.pop(0) if self.lose else None
        if fault == "before":
            raise MetadataUnknownError("lost")
        given = await super().multi(ops)
        if fault == "after":
            raise MetadataUnknownError("lost")
        return given


def test_a_ledger_is_created_read_changed_and_deleted():
    async def scenario():
        store = MemoryStore()
        ledgers = LedgerStore(store)
        ledger_id = await ledgers.next_id()
        version = await ledgers.create(record_of(ledger_id))
        record, found = await ledgers.read(ledger_id)
        assert (record, found) == (record_of(ledger_id), version)
        recovering = record.in_recovery()
        version = await ledgers.write(recovering, version)
        assert await ledgers.read(ledger_id) == (recovering, version)
        with pytest.raises(VersionConflictError) as caught:
            await ledgers.write(record.closed(-1, 0), found)
        assert caught.value.ids == {"ledger_id": ledger_id}
        with pytest.raises(VersionConflictError):
            await ledgers.delete(ledger_id, found)
        await ledgers.delete(ledger_id, version)
        for attempt in (
            ledgers.read(ledger_id),
            ledgers.write(recovering, version),
            ledgers.delete(ledger_id),
        ):
            with pytest.raises(NoSuchLedgerError) as caught:
                await attempt
            assert caught.value.ids == {"ledger_id": ledger_id}

    asyncio.run(scenario())


def test_the_creation_token_is_not_written_again():
    async def scenario():
        ledgers = LedgerStore(MemoryStore())
        version = await ledgers.create(record_of(1))
        await ledgers.write(replace(record_of(1), length=0), version)
        assert (await ledgers.read(1))[0].creation_token == 0

    asyncio.run(scenario())


@pytest.mark.parametrize("lost", [["before"], ["after"], ["before", "before", "after"], ["after", "after"]])
def test_a_lost_answer_is_settled_by_reading(lost):
    async def scenario():
        store = ForgetfulStore()
        ledgers = LedgerStore(store)
        store.lose = list(lost)
        version = await ledgers.create(record_of(1))
        assert (await ledgers.read(1))[1] == version
        store.lose = list(lost)
        version = await ledgers.write(record_of(1).in_recovery(), version)
        assert await ledgers.read(1) == (record_of(1).in_recovery(), version)

    asyncio.run(scenario())


def test_an_answer_that_stays_lost_is_unknown():
    async def scenario():
        store = ForgetfulStore()
        ledgers = LedgerStore(store)
        version = await ledgers.create(record_of(1))
        for attempt in (lambda: ledgers.create(record_of(2)), lambda: ledgers.write(record_of(1), version)):
            store.lose = ["before"] * ATTEMPTS_MAX
            with pytest.raises(MetadataUnknownError, match="read it"):
                await attempt()

    asyncio.run(scenario())


def test_the_ledger_of_another_is_not_taken_for_ours_after_a_lost_answer():
    async def scenario():
        store = ForgetfulStore()
        ledgers = LedgerStore(store)
        version = await ledgers.create(record_of(1, token=5))
        with pytest.raises(AlreadyExistsError, match="another id"):
            await ledgers.create(record_of(1, token=5))  # no answer was lost: it is the id that is taken
        store.lose = ["before"]
        with pytest.raises(AlreadyExistsError):
            await ledgers.create(record_of(1, token=6))
        await ledgers.write(record_of(1).in_recovery(), version)
        store.lose = ["before"]
        with pytest.raises(VersionConflictError):
            await ledgers.write(record_of(1).closed(-1, 0), version)

    asyncio.run(scenario())


def test_ids_are_listed_in_order_page_by_page():
    async def scenario():
        ledgers = LedgerStore(MemoryStore())
        ids = [0, 1, 9, 10, 11, 2**31, 2**63 - 1]
        for ledger_id in reversed(ids):
            await ledgers.create(record_of(ledger_id))
        assert await ledgers.list() == ids
        assert await ledgers.list(after=9, limit=3) == [10, 11, 2**31]
        assert await ledgers.list(after=2**63 - 1) == []
        page = await ledgers.page(after=1, limit=1)
        assert [(i, ledger_metadata.parse(v.value, i).ledger_id) for i, v in page] == [(9, 9)]

    asyncio.run(scenario())


def test_a_watch_hears_of_one_ledger_only():
    async def scenario():
        ledgers = LedgerStore(MemoryStore())
        version = await ledgers.create(record_of(1))
        await ledgers.create(record_of(10))
        async with ledgers.watch(1) as changes:
            assert (await anext(changes)).reread_all
            await ledgers.delete(10)
            await ledgers.write(record_of(1).in_recovery(), version)
            assert await anext(changes) == {ledger_key(1)}

    asyncio.run(scenario())


def test_values_and_keys_that_are_none_of_ours_are_named():
    async def scenario():
        store = MemoryStore()
        ledgers = LedgerStore(store)
        await store.create(ledger_key(7), b"junk")
        with pytest.raises(CorruptMetadataError, match="ledger 7"):
            await ledgers.read(7)
        assert await ledgers.list() == [7]
        await store.create("ledgers/x", b"")
        with pytest.raises(CorruptMetadataError, match="ledgers/x"):
            await ledgers.list()
        for wrong in (-1, 2**63):
            with pytest.raises(MisuseError):
                await ledgers.read(wrong)

    asyncio.run(scenario())

"""Deletions of ledgers on every driver: record, notes and tombstone change at one moment."""

import asyncio
from dataclasses import replace

import pytest

from conformance.metadata_drivers import clients
from quire.core.errors import AlreadyExistsError, NoSuchLedgerError, RefusedError
from quire.core.ids import BookieId
from quire.core.ledger.metadata import TOKEN_KEY, DigestType, new_ledger, new_stream
from quire.core.ledger.notes import BookieHoles, EntryRange, LedgerNotes
from quire.metadata.keys import ledger_notes_key, tombstone_key
from quire.metadata.records import OF_LEDGERS, OF_STREAMS, AllRecords, RecordStore
from quire.metadata.store import Require, VersionConflictError
from quire.metadata.tombstones import ENDED_AT_ONCE, end_tombstones, tombstones_after
from quire.wire.store_records import Tombstone
from quire_testing.kit.stepped import StepClock
from support.records import tombstone_of

NOTES = LedgerNotes(holes=(BookieHoles(BookieId("b"), (EntryRange(0, 9, 3, 0b101),)),))
TOKEN = 2**63 + 5


def record_of(ledger_id, token=TOKEN, stored_format=3):
    custom = {TOKEN_KEY: token.to_bytes(8, "big")} if token else {}
    record = new_ledger(
        ledger_id,
        ["a", "b", "c"],
        write_quorum=3,
        ack_quorum=2,
        digest_type=DigestType.CRC32C,
        password=b"secret",
        custom=custom,
        creation_token=1,
    )
    return replace(record, format_version=stored_format)


async def test_a_deletion_leaves_a_tombstone_of_the_same_moment(a, b):
    ledgers = RecordStore(a, OF_LEDGERS, StepClock())
    version = await ledgers.create(record_of(7))
    with pytest.raises(VersionConflictError):
        await ledgers.delete(7, version + 1)
    assert await tombstone_of(ledgers, 7) is None
    await ledgers.delete(7, version)
    made, at = await tombstone_of(RecordStore(b, OF_LEDGERS), 7)
    assert made == Tombstone(7, TOKEN, ledgers._clock.wall_ms(), version)
    with pytest.raises(NoSuchLedgerError):
        await ledgers.delete(7)
    # What a bookie asks before it drops anything: no record, this tombstone.
    guards = [Require(OF_LEDGERS.key(7), None), Require(tombstone_key(7), at)]
    await b.multi(guards)
    # The id comes again, as with ids that Java's callers choose: that ledger is not the deleted one.
    version = await ledgers.create(record_of(7, token=9))
    with pytest.raises((VersionConflictError, AlreadyExistsError)):
        await b.multi(guards)
    await ledgers.delete(7)
    again, later = await tombstone_of(ledgers, 7)
    assert (again.token, again.record_version) == (9, version)
    [(found, listed)] = await tombstones_after(a, None)
    assert (found, listed.version) == (7, later)


async def test_notes_go_with_a_record_of_format_1_and_a_guard_holds_everything(driver):
    async with clients(driver, 1) as (store,):
        ledgers = RecordStore(store, OF_LEDGERS)
        record = record_of(1, token=0, stored_format=1)
        await ledgers.write_with_notes(record, NOTES, await ledgers.create(record))
        head = await store.create("logs/x", b"1")
        await store.put("logs/x", b"2", head)
        with pytest.raises(VersionConflictError) as caught:
            await ledgers.delete(1, guards=[Require("logs/x", head)])
        assert caught.value.ids["key"] == "logs/x"
        assert (await ledgers.read_with_notes(1))[1] == NOTES
        assert await tombstone_of(ledgers, 1) is None
        now = (await store.get("logs/x")).version
        await ledgers.delete(1, guards=[Require("logs/x", now)])
        assert [key for key, _ in await store.list("")] == ["logs/x", tombstone_key(1)]
        assert await store.get(ledger_notes_key(1)) is None


async def test_many_that_delete_one_ledger_and_many_ledgers_of_one(driver):
    async with clients(driver, 3) as stores:
        ledgers = [RecordStore(store, OF_LEDGERS) for store in stores]
        for number in range(12):
            await ledgers[0].create(record_of(number))
        deletions = [each.delete(number) for number in range(12) for each in ledgers]
        found = await asyncio.gather(*deletions, return_exceptions=True)
        assert [error for error in found if error is not None and type(error) is not NoSuchLedgerError] == []
        assert found.count(None) == 12
        assert await ledgers[1].list() == []
        first = await tombstones_after(stores[1], None, limit=5)
        rest = await tombstones_after(stores[1], first[-1][0])
        assert [number for number, _ in [*first, *rest]] == list(range(12))


async def test_tombstones_end_in_batches_and_one_that_was_changed_stops_no_other(driver):
    async with clients(driver, 1) as (store,):
        count = 2 * ENDED_AT_ONCE + 7
        ops = [AllRecords(store).delete_orphan(number) for number in range(count)]
        await asyncio.gather(*ops)
        stand = {number: value.version for number, value in await tombstones_after(store, None)}
        assert len(stand) == count
        await store.delete(tombstone_key(3))
        changed = await store.get(tombstone_key(ENDED_AT_ONCE + 1))
        await store.put(tombstone_key(ENDED_AT_ONCE + 1), changed.value, changed.version)
        ended = [*stand.items(), (count + 5, 1)]
        assert await end_tombstones(store, ended) == count - 2
        assert [number for number, _ in await tombstones_after(store, None)] == [ENDED_AT_ONCE + 1]
        assert await end_tombstones(store, ended) == 0
        assert await end_tombstones(store, []) == 0


async def test_what_has_a_record_is_no_orphan(driver):
    async with clients(driver, 1) as (store,):
        ledgers = RecordStore(store, OF_LEDGERS)
        await ledgers.create(record_of(4))
        with pytest.raises(RefusedError, match="ledger 4 has a record and is not an orphan"):
            await AllRecords(store).delete_orphan(4)
        assert await tombstone_of(ledgers, 4) is None
        await ledgers.delete(4)
        await AllRecords(store).delete_orphan(4)
        made, _ = await tombstone_of(ledgers, 4)
        assert (made.by_hand, made.token) == (True, TOKEN)
        # The order stands until every bookie has acted on it, also when the id comes and goes meanwhile.
        await ledgers.create(record_of(4, token=9))
        await ledgers.delete(4)
        made, _ = await tombstone_of(ledgers, 4)
        assert (made.by_hand, made.token) == (True, 9)


async def test_a_stream_is_no_orphan(driver):
    async with clients(driver, 1) as (store,):
        ledgers, streams = RecordStore(store, OF_LEDGERS), RecordStore(store, OF_STREAMS)
        await streams.create(new_stream(record_of(4), owner=7), "s")
        with pytest.raises(RefusedError, match=r"4 is a stream, .*delete it with `quire stream delete"):
            await AllRecords(store).delete_orphan(4)
        assert await tombstone_of(ledgers, 4) is None
        await streams.delete(4, name="s")
        await AllRecords(store).delete_orphan(4)
        made, _ = await tombstone_of(ledgers, 4)
        assert (made.by_hand, made.token) == (True, TOKEN)

"""Records and names of streams on every driver: both or neither, one id space with ledgers, changed by their owner."""

import asyncio
from dataclasses import replace

import pytest

from conformance.metadata_drivers import clients
from quire.core.errors import (
    AlreadyExistsError,
    CorruptMetadataError,
    MetadataUnknownError,
    MisuseError,
    NoSuchLedgerError,
    NoSuchStreamError,
)
from quire.core.ids import ID_MAX
from quire.core.ledger.metadata import TOKEN_KEY, DigestType, new_ledger, new_stream
from quire.metadata.keys import stream_name_key
from quire.metadata.memory import MemoryStore
from quire.metadata.records import OF_LEDGERS, OF_STREAMS, RecordStore
from quire.metadata.store import VersionConflictError
from quire.wire.stream_metadata import STREAM_BYTES_MAX
from support.records import ForgetfulStore, tombstone_of


def ledger_of(ledger_id, **more):
    return new_ledger(
        ledger_id,
        ["a", "b", "c"],
        write_quorum=3,
        ack_quorum=2,
        digest_type=DigestType.CRC32C,
        password=b"secret",
        custom={TOKEN_KEY: (5).to_bytes(8, "big")},
        creation_token=1,
        **more,
    )


def stream_of(stream_id, owner=7):
    return new_stream(ledger_of(stream_id), owner)


async def test_a_stream_and_its_name_are_made_changed_and_deleted_together(a, b):
    ours, theirs = RecordStore(a, OF_STREAMS), RecordStore(b, OF_STREAMS)
    with pytest.raises(NoSuchStreamError, match="no stream 'orders'"):
        await theirs.find("orders")
    stream_id = await ours.next_id()
    version = await ours.create(stream_of(stream_id), "orders")
    assert await theirs.find("orders") == stream_id
    record, read = await theirs.read(stream_id)
    assert (record, read) == (stream_of(stream_id), version)
    with pytest.raises(AlreadyExistsError, match="the name 'orders' is taken"):
        await theirs.create(stream_of(stream_id + 1, owner=8), "orders")
    with pytest.raises(NoSuchStreamError):
        await theirs.read(stream_id + 1)
    with pytest.raises(AlreadyExistsError, match=f"the id {stream_id} is a stream already"):
        await theirs.create(stream_of(stream_id, owner=8), "others")
    begun = record.taken_over(2, 99)
    later = await theirs.write(begun, version)
    with pytest.raises(VersionConflictError, match=f"stream {stream_id} no longer has version"):
        await ours.write(record.taken_over(2, 98), version)
    assert await ours.read(stream_id) == (replace(begun, creation_token=0), later)
    await ours.create(stream_of(ID_MAX, owner=8), "payments")
    assert await theirs.names() == ["orders", "payments"]
    assert await theirs.names("orders", 1) == ["payments"]
    assert [each for each, _ in await theirs.page(stream_id)] == [ID_MAX]
    await ours.delete(stream_id, name="orders")
    with pytest.raises(NoSuchStreamError, match=f"stream {stream_id} does not exist"):
        await theirs.write(begun.opened(-1, begun.fragments), later)
    assert await theirs.names() == ["payments"]
    made, _ = await tombstone_of(RecordStore(b, OF_LEDGERS), stream_id)
    assert (made.token, made.record_version) == (5, later)
    # The name may be used again, for another stream.
    await theirs.create(stream_of(stream_id + 1), "orders")


async def test_an_id_is_a_ledgers_or_a_streams_and_the_wrong_kind_is_named(driver):
    async with clients(driver, 1) as (store,):
        streams, ledgers = RecordStore(store, OF_STREAMS), RecordStore(store, OF_LEDGERS)
        await ledgers.create(ledger_of(5))
        await streams.create(stream_of(6), "s")
        with pytest.raises(AlreadyExistsError, match="the id 5 is a ledger already"):
            await streams.create(stream_of(5), "t")
        assert await streams.names() == ["s"]
        with pytest.raises(NoSuchStreamError, match="5 is a ledger and no stream"):
            await streams.read(5)
        with pytest.raises(NoSuchLedgerError, match="6 is a stream and no ledger"):
            await ledgers.read(6)
        assert await ledgers.list() == [5]
        with pytest.raises(MisuseError, match="is a stream"):
            await ledgers.create(stream_of(7))
        with pytest.raises(MisuseError, match="no stream"):
            await streams.create(ledger_of(7), "u")
        with pytest.raises(MisuseError):
            await streams.create(stream_of(7), "bad//name")
        await store.create(OF_STREAMS.key(8), b"another program's")
        with pytest.raises(CorruptMetadataError, match="stream 8"):
            await streams.read(8)
        await store.create(stream_name_key("torn"), b"\xff")
        with pytest.raises(CorruptMetadataError, match="stream name 'torn'"):
            await streams.find("torn")
        await store.create("streams/x", b"")
        with pytest.raises(CorruptMetadataError, match="names no stream"):
            await streams.page()


async def test_two_take_overs_of_a_moment_and_one_wins(a, b):
    version = await RecordStore(a, OF_STREAMS).create(stream_of(1), "s")
    found = await asyncio.gather(
        RecordStore(a, OF_STREAMS).write(stream_of(1).taken_over(2, 11), version),
        RecordStore(b, OF_STREAMS).write(stream_of(1).taken_over(2, 12), version),
        return_exceptions=True,
    )
    lost = [each for each in found if isinstance(each, VersionConflictError)]
    assert len(lost) == 1
    record, _ = await RecordStore(b, OF_STREAMS).read(1)
    assert record.term == 2
    assert record.terms.owner == (12 if found[0] is lost[0] else 11)


async def test_a_lost_response_is_settled_by_the_owner():
    store = ForgetfulStore()
    streams = RecordStore(store, OF_STREAMS)
    store.lose = ["after"]
    version = await streams.create(stream_of(1), "s")
    assert await streams.read(1) == (stream_of(1), version)
    store.lose = ["after"]
    begun = stream_of(1).taken_over(2, 11)
    later = await streams.write(begun, version)
    assert later == (await streams.read(1))[1]
    store.lose = ["after"]
    await streams.write(begun.opened(-1, begun.fragments), later)
    assert (await streams.read(1))[0] == replace(begun.opened(-1, begun.fragments), creation_token=0)


async def test_a_stream_that_is_taken_over_before_its_lost_response_is_settled_is_still_ours():
    record = replace(stream_of(1), custom=((TOKEN_KEY, bytes(7) + b"1"),))

    class Meanwhile(ForgetfulStore):
        async def multi(self, ops):
            try:
                return await super().multi(ops)
            except MetadataUnknownError:
                await RecordStore(self, OF_STREAMS).write(
                    record.taken_over(2, 11), (await self.get(OF_STREAMS.key(1))).version
                )
                raise

    store = Meanwhile()
    streams = RecordStore(store, OF_STREAMS)
    store.lose = ["after"]
    version = await streams.create(record, "s")
    with pytest.raises(VersionConflictError):
        await streams.write(record.taken_over(2, 12), version)
    assert (await streams.read(1))[0].terms.owner == 11
    store.lose = ["after"]
    with pytest.raises(AlreadyExistsError, match="taken by another"):
        await streams.create(replace(stream_of(2), custom=record.custom), "s")


async def test_a_record_that_has_grown_too_large_is_refused_before_it_is_written():
    streams = RecordStore(MemoryStore(), OF_STREAMS)
    record = stream_of(1)
    version = await streams.create(record, "s")
    fragments = tuple(
        replace(record.fragments[0], first_entry=first) for first in range(STREAM_BYTES_MAX // 8)
    )
    with pytest.raises(MisuseError, match="it may have"):
        await streams.write(replace(record, fragments=fragments), version)

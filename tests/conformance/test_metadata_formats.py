"""Values with a checksum, notes beside ledgers' records; what is etcd's own at the end."""

import pytest

from conformance.metadata_drivers import DRIVERS, EACH_DRIVER, EtcdDriver, clients
from quire.core.errors import CorruptMetadataError, NoSuchLedgerError
from quire.core.ids import BookieId
from quire.core.ledger.metadata import DigestType, new_ledger
from quire.core.ledger.notes import NO_NOTES, BookieHoles, EntryRange, LedgerNotes
from quire.core.version import UNRELEASED
from quire.metadata.checked import HEAD, seal
from quire.metadata.etcd.connection import TXN
from quire.metadata.etcd.formats import NUMBERS_KEY, Instance
from quire.metadata.etcd.keys import put
from quire.metadata.etcd.store import EtcdStore
from quire.metadata.records import OF_LEDGERS, RecordStore
from quire.metadata.store import VersionConflictError
from quire.wire.proto.etcd_pb2 import RangeRequest, TxnRequest

AS_SEALED = [HEAD, HEAD[::-1], HEAD + HEAD[::-1], seal("k/0", b"v"), seal("other", b"v"), b"\0"]


@pytest.fixture(params=EACH_DRIVER)
def driver(request, tmp_path):
    return DRIVERS[request.param](tmp_path)


async def test_values_that_look_like_checked_ones_are_values_as_any_other(driver):
    async with clients(driver, 2) as (a, b):
        for number, value in enumerate(AS_SEALED):
            version = await a.create(f"k/{number}", value)
            assert (await b.get(f"k/{number}")).value == value
            await b.put(f"k/{number}", value + b"\0", version)
        held = await a.register("r", seal("r", b""))
        assert [value.value for _, value in await b.list("k/")] == [value + b"\0" for value in AS_SEALED]
        assert (await b.get("r")).value == seal("r", b"")
        await held.update(HEAD)
        assert (await b.get("r")).value == HEAD


@pytest.mark.parametrize("stored_format", [1, 2, 3])
async def test_notes_of_a_ledger_change_together_with_its_record(driver, stored_format):
    bookies = [BookieId(name) for name in ("a:1", "b:1", "c:1")]
    notes = LedgerNotes((BookieHoles(bookies[1], (EntryRange(0, 9, 3, 2),)),))
    async with clients(driver, 2) as (a, b):
        ours, theirs = RecordStore(a, OF_LEDGERS), RecordStore(b, OF_LEDGERS)
        ledger_id = await ours.next_id()
        record = new_ledger(
            ledger_id, bookies, write_quorum=3, ack_quorum=3, digest_type=DigestType.CRC32, password=b"",
            format_version=stored_format,
        )  # fmt: skip
        version = await ours.create(record)
        read, found, same = await theirs.read_with_notes(ledger_id)
        assert (found, same) == (NO_NOTES, version)
        later = await ours.write_with_notes(read.closed(9, 90), notes, version)
        with pytest.raises(VersionConflictError):
            await theirs.write_with_notes(read, NO_NOTES, version)
        read, found, same = await theirs.read_with_notes(ledger_id)
        assert (read.last_entry, found, same) == (9, notes, later)
        assert await theirs.list() == [ledger_id]
        last = await theirs.write_with_notes(read, NO_NOTES, same)
        assert [key for key, _ in await a.list("")] == [f"ledgers/{ledger_id:019d}"]
        await ours.delete(ledger_id, last)
        with pytest.raises(NoSuchLedgerError):
            await theirs.write_with_notes(read, notes, last)
        assert [key for key, _ in await a.list("")] == [f"tombstones/{ledger_id:019d}"]


# --- etcd -------------------------------------------------------------------------------------------------------


@pytest.fixture
def etcd(tmp_path):
    return EtcdDriver(tmp_path)


async def raw_put(store, key, value):
    await store._connection.read(TXN, TxnRequest(success=[put(key, value, keep_lease=False)]))


async def raw_get(store, key):
    found = (await store._changes.range(RangeRequest(key=key))).kvs
    return found[0].value if found else None


@pytest.mark.interop
async def test_every_flipped_bit_of_a_value_in_etcd_is_an_error_by_name(etcd):
    async with clients(etcd, 1) as (a,):
        await a.create("ledgers/1", b"")
        await a.create("ledgers/2", b"other")
        key, stored = a._layout.key("ledgers/1"), seal("ledgers/1", b"BookieMetadata")
        for bit in range(8 * len(stored)):
            spoilt = bytearray(stored)
            spoilt[bit // 8] ^= 1 << bit % 8
            await raw_put(a, key, bytes(spoilt))
            with pytest.raises(CorruptMetadataError, match="ledgers/1 "):
                await a.get("ledgers/1")
            if bit % 16 == 0:
                (_, damaged), (_, good) = await a.list("ledgers/")
                assert good.value == b"other"
                with pytest.raises(CorruptMetadataError, match="ledgers/1 "):
                    _ = damaged.value
        (_, damaged), _ = await a.list("ledgers/")
        await a.put("ledgers/1", b"again", damaged.version)
        assert (await a.get("ledgers/1")).value == b"again"


@pytest.mark.interop
async def test_a_damaged_count_of_registrations_is_named(etcd):
    async with clients(etcd, 2) as (a, b):
        await a.register("n/", b"", sequential=True)
        stored = await raw_get(a, a._layout.numbers)
        for spoilt in (stored[:-1] + b"\1", b"x"):
            await raw_put(a, a._layout.numbers, spoilt)
            with pytest.raises(CorruptMetadataError, match="numbers"):
                await b.register("n/", b"", sequential=True)
        await raw_put(a, a._layout.numbers, seal(NUMBERS_KEY, b"17"))
        assert (await b.register("n/", b"", sequential=True)).key == f"n/{18:019d}"


@pytest.mark.interop
async def test_an_instance_that_is_damaged_or_of_another_format_is_refused(etcd):
    async with clients(etcd, 1) as (a,):
        key, text = a._layout.instance, await raw_get(a, a._layout.instance)
        assert Instance.parse(text, a._layout, "h").serialize() == text
        for bit in range(8 * len(text)):
            spoilt = bytearray(text)
            spoilt[bit // 8] ^= 1 << bit % 8
            with pytest.raises(CorruptMetadataError):
                Instance.parse(bytes(spoilt), a._layout, "h")
        later = a.instance_id.encode() + b" format 3, needs Quire 9 or newer"
        for value, words in (
            (later, "metadata format 3, and this version of Quire knows 2: use the version that wrote it"),
            (text[:-1], "is damaged, or not Quire's"),
            (text[:36] + b" ", "is damaged"),
            (b"\xff" * 36, "is damaged"),
            (b"-" * 36, "is damaged"),
            (a.instance_id.encode(), f"metadata format 1, written by {UNRELEASED}"),
            (a.instance_id.encode() + b" format 2, needs nothing", "is damaged"),
            (b"", "is damaged"),
        ):
            await raw_put(a, key, value)
            with pytest.raises(CorruptMetadataError, match=words):
                await EtcdStore.open(etcd.address)

"""The format of every store, values with a checksum, notes beside ledgers' records; what is etcd's own at the end."""

import uuid

import pytest

from conformance.metadata_drivers import DRIVERS, EACH_DRIVER, EtcdDriver, clients
from quire.core.errors import CorruptMetadataError, MisuseError, NoSuchLedgerError
from quire.core.ids import BookieId
from quire.core.ledger.metadata import DigestType, new_ledger
from quire.core.ledger.notes import NO_NOTES, BookieHoles, EntryRange, LedgerNotes
from quire.metadata.checked import HEAD, open_sealed, seal
from quire.metadata.etcd.connection import TXN
from quire.metadata.etcd.formats import NUMBERS_KEY, Instance
from quire.metadata.etcd.keys import put
from quire.metadata.etcd.store import EtcdStore
from quire.metadata.ledgers import LedgerStore
from quire.metadata.store import Upgraded, VersionConflictError
from quire.wire.proto.etcd_pb2 import RangeRequest, TxnRequest

FORMATS = {"memory": None, "zookeeper": None, "sqlite": 2, "etcd": 2}
AS_SEALED = [HEAD, HEAD[::-1], HEAD + HEAD[::-1], seal("k/0", b"v"), seal("other", b"v"), b"\0"]


@pytest.fixture(params=EACH_DRIVER)
def named(request, tmp_path):
    return request.param, DRIVERS[request.param](tmp_path)


async def test_a_new_store_has_the_newest_format_and_an_upgrade_finds_nothing_to_do(named):
    name, driver = named
    async with clients(driver, 2) as (a, b):
        assert a.format == b.format == FORMATS[name]
        await a.create("k", b"v")
        for store in (a, b):
            assert await store.upgrade() == (None if FORMATS[name] is None else Upgraded(2, 0))
        assert (await b.get("k")).value == b"v"


async def test_values_that_look_like_checked_ones_are_values_as_any_other(named):
    _, driver = named
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
async def test_notes_of_a_ledger_change_together_with_its_record(named, stored_format):
    _, driver = named
    bookies = [BookieId(name) for name in ("a:1", "b:1", "c:1")]
    notes = LedgerNotes((BookieHoles(bookies[1], (EntryRange(0, 9, 3, 2),)),))
    async with clients(driver, 2) as (a, b):
        ours, theirs = LedgerStore(a), LedgerStore(b)
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


async def plain_cluster(driver):
    """A cluster as revision 9e5fe3a makes it, and a client of it."""
    maker = EtcdStore(driver.address)
    await maker._connection.start()
    instance = str(uuid.uuid4())
    await raw_put(maker, maker._layout.instance, instance.encode())
    await maker._connection.close()
    store = await EtcdStore.open(driver.address)
    assert (store.instance_id, store.format) == (instance, 1)
    return store


@pytest.mark.interop
async def test_a_cluster_of_format_1_is_written_as_it_is_and_upgraded_page_by_page(etcd):
    a = await plain_cluster(etcd)
    b = await EtcdStore.open(etcd.address)
    layout = a._layout
    for number in range(250):
        await a.create(f"k/{number:03}", b"v%d" % number)
    for value in AS_SEALED[:-1]:
        with pytest.raises(MisuseError, match="quire cluster upgrade"):
            await a.create("looks/sealed", value)
    held = await b.register("r", b"1")
    numbered = await b.register("n/", b"", sequential=True)
    assert await raw_get(a, layout.key("k/007")) == b"v7"
    assert await raw_get(a, layout.key("r")) == b"1"
    assert await raw_get(a, layout.numbers) == b"1"

    done = await a.upgrade()
    assert done == Upgraded(1, 253)
    assert (a.format, b.format) == (2, 1)
    text = await raw_get(a, layout.instance)
    # What a program of revision 9e5fe3a prints of it in its error: the first 80 bytes.
    assert text[:80].decode().startswith(f"{a.instance_id} format 2, needs Quire 0.2 or newer; ")
    assert await raw_get(a, layout.key("k/007")) == seal("k/007", b"v7")
    assert await raw_get(a, layout.key("r")) == seal("r", b"1")
    assert await raw_get(a, layout.numbers) == seal(NUMBERS_KEY, b"1")
    assert await a.upgrade() == Upgraded(2, 0)

    # Who had it open seals once it has met a checked value; registrations stayed on their lease.
    await b.create("plain", b"v")
    assert await raw_get(a, layout.key("plain")) == b"v"
    assert (await a.get("plain")).value == b"v"
    assert (await b.get("k/007")).value == b"v7"
    assert b.format == 2
    await held.update(b"2")
    assert await raw_get(a, layout.key("r")) == seal("r", b"2")
    assert (await b.register("n/", b"", sequential=True)).key > numbered.key
    assert not held.lost.is_set()
    assert await a.upgrade() == Upgraded(2, 1)
    assert open_sealed("plain", await raw_get(a, layout.key("plain"))) == b"v"
    async with await EtcdStore.open(etcd.address) as c:
        assert (c.format, c.instance_id) == (2, a.instance_id)
        assert len(await c.list("k/")) == 250
    await b.close()
    assert await a.get("r") is None
    await a.close()


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
        assert await a.upgrade() == Upgraded(2, 0, ("ledgers/1",))
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
        await raw_put(a, a._layout.numbers, b"17")
        assert (await b.register("n/", b"", sequential=True)).key == f"n/{18:019d}"


@pytest.mark.interop
async def test_an_instance_that_is_damaged_or_of_a_later_format_is_refused(etcd):
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
            (later, "metadata format 3 .*knows 1 and 2: use the version that wrote it"),
            (text[:-1], "is damaged, or not Quire's"),
            (text[:36] + b" ", "is damaged"),
            (b"\xff" * 36, "is damaged"),
            (b"-" * 36, "is damaged"),
            (a.instance_id.encode() + b" format 1, needs nothing", "is damaged"),
            (b"", "is damaged"),
        ):
            await raw_put(a, key, value)
            with pytest.raises(CorruptMetadataError, match=words):
                await EtcdStore.open(etcd.address)

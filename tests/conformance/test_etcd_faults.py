"""etcd losing answers, restarted, cut off, compacted: what a store of it says and does. Against a real server."""

import asyncio

import pytest

import quire
from conformance.etcd_proxy import PARTITION_S, behind_proxy
from conformance.metadata_drivers import EtcdDriver, present, until
from conformance.proxied import (
    a_lock_whose_answer_is_lost_is_not_left_to_nobody,
    a_registration_settles_a_lost_answer,
    lose_answer,
)
from quire.bookie.config import BookieConfig
from quire.bookie.server import BookieServer
from quire.core.errors import MetadataUnknownError
from quire.metadata.connect import format_store, open_store
from quire.metadata.etcd.connection import TXN, Method
from quire.metadata.etcd.options import EtcdAddress, EtcdOptions
from quire.metadata.etcd.store import EtcdStore
from quire.metadata.store import Create, KeyMissingError, Put, StoreAwayError, VersionConflictError
from quire.wire.proto.etcd_pb2 import CompactionRequest, CompactionResponse
from support.etcd_server import EtcdServer, etcd_or_skip

pytestmark = pytest.mark.interop


@pytest.fixture
def driver(tmp_path):
    return EtcdDriver(tmp_path)


# --- lost answers -----------------------------------------------------------------------------------------------


async def test_a_change_whose_answer_is_lost_is_unknown_and_reading_tells(driver):
    async with behind_proxy(driver) as (store, other, proxy):
        version = await store.create("k", b"0")
        task = await lose_answer(proxy, store.put("k", b"1", version), lambda: present(other, "k", b"1"))
        with pytest.raises(MetadataUnknownError, match="read again"):
            await task
        found = await store.get("k")
        assert found.value == b"1"
        task = await lose_answer(
            proxy,
            store.multi([Create("m", b"1"), Put("k", b"2", found.version)]),
            lambda: present(other, "m", b"1"),
        )
        with pytest.raises(MetadataUnknownError):
            await task
        assert (await store.get("k")).value == b"2"


async def test_a_change_that_was_under_way_cannot_happen_after_the_read_that_follows(driver):
    """The request arrives at the server late: after its sender was told "unknown" and has read."""
    async with behind_proxy(driver) as (store, other, _):
        late = []
        send = store._connection.change

        async def lose(method, request, what):
            late.append(request)
            raise MetadataUnknownError("lost")

        store._connection.change = lose
        with pytest.raises(MetadataUnknownError):
            await store.create("k", b"late")
        store._connection.change = send
        assert await store.get("k") is None
        [request] = late
        answer = await other._connection.read(TXN, request)
        assert not answer.succeeded
        assert await store.get("k") is None
        await store.create("k", b"now")
        assert (await other.get("k")).value == b"now"


async def test_a_registration_settles_a_lost_answer_itself(driver):
    async with behind_proxy(driver, session_timeout_ms=20_000) as (store, other, proxy):
        await store.register("other", b"")  # its lease is there, so that the first request does it
        await a_registration_settles_a_lost_answer(store, other, proxy)


async def test_a_lock_whose_answer_is_lost_is_not_left_to_nobody(driver):
    async with behind_proxy(driver, session_timeout_ms=3000, patience_ms=500) as (store, other, proxy):
        await a_lock_whose_answer_is_lost_is_not_left_to_nobody(store, other, proxy)


async def test_a_registration_that_somebody_deletes_comes_back(a, b):
    held = await a.register("bookies/available/b:1", b"x")
    once = await a.register("once", b"x", again=False)
    for number in range(1, 4):
        await b.delete(held.key)

        async def back(number=number):
            return held.renewed == number

        await until(back)
        assert await present(b, held.key, b"x")
    await b.delete("once")
    await once.lost.wait()
    assert not held.lost.is_set()


async def test_a_version_that_no_key_can_have_changes_nothing(a):
    await a.create("k", b"1")
    for version in (0, -1, 2**63 - 1, 2**70):
        with pytest.raises(KeyMissingError):
            await a.put("none", b"x", version)
        with pytest.raises(VersionConflictError):
            await a.multi([Create("n", b""), Put("k", b"x", version)])
        with pytest.raises(VersionConflictError):
            await a.multi([Create("n", b""), Put("n", b"x", version)])
    assert [key for key, _ in await a.list("")] == ["k"]


# --- connections, compaction, restarts ------------------------------------------------------------------------------


async def test_a_cut_connection_loses_no_change_and_keeps_the_lease(driver):
    """A watch goes on at the revision where it broke: nobody has to read everything again."""
    async with behind_proxy(driver, session_timeout_ms=20_000) as (store, other, proxy):
        held = await store.register("r", b"x")
        async with store.watch("k/") as changes:
            assert (await anext(changes)).reread_all
            for i in range(5):
                proxy.refuse()
                await other.create(f"k/{i}", b"")
                await other.create(f"k/{i}b", b"")
                proxy.pass_everything()
                heard = set()
                while not {f"k/{i}", f"k/{i}b"} <= heard:
                    keys = await anext(changes)
                    assert not keys.reread_all
                    heard |= keys
        assert held.renewed == 0
        assert (await other.get("r")).value == b"x"


async def test_a_watch_that_was_compacted_away_says_read_everything(driver):
    async with (
        behind_proxy(driver, session_timeout_ms=20_000) as (store, other, proxy),
        store.watch("k/") as changes,
    ):
        await anext(changes)
        proxy.refuse()
        version = await other.create("k/1", b"")
        for _ in range(3):
            version = await other.put("k/1", b"", version)
        compact = Method("/etcdserverpb.KV/Compact", CompactionResponse)
        await other._connection.read(compact, CompactionRequest(revision=version))
        proxy.pass_everything()
        assert (await anext(changes)).reread_all
        await other.create("k/2", b"")
        assert "k/2" in await anext(changes)


async def test_a_partition_longer_than_the_session_under_load(driver):
    """Nothing acknowledged is lost, registrations come back, counters count once."""
    async with behind_proxy(driver, patience_ms=1000) as (store, other, proxy):
        held = await store.register("bookies/available/b:1", b"here")
        async with Counting(store) as load:
            await load.beyond(20)
            proxy.go_silent()
            gone_at = asyncio.create_task(until(lambda: absent(other, held.key)))
            await asyncio.sleep(PARTITION_S)
            await gone_at
            before = load.done
            proxy.pass_everything()
            await until(lambda: present(other, held.key, b"here"))
            await load.beyond(before + 20)
        assert held.renewed >= 1
        assert not held.lost.is_set()
        await load.judge(other)


async def absent(store, key):
    return await store.get(key) is None


class Counting:
    """Four writers that count in one key while the store fails."""

    def __init__(self, store):
        self.store = store
        self.done = self.unknown = 0

    async def __aenter__(self):
        await self.store.create("counter", b"0")
        self.stop = asyncio.Event()
        self.tasks = [asyncio.create_task(self.count()) for _ in range(4)]
        return self

    async def __aexit__(self, *_):
        self.stop.set()
        await asyncio.gather(*self.tasks)

    async def count(self):
        while not self.stop.is_set():
            try:
                found = await self.store.get("counter")
                await self.store.put("counter", b"%d" % (int(found.value) + 1), found.version)
                self.done += 1
            except MetadataUnknownError:
                self.unknown += 1
            except (VersionConflictError, StoreAwayError):
                await asyncio.sleep(0)

    async def beyond(self, number):
        async def reached():
            return self.done > number

        await until(reached)

    async def judge(self, store):
        final = int((await store.get("counter")).value)
        assert self.done <= final <= self.done + self.unknown


async def test_kill_and_restart_under_load_keep_values_and_registrations(tmp_path):
    etcd_or_skip()
    server = EtcdServer(tmp_path)
    try:
        address = EtcdAddress((server.host,), "/ledgers", EtcdOptions(session_timeout_ms=3000))
        async with (
            await EtcdStore.open(address, create=True) as store,
            await EtcdStore.open(address) as other,
            store.watch("k") as changes,
        ):
            await anext(changes)
            held = await store.register("bookies/available/b:1", b"x")
            async with Counting(store) as load:
                for number, end in enumerate((server.kill, server.stop, server.kill)):
                    await load.beyond(load.done + 20)
                    await asyncio.to_thread(end)
                    await asyncio.to_thread(server.start)
                    await load.beyond(load.done + 20)
                    await other.create(f"k{number}", b"")
                    while f"k{number}" not in await anext(changes):
                        pass
            await load.judge(other)
            assert (await other.get(held.key)).value == b"x"
            assert not held.lost.is_set()
            await held.update(b"y")
            assert await present(other, held.key, b"y")
    finally:
        server.run("stop", check=False)


async def test_a_cluster_goes_on_while_etcd_is_killed_and_restarted(tmp_path):
    """Appends need no metadata once the bookies know the ledger; a new one waits for the store; nothing acknowledged is lost; the bookies are back."""
    etcd_or_skip()
    server = EtcdServer(tmp_path / "etcd")
    try:
        uri = f"etcd://{server.host}/ledgers?session_timeout_ms=3000"
        await format_store(uri)
        bookies = []
        for number in range(3):
            config = BookieConfig(directory=tmp_path / f"b{number}", name=f"b{number}")
            bookies.append(BookieServer(config, await open_store(uri)))
            await bookies[-1].start()
        store = await open_store(uri)
        async with quire.connect(uri) as client:
            ledger = await client.create_ledger(
                ensemble_size=3, write_quorum=3, ack_quorum=2, password=b"x", digest="crc32c"
            )
            acknowledged = [await ledger.append(b"0")]
            await asyncio.to_thread(server.kill)
            acknowledged += [await ledger.append(b"%d" % number) for number in range(1, 100)]
            waiting = asyncio.create_task(client.create_ledger(password=b"x", digest="crc32c"))
            await asyncio.to_thread(server.start)
            other = await waiting
            await other.append(b"new")
            await other.close()
            await ledger.close()
            again = await client.open_ledger(ledger.ledger_id, password=b"x")
            found = [entry async for entry in again.read(0, acknowledged[-1])]
            assert len(found) == 100
            assert len(await store.list("bookies/available/")) == 3
        await store.close()
        for bookie in bookies:
            await bookie.stop()
            await bookie.store.close()
    finally:
        server.run("stop", check=False)

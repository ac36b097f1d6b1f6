"""ZooKeeper losing answers, restarted, cut off: what a store of it says and does. Against a real server."""

import asyncio
import threading
from contextlib import suppress
from dataclasses import replace

import pytest

from conformance.metadata_drivers import ZookeeperDriver, end_session, present, until
from conformance.proxied import (
    a_lock_whose_answer_is_lost_is_not_left_to_nobody,
    a_registration_settles_a_lost_answer,
    lose_answer,
)
from conformance.zookeeper_proxy import PARTITION_S, behind_proxy
from quire.core.errors import (
    AlreadyExistsError,
    MetadataUnknownError,
)
from quire.core.ledger.metadata import DigestType, new_ledger
from quire.metadata.records import OF_LEDGERS, RecordStore
from quire.metadata.store import Create, Put, StoreAwayError, VersionConflictError
from quire.metadata.zookeeper.options import ZookeeperAddress, ZookeeperOptions
from quire.metadata.zookeeper.store import ZookeeperStore
from support.zookeeper_server import ZookeeperServer, zookeeper_or_skip

pytestmark = pytest.mark.interop


@pytest.fixture
def driver(tmp_path):
    return ZookeeperDriver(tmp_path)


def record_of(ledger_id, token=7):
    return new_ledger(
        ledger_id,
        ["a", "b", "c"],
        write_quorum=3,
        ack_quorum=2,
        digest_type=DigestType.CRC32C,
        password=b"",
        creation_token=token,
    )


# --- lost answers -----------------------------------------------------------------------------------------------


async def test_a_change_whose_answer_is_lost_is_unknown_and_reading_tells(driver):
    async with behind_proxy(driver) as (store, other, proxy):
        version = await store.create("k", b"0")
        task = await lose_answer(proxy, store.put("k", b"1", version), lambda: present(other, "k", b"1"))
        with pytest.raises(MetadataUnknownError, match="read again"):
            await task
        found = await store.get("k")
        assert (found.value, found.version) == (b"1", version + 1)
        task = await lose_answer(
            proxy,
            store.multi([Create("m", b"1"), Put("k", b"2", found.version)]),
            lambda: present(other, "m", b"1"),
        )
        with pytest.raises(MetadataUnknownError):
            await task
        assert (await store.get("k")).value == b"2"


async def test_a_change_that_never_arrived_is_unknown_too(driver):
    async with behind_proxy(driver) as (store, other, proxy):
        proxy.go_silent()
        task = asyncio.create_task(store.create("k", b"1"))
        await proxy.swallowed.wait()
        proxy.pass_everything()
        with pytest.raises(MetadataUnknownError):
            await task
        assert await store.get("k") is None
        assert await other.get("k") is None


async def test_the_records_of_ledgers_settle_a_lost_answer(driver):
    async with behind_proxy(driver) as (store, other, proxy):
        ledgers, others = RecordStore(store, OF_LEDGERS), RecordStore(other, OF_LEDGERS)

        async def there():
            return len(await others.list()) == 2

        await ledgers.create(record_of(4))  # its folders are there, so that the first request does it

        record = record_of(5)
        task = await lose_answer(proxy, ledgers.create(record), there)
        version = await task
        closed = record.closed(-1, 0) if hasattr(record, "closed") else replace(record, custom=(("k", b"v"),))

        async def written():
            return (await others.read(5))[1] > version

        task = await lose_answer(proxy, ledgers.write(closed, version), written)
        assert await task == version + 1
        with pytest.raises(AlreadyExistsError):
            await others.create(record_of(5, token=8))


async def test_a_creation_is_not_tried_again_on_a_connection_that_is_lost(driver):
    """kazoo fails what is under way, then says that the connection is lost; what is sent between fails at once."""
    async with behind_proxy(driver) as (store, other, proxy):
        ledgers, others = RecordStore(store, OF_LEDGERS), RecordStore(other, OF_LEDGERS)
        await ledgers.create(record_of(4))
        fail, noticed = store._session.client._notify_pending, threading.Event()

        def fail_until_noticed(state):
            while not noticed.is_set():
                fail(state)

        store._session.client._notify_pending = fail_until_noticed

        async def there():
            return len(await others.list()) == 2

        task = await lose_answer(proxy, ledgers.create(record_of(5)), there)

        async def is_away():
            return task.done() or not store._session.is_ready

        await until(is_away)
        noticed.set()
        assert await task == (await others.read(5))[1]


async def test_a_registration_settles_a_lost_answer_itself(driver):
    async with behind_proxy(driver, session_timeout_ms=20_000) as (store, other, proxy):
        await a_registration_settles_a_lost_answer(store, other, proxy)


async def test_a_lock_whose_answer_is_lost_is_not_left_to_nobody(driver):
    async with behind_proxy(driver, session_timeout_ms=20000, patience_ms=500) as (store, other, proxy):
        await a_lock_whose_answer_is_lost_is_not_left_to_nobody(store, other, proxy)


async def test_a_registration_that_somebody_deletes_comes_back(a, b):
    held = await a.register("bookies/available/b:1", b"x")
    once = await a.register("once", b"x", again=False)
    for _ in range(3):
        await b.delete(held.key)
        await until(lambda: present(b, held.key, b"x"))
    await b.delete("once")
    await once.lost.wait()
    assert held.renewed == 3
    assert not held.lost.is_set()


async def test_a_numbered_registration_that_was_given_up_is_removed(driver):
    """Else the place of a candidate who heard an error stands as long as its session, and nobody else may lead."""
    async with behind_proxy(driver, session_timeout_ms=20_000, patience_ms=500) as (store, other, proxy):
        first = await store.register("e/n-", b"", sequential=True)

        async def places():
            return [key for key, _ in await other.list("e/")]

        async def made():
            return len(await places()) == 2

        task = await lose_answer(proxy, store.register("e/n-", b"", sequential=True), made, cut=True)
        with pytest.raises((MetadataUnknownError, StoreAwayError)):
            await task
        assert await made()
        proxy.pass_everything()

        async def removed():
            return await places() == [first.key]

        await until(removed)
        again = await store.register("e/n-", b"", sequential=True)
        assert await places() == [first.key, again.key]


async def test_a_client_that_is_closed_removes_no_lost_registration_any_more(driver):
    async with behind_proxy(driver, session_timeout_ms=20_000, patience_ms=500) as (store, other, proxy):
        await store.register("e/n-", b"", sequential=True)

        async def made():
            return len(await other.list("e/")) == 2

        task = await lose_answer(proxy, store.register("e/n-", b"", sequential=True), made, cut=True)
        proxy.refuse()
        with pytest.raises((MetadataUnknownError, StoreAwayError)):
            await task
        await store.close()

        async def at_rest():
            return not any("lost registration" in task.get_name() for task in asyncio.all_tasks())

        await until(at_rest)


@pytest.mark.parametrize("sequential", [False, True])
async def test_a_registration_that_is_cancelled_at_any_moment_is_removed_on_the_same_connection(
    sequential, a, b
):
    await (await a.register("e/first", b"")).close()
    steps = done = 0
    while not done:
        steps += 1
        making = asyncio.create_task(a.register("e/r-", b"", sequential=sequential))
        for _ in range(steps):
            await asyncio.sleep(0.001)
        making.cancel()
        with suppress(asyncio.CancelledError):
            held = await making
            closing = asyncio.create_task(held.close())
            await asyncio.sleep(0)
            closing.cancel()
            done = 1

        async def removed():
            return not await b.list("e/")

        await a.get("e/first")
        await until(removed)
    assert not any("e+" in place for place in a._watches._places)


async def test_a_registration_that_is_deleted_before_it_is_watched_comes_back(driver):
    async with behind_proxy(driver, session_timeout_ms=20_000) as (store, other, proxy):
        add_place, connected = store._watches.add_place, store._registrations.connected

        async def deleted_before(path):
            await other.delete("r")
            await add_place(path)

        store._watches.add_place = deleted_before
        held = await store.register("r", b"x")
        assert await present(other, "r", b"x")

        async def deleted_afterwards():
            await connected()
            await other.delete("r")

        store._registrations.connected = deleted_afterwards
        proxy.cut()

        async def renewed_twice():
            return held.renewed == 2

        await until(renewed_twice)
        assert await present(other, "r", b"x")


# --- sessions and connections -----------------------------------------------------------------------------------


async def test_a_cut_connection_keeps_the_session_and_watchers_read_again(driver):
    async with behind_proxy(driver, session_timeout_ms=20_000) as (store, other, proxy):
        held = await store.register("r", b"x")
        async with store.watch("k/") as changes:
            assert (await anext(changes)).reread_all
            for i in range(5):
                proxy.cut()
                await other.create(f"k/{i}", b"")
                while not (keys := await anext(changes)).reread_all:
                    assert keys <= {f"k/{n}" for n in range(i + 1)}
                await other.create(f"k/{i}b", b"")
                while f"k/{i}b" not in (keys := await anext(changes)):
                    pass
        assert held.renewed == 0
        assert (await other.get("r")).value == b"x"


async def test_a_watch_lives_on_although_the_end_of_an_earlier_one_was_lost_with_a_connection(driver):
    async with behind_proxy(driver, session_timeout_ms=20_000) as (store, other, proxy):
        earlier = store.watch("k/")
        await earlier.__aenter__()
        proxy.lose_answers()
        ending = asyncio.create_task(earlier.__aexit__(None, None, None))
        await asyncio.sleep(0)
        proxy.pass_everything()

        async def is_away():
            return not store._session.is_ready

        await until(is_away)
        async with store.watch("k/") as changes:
            await ending
            await store.get("k")
            await anext(changes)
            await other.create("k/1", b"")
            assert "k/1" in await anext(changes)


async def test_a_partition_longer_than_the_session_under_load(driver):
    """Nothing acknowledged is lost, registrations come back, watchers read again, counters count once."""
    async with behind_proxy(driver, patience_ms=1000) as (store, other, proxy):
        held = await store.register("bookies/available/b:1", b"here")
        await store.create("counter", b"0")
        stop, done, unknown = asyncio.Event(), 0, 0

        async def load():
            nonlocal done, unknown
            while not stop.is_set():
                try:
                    found = await store.get("counter")
                    await store.put("counter", b"%d" % (int(found.value) + 1), found.version)
                    done += 1
                except MetadataUnknownError:
                    unknown += 1
                except (VersionConflictError, StoreAwayError):
                    continue

        loads = [asyncio.create_task(load()) for _ in range(4)]
        async with store.watch("bookies/") as changes:
            await anext(changes)
            await until(lambda: counted(other, 20))
            proxy.go_silent()
            gone_at = asyncio.create_task(until(lambda: absent(other, held.key)))
            await asyncio.sleep(PARTITION_S)
            await gone_at
            before = done
            proxy.pass_everything()
            await until(lambda: present(other, held.key, b"here"))
            while not (await anext(changes)).reread_all:
                pass

            async def goes_on():
                return done > before + 20

            await until(goes_on)
        stop.set()
        await asyncio.gather(*loads)
        assert held.renewed >= 1
        assert not held.lost.is_set()
        final = int((await other.get("counter")).value)
        assert done <= final <= done + unknown


async def counted(store, number):
    return int((await store.get("counter")).value) >= number


async def absent(store, key):
    return await store.get(key) is None


async def test_a_session_that_ends_while_cut_off_gives_the_key_to_whoever_took_it(driver):
    async with behind_proxy(driver, session_timeout_ms=20_000) as (store, other, proxy):
        held = await store.register("bookies/available/b:1", b"first")
        proxy.refuse()
        await asyncio.to_thread(end_session, driver.server.host, store._session.client.client_id)
        mine = await other.register("bookies/available/b:1", b"second")
        proxy.pass_everything()
        await held.lost.wait()
        assert (await other.get("bookies/available/b:1")).value == b"second"
        assert not mine.lost.is_set()


async def test_a_restart_of_zookeeper_keeps_sessions_registrations_and_values(tmp_path):
    zookeeper_or_skip()
    server = ZookeeperServer(tmp_path)
    try:
        address = ZookeeperAddress(
            (server.host,), "/ledgers", None, ZookeeperOptions(session_timeout_ms=60_000)
        )
        store = await ZookeeperStore.open(address)  # which Java formatted
        try:
            held = await store.register("bookies/available/b:1", b"x")
            version = await store.create("k", b"1")
            async with store.watch("k") as changes:
                await anext(changes)
                for command in ("stop-zookeeper", "kill-zookeeper"):
                    await asyncio.to_thread(server.run, command)
                    waiting = asyncio.create_task(store.put("k", command.encode(), version))
                    await asyncio.to_thread(server.run, "start-zookeeper")
                    try:
                        version = await waiting
                    except (MetadataUnknownError, StoreAwayError):
                        version = await store.put("k", command.encode(), (await store.get("k")).version)
                    while not (await anext(changes)).reread_all:
                        pass
            assert (await store.get("bookies/available/b:1")).value == b"x"
            assert not held.lost.is_set()
        finally:
            await store.close()
    finally:
        server.stop()

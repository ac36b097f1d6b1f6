"""ZooKeeper away, slow, lying, restarted, cut off: what a store of it says and does. Against a real server."""

import asyncio
import uuid
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from kazoo.client import KazooClient

from conformance.metadata_drivers import ZookeeperDriver, clients, end_session, present, until
from quire.core.errors import (
    AlreadyExistsError,
    CorruptMetadataError,
    MetadataUnknownError,
    NoClusterError,
    RefusedError,
)
from quire.core.ledger_metadata import DigestType, new_ledger
from quire.metadata.connect import format_store, open_store
from quire.metadata.ledgers import LedgerStore
from quire.metadata.store import Create, Put, StoreAwayError, VersionConflictError
from quire.metadata.zookeeper import ZookeeperStore
from quire.metadata.zookeeper_options import Layout, ZookeeperAddress, ZookeeperOptions
from support.rounds import PROOF
from support.tcp_proxy import tcp_proxy
from support.zookeeper_server import ZookeeperServer, zookeeper_or_skip

pytestmark = pytest.mark.interop

SESSION_MS = 10_000 if PROOF else 1500
PARTITION_S = 30 if PROOF else 4
PATIENCE_S = 120


def run(scenario):
    async def bounded():
        async with asyncio.timeout(PATIENCE_S):
            return await scenario

    return asyncio.run(bounded())


@pytest.fixture
def driver(tmp_path):
    return ZookeeperDriver(tmp_path)


def via(address, proxy, **options):
    """The same cluster through a proxy."""
    options = ZookeeperOptions(**({"session_timeout_ms": SESSION_MS} | options))
    return replace(address, hosts=(f"127.0.0.1:{proxy.port}",), options=options)


@asynccontextmanager
async def behind_proxy(driver, **options):
    """A store that a test may cut off, and one that it may not."""
    host, port = driver.server.host.split(":")
    async with clients(driver, 1) as (other,), tcp_proxy(host, int(port)) as proxy:
        store = await ZookeeperStore.open(via(driver.address, proxy, **options))
        try:
            yield store, other, proxy
        finally:
            await store.close()


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


async def lose_answer(proxy, change, happened):
    """Start a change whose answer is lost although it happens."""
    proxy.lose_answers()
    task = asyncio.ensure_future(change)
    await until(happened)
    proxy.pass_everything()
    return task


def test_a_change_whose_answer_is_lost_is_unknown_and_reading_tells(driver):
    async def scenario():
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

    run(scenario())


def test_a_change_that_never_arrived_is_unknown_too(driver):
    async def scenario():
        async with behind_proxy(driver) as (store, other, proxy):
            proxy.go_silent()
            task = asyncio.create_task(store.create("k", b"1"))
            await asyncio.sleep(0.1)
            proxy.pass_everything()
            with pytest.raises(MetadataUnknownError):
                await task
            assert await store.get("k") is None
            assert await other.get("k") is None

    run(scenario())


def test_the_records_of_ledgers_settle_a_lost_answer(driver):
    async def scenario():
        async with behind_proxy(driver) as (store, other, proxy):
            ledgers, others = LedgerStore(store), LedgerStore(other)

            async def there():
                return len(await others.list()) == 2

            await ledgers.create(record_of(4))  # its folders are there, so that the first request does it

            record = record_of(5)
            task = await lose_answer(proxy, ledgers.create(record), there)
            version = await task
            closed = (
                record.closed(-1, 0) if hasattr(record, "closed") else replace(record, custom=(("k", b"v"),))
            )

            async def written():
                return (await others.read(5))[1] > version

            task = await lose_answer(proxy, ledgers.write(closed, version), written)
            assert await task == version + 1
            with pytest.raises(AlreadyExistsError):
                await others.create(record_of(5, token=8))

    run(scenario())


def test_a_registration_settles_a_lost_answer_itself(driver):
    async def scenario():
        async with behind_proxy(driver, session_timeout_ms=20_000) as (store, other, proxy):
            task = await lose_answer(
                proxy,
                store.register("bookies/available/b:1", b"x"),
                lambda: present(other, "bookies/available/b:1", b"x"),
            )
            held = await task
            await held.update(b"y")
            assert (await other.get(held.key)).value == b"y"

            first = await store.register("e/n-", b"", sequential=True)

            async def numbered():
                return len(await other.list("e/")) == 2

            task = await lose_answer(proxy, store.register("e/n-", b"", sequential=True), numbered)
            numbered_one = await task
            assert [key for key, _ in await other.list("e/")] == [first.key, numbered_one.key]
            await numbered_one.close()
            assert [key for key, _ in await other.list("e/")] == [first.key]
            assert held.renewed == 0

    run(scenario())


def test_a_registration_that_somebody_deletes_comes_back(driver):
    async def scenario():
        async with clients(driver, 2) as (a, b):
            held = await a.register("bookies/available/b:1", b"x")
            once = await a.register("once", b"x", again=False)
            for _ in range(3):
                await b.delete(held.key)
                await until(lambda: present(b, held.key, b"x"))
            await b.delete("once")
            await once.lost.wait()
            assert held.renewed == 3
            assert not held.lost.is_set()

    run(scenario())


# --- sessions and connections -----------------------------------------------------------------------------------


def test_a_cut_connection_keeps_the_session_and_watchers_read_again(driver):
    async def scenario():
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

    run(scenario())


def test_a_partition_longer_than_the_session_under_load(driver):
    """Nothing acknowledged is lost, registrations come back, watchers read again, counters count once."""

    async def scenario():
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

    run(scenario())


async def counted(store, number):
    return int((await store.get("counter")).value) >= number


async def absent(store, key):
    return await store.get(key) is None


def test_a_session_that_ends_while_cut_off_gives_the_key_to_whoever_took_it(driver):
    async def scenario():
        async with behind_proxy(driver, session_timeout_ms=20_000) as (store, other, proxy):
            held = await store.register("bookies/available/b:1", b"first")
            proxy.refuse()
            await asyncio.to_thread(end_session, driver.server.host, store._session.client.client_id)
            mine = await other.register("bookies/available/b:1", b"second")
            proxy.pass_everything()
            await held.lost.wait()
            assert (await other.get("bookies/available/b:1")).value == b"second"
            assert not mine.lost.is_set()

    run(scenario())


def test_a_restart_of_zookeeper_keeps_sessions_registrations_and_values(tmp_path):
    zookeeper_or_skip()
    server = ZookeeperServer(tmp_path)

    async def scenario():
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

    try:
        run(scenario())
    finally:
        server.stop()


# --- away, wrong, lying ---------------------------------------------------------------------------------------------


def test_a_store_that_is_away_says_so_and_changes_nothing(driver):
    async def scenario():
        async with behind_proxy(driver, session_timeout_ms=20_000, patience_ms=300) as (store, other, proxy):
            proxy.refuse()
            await until(lambda: away(store))
            for attempt in (store.get("k"), store.list(""), store.create("k", b""), store.next_ledger_id()):
                with pytest.raises(StoreAwayError, match="nothing was changed"):
                    await attempt
            proxy.pass_everything()

            async def back():
                try:
                    return await store.create("k", b"") == 1
                except StoreAwayError:
                    return False

            await until(back)
            assert (await other.get("k")).value == b""

    run(scenario())


async def away(store):
    return not store._session._usable.is_set()


def test_nobody_at_the_address_is_said_with_the_cause():
    async def scenario():
        with pytest.raises(NoClusterError, match=r"no ZooKeeper answered at 127.0.0.1:1 .*refused"):
            await open_store("zk://127.0.0.1:1/ledgers?patience_ms=500")

    run(scenario())


@pytest.mark.parametrize(
    "answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\0\0\0\x04abcd", b"\xff" * 64, b""]
)
def test_what_is_no_zookeeper_is_said(answer):
    async def scenario():
        async def serve(reader, writer):
            await reader.read(10)
            writer.write(answer)
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(NoClusterError, match=f"127.0.0.1:{port}"):
            await open_store(f"zk://127.0.0.1:{port}/ledgers?patience_ms=1500&session_timeout_ms=1000")
        server.close()

    run(scenario())


@asynccontextmanager
async def raw(driver):
    """A plain client of the server, to make what a Quire client would not."""
    client = KazooClient(hosts=driver.server.host)
    await asyncio.to_thread(client.start)
    try:
        yield client
    finally:
        await asyncio.to_thread(client.stop)
        client.close()


def test_a_wrong_path_is_said():
    async def scenario():
        host = zookeeper_or_skip().host
        with pytest.raises(NoClusterError, match=r"no cluster at .*quire metadata format"):
            await open_store(f"zk://{host}/nowhere")
        with pytest.raises(NoClusterError, match="not a BookKeeper cluster"):
            await open_store(f"zk://{host}/zookeeper")

    run(scenario())


def test_a_cluster_that_cannot_be_trusted_is_refused(driver):
    async def scenario():
        root = driver.address.root
        async with clients(driver, 1) as (a,), raw(driver) as client:
            await a.create("logs/x", b"")
            layout = client.get(f"{root}/LAYOUT")[0]
            for value, kind, message in [
                (b"2\nx", CorruptMetadataError, "LAYOUT is damaged"),
                (layout.replace(b"Hier", b"Other"), NoClusterError, "does not know"),
            ]:
                client.set(f"{root}/LAYOUT", value)
                with pytest.raises(kind, match=message):
                    await driver.open()
            client.set(f"{root}/LAYOUT", layout)
            with pytest.raises(NoClusterError, match="hierarchical, and the URI says flat"):
                await ZookeeperStore.open(replace(driver.address, layout=Layout.FLAT))
            client.set(f"{root}/INSTANCEID", b"\xff\xfe")
            with pytest.raises(CorruptMetadataError, match="INSTANCEID is damaged"):
                await driver.open()
            client.set(f"{root}/INSTANCEID", str(uuid.uuid4()).encode())
            with pytest.raises(NoClusterError, match="formatted by another tool"):
                await driver.open()

    run(scenario())


def test_an_old_cluster_without_instance_id_gets_one_that_java_does_not_see(driver):
    async def scenario():
        async with clients(driver, 1), raw(driver) as client:
            client.delete(f"{driver.address.root}/INSTANCEID")
            client.delete(f"{driver.address.root}/LAYOUT")
        async with clients(driver, 2) as (a, b), raw(driver) as client:
            assert a.instance_id == b.instance_id
            uuid.UUID(a.instance_id)
            assert client.exists(f"{driver.address.root}/INSTANCEID") is None

    run(scenario())


def test_a_format_is_refused_over_a_cluster_and_over_living_bookies(driver):
    async def scenario():
        uri = f"zk+longhierarchical://{driver.address}"
        first = await format_store(uri)
        with pytest.raises(AlreadyExistsError, match="--force"):
            await format_store(uri)
        store = await open_store(uri)
        held = await store.register("bookies/available/b:1", b"")
        await store.create("ledgers/" + "0" * 19, b"x")
        with pytest.raises(NoClusterError, match=r"1 bookies are registered .* b:1"):
            await format_store(uri, force=True)
        await held.close()
        assert await format_store(uri, force=True) != first
        await store.close()
        async with await open_store(uri) as store:
            assert await store.list("") == []

    run(scenario())


# --- ids --------------------------------------------------------------------------------------------------------


def test_ids_go_on_beyond_31_bits_as_javas_do(driver):
    async def scenario():
        async with raw(driver) as client, clients(driver, 2) as (a, b):
            client.ensure_path(f"{driver.address.root}/idgen-long/HOB-0000000007")
            ids = [await a.next_ledger_id(), await b.next_ledger_id(), await a.next_ledger_id()]
            assert ids == [7 << 32, 7 << 32 | 1, 7 << 32 | 2]
            await a._ids._make_high_bits(8)
            assert await b.next_ledger_id() == 8 << 32
            key = f"ledgers/{ids[0]:019d}"
            await a.create(key, b"x")
            await a.create(f"ledgers/{12:019d}", b"y")
            assert [k for k, _ in await b.list("ledgers/")] == [f"ledgers/{12:019d}", key]
            await b.delete(key)
            await b.delete(f"ledgers/{12:019d}")
            assert {"00", "000"}.isdisjoint(client.get_children(driver.address.root))

    run(scenario())


# --- rights -----------------------------------------------------------------------------------------------------


def test_what_a_creator_made_is_refused_to_others(driver):
    async def scenario():
        options = ZookeeperOptions(acl="creator", credentials=("digest", "me", "secret"))
        mine = await ZookeeperStore.open(replace(driver.address, options=options), create=True)
        await mine.create("k", b"1")
        for credentials in (None, ("digest", "me", "wrong")):
            with pytest.raises(RefusedError, match="credentials"):
                await ZookeeperStore.open(
                    replace(driver.address, options=ZookeeperOptions(credentials=credentials))
                )
        again = await ZookeeperStore.open(replace(driver.address, options=options))
        assert (await again.get("k")).value == b"1"
        await again.close()
        await mine.close()

    run(scenario())


JAAS = """Server {
  org.apache.zookeeper.server.auth.DigestLoginModule required user_me="secret";
};
"""


def test_sasl_digest_md5_is_spoken_and_a_wrong_password_said(tmp_path):
    zookeeper_or_skip()
    jaas = tmp_path / "jaas.conf"
    jaas.write_text(JAAS)
    server = ZookeeperServer(
        tmp_path,
        options=f"-Djava.security.auth.login.config={jaas}"
        " -Dzookeeper.authProvider.1=org.apache.zookeeper.server.auth.SASLAuthenticationProvider",
    )

    async def scenario():
        options = ZookeeperOptions(acl="creator", credentials=("sasl", "me", "secret"))
        address = ZookeeperAddress((server.host,), "/mine", None, options)
        async with await ZookeeperStore.open(address, create=True) as store:
            await store.create("k", b"1")
            with pytest.raises(RefusedError, match="credentials"):
                await ZookeeperStore.open(replace(address, options=ZookeeperOptions()))
            wrong = replace(options, credentials=("sasl", "me", "wrong"), patience_ms=3000)
            with pytest.raises(NoClusterError, match="refuses the credentials"):
                await ZookeeperStore.open(replace(address, options=wrong))

    try:
        run(scenario())
    finally:
        server.stop()

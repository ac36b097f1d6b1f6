"""ZooKeeper away, at a wrong path, lying, with rights: what a store of it says. Against a real server."""

import asyncio
import uuid
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from kazoo.client import KazooClient

from conformance.metadata_drivers import ZookeeperDriver, clients, until
from conformance.zookeeper_proxy import behind_proxy
from quire.core.errors import (
    AlreadyExistsError,
    CorruptMetadataError,
    NoClusterError,
    RefusedError,
)
from quire.metadata.connect import format_store, open_store
from quire.metadata.store import StoreAwayError
from quire.metadata.zookeeper.ids import REMOVED_AT_ONCE
from quire.metadata.zookeeper.options import ZookeeperAddress, ZookeeperLayout, ZookeeperOptions
from quire.metadata.zookeeper.store import ZookeeperStore
from support.zookeeper_server import ZookeeperServer, zookeeper_or_skip

pytestmark = pytest.mark.interop


@pytest.fixture
def driver(tmp_path):
    return ZookeeperDriver(tmp_path)


# --- away, wrong, lying ---------------------------------------------------------------------------------------------


async def test_a_store_that_is_away_says_so_and_changes_nothing(driver):
    async with behind_proxy(driver, session_timeout_ms=20_000, patience_ms=1_000) as (
        store,
        other,
        proxy,
    ):
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


async def away(store):
    return not store._session._usable.is_set()


async def test_nobody_at_the_address_is_said_with_the_cause():
    with pytest.raises(NoClusterError, match=r"no ZooKeeper server responded at 127.0.0.1:1 .*refused"):
        await open_store("zk://127.0.0.1:1/ledgers?patience_ms=500")


@pytest.mark.parametrize(
    "answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\0\0\0\x04abcd", b"\xff" * 64, b""]
)
async def test_what_is_no_zookeeper_is_said(answer):
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


async def test_a_wrong_path_is_said():
    host = zookeeper_or_skip().host
    with pytest.raises(NoClusterError, match=r"no cluster exists at .*quire metadata format"):
        await open_store(f"zk://{host}/nowhere")
    with pytest.raises(NoClusterError, match="not a BookKeeper cluster"):
        await open_store(f"zk://{host}/zookeeper")


async def test_a_cluster_that_cannot_be_trusted_is_refused(driver, a):
    root = driver.address.root
    async with raw(driver) as client:
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
            await ZookeeperStore.open(replace(driver.address, layout=ZookeeperLayout.FLAT))
        client.set(f"{root}/INSTANCEID", b"\xff\xfe")
        with pytest.raises(CorruptMetadataError, match="INSTANCEID is damaged"):
            await driver.open()
        client.set(f"{root}/INSTANCEID", str(uuid.uuid4()).encode())
        with pytest.raises(NoClusterError, match="formatted by another tool"):
            await driver.open()


async def test_an_old_cluster_without_instance_id_gets_one_that_java_does_not_see(driver, a, b):
    async with clients(driver, 1), raw(driver) as client:
        client.delete(f"{driver.address.root}/INSTANCEID")
        client.delete(f"{driver.address.root}/LAYOUT")
    async with raw(driver) as client:
        assert a.instance_id == b.instance_id
        uuid.UUID(a.instance_id)
        assert client.exists(f"{driver.address.root}/INSTANCEID") is None


async def test_a_format_is_refused_over_a_cluster_and_over_living_bookies(driver):
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


# --- ids --------------------------------------------------------------------------------------------------------


async def test_ids_go_on_beyond_31_bits_as_javas_do(driver):
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


async def test_the_next_number_is_drawn_ahead_and_used_znodes_are_removed(driver):
    async with raw(driver) as client, clients(driver, 2) as (a, b):
        folder = f"{driver.address.root}/idgen"
        ids = [await store.next_ledger_id() for _ in range(50) for store in (a, b)]
        assert len(set(ids)) == 100

        async def few_are_left():
            return len(client.get_children(folder)) < 2 * REMOVED_AT_ONCE

        await until(few_are_left)
        await until(lambda: drew_ahead(a))
        await a._ids._ahead
        await driver.lose_session(a, b)
        ids += [await store.next_ledger_id() for _ in range(3) for store in (a, b)]
        assert len(set(ids)) == 106


async def test_a_number_drawn_ahead_that_is_lost_is_skipped(driver):
    async with behind_proxy(driver) as (store, other, proxy):
        ids = [await store.next_ledger_id()]
        await until(lambda: drew_ahead(store))
        await store._ids._ahead
        ids.append(await store.next_ledger_id())  # it was there already
        proxy.lose_answers()  # the one after it, which is drawn in the loop's next turn, is lost
        await until(lambda: drew_ahead(store))
        proxy.pass_everything()
        ids += [await store.next_ledger_id(), await other.next_ledger_id(), await store.next_ledger_id()]
        assert len(set(ids)) == 5


async def drew_ahead(store):
    return store._ids._ahead is not None


# --- rights -----------------------------------------------------------------------------------------------------


async def test_what_a_creator_made_is_refused_to_others(driver):
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


JAAS = """Server {
  org.apache.zookeeper.server.auth.DigestLoginModule required user_me="secret";
};
"""


async def test_sasl_digest_md5_is_spoken_and_a_wrong_password_said(tmp_path):
    zookeeper_or_skip()
    jaas = tmp_path / "jaas.conf"
    jaas.write_text(JAAS)
    server = ZookeeperServer(
        tmp_path,
        options=f"-Djava.security.auth.login.config={jaas}"
        " -Dzookeeper.authProvider.1=org.apache.zookeeper.server.auth.SASLAuthenticationProvider",
    )
    try:
        options = ZookeeperOptions(acl="creator", credentials=("sasl", "me", "secret"))
        address = ZookeeperAddress((server.host,), "/mine", None, options)
        async with await ZookeeperStore.open(address, create=True) as store:
            await store.create("k", b"1")
            with pytest.raises(RefusedError, match="credentials"):
                await ZookeeperStore.open(replace(address, options=ZookeeperOptions()))
            wrong = replace(options, credentials=("sasl", "me", "wrong"), patience_ms=3000)
            with pytest.raises(NoClusterError, match="refuses the credentials"):
                await ZookeeperStore.open(replace(address, options=wrong))
    finally:
        server.stop()

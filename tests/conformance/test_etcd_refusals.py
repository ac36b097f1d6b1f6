"""etcd away, lying, with rights, over TLS, on other loops: what a store of it says. Against a real server."""

import asyncio
import multiprocessing
import subprocess

import pytest
import uvloop

from conformance.etcd_proxy import behind_proxy
from conformance.metadata_drivers import EtcdDriver, clients, until
from conformance.test_metadata_processes import forked_use
from quire.core.errors import (
    AlreadyExistsError,
    CorruptMetadataError,
    MisuseError,
    NoClusterError,
    RefusedError,
)
from quire.metadata.connect import format_store, open_store
from quire.metadata.etcd.connection import TXN
from quire.metadata.etcd.keys import put
from quire.metadata.etcd.store import EtcdStore
from quire.metadata.store import Create, StoreAwayError
from quire.wire.proto.etcd_pb2 import TxnRequest
from support.etcd_server import EtcdServer, etcd_or_skip

pytestmark = pytest.mark.interop


@pytest.fixture
def driver(tmp_path):
    return EtcdDriver(tmp_path)


# --- away, wrong, lying ---------------------------------------------------------------------------------------------


async def test_a_store_that_is_away_says_so_and_changes_nothing(driver):
    async with behind_proxy(driver, session_timeout_ms=20_000, patience_ms=300) as (store, other, proxy):
        proxy.refuse()

        async def noticed():
            try:
                await store.get("k")
            except StoreAwayError:
                return True
            return False

        await until(noticed)
        for attempt in (store.get("k"), store.list(""), store.create("k", b""), store.next_ledger_id()):
            with pytest.raises(StoreAwayError, match=r"etcd at 127.0.0.1.*nothing was changed"):
                await attempt
        proxy.pass_everything()

        async def back():
            try:
                return await store.create("k", b"") > 0
            except StoreAwayError:
                return False

        await until(back)
        assert (await other.get("k")).value == b""


async def test_nobody_at_the_address_is_said_with_the_cause():
    with pytest.raises(NoClusterError, match=r"(?s)no etcd server responded at 127.0.0.1:1 .*refused"):
        await open_store("etcd://127.0.0.1:1/ledgers?patience_ms=500")


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\xff" * 64, b""])
async def test_what_is_no_etcd_is_said(answer):
    async def serve(reader, writer):
        await reader.read(10)
        writer.write(answer)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    with pytest.raises(NoClusterError, match=f"no etcd server responded at 127.0.0.1:{port}"):
        await open_store(f"etcd://127.0.0.1:{port}/ledgers?patience_ms=1000")
    server.close()


async def test_a_wrong_root_and_a_damaged_cluster_are_said(driver):
    uri = f"etcd://{driver.address}"
    with pytest.raises(NoClusterError, match="quire metadata format"):
        await open_store(uri)
    async with await open_store(uri, create=True) as store:
        key = store._layout.instance
        await store._connection.read(TXN, TxnRequest(success=[put(key, b"\xff")]))
        with pytest.raises(CorruptMetadataError, match="damaged"):
            await open_store(uri)


async def test_a_format_is_refused_over_a_cluster_and_over_living_bookies(driver):
    uri = f"etcd://{driver.address}"
    first = await format_store(uri)
    with pytest.raises(AlreadyExistsError, match="--force"):
        await format_store(uri)
    store = await open_store(uri)
    held = await store.register("bookies/available/b:1", b"")
    await store.create("ledgers/" + "0" * 19, b"x")
    with pytest.raises(NoClusterError, match=r"1 bookies are registered .*b:1"):
        await format_store(uri, force=True)
    await held.close()
    assert await format_store(uri, force=True) != first
    await store.close()
    async with await open_store(uri) as store:
        assert await store.list("") == []


async def test_more_operations_than_a_server_takes_are_refused(a):
    with pytest.raises(MisuseError, match="max-txn-ops"):
        await a.multi([Create(f"k{i}", b"") for i in range(200)])
    with pytest.raises(MisuseError, match="at most 1500000"):
        await a.multi([Create(f"k{i}", bytes(800_000)) for i in range(2)])
    assert await a.list("") == []


# --- rights and TLS -------------------------------------------------------------------------------------------------


def openssl(folder, *arguments):
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)


async def test_tls_is_spoken_and_an_unknown_certificate_refused(tmp_path):
    etcd_or_skip()
    for name in ("peer", "unknown"):
        openssl(
            tmp_path, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
            "-keyout", f"{name}.key", "-out", f"{name}.pem", "-days", "2", "-subj", "/CN=peer",
            "-addext", "subjectAltName=IP:127.0.0.1",
        )  # fmt: skip
    certificate, key = tmp_path / "peer.pem", tmp_path / "peer.key"
    server = EtcdServer(
        tmp_path, f"--cert-file={certificate}", f"--key-file={key}", f"--trusted-ca-file={certificate}",
        "--client-cert-auth",
    )  # fmt: skip
    try:
        uri = f"etcd://{server.host}/ledgers?patience_ms=3000&tls_ca={certificate}"
        mutual = f"{uri}&tls_certificate={certificate}&tls_key={key}"
        async with await open_store(mutual, create=True) as store:
            await store.register("r", b"")
        for wrong in (uri, uri.partition("&")[0], mutual.replace("peer.pem", "unknown.pem", 1)):
            with pytest.raises(NoClusterError, match="no etcd server responded"):
                await open_store(wrong.replace("3000", "1000"))
        with pytest.raises(NoClusterError, match="cannot be read"):
            await open_store(f"etcd://{server.host}/ledgers?tls_ca={tmp_path}/none.pem")
    finally:
        server.run("stop", check=False)


# --- loops and processes --------------------------------------------------------------------------------------------


async def work(driver):
    async with clients(driver, 2) as (a, b), a.watch("k") as changes:
        await anext(changes)
        held = await a.register("r", b"x")
        await asyncio.gather(*(b.create(f"k{i}", b"v") for i in range(20)))
        heard = set()
        while len(heard) < 20:
            heard |= await anext(changes)
        await held.close()
        await asyncio.gather(*(b.delete(f"k{i}") for i in range(20)))


async def test_it_runs_on_uvloop_and_on_loops_of_several_threads(driver):
    await asyncio.to_thread(uvloop.run, work(driver))
    elsewhere = (asyncio.to_thread(asyncio.run, work(EtcdDriver(None))) for _ in range(3))
    await asyncio.gather(*elsewhere, work(driver))


async def test_a_store_does_not_cross_a_fork(driver, a):
    await a.register("r", b"a")
    assert await asyncio.to_thread(forked_use, a) == "misuse"
    assert await asyncio.to_thread(forked_use, Opening(driver.address)) == "misuse"
    assert (await a.get("r")).value == b"a"


class Opening:
    """For `forked_use`: a store that is opened in the child."""

    def __init__(self, address):
        self.address = address

    async def get(self, key):
        async with await EtcdStore.open(self.address) as store:
            await store.get(key)


def child(address):
    async def use():
        async with await EtcdStore.open(address) as store:
            return await store.create("child", b"")

    asyncio.run(asyncio.wait_for(use(), 20))


async def test_another_process_opens_its_own(driver, a):
    process = multiprocessing.get_context("spawn").Process(target=child, args=(driver.address,))
    process.start()
    await asyncio.to_thread(process.join)
    assert process.exitcode == 0
    assert await a.get("child") is not None


# --- rights ---------------------------------------------------------------------------------------------------------


async def test_a_wrong_password_and_a_missing_right_are_said(tmp_path):
    etcd_or_skip()
    server = EtcdServer(tmp_path)
    try:
        await enable_auth(server)
        secret = tmp_path / "secret"
        secret.write_text("password:root:secret\n")
        uri = f"etcd://{server.host}/ledgers"
        async with await open_store(f"{uri}?credentials={secret}", create=True) as store:
            await store.register("r", b"")
            store._connection._token = "stale.1"
            await store.create("k", b"")
            await store.next_ledger_id()
        with pytest.raises(RefusedError, match="lack the right"):
            await open_store(uri)
        secret.write_text("password:root:wrong\n")
        with pytest.raises(NoClusterError, match="refuses the credentials"):
            await open_store(f"{uri}?credentials={secret}")
    finally:
        server.run("stop", check=False)


async def enable_auth(server):
    """A root user; with etcd's JSON gateway, because the driver knows nothing of users."""
    host, port = server.host.split(":")
    for path, body in [
        ("user/add", '{"name":"root","password":"secret"}'),
        ("role/add", '{"name":"root"}'),
        ("user/grant", '{"user":"root","role":"root"}'),
        ("enable", "{}"),
    ]:
        reader, writer = await asyncio.open_connection(host, int(port))
        request = f"POST /v3/auth/{path} HTTP/1.0\r\nContent-Length: {len(body)}\r\n\r\n{body}"
        writer.write(request.encode())
        answer = await reader.read()
        writer.close()
        assert b" 200 " in answer.partition(b"\r\n")[0], answer

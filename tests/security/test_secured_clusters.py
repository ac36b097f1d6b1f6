"""Whole clusters under TLS and with passwords, in each protocol and on both event loops."""

import asyncio
import ssl

import pytest

from quire.bookie.connections.client_connection import ClientConnection
from quire.client.access import LedgerAccess
from quire.client.config import ClientConfig
from quire.net.security.settings import BookieSasl, BookieSecurity, ClientSasl, ClientSecurity
from quire.net.security.tls import BookieTls
from support.certificates import jaas
from support.small_cluster import small_cluster
from support.waiting import until_async

PROTOCOLS = ["auto", "v3", "v2"]
PAYLOADS = [b"", b"x", *(bytes([number]) * (number * 1000) for number in range(40)), b"long" * 250_000]


def transports(cluster):
    return [
        connection.transport
        for server in cluster.servers.values()
        for connection in server._connections
        if connection.transport is not None
    ]


async def writes_and_reads(client):
    """Append in every way, open again with and without recovery, follow, read all."""
    ledger = await client.create_ledger()
    await ledger.append_many(PAYLOADS)
    for payload in PAYLOADS[:10]:
        await ledger.append(payload)
    beside = await client.open_ledger(ledger.ledger_id, recover=False)
    assert beside.last_add_confirmed >= len(PAYLOADS) - 1
    reader = await client.open_ledger(ledger.ledger_id)
    found = [bytes(entry.payload) async for entry in reader.read()]
    assert found == PAYLOADS + PAYLOADS[:10]
    assert (await client.verify_ledger(ledger.ledger_id)).good
    await ledger.abandon()


@pytest.mark.asyncio(loop_factories=["uvloop", "asyncio"])
@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_mutual_tls_and_a_password(tmp_path, keys, protocol):
    sasl = BookieSasl(jaas(tmp_path, users={"writer": 'with "quotes", and = signs'}))
    asked = keys.of_bookie(sasl, ca=keys.authority.ca, require_client_certificate=True)
    own = {"certificate": keys.client.certificate, "key": keys.client.key}
    name = ClientSasl(username="writer", password='with "quotes", and = signs')
    async with small_cluster(tmp_path, security=asked) as cluster:
        config = ClientConfig(protocol=protocol, security=keys.of_client(name, **own))
        await writes_and_reads(await cluster.client(config))
        open_ones = transports(cluster)
        assert open_ones
        for transport in open_ones:
            assert transport.get_extra_info("ssl_object").version() == "TLSv1.3"
            assert ("commonName", "client") in [
                part for parts in transport.get_extra_info("peercert")["subject"] for part in parts
            ]


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_password_alone(tmp_path, protocol):
    asked = BookieSecurity(sasl=BookieSasl(jaas(tmp_path, users={"writer": "right"})))
    name = ClientSecurity(sasl=ClientSasl(jaas(tmp_path / "client", user=("writer", "right"))))
    async with small_cluster(tmp_path, security=asked) as cluster:
        await writes_and_reads(await cluster.client(ClientConfig(protocol=protocol, security=name)))


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_cluster_that_changes_over(tmp_path, keys, protocol):
    """Clients in clear and under TLS on one bookie, and clients with a password on a bookie that asks for none."""
    asked = keys.of_bookie(allow_plain=True)
    name = ClientSasl(username="writer", password="whatever")
    async with small_cluster(tmp_path, security=asked) as cluster:
        for security in (None, keys.of_client(), keys.of_client(name), ClientSecurity(sasl=name)):
            client = await cluster.client(ClientConfig(protocol=protocol, security=security))
            await writes_and_reads(client)
            secured = [one for one in transports(cluster) if one.get_extra_info("ssl_object")]
            assert bool(secured) == (security is not None and security.tls is not None)
            await client.close()
            cluster.clients.clear()


@pytest.mark.asyncio(loop_factories=["asyncio"])
async def test_a_connection_that_is_lost_while_it_is_opened_is_no_refusal(tmp_path, keys, monkeypatch):
    """The bookie stops, and takes a last connection before it is gone: its writer waits for it, as for any other."""
    made = ClientConnection.connection_made
    stops = []

    def connection_made(self, transport):
        made(self, transport)
        if stops:
            stops.append(transport)
            transport.abort()

    monkeypatch.setattr(ClientConnection, "connection_made", connection_made)
    async with small_cluster(tmp_path, bookies=1, security=keys.of_bookie()) as cluster:
        settings = {"change_retry_ms_min": 20, "change_retry_ms_max": 100, "quorum_wait_ms": 60_000}
        client = await cluster.client(ClientConfig(security=keys.of_client(), **settings))
        ledger = await client.create_ledger(ensemble_size=1, write_quorum=1, ack_quorum=1)
        await ledger.append(b"before")
        stops.extend(transports(cluster))
        for transport in stops:
            transport.abort()
        [bookie] = cluster.servers
        async with asyncio.timeout(20):
            while not client.bookies.troubles():
                await client.bookies.info(bookie)
                await asyncio.sleep(0)
        assert "its log says why" in client.bookies.troubles()
        pending = ledger.append_nowait(b"after")
        await until_async(lambda: pending.done() or ledger._machine.below_quorum, "the writer to wait")
        stops.clear()
        assert await pending == 1
        await ledger.close()


async def test_the_key_may_have_a_password_and_stand_in_the_certificates_file(tmp_path, keys):
    locked = keys.authority.issue("locked", password="hidden")
    both = tmp_path / "both.pem"
    both.write_text(locked.certificate.read_text() + locked.key.read_text())
    (tmp_path / "password").write_text("hidden\n")
    asked = BookieSecurity(BookieTls(both, key_password_file=tmp_path / "password"))
    async with small_cluster(tmp_path, security=asked) as cluster:
        await writes_and_reads(await cluster.client(ClientConfig(security=keys.of_client())))


async def test_old_versions_of_tls_are_not_spoken(tmp_path, keys):
    async with small_cluster(tmp_path, bookies=1, security=keys.of_bookie()) as cluster:
        (server,) = cluster.servers.values()
        assert server.keys.context().minimum_version == ssl.TLSVersion.TLSv1_2
        client = await cluster.client(ClientConfig(security=keys.of_client()))
        assert client.bookies._channels._context.keys.context().minimum_version == ssl.TLSVersion.TLSv1_2


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_while_a_bookie_holds_new_clients_come_in_and_read_what_is_there(
    tmp_path, keys, protocol, monkeypatch
):
    """It waits for the metadata store; a client that cannot show who it is meanwhile would call its password wrong."""
    users = BookieSasl(jaas(tmp_path, users={"writer": "right"}))
    security = keys.of_client(ClientSasl(username="writer", password="right"))
    async with small_cluster(tmp_path, bookies=1, security=keys.of_bookie(users)) as cluster:
        writer = await cluster.client(ClientConfig(security=security))
        async with await writer.create_ledger(ensemble_size=1, write_quorum=1, ack_quorum=1) as ledger:
            await ledger.append(b"entry")
        access = LedgerAccess.of(await writer.ledger_metadata(ledger.ledger_id))
        [server] = cluster.servers.values()
        store_answers = asyncio.Event()
        monkeypatch.setattr(server.lease, "_settle", store_answers.wait)
        server.lease.registration_lost()
        client = await cluster.client(ClientConfig(protocol=protocol, security=security))
        reply = await client.bookies.read(server.bookie_id, access, 0, 0, 1000, timeout_ms=15_000)
        assert server.lease.pending
        assert [run.count for run in reply.runs] == [1], (reply.answer, client.bookies.troubles())
        store_answers.set()


@pytest.mark.asyncio(loop_factories=["asyncio"])
async def test_a_handshake_may_end_in_the_turn_in_which_the_bookie_holds(tmp_path, keys, monkeypatch):
    """Others send more than the disk takes at that moment; once there is room the client of the handshake is served too."""
    async with small_cluster(tmp_path, bookies=1, security=keys.of_bookie()) as cluster:
        [server] = cluster.servers.values()
        size = server.config.pending_bytes_max + 1
        loop = asyncio.get_running_loop()
        start_tls = loop.start_tls
        ended = asyncio.Event()

        async def started(*arguments, server_side=False, **options):
            transport = await start_tls(*arguments, server_side=server_side, **options)
            if server_side:
                server.admitted(size)
                ended.set()
            return transport

        monkeypatch.setattr(loop, "start_tls", started)
        client = await cluster.client(ClientConfig(security=keys.of_client()))
        async with await client.create_ledger(ensemble_size=1, write_quorum=1, ack_quorum=1) as ledger:
            added = asyncio.create_task(ledger.append(b"entry"))
            async with asyncio.timeout(20):
                await ended.wait()
                monkeypatch.undo()
                server.settled(size)
                assert await added == 0

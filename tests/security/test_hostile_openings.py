"""Openings that no client of ours would make: each is refused, costs its own connection, and nobody else notices."""

import asyncio
import contextlib
import os
import ssl

import pytest
from crc32c import crc32c

from quire.client.config import ClientConfig
from quire.core.answers import Answer
from quire.net.security.settings import BookieSasl, BookieSecurity
from quire.wire import bookkeeper, native, native_hello, v2, v3
from quire.wire.native import Kind
from quire.wire.proto import bookkeeper_protocol_pb2 as pb
from support.certificates import jaas
from support.small_cluster import small_cluster
from support.storage_disk import make_run
from support.waiting import until_async

KEY = b"k" * 20
SECONDS = 20


def start_tls(txn_id=1):
    message = v3.request(pb.START_TLS, txn_id)
    message.startTLSRequest.SetInParent()
    return v3.frame_of(message)


def auth_v3(payload=b"", plugin="sasl", txn_id=2):
    message = v3.request(pb.AUTH, txn_id)
    message.authRequest.authPluginName, message.authRequest.payload = plugin, payload
    return v3.frame_of(message)


def add_v3(ledger_id=7):
    entry = ledger_id.to_bytes(8, "big") + bytes(24) + b"payload"
    return b"".join(bytes(part) for part in v3.encode_add(3, ledger_id, 0, KEY, entry))


def add_v2(ledger_id=7):
    entry = ledger_id.to_bytes(8, "big") + bytes(24) + b"payload"
    return b"".join(bytes(part) for part in v2.encode_add(KEY, entry))


def native_request(kind, body=b"", ledger_id=-1):
    return native.encode_request(kind, 1, len(body), crc32c(body), ledger_id=ledger_id, key=KEY) + body


def native_add(ledger_id=7):
    return native_request(Kind.ADD, bytes(make_run(ledger_id, 0, 3).body), ledger_id)


def hello(**fields):
    return native_hello.encode_hello(native_hello.Hello("", "", **fields))


class Raw:
    """A connection that says what it likes."""

    def __init__(self, reader, writer):
        self.reader, self.writer = reader, writer

    @classmethod
    async def to(cls, server):
        return cls(*await asyncio.open_connection(*server.address))

    async def says(self, data):
        self.writer.write(data)
        await self.writer.drain()

    async def frame(self):
        async with asyncio.timeout(SECONDS):
            head = await self.reader.readexactly(4)
            return head + await self.reader.readexactly(int.from_bytes(head, "big"))

    async def hello_answer(self):
        async with asyncio.timeout(SECONDS):
            head = await self.reader.readexactly(12)
            size = int.from_bytes(head[8:], "big")
            return native_hello.decode_hello_answer((await self.reader.readexactly(size + 4))[:size])

    async def rest(self):
        """All that still comes until the bookie has closed."""
        async with asyncio.timeout(SECONDS):
            try:
                return await self.reader.read()
            except ConnectionResetError:
                return b""
            finally:
                self.writer.close()


async def only(cluster):
    (server,) = cluster.servers.values()
    return server


async def nothing_happened(cluster, keys, sasl=None):
    """Nothing is stored, no connection is left over, and a good client is served."""
    server = await only(cluster)
    assert server.ledgers.entries_added == 0
    await until_async(lambda: not server._connections)
    assert server.receive_budget.taken == 0
    security = keys.of_client(sasl) if server.keys.has_tls else None
    client = await cluster.client(ClientConfig(security=security))
    async with await client.create_ledger(ensemble_size=1, write_quorum=1, ack_quorum=1) as ledger:
        await ledger.append(b"good")


GARBAGE = [
    b"\x16\x03\x01\x02\x00" + b"\x01" * 512,
    b"GET / HTTP/1.1\r\n\r\n",
    b"\xff" * 300,
    b"\x15\x03\x03\x00\x02\x02\x28",
    os.urandom(5000),
]


@pytest.mark.parametrize("garbage", GARBAGE, ids=range(len(GARBAGE)))
@pytest.mark.parametrize("protocol", ["v3", "native"])
async def test_garbage_instead_of_a_handshake(tmp_path, keys, protocol, garbage):
    # The first is the beginning of a record that never ends: it ends the connection after this time.
    settings = {"security": keys.of_bookie(), "opening_seconds": 3.0}
    async with small_cluster(tmp_path, 1, records=[7, 8], **settings) as cluster:
        raw = await Raw.to(await only(cluster))
        if protocol == "v3":
            await raw.says(start_tls())
            assert v3.decode_response(await raw.frame()).status == 0
        else:
            await raw.says(hello(features=native_hello.START_TLS))
            assert (await raw.hello_answer()).features == native_hello.START_TLS
        await raw.says(garbage)
        await raw.rest()
        await nothing_happened(cluster, keys)


@pytest.mark.asyncio(loop_factories=["uvloop", "asyncio"])
async def test_half_handshakes_end_by_themselves(tmp_path, keys):
    """A hundred clients that agree on TLS and then stop, after nothing or in the middle of their first record."""
    context = ssl.create_default_context(cafile=keys.authority.ca)
    outgoing = ssl.MemoryBIO()
    tls = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        tls.do_handshake()
    first = outgoing.read()
    settings = {"security": keys.of_bookie(), "opening_seconds": 0.5}
    async with small_cluster(tmp_path, 1, records=[7, 8], **settings) as cluster:
        server = await only(cluster)
        stalled = []
        for number in range(100):
            raw = await Raw.to(server)
            stalled.append(raw)
            with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):  # cut off already
                if number % 4:
                    await raw.says(start_tls())
                    await raw.frame()
                    await raw.says(first[: len(first) * (number % 3) // 2])
        for raw in stalled:
            await raw.rest()
        await nothing_happened(cluster, keys)


@pytest.mark.parametrize(
    "behind",
    [add_v3(), 4 * add_v3(), start_tls(2), b"\x00\x00", b"\x00\x00\x00\x20partly", b"\x16\x03\x01", add_v2()],
    ids=["add", "four adds", "again", "stub", "part", "record", "v2"],
)
async def test_bytes_behind_start_tls(tmp_path, keys, behind):
    """What somebody between the two puts behind the wish for TLS would count as said by the client."""
    async with small_cluster(
        tmp_path, 1, records=[7, 8], security=keys.of_bookie(allow_plain=True)
    ) as cluster:
        raw = await Raw.to(await only(cluster))
        await raw.says(start_tls() + behind)
        await raw.rest()
        raw = await Raw.to(await only(cluster))
        await raw.says(hello(features=native_hello.START_TLS) + behind)
        await raw.rest()
        await nothing_happened(cluster, keys)


async def test_requests_before_tls(tmp_path, keys):
    """Refused as a Java bookie refuses, and START_TLS is still possible."""
    settings = {"security": keys.of_bookie()}
    async with small_cluster(tmp_path, 1, records=[7, 8], **settings) as cluster:
        raw = await Raw.to(await only(cluster))
        await raw.says(add_v3() + add_v3())
        for _ in range(2):
            answer = v3.decode_response(await raw.frame())
            assert (answer.status, answer.HasField("addResponse")) == (502, False)
        await raw.says(start_tls())
        assert v3.decode_response(await raw.frame()).status == 0
        raw.writer.close()
        raw = await Raw.to(await only(cluster))
        await raw.says(add_v2() + v2.encode_read(7, 0, 0, b""))
        assert v2.decode_answer(await raw.frame()).code == 102
        assert v2.decode_answer(await raw.frame()).code == 102
        await raw.says(v2.encode_batch_read(7, 0, 1, 10, 1000, 0, b""))
        assert await raw.rest() == b""
        raw = await Raw.to(await only(cluster))
        await raw.says(hello() + native_add())
        refused = await raw.hello_answer()
        assert (refused.version, refused.answer) == (0, Answer.UNAUTHORISED)
        assert (refused.bookie_id, refused.cluster_instance) == ("", "")
        assert await raw.rest() == b""
        await nothing_happened(cluster, keys)


async def test_a_request_behind_a_refused_hello_is_not_served(tmp_path, keys):
    """A bookie that is not the one meant said so, and stored what came behind the hello in the same packet."""
    async with small_cluster(tmp_path, 1, records=[7, 8]) as cluster:
        raw = await Raw.to(await only(cluster))
        await raw.says(native_hello.encode_hello(native_hello.Hello("", "another")) + native_add())
        assert (await raw.hello_answer()).answer is Answer.WRONG_BOOKIE
        assert await raw.rest() == b""
        assert (await only(cluster)).ledgers.entries_added == 0


async def test_start_tls_where_it_cannot_be(tmp_path, keys):
    """A bookie without a certificate, one that has served requests already, and a second time inside TLS."""
    async with small_cluster(
        tmp_path, 1, records=[7, 8], security=keys.of_bookie(allow_plain=True)
    ) as cluster:
        server = await only(cluster)
        raw = await Raw.to(server)
        await raw.says(add_v3())
        assert v3.decode_response(await raw.frame()).status == 0
        await raw.says(start_tls())
        assert v3.decode_response(await raw.frame()).status == 404
        raw.writer.close()
        reader, writer = await asyncio.open_connection(*server.address)
        raw = Raw(reader, writer)
        await raw.says(start_tls())
        await raw.frame()
        await writer.start_tls(
            ssl.create_default_context(cafile=keys.authority.ca), server_hostname="127.0.0.1"
        )
        await raw.says(start_tls(5))
        assert v3.decode_response(await raw.frame()).status == 404
        await raw.says(add_v3(8))
        assert v3.decode_response(await raw.frame()).status == 0
        writer.close()


# --- passwords --------------------------------------------------------------------------------------------------


def users(folder):
    return BookieSecurity(sasl=BookieSasl(jaas(folder, users={"hd": "testpwd"})))


async def test_a_recorded_answer_is_no_password(tmp_path, keys):
    """Another connection's proof, though right when it was made, and proofs that lack something."""
    async with small_cluster(tmp_path, 1, records=[7, 8], security=users(tmp_path)) as cluster:
        server = await only(cluster)
        from quire.net.security.sasl import SaslClient

        proofs = []
        for spoiled in (b"", b"nonsense", b'username="hd"', b"x" * 5000, bytes(range(256)), None):
            raw = await Raw.to(server)
            await raw.says(auth_v3())
            challenge = v3.decode_response(await raw.frame()).authResponse.payload
            proofs.append(SaslClient("hd", "testpwd").step(challenge))
            await raw.says(auth_v3(proofs[0] if spoiled is None else spoiled) + add_v3())
            if spoiled is None or len(proofs) > 1:
                answer = v3.decode_response(await raw.frame())
                assert (answer.status, answer.HasField("authResponse")) == (502, False)
                assert await raw.rest() == b""
            raw.writer.close()
        assert server.ledgers.entries_added == 0


async def test_requests_before_the_password(tmp_path, keys):
    async with small_cluster(tmp_path, 1, records=[7, 8], security=users(tmp_path)) as cluster:
        server = await only(cluster)
        raw = await Raw.to(server)
        await raw.says(hello(auth_scheme="sasl") + native_request(Kind.AUTH) + native_add())
        answer = await raw.hello_answer()
        assert (answer.answer, answer.features) == (
            Answer.OK,
            native_hello.AUTHENTICATE | native_hello.COLOCATED | native_hello.OFFERED,
        )
        await raw.rest()
        raw = await Raw.to(server)
        await raw.says(auth_v3() + add_v3())
        assert v3.decode_response(await raw.frame()).HasField("authResponse")
        answer = v3.decode_response(await raw.frame())
        assert (answer.status, answer.HasField("addResponse")) == (502, False)
        await raw.says(auth_v3(plugin="another") + add_v3())
        assert v3.decode_response(await raw.frame()).status == 502
        assert v3.decode_response(await raw.frame()).status == 502
        raw.writer.close()
        raw = await Raw.to(server)
        await raw.says(v2.encode_auth("sasl", b"") + v2.encode_auth("sasl", b"wrong") + add_v2())
        assert v2.decode_answer(await raw.frame()).plugin == "sasl"
        assert await raw.rest() == b""
        assert server.ledgers.entries_added == 0
        await until_async(lambda: not server._connections)


async def test_who_never_says_a_name_is_cut_off(tmp_path, keys):
    settings = {"security": users(tmp_path), "opening_seconds": 0.3}
    async with small_cluster(tmp_path, 1, records=[7, 8], **settings) as cluster:
        server = await only(cluster)
        silent = [await Raw.to(server) for _ in range(3)]
        await silent[1].says(auth_v3())
        await silent[2].says(hello(auth_scheme="sasl"))
        for raw in silent:
            await raw.rest()
        assert not server._connections


async def test_without_security_the_opening_is_as_it_was(tmp_path):
    async with small_cluster(tmp_path, 1, records=[7, 8]) as cluster:
        raw = await Raw.to(await only(cluster))
        await raw.says(start_tls() + auth_v3())
        assert v3.decode_response(await raw.frame()).status == 404
        answer = v3.decode_response(await raw.frame())
        assert answer.authResponse.authPluginName == bookkeeper.AUTH_DISABLED
        raw.writer.close()

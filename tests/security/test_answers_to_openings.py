"""What comes beside the answer to START_TLS, in clear and under TLS, and what a client makes of it."""

import asyncio
import contextlib

import pytest

from quire.client.access import LedgerAccess
from quire.client.bookies.bookies import BookieClient
from quire.core.answers import Answer
from quire.core.ledger.metadata import DigestType, new_ledger
from quire.metadata.bookies import BookieInfo, BookieRegistry
from quire.metadata.memory import MemoryStore
from quire.net.security.settings import BookieKeys, ClientSasl
from quire.wire import bookkeeper, v3
from quire.wire.proto import bookkeeper_protocol_pb2 as pb

TLS_RECORDS = (0x14, 0x15, 0x16, 0x17)
SECONDS = 20
NAMED = ClientSasl(username="hd", password="testpwd")


def start_tls_answer(status=0):
    return v3.frame_of(v3.response(v3.request(pb.START_TLS, 1).header, status))


def nobody_asks_for_a_name(operation=pb.AUTH):
    message = v3.response(v3.request(operation, 2).header, 0)
    message.authResponse.authPluginName = bookkeeper.AUTH_DISABLED
    message.authResponse.payload = b""
    return v3.frame_of(message)


STRETCH = nobody_asks_for_a_name() + 3 * nobody_asks_for_a_name(pb.WRITE_LAC)
"""Frames of one size, which are taken out of a chunk by themselves; one that counts, and some that do not."""


async def asked_of(serve, security, protocol="v3"):
    """A client asks a bookie that is `serve` for an entry: what it was answered, and what it says of the bookie."""

    async def served(reader, writer):
        async with asyncio.timeout(SECONDS):
            with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
                await serve(reader, writer)
        writer.close()

    store = MemoryStore()
    registry = BookieRegistry(store)
    record = new_ledger(7, ["b1"], write_quorum=1, ack_quorum=1, digest_type=DigestType.CRC32C, password=b"p")
    async with await asyncio.start_server(served, "127.0.0.1", 0) as server:
        await registry.register(BookieInfo("b1", *server.sockets[0].getsockname()))
        bookies = BookieClient(registry, store.instance_id, protocol=protocol, security=security)
        try:
            await bookies.start()
            return await bookies.read("b1", LedgerAccess.of(record), 0, 0, 1000), bookies.troubles()
        finally:
            await bookies.close()
            await store.close()


async def frame(reader):
    head = await reader.readexactly(4)
    return head + await reader.readexactly(int.from_bytes(head, "big"))


@pytest.mark.parametrize(
    "behind",
    [nobody_asks_for_a_name(), STRETCH, start_tls_answer(), b"\x00\x00"],
    ids=["name", "stretch", "again", "stub"],
)
async def test_bytes_behind_the_answer_to_start_tls_open_nothing(keys, behind):
    """What somebody between the two puts there is not heard: no request goes out in clear."""
    heard = []

    async def serve(reader, writer):
        await frame(reader)
        writer.write(start_tls_answer() + behind)
        heard.append(await reader.read())

    reply, _ = await asked_of(serve, keys.of_client(NAMED))
    assert reply.answer is Answer.UNREACHABLE
    assert all(not data or data[0] in TLS_RECORDS for data in heard), heard


async def test_what_a_java_bookie_says_after_the_handshake_may_come_at_one_time(keys):
    """It says that START_TLS failed because no name came yet, and goes on; both frames in one record."""

    async def serve(reader, writer):
        await frame(reader)
        writer.write(start_tls_answer())
        await writer.start_tls(BookieKeys(keys.of_bookie()).context())
        writer.write(start_tls_answer(bookkeeper.v3_code(Answer.ERROR)) + nobody_asks_for_a_name())
        request = v3.decode_request(await frame(reader))
        while request.header.operation != pb.READ_ENTRY:
            request = v3.decode_request(await frame(reader))
        answer = v3.response(request.header, bookkeeper.v3_code(Answer.NO_ENTRY))
        answer.readResponse.status = answer.status
        answer.readResponse.ledgerId, answer.readResponse.entryId = 7, 0
        writer.write(v3.frame_of(answer))
        await reader.read()

    reply, _ = await asked_of(serve, keys.of_client(NAMED))
    assert (reply.answer, reply.runs) == (Answer.OK, [])


async def test_a_v2_client_without_a_name_is_told_in_v3_that_it_needs_one(keys):
    """So says a Java bookie that asks for TLS and a name, before it has seen a request."""

    async def serve(reader, writer):
        await frame(reader)
        writer.write(start_tls_answer())
        await writer.start_tls(BookieKeys(keys.of_bookie()).context())
        writer.write(start_tls_answer(bookkeeper.v3_code(Answer.ERROR)))
        await reader.read()

    reply, troubles = await asked_of(serve, keys.of_client(), "v2")
    assert reply.answer is Answer.UNREACHABLE
    assert "password" in troubles

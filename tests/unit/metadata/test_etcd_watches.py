"""One stream for all watches of a client, at a server that speaks of watches only."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import grpc.aio
import pytest

from quire.core.errors import RefusedError
from quire.metadata.etcd.connection import AUTHENTICATE, WATCH, EtcdConnection
from quire.metadata.etcd.options import EtcdAddress, EtcdOptions
from quire.metadata.etcd.watches import EtcdWatches, WatchedRange
from quire.wire.proto.etcd_pb2 import (
    AuthenticateRequest,
    AuthenticateResponse,
    Event,
    KeyValue,
    ResponseHeader,
    WatchRequest,
    WatchResponse,
)
from support.waiting import until_async


class WatchServer:
    """Answers every request of a watch.

    Attributes:
        streams: those that clients have begun.
        watches: the keys that are watched, by the watch's number, and on which stream.
        token: what a client must have on its stream to be allowed to watch; a login gives it.
        denied: a key that nobody may watch.
        cut: ends the stream that is open.
    """

    def __init__(self) -> None:
        self.streams: list[Any] = []
        self.watches: dict[int, tuple[bytes, Any]] = {}
        self.token = "first"
        self.denied = b""
        self.cut = asyncio.Event()
        self._writing = asyncio.Lock()

    async def authenticate(self, _request: Any, _context: Any) -> AuthenticateResponse:
        """A login."""
        return AuthenticateResponse(token=self.token)

    async def serve(self, requests: Any, stream: Any) -> None:
        """One stream."""
        self.streams.append(stream)
        answering = asyncio.ensure_future(self._answer(requests, stream))
        cut = asyncio.ensure_future(self.cut.wait())
        await asyncio.wait({answering, cut}, return_when=asyncio.FIRST_COMPLETED)
        answering.cancel()
        cut.cancel()
        self.watches.clear()
        self.cut.clear()
        await stream.abort(grpc.StatusCode.UNAVAILABLE, "the server ends")

    async def _answer(self, requests: Any, stream: Any) -> None:
        token = dict(stream.invocation_metadata()).get("token", "first")
        async for request in requests:
            header = ResponseHeader(revision=1)
            create = request.create_request
            if request.HasField("create_request") and (token != self.token or create.key == self.denied):
                # As etcd since 3.5: the stream stays, and the answer does not say which watch it is about.
                why = "permission denied" if token == self.token else "invalid auth token"
                await self._write(
                    stream,
                    WatchResponse(
                        header=header,
                        watch_id=-1,
                        created=True,
                        canceled=True,
                        cancel_reason=f"rpc error: etcdserver: {why}",
                    ),
                )
            elif request.HasField("create_request"):
                self.watches[create.watch_id] = (create.key, stream)
                await self._write(
                    stream, WatchResponse(header=header, watch_id=create.watch_id, created=True)
                )
            else:
                number = request.cancel_request.watch_id
                del self.watches[number]
                await self._write(stream, WatchResponse(header=header, watch_id=number, canceled=True))

    async def _write(self, stream: Any, response: WatchResponse) -> None:
        """gRPC takes one write at a time, and a client may hear of one before it is over here."""
        async with self._writing:
            await stream.write(response)

    async def change(self, key: bytes) -> None:
        """Tell all who watch a key that it was changed."""
        for number, (watched, stream) in self.watches.items():
            if watched == key:
                event = Event(kv=KeyValue(key=key, mod_revision=2))
                header = ResponseHeader(revision=2)
                await self._write(stream, WatchResponse(header=header, watch_id=number, events=[event]))


@asynccontextmanager
async def watching() -> AsyncGenerator[tuple[WatchServer, EtcdWatches], None]:
    """A server, and the watches of one client."""
    fake, server = WatchServer(), grpc.aio.server()
    handlers = {
        WATCH: grpc.stream_stream_rpc_method_handler(
            fake.serve, WatchRequest.FromString, WatchResponse.SerializeToString
        ),
        AUTHENTICATE: grpc.unary_unary_rpc_method_handler(
            fake.authenticate, AuthenticateRequest.FromString, AuthenticateResponse.SerializeToString
        ),
    }
    for method, handler in handlers.items():
        service, name = method.path.removeprefix("/").split("/")
        server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(service, {name: handler})])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    options = EtcdOptions(credentials=("user", "password"))
    connection = EtcdConnection(EtcdAddress((f"127.0.0.1:{port}",), options=options))
    watches = EtcdWatches(connection)
    try:
        async with asyncio.timeout(30):
            yield fake, watches
    finally:
        watches.close()
        await connection.close()
        await server.stop(None)


async def watch(watches: EtcdWatches, key: bytes) -> tuple[WatchedRange, asyncio.Event]:
    """A watch of one key that stands; set when the key was changed."""
    changed = asyncio.Event()
    place = await watches.add(key, b"", lambda _events, _reread: changed.set(), lambda _failure: None)
    return place, changed


async def test_a_watch_whose_maker_is_cancelled_ends_and_no_other_with_it() -> None:
    async with watching() as (server, watches):
        _, changed = await watch(watches, b"a")
        making = asyncio.ensure_future(watch(watches, b"b"))
        await asyncio.sleep(0)
        making.cancel()
        await asyncio.wait({making})
        assert making.cancelled()
        await watch(watches, b"c")
        assert len(server.streams) == 1
        await until_async(
            lambda: sorted(key for key, _ in server.watches.values()) == [b"a", b"c"], "b to be forgotten"
        )
        await server.change(b"a")
        await changed.wait()


async def test_a_watch_that_is_ended_by_someone_who_is_cancelled_ends_alone() -> None:
    async with watching() as (server, watches):
        _, changed = await watch(watches, b"a")
        place, _ = await watch(watches, b"b")
        ending = asyncio.ensure_future(watches.remove(place))
        await asyncio.sleep(0)
        ending.cancel()
        await asyncio.wait({ending})
        await until_async(lambda: len(server.watches) == 1, "b to be forgotten")
        await server.change(b"a")
        await changed.wait()
        assert len(server.streams) == 1


async def test_a_watch_goes_on_although_the_token_has_ended_with_the_server() -> None:
    async with watching() as (server, watches):
        _, changed = await watch(watches, b"a")
        server.token = "second"
        server.cut.set()
        await until_async(lambda: len(server.streams) > 1 and server.watches, "it to stand again")
        await server.change(b"a")
        await changed.wait()


async def test_a_watch_that_is_denied_is_refused_at_once_and_no_other_with_it() -> None:
    async with watching() as (server, watches):
        _, changed = await watch(watches, b"a")
        server.denied = b"b"
        with pytest.raises(RefusedError, match="permission denied"):
            await watch(watches, b"b")
        await server.change(b"a")
        await changed.wait()

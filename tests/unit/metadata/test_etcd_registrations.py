"""Registrations of one client at an etcd of which only the leases of keys are there."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import grpc.aio
import pytest

from quire.core.errors import MisuseError
from quire.metadata.etcd.changes import Changes
from quire.metadata.etcd.connection import KEEP_ALIVE, EtcdConnection
from quire.metadata.etcd.keys import KeyLayout
from quire.metadata.etcd.options import EtcdAddress, EtcdOptions
from quire.metadata.etcd.registrations import EtcdRegistrations
from quire.metadata.etcd.store import EtcdStore
from quire.metadata.etcd.watches import EtcdWatches
from quire.wire.proto.etcd_pb2 import (
    Compare,
    KeyValue,
    LeaseGrantResponse,
    LeaseKeepAliveRequest,
    LeaseKeepAliveResponse,
    RangeRequest,
    RangeResponse,
    RequestOp,
    ResponseOp,
    TxnResponse,
)
from support.waiting import until_async

LEASE = 7


class SlowChanges:
    """Does what it is asked when it is allowed to.

    Attributes:
        leases: the lease of each key that is there.
        waiting: transactions that are under way.
        allowed: set while they go on.
    """

    def __init__(self) -> None:
        self.leases: dict[bytes, int] = {}
        self.waiting = 0
        self.allowed = asyncio.Event()
        self.allowed.set()

    async def range(self, request: RangeRequest) -> RangeResponse:
        """A read."""
        return RangeResponse(kvs=self._at(request.key))

    def _at(self, key: bytes) -> list[KeyValue]:
        return [KeyValue(key=key, lease=self.leases[key])] if key in self.leases else []

    async def commit(
        self, conditions: Sequence[Compare], effects: Sequence[RequestOp], _otherwise: Any, _what: str
    ) -> TxnResponse:
        """A transaction; one whose caller does not wait happens all the same."""
        return await asyncio.shield(asyncio.ensure_future(self._do(conditions, effects)))

    settled = commit

    async def _do(self, conditions: Sequence[Compare], effects: Sequence[RequestOp]) -> TxnResponse:
        self.waiting += 1
        await self.allowed.wait()
        self.waiting -= 1
        fits = all(self.leases.get(one.key, 0) == one.lease for one in conditions)
        for effect in effects if fits else ():
            if effect.HasField("request_put"):
                self.leases[effect.request_put.key] = effect.request_put.lease
            else:
                del self.leases[effect.request_delete_range.key]
        kvs = self._at(conditions[0].key)
        return TxnResponse(succeeded=fits, responses=[ResponseOp(response_range=RangeResponse(kvs=kvs))])


class Places:
    """Watches, of which only the number is of interest."""

    def __init__(self) -> None:
        self.count = 0

    async def add(self, *_: object) -> object:
        """One more."""
        self.count += 1
        return object()

    def drop(self, _place: object) -> None:
        """One less."""
        self.count -= 1

    async def remove(self, _place: object) -> None:
        """One less."""
        self.count -= 1


class SilentConnection:
    """Grants a lease, and has no server to keep it alive at."""

    address = EtcdAddress(("localhost:1",))
    hosts = "localhost:1"

    async def read(self, _method: object, _request: object) -> LeaseGrantResponse:
        """The lease."""
        return LeaseGrantResponse(ID=LEASE, TTL=10)

    async def connected(self) -> None:
        """Never."""
        await asyncio.Event().wait()


def registrations() -> tuple[EtcdRegistrations, SlowChanges, Places]:
    """What one client has registered, at such a store."""
    changes, places = SlowChanges(), Places()
    made = EtcdRegistrations(
        cast("EtcdConnection", SilentConnection()),
        cast("Changes", changes),
        KeyLayout("/ledgers"),
        cast("EtcdWatches", places),
    )
    return made, changes, places


async def test_a_key_is_not_registered_while_the_request_that_takes_it_back_is_under_way() -> None:
    held, changes, places = registrations()
    former = await held.register("r", b"1", sequential=False, again=False)
    changes.allowed.clear()
    closing = asyncio.ensure_future(former.close())
    await asyncio.sleep(0)
    later = asyncio.ensure_future(held.register("r", b"2", sequential=False, again=False))
    for _ in range(3):
        await asyncio.sleep(0)
    assert changes.waiting == 1
    changes.allowed.set()
    await closing
    assert not (await later).lost.is_set()
    assert list(changes.leases.values()) == [LEASE]
    assert places.count == 1
    held.abandon()


@pytest.mark.parametrize("sequential", [False, True])
async def test_one_that_is_cancelled_while_it_is_made_is_unwanted(sequential: bool) -> None:
    held, changes, _ = registrations()
    await held.register("first", b"", sequential=False, again=False)
    changes.allowed.clear()
    making = asyncio.ensure_future(held.register("r", b"", sequential=sequential, again=False))
    while not changes.waiting:
        await asyncio.sleep(0)
    making.cancel()
    await asyncio.wait({making})
    assert [name.startswith("r") for name in held._held.unwanted] == [True]
    held.abandon()


async def test_one_that_is_lost_or_whose_withdrawal_is_cancelled_is_not_watched_any_more() -> None:
    held, changes, places = registrations()
    lost = await held.register("lost", b"", sequential=False, again=False)
    closed = await held.register("closed", b"", sequential=False, again=False)
    del changes.leases[KeyLayout("/ledgers").key("lost")]
    await held._restore("lost")
    assert lost.lost.is_set()
    changes.allowed.clear()
    closing = asyncio.ensure_future(closed.close())
    while not changes.waiting:
        await asyncio.sleep(0)
    closing.cancel()
    await asyncio.wait({closing})
    assert places.count == 0
    held.abandon()


async def test_a_close_of_the_store_that_is_cancelled_closes_its_connection() -> None:
    store = EtcdStore(EtcdAddress(("127.0.0.1:1",)))
    store._registrations.lease = LEASE
    closing = asyncio.ensure_future(store.close())
    await asyncio.sleep(0)
    closing.cancel()
    await asyncio.wait({closing})
    assert closing.cancelled()
    with pytest.raises(MisuseError, match="closed"):
        store._connection.check()


class LeaseServer:
    """Keeps leases alive, unless it is stopped when it is first asked."""

    def __init__(self, stops: list[LeaseServer]) -> None:
        self.server = grpc.aio.server()
        self._stops = stops
        self.answered = asyncio.Event()
        service, name = KEEP_ALIVE.path.removeprefix("/").split("/")
        handler = grpc.stream_stream_rpc_method_handler(
            self._serve, LeaseKeepAliveRequest.FromString, LeaseKeepAliveResponse.SerializeToString
        )
        self.server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(service, {name: handler})])
        self.host = f"127.0.0.1:{self.server.add_insecure_port('127.0.0.1:0')}"

    async def _serve(self, requests: Any, stream: Any) -> None:
        async for request in requests:
            if not self._stops:
                self._stops.append(self)
            if self._stops != [self]:
                await stream.write(LeaseKeepAliveResponse(ID=request.ID, TTL=1))
                self.answered.set()


async def test_a_lease_is_kept_alive_at_another_server_when_one_is_silent() -> None:
    """The first that is asked is stopped: its connection stays, and it says nothing."""
    stopped: list[LeaseServer] = []
    servers = [LeaseServer(stopped) for _ in range(2)]
    for one in servers:
        await one.server.start()
    options = EtcdOptions(session_timeout_ms=1000)
    connection = EtcdConnection(EtcdAddress(tuple(one.host for one in servers), options=options))
    held = EtcdRegistrations(
        connection,
        cast("Changes", SlowChanges()),
        KeyLayout("/ledgers"),
        cast("EtcdWatches", Places()),
    )
    held.lease = LEASE
    held._beat = asyncio.create_task(held._keep_alive())
    await until_async(lambda: any(one.answered.is_set() for one in servers), "an answer", 10)
    held.abandon()
    await connection.close()
    for one in servers:
        await one.server.stop(None)

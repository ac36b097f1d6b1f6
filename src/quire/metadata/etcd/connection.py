"""Requests to an etcd cluster over gRPC, on the caller's event loop. Knows nothing of keys.

What a lost response means: a read, or anything that may happen twice, is sent again. The outcome of a transaction is
unknown, and a server may still have it under way when this client reads; `etcd/changes.py` fences it off first. gRPC's
own retries are switched off, so that nothing is sent twice unknown to us.

Source: etcd v3 API; etcd source, `rpctypes/error.go`: what each status means; gRPC, "Status codes", "Keepalive".
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

# gRPC's own fork handlers end a child that does nothing wrong; a use of a store in one raises `MisuseError`.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
# What it writes to stderr by itself stands in our errors' sentences.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

import grpc
import grpc.aio
from google.protobuf.message import Message

from quire.core.errors import MetadataUnknownError, MisuseError, NoClusterError, RefusedError
from quire.env.home import check_home
from quire.metadata.etcd.options import EtcdAddress, EtcdOptions
from quire.metadata.slow import SlowNote
from quire.metadata.store import StoreAwayError
from quire.wire.proto import etcd_pb2 as pb

RETRY_DELAY_S: Final = 0.05
PROBE_S: Final = 1.0
RECONNECT_MS: Final = 100
RECONNECT_MAX_MS: Final = 1000
PING_MS: Final = 10_000
"""How often a silent connection is tried. A server ends the connection of who asks more often than every 5 s."""
PING_TIMEOUT_MS: Final = 5000
NEEDS_LEADER: Final = ("hasleader", "true")
"""A server that has lost its cluster ends a stream with this mark, instead of staying silent."""

Status = grpc.StatusCode
_REFUSALS: Final = frozenset(
    {
        Status.INVALID_ARGUMENT,
        Status.NOT_FOUND,
        Status.ALREADY_EXISTS,
        Status.FAILED_PRECONDITION,
        Status.OUT_OF_RANGE,
        Status.PERMISSION_DENIED,
        Status.RESOURCE_EXHAUSTED,
        Status.UNAUTHENTICATED,
        Status.UNIMPLEMENTED,
    }
)
"""The server refused, and nothing happened; with other codes the outcome is unknown."""
_STALE_TOKEN: Final = ("invalid auth token", "revision of auth store is old")
_NO_RIGHT: Final = ("permission denied", "user name is empty", "user name not found")


class Method(NamedTuple):
    """One of etcd's methods."""

    path: str
    answer: type[Message]
    streams: bool = False


RANGE: Final = Method("/etcdserverpb.KV/Range", pb.RangeResponse)
TXN: Final = Method("/etcdserverpb.KV/Txn", pb.TxnResponse)
GRANT: Final = Method("/etcdserverpb.Lease/LeaseGrant", pb.LeaseGrantResponse)
REVOKE: Final = Method("/etcdserverpb.Lease/LeaseRevoke", pb.LeaseRevokeResponse)
KEEP_ALIVE: Final = Method("/etcdserverpb.Lease/LeaseKeepAlive", pb.LeaseKeepAliveResponse, streams=True)
WATCH: Final = Method("/etcdserverpb.Watch/Watch", pb.WatchResponse, streams=True)
AUTHENTICATE: Final = Method("/etcdserverpb.Auth/Authenticate", pb.AuthenticateResponse)


_OPEN: Final[set[int]] = set()
"""Connections of this process that are not closed."""
_FORKED_WHILE_OPEN: Final[list[int]] = []


def _after_fork_in_child() -> None:
    if _OPEN:
        _FORKED_WHILE_OPEN.append(os.getpid())


os.register_at_fork(after_in_child=_after_fork_in_child)


class LeaseGoneError(Exception):
    """The lease that a transaction names has ended; nothing was changed."""


class StoreFullError(MetadataUnknownError):
    """The store answered that it has no room. The change that used up the last of it may be in; nothing is done later."""


@dataclass(slots=True)
class _Server:
    host: str
    channel: grpc.aio.Channel
    methods: dict[str, Any] = field(default_factory=dict)

    def method(self, method: Method) -> Any:
        """The callable of a method."""
        found = self.methods.get(method.path)
        if found is None:
            make = self.channel.stream_stream if method.streams else self.channel.unary_unary
            found = make(
                method.path,
                request_serializer=lambda message: message.SerializeToString(),
                response_deserializer=method.answer.FromString,
            )
            self.methods[method.path] = found
        return found


def _channel(host: str, options: EtcdOptions) -> grpc.aio.Channel:
    settings = [
        ("grpc.enable_retries", 0),
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.enable_http_proxy", 0),
        ("grpc.max_receive_message_length", -1),
        ("grpc.max_send_message_length", -1),
        ("grpc.initial_reconnect_backoff_ms", RECONNECT_MS),
        ("grpc.min_reconnect_backoff_ms", RECONNECT_MS),
        ("grpc.max_reconnect_backoff_ms", RECONNECT_MAX_MS),
        ("grpc.keepalive_time_ms", PING_MS),
        ("grpc.keepalive_timeout_ms", PING_TIMEOUT_MS),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.bdp_probe", 0),  # it pings as well, and a server counts all pings
    ]
    if options.tls_ca is None:
        return grpc.aio.insecure_channel(host, options=settings)
    ca, certificate, key = (_pem(path) for path in (options.tls_ca, options.tls_certificate, options.tls_key))
    credentials = grpc.ssl_channel_credentials(ca, key, certificate)
    return grpc.aio.secure_channel(host, credentials, options=settings)


def _pem(path: str | None) -> bytes | None:
    try:
        return None if path is None else Path(path).read_bytes()
    except OSError as error:
        raise NoClusterError(f"the TLS file {path} cannot be read: {error}", path=path) from error


class EtcdConnection:
    """One client's connections to the servers of a cluster; it stays with one while that responds.

    Args:
        address: where, and how to behave.

    Raises:
        MisuseError: this process was forked from one that had a connection.
        NoClusterError: a TLS file cannot be read.
    """

    def __init__(self, address: EtcdAddress) -> None:
        self.address = address
        self.hosts = ",".join(address.hosts)
        self._loop = asyncio.get_running_loop()
        self._slow = SlowNote(f"etcd at {self.hosts}", address.options.patience_ms / 1000)
        self._pid = os.getpid()
        self._closed = False
        if _FORKED_WHILE_OPEN:
            raise MisuseError(
                f"process {self._pid} was forked while an etcd store was open, and gRPC does not outlive that; start the"
                " process anew (spawn or exec), or fork before the first store is opened"
            )
        self._servers = [_Server(host, _channel(host, address.options)) for host in address.hosts]
        self._token = ""
        self._closing: asyncio.Task[None] | None = None
        _OPEN.add(id(self))

    @property
    def timeout_s(self) -> float:
        """How long a call waits."""
        return self.address.options.patience_ms / 1000

    def check(self) -> None:
        """Whether this client may be used.

        Raises:
            MisuseError: closed, or used after a fork.
        """
        check_home("this metadata store", self._loop, self._pid)
        if self._closed:
            raise MisuseError("this metadata store is closed; open another")

    async def connected(self) -> _Server:
        """Wait for a server, as long as it takes. The one that answered last comes first."""
        while True:
            self.check()
            for index, server in enumerate(self._servers):
                if server.channel.get_state(try_to_connect=True) is grpc.ChannelConnectivity.READY:
                    if index:
                        self._servers.insert(0, self._servers.pop(index))
                    return server
            await asyncio.sleep(RETRY_DELAY_S)

    def pass_over(self, server: _Server) -> None:
        """Try the others first from now on."""
        if server in self._servers:
            self._servers.remove(server)
            self._servers.append(server)

    # --- requests ------------------------------------------------------------------------------------------------

    async def read(self, method: Method, request: Message) -> Any:
        """The response to what may happen more than once; sent again when a connection is lost.

        Raises:
            StoreAwayError: no response within `patience_ms`.
            RefusedError: the response is no.
            StoreFullError: the response is that there is no room.
        """
        self.check()
        try:
            async with asyncio.timeout(self.timeout_s):
                while True:
                    with self._slow.waiting():
                        server = await self.connected()
                    try:
                        return await self._send(server, method, request)
                    except grpc.aio.AioRpcError as error:
                        if error.code() in _REFUSALS:
                            raise self.refused(error) from error
                        self.pass_over(server)
                        await asyncio.sleep(RETRY_DELAY_S)
        except TimeoutError:
            raise await self.away() from None

    async def change(self, method: Method, request: Message, what: str) -> Any:
        """The response to a change, sent once.

        Raises:
            MetadataUnknownError: the response is lost.
            StoreAwayError: it was never sent.
            RefusedError: the response is no.
            StoreFullError: the response is that there is no room.
            LeaseGoneError: it names a lease that has ended.
        """
        self.check()
        try:
            async with asyncio.timeout(self.timeout_s):
                with self._slow.waiting():
                    server = await self.connected()
        except TimeoutError:
            raise await self.away() from None
        try:
            async with asyncio.timeout(self.timeout_s):
                return await self._send(server, method, request)
        except grpc.aio.AioRpcError as error:
            if error.code() in _REFUSALS:
                raise self.refused(error) from error
            why = error.details() or error.code().name
            cause: Exception = error
        except TimeoutError as error:
            why, cause = "no answer", error
        self.pass_over(server)
        raise MetadataUnknownError(
            f"the connection to etcd at {server.host} was lost before it said whether {what}; read again, then decide"
            f" ({why})"
        ) from cause

    async def stream(self, server: _Server, method: Method) -> Any:
        """Begin a stream."""
        return server.method(method)(metadata=(*await self._metadata(server), NEEDS_LEADER))

    async def _send(self, server: _Server, method: Method, request: Message) -> Any:
        with self._slow.waiting():
            token = await self._metadata(server)
            try:
                return await server.method(method)(request, metadata=token)
            except grpc.aio.AioRpcError as error:
                self.forget_token(error.details())
                if not token or self._token:
                    raise
            # It was refused before anything happened: tokens end when they are not used, and with their server.
            return await server.method(method)(request, metadata=await self._metadata(server))

    async def _metadata(self, server: _Server) -> tuple[tuple[str, str], ...]:
        credentials = self.address.options.credentials
        if credentials is None:
            return ()
        if not self._token:
            user, password = credentials
            request = pb.AuthenticateRequest(name=user, password=password)
            try:
                self._token = (await server.method(AUTHENTICATE)(request)).token
            except grpc.aio.AioRpcError as error:
                if "authentication is not enabled" in (error.details() or ""):
                    return ()  # a cluster without authentication
                raise
        return (("token", self._token),)

    def forget_token(self, details: str | None) -> bool:
        """Log in again if the server says that the token is none any more; whether it does."""
        is_stale = any(text in (details or "") for text in _STALE_TOKEN)
        if is_stale:
            self._token = ""
        return is_stale

    # --- what went wrong ---------------------------------------------------------------------------------------------

    def refused(self, error: grpc.aio.AioRpcError) -> Exception:
        """What to raise for a response that is no."""
        code, details = error.code(), error.details() or ""
        if "requested lease not found" in details:
            return LeaseGoneError(details)
        if "authentication failed" in details:
            return NoClusterError(f"etcd at {self.hosts} refuses the credentials: is the password right?")
        if code is Status.UNIMPLEMENTED:
            return NoClusterError(f"the server at {self.hosts} is not etcd 3: {details}")
        if any(text in details for text in (*_NO_RIGHT, *_STALE_TOKEN)):
            return RefusedError(
                f"etcd at {self.hosts} denies permission: this client's credentials lack the right "
                f"({details}); name a file with other credentials in the cluster's URI "
                "(?credentials=FILE)"
            )
        if "database space exceeded" in details:
            # A server says so also of a change that it has just made, if that one went beyond the quota.
            return StoreFullError(
                f"etcd at {self.hosts} has raised its alarm NOSPACE: its database has reached its quota, and it makes no "
                "changes until there is room. Compact it (etcdctl compact REVISION), defragment each of its servers "
                "(etcdctl defrag), or start them with a larger --quota-backend-bytes; then end the alarm (etcdctl alarm "
                "disarm)"
            )
        if "too many operations" in details:
            return MisuseError(
                f"the transaction has more operations than etcd at {self.hosts} accepts; start etcd "
                "with a larger --max-txn-ops (the default is 128)"
            )
        return RefusedError(f"etcd at {self.hosts} refuses the request: {details or code.name}")

    @staticmethod
    def is_refusal(error: grpc.aio.AioRpcError) -> bool:
        """Whether asking again would not help."""
        return error.code() in _REFUSALS

    async def away(self) -> StoreAwayError:
        """What to raise when nothing was changed because the store does not respond."""
        return StoreAwayError(
            f"etcd at {self.hosts} has not responded for {self.address.options.patience_ms} ms "
            f"({await self.why()}); nothing was changed, try again"
        )

    async def why(self) -> str:
        """What the servers, or the lack of them, say at the moment."""
        found = []
        for server in self._servers:
            try:
                request = pb.RangeRequest(key=b"\0")
                await server.method(RANGE)(request, timeout=PROBE_S, wait_for_ready=False)
                found.append("it answers again")
            except grpc.aio.AioRpcError as error:
                found.append(error.details() or error.code().name)
        return "; ".join(found)

    async def start(self) -> None:
        """Wait for the first response.

        Raises:
            NoClusterError: no server responds, or not as etcd does, or it refuses the credentials.
        """
        try:
            async with asyncio.timeout(self.timeout_s):
                with self._slow.waiting():
                    server = await self.connected()
                    await self._metadata(server)
        except TimeoutError:
            raise NoClusterError(
                f"no etcd server responded at {self.hosts} within {self.address.options.patience_ms} "
                f"ms ({await self.why()}); is it running, is this its client port, and does it use "
                "TLS as the URI says?"
            ) from None
        except grpc.aio.AioRpcError as error:
            refused = self.refused(error)
            raise refused if isinstance(refused, NoClusterError) else NoClusterError(str(refused)) from error

    async def close(self) -> None:
        """Release everything. It may be called twice."""
        self.abandon()
        if self._closing is not None:
            await asyncio.wait((self._closing,))

    def abandon(self) -> None:
        """The same, without waiting for it."""
        if not self._closed and os.getpid() == self._pid:
            self._closing = asyncio.get_running_loop().create_task(self._close(), name="etcd closing")
        self._closed = True

    async def _close(self) -> None:
        for server in self._servers:
            await server.channel.close()
        _OPEN.discard(id(self))

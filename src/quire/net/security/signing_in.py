"""What a client's connection does before its first request, where it has certificates or a password: TLS, then authentication.

A connection to a bookie that cannot speak TLS is abandoned, never spoken to in clear; one that asks for no authentication
gets none.

Source: `docs/security.md`; BookKeeper source, `PerChannelBookieClient` and `AuthHandler.ClientSideHandler`.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence
from typing import Final, Protocol, TypeAlias

from quire.core.answers import Answer
from quire.core.errors import AuthenticationError, MalformedFrameError
from quire.net.security.sasl import PLUGIN, SaslClient
from quire.net.security.settings import ClientKeys
from quire.net.security.tls import explain
from quire.wire import bookkeeper, native_hello, v2, v3
from quire.wire.entry import Buffer
from quire.wire.proto import bookkeeper_protocol_pb2 as pb
from quire.wire.requests import Authenticate
from quire.wire.responses import AuthReply

_FIRST_TXN_ID: Final = 1 << 40
"""Far from the numbers of requests: a response to the opening that comes late matches no request."""
_NO_TLS: Final = (
    "the bookie refuses TLS, and this client requires it: give the bookie a "
    "certificate, or remove [tls] from the client's file, which QUIRE_SECURITY names"
)
_NOT_TAKEN: Final = (
    "the bookie refuses this user and password: compare the client's [sasl], in the file that QUIRE_SECURITY names, "
    "with the bookie's"
)
_LATE: Final = (
    "the bookie did not respond while the connection was being opened; a Java bookie "
    "sends no response when a password is wrong"
)
WANTS_A_NAME: Final = (
    "the bookie requires authentication: give this client TLS, a certificate with a role that "
    "the bookie accepts, or a user and a password, as the bookie demands, in the file that QUIRE_SECURITY "
    "names (over V2 the ledger may also have another password)"
)
_ENDED: Final = (
    "the bookie closed the connection while it was being opened: does it require a "
    "certificate or a password? its log says why"
)


class Opened(Protocol):
    """A channel that is being opened; it stands above."""

    def refuse(self, reason: str) -> None:
        """It cannot be opened."""

    def give_up_on(self, reason: str) -> None:
        """It is not open, and may be another time."""

    def begin_over(self, keys: ClientKeys) -> None:
        """Begin TLS."""

    def opened(self) -> None:
        """All is said."""


class OpeningNative(Protocol):
    """What says our own protocol's part of an opening: `NativeCodec`, which stands above."""

    def hello(self, auth_scheme: str = "") -> native_hello.Hello:
        """What this client says first."""

    def write_hello(self, hello: native_hello.Hello) -> None:
        """Send it."""

    def ask_at_once(self, request: Authenticate, requester: NativeOpening) -> None:
        """Send a request of the opening."""


class OpenedBookKeeper(Opened, Protocol):
    """A channel of V2 or V3 that is being opened."""

    transport: asyncio.Transport | None

    @property
    def upgrading(self) -> bool:
        """Whether TLS has begun."""


class _Opening:
    """The time that an opening may take, and how it ends badly."""

    def __init__(self, keys: ClientKeys, channel: Opened) -> None:
        self.keys = keys
        self._refuse = channel.refuse
        self._sasl: SaslClient | None = None
        self._is_over = False
        self._timer = asyncio.get_running_loop().call_later(keys.opening_seconds, channel.give_up_on, _LATE)

    def over(self) -> None:
        """The connection is open, or has ended."""
        self._is_over = True
        self._timer.cancel()

    def token(self, challenge: Buffer | None) -> bytes | None:
        """What to answer to a challenge (None begins); None when all is said, or nothing more can be."""
        try:
            if challenge is None:
                self._sasl = self.keys.sasl()
                return b""
            assert self._sasl is not None
            answer = self._sasl.step(bytes(challenge))
        except AuthenticationError as error:
            self._refuse(error.message)
            return None
        return None if self._sasl.complete else answer

    @property
    def known(self) -> bool:
        """Whether each side has proven its password to the other."""
        return self._sasl is not None and self._sasl.complete


class NativeOpening(_Opening):
    """The opening of our own protocol: a hello that asks for TLS, the hello, AUTH requests."""

    def __init__(self, channel: Opened, codec: OpeningNative, keys: ClientKeys) -> None:
        super().__init__(keys, channel)
        self._channel, self._codec = channel, codec
        self._asks_tls = keys.wants_tls
        if self._asks_tls:
            codec.write_hello(native_hello.Hello("", "", features=native_hello.START_TLS))
        else:
            self.secured()

    def secured(self) -> None:
        """The way is safe, or as safe as it gets: say who is meant."""
        scheme = PLUGIN if self.keys.has_name else ""
        self._codec.write_hello(self._codec.hello(scheme))

    def takes(self, hello: native_hello.HelloAnswer) -> bool:
        """Whether a response to a hello was this opening's; one that is not opens the connection, or refuses it."""
        if self._asks_tls:
            self._asks_tls = False
            if hello.version == 0 or not hello.features & native_hello.START_TLS:
                self._refuse(hello.message or _NO_TLS)
            else:
                self._channel.begin_over(self.keys)
            return True
        if hello.version and hello.features & native_hello.AUTHENTICATE:
            if not self.keys.has_name:
                self._refuse(WANTS_A_NAME)
            else:
                self._ask(self.token(None))
            return True
        return False

    def answered(self, tag: object, response: AuthReply) -> None:  # noqa: ARG002 - one request at a time
        """A step of the authentication was answered."""
        if response.answer is Answer.OK:
            self._ask(self.token(response.token))
        elif response.answer is not Answer.UNREACHABLE:
            self._refuse(_NOT_TAKEN)

    def _ask(self, token: bytes | None) -> None:
        if token is not None:
            self._codec.ask_at_once(Authenticate(token), self)
        elif self.known:
            self._channel.opened()


class BookKeeperOpening(_Opening):
    """The opening of V2 and V3: START_TLS, which is V3 in any case, then AUTH in the connection's own protocol.

    Args:
        is_v2: whether AUTH goes in V2's frames.
    """

    def __init__(self, channel: OpenedBookKeeper, keys: ClientKeys, *, is_v2: bool) -> None:
        super().__init__(keys, channel)
        self._channel = channel
        self._is_v2 = is_v2
        self._asks_tls = keys.wants_tls
        self._is_safe = False
        self._txn_id = _FIRST_TXN_ID
        if self._asks_tls:
            message = v3.request(pb.START_TLS, self._txn_id)
            message.startTLSRequest.SetInParent()
            self._write(v3.frame_of(message))
        else:
            self.secured()

    def secured(self) -> None:
        """The way is safe, or as safe as it gets."""
        self._is_safe = True
        if self.keys.has_name:
            self._ask(self.token(None))
        else:
            self._channel.opened()

    def frames_received(self, data: Buffer, starts: Sequence[int]) -> None:
        """What comes while the connection is being opened.

        Raises:
            MalformedFrameError: a frame lies in clear after the response to START_TLS; nothing is done about it.
        """
        for at in starts:
            if self._is_over:
                return  # before the first request, so that it is no response to one
            if self._channel.upgrading and not self._is_safe:
                msg = "unencrypted frames after the response to START_TLS"
                raise MalformedFrameError(msg)
            frame = memoryview(data)[at : at + 4 + int.from_bytes(data[at : at + 4], "big")]
            if len(frame) > 4 and frame[4] == v3.FIRST_BYTE:
                self._v3_answered(v3.decode_response(frame))
            else:
                self._v2_answered(v2.decode_answer(frame))

    def _v3_answered(self, message: pb.Response) -> None:
        operation = message.header.operation
        if operation == pb.START_TLS and self._asks_tls:
            self._asks_tls = False
            if message.status:
                self._refuse(_NO_TLS)
            else:
                self._channel.begin_over(self.keys)
        elif operation == pb.AUTH and not self._asks_tls:
            if message.status or not message.HasField("authResponse"):
                self._refuse(_NOT_TAKEN)
            else:
                self._said(message.authResponse.authPluginName, message.authResponse.payload)
        # Else a Java bookie with both reports again, after the handshake, that the client has not authenticated.

    def _v2_answered(self, answer: v2.Response) -> None:
        if isinstance(answer, v2.AuthPacket) and not self._asks_tls:
            self._said(answer.plugin, answer.payload)
        else:
            self._refuse(_ENDED)

    def _said(self, plugin: str, payload: bytes) -> None:
        if plugin == bookkeeper.AUTH_DISABLED:
            self._channel.opened()
        else:
            self._ask(self.token(payload))

    def _ask(self, token: bytes | None) -> None:
        if token is None:
            if self.known:
                self._channel.opened()
            return
        if self._is_v2:
            self._write(v2.encode_auth(PLUGIN, token))
            return
        self._txn_id += 1
        message = v3.request(pb.AUTH, self._txn_id)
        message.authRequest.authPluginName, message.authRequest.payload = PLUGIN, token
        self._write(v3.frame_of(message))

    def _write(self, frame: bytes) -> None:
        assert self._channel.transport is not None
        self._channel.transport.write(frame)


Opening: TypeAlias = NativeOpening | BookKeeperOpening


def says_no(exc: Exception | None) -> bool:
    """Whether TLS ended a connection because one side does not take the other, and not because one of them had disconnected."""
    return isinstance(exc, ssl.SSLError) and not isinstance(exc, ssl.SSLEOFError)


def why_it_ended(exc: Exception | None, *, opening: bool) -> str:
    """Why a connection was lost, as far as that is known."""
    if isinstance(exc, ssl.SSLError) or (opening and exc is not None):
        return explain(exc)
    if opening:
        return _ENDED
    return str(exc) if exc else "the connection was closed"

"""What a client must have done before a bookie serves it: TLS, and authentication. Only where the bookie asks for either.

They are required until a connection is open, and are removed then: later requests are not checked for them.

Source: docs/security.md; BookKeeper source, `BookieRequestProcessor` (START_TLS) and `AuthHandler.ServerSideHandler`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from quire.bookie.connections.client_connection import ClientConnection
from quire.core.answers import Answer
from quire.core.errors import AuthenticationError, MalformedFrameError
from quire.net.security import roles
from quire.net.security.sasl import PLUGIN, SaslServer
from quire.net.security.settings import BookieKeys
from quire.wire import bookkeeper, native_hello, v2, v3
from quire.wire.entry import Buffer
from quire.wire.proto import bookkeeper_protocol_pb2 as pb

_TLS_ONLY: Final = "this bookie accepts only TLS connections: give the client its CA ([tls] ca), in the file that QUIRE_SECURITY names"
_NAMES_ONLY: Final = (
    "this bookie serves only authenticated clients: give the client a user and a password ([sasl]), in the "
    "file that QUIRE_SECURITY names"
)


class _Handshake:
    """What one client must do before it is served (TLS, authentication), and how far it is."""

    def __init__(self, connection: ClientConnection, keys: BookieKeys) -> None:
        self._client = connection
        self._keys = keys
        self._sasl: SaslServer | None = None

    @property
    def safe(self) -> bool:
        """Whether the connection is encrypted as far as the configuration requires it."""
        return self._client.secure or self._keys.allow_plain

    @property
    def known(self) -> bool:
        """Whether it has shown who it is, if that is asked."""
        return not self._keys.asks_names or (self._sasl is not None and self._sasl.complete)

    def why_not(self) -> str:
        """Why it is not served; empty if it is."""
        if not self.safe:
            return _TLS_ONLY
        return self.no_role() or ("" if self.known else _NAMES_ONLY)

    def no_role(self) -> str:
        """What is wrong with the role of the client's certificate; empty if that is right, or no role is asked."""
        if self._keys.roles is None:
            return ""
        assert self._client.transport is not None
        shown = self._client.transport.get_extra_info("peercert") or {}
        subject = shown.get("subject", ())
        if roles.role_of(subject) in self._keys.roles:
            return ""
        return (
            f"the certificate of {roles.written(subject)} has none of the roles that this bookie accepts: its OU "
            "must name one (OU=0:ROLE, as BookKeeper writes it), or add its role to [tls] roles"
        )

    def step(self, token: bytes) -> bytes:
        """The response to a client's token.

        Raises:
            AuthenticationError: it is refused.
        """
        if self._sasl is None:
            self._sasl = self._keys.sasl()
        return self._sasl.step(token)


class NativeHandshake(_Handshake):
    """The handshake of the native protocol: the response to a hello."""

    def starts_tls(self, hello: native_hello.Hello) -> bool:
        """Whether this hello asks for TLS and may have it."""
        return (
            bool(hello.features & native_hello.START_TLS) and self._keys.has_tls and not self._client.secure
        )

    def judge(self, hello: native_hello.Hello) -> tuple[str, int]:
        """Why a hello is refused, empty if it is not; and the features of its response."""
        if hello.features & native_hello.START_TLS and not self._keys.has_tls:
            return (
                (
                    "this bookie has no certificate and accepts no TLS: give it a certificate, or remove "
                    "[tls] from the client's file, which QUIRE_SECURITY names"
                ),
                0,
            )
        if not self.safe:
            return _TLS_ONLY, 0
        if no_role := self.no_role():
            return no_role, 0
        if not self._keys.asks_names:
            return "", 0
        return "" if hello.auth_scheme == PLUGIN else _NAMES_ONLY, native_hello.AUTHENTICATE


class UnopenedConnection(Protocol):
    """What a connection that is not open yet has besides every `ClientConnection`: `BookKeeperConnection`, which stands above."""

    def let_in(self) -> None:
        """The client has done all that is asked."""

    def answer(self, buffers: list[Buffer]) -> None:
        """Send a response."""

    def shut(self) -> None:
        """End the connection."""


class BookKeeperHandshake(_Handshake):
    """The handshake of V2 and V3: START_TLS and AUTH, until a request comes that is served, or refused as a Java bookie does it."""

    def __init__(self, client: ClientConnection, connection: UnopenedConnection, keys: BookieKeys) -> None:
        super().__init__(client, keys)
        self._connection = connection
        self._is_v2 = False
        self._logged = False
        self._starting = False
        self._over = False
        self._late: list[Buffer] = []

    def serve(self, data: Buffer, starts: Sequence[int]) -> int:
        """Frames of a client that is not through yet; how many were consumed. The first request that is neither ends this."""
        if self._client.upgrading and not self._client.secure:
            msg = "the client sent an unencrypted request after START_TLS"
            raise MalformedFrameError(msg)
        for served, at in enumerate(starts):
            if self._over:
                break
            frame = memoryview(data)[at : at + 4 + int.from_bytes(data[at : at + 4], "big")]
            request = self._request(frame)
            if self._takes(request):
                continue
            if self._starting:
                msg = "the client sent an unencrypted request after START_TLS"
                raise MalformedFrameError(msg)
            why_not = self.why_not()
            if not why_not:
                self._connection.let_in()
                return served
            if not self._logged:
                self._logged = True
                self._client.refused(why_not)
            self._refuse(request)
        if self._starting and not self._over:
            self._starting = False
            self._client.take_tls()
        return len(starts)

    def secured(self) -> None:
        """TLS is up: responses that had to wait for it leave."""
        late, self._late = self._late, []
        if late:
            self._connection.answer(late)

    def _request(self, frame: memoryview) -> pb.Request | v2.Request:
        if not self._is_v2:
            try:
                return v3.decode_request(frame)
            except MalformedFrameError:
                if len(frame) > 4 and frame[4] == v3.FIRST_BYTE:
                    raise
                self._is_v2 = True
        return v2.decode_request(frame)

    def _takes(self, request: pb.Request | v2.Request) -> bool:
        """Whether this is a request of the opening."""
        if isinstance(request, v2.AuthPacket):
            self._auth_v2(request)
        elif not isinstance(request, pb.Request):
            return False
        elif request.header.operation == pb.START_TLS and not self._starting:
            self._start_tls(request)
        elif request.header.operation == pb.AUTH and request.HasField("authRequest"):
            self._auth_v3(request)
        else:
            return False
        return True

    def _start_tls(self, request: pb.Request) -> None:
        if not request.HasField("startTLSRequest") or not self._keys.has_tls or self._client.secure:
            self._bare(request, Answer.BAD_REQUEST)
            return
        self._starting = True
        message = v3.response(request.header, 0)
        message.startTLSResponse.SetInParent()
        self._connection.answer([v3.frame_of(message)])
        self._client.send_answers()

    def _auth_v3(self, request: pb.Request) -> None:
        token: bytes | None = None
        if not self.known and request.authRequest.authPluginName != PLUGIN:
            self._bare(request, Answer.UNAUTHORISED)
            return
        if not self.known:
            token = self._token(request.authRequest.payload)
            if token is None:
                self._bare(request, Answer.UNAUTHORISED)
                self._hang_up()
                return
        message = v3.response(request.header, 0)
        message.authResponse.authPluginName = bookkeeper.AUTH_DISABLED if token is None else PLUGIN
        message.authResponse.payload = token or b""
        self._answer(v3.frame_of(message))

    def _auth_v2(self, packet: v2.AuthPacket) -> None:
        token: bytes | None = None
        if not self.known:
            token = self._token(packet.payload) if packet.plugin == PLUGIN else None
            if token is None:
                self._hang_up()
                return
        plugin = bookkeeper.AUTH_DISABLED if token is None else PLUGIN
        self._answer(v2.encode_auth(plugin, token or b"", version=packet.version))

    def _token(self, payload: bytes) -> bytes | None:
        """The response to a token; None when the client is refused."""
        if not self.safe and not self._starting:
            self._client.refused(_TLS_ONLY)
            return None
        try:
            return self.step(payload)
        except AuthenticationError as error:
            self._client.refused(error.message)
            return None

    def _answer(self, frame: bytes) -> None:
        """Send it, or keep it until the handshake is done: a Java client names itself without waiting for that."""
        if self._starting:
            self._late.append(frame)
        else:
            self._connection.answer([frame])

    def _refuse(self, request: pb.Request | v2.Request) -> None:
        """As a Java bookie refuses an unknown client."""
        code = bookkeeper.v2_code(Answer.UNAUTHORISED)
        if isinstance(request, pb.Request):
            self._bare(request, Answer.UNAUTHORISED)
        elif isinstance(request, v2.AddRequest):
            frame = v2.encode_add_answer(code, request.ledger_id, request.entry_id, request.version)
            self._connection.answer([frame])
        elif isinstance(request, v2.ReadRequest):
            ids = (request.ledger_id, request.entry_id)
            self._connection.answer(v2.encode_read_answer(code, *ids, b"", request.version))
        else:
            self._hang_up()

    def _bare(self, request: pb.Request, answer: Answer) -> None:
        """A response of header and status only."""
        frame = v3.frame_of(v3.response(request.header, bookkeeper.v3_code(answer)))
        self._answer(frame)

    def _hang_up(self) -> None:
        """Say what there is to say, and end the connection."""
        self._over = True
        self._client.send_answers()
        self._connection.shut()

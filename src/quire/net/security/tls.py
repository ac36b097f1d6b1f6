"""TLS on a connection that began in clear, the certificates that it takes, and what is said when it fails.

Which side asks, and in which frames, is the protocols' business: see `docs/security.md`.
"""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from quire.core.errors import MisuseError
from quire.env.private import read_secret
from quire.net.security.reloaded import Reloaded

SHUTDOWN_SECONDS: Final = 2.0


@dataclass(frozen=True, slots=True)
class ClientTls:
    """What a client trusts, and what it shows of itself.

    Args:
        ca: PEM file of the certificates that bookies' certificates must be signed by; None = those of this system.
        certificate: PEM file of the client's own certificate and its chain, for bookies that ask for one.
        key: PEM file of its key; None = it stands in the certificate's file.
        key_password_file: a file with one line, the password of the key.
        verify_hostname: whether a bookie's certificate must be for the host that its registration names.
    """

    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    key_password_file: Path | None = None
    verify_hostname: bool = True

    def source(self) -> Reloaded[ssl.SSLContext]:
        """The context for each new connection.

        Raises:
            MisuseError: a file is missing or is not what it should be.
        """
        files = (self.ca, self.certificate, self.key, self.key_password_file)
        return Reloaded(files, self._context)

    def _context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.check_hostname = self.verify_hostname
        if self.ca is None:
            context.load_default_certs()
        else:
            _load_ca(context, self.ca)
        if self.certificate is not None:
            _load_certificate(context, self.certificate, self.key, self.key_password_file)
        return context


@dataclass(frozen=True, slots=True)
class BookieTls:
    """What a bookie shows, and what it asks of clients.

    Args:
        certificate: PEM file of the bookie's certificate and its chain.
        key: PEM file of its key; None = it stands in the certificate's file.
        key_password_file: a file with one line, the password of the key.
        ca: PEM file of the certificates that clients' certificates must be signed by.
        require_client_certificate: whether a client without such a certificate is refused.
        allow_plain: whether clients may go on in clear; meant for the time in which a cluster changes over.
        roles: a client's certificate must name one of these in its OU (`quire.net.security.roles`); None: any certificate will do.
    """

    certificate: Path
    key: Path | None = None
    key_password_file: Path | None = None
    ca: Path | None = None
    require_client_certificate: bool = False
    allow_plain: bool = False
    roles: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot work.

        Raises:
            MisuseError: clients' certificates are asked for, and there is nothing to check them with; or roles are, and
                clients may come without a certificate, or there is no role that one could have.
        """
        if self.require_client_certificate and self.ca is None:
            msg = "require_client_certificate needs ca: the file of the certificates that clients' ones are signed by"
            raise MisuseError(msg)
        if self.roles is None:
            return
        if not self.roles or not all(role and role == role.strip() for role in self.roles):
            msg = "roles must name at least one role, each a text without spaces around it; leave it out to accept every certificate"
            raise MisuseError(msg)
        if not self.require_client_certificate or self.allow_plain:
            msg = "roles needs require_client_certificate = true and allow_plain = false: who shows no certificate has no role"
            raise MisuseError(msg)

    def source(self) -> Reloaded[ssl.SSLContext]:
        """The context for each new connection.

        Raises:
            MisuseError: a file is missing or is not what it should be.
        """
        files = (self.certificate, self.key, self.key_password_file, self.ca)
        return Reloaded(files, self._context)

    def _context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION
        _load_certificate(context, self.certificate, self.key, self.key_password_file)
        if self.ca is not None:
            _load_ca(context, self.ca)
        if self.require_client_certificate:
            context.verify_mode = ssl.CERT_REQUIRED
        return context


# --- the upgrade ------------------------------------------------------------------------------------------------


class Upgradable(Protocol):
    """A connection that can go on under TLS; it stands above."""

    transport: asyncio.Transport | None

    def secured(self, transport: asyncio.Transport) -> None:
        """The handshake is done: this transport from now on."""

    def connection_lost(self, exc: Exception | None) -> None:
        """It failed, and the connection is over."""

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where to put bytes that were received; empty where there is no room for any."""

    def buffer_updated(self, nbytes: int) -> None:
        """So many bytes were put there."""

    def give_up(self, reason: str) -> None:
        """End the connection."""


class _Meanwhile(asyncio.Protocol):
    """Takes what arrives between the end of a handshake and the call that notifies its owner."""

    def __init__(self) -> None:
        self.early: list[bytes] = []
        self.reason: Exception | None = None

    def data_received(self, data: bytes) -> None:
        self.early.append(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.reason = exc or ConnectionResetError("the connection was closed")


async def upgrade(
    connection: Upgradable,
    context: ssl.SSLContext,
    *,
    server_side: bool,
    seconds: float,
    host: str | None = None,
) -> None:
    """Make TLS of a connection. Nothing may be written to it meanwhile, and nothing of it is read in clear any more.

    Ends with `connection.secured`, or with `connection.connection_lost` and the reason; it never raises one.

    Args:
        seconds: how long the handshake may take.
        host: the name that the other side's certificate must be for (clients).
    """
    loop = asyncio.get_running_loop()
    transport, meanwhile = connection.transport, _Meanwhile()
    if transport is None or transport.is_closing():
        return  # it is over already, and its protocol is notified
    new: asyncio.Transport | None = None
    try:
        new = await loop.start_tls(
            transport,
            meanwhile,
            context,
            server_side=server_side,
            server_hostname=host,
            ssl_handshake_timeout=seconds,
            ssl_shutdown_timeout=SHUTDOWN_SECONDS,
        )
    except OSError as error:
        meanwhile.reason = error
    except BaseException:
        transport.abort()
        raise
    if new is None or new.is_closing() or meanwhile.reason is not None:
        transport.abort()
        connection.connection_lost(
            meanwhile.reason or ConnectionResetError("the connection was closed in the handshake")
        )
        return
    new.set_protocol(connection)  # type: ignore[arg-type]
    connection.secured(new)
    for data in meanwhile.early:
        _feed(connection, memoryview(data))


def _feed(connection: Upgradable, data: memoryview) -> None:
    while data and connection.transport is not None:
        buffer = connection.get_buffer(-1)
        if not len(buffer):
            # What comes next is in `data` and nowhere else, so it cannot wait as what a socket has.
            connection.give_up("there was no memory for what came with the end of its TLS handshake")
            return
        size = min(len(buffer), len(data))
        buffer[:size] = data[:size]
        connection.buffer_updated(size)
        data = data[size:]


# --- what went wrong --------------------------------------------------------------------------------------------

_EXPIRED, _NOT_YET_VALID = 10, 9
_UNTRUSTED: Final = (18, 19, 20, 21, 2)
_OTHER_NAME: Final = (62, 63, 64)
_WHAT_NEXT: Final = {
    "CERTIFICATE_REQUIRED": "the peer requires a certificate: configure one (certificate, key)",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "the client showed no certificate, and this bookie requires one",
    "ALERT_UNKNOWN_CA": (
        "the peer does not trust the CA that signed our certificate: give it the certificate of that CA"
    ),
    "ALERT_BAD_CERTIFICATE": "the peer rejects our certificate: is it for this host, and complete?",
    "ALERT_CERTIFICATE_EXPIRED": "the peer reports that our certificate has expired: renew it",
    "ALERT_CERTIFICATE_UNKNOWN": ("the peer rejects our certificate: check its CA, its name and its dates"),
    "WRONG_VERSION_NUMBER": "the received bytes are not TLS: does the peer send unencrypted data?",
    "HTTP_REQUEST": "the received bytes are HTTP, not TLS: another service listens on this port",
    "UNSUPPORTED_PROTOCOL": "the peer supports at most TLS 1.1; 1.2 is the oldest supported version",
    "ALERT_PROTOCOL_VERSION": (
        "the peers have no version of TLS in common; 1.2 is the oldest supported version"
    ),
    "NO_SHARED_CIPHER": "the peers have no cipher in common",
}


def explain(error: BaseException) -> str:
    """Why TLS failed, and what to do about it, in one line."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the certificate is rejected: {error.verify_message.rstrip('.')}; {_for_certificate(error)}"
    if isinstance(error, ssl.SSLError):
        reason = error.reason or str(error)
        for word, what_next in _WHAT_NEXT.items():
            if word in reason:
                return f"{what_next} ({reason})"
        return f"TLS failed: {reason}"
    if isinstance(error, ConnectionAbortedError):
        return "the peer did not finish the TLS handshake in time"
    if isinstance(error, ConnectionResetError):
        return "the peer closed the connection in the TLS handshake: its log says why"
    return str(error) or type(error).__name__


def _for_certificate(error: ssl.SSLCertVerificationError) -> str:
    if error.verify_code == _EXPIRED:
        return "renew it"
    if error.verify_code == _NOT_YET_VALID:
        return "wait until it is valid, or set the clocks"
    if error.verify_code in _UNTRUSTED:
        return "name the CA that signed it as ca"
    if error.verify_code in _OTHER_NAME:
        return "let it name this host, or set verify_hostname = false"
    return "look at it with `openssl x509 -text`"


# --- files ------------------------------------------------------------------------------------------------------


def _load_ca(context: ssl.SSLContext, path: Path) -> None:
    _check_readable(path, "ca")
    try:
        context.load_verify_locations(cafile=path)
    except ssl.SSLError as error:
        msg = f"the ca file {path} holds no certificate in PEM: {error.reason or error}"
        raise MisuseError(msg, path=str(path)) from error


def _load_certificate(
    context: ssl.SSLContext, certificate: Path, key: Path | None, password_file: Path | None
) -> None:
    _check_readable(certificate, "certificate")
    if key is not None:
        _check_readable(key, "key")
    password = ""
    if password_file is not None:
        password = read_secret(password_file, "key password", others_may_read=True)
    try:
        # Always a password: without one OpenSSL would ask on the terminal, and a server would hang.
        context.load_cert_chain(certificate, key, password=lambda: password)
    except ssl.SSLError as error:
        reason = error.reason or str(error)
        where = f"certificate {certificate}, key {key or certificate}"
        if reason == "KEY_VALUES_MISMATCH":
            msg = f"{where}: the key does not belong to the certificate"
        elif password_file is None:
            msg = f"{where}: not a certificate and its key in PEM, or the key has a password and no key_password_file is named ({reason})"
        else:
            msg = f"{where}: not a certificate and its key in PEM, or {password_file} has another password ({reason})"
        raise MisuseError(msg, path=str(certificate)) from error


def _check_readable(path: Path, what: str) -> None:
    try:
        with path.open("rb"):
            pass
    except OSError as error:
        msg = f"the {what} file {path} cannot be read: {error.strerror or error}"
        raise MisuseError(msg, path=str(path)) from error

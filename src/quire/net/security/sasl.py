"""SASL DIGEST-MD5, as BookKeeper's `sasl` plugin speaks it: the same tokens in V2, V3 and our own protocol.

The client's side is the library's (pure-sasl). No maintained library has the server's; it is four hashes, and they
stand here (`docs/decisions/008-digest-md5.md`). DIGEST-MD5 hides the password from listeners and from no other party:
what follows it is in clear unless TLS is there too.

Source: RFC 2831, 2.1; `docs/security.md`.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass, field
from typing import Final

from quire.core.errors import AuthenticationError
from quire.distribution import Extra, require

PLUGIN: Final = "sasl"
"""The name of the authentication plugin in AUTH messages, and the scheme in a native hello."""
SERVICE: Final = "bookkeeper"
"""Service, realm and host of the exchange: BookKeeper takes this word for all three."""
TOKEN_BYTES_MAX: Final = 4096
"""RFC 2831, 2.1.2: the longest response that a server need take."""
_URI: Final = f"{SERVICE}/{SERVICE}".encode()
_NEEDED: Final = ("username", "nonce", "cnonce", "nc", "digest-uri", "response")


def require_library() -> None:
    """Refuse to go on where the library of this file is not installed.

    Raises:
        MissingExtraError: it is not.
    """
    require(Extra.ZOOKEEPER, "SASL authentication")


class SaslClient:
    """A client's half of one exchange.

    Args:
        username, password: who it is.

    Attributes:
        complete: the bookie has proven that it knows the password too.
    """

    def __init__(self, username: str, password: str) -> None:
        from puresasl import QOP
        from puresasl.client import SASLClient

        self.complete = False
        self._answered = False
        self._client = SASLClient(
            SERVICE,
            SERVICE,
            "DIGEST-MD5",
            username=_hashed_form(username),
            password=_hashed_form(password),
            qops=(QOP.AUTH,),
        )

    def step(self, challenge: bytes) -> bytes:
        """The response to a bookie's token; empty when there is nothing left to say.

        Raises:
            AuthenticationError: the token is none of DIGEST-MD5, or shows that the bookie does not know the password.
        """
        from puresasl import SASLError, SASLProtocolException

        said = _parse(challenge)
        if not said.get("rspauth" if self._answered else "nonce") or (
            "rspauth" in said and not self._answered
        ):
            raise AuthenticationError("the bookie's challenge is not a DIGEST-MD5 challenge")
        try:
            answer = self._client.process(challenge)
        except (SASLError, SASLProtocolException, ValueError, AttributeError) as error:
            raise AuthenticationError(
                f"the bookie does not know the password, or not DIGEST-MD5: {error}"
            ) from error
        self._answered = True
        self.complete = bool(self._client.complete)
        return bytes(answer or b"")


@dataclass(frozen=True, slots=True)
class Users:
    """The users that may connect to a bookie, with their passwords.

    Args:
        passwords: of each user.
        allowed: names that do not match this are refused whatever they know; what Java calls saslJaasClientAllowedIds.
    """

    passwords: dict[str, str] = field(repr=False)
    allowed: re.Pattern[str] = re.compile(".*")


class SaslServer:
    """A bookie's half of one exchange: a challenge, then a proof against a proof.

    Args:
        users: who may connect.

    Attributes:
        username: who it is, once `complete`.
    """

    __slots__ = ("_challenged", "_nonce", "_users", "complete", "username")

    def __init__(self, users: Users) -> None:
        self.complete = False
        self.username = ""
        self._users = users
        self._challenged = False
        self._nonce = secrets.token_urlsafe(30).encode()

    def step(self, token: bytes) -> bytes:
        """The response to a client's token.

        Raises:
            AuthenticationError: it is refused. The text is for this side's log: a client must not learn why.
        """
        if not self._challenged:
            self._challenged = True
            return b'realm="%s",nonce="%s",charset=utf-8,algorithm=md5-sess' % (SERVICE.encode(), self._nonce)
        said = _parse(token)
        missing = [name for name in _NEEDED if not said.get(name)]
        if missing:
            raise AuthenticationError(f"its token lacks {', '.join(missing)}")
        name = _text(said["username"], utf8=said.get("charset") == b"utf-8")
        if not hmac.compare_digest(said["nonce"], self._nonce) or said["nc"] != b"00000001":
            raise AuthenticationError(f"user {name!r}: the response belongs to another challenge")
        if said.get("qop", b"auth") != b"auth" or said["digest-uri"] != _URI:
            raise AuthenticationError(f"user {name!r}: the client requests another service or protection")
        authzid = said.get("authzid")
        if authzid is not None and _text(authzid, utf8=True) != name:
            raise AuthenticationError(f"user {name!r}: the client requests another identity")
        # An unknown user costs as much time as a wrong password.
        known = self._users.passwords.get(name)
        password = secrets.token_urlsafe(12) if known is None else known
        secret = b":".join((_hashed_form(name), said.get("realm", b""), _hashed_form(password)))
        proof = _proof(secret, said, b"AUTHENTICATE:" + _URI)
        if not hmac.compare_digest(proof, said["response"]) or known is None:
            raise AuthenticationError(f"user {name!r}: unknown user or wrong password")
        if self._users.allowed.fullmatch(name) is None:
            raise AuthenticationError(f"user {name!r}: not allowed ({self._users.allowed.pattern})")
        self.complete, self.username = True, name
        return b"rspauth=" + _proof(secret, said, b":" + _URI)


def _proof(secret: bytes, said: dict[str, bytes], a2: bytes) -> bytes:
    """RFC 2831, 2.1.2.1: HEX(KD(HEX(H(A1)), nonce : nc : cnonce : qop : HEX(H(A2))))."""
    a1 = [_md5(secret).digest(), said["nonce"], said["cnonce"]]
    if "authzid" in said:
        a1.append(said["authzid"])
    hashed = (_md5(b":".join(a1)), _md5(a2))
    parts = (hashed[0].hexdigest().encode(), said["nonce"], said["nc"], said["cnonce"], b"auth")
    return _md5(b":".join((*parts, hashed[1].hexdigest().encode()))).hexdigest().encode()


def _md5(data: bytes) -> hashlib._Hash:
    return hashlib.md5(data)  # noqa: S324 - the mechanism's own hash


def _hashed_form(text: str) -> bytes:
    """RFC 2831: ISO 8859-1 where that has all the letters, else UTF-8."""
    try:
        return text.encode("latin-1")
    except UnicodeEncodeError:
        return text.encode()


def _text(data: bytes, *, utf8: bool) -> str:
    try:
        return data.decode("utf-8" if utf8 else "latin-1")
    except UnicodeDecodeError as error:
        raise AuthenticationError("a name that is not UTF-8") from error


def _parse(token: bytes) -> dict[str, bytes]:
    from puresasl.mechanisms import DigestMD5Mechanism

    if len(token) > TOKEN_BYTES_MAX:
        raise AuthenticationError(f"a token of {len(token)} bytes; {TOKEN_BYTES_MAX} is the longest")
    try:
        return dict(DigestMD5Mechanism.parse_challenge(bytes(token)))
    except ValueError as error:
        raise AuthenticationError("a token that is not a DIGEST-MD5 token") from error

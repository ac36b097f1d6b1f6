"""The TLS and password settings of a client or a bookie, and the file that holds them.

    [tls]
    ca = "ca.pem"
    certificate = "bookie.pem"
    key = "bookie.key"

    [sasl]
    jaas = "jaas.conf"

Paths are relative to the file. Keys: the fields of `BookieTls` or `ClientTls` and of `BookieSasl` or `ClientSasl`.

Source: `docs/security.md`.
"""

from __future__ import annotations

import ssl
import tomllib
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final, Self, TypeVar

from quire.core.errors import MisuseError
from quire.env.private import warn_if_others_may_read
from quire.net.security.jaas import BOOKIE_SECTION, CLIENT_SECTION, user_of, users_of
from quire.net.security.reloaded import Reloaded
from quire.net.security.sasl import SaslClient, SaslServer, Users, require_library
from quire.net.security.tls import BookieTls, ClientTls

T = TypeVar("T")

_FLAGS: Final = {"verify_hostname", "require_client_certificate", "allow_plain"}
_TEXTS: Final = {"section", "allowed_ids", "username", "password"}
_LISTS: Final = {"roles"}


@dataclass(frozen=True, slots=True)
class ClientSasl:
    """Who a client is: a section of a JAAS file, or a name and a password.

    Args:
        jaas: the file; None = `username` and `password` say it.
        section: the section of that file.
    """

    jaas: Path | None = None
    section: str = CLIENT_SECTION
    username: str = ""
    password: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        """Refuse settings that name no user, or two.

        Raises:
            MisuseError: neither a file nor a name is set, or both are.
        """
        if (self.jaas is None) == (not self.username):
            msg = "sasl takes a jaas file, or a username and a password"
            raise MisuseError(msg)

    def source(self) -> Reloaded[tuple[str, str]]:
        """Name and password for each new connection.

        Raises:
            MisuseError: the file says neither.
        """
        path = self.jaas
        if path is None:
            return Reloaded((), lambda: (self.username, self.password))
        return Reloaded((path,), lambda: user_of(path, self.section))


@dataclass(frozen=True, slots=True)
class BookieSasl:
    """The SASL settings of a bookie: who may connect.

    Args:
        jaas: the JAAS file with the users.
        section: the section of that file.
        allowed_ids: a regular expression that a user's whole name must match.
    """

    jaas: Path
    section: str = BOOKIE_SECTION
    allowed_ids: str = ".*"

    def source(self) -> Reloaded[Users]:
        """The users for each new connection.

        Raises:
            MisuseError: the file names none.
        """
        return Reloaded((self.jaas,), lambda: users_of(self.jaas, self.section, self.allowed_ids))


@dataclass(frozen=True, slots=True)
class ClientSecurity:
    """How a client speaks to bookies; with nothing in it, in clear and without a name.

    Args:
        tls: speak TLS with every bookie, and with none in clear.
        sasl: say who it is to every bookie that asks.
        opening_seconds: how long TLS and the password may take together; what Java calls startTLSTimeoutSecs.
    """

    tls: ClientTls | None = None
    sasl: ClientSasl | None = None
    opening_seconds: float = 10.0

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a file.

        Raises:
            MisuseError: it cannot be read, or says something that is not known; the message names it.
        """
        tls, sasl = _load(path, ClientTls, ClientSasl)
        return cls(tls, sasl)


@dataclass(frozen=True, slots=True)
class BookieSecurity:
    """What a bookie asks of clients; with nothing in it, nothing.

    Args:
        tls: take TLS connections; others only with `tls.allow_plain`.
        sasl: take only clients that show a password.
    """

    tls: BookieTls | None = None
    sasl: BookieSasl | None = None

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a file.

        Raises:
            MisuseError: it cannot be read, or says something that is not known; the message names it.
        """
        tls, sasl = _load(path, BookieTls, BookieSasl)
        return cls(tls, sasl)


class ClientKeys:
    """A client's certificates and password, as new connections take them.

    Raises:
        MisuseError: a file is missing or is not what it should be, or a package for SASL is not installed.

    Attributes:
        opening_seconds: see `ClientSecurity`.
    """

    @classmethod
    def of(cls, security: ClientSecurity) -> Self | None:
        """None where there is nothing to show and nothing to ask for: then a connection is open at once."""
        return None if security.tls is None and security.sasl is None else cls(security)

    def __init__(self, security: ClientSecurity) -> None:
        if security.sasl is not None:
            require_library()
        self.opening_seconds = security.opening_seconds
        self._contexts = security.tls.source() if security.tls is not None else None
        self._names = security.sasl.source() if security.sasl is not None else None

    @property
    def wants_tls(self) -> bool:
        """Whether it speaks to no bookie in clear."""
        return self._contexts is not None

    @property
    def has_name(self) -> bool:
        """Whether it can say who it is."""
        return self._names is not None

    def context(self) -> ssl.SSLContext:
        """For a new TLS connection."""
        assert self._contexts is not None
        return self._contexts.get()

    def sasl(self) -> SaslClient:
        """For a new authentication."""
        assert self._names is not None
        return SaslClient(*self._names.get())


class BookieKeys:
    """A bookie's certificates and users, as new connections meet them.

    Raises:
        MisuseError: a file is missing or is not what it should be, or a package for SASL is not installed.

    Attributes:
        allow_plain: whether a client may go on in clear.
        roles: what a client's certificate must name one of; None: any certificate will do.
    """

    @classmethod
    def of(cls, security: BookieSecurity) -> Self | None:
        """None where nothing is asked of clients: then a connection is open at once."""
        return None if security.tls is None and security.sasl is None else cls(security)

    def __init__(self, security: BookieSecurity) -> None:
        if security.sasl is not None:
            require_library()
        self._contexts = security.tls.source() if security.tls is not None else None
        self._users = security.sasl.source() if security.sasl is not None else None
        self.allow_plain = security.tls is None or security.tls.allow_plain
        self.roles = security.tls.roles if security.tls is not None else None

    @property
    def has_tls(self) -> bool:
        """Whether it has a certificate."""
        return self._contexts is not None

    @property
    def asks_names(self) -> bool:
        """Whether it takes only clients that show a password."""
        return self._users is not None

    def context(self) -> ssl.SSLContext:
        """For a new TLS connection."""
        assert self._contexts is not None
        return self._contexts.get()

    def sasl(self) -> SaslServer:
        """For a new authentication."""
        assert self._users is not None
        return SaslServer(self._users.get())

    def reload(self) -> bool:
        """Read all files again now; False if one of them cannot be used, and what was there before stays."""
        done = [source.reload() for source in (self._contexts, self._users) if source is not None]
        return all(done)


def _load(path: Path, tls: type[T], sasl: type[Any]) -> tuple[T | None, Any]:
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        msg = f"the security file {path} cannot be read: {reason}"
        raise MisuseError(msg, path=str(path)) from error
    if isinstance(document.get("sasl"), dict) and "password" in document["sasl"]:
        warn_if_others_may_read(path, "a password")
    unknown = set(document) - {"tls", "sasl"}
    if unknown:
        msg = f"the security file {path} has {', '.join(sorted(unknown))}; it may have [tls] and [sasl]"
        raise MisuseError(msg, path=str(path))
    return _section(path, document, "tls", tls), _section(path, document, "sasl", sasl)


def _section(path: Path, document: dict[str, Any], name: str, kind: type[T]) -> T | None:
    if name not in document:
        return None
    known = {part.name for part in fields(kind)}  # type: ignore[arg-type]
    values: dict[str, Any] = {}
    where = f"the security file {path}, [{name}]"
    if not isinstance(document[name], dict):
        msg = f"{where} must be a table"
        raise MisuseError(msg, path=str(path))
    for key, value in document[name].items():
        if key not in known:
            msg = f"{where}: {key} is not known here; known are {', '.join(sorted(known))}"
            raise MisuseError(msg, path=str(path))
        if key in _LISTS:
            if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
                msg = f"{where}: {key} must be a list of texts, not {value!r}"
                raise MisuseError(msg, path=str(path))
            values[key] = tuple(value)
            continue
        if not isinstance(value, bool if key in _FLAGS else str):
            msg = f"{where}: {key} must be {'true or false' if key in _FLAGS else 'a text'}, not {value!r}"
            raise MisuseError(msg, path=str(path))
        values[key] = value if key in _FLAGS or key in _TEXTS else path.parent / str(value)
    try:
        return kind(**values)
    except TypeError as error:
        needed = "certificate" if name == "tls" else "jaas"
        msg = f"{where} must say {needed}"
        raise MisuseError(msg, path=str(path)) from error
    except MisuseError as error:
        msg = f"{where}: {error.message}"
        raise MisuseError(msg, path=str(path)) from error

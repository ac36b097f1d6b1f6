"""Where an etcd cluster is and how its client behaves: the URI, and the numbers that an operator may choose.

    etcd://host1:2379,host2:2379/ledgers?session_timeout_ms=10000&credentials=/etc/quire/etcd&tls_ca=/etc/quire/ca.pem

| option | meaning |
| --- | --- |
| session_timeout_ms | how long a bookie may be silent before its registration ends (etcd counts whole seconds, at least 2) |
| patience_ms | how long a call waits for a store that is away before it says so |
| credentials | a file with one line `password:USER:PASSWORD` |
| tls_ca, tls_certificate, tls_key | files in PEM; with `tls_ca` the connection is TLS |

Source: docs/metadata.md, "etcd".
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl

from quire.core.errors import NoClusterError
from quire.metadata.store import SESSION_TIMEOUT_MS

DEFAULT_PORT: Final = 2379
DEFAULT_ROOT: Final = "/ledgers"
PATIENCE_MS: Final = 15_000
FORM: Final = "etcd://HOST:2379/ledgers"


@dataclass(frozen=True, slots=True)
class EtcdOptions:
    """How a client behaves; the module's text has the table.

    Args:
        session_timeout_ms: rounded up to seconds; a server may keep a session longer, never shorter.
        patience_ms: how long a call waits for a connection, and for its answer.
        credentials: (user, password); None for none.
        tls_ca: whose certificates are trusted; None for no TLS.
        tls_certificate: this client's certificate, if the server wants one.
        tls_key: its key.
    """

    session_timeout_ms: int = SESSION_TIMEOUT_MS
    patience_ms: int = PATIENCE_MS
    credentials: tuple[str, str] | None = field(default=None, repr=False)
    tls_ca: str | None = None
    tls_certificate: str | None = None
    tls_key: str | None = None


@dataclass(frozen=True, slots=True)
class EtcdAddress:
    """A parsed URI.

    Attributes:
        hosts: `host:port` of every server.
        root: what every key of the cluster begins with, `/ledgers` unless the URI has another.
        options: what the URI's query says.
    """

    hosts: tuple[str, ...]
    root: str = DEFAULT_ROOT
    options: EtcdOptions = EtcdOptions()

    def __str__(self) -> str:
        return f"{','.join(self.hosts)}{self.root}"


def parse_uri(uri: str) -> EtcdAddress:
    """Hosts, root and options of a cluster's URI.

    Raises:
        NoClusterError: it is not one; the message says what is wrong with it.
    """
    scheme, _, rest = uri.partition("://")
    if scheme != "etcd" or not rest:
        raise NoClusterError(f"{uri!r} is no etcd cluster: write {FORM}")
    rest, _, query = rest.partition("?")
    names, slash, path = rest.partition("/")
    hosts = tuple(_host(name.strip(), uri) for name in names.replace(";", ",").split(",") if name.strip())
    if not hosts:
        raise NoClusterError(f"{uri!r} names no server: write {FORM}")
    root = slash + path.rstrip("/")
    if len(root) > 1 and not {"", ".", ".."}.isdisjoint(root.split("/")[1:]):
        raise NoClusterError(f"{uri!r} has an empty or dotted part in its path {root}")
    return EtcdAddress(hosts, root if len(root) > 1 else DEFAULT_ROOT, _options(query, uri))


def _host(name: str, uri: str) -> str:
    host, colon, port = name.rpartition(":")
    if not colon or name.endswith("]"):
        return f"{name}:{DEFAULT_PORT}"
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise NoClusterError(f"{uri!r}: {name!r} is no HOST:PORT")
    return name


def _options(query: str, uri: str) -> EtcdOptions:
    options = EtcdOptions()
    kinds = {item.name: item.type for item in fields(EtcdOptions)}
    for name, text in parse_qsl(query, keep_blank_values=True):
        if name not in kinds:
            raise NoClusterError(f"{uri!r}: there is no option {name!r}; there are {', '.join(kinds)}")
        if name == "credentials":
            options = replace(options, credentials=read_credentials(Path(text)))
        elif kinds[name] == "int":
            if not text.isdecimal() or int(text) < 1:
                raise NoClusterError(f"{uri!r}: {name} is a number of milliseconds, not {text!r}")
            options = replace(options, **{name: int(text)})  # type: ignore[arg-type]
        else:
            options = replace(options, **{name: text})  # type: ignore[arg-type]
    if (options.tls_certificate is None) != (options.tls_key is None):
        raise NoClusterError(f"{uri!r}: tls_certificate and tls_key go together")
    if options.tls_ca is None and options.tls_certificate is not None:
        raise NoClusterError(f"{uri!r}: name tls_ca too, whose certificates are trusted")
    return options


def read_credentials(path: Path) -> tuple[str, str]:
    """User and password in a file.

    Raises:
        NoClusterError: it cannot be read, or its first line is not `password:USER:PASSWORD`.
    """
    try:
        line = path.read_text().partition("\n")[0]
    except (OSError, UnicodeDecodeError) as error:
        raise NoClusterError(f"the credentials in {path} cannot be read: {error}", path=str(path)) from error
    kind, _, rest = line.partition(":")
    user, colon, password = rest.partition(":")
    if kind != "password" or not (user and colon):
        raise NoClusterError(f"the first line of {path} is not password:USER:PASSWORD", path=str(path))
    return user, password

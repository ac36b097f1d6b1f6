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

from dataclasses import dataclass, field
from typing import Final

from quire.core.errors import NoClusterError
from quire.metadata.server_uri import DEFAULT_ROOT, PATIENCE_MS, credentials_in, hosts_and_root, with_query
from quire.metadata.store import SESSION_TIMEOUT_MS

DEFAULT_PORT: Final = 2379
FORM: Final = "etcd://HOST:2379/ledgers"


@dataclass(frozen=True, slots=True)
class EtcdOptions:
    """How a client behaves; the module's text has the table.

    Args:
        session_timeout_ms: rounded up to seconds; a server may keep a session longer, never shorter.
        patience_ms: how long a call waits for a connection, and for its response.
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
    place, _, query = rest.partition("?")
    hosts, root = hosts_and_root(place, uri, port=DEFAULT_PORT, form=FORM)
    return EtcdAddress(hosts, root, _options(query, uri))


def _options(query: str, uri: str) -> EtcdOptions:
    options = with_query(EtcdOptions(), query, uri, lambda path: credentials_in(path, "password")[1:])
    if (options.tls_certificate is None) != (options.tls_key is None):
        raise NoClusterError(f"{uri!r}: tls_certificate and tls_key go together")
    if options.tls_ca is None and options.tls_certificate is not None:
        raise NoClusterError(f"{uri!r}: name tls_ca too, whose certificates are trusted")
    return options

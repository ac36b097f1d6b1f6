"""Where a ZooKeeper cluster is and how its client behaves: the URI, and the numbers that an operator may choose.

    zk://host1:2181,host2:2181/ledgers?session_timeout_ms=10000&acl=creator&credentials=/etc/quire/zk
    zk+longhierarchical://host1:2181;host2:2181/ledgers

| option | meaning |
| --- | --- |
| session_timeout_ms | how long a bookie may be silent before its registration ends (the server may change it) |
| patience_ms | how long a call waits for a store that is away before it says so |
| ledger_format | the format of new ledgers' records, 3, or 2 where members are older than BookKeeper 4.9 |
| acl | `open`: everybody may change everything, as BookKeeper does by default; `creator`: only who made it, so the client must be known |
| credentials | a file with one line `digest:USER:PASSWORD` or `sasl:USER:PASSWORD` (DIGEST-MD5) |
| tls_ca, tls_certificate, tls_key | files in PEM; with `tls_ca` the connection is TLS |

Source: BookKeeper source, `metadataServiceUri` in `AbstractConfiguration`; docs/metadata.md, "ZooKeeper".
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from quire.core.errors import NoClusterError
from quire.core.ledger.metadata import NEWEST_FORMAT
from quire.core.settings import choice
from quire.metadata.server_uri import PATIENCE_MS, credentials_in, hosts_and_root, with_query
from quire.metadata.store import SESSION_TIMEOUT_MS

DEFAULT_PORT: Final = 2181
FORM: Final = "zk://HOST:2181/ledgers"
SCHEMES: Final = ("zk", "zookeeper")


class ZookeeperLayout(Enum):
    """How ledger ids become paths; the value is the name in a URI."""

    HIERARCHICAL = "hierarchical"
    LONG_HIERARCHICAL = "longhierarchical"
    FLAT = "flat"
    LEGACY_HIERARCHICAL = "legacyhierarchical"


@dataclass(frozen=True, slots=True)
class ZookeeperOptions:
    """How a client behaves; the module's text has the table.

    Args:
        session_timeout_ms: asked of the server, which keeps it between 2 and 20 of its ticks.
        patience_ms: how long a call waits for a connection, and for its response.
        ledger_format: of new ledgers' records, 2 or 3; those that are there keep theirs.
        acl: `open` or `creator`.
        credentials: (kind, user, password) with kind `digest` or `sasl`; None for none.
        tls_ca: whose certificates are trusted; None for no TLS.
        tls_certificate: this client's certificate, if the server wants one.
        tls_key: its key.
    """

    session_timeout_ms: int = SESSION_TIMEOUT_MS
    patience_ms: int = PATIENCE_MS
    ledger_format: int = choice(NEWEST_FORMAT, 2)  # 1 has no place for an ack quorum, digest and password
    acl: str = choice("open", "creator")
    credentials: tuple[str, str, str] | None = field(default=None, repr=False)
    tls_ca: str | None = None
    tls_certificate: str | None = None
    tls_key: str | None = None


@dataclass(frozen=True, slots=True)
class ZookeeperAddress:
    """A parsed URI.

    Attributes:
        hosts: `host:port` of every server.
        root: the cluster's path, `/ledgers` unless the URI has another.
        layout: what the URI says; None takes what the cluster says.
        options: what the URI's query says.
    """

    hosts: tuple[str, ...]
    root: str
    layout: ZookeeperLayout | None = None
    options: ZookeeperOptions = ZookeeperOptions()

    def __str__(self) -> str:
        return f"{','.join(self.hosts)}{self.root}"


def is_zookeeper(scheme: str) -> bool:
    """Whether a URI's scheme names a ZooKeeper cluster."""
    return scheme.partition("+")[0] in SCHEMES


def parse_uri(uri: str) -> ZookeeperAddress:
    """Hosts, path, layout and options of a cluster's URI.

    Raises:
        NoClusterError: it is not one; the message says what is wrong with it.
    """
    scheme, _, rest = uri.partition("://")
    if not is_zookeeper(scheme) or not rest:
        raise NoClusterError(f"{uri!r} is no ZooKeeper cluster: write {FORM}")
    place, _, query = rest.partition("?")
    hosts, root = hosts_and_root(place, uri, port=DEFAULT_PORT, form=FORM)
    return ZookeeperAddress(hosts, root, _layout(scheme, uri), _options(query, uri))


def _layout(scheme: str, uri: str) -> ZookeeperLayout | None:
    _, plus, name = scheme.partition("+")
    if not plus or name == "null":
        return None
    try:
        return ZookeeperLayout(name)
    except ValueError:
        known = ", ".join(layout.value for layout in ZookeeperLayout)
        raise NoClusterError(f"{uri!r}: there is no layout {name!r}; there are {known}, and null") from None


def _options(query: str, uri: str) -> ZookeeperOptions:
    options = with_query(ZookeeperOptions(), query, uri, lambda path: credentials_in(path, "digest", "sasl"))
    if options.acl == "creator" and options.credentials is None and options.tls_certificate is None:
        raise NoClusterError(
            f"{uri!r}: with acl=creator ZooKeeper must know who this client is: name credentials=FILE, or tls_certificate"
        )
    return options

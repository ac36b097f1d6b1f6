"""What the URIs of clusters behind servers have in common: hosts, a root, options, and a file of credentials.

Source: docs/metadata.md, "ZooKeeper" and "etcd".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import parse_qsl

from quire.core.errors import MisuseError, NoClusterError
from quire.core.settings import Range, check_setting, check_settings
from quire.env.private import read_secret
from quire.wire.addresses import address_of, split_address

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    Options = TypeVar("Options", bound=DataclassInstance)

DEFAULT_ROOT: Final = "/ledgers"
PATIENCE_MS: Final = 15_000
"""The option `patience_ms`: how long a call waits for a connection, and for its response."""
NUMBER_MAX: Final = 2**31 - 1
"""ZooKeeper has no room for a longer time; as milliseconds it is 24 days."""


def hosts_and_root(place: str, uri: str, *, port: int, form: str) -> tuple[tuple[str, ...], str]:
    """The servers and the cluster's root.

    Args:
        place: the URI between its scheme and its query.
        uri: the whole, for messages.
        port: where a host has none.
        form: how such a URI is written, for messages.

    Returns:
        `host:port` of every server, and `/ledgers` or what the URI says instead.

    Raises:
        NoClusterError: no host, a host without sense, a password, or a root with an empty or dotted part.
    """
    names, slash, path = place.partition("/")
    if not names.strip():
        raise NoClusterError(f"{uri!r} names no server: write {form}")
    if "@" in names:
        # The text is not shown: what stands before the @ is a password.
        raise NoClusterError(
            f"a user and a password do not stand in a cluster's URI: write {form}?credentials=FILE with a file that only "
            "you can read"
        )
    hosts = tuple(_host(name.strip(), uri, port) for name in names.replace(";", ",").split(","))
    root = slash + path.rstrip("/")
    if len(root) > 1 and not {"", ".", ".."}.isdisjoint(root.split("/")[1:]):
        raise NoClusterError(f"{uri!r} has an empty or dotted part in its path {root}")
    return hosts, root if len(root) > 1 else DEFAULT_ROOT


def _host(name: str, uri: str, default_port: int) -> str:
    address = split_address(name)
    if address is None or address[1] == 0:
        brackets = "; an IPv6 address stands in brackets, as in [::1]:2181" if name.count(":") > 1 else ""
        what = f"{name!r} is not HOST:PORT" if name else "a server is missing between two commas"
        raise NoClusterError(f"{uri!r}: {what}{brackets}")
    host, port = address
    return address_of(host, default_port if port is None else port)


def with_query(options: Options, query: str, uri: str, credentials: Callable[[Path], Any]) -> Options:
    """Options with what a URI's query says.

    Args:
        options: the defaults.
        query: after the question mark.
        uri: the whole, for messages.
        credentials: reads the file that the option of this name says.

    Raises:
        NoClusterError: an option that does not exist or has no sense.
    """
    kinds = {item.name: item.type for item in fields(options)}
    for name, text in parse_qsl(query, keep_blank_values=True):
        if name not in kinds:
            raise NoClusterError(f"{uri!r}: unknown option {name!r}; the options are {', '.join(kinds)}")
        value: Any = text
        if name == "credentials":
            value = credentials(Path(text))
        elif kinds[name] == "int":
            value = int(text) if text.isdecimal() and len(text) <= len(str(NUMBER_MAX)) else text
            check_setting(f"{uri!r}: `{name}`", value, Range(1, NUMBER_MAX), NoClusterError)
        options = replace(options, **{name: value})
    check_settings(options, f"{uri!r}: ", NoClusterError)
    return options


def credentials_in(path: Path, *kinds: str) -> tuple[str, str, str]:
    """Kind, user and password in a file.

    Raises:
        NoClusterError: it cannot be read, or it is not `KIND:USER:PASSWORD` with one of the kinds.
    """
    try:
        line = read_secret(path, "credentials", others_may_read=True)
    except MisuseError as error:
        raise NoClusterError(str(error), path=str(path)) from error
    kind, _, rest = line.partition(":")
    user, colon, password = rest.partition(":")
    if kind not in kinds or not (user and colon):
        forms = " or ".join(f"{each}:USER:PASSWORD" for each in kinds)
        raise NoClusterError(f"the credentials file {path} does not say {forms}", path=str(path))
    return kind, user, password

"""How the address of a server is written and printed: `HOST:PORT`, an IPv6 address in brackets.

Source: docs/metadata.md, "ZooKeeper".
"""

from __future__ import annotations

import ipaddress
import re
from typing import Final

_ADDRESS: Final = re.compile(r"(?:\[(?P<ipv6>[^\[\]]*)\]|(?P<host>[^:\[\]\s]+))(?::(?P<port>[0-9]{1,5}))?")
PORT_MAX: Final = 65_535


def split_address(text: str) -> tuple[str, int | None] | None:
    """Host and port of an address; the port is None where none is written, all is None where it is no address.

    Args:
        text: as `bookie-1:3181`, `10.0.0.1` or `[::1]:3181`. An IPv6 address without brackets is none: in `::1:2181`
            nothing says where the port begins.
    """
    match = _ADDRESS.fullmatch(text)
    if match is None:
        return None
    host, port = match["host"], match["port"]
    if host is None:
        host = match["ipv6"]
        try:
            ipaddress.IPv6Address(host)
        except ValueError:
            return None
    if port is not None and int(port) > PORT_MAX:
        return None
    return host, None if port is None else int(port)


def address_of(host: str, port: int) -> str:
    """An address as it is printed: `10.0.0.1:3181`, `[::1]:3181`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

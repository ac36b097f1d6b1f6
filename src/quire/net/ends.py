"""The two ends of a connection, as the machine at one of them sees them.

Source: `docs/formats/native-protocol.md`, "Locations".
"""

from __future__ import annotations

import asyncio


def has_one_address(transport: asyncio.BaseTransport | None) -> bool:
    """Whether both ends of a connection have the same address: then the peer, or its forwarder, is on this machine.

    Each side looks for itself, whatever the other side says about it.
    """
    if transport is None:
        return False
    ends = [transport.get_extra_info(name) for name in ("sockname", "peername")]
    addresses = [end[0] for end in ends if isinstance(end, tuple)]
    return len(addresses) == len(ends) and addresses[0] == addresses[1]

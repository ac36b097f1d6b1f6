"""What the system is asked to do for a connection, at both ends: find out that the other end is lost, and report it.

Source: Linux man-pages, tcp(7): TCP_USER_TIMEOUT, TCP_KEEPIDLE; RFC 5482.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress

from quire.net.silence import (
    KEEPALIVE_EVERY_SECONDS,
    KEEPALIVE_IDLE_SECONDS,
    KEEPALIVE_PROBES,
    USER_TIMEOUT_MS,
)


def keep_alive(transport: asyncio.BaseTransport) -> None:
    """End a connection by itself when its other end has acknowledged nothing for 12 to 15 s, idle or not.

    A system that lacks one of the options does without it; a transport without a socket is left alone.
    """
    connection = transport.get_extra_info("socket")
    if connection is None:
        return
    tcp = socket.IPPROTO_TCP
    options = (
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
        (tcp, getattr(socket, "TCP_KEEPIDLE", None), KEEPALIVE_IDLE_SECONDS),
        (tcp, getattr(socket, "TCP_KEEPINTVL", None), KEEPALIVE_EVERY_SECONDS),
        (tcp, getattr(socket, "TCP_KEEPCNT", None), KEEPALIVE_PROBES),
        (tcp, getattr(socket, "TCP_USER_TIMEOUT", None), USER_TIMEOUT_MS),
    )
    for level, option, value in options:
        if option is not None:
            with suppress(OSError):
                connection.setsockopt(level, option, value)

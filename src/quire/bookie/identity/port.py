"""A bookie's port: taken before anything is written to its disk, served on when the bookie is ready.

Source: `docs/decisions/048-who-is-refused-has-written-nothing.md`.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable

from quire.bookie.config import BookieConfig
from quire.core.errors import MisuseError
from quire.wire.addresses import address_of


async def take_port(
    config: BookieConfig, protocol: Callable[[], asyncio.BaseProtocol], queue: int
) -> asyncio.Server:
    """Take the port. The system refuses who connects until the caller says `start_serving`.

    Args:
        config: host and port.
        protocol: of a connection.
        queue: so many connections wait to be accepted.

    Raises:
        MisuseError: the port is taken.
    """
    host, port = config.host, config.port
    try:
        return await asyncio.get_running_loop().create_server(
            protocol, host, port, backlog=queue, start_serving=False
        )
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            msg = f"port {port} on {host} is in use: stop what listens there, or choose another (0 = any free one)"
            raise MisuseError(msg, host=host, port=port) from error
        msg = f"cannot listen on {address_of(host, port)}: {error.strerror or error}"
        raise MisuseError(msg, host=host, port=port) from error

"""Which connections a bookie has, and which of them make room when there are many: newcomers, the oldest first."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Generic, Protocol, TypeVar

from quire.env.descriptors import ConnectionEntry, Shares, admit

LAST_RESPONSES_SECONDS: Final = 1.0
"""So long a bookie that stops waits for clients to read what it has written."""


class Newcomer(Protocol):
    """A connection that may have to go; it stands above."""

    transport: asyncio.Transport | None

    def make_room(self) -> None:
        """There are too many that have asked nothing, and this is the oldest of them."""


C = TypeVar("C", bound=Newcomer)


class Admission(Generic[C]):
    """The connections of one bookie; the oldest newcomers make room when there are too many.

    Args:
        shares: how many there may be.
        say: logs that one is refused, or closed.

    Attributes:
        connections: all, in the order in which they came: what is done to all of them is done in one order in every run.
    """

    def __init__(self, shares: Shares, say: Callable[..., None]) -> None:
        self.connections: dict[C, None] = {}
        self._shares = shares
        self._say = say
        self._newcomers: dict[C, None] = {}
        self._none_left = asyncio.Event()
        self._none_left.set()

    def admit(self, connection: C) -> bool:
        """A client came; False when there are too many already."""
        entry = admit(self._shares, len(self.connections), len(self._newcomers))
        if entry is ConnectionEntry.REFUSED:
            self._say("refused a connection: %d are open already", len(self.connections))
            return False
        if entry is ConnectionEntry.DISPLACES:
            oldest = next(iter(self._newcomers))
            self.leave(oldest)
            oldest.make_room()
        self.connections[connection] = self._newcomers[connection] = None
        self._none_left.clear()
        return True

    def has_asked(self, connection: C) -> None:
        """A client has shown who it is, where that is asked, and made a request: it is no newcomer any more."""
        self._newcomers.pop(connection, None)

    def leave(self, connection: C) -> None:
        """A client has disconnected, or is about to be disconnected."""
        self.connections.pop(connection, None)
        self._newcomers.pop(connection, None)
        if not self.connections:
            self._none_left.set()

    async def end_all(self) -> None:
        """End all connections after what was written; those whose clients do not read it, after a moment."""
        for connection in list(self.connections):
            if connection.transport is not None:
                connection.transport.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_RESPONSES_SECONDS):
                await self._none_left.wait()
        for connection in list(self.connections):
            if connection.transport is not None:
                connection.transport.abort()

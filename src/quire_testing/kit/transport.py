"""One end of a connection in memory, as asyncio's programs see it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any


class MemoryTransport(asyncio.Transport):
    """A transport that takes at once whatever is written; a subclass says where it goes (`send`).

    Attributes:
        closed: no more is sent or received here.
    """

    __slots__ = ("closed",)

    def __init__(self) -> None:
        super().__init__()
        self.closed = False

    def send(self, data: bytes) -> None:
        """Bytes for the other end."""
        raise NotImplementedError

    def write(self, data: Any) -> None:
        """Send."""
        if data:
            self.send(bytes(data))

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        """Send, in one chunk."""
        self.send(b"".join(list_of_data))

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Everything is taken at once."""

    def get_write_buffer_size(self) -> int:
        """Nothing waits at this end: what is sent is on its way."""
        return 0

    def pause_reading(self) -> None:
        """The caller that hands bytes over decides what is read."""

    def resume_reading(self) -> None:
        """The caller that hands bytes over decides what is read."""

    def is_closing(self) -> bool:
        """Whether it is over."""
        return self.closed

    def close(self) -> None:
        """End the connection."""
        self.closed = True

    def abort(self) -> None:
        """End it at once."""
        self.close()

    def give(self, protocol: Any, data: bytes) -> None:
        """Hand bytes to the protocol at this end as a socket would: never more than its buffer takes, none after the end.

        Args:
            protocol: an `asyncio.BufferedProtocol`.
            data: what has arrived.
        """
        view = memoryview(data)
        while view and not self.closed:
            buffer = protocol.get_buffer(-1)
            size = min(len(buffer), len(view))
            buffer[:size] = view[:size]
            protocol.buffer_updated(size)
            view = view[size:]

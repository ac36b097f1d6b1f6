"""What a client keeps of one bookie, and of one request to it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from quire.net.channel import Channel

R = TypeVar("R")


class Reply(Generic[R]):
    """Turns one channel response into a future's result."""

    __slots__ = ("future",)

    def __init__(self) -> None:
        self.future: asyncio.Future[R] = asyncio.get_running_loop().create_future()

    def answered(self, tag: object, response: R) -> None:  # noqa: ARG002 - one request, no tag
        """What the channel says."""
        if not self.future.done():
            self.future.set_result(response)


@dataclass(slots=True)
class Peer:
    """One bookie: its channel now, when it may be tried again, and what is wrong between it and this client.

    Attributes:
        trouble: why the last connection that was not opened ended; empty if one was.
        refused: because one side does not take the other, which no waiting will change.
    """

    channel: Channel | None = None
    retry_at: float = 0.0
    failures: int = 0
    trouble: str = ""
    refused: bool = False
    connecting: asyncio.Task[None] | None = None

    @property
    def blocked_because(self) -> str:
        """The trouble, while no connection is open."""
        return self.trouble if self.channel is None or not self.channel.was_ready else ""


def channels_with(feature: int, peers: Iterable[Peer | None]) -> Sequence[Channel]:
    """The connections to bookies, if all are open now and every bookie said that it does this; else none."""
    channels = []
    for peer in peers:
        channel = peer.channel if peer is not None else None
        if channel is None or not channel.was_ready or not channel.features & feature:
            return ()
        channels.append(channel)
    return channels


class Follower(Protocol):
    """Who wants to know when other bookies take entries."""

    def bookies_changed(self) -> None:
        """The list is another one."""

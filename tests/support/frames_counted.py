"""What leaves this process for bookies of V2 and V3, and for ZooKeeper, while a test runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from quire.metadata.zookeeper.session import ZookeeperSession
from quire.net.channel import Channel
from quire.wire.entry import Buffer


def frames_of(data: bytes) -> list[bytes]:
    """The frames of whole ones, each with its length field."""
    frames: list[bytes] = []
    at = 0
    while at < len(data):
        end = at + 4 + int.from_bytes(data[at : at + 4], "big")
        frames.append(data[at:end])
        at = end
    return frames


def see_frames_sent(monkeypatch: pytest.MonkeyPatch, see: Callable[[Channel, Sequence[bytes]], None]) -> None:
    """Call `see` with the frames of every write to a bookie, before the socket has them."""
    write = Channel._write

    def seen(channel: Channel, buffers: Sequence[Buffer], size: int) -> None:
        see(channel, frames_of(b"".join(buffers)))
        write(channel, buffers, size)

    monkeypatch.setattr(Channel, "_write", seen)


def count_requests(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Requests to bookies and to ZooKeeper, from now on."""
    counted: Counter[str] = Counter()
    submit = ZookeeperSession.submit

    def counting(session: ZookeeperSession, request: Any, *, fresh: bool = False) -> Any:
        counted["to ZooKeeper"] += 1 + fresh
        return submit(session, request, fresh=fresh)

    def see(_: Channel, frames: Sequence[bytes]) -> None:
        counted["to bookies"] += len(frames)

    monkeypatch.setattr(ZookeeperSession, "submit", counting)
    see_frames_sent(monkeypatch, see)
    return counted

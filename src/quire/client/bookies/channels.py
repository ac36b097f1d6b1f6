"""The wire protocol for each bookie, and the connection that uses it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, TypeAlias

from quire.core.ids import BookieId
from quire.metadata.bookies import BookieInfo
from quire.net.bookkeeper.batch_reads import BatchReads
from quire.net.bookkeeper.v2_codec import V2Codec
from quire.net.bookkeeper.v3_codec import V3Codec
from quire.net.channel import Channel, NativeCodec
from quire.net.channel_codec import ChannelCodec, ChannelContext
from quire.net.receive_memory import ReceiveBudget, Scratch
from quire.net.security.settings import ClientKeys
from quire.wire.addresses import address_of
from quire.wire.frame_limits import FrameLimits

Ended: TypeAlias = Callable[[Channel, str], None]


class Channels:
    """Makes the connections of one client; the caller connects them.

    Args:
        cluster_instance: the cluster that bookies must belong to, as far as they can be asked.
        receive_budget_bytes: memory for unfinished responses.
        protocol, protocol_of: the wire protocol, in general and by address; see `ClientConfig`.
        limits: the longest frames; see `ClientConfig.frame_bytes_max`.
        keys: certificates and a password, if there are any.
        connect: connects a second connection, made next to another.

    Attributes:
        limits: the longest frames.
        connecting: the tasks that connect second connections.
    """

    def __init__(
        self,
        cluster_instance: str,
        receive_budget_bytes: int,
        protocol: str,
        protocol_of: Sequence[tuple[str, str]],
        *,
        limits: FrameLimits,
        keys: ClientKeys | None,
        connect: Callable[[BookieId, Channel], Coroutine[Any, Any, None]],
    ) -> None:
        self._cluster_instance = cluster_instance
        self._context = ChannelContext(Scratch(), ReceiveBudget(receive_budget_bytes), limits, keys)
        self.limits = limits
        self._protocol = protocol
        self._protocol_of = dict(protocol_of)
        self._connect = connect
        self._batches: dict[BookieId, BatchReads] = {}
        self.connecting: set[asyncio.Task[None]] = set()

    def frame(self, size: int) -> memoryview:
        """Memory for what is received or read; the caller's until the last view of it is released."""
        return self._context.scratch.frame(size)

    def _protocol_for(self, info: BookieInfo | None) -> str:
        """The wire protocol for a bookie; "" is our own."""
        protocol = self._protocol
        if info is not None:
            protocol = self._protocol_of.get(address_of(info.host, info.port), protocol)
        return "" if protocol.startswith("auto") and (info is None or info.native) else protocol

    def speaks_native(self, info: BookieInfo | None) -> bool:
        """Whether a bookie gets our own protocol."""
        return not self._protocol_for(info)

    def make(self, bookie: BookieId, info: BookieInfo | None, ended: Ended) -> Channel:
        """A connection to a bookie, not connected yet; `info` is None while it is not known to be registered."""
        protocol = self._protocol_for(info)
        if not protocol:
            codec: ChannelCodec = NativeCodec(self._context, self._cluster_instance)
        elif protocol.endswith("v2"):
            batches = self._batches.get(bookie)
            if batches is None:
                begin = partial(self._begin_second, bookie)
                batches = self._batches[bookie] = BatchReads(bookie, self._context, begin)
            batches.begin_over()
            codec = V2Codec(self._context, lambda: self._make_v3(bookie), batches)
        else:
            codec = V3Codec(self._context)
        return Channel(bookie, self._context, codec, ended)

    def _make_v3(self, bookie: BookieId) -> Channel:
        """A V3 connection for requests that V2 does not have; it opens and closes with the V2 one."""
        channel = Channel(bookie, self._context, V3Codec(self._context), _second_ended)
        self._begin_second(bookie, channel)
        return channel

    def _begin_second(self, bookie: BookieId, channel: Channel) -> None:
        """Connect a second connection to a bookie."""
        task = asyncio.get_running_loop().create_task(self._connect(bookie, channel))
        self.connecting.add(task)
        task.add_done_callback(self.connecting.discard)


def _second_ended(channel: Channel, reason: str) -> None:
    """Its requests have completed; the next request opens another connection."""

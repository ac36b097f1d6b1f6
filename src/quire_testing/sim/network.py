"""The network between simulated processes: connections in order, with delays that have a long tail, until they break.

What TCP promises is kept: the bytes of one connection arrive in order and none is missing before one that arrives. What
it does not promise is made use of: a break loses a suffix, the ends learn of it at different times or by their own
time-outs only, and a later connection may overtake what an earlier one still brings.

Source: docs/simulation.md, "The world".
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from crc32c import crc32c

from quire_testing.kit.transport import MemoryTransport
from quire_testing.sim.loop import SECOND, ProcessLoop, Timeline

WRITE_BUFFER_BYTES = 64 * 1024
CONNECT_TIMEOUT_NS = 3 * SECOND


@dataclass(slots=True)
class SimulatedLink:
    """One direction between two hosts.

    Attributes:
        slow: by how much longer everything takes.
        cut: nothing arrives; what is on its way waits, as TCP would send it again.
    """

    slow: float = 1.0
    cut: bool = False


@dataclass(slots=True)
class NetworkSettings:
    """How the network is in one run.

    Attributes:
        base_ns: a usual delay.
        tail: the exponent of the delays' tail; 0: all alike.
        delay_max_ns: the longest.
        pieces: how often a chunk arrives in two pieces, out of 256.
    """

    base_ns: int = 200_000
    tail: float = 0.8
    delay_max_ns: int = 5 * SECOND
    pieces: int = 8


class Network:
    """All links and connections.

    Args:
        timeline: the world's.
        chance: of this network.
        settings: how it is.

    Attributes:
        digest: a checksum over every byte that was delivered, when and to which process.
        delivered: how many chunks that was.
        levels: how slow links are from the beginning.
    """

    def __init__(self, timeline: Timeline, chance: random.Random, settings: NetworkSettings) -> None:
        self.timeline = timeline
        self.chance = chance
        self.settings = settings
        self.digest = 0
        self.delivered = 0
        self.trace: Callable[[str], None] | None = None
        self.levels: dict[tuple[str, str], float] = {}
        self._links: dict[tuple[str, str], SimulatedLink] = {}
        self._listeners: dict[tuple[str, int], SimServer] = {}
        self._connections: list[tuple[SimTransport, SimTransport]] = []
        self._next_port = 40_000

    # --- links -----------------------------------------------------------------------------------------------------

    def link(self, source: str, target: str) -> SimulatedLink:
        """The direction from one host to another."""
        link = self._links.get((source, target))
        if link is None:
            link = self._links[source, target] = SimulatedLink(self.levels.get((source, target), 1.0))
        return link

    def heal_all(self) -> None:
        """All links are as good as any, unused ones too."""
        self.levels = {}
        for (source, target), link in self._links.items():
            link.slow = 1.0
            if link.cut:
                self.cut(source, target, cut=False)

    def cut(self, source: str, target: str, *, cut: bool = True) -> None:
        """Cut one direction, or heal it: what waited is sent on."""
        self.link(source, target).cut = cut
        if not cut:
            for pair in self._connections:
                for end in pair:
                    if end.peer.host == source and end.host == target:
                        end.kick()

    def delay_ns(self, link: SimulatedLink) -> int:
        """How long something takes on a link now."""
        settings = self.settings
        draw = 1.0 - self.chance.random()
        return min(int(settings.base_ns * link.slow * draw**-settings.tail), settings.delay_max_ns)

    # --- connections -------------------------------------------------------------------------------------------

    def listen(self, loop: ProcessLoop, factory: Any, host: str, port: int) -> SimServer:
        """Listen."""
        if not port:
            port, self._next_port = self._next_port, self._next_port + 1
        known = self._listeners.get((host, port))
        if known is not None and known.loop.alive and not known.closed:
            raise OSError(98, "address in use")
        server = self._listeners[host, port] = SimServer(self, loop, factory, host, port)
        return server

    async def connect(
        self, loop: ProcessLoop, factory: Any, host: str, port: int
    ) -> tuple[SimTransport, Any]:
        """Connect.

        Raises:
            OSError: no process listens there, or nothing comes back.
        """
        there, back = self.link(loop.name, host), self.link(host, loop.name)
        answered: asyncio.Future[SimTransport] = loop.create_future()
        self.timeline.after(self.delay_ns(there), self._knock, loop, answered, host, port, there, back)
        timer = loop.call_later(CONNECT_TIMEOUT_NS / SECOND, _time_out, answered)
        try:
            transport = await answered
        finally:
            timer.cancel()
        protocol = factory()
        transport.attach(protocol)
        return transport, protocol

    def _knock(
        self,
        loop: ProcessLoop,
        answered: asyncio.Future[Any],
        host: str,
        port: int,
        there: SimulatedLink,
        back: SimulatedLink,
    ) -> None:
        if there.cut or back.cut:
            return
        server = self._listeners.get((host, port))
        after = self.delay_ns(back)
        if server is None or server.closed or not server.serving or not server.loop.alive:
            self.timeline.after(after, loop.deliver, _refuse, answered)
            return
        near = SimTransport(self, loop, loop.name, host)
        far = SimTransport(self, server.loop, host, loop.name)
        near.peer, far.peer = far, near
        self._connections.append((near, far))
        server.loop.deliver(server.accept, far)
        self.timeline.after(after, loop.deliver, _settle, answered, near)

    def break_connections(self, one: str, other: str) -> int:
        """Break every connection between two hosts: each direction loses what is on its way from some chunk on.

        Returns:
            How many were broken.
        """
        broken = 0
        for near, far in self._connections:
            if {near.host, far.host} == {one, other} and not near.closed and not far.closed:
                broken += 1
                for end in (near, far):
                    end.lose_suffix(self.chance)
                    self.timeline.after(self.delay_ns(self.link(end.peer.host, end.host)), end.lost_soon)
        self.forget()
        return broken

    def silence(self, one: str, other: str) -> int:
        """Every connection between two hosts swallows all that is sent from now on; new ones are well.

        Returns:
            How many there are.
        """
        silent = 0
        for near, far in self._connections:
            if {near.host, far.host} == {one, other} and not near.closed and not far.closed:
                silent += 1
                for end in (near, far):
                    end.deaf = True
                    end.lose_all()
        return silent

    def process_died(self, loop: ProcessLoop, *, silent: bool) -> None:
        """A process has ended. Its machine notifies the other ends, unless it has ended too.

        What it had written is still brought, except by a machine that has ended.
        """
        for near, far in self._connections:
            for end in (near, far):
                if end.loop is not loop or end.closed:
                    continue
                end.closed = True
                if silent:
                    end.peer.lose_all()
                else:
                    end.peer.ends_after(self.delay_ns(self.link(end.host, end.peer.host)))
        self.forget()

    def forget(self) -> None:
        """Drop connections whose ends are both closed."""
        self._connections = [pair for pair in self._connections if not (pair[0].closed and pair[1].closed)]

    def saw(self, end: SimTransport, chunk: bytes) -> None:
        """A chunk is being delivered."""
        self.delivered += 1
        now = self.timeline.now_ns
        self.digest = crc32c(b"%d %s %s " % (now, end.peer.host.encode(), end.host.encode()), self.digest)
        self.digest = crc32c(chunk, self.digest)
        if self.trace is not None:
            self.trace(f"{end.peer.host} -> {end.host}: {len(chunk)} bytes {crc32c(chunk):08x}")


class SimServer:
    """A listening port."""

    def __init__(self, network: Network, loop: ProcessLoop, factory: Any, host: str, port: int) -> None:
        self.network, self.loop, self.factory = network, loop, factory
        self.closed = False
        self.serving = True
        self.sockets = [_Socket(host, port)]

    async def start_serving(self) -> None:
        """From here on clients may connect."""
        self.serving = True

    def accept(self, transport: SimTransport) -> None:
        """A client has connected."""
        transport.attach(self.factory())

    def close(self) -> None:
        """Accept no connection any more."""
        self.closed = True

    async def wait_closed(self) -> None:
        """It is closed at once."""


@dataclass(slots=True)
class _Socket:
    host: str
    port: int

    def getsockname(self) -> tuple[str, int]:
        """Where it listens."""
        return self.host, self.port


class SimTransport(MemoryTransport):
    """One end of a connection.

    Attributes:
        peer: the other end.
        deaf: nothing that is sent here arrives any more, not even the end, and no error is reported.
    """

    __slots__ = (
        "_arriving",
        "_high",
        "_lost",
        "_next_ns",
        "_paused",
        "_protocol",
        "_stalled",
        "_unread",
        "deaf",
        "host",
        "link",
        "loop",
        "network",
        "peer",
    )  # fmt: skip

    peer: SimTransport

    def __init__(self, network: Network, loop: ProcessLoop, host: str, other: str) -> None:
        super().__init__()
        self.network, self.loop, self.host = network, loop, host
        self.link = network.link(other, host)
        self.deaf = False
        self._protocol: Any = None
        # What is on its way here; None is the end of the stream.
        self._arriving: deque[tuple[int, bytes | None]] = deque()
        self._next_ns = 0
        self._unread = 0
        self._paused = False
        self._stalled = False
        self._lost = False
        self._high = WRITE_BUFFER_BYTES

    # --- as asyncio has it ---------------------------------------------------------------------------------------

    def attach(self, protocol: Any) -> None:
        """The protocol at this end is there."""
        self._protocol = protocol
        protocol.connection_made(self)
        self.kick()
        if self.closed and not self._lost:  # it broke while it was being made
            self.loop.call_soon(self._lose, ConnectionResetError("the connection broke"))

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """The other side's host."""
        return self.peer.host if name == "peername" else default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """When to ask the writer to pause."""
        self._high = high or WRITE_BUFFER_BYTES

    def pause_reading(self) -> None:
        """Take nothing for now."""
        self._paused = True

    def resume_reading(self) -> None:
        """Go on."""
        if self._paused:
            self._paused = False
            self.kick()

    def is_reading(self) -> bool:
        """Whether it takes what comes."""
        return not self._paused

    def close(self) -> None:
        """End the connection behind what was written."""
        if not self.closed:
            self.closed = True
            self.peer.arrive(None)
            self.loop.call_soon(self._lose, None)

    # --- the way here ----------------------------------------------------------------------------------------------

    def send(self, data: bytes) -> None:
        """Bytes for the other end."""
        if self.closed or not self.loop.alive or not data:
            return
        peer = self.peer
        peer.arrive(data)
        if peer._unread > self._high and not self._stalled:  # noqa: SLF001 - the other end of the same thing
            self._stalled = True
            self._protocol.pause_writing()

    def arrive(self, data: bytes | None) -> None:
        """Something was sent to this end."""
        network = self.network
        if data is not None:
            self._unread += len(data)
        if self.deaf:
            return
        long = data is not None and len(data) > 1
        if long and network.chance.getrandbits(8) < network.settings.pieces:
            assert data is not None
            cut = 1 + network.chance.randrange(len(data) - 1)
            self._plan(data[:cut])
            data = data[cut:]
        self._plan(data)

    def _plan(self, data: bytes | None) -> None:
        at = max(self._next_ns, self.network.timeline.now_ns + self.network.delay_ns(self.link))
        self._next_ns = at
        self._arriving.append((at, data))
        self.network.timeline.at(at, self.kick)

    def kick(self) -> None:
        """Hand over what has arrived, if it can be taken."""
        if self._arriving and not self.link.cut and self.loop.alive:
            self.loop.call_soon(self._take)

    def _take(self) -> None:
        """In the receiver's process: bytes that have arrived, as far as it reads."""
        arriving, now = self._arriving, self.network.timeline.now_ns
        while arriving and arriving[0][0] <= now and not self._paused and self._protocol is not None:
            if self._lost or self.link.cut:
                return
            _, data = arriving.popleft()
            if data is None:
                self.closed = True
                self._lose(None)
                return
            if self.closed:
                continue
            self.network.saw(self, data)
            self._unread -= len(data)
            self.give(self._protocol, data)
        peer = self.peer
        if peer._stalled and self._unread <= peer._high // 2 and not peer.closed:  # noqa: SLF001
            peer._stalled = False  # noqa: SLF001
            peer.loop.deliver(peer._protocol.resume_writing)  # noqa: SLF001

    # --- the end -----------------------------------------------------------------------------------------------------

    def lose_suffix(self, chance: random.Random) -> None:
        """From some chunk on nothing on its way here arrives."""
        keep = chance.randint(0, len(self._arriving))
        while len(self._arriving) > keep:
            self._arriving.pop()

    def lose_all(self) -> None:
        """Nothing on its way here arrives."""
        self._arriving.clear()

    def lost_soon(self) -> None:
        """This end notices that the connection is broken."""
        if not self.closed:
            self.closed = True
            self.loop.deliver(self._lose, ConnectionResetError("the connection broke"))

    def ends_after(self, delay_ns: int) -> None:
        """The other end is closed: this one learns that behind what was sent before."""
        if self.deaf:
            return
        self._arriving.append((max(self._next_ns, self.network.timeline.now_ns + delay_ns), None))
        self.network.timeline.at(self._arriving[-1][0], self.kick)

    def _lose(self, error: Exception | None) -> None:
        if not self._lost and self._protocol is not None:
            self._lost = True
            self._protocol.connection_lost(error)


def _settle(future: asyncio.Future[Any], result: object) -> None:
    if not future.done():
        future.set_result(result)


def _refuse(future: asyncio.Future[Any]) -> None:
    if not future.done():
        future.set_exception(ConnectionRefusedError(111, "nothing listens there"))


def _time_out(future: asyncio.Future[Any]) -> None:
    if not future.done():
        future.set_exception(TimeoutError("nothing came back"))

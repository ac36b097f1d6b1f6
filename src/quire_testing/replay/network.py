"""Connections whose frames go when the schedule says so. Hellos pass at once; nothing else moves by itself.

The ends are the programs' own protocols (`net/channel.py`, `bookie/connections/connection.py`), the bytes those of the real codec.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from quire.net.channel import SIGN_OF_LIFE
from quire.wire import native_hello
from quire_testing.kit.transport import MemoryTransport
from quire_testing.replay.frames import Said, Sent, answer_of, answer_of_both, as_one, number_of, request_of


class ScriptedTransport(MemoryTransport):
    """One end of a connection."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, written: Callable[[bytes], None], closed: Callable[[], None]
    ) -> None:
        super().__init__()
        self.loop = loop
        self._written = written
        self._closed = closed
        self.protocol: Any = None

    def send(self, data: bytes) -> None:
        """Bytes for the other end."""
        if not self.closed:
            self._written(data)

    def close(self) -> None:
        """Give up: both ends learn of it later."""
        if not self.closed:
            self._closed()

    def get_extra_info(self, name: str, default: Any = None) -> Any:  # noqa: ARG002
        """Nothing is known."""
        return default

    def feed(self, data: bytes) -> None:
        """Bytes from the other end."""
        self.give(self.protocol, data)

    def lose(self) -> None:
        """This end learns that the connection is over."""
        if not self.closed:
            self.closed = True
            self.protocol.connection_lost(None)


class Line:
    """One connection from a client to a bookie.

    Attributes:
        requests, answers: on their way, oldest first.
        cut: it broke: answers go nowhere any more, requests may still arrive.
    """

    def __init__(
        self, client_loop: asyncio.AbstractEventLoop, bookie_loop: asyncio.AbstractEventLoop
    ) -> None:
        self.client = ScriptedTransport(client_loop, self._asked, self._client_closed)
        self.bookie = ScriptedTransport(bookie_loop, self._answered, self._bookie_closed)
        self.requests: list[Sent] = []
        self.answers: list[Said] = []
        self.cut = False
        self._asking = _Splitter(self.bookie, self._took_request)
        self._answering = _Splitter(self.client, self._took_answer)
        self._known: dict[int, Sent] = {}
        self._halves: dict[int, list[bytes]] = {}

    def text_of(self, number: int) -> str:
        """What was asked under a number, as transcripts write it."""
        sent = self._known.get(number)
        return "" if sent is None else sent.text

    def _asked(self, data: bytes) -> None:
        self._asking.add(data)

    def _answered(self, data: bytes) -> None:
        self._answering.add(data)

    def _took_request(self, frame: bytes) -> None:
        sent = request_of(frame)
        if sent.number == SIGN_OF_LIFE:
            self.client.protocol.has_received = (
                True  # schedules know connections that break, none that are silent
            )
            return
        self._known[sent.number] = sent
        if self.cut:
            return
        both = as_one(self.requests[-1], sent) if self.requests else None
        if both is not None:
            self._known[self.requests.pop().number] = self._known[sent.number] = sent = both
            self._halves[both.number] = []
        self.requests.append(sent)

    def _took_answer(self, frame: bytes) -> None:
        if self.cut:
            return
        asked = self._known[number_of(frame)]
        halves = self._halves.get(asked.number)
        if halves is None:
            self.answers.append(answer_of(frame, asked))
            return
        halves.append(frame)
        if len(halves) == 2:
            self.answers.append(answer_of_both(halves, asked))

    def _client_closed(self) -> None:
        self.cut = True
        self.client.loop.call_soon(self.client.lose)

    def _bookie_closed(self) -> None:
        self.cut = True
        self.bookie.loop.call_soon(self.bookie.lose)


class _Splitter:
    """Cuts a stream into its hello, which goes on at once, and frames."""

    def __init__(self, onward: ScriptedTransport, took: Callable[[bytes], None]) -> None:
        self._onward = onward
        self._took = took
        self._buffer = b""
        self._greeted = False

    def add(self, data: bytes) -> None:
        self._buffer += data
        if not self._greeted:
            hello = native_hello.split_hello(self._buffer)
            if hello is None:
                return
            used = hello[1]
            self._onward.loop.call_soon(self._onward.feed, self._buffer[:used])
            self._buffer = self._buffer[used:]
            self._greeted = True
        while len(self._buffer) >= 4:
            size = 4 + int.from_bytes(self._buffer[:4], "big")
            if len(self._buffer) < size:
                break
            frame, self._buffer = self._buffer[:size], self._buffer[size:]
            self._took(frame)


class ReplayNetwork:
    """Who can be reached, and every connection that was made.

    Attributes:
        doors: bookie's name -> (its loop, what makes its end of a connection).
        lines: (client's number, bookie's name) -> connections, the newest last.
    """

    def __init__(self) -> None:
        self.doors: dict[str, tuple[asyncio.AbstractEventLoop, Callable[[], Any]]] = {}
        self.lines: dict[tuple[int, str], list[Line]] = {}

    async def connect(
        self, loop: asyncio.AbstractEventLoop, factory: Callable[[], Any], host: str, port: int
    ) -> tuple[ScriptedTransport, Any]:
        """Connect a client to a bookie; the port says which client it is.

        Raises:
            ConnectionRefusedError: there is no such bookie now.
        """
        if host not in self.doors:
            raise ConnectionRefusedError(host)
        bookie_loop, make = self.doors[host]
        line = Line(loop, bookie_loop)
        self.lines.setdefault((port, host), []).append(line)
        line.client.protocol = factory()
        opened: asyncio.Future[None] = loop.create_future()

        def accept() -> None:
            line.bookie.protocol = make()
            line.bookie.protocol.connection_made(line.bookie)
            loop.call_soon(opened.set_result, None)

        bookie_loop.call_soon(accept)
        await opened
        line.client.protocol.connection_made(line.client)
        return line.client, line.client.protocol

    def line(self, client: int, bookie: str) -> Line | None:
        """The connection in use."""
        made = self.lines.get((client, bookie))
        return made[-1] if made else None

    def all_lines(self, client: int, bookie: str) -> list[Line]:
        """The newest first."""
        return self.lines.get((client, bookie), [])[::-1]

    @property
    def carries(self) -> bool:
        """Whether a request or a response is under way."""
        return any(line.requests or line.answers for lines in self.lines.values() for line in lines)

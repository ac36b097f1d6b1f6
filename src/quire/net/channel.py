"""A client's connection to a bookie, whatever it speaks: requests out, each answered exactly once, silence, its end.

What the bookie says is an `Answer`; what the network does to a request is one too (TIMED_OUT, UNREACHABLE), so no
caller ever waits for ever or mistakes silence for a "no". What one loop turn sends leaves in one write. Frames wait here,
not in the transport, once its buffer is full: so they can be forgotten when their ledger gives the bookie up. A codec
knows the protocol: `native_codec.py` our own, `v2_codec.py` and `v3_codec.py` BookKeeper's.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from quire.core.answers import Answer
from quire.core.errors import MalformedFrameError
from quire.core.ids import BookieId
from quire.core.silence import Silence, SilenceMachine
from quire.net.connection_states import HELLO, OPEN, SECURING, SHUT, ConnectionState
from quire.net.framing import FrameProtocol
from quire.net.opening import Opening, why_it_ended
from quire.net.receive_memory import ReceiveBudget, Scratch
from quire.net.run_frames import RunEncoder
from quire.net.security import ClientKeys
from quire.net.send_queue import AnswerSink, SendQueue
from quire.wire.entry import Buffer
from quire.wire.frame_limits import OPTION, FrameLimits
from quire.wire.requests import AnyRequest

log = logging.getLogger(__name__)

WRITE_BUFFER_BYTES = 1024 * 1024
"""How much may wait in the transport; the rest waits in the channel's own queue."""
JOINED_BYTES = 2048
"""Buffers that are shorter than this on average are joined: each alone costs a transport more than its copy does."""
SILENT = "the bookie received requests and sent no response: the connection was silent"


@dataclass(frozen=True, slots=True)
class ChannelContext:
    """What the connections of one client share.

    Attributes:
        scratch, budget: memory for what is received.
        limits: the longest frames.
        keys: certificates and a password, if there are any.
        encoder: makes frames of runs.
        at_once: each request goes to the transport by itself, not with the others of its loop turn.
    """

    scratch: Scratch
    budget: ReceiveBudget
    limits: FrameLimits = field(default_factory=FrameLimits)
    keys: ClientKeys | None = None
    encoder: RunEncoder = field(default_factory=RunEncoder)
    at_once: bool = False


class ChannelCodec(ABC):
    """What one connection says and understands in one protocol, and the requests that are outstanding on it.

    Attributes:
        channel: the connection.
        sent_bytes_max, taken_bytes_max: longest frames of either direction.
        first_state: what comes first on the connection.
        open_state: what comes when nothing is left to be said before the first request.
        in_chunks: frames come as V2 and V3 do; see `FrameProtocol`.
    """

    channel: Channel
    first_state: ClassVar[ConnectionState]
    open_state: ClassVar[ConnectionState]
    in_chunks: ClassVar[bool]

    def __init__(self, sent_bytes_max: int, taken_bytes_max: int) -> None:
        self.sent_bytes_max = sent_bytes_max
        self.taken_bytes_max = taken_bytes_max

    @abstractmethod
    def opening(self, keys: ClientKeys | None) -> Opening | None:
        """The connection is made: say what comes first, or open it; None if there are no keys to show."""

    @abstractmethod
    def send(self, request: AnyRequest, sink: AnswerSink, tag: object, deadline: float) -> bool:
        """Send a request; see `Channel.send`."""

    @abstractmethod
    def encoded(self, name: Any, frame: Any) -> Sequence[Buffer]:
        """The buffers of a request that leaves now; none for one that the bookie cannot do."""

    @abstractmethod
    def late(self, now: float) -> Sequence[Any]:
        """The names of the requests whose deadline has passed."""

    @abstractmethod
    def timed_out(self, name: Any) -> None:
        """Answer TIMED_OUT to one of these."""

    @abstractmethod
    def drop(self, sink: AnswerSink) -> Sequence[float]:
        """Forget the requests of a sink; their deadlines."""

    @abstractmethod
    def end(self) -> None:
        """The connection is over: answer everything UNREACHABLE."""

    def ask_for_a_sign(self) -> None:  # noqa: B027 - most protocols have no such question
        """Ask what every bookie answers at once, where there is such a question."""

    def hello_received(self, body: memoryview) -> None:
        """The response to a hello."""
        raise NotImplementedError

    def frame_received(self, frame: memoryview) -> None:
        """A frame, where they come one by one."""
        raise NotImplementedError

    def take_short(self, data: memoryview, at: int) -> int:  # noqa: ARG002 - most protocols have no such frames
        """Take short frames out of what was received, see `FrameProtocol`."""
        return at

    def frames_received(self, data: Buffer, starts: Sequence[int]) -> None:
        """Frames, where they come in chunks."""
        raise NotImplementedError


class Channel(FrameProtocol):
    """A connection that is being made, is up, or has ended; it does not come back (its pool makes another).

    Args:
        meant: the bookie that should be at the other end.
        context: what it shares with the client's other connections.
        codec: the protocol; this connection's own.
        ended: called once, when the connection is lost or refused.

    Attributes:
        host: where the bookie is, for its certificate; set before the connection is made.
        was_ready: it has been open for requests, and the bookie has shown that it takes this client.
        was_refused: one side does not take the other, which no waiting will change.
        features: what the bookie said that it can do.
        beside: the bookie offers its files, and both ends of the connection have one address, as this side sees them;
            who finds that the files are not readable unsets it.
        place_misses: how many responses in a row named places whose bytes did not verify.
    """

    def __init__(
        self,
        meant: BookieId,
        context: ChannelContext,
        codec: ChannelCodec,
        ended: Callable[[Channel, str], None],
    ) -> None:
        super().__init__(
            context.scratch,
            context.budget,
            codec.taken_bytes_max,
            codec.first_state,
            in_chunks=codec.in_chunks,
        )
        self.meant = meant
        self.codec = codec
        codec.channel = self
        self._ended = ended
        self._keys = context.keys
        self._opening: Opening | None = None
        self.host = ""
        self.was_ready = False
        self.was_refused = False
        self.features = 0
        self.beside = False
        self.place_misses = 0
        self._ready = False
        self._paused = False
        self._queue = SendQueue()
        self._at_once = context.at_once
        self._leaves = False
        self._reason = ""
        self._silence = SilenceMachine()
        self.closed = False

    # --- requests ------------------------------------------------------------------------------------------------

    def send(self, request: AnyRequest, sink: AnswerSink, tag: object, *, deadline: float) -> bool:
        """Send a request; `sink.answered(tag, …)` is called once, in a later loop turn.

        A run that no frame holds is not sent, nor is what the bookie cannot do: they complete with BAD_REQUEST.

        Args:
            request: what is asked.
            sink, tag: who gets the response, and the sender's name for the request.
            deadline: loop time after which the response is TIMED_OUT.

        Returns:
            Whether it has gone to the transport; else it waits here and counts as unsent: for the end of the loop
            turn, with all that the turn sends to this bookie, or until the transport takes it.
        """
        return self.codec.send(request, sink, tag, deadline)

    def write(self, name: Any, frame: Any, size: int, sink: AnswerSink) -> bool:
        """For the codec: give a request to the transport, or have it wait for the others, and until that takes it (False)."""
        if self._ready and not self._paused and not self._leaves:
            if self._at_once and not self._queue.entries:
                self._write(self.codec.encoded(name, frame), size)
                return True
            self._leaves = True
            asyncio.get_running_loop().call_soon(self._turn_over)
        self._queue.put(name, frame, size, sink)
        return False

    def _turn_over(self) -> None:
        """One write for all that a loop turn has sent."""
        self._leaves = False
        self._send_waiting()

    def _write(self, buffers: Sequence[Buffer], size: int) -> None:
        if not buffers:
            return
        assert self.transport is not None
        if len(buffers) > 1 and size < JOINED_BYTES * len(buffers):
            self.transport.write(b"".join(buffers))
        else:
            self.transport.writelines(buffers)

    def drop(self, sink: AnswerSink) -> None:
        """Forget this sink's requests: those not sent never will be, and no response reaches it any more."""
        if self._queue.entries:
            self._queue.drop(sink)
        for deadline in self.codec.drop(sink):
            self._silence.given_up(int(1000 * deadline))

    def unsent_bytes(self, sink: AnswerSink) -> int:
        """Bytes of this sink's requests that have not been given to the transport yet."""
        return self._queue.unsent_bytes(sink)

    def expire(self, now: float) -> None:
        """Answer TIMED_OUT to every request whose deadline has passed. Called now and then by the pool.

        A connection over which nothing comes any more is closed.
        """
        late = self.codec.late(now)
        heard, self.heard = self.heard, False
        silence = self._silence.look(int(1000 * now), heard=heard, expired=bool(late))
        if late:
            self._queue.drop_named(set(late))
            for name in late:
                self.codec.timed_out(name)
        if silence is Silence.DOUBTED:
            if self._ready and not self._paused:
                self.codec.ask_for_a_sign()
        elif silence is Silence.SILENT:
            self._reason = self._reason or SILENT
            self.close()

    # --- the connection ------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        assert self.transport is not None
        if self.closed:
            self.transport.abort()
            return
        self.transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        opening = self.codec.opening(self._keys)
        if not self._ready:
            self._opening = opening
        elif opening is not None:
            opening.over()

    def begin_over(self, keys: ClientKeys) -> None:
        """Begin TLS; in our own protocol, the hello that counts comes after it."""
        if self.state is HELLO:
            self.enter(SECURING)
        self.begin_tls(keys.context(), server_side=False, seconds=keys.opening_seconds, host=self.host)

    def secured(self, transport: asyncio.Transport) -> None:
        super().secured(transport)
        transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        assert self._opening is not None
        self._opening.secured()

    def opened(self) -> None:
        """Requests may go out."""
        self.enter(self.codec.open_state)
        self.was_ready = self.state is OPEN
        if self._opening is not None:
            self._opening.over()
            self._opening = None
        self._ready = True
        self._send_waiting()

    @property
    def upgrading(self) -> bool:
        """Whether the handshake of TLS has begun, or is over."""
        return self._upgrading is not None

    def refuse(self, reason: str) -> None:
        """This bookie does not speak to us, or we not to it."""
        self.was_refused = True
        self.give_up_on(reason)

    def give_up_on(self, reason: str) -> None:
        """End the connection; the bookie may be another one the next time."""
        self._reason = self._reason or reason
        if self.transport is not None:
            self.transport.abort()

    # --- its end -------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """End the connection; what is outstanding is completed with UNREACHABLE. What was sent leaves first."""
        if self.transport is not None:
            self._send_waiting()
            self.transport.abort()
        else:
            self.end(self._reason or "closed")

    def frame_too_long(self, head: memoryview, size: int) -> None:  # noqa: ARG002 - whatever it is
        self.was_refused = True  # one side refuses the other; `troubles` says why
        msg = (
            f"the response of bookie {self.meant} has {size} bytes, and the limit of this client is "
            f"{self.codec.sent_bytes_max}: raise it to the bookie's limit ({OPTION})"
        )
        raise MalformedFrameError(msg, bookie=self.meant)

    def broken(self, error: MalformedFrameError) -> None:
        self._reason = error.message

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._send_waiting()

    def _send_waiting(self) -> None:
        encoded = self.codec.encoded
        while self._queue.entries and not self._paused and self._ready:
            buffers: list[Buffer] = []
            bytes_out = 0
            for name, frame, size, _ in self._queue.take(WRITE_BUFFER_BYTES):
                buffers += encoded(name, frame)
                bytes_out += size
            self._write(buffers, bytes_out)

    # --- what comes ------------------------------------------------------------------------------------------------

    def hello_received(self, body: memoryview) -> None:
        self.codec.hello_received(body)

    def frame_received(self, frame: memoryview) -> None:
        self.codec.frame_received(frame)

    def take_short(self, data: memoryview, at: int) -> int:
        return self.codec.take_short(data, at)

    def frames_received(self, data: Buffer, starts: Sequence[int]) -> None:
        self.codec.frames_received(data, starts)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        opening = self._keys is not None and not self.was_ready
        self.was_refused = self.was_refused or opening
        self.end(self._reason or why_it_ended(exc, opening=opening))

    def end(self, reason: str) -> None:
        """The connection is over, or was never made: the maker of it gets the reason, every sender UNREACHABLE."""
        if self.closed:
            return
        self.closed = True
        self.enter(SHUT)
        self._ready = False
        if self._opening is not None:
            self._opening.over()
        self._queue.clear()
        self._ended(self, reason)
        self.codec.end()

    def refuse_request(self, request: AnyRequest, sink: AnswerSink, tag: object) -> None:
        """Answer a request that the bookie cannot do, or that the protocol has no frames for."""
        asyncio.get_running_loop().call_soon(sink.answered, tag, request.refused(Answer.BAD_REQUEST))

    def refuse_long(self, size: int, request: AnyRequest, sink: AnswerSink, tag: object) -> None:
        """Answer a request that would be longer than a frame: the bookie would refuse it, or end the connection."""
        log.warning(
            "a request of %d bytes was not sent to bookie %s: a frame has %d at most (%s)",
            size, self.meant, self.codec.sent_bytes_max, OPTION,
        )  # fmt: skip
        self.refuse_request(request, sink, tag)

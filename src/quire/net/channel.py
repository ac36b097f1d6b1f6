"""A client's connection to a bookie, whatever it speaks: requests out, each answered exactly once, silence, its end.

What the bookie says is an `Answer`; what the network does to a request is one too (TIMED_OUT, UNREACHABLE), so no
caller ever waits for ever or mistakes silence for a "no". What one loop turn sends leaves in one write. Frames wait here,
not in the transport, once its buffer is full: so they can be forgotten when their ledger gives the bookie up. A codec
knows the protocol: the native one is here, `v2_codec.py` and `v3_codec.py` have BookKeeper's.

Source: `docs/formats/native-protocol.md`, "Hello".
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Callable, Container, Iterable, Sequence
from typing import Any, TypeAlias

from quire.core.answers import Answer
from quire.core.errors import MalformedFrameError
from quire.core.ids import BookieId
from quire.net.awaited_rows import AwaitedRows
from quire.net.channel_codec import ChannelCodec, ChannelContext, Requester, Waiting
from quire.net.connection_states import AUTHENTICATING, HELLO, OPEN, SECURING, SHUT
from quire.net.ends import has_one_address
from quire.net.framing import FrameProtocol
from quire.net.security.settings import ClientKeys
from quire.net.security.signing_in import WANTS_A_NAME, NativeOpening, Opening, says_no, why_it_ended
from quire.net.silence import Silence, SilenceMachine
from quire.wire import native, native_hello
from quire.wire.entry import Buffer
from quire.wire.frame_limits import SETTING
from quire.wire.native_requests import ADDED, encode, response_to
from quire.wire.requests import AddRun, AnyRequest, Authenticate

log = logging.getLogger(__name__)

WRITE_BUFFER_BYTES = 1024 * 1024
"""How much may wait in the transport; the rest waits in the channel's own queue."""
JOINED_BYTES = 2048
"""Buffers that are shorter than this on average are joined: each alone costs a transport more than its copy does."""
SILENT = "the bookie received requests and sent no response: the connection was silent"
SIGN_OF_LIFE = 0
"""The number of a request whose response has no content. No other open request has it."""
_Outstanding: TypeAlias = tuple[Requester, object, float, AnyRequest]


class SendQueue:
    """Frames that wait until the transport takes them, first in, first out.

    Attributes:
        entries, unsent: what waits, and how many bytes of it are each sender's; only the methods change them.
    """

    __slots__ = ("_bytes", "entries", "unsent")

    def __init__(self) -> None:
        self.entries: deque[Waiting] = deque()
        self.unsent: dict[Requester, int] = {}
        self._bytes = 0

    def put(self, name: Any, frame: Any, size: int, requester: Requester) -> None:
        """A request waits until the transport takes it."""
        self.entries.append((name, frame, size, requester))
        self.unsent[requester] = self.unsent.get(requester, 0) + size
        self._bytes += size

    def take(self, bytes_max: int) -> Iterable[Waiting]:
        """The requests that are sent next: all, or the first of them until they have so many bytes."""
        if self._bytes <= bytes_max:
            entries = self.entries
            self.clear()
            return entries
        taken: list[Waiting] = []
        end = self._bytes - bytes_max
        while self._bytes > end:
            taken.append(entry := self.entries.popleft())
            _, _, size, requester = entry
            self._bytes -= size
            left = self.unsent[requester] - size
            if left:
                self.unsent[requester] = left
            else:
                del self.unsent[requester]
        return taken

    def drop(self, requester: Requester) -> None:
        """What a sender has not sent yet never will be."""
        if size := self.unsent.pop(requester, 0):
            self._bytes -= size
            self.entries = deque(entry for entry in self.entries if entry[3] is not requester)

    def drop_named(self, names: Container[Any]) -> None:
        """The requests with these names are over."""
        entries = self.entries
        self.clear()
        for entry in entries:
            if entry[0] not in names:
                self.put(*entry)

    def clear(self) -> None:
        """Nothing is sent any more."""
        self.entries = deque()
        self.unsent.clear()
        self._bytes = 0


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
        was_cut_off: it ended while it was being opened. A bookie that does not take this client may end it without a
            word; so does one that stops.
        features: what the bookie said that it can do.
        colocated: the bookie offers its files, and both ends of the connection have one address, as this side sees them;
            a reader that finds that the files are not readable unsets it.
        location_misses: how many responses in a row named locations whose bytes did not verify.
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
        self.short_kind = codec.short_kind
        self._ended = ended
        self._keys = context.keys
        self._opening: Opening | None = None
        self.host = ""
        self.was_ready = False
        self.was_refused = self.was_cut_off = False
        self.features = 0
        self.colocated = False
        self.location_misses = 0
        self._ready = False
        self._paused = False
        self._queue = SendQueue()
        self._at_once = context.at_once
        self._leaves = False
        self._reason = ""
        self._silence = SilenceMachine()
        self.closed = False

    # --- requests ------------------------------------------------------------------------------------------------

    def send(self, request: AnyRequest, requester: Requester, tag: object, *, deadline: float) -> bool:
        """Send a request; `requester.answered(tag, …)` is called once, in a later loop turn.

        A run that no frame holds is not sent, nor is what the bookie cannot do: they complete with BAD_REQUEST.

        Args:
            request: what is asked.
            requester, tag: gets the response, and its name for the request.
            deadline: loop time after which the response is TIMED_OUT.

        Returns:
            Whether the transport has it; else it waits here and counts as unsent: for the end of the loop
            turn, with all that the turn sends to this bookie, or until the transport takes it.
        """
        return self.codec.send(request, requester, tag, deadline)

    def write(self, name: Any, frame: Any, size: int, requester: Requester) -> bool:
        """For the codec: give a request to the transport, or have it wait for the others, and until that takes it (False)."""
        if self._ready and not self._paused and not self._leaves:
            if self._at_once and not self._queue.entries:
                self._write(frame or self.codec.encoded(name), size)
                return True
            self._leaves = True
            asyncio.get_running_loop().call_soon(self._turn_over)
        self._queue.put(name, frame, size, requester)
        return False

    def flush(self) -> None:
        """Send what waits for the end of the loop turn: this is it."""
        self._send_waiting()

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

    def drop(self, requester: Requester) -> None:
        """Forget this requester's requests: those not sent never will be, and no response reaches it any more."""
        if self._queue.entries:
            self._queue.drop(requester)
        for deadline in self.codec.drop(requester):
            self._silence.given_up(int(1000 * deadline))

    @property
    def anything_unsent(self) -> bool:
        """Whether the transport has not received all requests of all clients yet."""
        return bool(self._queue.unsent or self.codec.waiting_bytes)

    def unsent_bytes(self, requester: Requester) -> int:
        """Bytes of this requester's requests that the transport has not received yet."""
        return self._queue.unsent.get(requester, 0) + self.codec.waiting_bytes.get(requester, 0)

    def expire(self, now: float) -> None:
        """Answer TIMED_OUT to every request whose deadline has passed. Called now and then by the pool.

        A connection over which nothing comes any more is closed.
        """
        late = self.codec.late(now)
        received, self.has_received = self.has_received, False
        silence = self._silence.look(int(1000 * now), received=received, expired=bool(late))
        if late:
            self._queue.drop_named(set(late))
            for name in late:
                self.codec.timed_out(name)
        if silence is Silence.PROBED:
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
            f"{self.codec.sent_bytes_max}: raise it to the bookie's limit ({SETTING})"
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
        while self._queue.entries and not self._paused and self._ready:
            buffers: list[Buffer] = []
            bytes_out = 0
            for name, frame, size, _ in self._queue.take(WRITE_BUFFER_BYTES):
                buffers += frame or self.codec.encoded(name)
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
        self.was_cut_off = self._keys is not None and not self.was_ready
        self.was_refused = self.was_refused or (self.was_cut_off and says_no(exc))
        self.end(self._reason or why_it_ended(exc, opening=self.was_cut_off))

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

    def refuse_request(self, request: AnyRequest, requester: Requester, tag: object) -> None:
        """Answer a request that the bookie cannot do, or that the protocol has no frames for."""
        asyncio.get_running_loop().call_soon(requester.answered, tag, request.refused(Answer.BAD_REQUEST))

    def refuse_long(self, size: int, request: AnyRequest, requester: Requester, tag: object) -> None:
        """Answer a request that would be longer than a frame: the bookie would refuse it, or end the connection."""
        log.warning(
            "a request of %d bytes was not sent to bookie %s: a frame has %d at most (%s)",
            size, self.meant, self.codec.sent_bytes_max, SETTING,
        )  # fmt: skip
        self.refuse_request(request, requester, tag)


class NativeCodec(ChannelCodec):
    """The client's side of the native protocol on one channel.

    Args:
        context: what the connection shares with the client's others.
        cluster_instance: the cluster that the bookie must belong to; "" = any.
    """

    channel: Channel
    first_state = HELLO
    open_state = OPEN
    in_chunks = False
    short_kind = native.ADDED

    def __init__(self, context: ChannelContext, cluster_instance: str) -> None:
        super().__init__(context.limits.native, context.limits.native)
        self._cluster_instance = cluster_instance
        self._opening: NativeOpening | None = None
        self._adds = context.adds
        self._newest = 0
        self._soonest = math.inf  # no deadline is before it
        self._outstanding: dict[int, _Outstanding] = {}

    # --- the beginning -------------------------------------------------------------------------------------------

    def opening(self, keys: ClientKeys | None) -> Opening | None:
        if keys is None:
            self.write_hello(self.hello())
        else:
            self._opening = NativeOpening(self.channel, self, keys)
        return self._opening

    def hello_received(self, body: memoryview) -> None:
        channel = self.channel
        hello = native_hello.decode_hello_answer(body)
        if hello.version and not hello.features & native_hello.START_TLS and hello.bookie_id != channel.meant:
            channel.give_up_on(hello.message or f"the bookie at this address is {hello.bookie_id}")
            return
        if hello.version and not native_hello.VERSION_MIN <= hello.version <= native_hello.VERSION:
            channel.refuse(
                f"the bookie responds in version {hello.version} of the native protocol, and this "
                f"client offered {native_hello.VERSION_MIN}..{native_hello.VERSION}"
            )
            return
        channel.features = hello.features
        if self._opening is not None and self._opening.takes(hello):
            if channel.state is HELLO:
                channel.enter(AUTHENTICATING)
            return
        if hello.answer is Answer.UNAUTHORISED:
            channel.refuse(hello.message or WANTS_A_NAME)
        elif hello.version == 0:
            channel.give_up_on(hello.message or "the bookie refused the connection")
        else:
            channel.colocated = bool(hello.features & native_hello.COLOCATED) and has_one_address(
                channel.transport
            )
            channel.opened()

    def hello(self, auth_scheme: str = "") -> native_hello.Hello:
        """Who is meant, and how this client can say who it is."""
        return native_hello.Hello(
            self._cluster_instance, self.channel.meant, features=native_hello.OFFERED, auth_scheme=auth_scheme
        )

    def write_hello(self, hello: native_hello.Hello) -> None:
        """Say hello."""
        assert self.channel.transport is not None
        self.channel.transport.write(native_hello.encode_hello(hello))

    def ask_at_once(self, request: Authenticate, requester: Requester) -> None:
        """Send a request of the opening, before all others; its number is 0."""
        self._outstanding[0] = (requester, None, math.inf, request)
        assert self.channel.transport is not None
        self.channel.transport.writelines(self.encoded(0))

    # --- requests ------------------------------------------------------------------------------------------------

    def send(self, request: AnyRequest, requester: Requester, tag: object, deadline: float) -> bool:
        frame: Sequence[Buffer] | None = None
        size = native.REQUEST_BYTES
        if type(request) is AddRun:
            size += len(request.body)
            if size > self.sent_bytes_max:
                self.channel.refuse_long(size, request, requester, tag)
                return True
        if type(request) is AddRun and not request.low_priority:
            number, frame = self._adds.add(request, after=self._newest)
        else:
            number = self._adds.number
            self._adds.number = number + 1 & native.NUMBER_MAX or 1
        self._newest = number
        self._soonest = min(self._soonest, deadline)
        self._outstanding[number] = (requester, tag, deadline, request)
        return self.channel.write(number, frame, size, requester)

    def encode_bundle(self, rows: Sequence[bytes], bodies: Sequence[Buffer]) -> tuple[int, bytes]:
        return self._adds.bundle(rows, bodies)

    def send_bundle(
        self, number: int, frame: bytes, count: int, requester: Requester, tag: object, deadline: float
    ) -> bool:
        self._newest = number
        self._soonest = min(self._soonest, deadline)
        self._outstanding[number] = (requester, tag, deadline, AwaitedRows(count))
        return self.channel.write(number, (frame,), len(frame), requester)

    def encoded(self, name: int) -> Sequence[Buffer]:
        """Only now is it known how the bookie wants it."""
        requester, tag, _, request = self._outstanding[name]
        frame = encode(request, name, self.channel.features)
        if frame is None:
            del self._outstanding[name]
            self.channel.refuse_request(request, requester, tag)
            return ()
        return frame

    def drop(self, requester: Requester) -> Sequence[float]:
        dropped = [number for number, (owner, *_) in self._outstanding.items() if owner is requester]
        return [self._outstanding.pop(number)[2] for number in dropped]

    def late(self, now: float) -> Sequence[int]:
        if now < self._soonest:
            return ()
        deadlines = {number: deadline for number, (_, _, deadline, _) in self._outstanding.items()}
        self._soonest = min((deadline for deadline in deadlines.values() if deadline > now), default=math.inf)
        return [number for number, deadline in deadlines.items() if deadline <= now]

    def timed_out(self, name: int) -> None:
        # A response may make its owner drop the rest of what it asked.
        outstanding = self._outstanding.pop(name, None)
        if outstanding is not None:
            requester, tag, _, request = outstanding
            requester.answered(tag, request.refused(Answer.TIMED_OUT))

    def ask_for_a_sign(self) -> None:
        """Ask what every bookie answers at once, however slow its disk is: the LAC of a ledger that cannot be."""
        assert self.channel.transport is not None
        self.channel.transport.write(
            native.encode_request(native.Kind.READ_LAC, SIGN_OF_LIFE, 0, 0, ledger_id=-1)
        )

    def frame_received(self, frame: memoryview) -> None:
        answer = native.decode_answer(frame)
        outstanding = self._outstanding.get(answer.number)
        if outstanding is None:
            return
        requester, tag, _, request = outstanding
        rows = request if type(request) is AwaitedRows else None
        response = response_to(request, answer) if rows is None else rows.answered(answer)
        if rows is None or not rows.left:
            del self._outstanding[answer.number]
        requester.answered(tag, response)

    def take_short(self, data: memoryview, at: int) -> int:
        """The responses that say no more than that a run is stored: nearly all of those to adds."""
        outstanding = self._outstanding
        for number in native.added(data, at):
            owner = outstanding.get(number)
            if owner is not None:
                requester, tag, _, request = owner
                if type(request) is AddRun:
                    del outstanding[number]
                    requester.answered(tag, ADDED)
                else:
                    self.frame_received(data[at : at + native.ANSWER_BYTES])
            at += native.ANSWER_BYTES
        return at

    def end(self) -> None:
        outstanding, self._outstanding = self._outstanding, {}
        for requester, tag, _, request in outstanding.values():
            requester.answered(tag, request.refused(Answer.UNREACHABLE))

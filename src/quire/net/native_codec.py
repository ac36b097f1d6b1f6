"""What a connection says in our own protocol.

Source: `docs/formats/native-protocol.md`; `wire/native_requests.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias

from quire.core.answers import Answer
from quire.net.channel import ChannelCodec, ChannelContext
from quire.net.connection_states import AUTHENTICATING, HELLO, OPEN
from quire.net.ends import has_one_address
from quire.net.opening import WANTS_A_NAME, NativeOpening, Opening
from quire.net.security import ClientKeys
from quire.net.send_queue import AnswerSink
from quire.wire import native, native_hello
from quire.wire.entry import Buffer
from quire.wire.native_requests import ADDED, encode, response_to
from quire.wire.requests import AddRun, AnyRequest, Authenticate

SIGN_OF_LIFE = 0
"""The number of a request whose response has no content. No other open request has it."""
_Outstanding: TypeAlias = tuple[AnswerSink, object, float, AnyRequest]


class NativeCodec(ChannelCodec):
    """Our own protocol.

    Args:
        context: what the connection shares with the client's others.
        cluster_instance: the cluster that the bookie must belong to; "" = any.

    Attributes:
        version: what the hello settled, 0 before; requests and responses are laid out as it says.
    """

    first_state = HELLO
    open_state = OPEN
    in_chunks = False

    def __init__(self, context: ChannelContext, cluster_instance: str) -> None:
        super().__init__(context.limits.native, context.limits.native)
        self._cluster_instance = cluster_instance
        self._opening: NativeOpening | None = None
        self.version = 0
        self._encoder = context.encoder
        self._newest = 0
        self._soonest = math.inf  # no deadline is before it
        self._outstanding: dict[int, _Outstanding] = {}

    # --- requests ------------------------------------------------------------------------------------------------

    def send(self, request: AnyRequest, sink: AnswerSink, tag: object, deadline: float) -> bool:
        frame: Sequence[Buffer] | None = None
        size = native.REQUEST_BYTES
        if type(request) is AddRun:
            size += len(request.body)
            if size > self.sent_bytes_max:
                self.channel.refuse_long(size, request, sink, tag)
                return True
            number, frame = self._encoder.native_add(request, after=self._newest)
        else:
            number = self._encoder.next_number()
        self._newest = number
        self._soonest = min(self._soonest, deadline)
        self._outstanding[number] = (sink, tag, deadline, request)
        return self.channel.write(number, frame, size, sink)

    def encoded(self, name: int, frame: Sequence[Buffer] | None) -> Sequence[Buffer]:
        """Only now is it known how the bookie wants a request that has no frame yet."""
        if frame is not None:
            return frame
        sink, tag, _, request = self._outstanding[name]
        frame = encode(request, name, self.version, self.channel.features)
        if frame is None:
            del self._outstanding[name]
            self.channel.refuse_request(request, sink, tag)
            return ()
        return frame

    def drop(self, sink: AnswerSink) -> Sequence[float]:
        dropped = [number for number, (owner, *_) in self._outstanding.items() if owner is sink]
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
            sink, tag, _, request = outstanding
            sink.answered(tag, request.refused(Answer.TIMED_OUT))

    def ask_for_a_sign(self) -> None:
        """Ask what every bookie answers at once, however slow its disk is: the LAC of a ledger that cannot be."""
        assert self.channel.transport is not None
        self.channel.transport.write(
            native.encode_request(native.Kind.READ_LAC, SIGN_OF_LIFE, 0, 0, ledger_id=-1)
        )

    def frame_received(self, frame: memoryview) -> None:
        answer = native.decode_answer(frame)
        outstanding = self._outstanding.pop(answer.number, None)
        if outstanding is not None:
            sink, tag, _, request = outstanding
            sink.answered(tag, response_to(request, answer, self.version))

    def take_short(self, data: memoryview, at: int) -> int:
        """The responses that say no more than that a run is stored: nearly all of those to adds."""
        outstanding = self._outstanding
        for number in native.added(data, at):
            owner = outstanding.get(number)
            if owner is not None:
                sink, tag, _, request = owner
                if type(request) is AddRun:
                    del outstanding[number]
                    sink.answered(tag, ADDED)
                else:
                    self.frame_received(data[at : at + native.ANSWER_BYTES])
            at += native.ANSWER_BYTES
        return at

    def end(self) -> None:
        outstanding, self._outstanding = self._outstanding, {}
        for sink, tag, _, request in outstanding.values():
            sink.answered(tag, request.refused(Answer.UNREACHABLE))

    # --- the opening -----------------------------------------------------------------------------------------------

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
        if hello.version > native_hello.VERSION:
            channel.refuse(
                f"the bookie responds in version {hello.version} of the native protocol, and this "
                f"client offered {native_hello.VERSION_MIN}..{native_hello.VERSION}: upgrade this "
                "client"
            )
            return
        self.version, channel.features = hello.version, hello.features
        if self._opening is not None and self._opening.takes(hello):
            if channel.state is HELLO:
                channel.enter(AUTHENTICATING)
            return
        if hello.answer is Answer.UNAUTHORISED:
            channel.refuse(hello.message or WANTS_A_NAME)
        elif hello.version == 0:
            channel.give_up_on(hello.message or "the bookie refused the connection")
        else:
            channel.beside = bool(hello.features & native_hello.BESIDE) and has_one_address(channel.transport)
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

    def ask_at_once(self, request: Authenticate, sink: AnswerSink) -> None:
        """Send a request of the opening, before all others; its number is 0."""
        self._outstanding[0] = (sink, None, math.inf, request)
        assert self.channel.transport is not None
        self.channel.transport.writelines(self.encoded(0, None))

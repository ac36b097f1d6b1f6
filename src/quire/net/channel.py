"""One connection to one bookie: requests out, responses back, each answered exactly once.

What the bookie says is an `Answer`; what the network does to a request is one too (TIMED_OUT, UNREACHABLE), so no
caller ever waits for ever or mistakes silence for a "no". Frames wait here, not in the transport, once its buffer is
full: so they can be forgotten when their ledger gives the bookie up.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence

from quire.core.answers import Answer
from quire.core.ids import BookieId
from quire.net.client_channel import AnswerSink, ChannelContext, ClientChannel
from quire.net.connection_states import AUTHENTICATING, HELLO, OPEN, SECURING
from quire.net.ends import has_one_address
from quire.net.opening import WANTS_A_NAME, NativeOpening
from quire.net.security import ClientKeys
from quire.wire import native, native_hello
from quire.wire.entry import Buffer
from quire.wire.native_requests import encode, encode_add, response_to
from quire.wire.requests import AddRun, AnyRequest, Authenticate

log = logging.getLogger(__name__)

SIGN_OF_LIFE = 0
"""The number of a request whose response has no content. No other open request has it."""
_Outstanding = tuple[AnswerSink, object, float, AnyRequest]


class Channel(ClientChannel):
    """A connection in our own protocol.

    Args:
        meant: the bookie that must be at the other end.
        cluster_instance: the cluster it must belong to; "" = any.
        context, ended: see `ClientChannel`.

    Attributes:
        version: what the hello settled, 0 before; responses are laid out as it says.
        features: what the bookie said that it can do.
        boot: the bookie's boot number, 0 where it announces none.
        beside: the bookie offers its files, and both ends of the connection have one address, as this side sees them;
            who finds that the files are not readable unsets it.
        place_misses: how many responses in a row named places whose bytes did not verify.
    """

    def __init__(
        self,
        meant: BookieId,
        cluster_instance: str,
        context: ChannelContext,
        ended: Callable[[Channel, str], None],
    ) -> None:
        longest = context.limits.native
        super().__init__(
            meant,
            context,
            ended,
            sent_bytes_max=longest,
            taken_bytes_max=longest,
            state=HELLO,
            in_chunks=False,
        )
        self._cluster_instance = cluster_instance
        self._opening: NativeOpening | None = None
        self.version = 0
        self.features = 0
        self.boot = 0
        self.beside = False
        self.place_misses = 0
        self._next_number = 1
        self._outstanding: dict[int, _Outstanding] = {}

    # --- sending -------------------------------------------------------------------------------------------------

    def send(self, request: AnyRequest, sink: AnswerSink, tag: object, *, deadline: float) -> bool:
        """Send a request; `sink.answered(tag, …)` is called once, in a later loop turn.

        A run that no frame holds is not sent, nor is what the bookie cannot do: they complete with BAD_REQUEST.

        Args:
            deadline: loop time after which the response is TIMED_OUT.

        Returns:
            Whether it has gone to the transport; else it waits here and counts as unsent.
        """
        frame: Sequence[Buffer] | None = None
        size = native.REQUEST_BYTES
        if isinstance(request, AddRun):
            size += len(request.body)
            if size > self._sent_bytes_max:
                self._refuse_to_send(size, request, sink, tag)
                return True
            frame = encode_add(request, self._next_number)
        number = self._next_number
        self._next_number = number + 1 & 0xFFFFFFFF or 1
        self._outstanding[number] = (sink, tag, deadline, request)
        if self._ready and not self._paused and not self._waiting:
            self._write(number, frame)
            return True
        self._wait((number, frame, size, sink))
        return False

    def _write(self, number: int, frame: Sequence[Buffer] | None) -> None:
        """Give a request to the transport; only now is it known how the bookie wants it."""
        if frame is None:
            sink, tag, _, request = self._outstanding[number]
            frame = encode(request, number, self.version, self.features)
            if frame is None:
                del self._outstanding[number]
                self._refuse(request, sink, tag)
                return
        assert self.transport is not None
        self.transport.writelines(frame)

    def drop(self, sink: AnswerSink) -> None:
        """Forget this sink's requests: those not sent never will be, and no response reaches it any more."""
        self._no_longer_waits(sink)
        for number in [number for number, (owner, *_) in self._outstanding.items() if owner is sink]:
            self._silence.given_up(int(1000 * self._outstanding.pop(number)[2]))

    def _late(self, now: float) -> Sequence[int]:
        return [number for number, (_, _, deadline, _) in self._outstanding.items() if deadline <= now]

    def _timed_out(self, request: int) -> None:
        # A response may make its owner drop the rest of what it asked.
        outstanding = self._outstanding.pop(request, None)
        if outstanding is not None:
            sink, tag, _, asked = outstanding
            sink.answered(tag, asked.refused(Answer.TIMED_OUT))

    def _ask_for_a_sign(self) -> None:
        """Ask what every bookie answers at once, however slow its disk is: the LAC of a ledger that cannot be."""
        if self._ready and not self._paused:
            assert self.transport is not None
            self.transport.write(
                native.encode_request(native.Kind.READ_LAC, SIGN_OF_LIFE, 0, 0, ledger_id=-1)
            )

    # --- the connection ------------------------------------------------------------------------------------------

    def _say_first(self) -> None:
        if self._keys is None:
            self.write_hello(self.hello())
        else:
            self._opening = NativeOpening(self, self._keys)

    def hello_received(self, body: memoryview) -> None:
        hello = native_hello.decode_hello_answer(body)
        if hello.version and not hello.features & native_hello.START_TLS and hello.bookie_id != self.meant:
            self._give_up(hello.message or f"the bookie at this address is {hello.bookie_id}")
            return
        if hello.version > native_hello.VERSION:
            self.refuse(
                f"the bookie responds in version {hello.version} of the native protocol, and this "
                f"client offered {native_hello.VERSION_MIN}..{native_hello.VERSION}: upgrade this "
                "client"
            )
            return
        self.version, self.features, self.boot = hello.version, hello.features, hello.boot
        if self._opening is not None and self._opening.takes(hello):
            if self.state is HELLO:
                self.enter(AUTHENTICATING)
            return
        if hello.answer is Answer.UNAUTHORISED:
            self.refuse(hello.message or WANTS_A_NAME)
        elif hello.version == 0:
            self._give_up(hello.message or "the bookie refused the connection")
        else:
            self.beside = bool(hello.features & native_hello.BESIDE) and has_one_address(self.transport)
            self.opened()

    # --- for the opening -------------------------------------------------------------------------------------------

    def hello(self, auth_scheme: str = "") -> native_hello.Hello:
        """Who is meant, and how this client can say who it is."""
        return native_hello.Hello(
            self._cluster_instance, self.meant, features=native_hello.OFFERED, auth_scheme=auth_scheme
        )

    def write_hello(self, hello: native_hello.Hello) -> None:
        """Say hello."""
        assert self.transport is not None
        self.transport.write(native_hello.encode_hello(hello))

    def begin_over(self, keys: ClientKeys) -> None:
        """Begin TLS; the hello that counts comes after it."""
        self.enter(SECURING)
        super().begin_over(keys)

    def ask_at_once(self, request: Authenticate, sink: AnswerSink) -> None:
        """Send a request of the opening, before all others; its number is 0."""
        self._outstanding[0] = (sink, None, math.inf, request)
        self._write(0, None)

    def opened(self) -> None:
        self.enter(OPEN)
        self.was_ready = True
        super().opened()

    # --- what comes ------------------------------------------------------------------------------------------------

    def frame_received(self, frame: memoryview) -> None:
        answer = native.decode_answer(frame)
        outstanding = self._outstanding.pop(answer.number, None)
        if outstanding is not None:
            sink, tag, _, request = outstanding
            sink.answered(tag, response_to(request, answer, self.version))

    def end(self, reason: str) -> None:
        if self.closed:
            return
        outstanding, self._outstanding = self._outstanding, {}
        self._over(reason)
        for sink, tag, _, request in outstanding.values():
            sink.answered(tag, request.refused(Answer.UNREACHABLE))

    def _send_waiting(self) -> None:
        while self._waiting and not self._paused and self._ready:
            number, frame, _, _ = self._next_waiting()
            self._write(number, frame)

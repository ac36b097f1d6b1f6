"""One connection to one bookie: requests out, answers back, each answered exactly once.

What the bookie says is an `Answer`; what the network does to a request is one too (TIMED_OUT, UNREACHABLE), so no
caller ever waits for ever or mistakes silence for a "no". Frames wait here, not in the transport, once its buffer is
full: so they can be forgotten when their ledger gives the bookie up.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

from crc32c import crc32c

from quire.core.answers import Answer
from quire.core.errors import MalformedFrameError
from quire.core.ids import NO_ENTRY, BookieId
from quire.core.silence import Silence, SilenceMachine
from quire.net.ends import has_one_address
from quire.net.framing import FrameProtocol, ReceiveBudget, Scratch
from quire.net.opening import WANTS_A_NAME, NativeOpening, why_it_ended
from quire.net.security import ClientKeys
from quire.wire import native, native_hello
from quire.wire.entry import Buffer
from quire.wire.frame_limits import OPTION

log = logging.getLogger(__name__)

WRITE_BUFFER_BYTES = 1024 * 1024
"""How much may wait in the transport; the rest waits in the channel's own queue."""


SIGN_OF_LIFE = 0
"""The number of a request whose answer tells only that there is one. No other open request has it."""
SILENT = "the bookie received requests and sent no response"


class AnswerSink(Protocol):
    """Whoever sent a request and gets its one answer."""

    def answered(self, tag: object, frame: native.AnswerFrame) -> None:
        """The answer to the request with this tag; `frame.body` is the receiver's to keep."""


Shape: TypeAlias = Callable[[int, int], "bytes | None"]
"""Makes a request's body from the version and the features that the hello settled; None: the bookie cannot do that."""
_Outstanding = tuple[AnswerSink, object, float]
_Waiting = tuple[int, "list[Buffer] | Callable[[], list[Buffer] | None]", int, AnswerSink]


class Channel(FrameProtocol):
    """A connection that is being made, is up, or has ended; it does not come back (its pool makes another).

    Args:
        meant: the bookie that must be at the other end.
        cluster_instance: the cluster it must belong to; "" = any.
        ended: called once, when the connection is lost or refused.
        keys: certificates and a password, if there are any.
        frame_bytes_max: longest frame that is sent and taken.

    Attributes:
        host: where the bookie is, for its certificate; set before the connection is made.
        was_ready: it has been open for requests.
        was_refused: one side does not take the other, which no waiting will change.
        version: what the hello settled, 0 before; answers are laid out as it says.
        features: what the bookie said that it can do.
        boot: the bookie's boot number, 0 where it tells none.
        beside: the bookie offers its files, and both ends of the connection have one address, as this side sees them; who
            finds that the files are not readable unsets it.
        place_misses: how many responses in a row named places whose bytes did not verify.
    """

    def __init__(
        self,
        meant: BookieId,
        cluster_instance: str,
        *,
        scratch: Scratch,
        budget: ReceiveBudget,
        ended: Callable[[Channel, str], None],
        keys: ClientKeys | None = None,
        frame_bytes_max: int = native.FRAME_BYTES_MAX,
    ) -> None:
        super().__init__(scratch, budget, frame_bytes_max)
        self._body_bytes_max = frame_bytes_max - native.REQUEST_BYTES
        self.meant = meant
        self._cluster_instance = cluster_instance
        self._ended = ended
        self._keys = keys
        self._opening: NativeOpening | None = None
        self.host = ""
        self.was_ready = False
        self.was_refused = False
        self.version = 0
        self.features = 0
        self.boot = 0
        self.beside = False
        self.place_misses = 0
        self._ready = False
        self._paused = False
        self._next_number = 1
        self._waiting: deque[_Waiting] = deque()
        self._unsent: dict[AnswerSink, int] = {}
        self._outstanding: dict[int, _Outstanding] = {}
        self._reason = ""
        self._silence = SilenceMachine()
        self.closed = False

    # --- sending -------------------------------------------------------------------------------------------------

    def send(
        self,
        kind: native.Kind,
        body: Sequence[Buffer],
        sink: AnswerSink,
        tag: object,
        *,
        deadline: float,
        body_crc: int | None = None,
        ledger_id: int = -1,
        digest_type: int = 0,
        flags: int = 0,
        token: int = 0,
        key: bytes = b"",
        term: int = 0,
        lac: int = NO_ENTRY,
    ) -> bool:
        """Send a request; `sink.answered(tag, …)` is called once, in a later loop turn.

        One that no frame holds is not sent, and answered BAD_REQUEST.

        Args:
            body: the body's buffers, kept by reference until sent.
            deadline: loop time after which the answer is TIMED_OUT.
            body_crc: the body's checksum where the caller has it already.

        Returns:
            Whether it has gone to the transport; else it waits here and counts as unsent.
        """
        size = sum(map(len, body))
        if size > self._body_bytes_max:
            refuse_to_send(self.meant, size + native.REQUEST_BYTES, self._frame_bytes_max, sink, tag)
            return True
        number = self._next_number
        self._next_number = number + 1 & 0xFFFFFFFF or 1
        if body_crc is None:
            body_crc = 0
            for part in body:
                body_crc = crc32c(part, body_crc)
        header = native.encode_request(
            kind,
            number,
            size,
            body_crc,
            ledger_id=ledger_id,
            digest_type=digest_type,
            flags=flags,
            token=token,
            key=key,
            term=term,
            lac=lac,
        )
        self._outstanding[number] = (sink, tag, deadline)
        parts = [header, *body]
        if self._ready and not self._paused and not self._waiting:
            assert self.transport is not None
            self.transport.writelines(parts)
            return True
        self._waiting.append((number, parts, size + len(header), sink))
        self._unsent[sink] = self._unsent.get(sink, 0) + size + len(header)
        return False

    def ask(
        self,
        kind: native.Kind,
        shape: Shape,
        sink: AnswerSink,
        tag: object,
        *,
        deadline: float,
        **header: Any,
    ) -> None:
        """Send a request whose body depends on what the bookie speaks; the rest as in `send`.

        A bookie that cannot do it is not asked: the answer is BAD_REQUEST, made here.
        """
        number = self._next_number
        self._next_number = number + 1 & 0xFFFFFFFF or 1

        def make() -> list[Buffer] | None:
            body = shape(self.version, self.features)
            if body is None:
                return None
            return [native.encode_request(kind, number, len(body), crc32c(body), **header), body]

        self._outstanding[number] = (sink, tag, deadline)
        self._waiting.append((number, make, native.REQUEST_BYTES, sink))
        self._unsent[sink] = self._unsent.get(sink, 0) + native.REQUEST_BYTES
        self._send_waiting()

    def unsent_bytes(self, sink: AnswerSink) -> int:
        """Bytes of this sink's requests that have not been given to the transport yet."""
        return self._unsent.get(sink, 0)

    def drop(self, sink: AnswerSink) -> None:
        """Forget this sink's requests: those not sent never will be, and no answer reaches it any more."""
        if self._unsent.pop(sink, 0):
            self._waiting = deque(waiting for waiting in self._waiting if waiting[3] is not sink)
        for number in [number for number, (owner, _, _) in self._outstanding.items() if owner is sink]:
            self._silence.given_up(int(1000 * self._outstanding.pop(number)[2]))

    def expire(self, now: float) -> None:
        """Answer TIMED_OUT to every request whose deadline has passed. Called now and then by the pool.

        A connection over which nothing comes any more is closed.
        """
        late = [number for number, (_, _, deadline) in self._outstanding.items() if deadline <= now]
        heard, self.heard = self.heard, False
        silence = self._silence.look(int(1000 * now), heard=heard, expired=bool(late))
        if late:
            self._time_out(late)
        if silence is Silence.DOUBTED:
            self._ask_for_a_sign()
        elif silence is Silence.SILENT:
            self._reason = self._reason or SILENT
            self.close()

    def _time_out(self, late: Sequence[int]) -> None:
        expired, waiting = set(late), self._waiting
        self._waiting = deque()
        self._unsent.clear()
        for entry in waiting:
            if entry[0] not in expired:
                self._waiting.append(entry)
                self._unsent[entry[3]] = self._unsent.get(entry[3], 0) + entry[2]
        for number in late:
            # An answer may make its owner drop the rest of what it asked.
            outstanding = self._outstanding.pop(number, None)
            if outstanding is not None:
                outstanding[0].answered(outstanding[1], _made_here(Answer.TIMED_OUT))

    def _ask_for_a_sign(self) -> None:
        """Ask what every bookie answers at once, however slow its disk is: the LAC of a ledger that cannot be."""
        if self._ready and not self._paused:
            assert self.transport is not None
            self.transport.write(
                native.encode_request(native.Kind.READ_LAC, SIGN_OF_LIFE, 0, 0, ledger_id=-1)
            )

    def close(self) -> None:
        """End the connection; what is outstanding is answered UNREACHABLE."""
        if self.transport is not None:
            self.transport.abort()
        else:
            self.end(self._reason or "closed")

    # --- the connection ------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        assert self.transport is not None
        if self.closed:
            self.transport.abort()
            return
        self.transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
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
        self._greeted = False
        self.begin_tls(keys.context(), server_side=False, seconds=keys.opening_seconds, host=self.host)

    def secured(self, transport: asyncio.Transport) -> None:
        super().secured(transport)
        transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        assert self._opening is not None
        self._opening.secured()

    def ask_at_once(self, kind: native.Kind, body: bytes, sink: AnswerSink) -> None:
        """Send a request of the opening, before all others; its number is 0."""
        assert self.transport is not None
        self._outstanding[0] = (sink, None, math.inf)
        self.transport.write(native.encode_request(kind, 0, len(body), crc32c(body)) + body)

    def opened(self) -> None:
        """Requests may go out."""
        if self._opening is not None:
            self._opening.over()
            self._opening = None
        self._ready = self.was_ready = True
        self._send_waiting()

    def refuse(self, reason: str) -> None:
        """This bookie does not speak to us, or we not to it."""
        self.was_refused = True
        self._give_up(reason)

    def _give_up(self, reason: str) -> None:
        self._reason = self._reason or reason
        if self.transport is not None:
            self.transport.abort()

    # --- what comes ------------------------------------------------------------------------------------------------

    def frame_received(self, frame: memoryview) -> None:
        answer = native.decode_answer(frame)
        outstanding = self._outstanding.pop(answer.number, None)
        if outstanding is not None:
            outstanding[0].answered(outstanding[1], answer)

    def frame_too_long(self, head: memoryview, size: int) -> None:  # noqa: ARG002 - whatever it is
        self.was_refused = True  # one side does not take the other, which `troubles` tells
        raise too_long_for(self.meant, size, self._frame_bytes_max)

    def broken(self, error: MalformedFrameError) -> None:
        self._reason = error.message

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._send_waiting()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.was_refused = self.was_refused or self._opening is not None
        self.end(self._reason or why_it_ended(exc, opening=self._opening is not None))

    def end(self, reason: str) -> None:
        """The connection is over, or was never made: answer everything UNREACHABLE."""
        if self.closed:
            return
        self.closed = True
        self._ready = False
        if self._opening is not None:
            self._opening.over()
        self._waiting.clear()
        self._unsent.clear()
        outstanding, self._outstanding = self._outstanding, {}
        self._ended(self, reason)
        for sink, tag, _ in outstanding.values():
            sink.answered(tag, _made_here(Answer.UNREACHABLE))

    def _send_waiting(self) -> None:
        while self._waiting and not self._paused and self._ready:
            number, parts, size, sink = self._waiting.popleft()
            left = self._unsent[sink] - size
            if left:
                self._unsent[sink] = left
            else:
                del self._unsent[sink]
            made = parts if isinstance(parts, list) else parts()
            if made is None:
                self._refuse_here(number)
                continue
            assert self.transport is not None
            self.transport.writelines(made)

    def _refuse_here(self, number: int) -> None:
        """The bookie cannot do what was to be asked."""
        sink, tag, _ = self._outstanding.pop(number)
        asyncio.get_running_loop().call_soon(sink.answered, tag, _made_here(Answer.BAD_REQUEST))


def _made_here(answer: Answer) -> native.AnswerFrame:
    return native.AnswerFrame(0, 0, answer, 0, -1, 0, NO_ENTRY, 0, memoryview(b""))


def too_long_for(bookie: BookieId, size: int, limit: int) -> MalformedFrameError:
    """What is wrong with a bookie's answer that is longer than this client takes."""
    msg = (
        f"the response of bookie {bookie} has {size} bytes, and the limit of this client is {limit}: "
        f"raise it to the bookie's limit ({OPTION})"
    )
    return MalformedFrameError(msg, bookie=bookie)


def refuse_to_send(bookie: BookieId, size: int, limit: int, sink: AnswerSink, tag: object) -> None:
    """Answer a request that would be longer than a frame: the bookie would refuse it, or end the connection."""
    log.warning(
        "a request of %d bytes was not sent to bookie %s: a frame has %d at most (%s)", size, bookie, limit, OPTION
    )  # fmt: skip
    asyncio.get_running_loop().call_soon(sink.answered, tag, _made_here(Answer.BAD_REQUEST))


unreachable = _made_here(Answer.UNREACHABLE)
"""The answer of a bookie that cannot even be tried."""

"""What a client's connections to bookies have in common, whatever they speak: how they open, fall silent and end."""

from __future__ import annotations

import asyncio
import logging
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from quire.core.answers import Answer
from quire.core.errors import MalformedFrameError
from quire.core.ids import BookieId
from quire.core.silence import Silence, SilenceMachine
from quire.net.connection_states import SHUT, ConnectionState
from quire.net.framing import FrameProtocol
from quire.net.opening import why_it_ended
from quire.net.receive_memory import ReceiveBudget, Scratch
from quire.net.run_frames import RunEncoder
from quire.net.security import ClientKeys
from quire.wire.frame_limits import OPTION, FrameLimits
from quire.wire.requests import AnyRequest

log = logging.getLogger(__name__)

WRITE_BUFFER_BYTES = 1024 * 1024
"""How much may wait in the transport; the rest waits in the channel's own queue."""
SILENT = "the bookie received requests and sent no response: the connection was silent"


class AnswerSink(Protocol):
    """The sender of a request, which gets its one response."""

    def answered(self, tag: object, response: Any) -> None:
        """The response to the request with this tag, as its type of request has it; the receiver's to keep."""


Waiting: TypeAlias = tuple[Any, Any, int, AnswerSink]
"""A request that waits: its name among all that are outstanding, what is sent, how many bytes, and who asked."""


class Opening(Protocol):
    """What goes before the first request."""

    def secured(self) -> None:
        """TLS is up."""

    def over(self) -> None:
        """The connection is open, or has ended."""


@dataclass(frozen=True, slots=True)
class ChannelContext:
    """What the connections of one client share.

    Attributes:
        scratch, budget: memory for what is received.
        limits: the longest frames.
        keys: certificates and a password, if there are any.
        encoder: makes V2's and V3's frames of runs.
    """

    scratch: Scratch
    budget: ReceiveBudget
    limits: FrameLimits = field(default_factory=FrameLimits)
    keys: ClientKeys | None = None
    encoder: RunEncoder = field(default_factory=RunEncoder)


class ClientChannel(FrameProtocol):
    """A connection that is being made, is up, or has ended; it does not come back (its pool makes another).

    Args:
        meant: the bookie that should be at the other end.
        context: what it shares with the client's other connections.
        ended: called once, when the connection is lost or refused.
        sent_bytes_max: longest frame that is sent.
        taken_bytes_max: longest frame that is taken.
        state: what comes first.
        in_chunks: frames come as those of V2 and V3 do.

    Attributes:
        host: where the bookie is, for its certificate; set before the connection is made.
        was_ready: it has been open for requests.
        was_refused: one side does not take the other, which no waiting will change.
    """

    def __init__(
        self,
        meant: BookieId,
        context: ChannelContext,
        ended: Callable[[Any, str], None],
        *,
        sent_bytes_max: int,
        taken_bytes_max: int,
        state: ConnectionState,
        in_chunks: bool,
    ) -> None:
        super().__init__(context.scratch, context.budget, taken_bytes_max, state, in_chunks=in_chunks)
        self.meant = meant
        self._sent_bytes_max = sent_bytes_max
        self._ended = ended
        self._keys = context.keys
        self._opening: Opening | None = None
        self.host = ""
        self.was_ready = False
        self.was_refused = False
        self._ready = False
        self._paused = False
        self._waiting: deque[Waiting] = deque()
        self._unsent: dict[AnswerSink, int] = {}
        self._reason = ""
        self._silence = SilenceMachine()
        self.closed = False

    # --- for subclasses ------------------------------------------------------------------------------------------

    @abstractmethod
    def _say_first(self) -> None:
        """The connection is made: say what comes first."""

    @abstractmethod
    def _send_waiting(self) -> None:
        """Give the transport what waits, as long as it takes it."""

    @abstractmethod
    def _late(self, now: float) -> Sequence[Any]:
        """The requests whose deadline has passed."""

    @abstractmethod
    def _timed_out(self, request: Any) -> None:
        """Answer TIMED_OUT to one of these."""

    @abstractmethod
    def end(self, reason: str) -> None:
        """The connection is over, or was never made: answer everything UNREACHABLE."""

    @property
    def _is_opening(self) -> bool:
        """Whether it has not shown yet that the bookie takes this client."""
        return self._opening is not None

    def _ask_for_a_sign(self) -> None:
        """Ask what every bookie answers at once, where there is such a question."""

    # --- requests ------------------------------------------------------------------------------------------------

    def unsent_bytes(self, sink: AnswerSink) -> int:
        """Bytes of this sink's requests that have not been given to the transport yet."""
        return self._unsent.get(sink, 0)

    def expire(self, now: float) -> None:
        """Answer TIMED_OUT to every request whose deadline has passed. Called now and then by the pool.

        A connection over which nothing comes any more is closed.
        """
        late = self._late(now)
        heard, self.heard = self.heard, False
        silence = self._silence.look(int(1000 * now), heard=heard, expired=bool(late))
        if late:
            self._time_out(late)
        if silence is Silence.DOUBTED:
            self._ask_for_a_sign()
        elif silence is Silence.SILENT:
            self._reason = self._reason or SILENT
            self.close()

    def _time_out(self, late: Sequence[Any]) -> None:
        expired, waiting = set(late), self._waiting
        self._waiting = deque()
        self._unsent.clear()
        for entry in waiting:
            if entry[0] not in expired:
                self._wait(entry)
        for request in late:
            self._timed_out(request)

    def _wait(self, entry: Waiting) -> None:
        """A request waits until the transport takes it."""
        self._waiting.append(entry)
        _, _, size, sink = entry
        self._unsent[sink] = self._unsent.get(sink, 0) + size

    def _no_longer_waits(self, sink: AnswerSink) -> None:
        """What a sink has not sent yet never will be."""
        if self._unsent.pop(sink, 0):
            self._waiting = deque(entry for entry in self._waiting if entry[3] is not sink)

    def _next_waiting(self) -> Waiting:
        """The request that is sent next."""
        entry = self._waiting.popleft()
        _, _, size, sink = entry
        left = self._unsent[sink] - size
        if left:
            self._unsent[sink] = left
        else:
            del self._unsent[sink]
        return entry

    # --- the connection ------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        assert self.transport is not None
        if self.closed:
            self.transport.abort()
            return
        self.transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        self._say_first()

    def begin_over(self, keys: ClientKeys) -> None:
        """Begin TLS."""
        self.begin_tls(keys.context(), server_side=False, seconds=keys.opening_seconds, host=self.host)

    def secured(self, transport: asyncio.Transport) -> None:
        super().secured(transport)
        transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        assert self._opening is not None
        self._opening.secured()

    def opened(self) -> None:
        """Requests may go out."""
        if self._opening is not None:
            self._opening.over()
            self._opening = None
        self._ready = True
        self._send_waiting()

    def refuse(self, reason: str) -> None:
        """This bookie does not speak to us, or we not to it."""
        self.was_refused = True
        self._give_up(reason)

    def _give_up(self, reason: str) -> None:
        self._reason = self._reason or reason
        if self.transport is not None:
            self.transport.abort()

    # --- its end -------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """End the connection; what is outstanding is completed with UNREACHABLE."""
        if self.transport is not None:
            self.transport.abort()
        else:
            self.end(self._reason or "closed")

    def frame_too_long(self, head: memoryview, size: int) -> None:  # noqa: ARG002 - whatever it is
        self.was_refused = True  # one side refuses the other; `troubles` says why
        msg = (
            f"the response of bookie {self.meant} has {size} bytes, and the limit of this client is "
            f"{self._sent_bytes_max}: raise it to the bookie's limit ({OPTION})"
        )
        raise MalformedFrameError(msg, bookie=self.meant)

    def broken(self, error: MalformedFrameError) -> None:
        self._reason = error.message

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._send_waiting()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        opening = self._is_opening
        self.was_refused = self.was_refused or opening
        self.end(self._reason or why_it_ended(exc, opening=opening))

    def _over(self, reason: str) -> None:
        """Nothing is sent any more; the maker of the connection gets the reason."""
        self.closed = True
        self.enter(SHUT)
        self._ready = False
        if self._opening is not None:
            self._opening.over()
        self._waiting.clear()
        self._unsent.clear()
        self._ended(self, reason)

    def _refuse(self, request: AnyRequest, sink: AnswerSink, tag: object) -> None:
        """Answer a request that the bookie cannot do, or that the protocol has no frames for."""
        asyncio.get_running_loop().call_soon(sink.answered, tag, request.refused(Answer.BAD_REQUEST))

    def _refuse_to_send(self, size: int, request: AnyRequest, sink: AnswerSink, tag: object) -> None:
        """Answer a request that would be longer than a frame: the bookie would refuse it, or end the connection."""
        log.warning(
            "a request of %d bytes was not sent to bookie %s: a frame has %d at most (%s)",
            size, self.meant, self._sent_bytes_max, OPTION,
        )  # fmt: skip
        self._refuse(request, sink, tag)

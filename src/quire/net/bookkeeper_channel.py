"""One connection to one bookie that speaks V2 or V3; to its callers it is a channel like ours.

Runs go out as entries, ranges come back as runs. Frames wait here, not in the transport, once its buffer is full.

Source: `docs/formats/bookkeeper-protocol.md`; `wire/v2.py`; `wire/v3.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from quire.core.answers import Answer
from quire.core.ids import BookieId
from quire.net.bookkeeper_asked import LacAsked, PendingRequest, RangeAsked, RunAsked
from quire.net.client_channel import AnswerSink, ChannelContext, ClientChannel
from quire.net.connection_states import AUTHENTICATING, OPEN, UNPROVEN
from quire.net.opening import BookKeeperOpening
from quire.net.run_frames import RunFrames
from quire.net.runs_expected import RunsExpected
from quire.wire import native_bodies
from quire.wire.entry import Buffer
from quire.wire.frame_limits import BOOKKEEPER_ROOM
from quire.wire.requests import AddRun, AnyRequest, ReadLac, ReadRange


class BookKeeperChannel(ClientChannel):
    """A connection in V2 or V3. Subclasses know the frames.

    Args:
        meant: the bookie that should be at the other end; BookKeeper's protocols have no way to ask.
        runs: those that will be on their way.
        context, ended: see `ClientChannel`. A little more is taken than is sent.

    Attributes:
        was_ready: it has been open for requests, and the bookie has answered.
    """

    is_v2: bool

    def __init__(
        self,
        meant: BookieId,
        context: ChannelContext,
        runs: RunsExpected,
        ended: Callable[[BookKeeperChannel, str], None],
    ) -> None:
        # An entry that came in the longest frame of V2 is longer in a batch of V2, and in V3.
        longest = context.limits.bookkeeper
        taken = longest + BOOKKEEPER_ROOM
        super().__init__(
            meant,
            context,
            ended,
            sent_bytes_max=longest,
            taken_bytes_max=taken,
            state=AUTHENTICATING,
            in_chunks=True,
        )
        self._encoder = context.encoder
        self.runs = runs
        self._asked: dict[PendingRequest, None] = {}

    # --- for subclasses ------------------------------------------------------------------------------------------

    def frames_of(self, body: Buffer, key: bytes, *, recovery: bool) -> RunFrames:
        """The requests for a run's entries."""
        raise NotImplementedError

    def ask_entries(self, asked: RangeAsked, entry_ids: Sequence[int]) -> None:
        """Ask for entries one by one."""
        raise NotImplementedError

    def note(self, asked: PendingRequest) -> None:
        """A request is outstanding from now on."""
        self._asked[asked] = None

    def begin_range(self, asked: RangeAsked) -> None:
        """Begin to ask for a range."""
        asked.start()

    def ask_last(self, asked: LacAsked, key: bytes) -> None:
        """Ask for the last entry, and fence if there is a key."""
        raise NotImplementedError

    def ask_otherwise(
        self,
        request: Any,
        asked: Callable[[type[PendingRequest]], PendingRequest],
    ) -> bool:
        """Send a request of another kind, which `asked` notes; False if the protocol has none for it."""
        raise NotImplementedError

    def forget(self, asked: PendingRequest) -> None:
        """Wait for nothing more of a request that is no run."""
        raise NotImplementedError

    def other_received(self, data: Buffer, at: int) -> None:
        """A frame that begins at a place of a chunk, and is not the next response to a run."""
        raise NotImplementedError

    def frames_received(self, data: Buffer, starts: Sequence[int]) -> None:
        if self.state is not OPEN and not self._opening_received(data, starts):
            return
        number, total = 0, len(starts)
        while number < total:
            number = self.runs.take(data, starts, number)
            if number < total:
                self.other_received(data, starts[number])
                number += 1

    # --- sending -------------------------------------------------------------------------------------------------

    def send(self, request: AnyRequest, sink: AnswerSink, tag: object, *, deadline: float) -> bool:
        """Send what a request asks for; `sink.answered(tag, …)` is called once, in a later loop turn.

        Returns:
            Whether all of it has gone to the transport; else it waits here and counts as unsent.
        """
        asked: PendingRequest
        before = len(self._waiting)
        wanted: Any = request
        match wanted:
            case AddRun(ledger, body, _, _, recovery):
                frames = self.frames_of(body, ledger.key, recovery=recovery)
                if len(frames.data) > self._sent_bytes_max and len(frames.ids) == 1:
                    self._refuse_to_send(len(frames.data), request, sink, tag)
                    return True
                asked = RunAsked(self, wanted, sink, tag, deadline, frames)
                self._asked[asked] = None
                self.runs.expect(asked)
                self.write(asked, frames.data)
            case ReadRange(origin_term=native_bodies.ANY_TERM):
                asked = RangeAsked(self, wanted, sink, tag, deadline)
                self._asked[asked] = None
                self.begin_range(asked)
            case ReadLac(ledger, True) if ledger.key:
                asked = LacAsked(self, request, sink, tag, deadline)
                self._asked[asked] = None
                self.ask_last(asked, ledger.key)
            case _:

                def make(of: type[PendingRequest]) -> PendingRequest:
                    asked = of(self, request, sink, tag, deadline)
                    self._asked[asked] = None
                    return asked

                if not self.ask_otherwise(request, make):
                    self._refuse(request, sink, tag)
        return len(self._waiting) == before

    def write(self, asked: PendingRequest, data: bytes) -> None:
        """Give frames to the transport, or let them wait until it takes them."""
        if self._ready and not self._paused and not self._waiting:
            assert self.transport is not None
            self.transport.write(data)
            return
        self._wait((asked, data, len(data), asked.sink))

    def finished(self, asked: PendingRequest) -> None:
        """A request has its response, or is given up."""
        self._asked.pop(asked, None)
        if asked.expected:
            if isinstance(asked, RunAsked):
                self.runs.forget(asked)
            else:
                self.forget(asked)

    def drop(self, sink: AnswerSink) -> None:
        """Forget this sink's requests: those not sent never will be, and no response reaches it any more."""
        self._no_longer_waits(sink)
        for asked in [asked for asked in self._asked if asked.sink is sink]:
            asked.done = True
            self._silence.given_up(int(1000 * asked.deadline))
            self.finished(asked)

    def _late(self, now: float) -> Sequence[PendingRequest]:
        return [asked for asked in self._asked if asked.deadline <= now]

    def _timed_out(self, request: PendingRequest) -> None:
        request.refuse(Answer.TIMED_OUT)

    # --- the connection ------------------------------------------------------------------------------------------

    def _say_first(self) -> None:
        if self._keys is None:
            self.opened()
            return
        self._opening = BookKeeperOpening(self, self._keys, is_v2=self.is_v2)

    # --- for the opening -------------------------------------------------------------------------------------------

    @property
    def upgrading(self) -> bool:
        """Whether the handshake has begun, or is over."""
        return self._upgrading is not None

    def opened(self) -> None:
        self.enter(UNPROVEN)
        super().opened()

    def _opening_received(self, data: Buffer, starts: Sequence[int]) -> bool:
        """What comes before the connection is open; whether these are responses.

        Only the first one shows that the bookie takes this client (TLS 1.3 does not say).
        """
        if self.state is UNPROVEN and not self.is_unknown_here(data, starts[0]):
            self.enter(OPEN)
            self.was_ready = True
            return True
        if self.state is AUTHENTICATING and isinstance(self._opening, BookKeeperOpening):
            self._opening.frames_received(data, starts)
        return False

    def is_unknown_here(self, data: Buffer, at: int) -> bool:  # noqa: ARG002 - V2 sees it in the first response
        """Whether the first response says that the bookie does not know this client; then it is given up."""
        return False

    # --- its end ---------------------------------------------------------------------------------------------------

    @property
    def _is_opening(self) -> bool:
        return self._keys is not None and not self.was_ready

    def end(self, reason: str) -> None:
        if self.closed:
            return
        self._over(reason)
        for asked in list(self._asked):
            asked.refuse(Answer.UNREACHABLE)

    def _send_waiting(self) -> None:
        while self._waiting and not self._paused and self._ready:
            _, data, _, _ = self._next_waiting()
            assert self.transport is not None
            self.transport.write(data)

"""What a connection says in V2 or V3: runs go out as entries, ranges come back as runs.

Source: `docs/formats/bookkeeper-protocol.md`; `wire/v2.py`; `wire/v3.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from quire.core.answers import Answer
from quire.net.bookkeeper_asked import LacAsked, PendingRequest, RangeAsked, RunAsked
from quire.net.channel import Channel
from quire.net.channel_codec import AnswerSink, ChannelCodec, ChannelContext
from quire.net.connection_states import AUTHENTICATING, OPEN, UNPROVEN
from quire.net.opening import BookKeeperOpening, Opening
from quire.net.run_frames import RunFrames
from quire.net.runs_expected import RunsExpected
from quire.net.security import ClientKeys
from quire.wire import native_bodies
from quire.wire.entry import Buffer
from quire.wire.frame_limits import BOOKKEEPER_ROOM
from quire.wire.requests import AddRun, AnyRequest, ReadLac, ReadRange


class BookKeeperCodec(ChannelCodec):
    """V2 or V3. Subclasses know the frames.

    Args:
        context: what the connection shares with the client's others. A little more is taken than is sent.
        runs: those that will be on their way.
    """

    channel: Channel
    is_v2: ClassVar[bool]
    first_state = AUTHENTICATING
    open_state = UNPROVEN
    in_chunks = True

    def __init__(self, context: ChannelContext, runs: RunsExpected) -> None:
        # An entry that came in the longest frame of V2 is longer in a batch of V2, and in V3.
        longest = context.limits.bookkeeper
        super().__init__(longest, longest + BOOKKEEPER_ROOM)
        self._encoder = context.encoder
        self._opening: BookKeeperOpening | None = None
        self.runs = runs
        self._waits = False
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
        if self.channel.state is not OPEN and not self._opening_received(data, starts):
            return
        number, total = 0, len(starts)
        while number < total:
            number = self.runs.take(data, starts, number)
            if number < total:
                self.other_received(data, starts[number])
                number += 1

    # --- sending -------------------------------------------------------------------------------------------------

    def send(self, request: AnyRequest, sink: AnswerSink, tag: object, deadline: float) -> bool:
        asked: PendingRequest
        self._waits = False
        wanted: Any = request
        match wanted:
            case AddRun(ledger, body, _, _, recovery, _, 0):
                frames = self.frames_of(body, ledger.key, recovery=recovery)
                if len(frames.data) > self.sent_bytes_max and len(frames.ids) == 1:
                    self.channel.refuse_long(len(frames.data), request, sink, tag)
                    return True
                asked = RunAsked(self, wanted, sink, tag, deadline, frames)
                self._asked[asked] = None
                self.runs.expect(asked)
                self.give(asked, frames.data)
            case ReadRange(origin_term=native_bodies.ANY_TERM):
                asked = RangeAsked(self, wanted, sink, tag, deadline)
                self._asked[asked] = None
                self.begin_range(asked)
            case ReadLac(ledger, True, 0) if ledger.key:
                asked = LacAsked(self, request, sink, tag, deadline)
                self._asked[asked] = None
                self.ask_last(asked, ledger.key)
            case _:

                def make(of: type[PendingRequest]) -> PendingRequest:
                    asked = of(self, request, sink, tag, deadline)
                    self._asked[asked] = None
                    return asked

                if not self.ask_otherwise(request, make):
                    self.channel.refuse_request(request, sink, tag)
        return not self._waits

    def give(self, asked: PendingRequest, data: bytes) -> None:
        """Give frames to the transport, or let them wait until it takes them."""
        if not self.channel.write(asked, (data,), len(data), asked.sink):
            self._waits = True

    def encoded(self, name: PendingRequest) -> Sequence[Buffer]:
        msg = f"{type(name).__name__} is sent with its frames"
        raise NotImplementedError(msg)

    def finished(self, asked: PendingRequest) -> None:
        """A request has its response, or is given up."""
        self._asked.pop(asked, None)
        if asked.expected:
            if isinstance(asked, RunAsked):
                self.runs.forget(asked)
            else:
                self.forget(asked)

    def drop(self, sink: AnswerSink) -> Sequence[float]:
        dropped = [asked for asked in self._asked if asked.sink is sink]
        for asked in dropped:
            asked.done = True
            self.finished(asked)
        return [asked.deadline for asked in dropped]

    def late(self, now: float) -> Sequence[PendingRequest]:
        return [asked for asked in self._asked if asked.deadline <= now]

    def timed_out(self, name: PendingRequest) -> None:
        name.refuse(Answer.TIMED_OUT)

    def end(self) -> None:
        for asked in list(self._asked):
            asked.refuse(Answer.UNREACHABLE)

    # --- the opening -----------------------------------------------------------------------------------------------

    def opening(self, keys: ClientKeys | None) -> Opening | None:
        if keys is None:
            self.channel.opened()
        else:
            self._opening = BookKeeperOpening(self.channel, keys, is_v2=self.is_v2)
        return self._opening

    def _opening_received(self, data: Buffer, starts: Sequence[int]) -> bool:
        """What comes before the connection is open; whether these are responses.

        Only the first one shows that the bookie takes this client (TLS 1.3 does not say).
        """
        channel = self.channel
        if channel.state is UNPROVEN and not self.is_unknown_here(data, starts[0]):
            channel.enter(OPEN)
            channel.was_ready = True
            return True
        if channel.state is AUTHENTICATING and self._opening is not None:
            self._opening.frames_received(data, starts)
        return False

    def is_unknown_here(self, data: Buffer, at: int) -> bool:  # noqa: ARG002 - V2 sees it in the first response
        """Whether the first response says that the bookie does not know this client; then it is given up."""
        return False

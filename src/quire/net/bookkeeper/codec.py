"""What a connection says in V2 or V3: runs go out as entries, ranges come back as runs.

A bookie that takes entries one by one gets a bounded number of them at one time, and those that it refuses as too busy
once more: the sender waits for its one response meanwhile. Ordinary adds, ordinary reads, and what a recovery asks for
wait in a queue each, and none for another; a fence waits in none.

Source: `docs/formats/bookkeeper-protocol.md`; `wire/v2.py`; `wire/v3.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from quire.core.answers import Answer
from quire.net.bookkeeper.paced_queue import PacedQueue, PacedQueues, PacedTurn
from quire.net.bookkeeper.pending_requests import PendingLac, PendingRange, PendingRequest, PendingRun
from quire.net.bookkeeper.runs_expected import RunsExpected
from quire.net.channel import Channel
from quire.net.channel_codec import ChannelCodec, ChannelContext, Requester
from quire.net.connection_states import AUTHENTICATING, OPEN, UNPROVEN
from quire.net.run_frames import RunFrames
from quire.net.security.settings import ClientKeys
from quire.net.security.signing_in import BookKeeperOpening, Opening
from quire.wire import bookkeeper, native_bodies
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
        self._pending: dict[PendingRequest, None] = {}
        self._queues = PacedQueues(PacedQueue(), PacedQueue(), PacedQueue())
        self.paced = [queue.machine for queue in self._queues]
        self._timer: asyncio.TimerHandle | None = None

    # --- for subclasses ------------------------------------------------------------------------------------------

    def frames_of(self, body: Buffer, key: bytes, *, recovery: bool) -> RunFrames:
        """The requests for a run's entries."""
        raise NotImplementedError

    def questions(self, pending: PendingRequest, items: Sequence[int]) -> bytes:
        """The requests for some of what is asked for, which are expected to be answered from now on."""
        raise NotImplementedError

    def frames_again(self, pending: PendingRun) -> bytes:
        """The requests for a run's entries, as they were sent before."""
        raise NotImplementedError

    def begin_range(self, pending: PendingRange) -> None:
        """Begin to ask for a range."""
        pending.start()

    def ask_otherwise(
        self,
        request: Any,
        pending: Callable[[type[PendingRequest]], PendingRequest],
    ) -> bool:
        """Send a request of another kind; `pending` makes its `PendingRequest`. False: the protocol has none for it."""
        raise NotImplementedError

    def forget(self, pending: PendingRequest) -> None:
        """Wait for nothing more of a request that is no run."""
        raise NotImplementedError

    def other_received(self, data: Buffer, at: int) -> None:
        """A frame that begins at an offset of a chunk, and is not the next response to a run."""
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
        if any(queue.waits for queue in self._queues):
            self._go_on()

    # --- sending -------------------------------------------------------------------------------------------------

    def send(self, request: AnyRequest, requester: Requester, tag: object, deadline: float) -> bool:
        pending: PendingRange | PendingLac
        self._waits = False
        wanted: Any = request
        match wanted:
            case AddRun(ledger, body, _, _, recovery, _, 0):
                frames = self.frames_of(body, ledger.key, recovery=recovery)
                if len(frames.data) > self.sent_bytes_max and len(frames.ids) == 1:
                    self.channel.refuse_long(len(frames.data), request, requester, tag)
                    return True
                run = PendingRun(self, wanted, requester, tag, deadline, frames)
                self.begin(run, self._queues.recovery if recovery else self._queues.adds)
                self._enqueue(run, range(len(frames.ids)))
            case ReadRange(origin_term=native_bodies.ANY_TERM, fence=fence, recovery=recovery):
                pending = PendingRange(self, wanted, requester, tag, deadline)
                self.begin(pending, self._queues.recovery if fence or recovery else self._queues.reads)
                self.begin_range(pending)
            case ReadLac(ledger, fence, 0) if ledger.key or not fence:
                pending = PendingLac(self, wanted, requester, tag, deadline)
                if fence:
                    self.begin(pending, self._queues.recovery)
                    self._queues.recovery.machine.left(1)
                    self._leave(pending, (bookkeeper.LAST_ENTRY,))
                else:
                    self.begin(pending, self._queues.reads)
                    self._enqueue(pending, (bookkeeper.LAST_ENTRY,))
            case _:

                def make(of: type[PendingRequest]) -> PendingRequest:
                    pending = of(self, request, requester, tag, deadline)
                    self.begin(pending)
                    return pending

                if not self.ask_otherwise(request, make):
                    self.channel.refuse_request(request, requester, tag)
        return not self._waits

    def give(self, pending: PendingRequest, data: bytes) -> None:
        """Give frames to the transport, or let them wait until it takes them."""
        if not self.channel.write(pending, (data,), len(data), pending.requester):
            self._waits = True

    def encoded(self, name: PendingRequest) -> Sequence[Buffer]:
        msg = f"{type(name).__name__} is sent with its frames"
        raise NotImplementedError(msg)

    def finished(self, pending: PendingRequest) -> None:
        """A request has its response, or is abandoned."""
        self._pending.pop(pending, None)
        if pending.turn is not None:
            pending.turn.queue.machine.given_up(pending.in_flight)
            pending.turn.waiting = 0
        if not isinstance(pending, PendingRun):
            if pending.expected:
                self.forget(pending)
            return
        pending.data = b""
        if pending.waiting_bytes:
            self._wait_bytes(pending, -pending.waiting_bytes)
        if pending.expected and pending.begun:
            self.runs.forget(pending)
        pending.expected = 0

    def drop(self, requester: Requester) -> Sequence[float]:
        dropped = [pending for pending in self._pending if pending.requester is requester]
        for pending in dropped:
            pending.done = True
            self.finished(pending)
        if dropped:
            self._go_on()
        return [pending.deadline for pending in dropped]

    def late(self, now: float) -> Sequence[PendingRequest]:
        for queue in self._queues:
            queue.machine.look(int(1000 * now))
        return [
            pending
            for pending in self._pending
            if pending.deadline <= now and not self._may_wait(pending, now)
        ]

    def _may_wait(self, pending: PendingRequest, now: float) -> bool:
        """A request that waits here has more time while the bookie accepts other entries."""
        if pending.turn is not None and pending.turn.waiting:
            pending.deadline = max(pending.deadline, pending.turn.until_ms / 1000)
        return pending.deadline > now

    def timed_out(self, name: PendingRequest) -> None:
        turn = name.turn
        refuses = turn is not None and bool(turn.waiting) and turn.queue.machine.refuses
        name.finish_with(Answer.TOO_BUSY if refuses else Answer.TIMED_OUT)
        self._go_on()

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for pending in list(self._pending):
            pending.finish_with(Answer.UNREACHABLE)
        for queue in self._queues:
            queue.clear()

    # --- what the bookie has enough of -----------------------------------------------------------------------------

    def begin(self, pending: PendingRequest, queue: PacedQueue | None = None) -> None:
        """A request is outstanding from now on; its entries leave through a queue, if it has any."""
        self._pending[pending] = None
        if queue is not None:
            left = pending.deadline - asyncio.get_running_loop().time()
            pending.turn = PacedTurn(queue, int(1000 * left))

    def ask_entries(self, pending: PendingRange, entry_ids: Sequence[int]) -> None:
        """Ask for entries one by one."""
        self._enqueue(pending, entry_ids)

    def _enqueue(self, pending: PendingRequest, items: Sequence[int]) -> None:
        """Ask for all that there is room for now, and for the rest later."""
        turn = pending.turn
        assert turn is not None
        queue = turn.queue
        if not queue.waits and queue.machine.has_room(len(items)):
            queue.machine.left(len(items))
            self._leave(pending, items)
            return
        queue.put(pending, items)
        if isinstance(pending, PendingRun):
            self._wait_bytes(pending, len(pending.data))
        self._go_on()
        self._waits = self._waits or bool(turn.waiting)

    def _leave(self, pending: PendingRequest, items: Sequence[int]) -> None:
        """Send some of what a request asks for."""
        if not isinstance(pending, PendingRun):
            self.give(pending, self.questions(pending, items))
            return
        if not pending.begun:
            pending.begun = True
            self.runs.expect(pending)
        data = pending.frames_at(items)
        if pending.waiting_bytes:
            self._wait_bytes(pending, -len(data))
        if not pending.was_refused and not (pending.turn and pending.turn.waiting):
            pending.data = b""
        self.give(pending, data)

    def _wait_bytes(self, pending: PendingRun, count: int) -> None:
        """So many bytes more of a run wait, or fewer."""
        pending.waiting_bytes += count
        waiting = self.waiting_bytes.get(pending.requester, 0) + count
        if waiting:
            self.waiting_bytes[pending.requester] = waiting
        else:
            self.waiting_bytes.pop(pending.requester, None)

    def item_answered(self, pending: PendingRequest, item: int, answer: Answer) -> bool:
        """Whether this is the response: an entry that the bookie is too busy for is asked for again."""
        if pending.turn is None or pending.done:
            return True
        queue = pending.turn.queue
        if answer is not Answer.TOO_BUSY:
            queue.machine.accepted(1)
            return True
        queue.put_again(pending, item, int(1000 * asyncio.get_running_loop().time()))
        return False

    def add_answered(self, run: PendingRun, position: int, answer: Answer) -> None:
        """A response to one entry of a run that was not the next one, or not the usual one."""
        if self.item_answered(run, position, answer):
            run.got(run.ids[position], answer, b"", -1)
            return
        if not run.was_refused:
            run.was_refused = True
            run.data = run.data or self.frames_again(run)
        self.runs.expect_again(run, position)
        self._wait_bytes(run, len(run.frames_at((position,))))

    def _go_on(self) -> None:
        """Send what there is room for by now."""
        loop = asyncio.get_running_loop()
        now_ms = int(1000 * loop.time())
        for queue in self._queues:
            if not queue.waits:
                continue
            queue.machine.look(now_ms)
            for pending, items in queue.leave(now_ms):
                self._leave(pending, items)
                pending.deadline = max(pending.deadline, pending.turn.until_ms / 1000)
            resume_ms = queue.machine.resume_ms
            if resume_ms is not None and self._timer is None:
                self._timer = loop.call_at((resume_ms + 1) / 1000, self._pause_over)

    def _pause_over(self) -> None:
        self._timer = None
        self._go_on()

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
        """Whether the first response says that the bookie does not know this client; then the connection is abandoned."""
        return False

"""Low-priority requests wait here while adds of others are in flight; `env/yielding.py` decides which is served when.

Here is measured, too, how long adds of others take, from when they were taken until their responses leave.

Source: docs/protocol/repair.md, "Giving way".
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable
from typing import Any, Final, NamedTuple, Protocol

from quire.bookie.recent_times import RecentTimes
from quire.core.answers import Answer
from quire.env.interfaces import Clock
from quire.env.yielding import Entrance, YieldMachine
from quire.wire.native import Kind, Request
from quire.wire.native_bodies import Asked
from quire.wire.plain_adds import AddRequest

LATELY_S: Final = 1.0
"""Adds of others that came within this time may be followed by more."""
READ_BYTES: Final = 64 * 1024
"""A read counts so much."""


class LowPriorityOwner(Protocol):
    """A connection whose requests may wait here; it stands above."""

    added: bool
    requests: deque[memoryview | bytes]

    def must_wait(self, request: Request) -> bool:
        """Whether something is to be waited for before a request is served."""

    def serve(self, request: Request, asked: Asked) -> bool:
        """Serve a request; returns whether it is a run on its way to the disk."""

    def answer(self, request: AddRequest, answer: Answer) -> None:
        """Answer a request with a code alone."""


class LowPriorityRequest(NamedTuple):
    """A request that waits: whose, and its frame."""

    owner: LowPriorityOwner
    request: Request
    asked: Asked
    frame: memoryview


class LowPriorityQueue:
    """The low-priority requests of one bookie.

    Args:
        clock: time.
        pending_bytes: all that was admitted and is not on the disk.
        flush: called with a connection whose run was handed to the disk's queue.

    Attributes:
        machine: decides.
        waiting: what waits.
        puts: of other clients' adds: how many bytes of them had been admitted, and when, in seconds of the loop.
        put_bytes, settled_bytes: of these adds, all that were admitted, and all that were answered.
        put_s: when the last of them came.
        took_s: how long the latest of them took, until somebody asks.
    """

    def __init__(self, clock: Clock, pending_bytes: Callable[[], int], flush: Callable[[Any], None]) -> None:
        self._clock, self._pending_bytes, self._flush = clock, pending_bytes, flush
        self.machine = YieldMachine()
        self.waiting: deque[LowPriorityRequest] = deque()
        self._is_scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        self.puts: deque[tuple[int, float]] = deque()
        self.put_bytes = self.settled_bytes = 0
        self.put_s = -math.inf
        self.took_s: list[float] = []
        self._times = RecentTimes()

    def info(self) -> dict[str, Any]:
        """What waits, for people."""
        machine = self.machine
        return {
            "waiting": machine.waiting,
            "waiting_bytes": machine.waiting_bytes,
            "in_flight_bytes": machine.in_flight,
        }

    # --- adds of others -------------------------------------------------------------------------------------------
    # The bookie notes here what it does for each of them, since a call would cost each of them more than that.

    def keep_times(self) -> None:
        """Count how long adds took since the last look."""
        took_s, self.took_s = self.took_s, []
        now_ms = self._now_ms()
        for seconds in took_s:
            self._times.add(int(seconds * 1_000_000), now_ms)

    def add_p99_us(self) -> int | None:
        """The 99th percentile of the times of other clients' adds in the last seconds; None: there were none."""
        self.keep_times()
        return self._times.p99_us(self._now_ms())

    # --- low priority ---------------------------------------------------------------------------------------------

    def come(self, owner: LowPriorityOwner, request: Request, asked: Asked, frame: memoryview) -> None:
        """Serve an ADD or a READ of low priority, now or later, or refuse it as too busy."""
        entrance = self.machine.come(_size_of(request), self._others_in_flight(), self._now_ms())
        if entrance is Entrance.REFUSED:
            owner.answer(request, Answer.TOO_BUSY)
        elif entrance is Entrance.SERVED:
            self._serve(owner, request, asked)
        else:
            self.waiting.append(LowPriorityRequest(owner, request, asked, frame))
            self.look_soon()

    def dropped(self, owner: object) -> None:
        """A connection has ended: its requests are dropped."""
        for index in range(len(self.waiting) - 1, -1, -1):
            if self.waiting[index].owner is owner:
                del self.waiting[index]
                self.machine.dropped(index)

    def _others_in_flight(self) -> int | None:
        """Bytes of other clients' adds in flight; None: none came lately."""
        if asyncio.get_running_loop().time() - self.put_s > LATELY_S:
            return None
        return self._pending_bytes() - self.machine.in_flight

    def _now_ms(self) -> int:
        return self._clock.now_ns() // 1_000_000

    def look_soon(self) -> None:
        """Once in a turn of the loop: what others have sent meanwhile comes first."""
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._look)

    def _look(self) -> None:
        self._is_scheduled = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.machine.take(self._others_in_flight(), self._now_ms()):
            self._serve_waiting(*self.waiting.popleft())
            if self.waiting:
                self.look_soon()
        elif (due_ms := self.machine.due_ms) is not None:
            wait_ms = max(1, due_ms - self._now_ms())
            self._timer = asyncio.get_running_loop().call_later(wait_ms / 1000, self._look)

    def _serve_waiting(
        self, owner: LowPriorityOwner, request: Request, asked: Asked, frame: memoryview
    ) -> None:
        """Serve a request that has waited, unless something else is to be waited for now: then it comes once more."""
        if owner.must_wait(request):
            self.machine.settled(_size_of(request))
            owner.requests.append(frame)
            return
        owner.added = False
        self._serve(owner, request, asked)
        if owner.added:
            self._flush(owner)

    def _serve(self, owner: LowPriorityOwner, request: Request, asked: Asked) -> None:
        """Serve a request; a run that is on its way to the disk then is settled later."""
        pending = False
        try:
            pending = owner.serve(request, asked)
        finally:
            if not pending:
                self.machine.settled(_size_of(request))


def _size_of(request: Request) -> int:
    """What a request counts: the run that is added, or about what a read takes."""
    return len(request.body) if request.kind is Kind.ADD else READ_BYTES

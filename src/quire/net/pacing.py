"""How many entries a client has in flight at a bookie that takes them one by one, and when it sends refused ones again.

A bookie of Java answers "too many requests" when more adds or reads wait for one of its threads than its configuration
allows, and the limit is for all its clients together. So a connection begins with fewer than the usual limit, sends only
what was refused again, and finds out how many the bookie takes:

| what happened | then |
| --- | --- |
| an entry leaves | it is in flight; at most `allowed` are, `IN_FLIGHT_MAX` at first |
| it was accepted | pauses are short again; when as many as are allowed were accepted in a round, a sixteenth more are allowed |
| it was refused | the first refusal of a round: half of what is in flight is allowed, and nothing leaves for a pause. Pauses double while nothing is accepted. Further refusals of entries that left before change nothing |
| it was abandoned | it is not in flight any more |

A round ends when an entry is refused that left after the last such pause began. Requests that wait here may outlive
their deadline while the bookie accepts others: it is judged when it has accepted nothing for a whole time-out. Pure:
times are milliseconds of one monotonic clock.

Source: BookKeeper source, `BookieRequestProcessor`: maxPendingAddRequestsPerThread, maxPendingReadRequestsPerThread (10,000
by default).
"""

from __future__ import annotations

from typing import Final

from quire.core.settings import doubled

IN_FLIGHT_MAX: Final = 4_000
"""Two clients with so many each stay below the usual limit of a Java bookie."""
PAUSE_MS_MIN: Final = 5
PAUSE_MS_MAX: Final = 200
"""Shorter than any time after which a bookie counts as slow: a bookie that refuses everything does answer."""
_GROWTH: Final = 16


class PacingMachine:
    """The entries of one kind on one connection.

    Args:
        most: how many may ever be in flight.

    Attributes:
        in_flight: entries that left and are not answered.
        allowed: how many may be in flight.
        refuses: whether nothing was accepted since the last refusal.
        answered: how many entries were accepted or refused; it only rises.
        moved_ms: when something was accepted, as of the last look.
    """

    __slots__ = (
        "_accepted",
        "_left",
        "_most",
        "_moved",
        "_over",
        "_pause_ms",
        "_resume_ms",
        "_round_end",
        "allowed",
        "answered",
        "in_flight",
        "moved_ms",
        "refuses",
    )

    def __init__(self, most: int = IN_FLIGHT_MAX) -> None:
        self._most = most
        self.allowed = most
        self.in_flight = 0
        self.refuses = False
        self.answered = 0
        self.moved_ms: int | None = None
        self._left = 0
        self._over = 0
        self._round_end = 0
        self._accepted = 0
        self._moved = False
        self._pause_ms = PAUSE_MS_MIN
        self._resume_ms: int | None = None

    def may_leave(self, now_ms: int) -> int:
        """How many entries may leave now."""
        if self._resume_ms is not None:
            if now_ms < self._resume_ms:
                return 0
            self._resume_ms = None
        return max(0, self.allowed - self.in_flight)

    def has_room(self, count: int) -> bool:
        """Whether so many entries may leave, at whatever time it is."""
        return self._resume_ms is None and self.in_flight + count <= self.allowed

    @property
    def resume_ms(self) -> int | None:
        """When the pause is over; None if there is none."""
        return self._resume_ms

    def left(self, count: int) -> None:
        """Entries were sent."""
        self.in_flight += count
        self._left += count

    def accepted(self, count: int) -> None:
        """The bookie did what these entries ask for, or answered anything else than that it is too busy."""
        self._end(count)
        self.answered += count
        self._moved, self.refuses = True, False
        self._pause_ms = PAUSE_MS_MIN
        if self.allowed < self._most and self._over > self._round_end:
            self._accepted += count
            while self._accepted >= self.allowed:
                self._accepted -= self.allowed
                self.allowed = min(self.allowed + max(1, self.allowed // _GROWTH), self._most)

    def refused(self, now_ms: int) -> None:
        """The bookie is too busy for an entry; it is to leave again."""
        is_of_round = self._over < self._round_end
        in_flight = self.in_flight
        self._end(1)
        self.answered += 1
        self.refuses = True
        if not is_of_round:
            self._round_end = self._left
            self._accepted = 0
            self.allowed = max(1, min(self.allowed, in_flight) // 2)
            self._resume_ms = now_ms + self._pause_ms
            self._pause_ms = doubled(self._pause_ms, PAUSE_MS_MAX)

    def given_up(self, count: int) -> None:
        """No client waits any more for the responses to entries that left."""
        self._end(count)

    def _end(self, count: int) -> None:
        self.in_flight -= count
        self._over += count

    def look(self, now_ms: int) -> None:
        """Called now and then: when something was accepted is known as exactly as this is called often."""
        if self._moved:
            self._moved, self.moved_ms = False, now_ms

    def may_wait_until(self, timeout_ms: int) -> int:
        """Until when a request may wait here that has so much time for its response; 0 if nothing was ever accepted."""
        return 0 if self.moved_ms is None else self.moved_ms + timeout_ms

    def check(self) -> None:
        """Assert what must hold between any two inputs."""
        assert 0 <= self.in_flight == self._left - self._over
        assert 1 <= self.allowed <= self._most
        assert PAUSE_MS_MIN <= self._pause_ms <= PAUSE_MS_MAX

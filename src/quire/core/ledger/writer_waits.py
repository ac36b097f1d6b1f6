"""The waits of a writer, with one timer: for absent bookies, for those that left, for the metadata store, for its quorum.

It decides when something is due, and nothing else. Pure: time is an argument.

Source: docs/decisions/004-absent-slots.md.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from quire.core.ids import BookieId
from quire.core.ledger.writer_state import NOTHING, Places, WriterLimits
from quire.core.settings import doubled

REREADS_AT_ONCE: Final = 3
"""So many compare-and-swaps without a good answer in a row are followed by a reading at once, which mostly settles them."""
LOOKS_IN_A_WAIT: Final = 10
"""Looks for bookies while the ack quorum is waited for, at least, if the shortest pause allows that."""
GUARANTEED_PAUSE_MS: Final = 500
"""The longest pause between two looks while entries wait for a write quorum that is guaranteed: appends may wait with them."""


@dataclass(slots=True, eq=False)
class WriterWaits:
    """When a writer looks for bookies, reads the record again, and gives its ack quorum up.

    Attributes:
        limits: how long it waits at most, and how often it tries.
        retry_ms: the pause before the next look for bookies.
        looking: a look for bookies is under way (`LookForBookies`).
        look_at_ms, read_at_ms: when to look, and to read the record again; None: nothing of the kind is due.
        quorum_until_ms: set from the loss of the ack quorum on, until something is confirmed again.
        left_at_ms: when to ask the bookies whose registrations are deleted.
        answering: those that answered all the same while another could take the slot, each with the time it did first.
        timer_at_ms: what the timer is set to.
    """

    limits: WriterLimits
    retry_ms: int
    looking: bool = field(default=False, init=False)
    look_at_ms: int | None = field(default=None, init=False)
    read_at_ms: int | None = field(default=None, init=False)
    quorum_until_ms: int | None = field(default=None, init=False)
    left_at_ms: int | None = field(default=None, init=False)
    answering: dict[BookieId, int] = field(default=NOTHING, init=False)
    timer_at_ms: int | None = field(default=None, init=False)

    def arm(self, *, writing: bool, below_quorum: bool) -> int | None:
        """When the timer must fire: at the earliest of the waits; None if it is set to that, or nothing is due.

        Bookies that left are asked only while the writer is `writing`: not in the middle of a change.
        """
        until = self.quorum_until_ms if below_quorum else None
        left = self.left_at_ms if writing else None
        times = [at for at in (self.look_at_ms, self.read_at_ms, left, until) if at is not None]
        if not times or min(times) == self.timer_at_ms:
            return None
        self.timer_at_ms = min(times)
        return self.timer_at_ms

    def fired(self) -> None:
        """The timer has fired, and nothing is set any more."""
        self.timer_at_ms = None

    def be_quick(self) -> None:
        """Something has come back: the next pause is the shortest."""
        self.retry_ms = self.limits.retry_ms_min

    def looked(self) -> None:
        """The look that was under way is over."""
        self.looking = False

    def look_later(self, now_ms: int, *, guaranteed: bool = False) -> bool:
        """Look for bookies after the next pause; False if a look is due, or under way, already.

        Args:
            now_ms: the time.
            guaranteed: entries wait for a guaranteed write quorum: the pauses stay short.
        """
        if self.look_at_ms is not None or self.looking:
            return False
        limits, longest = self.limits, self.limits.retry_ms_max
        if self.quorum_until_ms is not None:  # several looks before that wait is over
            longest = min(longest, max(limits.retry_ms_min, limits.quorum_wait_ms // LOOKS_IN_A_WAIT))
        if guaranteed:
            longest = min(longest, max(limits.retry_ms_min, GUARANTEED_PAUSE_MS))
        self.look_at_ms = now_ms + min(self.retry_ms, longest)
        self.retry_ms = doubled(self.retry_ms, longest)
        return True

    def read_later(self, attempts: int, now_ms: int) -> None:
        """Read the record again after a pause that grows with the unanswered requests."""
        wait = self.limits.retry_ms_min << min(max(0, attempts - 2), 20)
        self.read_at_ms = now_ms + min(wait, self.limits.retry_ms_max)

    def read_is_due(self, now_ms: int) -> bool:
        """Whether the record is to be read again now; that wait is over then."""
        due = self.read_at_ms is not None and self.read_at_ms <= now_ms
        if due:
            self.read_at_ms = None
        return due

    def look_is_due(self, now_ms: int, *, absent: bool) -> bool:
        """Whether absent bookies are to be looked for now; that wait is over then, and the look under way."""
        if self.look_at_ms is None or self.look_at_ms > now_ms:
            return False
        self.look_at_ms = None
        self.looking = self.looking or absent
        return absent

    def left_is_due(self, now_ms: int) -> bool:
        """Whether the bookies that left are to be asked now; that wait is over then."""
        due = self.left_at_ms is not None and self.left_at_ms <= now_ms
        if due:
            self.left_at_ms = None
        return due

    def still_answer(self, answered: Places, now_ms: int) -> Places:
        """Which bookies have answered without a registration for as long as they may; the others are asked again then.

        Args:
            answered: those that answer now; those that are not in it begin anew another time.
            now_ms: the time.
        """
        wait_ms = self.limits.left_wait_ms
        since = self.answering = {bookie: self.answering.get(bookie, now_ms) for _, bookie in answered}
        overdue = [each for each in answered if now_ms - since[each[1]] >= wait_ms]
        times = [since[each[1]] + wait_ms for each in answered if each not in overdue]
        if times:
            self.left_at_ms = min(times) if self.left_at_ms is None else min(*times, self.left_at_ms)
        return overdue

    def may_wait(self, now_ms: int) -> bool:
        """Whether the wait for the ack quorum is not over; it lasts from the loss on until something is confirmed."""
        until = self.quorum_until_ms
        return now_ms < until if until is not None else self.limits.quorum_wait_ms > 0

    def await_quorum(self, now_ms: int) -> bool:
        """The ack quorum is lost, and the first look for bookies is soon; False if it is waited for already."""
        if self.quorum_until_ms is not None:
            return False
        self.quorum_until_ms = now_ms + self.limits.quorum_wait_ms
        self.be_quick()
        self.look_at_ms = None
        return True

    def quorum_is_back(self) -> None:
        """A timer for the end of that wait would find nothing due."""
        if self.timer_at_ms == self.quorum_until_ms:
            self.timer_at_ms = None
        self.quorum_until_ms = None

    def stop(self, *, reads: bool) -> None:
        """No bookie is waited for any more; with `reads` the record may still be read again."""
        self.look_at_ms = self.quorum_until_ms = self.left_at_ms = None
        if not reads:
            self.read_at_ms = None

    def check(self) -> None:
        """Assert what must hold between any two inputs."""
        assert self.quorum_until_ms is None or self.limits.quorum_wait_ms, "without a wait it ends"

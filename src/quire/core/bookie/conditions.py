"""Alerts: states of a bookie that want a person or that explain what clients see, and which of them are news.

Each says what it is and what ends it. A state is reported once when it begins and once when it is over; one that comes
and goes at most once a minute.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

DAMAGE: Final = "damage"
READ_ONLY: Final = "read-only"
LIMBO: Final = "limbo"
STOPPED_COLLECTION: Final = "held collection"
FAILED_TASK: Final = "failed task"
LOST_REGISTRATION: Final = "lost registration"
SLOW_LOOP: Final = "slow loop"
AGAIN_MS: Final = 60_000
"""A state that begins again sooner than this is not reported again yet."""
LATE_MS: Final = 1000
"""A loop that comes so much later than it wanted to is slow."""
RAN_PART: Final = 20
"""A process that used less than this part of a core while its loop was late did not run."""
REMEMBERED_MS: Final = 60_000
"""A loop is called slow for so long after it was late."""


class Condition(NamedTuple):
    """An alert: one state of a bookie that an operator is told of.

    Attributes:
        kind: which, one of the names above.
        what: what is so, and since when or why where that is known.
        ends: what ends it.
        about: distinguishes several states of one kind.
    """

    kind: str
    what: str
    ends: str
    about: str = ""

    def __str__(self) -> str:
        return f"{self.kind}: {self.what}. What ends it: {self.ends}"


class News(NamedTuple):
    """What is to be reported now: states that began, and states that are over."""

    began: list[Condition]
    over: list[Condition]


class Announcements:
    """Which of a bookie's alerts have begun or ended, and are to be logged."""

    __slots__ = ("_reported", "_reported_at")

    def __init__(self) -> None:
        self._reported: dict[tuple[str, str], Condition] = {}
        self._reported_at: dict[tuple[str, str], int] = {}

    def look(self, conditions: Iterable[Condition], now_ms: int) -> News:
        """Compare the states as they are with those that were reported.

        Args:
            conditions: all that there are now.
            now_ms: monotonic.
        """
        now = {(one.kind, one.about): one for one in conditions}
        news = News([], [])
        for key, one in now.items():
            reported_at = self._reported_at.get(key)
            if key not in self._reported and (reported_at is None or now_ms - reported_at >= AGAIN_MS):
                self._reported[key] = one
                self._reported_at[key] = now_ms
                news.began.append(one)
        for key in [key for key in self._reported if key not in now]:
            news.over.append(self._reported.pop(key))
        for key in [
            key for key, at in self._reported_at.items() if key not in now and now_ms - at >= AGAIN_MS
        ]:
            del self._reported_at[key]
        return news


class SlowLoop:
    """Whether an event loop comes when it wants to. Times are monotonic milliseconds.

    Attributes:
        suspended: the process did not run at all when it was late most, or hardly: it was suspended, or its machine.
    """

    __slots__ = ("_late_at", "_late_ms", "suspended")

    def __init__(self) -> None:
        self._late_ms = 0
        self._late_at = 0
        self.suspended = False

    def came(self, late_ms: int, ran_ms: int, now_ms: int) -> None:
        """It came so much later than it wanted to.

        Args:
            late_ms: so much.
            ran_ms: CPU time of the process since it last came.
            now_ms: now.
        """
        if late_ms >= LATE_MS and (late_ms >= self._late_ms or not self.late_ms(now_ms)):
            self._late_ms, self._late_at = late_ms, now_ms
            self.suspended = ran_ms * RAN_PART < late_ms

    def late_ms(self, now_ms: int) -> int:
        """How late it was at most, lately; 0 if it was not."""
        return self._late_ms if self._late_ms and now_ms - self._late_at < REMEMBERED_MS else 0

"""Whether a task that has something to do again and again still moves.

A task that waits for something for ever neither fails nor ends, and nothing else tells of it. Times are monotonic
milliseconds.

Source: docs/operations.md, "What a cluster reports".
"""

from __future__ import annotations

from typing import Final

INTERVALS_MAX: Final = 3
"""A task that has not moved for so many of its intervals is stuck."""
STUCK_MS_MIN: Final = 15_000
"""One with a short interval is stuck after this long at the earliest."""


class TaskProgress:
    """When a background task last made progress.

    Args:
        interval_ms: how often it begins anew; 0: it does not run by itself, and is never stuck while it waits.
        now_ms: when it was started.

    Attributes:
        doing: what it moved to last, for people; empty while it waits for its next turn.
    """

    __slots__ = ("_interval_ms", "_moved_ms", "doing")

    def __init__(self, interval_ms: int, now_ms: int) -> None:
        self._interval_ms = interval_ms
        self._moved_ms = now_ms
        self.doing = ""

    def moved(self, now_ms: int, doing: str) -> None:
        """It does something now, or does more of it."""
        self._moved_ms = now_ms
        self.doing = doing

    def stuck_ms(self, now_ms: int) -> int:
        """For how long it has not moved; 0 if that is not long."""
        if not self._interval_ms and not self.doing:
            return 0
        still_ms = now_ms - self._moved_ms
        return still_ms if still_ms > max(INTERVALS_MAX * self._interval_ms, STUCK_MS_MIN) else 0

"""How a SQLite metadata store behaves: the numbers that an operator or a test may choose."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from quire.metadata.store import SESSION_TIMEOUT_MS

POLL_MS: Final = 20
QUIET_POLLS: Final = 8
"""How many times longer the pause between two looks becomes while nothing changes."""
BEATS_PER_TIMEOUT: Final = 5
TOMBSTONES_KEPT: Final = 10_000
"""Revisions for which deletions are kept; a watcher further behind reads everything again."""

SETTLE_MS: Final = 1000


def _monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000


@dataclass(frozen=True, slots=True)
class SqliteOptions:
    """How a store behaves.

    Args:
        session_timeout_ms: how long an owner may stand still before others take its session for ended; at least 100.
        poll_ms: how often changes of other processes are looked for while there are any; less often in between.
        tombstones_kept: revisions for which deletions are kept.
        settle_ms: how long after a commit, at most, until the -wal is emptied into the file, and the file's sequence is
            written down beside it; both at most this often.
        now_ms: a clock that never goes back.
    """

    session_timeout_ms: int = SESSION_TIMEOUT_MS
    poll_ms: int = POLL_MS
    tombstones_kept: int = TOMBSTONES_KEPT
    settle_ms: int = SETTLE_MS
    now_ms: Callable[[], int] = _monotonic_ms

    @property
    def beat_ms(self) -> int:
        """How often a session's counter moves."""
        return self.session_timeout_ms // BEATS_PER_TIMEOUT

    @property
    def quiet_poll_ms(self) -> int:
        """How often changes are looked for when there was none for a while; never less often than a beat is due."""
        return max(self.poll_ms, min(QUIET_POLLS * self.poll_ms, self.beat_ms))

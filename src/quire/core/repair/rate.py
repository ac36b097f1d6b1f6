"""How fast a worker repairs, and how long the marked ledgers will take: by count and by bytes, whichever takes longer.

A small ledger takes its time whatever it holds, and of a large one the bytes count. Pure.

Source: docs/autorecovery.md, "What an operator sees".
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

LATELY_MS: Final = 60_000
"""The rates are those of the last minute of work."""
_HOUR_MS: Final = 3_600_000


class _Work(NamedTuple):
    """What was repaired in some time."""

    elapsed_ms: int
    ledgers: int
    size: int


class RepairRate:
    """What one worker did in its last minute of work. Time without work does not count.

    Attributes:
        ledgers_per_hour, bytes_per_s: 0 while it has nothing to do.
    """

    __slots__ = ("_busy_ms", "_lately", "_ledgers", "_size", "bytes_per_s", "ledgers_per_hour")

    def __init__(self) -> None:
        self._lately: deque[_Work] = deque()
        self._busy_ms = self._ledgers = self._size = 0
        self.ledgers_per_hour = self.bytes_per_s = 0

    def looked(self, elapsed_ms: int, ledgers: int, size: int, *, busy: bool) -> None:
        """Count what was repaired since the last call.

        Args:
            elapsed_ms: since the last look.
            ledgers: how many were repaired in it.
            size: how many bytes were copied in it.
            busy: whether something is being repaired.
        """
        if not (busy or ledgers or size):
            self.ledgers_per_hour = self.bytes_per_s = 0
            return
        self._lately.append(_Work(elapsed_ms, ledgers, size))
        self._add(self._lately[-1], 1)
        while self._busy_ms - self._lately[0].elapsed_ms >= LATELY_MS:
            self._add(self._lately.popleft(), -1)
        self.ledgers_per_hour = _HOUR_MS * self._ledgers // max(1, self._busy_ms)
        self.bytes_per_s = 1000 * self._size // max(1, self._busy_ms)

    def _add(self, work: _Work, sign: int) -> None:
        self._busy_ms += sign * work.elapsed_ms
        self._ledgers += sign * work.ledgers
        self._size += sign * work.size


def seconds_left(ledgers: int, size: int, ledgers_per_hour: int, bytes_per_s: int) -> float | None:
    """How long so many ledgers with so many bytes take at these rates; None: not known yet.

    What has repaired ledgers without copying anything has no rate for bytes, and the other way round.
    """
    times = [3600 * ledgers / ledgers_per_hour] if ledgers_per_hour else []
    times += [size / bytes_per_s] if bytes_per_s else []
    return max(times, default=None)

"""How repairs give way: at a bookie, whose low-priority requests wait for the others; and at the client that copies.

A request that its client marked as low-priority waits in a queue of its own while adds of others are in flight:

| what happened | then |
| --- | --- |
| it came, and no add of others came within the last second | it is served, as far as `alone_bytes` are in flight |
| it came, and adds of others do come | it waits, first in, first out; one is served in a turn of the loop, and only while few bytes of the others (`others_bytes`) and few low-priority ones (`busy_bytes`) are in flight |
| none of those that wait was served for `wait_ms_max` | the first is served whatever is in flight: low-priority requests slow down and do not stop |
| the queue is full | it is refused as too busy, and its client sends it again |

A bookie reports how long adds take. A repair worker halves its rate, and how much it repairs at a time, when an add takes more
than one and a half times as long as while nothing was copied, and raises both again when that is over.

Pure: times are milliseconds of one monotonic clock.

Source: docs/protocol/repair.md, "Giving way".
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from quire.core.ids import BookieId


class Entrance(Enum):
    """What becomes of a low-priority request."""

    SERVED = auto()
    WAITS = auto()
    REFUSED = auto()


@dataclass(frozen=True, slots=True)
class YieldLimits:
    """What low-priority requests may take at a bookie.

    Attributes:
        others_bytes: while more of other clients' adds are in flight, no low-priority request begins.
        busy_bytes: low-priority bytes in flight while others are in flight.
        alone_bytes: low-priority bytes in flight while there are no others.
        waiting_bytes: of what waits.
        wait_ms_max: how long the first one waits, and the pause until the next after it.
    """

    others_bytes: int = 256 * 1024
    busy_bytes: int = 1024 * 1024
    alone_bytes: int = 16 * 1024 * 1024
    waiting_bytes: int = 8 * 1024 * 1024
    wait_ms_max: int = 100


LIMITS: Final = YieldLimits()


class YieldMachine:
    """The low-priority requests at one bookie.

    Args:
        limits: what they may take.

    Attributes:
        in_flight: bytes of them that were begun and are not on the disk yet.
        waiting_bytes: of those that wait.
    """

    __slots__ = ("_limits", "_served_ms", "_waiting", "in_flight", "waiting_bytes")

    def __init__(self, limits: YieldLimits = LIMITS) -> None:
        self._limits = limits
        self._waiting: deque[tuple[int, int]] = deque()
        self._served_ms = 0
        self.in_flight = 0
        self.waiting_bytes = 0

    @property
    def waiting(self) -> int:
        """How many wait."""
        return len(self._waiting)

    @property
    def due_ms(self) -> int | None:
        """When the first that waits is served whatever is in flight; None: none waits."""
        if not self._waiting:
            return None
        return max(self._waiting[0][1], self._served_ms) + self._limits.wait_ms_max

    def come(self, size: int, others_bytes: int | None, now_ms: int) -> Entrance:
        """A request came that has, or asks for, `size` bytes.

        Args:
            size: of it.
            others_bytes: of other adds that are in flight; None: none came lately.
            now_ms: the time.
        """
        if not self._waiting and others_bytes is None and self._fits(size, None):
            self._begin(size, now_ms)
            return Entrance.SERVED
        if self._waiting and self.waiting_bytes + size > self._limits.waiting_bytes:
            return Entrance.REFUSED
        self._waiting.append((size, now_ms))
        self.waiting_bytes += size
        return Entrance.WAITS

    def take(self, others_bytes: int | None, now_ms: int) -> bool:
        """Whether the first that waits is served now; it waits no more then."""
        due_ms = self.due_ms
        if due_ms is None or not (now_ms >= due_ms or self._fits(self._waiting[0][0], others_bytes)):
            return False
        size, _ = self._waiting.popleft()
        self.waiting_bytes -= size
        self._begin(size, now_ms)
        return True

    def dropped(self, index: int) -> None:
        """The client of one that waits has left; `index` counts from the first that waits."""
        self.waiting_bytes -= self._waiting[index][0]
        del self._waiting[index]

    def settled(self, size: int) -> None:
        """`size` bytes are on the disk, were read, or failed."""
        self.in_flight -= size

    def _fits(self, size: int, others_bytes: int | None) -> bool:
        limits = self._limits
        if others_bytes is None:
            room = limits.alone_bytes
        elif others_bytes > limits.others_bytes:
            return False
        else:
            room = limits.busy_bytes
        return not self.in_flight or self.in_flight + size <= room

    def _begin(self, size: int, now_ms: int) -> None:
        self.in_flight += size
        self._served_ms = now_ms

    def check(self) -> None:
        """Assert what must hold between any two inputs."""
        assert self.in_flight >= 0
        assert self.waiting_bytes == sum(size for size, _ in self._waiting)
        assert self.waiting_bytes <= self._limits.waiting_bytes or len(self._waiting) == 1


SLOWER: Final = 1.5
"""How much longer an add may take while copies are sent than without them."""
QUIET_US_MIN: Final = 1_000
"""Adds that take less are not compared: there, what else the machine does decides."""
RATE_MIN: Final = 1_000_000
"""Bytes a second that are always copied."""
GROWTH: Final = 4
"""A look at which no bookie is slower adds so small a part of the rate: a quarter."""
UNITS_MIN: Final = 2
UNITS_BEGIN: Final = 8
"""How much is repaired at a time at first, while there are adds of others; in units of `repair/work_queue.py`."""
UNITS_MAX: Final = 64


class CopyPace:
    """How fast one process copies, and how much at a time, by what bookies report about their other clients' adds.

    Bytes a second bound what large ledgers cost. Small ones cost their bookies and the metadata store requests, whatever
    they hold: fewer of them at a time leave more of both to others.

    Args:
        most: bytes a second; None: as fast as bookies accept them.

    Attributes:
        bytes_per_s: the rate now; None: as fast as bookies accept them.
        units: how much is repaired at a time.
    """

    __slots__ = ("_most", "_quiet_us", "bytes_per_s", "units")

    def __init__(self, most: int | None = None) -> None:
        self._most = most
        self.bytes_per_s = most
        self.units = UNITS_BEGIN
        self._quiet_us: dict[BookieId, int] = {}

    @property
    def is_least(self) -> bool:
        """Whether it cannot be slower."""
        return self.units == UNITS_MIN and self.bytes_per_s is not None and self.bytes_per_s <= RATE_MIN

    def looked(self, add_us: Mapping[BookieId, int], copied_bytes: int, elapsed_ms: int) -> None:
        """Bookies reported how long adds of others take.

        Args:
            add_us: by bookie, the 99th percentile of the last seconds in microseconds; of those that had adds.
            copied_bytes: what was sent since the last look.
            elapsed_ms: how long ago that was, above 0.
        """
        quiet = self._quiet_us
        slower = any(
            copied_bytes and us > SLOWER * max(QUIET_US_MIN, quiet.get(bookie, us))
            for bookie, us in add_us.items()
        )
        for bookie, us in add_us.items():
            # With copies adds are never faster than without: the least that was seen is nearest to that. Where next to
            # nothing is copied, and adds are slow still, their load is another one than before.
            quiet[bookie] = us if not copied_bytes or self.is_least else min(us, quiet.get(bookie, us))
        self._pace_units(slower=slower, alone=not add_us)
        self._pace_bytes(1000 * copied_bytes // elapsed_ms, slower=slower)

    def _pace_units(self, *, slower: bool, alone: bool) -> None:
        if alone:
            self.units = UNITS_MAX
        elif slower:
            self.units = max(UNITS_MIN, self.units // 2)
        else:
            self.units = min(UNITS_MAX, self.units + self.units // 2)

    def _pace_bytes(self, copied_per_s: int, *, slower: bool) -> None:
        if slower:
            rate = copied_per_s if self.bytes_per_s is None else min(self.bytes_per_s, copied_per_s)
            self.bytes_per_s = max(RATE_MIN, rate // 2)
            if self._most is not None:
                self.bytes_per_s = min(self.bytes_per_s, self._most)
        elif self.bytes_per_s is not None:
            grown = self.bytes_per_s + self.bytes_per_s // GROWTH
            if self._most is not None:
                self.bytes_per_s = min(grown, self._most)
            else:
                # A rate that is twice what is copied limits nothing.
                self.bytes_per_s = None if copied_per_s < self.bytes_per_s // 2 else grown

"""When a process gives freed memory back to the system: some time after much of it was held, and not again and again.

Memory that many clients took stays with the C library when they have left, because its free pieces lie between others. To
give it back costs a moment, and to get it again costs page faults. So it is done once for each peak, some time after it has
passed, and never while the load only goes up and down.

Source: glibc manual, "Freeing Memory Allocated with malloc"; Linux man-pages, malloc_trim(3).
"""

from __future__ import annotations

from typing import Final

WORTH_BYTES: Final = 8 * 1024 * 1024
"""Less than this is not worth the moment."""
QUIET_MS: Final = 5_000
"""How long ago the memory must have been freed."""


class MemoryPeakMachine:
    """What a process held at most since it gave memory back. Times are milliseconds of one monotonic clock.

    Attributes:
        peak_bytes: the most that was held since then.
    """

    __slots__ = ("_fell_ms", "peak_bytes")

    def __init__(self) -> None:
        self.peak_bytes = 0
        self._fell_ms: int | None = None

    def look(self, now_ms: int, held_bytes: int) -> bool:
        """Whether to give back now; called now and then, with what is held for clients at the moment.

        Args:
            now_ms: the time.
            held_bytes: unfinished frames, and responses that are not read.
        """
        self.peak_bytes = max(self.peak_bytes, held_bytes)
        if self.peak_bytes < WORTH_BYTES or 2 * held_bytes > self.peak_bytes:
            self._fell_ms = None
            return False
        if self._fell_ms is None:
            self._fell_ms = now_ms
        if now_ms - self._fell_ms < QUIET_MS:
            return False
        self.peak_bytes, self._fell_ms = held_bytes, None
        return True

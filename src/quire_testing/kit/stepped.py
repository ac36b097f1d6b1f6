"""A worker and a clock that do nothing by themselves: for schedules, simulations and tests, which say what happens when."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from quire.env.interfaces import Done


class StepWorker:
    """Jobs wait in a queue until `step` or `finish` is called; a job runs in its caller's thread."""

    def __init__(self) -> None:
        self.jobs: deque[tuple[Callable[[], Any], Done]] = deque()

    @property
    def busy(self) -> bool:
        """Whether a job waits."""
        return bool(self.jobs)

    def submit(self, job: Callable[[], Any], done: Done) -> None:
        """Do this after all earlier ones."""
        self.jobs.append((job, done))

    def step(self) -> None:
        """Do the oldest job."""
        job, done = self.jobs.popleft()
        result: Any
        try:
            result = job()
        except Exception as error:  # noqa: BLE001 - handed to the submitter of the job
            result = error
        done(result)

    def finish(self) -> None:
        """Do all of them."""
        while self.jobs:
            self.step()

    def close(self) -> None:
        """Do all of them; there is no thread."""
        self.finish()


class StepClock:
    """Time stands still until it is moved.

    Args:
        ms: where it stands.
    """

    def __init__(self, ms: int = 0) -> None:
        self.ms = ms

    def now_ms(self) -> int:
        """Milliseconds."""
        return self.ms

    def now_ns(self) -> int:
        """Nanoseconds."""
        return self.ms * 1_000_000

    def boot_ms(self) -> int:
        """Milliseconds."""
        return self.ms

    def cpu_ms(self) -> int:
        """Milliseconds."""
        return self.ms

    def wall_ms(self) -> int:
        """Milliseconds."""
        return self.ms


class HurriedClock(StepClock):
    """Each slice of work over many ledgers is over after one look at it."""

    def now_ns(self) -> int:
        """Nanoseconds; two milliseconds later each time."""
        self.ms += 2
        return self.ms * 1_000_000

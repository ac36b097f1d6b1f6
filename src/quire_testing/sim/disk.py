"""A simulated machine's disk, whose process may end in the middle of any operation, and the thread that works on it.

Source: docs/simulation.md, "The world"; `docs/formats/segment.md`, "What a crash can leave, and what the start does".
"""

from __future__ import annotations

import errno
import random
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from quire.env.interfaces import Done
from quire_testing.kit.disk import FaultyDisk
from quire_testing.kit.stepped import StepWorker
from quire_testing.sim.loop import ProcessKilled, ProcessLoop


class SimDisk(FaultyDisk):
    """One machine's disk. A killed process leaves all that it wrote, a power loss does not.

    Args:
        chance: of this disk.
        direct: files may be written past the page cache.

    Attributes:
        loop: the process that uses it, or None.
    """

    def __init__(self, chance: random.Random, *, direct: bool = False) -> None:
        super().__init__(chance, direct=direct)
        self.loop: ProcessLoop | None = None
        self._locked: dict[str, ProcessLoop | None] = {}

    def step(self, what: str, path: str) -> None:
        """A change is under way; a process that has ended makes none."""
        if self.loop is not None and not self.loop.alive:
            raise ProcessKilled
        super().step(what, path)

    def stop(self) -> None:
        """The process ends, if there is one."""
        if self.loop is not None:
            self.loop.kill()
            raise ProcessKilled

    def rot(self) -> str:
        """Turn one bit of what was written to some segment; says where, or nothing."""
        names = [name for name in sorted(self.nodes) if name.endswith(".seg")]
        if not names:
            return ""
        name = names[self.chance.randrange(len(names))]
        data = self.nodes[name].data
        end = len(data.rstrip(b"\0"))
        if end <= 4096:
            return ""
        at = 4096 + self.chance.randrange(end - 4096)
        data[at] ^= 1 << self.chance.randrange(8)
        return f"{name.rpartition('/')[2]} at {at}"

    def lock(self, directory: Path) -> SimLock:
        """A lock that ends with its process."""
        name, loop = str(directory), self.loop
        holder = self._locked.get(name)
        if holder is not None and holder.alive:
            raise BlockingIOError(errno.EAGAIN, "locked", name)
        self._locked[name] = loop
        return SimLock(self._locked, name)


class SimLock:
    """A lock on a directory."""

    def __init__(self, locked: dict[str, ProcessLoop | None], name: str) -> None:
        self._locked, self._name = locked, name

    def release(self) -> None:
        """Let it go."""
        self._locked.pop(self._name, None)

    def stands(self) -> bool:
        """No directory is ever put in another's place."""
        return True


class SimWorker(StepWorker):
    """The disk thread of a process: its jobs take time, one after another.

    Args:
        loop: the process.
        delay_ns: how long the next job takes.
    """

    def __init__(self, loop: ProcessLoop, delay_ns: Callable[[], int]) -> None:
        super().__init__()
        self._loop = loop
        self._delay_ns = delay_ns
        self._working = False

    def submit(self, job: Callable[[], Any], done: Done) -> None:
        """Do a job after the earlier ones."""
        self.jobs.append((job, done))
        if not self._working and self._loop.alive:
            self._next()

    def die(self) -> None:
        """The process ends: what its thread is in the middle of may have got as far as it likes.

        The disk must know at which operation it ends.
        """
        jobs, self.jobs = self.jobs, deque()
        for job, _ in jobs:
            try:
                job()
            except (ProcessKilled, OSError, ValueError, AssertionError):
                return

    def _next(self) -> None:
        self._working = True
        self._loop.timeline.after(self._delay_ns(), self._due)

    def _due(self) -> None:
        # The thread of a paused process stands still as well; the loop's queue keeps it until it goes on.
        self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._working = False
        if self.jobs:
            self.step()
        if self.jobs and not self._working:
            self._next()

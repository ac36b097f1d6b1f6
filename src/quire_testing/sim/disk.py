"""A simulated disk: files in memory, of which a power loss keeps what was synced and any sectors of the rest.

A disk outlives its process. A killed process leaves all that it wrote, a power loss does not. Faults are switches.

Source: docs/simulation.md, "The world"; `docs/formats/segment.md`, "What a crash can leave, and what the start does".
"""

from __future__ import annotations

import errno
import random
import zlib
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from quire.env.interfaces import Buffer, Done, FileStamp
from quire.env.stepped import StepWorker
from quire_testing.sim.loop import ProcessKilled, ProcessLoop

SECTOR = 512


class _Node:
    """One file: its bytes as programs see them, and what writing since the last sync has changed."""

    __slots__ = ("data", "unsynced", "written_end")

    def __init__(self, data: bytes | bytearray) -> None:
        self.data = bytearray(data)
        self.written_end = 0
        self.unsynced: list[tuple[int, bytes, bytes]] = []

    def write(self, data: bytes, offset: int) -> None:
        end = offset + len(data)
        if len(self.data) < end:
            self.data.extend(bytes(end - len(self.data)))
        self.written_end = max(self.written_end, end)
        self.unsynced.append((offset, bytes(self.data[offset:end]), data))
        self.data[offset:end] = data

    def lose_power(self, chance: random.Random) -> None:
        """Of each unsynced write none, all, or any sectors stay."""
        for offset, before, _ in reversed(self.unsynced):
            self.data[offset : offset + len(before)] = before
        for offset, _, data in self.unsynced:
            how = chance.randrange(4)
            if how == 0:
                continue
            for at in range(0, len(data), SECTOR):
                if how == 1 or chance.getrandbits(1):
                    piece = data[at : at + SECTOR]
                    self.data[offset + at : offset + at + len(piece)] = piece
        self.unsynced.clear()


class SimDisk:
    """One machine's disk, with the `Files` interface.

    Args:
        chance: of this disk.
        direct: files may be written past the page cache.

    Attributes:
        operations: changes so far.
        kill_at: the process ends at this operation, in its middle.
        fail_at: from this operation on every change of a file fails.
        space: bytes that may still be allocated; None: enough.
        synced: syncs so far.
        open_files: how many files its process has open.
        descriptors: how many it may have open; None: enough. What opens a file for a moment needs one too.
        life: of its process: files that an earlier one had open count no more.
    """

    def __init__(self, chance: random.Random, *, direct: bool = False) -> None:
        self.chance = chance
        self.direct = direct
        self.operations = 0
        self.synced = 0
        self.kill_at: int | None = None
        self.fail_at: int | None = None
        self.space: int | None = None
        self.open_files = 0
        self.descriptors: int | None = None
        self.life = 0
        self.loop: ProcessLoop | None = None
        self._now: dict[str, _Node] = {}
        self._durable: dict[str, _Node] = {}
        self._name_changes: list[Callable[[dict[str, _Node]], object]] = []
        self._locked: dict[str, ProcessLoop | None] = {}

    # --- what happens to disks -------------------------------------------------------------------------------------

    def lose_power(self) -> None:
        """What a start finds after a power loss: some name changes, in order, and some unsynced sectors."""
        names = dict(self._durable)
        for change in self._name_changes[: self.chance.randint(0, len(self._name_changes))]:
            change(names)
        self._name_changes.clear()
        for name in sorted(names):
            names[name].lose_power(self.chance)
        self._now, self._durable = names, dict(names)

    def rot(self) -> str:
        """Turn one bit of what was written to some segment; says where, or nothing."""
        names = [name for name in sorted(self._now) if name.endswith(".seg")]
        if not names:
            return ""
        name = names[self.chance.randrange(len(names))]
        data = self._now[name].data
        end = len(data.rstrip(b"\0"))
        if end <= 4096:
            return ""
        at = 4096 + self.chance.randrange(end - 4096)
        data[at] ^= 1 << self.chance.randrange(8)
        return f"{name.rpartition('/')[2]} at {at}"

    def _step(self, path: str) -> None:
        loop = self.loop
        if loop is not None and not loop.alive:
            raise ProcessKilled
        self.operations += 1
        if self.operations == self.kill_at and loop is not None:
            loop.kill()
            raise ProcessKilled
        if self.fail_at is not None and self.operations >= self.fail_at:
            raise OSError(errno.EIO, "injected", path)

    def begin_life(self) -> None:
        """A process starts: it has no file open."""
        self.life += 1
        self.open_files = 0

    def _descriptor(self, path: Path) -> None:
        """Something is opened, for a moment at least."""
        if self.descriptors is not None and self.open_files >= self.descriptors:
            raise OSError(errno.EMFILE, "too many open files", str(path))

    def _opened(self, path: Path, *, direct: bool) -> SimFile:
        self._descriptor(path)
        file = SimFile(self, self._node(path), str(path), direct=direct)
        self.open_files += 1
        return file

    # --- the interface ---------------------------------------------------------------------------------------------

    def writes_direct(self, directory: Path) -> tuple[bool, str]:
        """As told."""
        return self.direct, "simulated"

    def make_directory(self, path: Path) -> None:
        """Directories are there."""

    def names(self, directory: Path) -> list[str]:
        """Names in a directory, sorted."""
        prefix = f"{directory}/"
        return sorted(path[len(prefix) :] for path in self._now if path.startswith(prefix))

    def exists(self, path: Path) -> bool:
        """Whether there is such a file."""
        return str(path) in self._now

    def stamp(self, path: Path) -> FileStamp:
        """A file is known by its name here: nothing copies a directory."""
        return FileStamp(zlib.crc32(str(path).encode()), 0)

    def read_whole(self, path: Path) -> bytes:
        """A file's bytes."""
        self._descriptor(path)
        return bytes(self._node(path).data)

    def write_whole(self, path: Path, data: bytes) -> None:
        """In place, durably."""
        self._descriptor(path)
        self._step(str(path))
        self._now[str(path)] = self._durable[str(path)] = _Node(data)

    def allocate(self, path: Path, size: int) -> None:
        """Zeros."""
        self._descriptor(path)
        name = str(path)
        self._step(name)
        if name in self._now:
            raise FileExistsError(errno.EEXIST, "exists", name)
        if self.space is not None:
            if size > self.space:
                raise OSError(errno.ENOSPC, "no space left", name)
            self.space -= size
        node = _Node(bytes(size))
        self._change(lambda names: names.__setitem__(name, node))
        self.sync_directory(path.parent)

    def open_to_read(self, path: Path, *, random: bool) -> SimFile:
        """Open."""
        return self._opened(path, direct=False)

    def open_to_write(self, path: Path, *, direct: bool) -> SimFile:
        """Open."""
        return self._opened(path, direct=direct)

    def read_uncached(self, path: Path, offset: int, size: int) -> bytes:
        """What is on the disk is what is in memory."""
        self._descriptor(path)
        return bytes(self._node(path).data[offset : offset + size])

    def forget_cached(self, path: Path) -> None:
        """Nothing is cached."""
        self._descriptor(path)

    def rename(self, old: Path, new: Path) -> None:
        """Durable with the directory."""
        self._step(str(new))
        before, after = str(old), str(new)
        self._change(lambda names: names.__setitem__(after, names.pop(before)))

    def remove(self, path: Path) -> None:
        """Durable with the directory."""
        name = str(path)
        self._step(name)
        if self.space is not None:
            self.space += len(self._node(path).data)
        self._change(lambda names: names.pop(name, None))

    def sync_directory(self, directory: Path) -> None:
        """Names are durable now."""
        self._descriptor(directory)
        self._step(str(directory))
        if self._name_changes:
            self._durable = dict(self._now)
            self._name_changes.clear()

    def lock(self, path: Path) -> SimLock:
        """A lock that ends with its process."""
        name, loop = str(path), self.loop
        holder = self._locked.get(name)
        if holder is not None and holder.alive:
            raise BlockingIOError(errno.EAGAIN, "locked", name)
        self._locked[name] = loop
        return SimLock(self._locked, name)

    def _node(self, path: Path) -> _Node:
        node = self._now.get(str(path))
        if node is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
        return node

    def _change(self, change: Callable[[dict[str, _Node]], object]) -> None:
        change(self._now)
        self._name_changes.append(change)


class SimLock:
    """A lock on a file."""

    def __init__(self, locked: dict[str, ProcessLoop | None], name: str) -> None:
        self._locked, self._name = locked, name

    def release(self) -> None:
        """Let it go."""
        self._locked.pop(self._name, None)


class SimFile:
    """One open file."""

    __slots__ = ("_direct", "_disk", "_life", "_node", "_path")

    def __init__(self, disk: SimDisk, node: _Node, path: str, *, direct: bool) -> None:
        self._disk, self._node, self._path, self._direct = disk, node, path, direct
        self._life = disk.life

    def read_at(self, offset: int, size: int) -> bytes:
        """Bytes."""
        return bytes(self._node.data[offset : offset + size])

    def write_at(self, data: Buffer, offset: int) -> None:
        """Write; it is on its way when the process ends here."""
        self._node.write(bytes(data), offset)
        self._disk._step(self._path)  # noqa: SLF001 - one thing in two classes
        if self._direct:
            self._node.unsynced.clear()

    def sync(self) -> None:
        """All writes of this file are durable."""
        if not self._direct:
            self._disk._step(self._path)  # noqa: SLF001
            self._node.unsynced.clear()
        self._disk.synced += 1

    def size(self) -> int:
        """Length."""
        return len(self._node.data)

    def expect(self, offset: int, size: int) -> None:
        """Nothing is to be brought in."""

    def next_data(self, offset: int) -> int:
        """Where bytes that are not zero may follow."""
        data = self._node.data
        return offset if offset < self._node.written_end else len(data)

    def close(self) -> None:
        """Its descriptor is free again."""
        if self._life == self._disk.life:
            self._disk.open_files -= 1
        self._life = 0


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
        """The process ends: what its thread is in the middle of may have gone as far as it likes.

        The disk must have been told at which operation it ends.
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

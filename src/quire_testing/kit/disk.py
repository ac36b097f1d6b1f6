"""A disk on which things go wrong: what was not synced is lost or torn by a loss of power, and faults are switches.

Source: `docs/formats/segment.md`, "What a crash can leave, and what the start does".
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

from quire.env.interfaces import Buffer, Lock
from quire_testing.kit.memory import MemoryNode, NamedFiles, NoLock

SECTOR = 512


class Stopped(BaseException):
    """The machine or the process ended at a chosen operation.

    No `Exception`: nothing in the program under test may handle it.
    """


class DiskNode(MemoryNode):
    """One file: its bytes as programs see them, and what writing since the last sync has changed.

    Attributes:
        written_end: nothing was written behind it.
        unsynced: (offset, bytes before, bytes after) of each write, oldest first.
    """

    __slots__ = ("unsynced", "written_end")

    data: bytearray

    def __init__(self, data: bytes | bytearray = b"") -> None:
        super().__init__(bytearray(data))
        self.written_end = 0
        self.unsynced: list[tuple[int, bytes, bytes]] = []

    def write(self, data: Buffer, offset: int) -> None:
        """Put bytes at an offset; they are on their way."""
        written = bytes(data)
        end = offset + len(written)
        if len(self.data) < end:
            self.data.extend(bytes(end - len(self.data)))
        self.written_end = max(self.written_end, end)
        self.unsynced.append((offset, bytes(self.data[offset:end]), written))
        self.data[offset:end] = written

    def sync(self) -> None:
        """All writes so far stay."""
        self.unsynced.clear()

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

    def cut_off(self, size: int) -> None:
        """Forget what lies behind a size in bytes."""
        del self.data[size:]
        self.written_end = min(self.written_end, size)
        self.unsynced = [each for each in self.unsynced if each[0] + len(each[2]) <= size]

    def copy(self) -> DiskNode:
        """Another file with the same bytes on their way."""
        made = DiskNode(self.data)
        made.written_end, made.unsynced = self.written_end, list(self.unsynced)
        return made


class DiskFile:
    """One open file."""

    __slots__ = ("_direct", "_files", "_life", "_node", "_path")

    def __init__(self, files: FaultyDisk, node: DiskNode, path: str, *, direct: bool) -> None:
        self._files, self._node, self._path, self._direct = files, node, path, direct
        self._life = files.life

    def read_at(self, offset: int, size: int) -> bytes:
        """Bytes."""
        return bytes(self._node.data[offset : offset + size])

    def write_at(self, data: Buffer, offset: int) -> None:
        """Write; it is on its way when the process ends here."""
        self._node.write(data, offset)
        self._files.step("write", self._path)
        if self._direct:
            self._node.sync()

    def sync(self) -> None:
        """All writes of this file are durable."""
        if not self._direct:
            self._files.step("sync", self._path)
            self._node.sync()
        self._files.synced += 1

    def size(self) -> int:
        """Length."""
        return len(self._node.data)

    def expect(self, offset: int, size: int) -> None:
        """Nothing is to be brought in; the caller knows what is there."""
        assert 0 <= offset < offset + size <= len(self._node.data)

    def release(self, offset: int, size: int) -> None:
        """Nothing is kept besides the bytes; the caller knows what is there."""
        assert 0 <= offset < offset + size <= len(self._node.data)

    def next_data(self, offset: int) -> int:
        """Where bytes that are not zero may follow."""
        return offset if offset < self._node.written_end else len(self._node.data)

    def close(self) -> None:
        """Its descriptor is free again."""
        if self._life == self._files.life:
            self._files.open_files -= 1
        self._life = -1


class FaultyDisk(NamedFiles[DiskNode]):
    """One machine's disk, with the `Files` interface. It outlives its processes.

    Args:
        chance: what decides about unsynced bytes when power is lost.
        direct: files may be written past the page cache.

    Attributes:
        steps: changes so far, by which faults are placed.
        stop_at: the process ends at this step, in its middle.
        fail_at: from this step on every change of a file fails with EIO.
        space: bytes that may still be allocated; None: enough.
        synced: syncs so far.
        open_files: how many files its process has open.
        descriptors: how many it may have open; None: enough. What opens a file for a moment needs one too.
        life: of its process: files that an earlier one had open count no more.
    """

    kind: ClassVar[type[DiskFile]] = DiskFile
    """What its open files are."""

    def __init__(self, chance: random.Random, *, direct: bool = False) -> None:
        super().__init__(direct=direct)
        self.chance = chance
        self.steps = 0
        self.synced = 0
        self.stop_at: int | None = None
        self.fail_at: int | None = None
        self.space: int | None = None
        self.open_files = 0
        self.descriptors: int | None = None
        self.life = 0
        self._durable: dict[str, DiskNode] = {}
        self._name_changes: list[Callable[[dict[str, DiskNode]], object]] = []

    # --- what happens to disks -------------------------------------------------------------------------------------

    def step(self, _what: str, path: str) -> None:
        """A change is under way.

        Args:
            _what: which, for subclasses that keep a record.
            path: of what.

        Raises:
            Stopped: the process ends here.
            OSError: the disk fails.
        """
        self.steps += 1
        if self.steps == self.stop_at:
            self.stop()
        if self.fail_at is not None and self.steps >= self.fail_at:
            raise OSError(errno.EIO, "injected", path)

    def stop(self) -> None:
        """The process ends."""
        raise Stopped

    def lose_power(self) -> None:
        """What a start finds after a power loss: some name changes, in order, and some unsynced sectors."""
        names = self._names_after_power_loss()
        self._name_changes.clear()
        for name in sorted(names):
            names[name].lose_power(self.chance)
        self.nodes, self._durable = names, dict(names)

    def begin_life(self) -> None:
        """A process starts: it has no file open."""
        self.life += 1
        self.open_files = 0

    def _names_after_power_loss(self) -> dict[str, DiskNode]:
        names = dict(self._durable)
        for change in self._name_changes[: self.chance.randint(0, len(self._name_changes))]:
            change(names)
        return names

    def _descriptor(self, path: Path) -> None:
        """Something is opened, for a moment at least."""
        if self.descriptors is not None and self.open_files >= self.descriptors:
            raise OSError(errno.EMFILE, "too many open files", str(path))

    def _opened(self, path: Path, *, direct: bool) -> DiskFile:
        self._descriptor(path)
        file = self.kind(self, self._node(path), str(path), direct=direct)
        self.open_files += 1
        return file

    def _change(self, change: Callable[[dict[str, DiskNode]], object]) -> None:
        change(self.nodes)
        self._name_changes.append(change)

    # --- the interface ---------------------------------------------------------------------------------------------

    def read_whole(self, path: Path) -> bytes:
        """A file's bytes."""
        self._descriptor(path)
        return super().read_whole(path)

    def write_whole(self, path: Path, data: bytes) -> None:
        """In place, durably."""
        self._descriptor(path)
        self.step("write whole", str(path))
        self.nodes[str(path)] = self._durable[str(path)] = DiskNode(data)

    def allocate(self, path: Path, size: int) -> None:
        """Zeros."""
        self._descriptor(path)
        name = str(path)
        self.step("allocate", name)
        if name in self.nodes:
            raise FileExistsError(errno.EEXIST, "exists", name)
        if self.space is not None:
            if size > self.space:
                raise OSError(errno.ENOSPC, "no space left", name)
            self.space -= size
        node = DiskNode(bytes(size))
        self._change(lambda names: names.__setitem__(name, node))
        self.sync_directory(path.parent)

    def open_to_read(self, path: Path, *, random: bool) -> DiskFile:  # noqa: ARG002 - the interface's
        """Open."""
        return self._opened(path, direct=False)

    def open_to_write(self, path: Path, *, direct: bool) -> DiskFile:
        """Open."""
        return self._opened(path, direct=direct)

    def read_uncached(self, path: Path, offset: int, size: int) -> bytes:
        """What is on the disk is what is in memory."""
        self._descriptor(path)
        return super().read_uncached(path, offset, size)

    def forget_cached(self, path: Path) -> None:
        """Nothing is cached."""
        self._descriptor(path)

    def rename(self, old: Path, new: Path) -> None:
        """Durable with the directory."""
        self.step("rename", str(new))
        before, after = str(old), str(new)
        self._change(lambda names: names.__setitem__(after, names.pop(before)))

    def shrink(self, path: Path, size: int) -> None:
        """Durable at once, as it may be."""
        self.step("shrink", str(path))
        if self.space is not None:
            self.space += max(len(self._node(path).data) - size, 0)
        self._node(path).cut_off(size)

    def remove(self, path: Path) -> None:
        """Durable with the directory."""
        name = str(path)
        self.step("remove", name)
        if self.space is not None:
            self.space += len(self._node(path).data)
        self._change(lambda names: names.pop(name, None))

    def sync_directory(self, directory: Path) -> None:
        """Names are durable now."""
        self._descriptor(directory)
        self.step("sync directory", str(directory))
        if self._name_changes:
            self._durable = dict(self.nodes)
            self._name_changes.clear()

    def lock(self, _directory: Path) -> Lock:
        """No other process is here."""
        return NoLock()

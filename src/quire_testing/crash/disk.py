"""What is on the disk for sure, and what is on its way, as a recording goes on.

The rules, which are the weakest that file systems and disks give:

- A sector of 512 bytes is written whole or not, or comes out as garbage; sectors of one write reach the disk in any order.
- Writes to different files, and names and contents, are independent of each other.
- A file's sync makes its bytes and its length durable, not its name. A directory's sync makes the names in it durable.
- Changes of names that were not synced may be undone one by one; a rename is whole or undone.
- After a failed sync what was dirty stays uncertain, also after a later sync that succeeds.
"""

from __future__ import annotations

from pathlib import PurePosixPath

from quire_testing.crash.operations import (
    CreateFile,
    FailedSync,
    MakeDirectory,
    Milestone,
    NameChange,
    Operation,
    Remove,
    Rename,
    Resize,
    Sync,
    SyncDirectory,
    Write,
)
from quire_testing.kit.memory import DIRECTORY, Tree

SECTOR_BYTES = 512


class PendingFile:
    """One file.

    Attributes:
        durable: what is on the disk.
        sectors: sector number to what may be there instead, oldest first, each with whether a sync of it has failed.
        size: the length that programs see.
    """

    __slots__ = ("_frozen", "durable", "sectors", "size")

    def __init__(self, data: bytes = b"") -> None:
        self.durable = bytearray(data)
        self.sectors: dict[int, list[tuple[bytes, bool]]] = {}
        self.size = len(data)
        self._frozen: bytes | None = data

    @property
    def frozen(self) -> bytes:
        """The durable bytes, shared by everybody until they change."""
        if self._frozen is None:
            self._frozen = bytes(self.durable)
        return self._frozen

    def old(self, sector: int) -> bytes:
        """A sector as it is on the disk for sure, zeros where nothing is."""
        start = sector * SECTOR_BYTES
        return bytes(self.durable[start : start + SECTOR_BYTES]).ljust(SECTOR_BYTES, b"\0")

    def write(self, offset: int, data: bytes) -> None:
        """Bytes are on their way."""
        end = offset + len(data)
        for sector in range(offset // SECTOR_BYTES, -(-end // SECTOR_BYTES)):
            start = sector * SECTOR_BYTES
            low, high = max(start, offset), min(start + SECTOR_BYTES, end)
            versions = self.sectors.setdefault(sector, [])
            if high - low == SECTOR_BYTES:
                new = data[low - offset : high - offset]
            else:
                before = versions[-1][0] if versions else self.old(sector)
                new = before[: low - start] + data[low - offset : high - offset] + before[high - start :]
            versions.append((new, False))
        self.size = max(self.size, end)

    def sync(self) -> None:
        """What was not spoilt by a failed sync is on the disk."""
        self._grow(self.size)
        for sector in list(self.sectors):
            data, uncertain = self.sectors[sector][-1]
            if not uncertain:
                self._put(sector, data)

    def sync_range(self, offset: int, size: int) -> None:
        """A direct write is on the disk, whatever becomes of others."""
        self._grow(max(len(self.durable), offset + size))
        for sector in range(offset // SECTOR_BYTES, -(-(offset + size) // SECTOR_BYTES)):
            self._put(sector, self.sectors[sector][-1][0])

    def fail(self) -> None:
        """A sync failed: all that was on its way is uncertain for ever, unless it is written again."""
        for versions in self.sectors.values():
            versions[:] = [(data, True) for data, _ in versions]

    def _grow(self, size: int) -> None:
        if size != len(self.durable):
            self._frozen = None
            if size < len(self.durable):
                del self.durable[size:]
            else:
                self.durable.extend(bytes(size - len(self.durable)))

    def _put(self, sector: int, data: bytes) -> None:
        start = sector * SECTOR_BYTES
        self.durable[start : start + SECTOR_BYTES] = data[: max(0, len(self.durable) - start)]
        self._frozen = None
        del self.sectors[sector]


class PendingDisk:
    """All files and names.

    Attributes:
        files: by number.
        names: what is on the disk, path to number.
        changes: of names that are on their way, in order.
    """

    def __init__(self, start: Tree) -> None:
        self.files = {number: PendingFile(data) for number, data in start.contents.items()}
        self.names = dict(start.names)
        self.changes: list[NameChange] = []

    def begin(self, operation: Operation) -> None:
        """An operation is under way: any part of it may be on the disk."""
        match operation:
            case Write(file, offset, data, _):
                self.files[file].write(offset, data)
            case Resize(file, size):
                self.files[file].size = size
            case CreateFile(_, file):
                self.files[file] = PendingFile()
                self.changes.append(operation)
            case MakeDirectory() | Rename() | Remove():
                self.changes.append(operation)
            case Sync() | FailedSync() | SyncDirectory() | Milestone():
                pass

    def finish(self, operation: Operation) -> None:
        """It has returned."""
        match operation:
            case Write(file, offset, data, True):
                self.files[file].sync_range(offset, len(data))
            case Sync(file):
                self.files[file].sync()
            case FailedSync(file):
                self.files[file].fail()
            case SyncDirectory(path):
                done = [one for one in self.changes if parent(one) == path]
                self.changes = [one for one in self.changes if parent(one) != path]
                self.names = renamed(self.names, done)
            case _:
                pass


def parent(change: NameChange) -> str:
    """The directory whose sync makes a change of names durable."""
    path = change.new if isinstance(change, Rename) else change.path
    return str(PurePosixPath(path).parent)


def renamed(names: dict[str, int], changes: list[NameChange]) -> dict[str, int]:
    """Names after some changes; those whose file is not there because an earlier one was undone change nothing."""
    names = dict(names)
    for change in changes:
        match change:
            case CreateFile(path, file):
                names[path] = file
            case MakeDirectory(path):
                names[path] = DIRECTORY
            case Rename(old, new):
                if old in names:
                    names[new] = names.pop(old)
            case Remove(path):
                names.pop(path, None)
    return names

"""Files in memory with the interface of the real ones, so that a restart on a crash image takes a millisecond.

Contents are shared between copies until one is written. Direct writes and syncs do nothing here: what survives a power
cut is decided elsewhere (`crash/images.py` from a recording, `kit/disk.py` from what was not synced).
"""

from __future__ import annotations

import errno
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar

from quire.env.interfaces import Buffer, FileStamp

DIRECTORY = -1
"""Stands for a file's number where a name is a directory's."""


@dataclass(slots=True)
class Tree:
    """Names and contents at one moment, all of it on the disk.

    Attributes:
        names: path to file number; `DIRECTORY` for directories.
        contents: file number to bytes.
    """

    names: dict[str, int] = field(default_factory=dict)
    contents: dict[int, bytes] = field(default_factory=dict)


class MemoryNode:
    """One file's bytes; copied at the first write."""

    __slots__ = ("_own", "data")

    def __init__(self, data: bytes | bytearray = b"") -> None:
        self.data: bytes | bytearray = data
        self._own = False

    def write(self, data: Buffer, offset: int) -> None:
        """Put bytes at an offset; a gap before them is zeros."""
        target = self.data
        if not self._own or not isinstance(target, bytearray):
            target = self.data = bytearray(self.data)
            self._own = True
        if len(target) < offset:
            target.extend(bytes(offset - len(target)))
        target[offset : offset + len(data)] = data


class MemoryFile:
    """An open file in memory."""

    __slots__ = ("_node",)

    def __init__(self, node: MemoryNode) -> None:
        self._node = node

    def read_at(self, offset: int, size: int) -> bytes:
        return bytes(self._node.data[offset : offset + size])

    def write_at(self, data: Buffer, offset: int) -> None:
        self._node.write(data, offset)

    def sync(self) -> None:
        """Nothing to do: there is no disk below."""

    def size(self) -> int:
        return len(self._node.data)

    def expect(self, offset: int, size: int) -> None:
        """Nothing to do: everything is in memory."""

    def release(self, offset: int, size: int) -> None:
        """Nothing to do, either."""

    def next_data(self, offset: int) -> int:
        return min(offset, len(self._node.data))

    def close(self) -> None:
        """Nothing to do."""


class NoLock:
    """A lock without competitors."""

    def release(self) -> None:
        """No other process can be here."""

    def stands(self) -> bool:
        """Nothing else is ever put there."""
        return True


N = TypeVar("N", bound=MemoryNode)


class NamedFiles(Generic[N]):
    """The questions of `Files`, answered from memory.

    Args:
        direct: what `writes_direct` says.

    Attributes:
        nodes: path to file.
    """

    def __init__(self, *, direct: bool = False) -> None:
        self.nodes: dict[str, N] = {}
        self.direct = direct

    def _node(self, path: Path) -> N:
        node = self.nodes.get(str(path))
        if node is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
        return node

    def _children(self, directory: Path) -> Iterator[str]:
        prefix = f"{directory}/"
        return (path[len(prefix) :] for path in self.nodes if path.startswith(prefix))

    def writes_direct(self, _directory: Path) -> tuple[bool, str]:
        return self.direct, "memory"

    def make_directory(self, path: Path) -> None:
        """Directories are there."""

    def names(self, directory: Path) -> list[str]:
        return sorted(self._children(directory))

    def exists(self, path: Path) -> bool:
        return str(path) in self.nodes

    def stamp(self, path: Path) -> FileStamp:
        """A file is known by its name here: nothing copies a directory."""
        return FileStamp(zlib.crc32(str(path).encode()), 0)

    def read_whole(self, path: Path) -> bytes:
        return bytes(self._node(path).data)

    def read_uncached(self, path: Path, offset: int, size: int) -> bytes:
        return bytes(self._node(path).data[offset : offset + size])

    def forget_cached(self, path: Path) -> None:
        """Nothing is cached."""


class MemoryFiles(NamedFiles[MemoryNode]):
    """A file system in memory, on which nothing goes wrong.

    Args:
        tree: what is there.
        direct: what `writes_direct` says.
        capacity: bytes of all files together; beyond it `allocate` fails with ENOSPC. None: no limit.

    Attributes:
        directories: their paths.
    """

    def __init__(
        self, tree: Tree | None = None, *, direct: bool = False, capacity: int | None = None
    ) -> None:
        super().__init__(direct=direct)
        tree = tree or Tree()
        self.directories: set[str] = set()
        for path, file in tree.names.items():
            if file == DIRECTORY:
                self.directories.add(path)
            else:
                self.nodes[path] = MemoryNode(tree.contents[file])
        self.capacity = capacity

    def tree(self) -> Tree:
        """Names and contents as they are now, as if all of it were on the disk."""
        made = Tree(dict.fromkeys(sorted(self.directories), DIRECTORY))
        for number, (path, node) in enumerate(sorted(self.nodes.items())):
            made.names[path] = number
            made.contents[number] = bytes(node.data)
        return made

    def _children(self, directory: Path) -> Iterator[str]:
        prefix = f"{directory}/"
        for path in (*self.nodes, *self.directories):
            if path.startswith(prefix) and "/" not in path[len(prefix) :]:
                yield path[len(prefix) :]

    # --- the interface

    def make_directory(self, path: Path) -> None:
        self.directories.update(str(one) for one in (path, *path.parents) if str(one) not in {"/", "."})

    def exists(self, path: Path) -> bool:
        return str(path) in self.nodes or str(path) in self.directories

    def write_whole(self, path: Path, data: bytes) -> None:
        self.nodes[str(path)] = MemoryNode(data)

    def allocate(self, path: Path, size: int) -> None:
        if str(path) in self.nodes:
            raise FileExistsError(errno.EEXIST, "exists", str(path))
        if self.capacity is not None:
            used = sum(len(node.data) for node in self.nodes.values())
            if used + size > self.capacity:
                raise OSError(errno.ENOSPC, "no space left", str(path))
        self.nodes[str(path)] = MemoryNode(bytes(size))

    def open_to_read(self, path: Path, *, random: bool) -> MemoryFile:  # noqa: ARG002 - the interface's
        return MemoryFile(self._node(path))

    def open_to_write(self, path: Path, *, direct: bool) -> MemoryFile:  # noqa: ARG002 - the interface's
        return MemoryFile(self._node(path))

    def rename(self, old: Path, new: Path) -> None:
        self.nodes[str(new)] = self._node(old)
        del self.nodes[str(old)]

    def shrink(self, path: Path, size: int) -> None:
        node = self._node(path)
        node.data = node.data[:size]

    def remove(self, path: Path) -> None:
        self._node(path)
        del self.nodes[str(path)]

    def sync_directory(self, directory: Path) -> None:
        """Nothing to do."""

    def lock(self, _directory: Path) -> NoLock:
        return NoLock()

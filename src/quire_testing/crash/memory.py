"""Files in memory with the interface of the real ones, so that a restart on a crash image takes a millisecond.

Contents are shared between copies until somebody writes. Direct writes and syncs do nothing here: what survives a power
cut is the builder's business (`images.py`), which works from a recording.
"""

from __future__ import annotations

import errno
import zlib
from collections.abc import Iterator
from pathlib import Path

from quire.env.interfaces import Buffer, FileStamp
from quire_testing.crash.operations import DIRECTORY, Tree


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

    def next_data(self, offset: int) -> int:
        return offset

    def close(self) -> None:
        """Nothing to do."""


class _NoLock:
    def release(self) -> None:
        """Nobody else can be here."""


class MemoryFiles:
    """A file system in memory.

    Args:
        tree: what is there.
        direct: what `writes_direct` says.
        capacity: bytes of all files together; beyond it `allocate` fails with ENOSPC. None: no limit.

    Attributes:
        nodes: path to file.
        directories: their paths.
    """

    def __init__(
        self, tree: Tree | None = None, *, direct: bool = False, capacity: int | None = None
    ) -> None:
        tree = tree or Tree()
        self.nodes: dict[str, MemoryNode] = {}
        self.directories: set[str] = set()
        for path, file in tree.names.items():
            if file == DIRECTORY:
                self.directories.add(path)
            else:
                self.nodes[path] = MemoryNode(tree.contents[file])
        self.direct = direct
        self.capacity = capacity

    def tree(self) -> Tree:
        """Names and contents as they are now, as if all of it were on the disk."""
        made = Tree(dict.fromkeys(sorted(self.directories), DIRECTORY))
        for number, (path, node) in enumerate(sorted(self.nodes.items())):
            made.names[path] = number
            made.contents[number] = bytes(node.data)
        return made

    def _node(self, path: Path) -> MemoryNode:
        node = self.nodes.get(str(path))
        if node is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
        return node

    def _children(self, directory: Path) -> Iterator[str]:
        prefix = f"{directory}/"
        for path in (*self.nodes, *self.directories):
            if path.startswith(prefix) and "/" not in path[len(prefix) :]:
                yield path[len(prefix) :]

    # --- the interface

    def writes_direct(self, _directory: Path) -> tuple[bool, str]:
        return self.direct, "memory"

    def make_directory(self, path: Path) -> None:
        self.directories.update(str(one) for one in (path, *path.parents) if str(one) not in {"/", "."})

    def names(self, directory: Path) -> list[str]:
        return sorted(self._children(directory))

    def exists(self, path: Path) -> bool:
        return str(path) in self.nodes or str(path) in self.directories

    def stamp(self, path: Path) -> FileStamp:
        return FileStamp(zlib.crc32(str(path).encode()), 0)

    def read_whole(self, path: Path) -> bytes:
        return bytes(self._node(path).data)

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

    def read_uncached(self, path: Path, offset: int, size: int) -> bytes:
        return bytes(self._node(path).data[offset : offset + size])

    def forget_cached(self, path: Path) -> None:
        """Nothing to do."""

    def rename(self, old: Path, new: Path) -> None:
        self.nodes[str(new)] = self._node(old)
        del self.nodes[str(old)]

    def remove(self, path: Path) -> None:
        self._node(path)
        del self.nodes[str(path)]

    def sync_directory(self, directory: Path) -> None:
        """Nothing to do."""

    def lock(self, path: Path) -> _NoLock:
        self.nodes.setdefault(str(path), MemoryNode())
        return _NoLock()

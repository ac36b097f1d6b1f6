"""A bookie's disk in memory, and a worker whose jobs are done when the schedule says so.

What is written in a job is durable when the job is done; a crash forgets the jobs that have not been.
"""

from __future__ import annotations

import errno
import zlib
from pathlib import Path
from typing import Any

from quire.env.interfaces import FileStamp
from quire.storage.boot import BOOT_FILE, MARKER_FILE


class MemoryFile:
    """One open file."""

    def __init__(self, data: bytearray) -> None:
        self.data = data

    def read_at(self, offset: int, size: int) -> bytes:
        """Up to `size` bytes."""
        return bytes(self.data[offset : offset + size])

    def write_at(self, data: Any, offset: int) -> None:
        """Write all of it."""
        written = bytes(data)
        end = offset + len(written)
        if len(self.data) < end:
            self.data.extend(bytes(end - len(self.data)))
        self.data[offset:end] = written

    def sync(self) -> None:
        """What is written is on the disk already."""

    def size(self) -> int:
        """The file's length."""
        return len(self.data)

    def expect(self, offset: int, size: int) -> None:
        """Everything is in memory."""

    def next_data(self, offset: int) -> int:
        """Not known."""
        return offset

    def close(self) -> None:
        """Nothing is held."""


class _Lock:
    def release(self) -> None:
        """Nothing is held."""


class MemoryFiles:
    """The files of one bookie, by path."""

    def __init__(self) -> None:
        self._files: dict[str, bytearray] = {}

    def damage(self, content: bytes) -> None:
        """Flip the last byte of these bytes wherever they are."""
        for data in self._files.values():
            at = data.find(content)
            if at >= 0:
                data[at + len(content) - 1] ^= 0xFF

    def writes_direct(self, directory: Path) -> tuple[bool, str]:  # noqa: ARG002
        """Never."""
        return False, "memory"

    def make_directory(self, path: Path) -> None:
        """Directories are not needed."""

    def names(self, directory: Path) -> list[str]:
        """The names in a directory, sorted."""
        prefix = f"{directory}/"
        return sorted(path.removeprefix(prefix) for path in self._files if path.startswith(prefix))

    def exists(self, path: Path) -> bool:
        """Whether there is a file of this name."""
        return str(path) in self._files

    def stamp(self, path: Path) -> FileStamp:
        """A file is known by its name here."""
        return FileStamp(zlib.crc32(str(path).encode()), 0)

    def read_whole(self, path: Path) -> bytes:
        """A file's bytes."""
        return bytes(self._data(path))

    def write_whole(self, path: Path, data: bytes) -> None:
        """Put a file in place."""
        self._files[str(path)] = bytearray(data)

    def allocate(self, path: Path, size: int) -> None:
        """Make a file of zero bytes."""
        self._files[str(path)] = bytearray(size)

    def open_to_read(self, path: Path, *, random: bool) -> MemoryFile:  # noqa: ARG002
        """Open for reading."""
        return MemoryFile(self._data(path))

    def open_to_write(self, path: Path, *, direct: bool) -> MemoryFile:  # noqa: ARG002
        """Open for writing."""
        return MemoryFile(self._data(path))

    def read_uncached(self, path: Path, offset: int, size: int) -> bytes:
        """Read."""
        return MemoryFile(self._data(path)).read_at(offset, size)

    def forget_cached(self, path: Path) -> None:
        """Nothing is cached."""

    def rename(self, old: Path, new: Path) -> None:
        """Give a file another name."""
        self._files[str(new)] = self._files.pop(str(old))

    def remove(self, path: Path) -> None:
        """Remove a file."""
        self._files.pop(str(path), None)

    def sync_directory(self, directory: Path) -> None:
        """Names are on the disk already."""

    def lock(self, path: Path) -> _Lock:  # noqa: ARG002
        """Nobody else is here."""
        return _Lock()

    def wipe(self) -> None:
        """All is lost, but how often the bookie was started."""
        self._files = {
            path: data for path, data in self._files.items() if path.endswith((BOOT_FILE, MARKER_FILE))
        }

    def _data(self, path: Path) -> bytearray:
        data = self._files.get(str(path))
        if data is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
        return data

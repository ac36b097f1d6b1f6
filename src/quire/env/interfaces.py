"""What programs take from the machine, as interfaces: so that a simulator can stand in for it.

Nothing here does anything. `env/real.py` has the real ones.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview | mmap.mmap
Done: TypeAlias = Callable[[Any], None]
"""Called on the loop with what the job returned, or with the exception that it raised."""


class Clock(Protocol):
    """Time. Only `wall_ms` may jump, and nothing that must be safe depends on it."""

    def now_ms(self) -> int:
        """Monotonic milliseconds."""

    def now_ns(self) -> int:
        """Monotonic nanoseconds."""

    def boot_ms(self) -> int:
        """Monotonic milliseconds that go on while the machine sleeps."""

    def cpu_ms(self) -> int:
        """Milliseconds for which this process ran on a core, all its threads together."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970, for people and for what outlives a restart."""


class File(Protocol):
    """One open file. Offsets are in bytes from its start."""

    def read_at(self, offset: int, size: int) -> bytes:
        """Up to `size` bytes; fewer only at the end of the file."""

    def write_at(self, data: Buffer, offset: int) -> None:
        """Write all of `data`. It survives a power loss only after `sync`.

        A file opened for direct writing needs `data` in an aligned buffer, and offset and size in whole blocks.
        """

    def sync(self) -> None:
        """Return when all that was written is on the disk. After an error nothing written is to be relied on."""

    def size(self) -> int:
        """The file's length."""

    def expect(self, offset: int, size: int) -> None:
        """These bytes will be read soon: begin to bring them into memory, and do not wait for them."""

    def release(self, offset: int, size: int) -> None:
        """These bytes were read for once: memory need not keep them."""

    def next_data(self, offset: int) -> int:
        """Where bytes follow that were ever written: `offset` itself if that is not known, the size if none do."""

    def close(self) -> None:
        """Let the file go; again is allowed."""


class Lock(Protocol):
    """A lock on a directory, held until released or until the process ends."""

    def release(self) -> None:
        """Let it go; again is allowed."""

    def stands(self) -> bool:
        """Whether the path still leads to the directory that is locked; another may have been put in its place."""


class FileStamp(NamedTuple):
    """What distinguishes a file from a copy of it: its inode, and when its inode was changed last, in ns since 1970."""

    inode: int
    changed_ns: int


class Files(Protocol):
    """The file system as storage needs it. Errors are `OSError`."""

    def writes_direct(self, directory: Path) -> tuple[bool, str]:
        """Whether files there can be written past the page cache, and why (the file system's name)."""

    def make_directory(self, path: Path) -> None:
        """Make a directory and its parents, durably; one that is there is fine, and durable afterwards as well."""

    def names(self, directory: Path) -> list[str]:
        """The names in a directory, sorted; empty if there is no such directory."""

    def exists(self, path: Path) -> bool:
        """Whether there is a file of this name."""

    def stamp(self, path: Path) -> FileStamp:
        """What distinguishes this file from a copy of it."""

    def read_whole(self, path: Path) -> bytes:
        """A small file's bytes."""

    def write_whole(self, path: Path, data: bytes) -> None:
        """Put a small file in place, durably: after a crash it is the old one or the new one."""

    def allocate(self, path: Path, size: int) -> None:
        """Make a file of `size` zero bytes whose space is reserved, durably. On an error it is not there."""

    def open_to_read(self, path: Path, *, random: bool) -> File:
        """Open for reading; `random` asks for no read-ahead."""

    def open_to_write(self, path: Path, *, direct: bool) -> File:
        """Open an existing file for writing; `direct` past the page cache, each write synced by itself."""

    def read_uncached(self, path: Path, offset: int, size: int) -> bytes:
        """Read from the disk itself, not from memory that may be stale."""

    def forget_cached(self, path: Path) -> None:
        """Drop what memory holds of a file."""

    def rename(self, old: Path, new: Path) -> None:
        """Give a file another name in the same directory; durable after `sync_directory`."""

    def shrink(self, path: Path, size: int) -> None:
        """Cut a file off after `size` bytes, if it is longer; when that is durable nothing says."""

    def remove(self, path: Path) -> None:
        """Remove a file; durable after `sync_directory`."""

    def sync_directory(self, directory: Path) -> None:
        """Return when the directory's names are on the disk."""

    def lock(self, directory: Path) -> Lock:
        """Lock a directory. Nothing in it is made or changed, so there is no file that could be removed from under the lock.

        Raises:
            BlockingIOError: it is held, in this process or another.
            FileNotFoundError: there is no such directory.
        """


class Worker(Protocol):
    """One background thread that does one job after another."""

    def submit(self, job: Callable[[], Any], done: Done) -> None:
        """Run `job` there, after all earlier ones; then `done` on the loop with its result or exception."""

    def finish(self) -> None:
        """Block until every job submitted so far is done, and call their `done` here. For stopping only."""

    def close(self) -> None:
        """Finish what was submitted and end the thread; again is allowed."""

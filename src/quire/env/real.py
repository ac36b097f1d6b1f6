"""The real machine: clocks, files and one worker thread."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import queue
import resource
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from quire.core.errors import MisuseError
from quire.env.interfaces import Buffer, Done, FileStamp
from quire.env.private import FOLDER_MODE, file_mode

BLOCK_BYTES = 4096
FREED_BYTES = 4 * 1024 * 1024
DESCRIPTORS_MAX = 1 << 20
"""More are not asked for, and not counted on, where the system sets no limit."""
DIRECT_FILE_SYSTEMS = frozenset({"ext2", "ext3", "ext4", "xfs", "f2fs"})
"""Where O_DIRECT is known to write in place, past the page cache. Elsewhere it is refused (tmpfs), emulated (overlay)
or copied on write (btrfs, zfs)."""


_BOOT_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def require_linux() -> None:
    """Refuse a system on which no bookie's disk works.

    Raises:
        MisuseError: it lacks system calls that bookies write and read with.
    """
    missing = [name for name in ("O_DIRECT", "posix_fallocate", "posix_fadvise") if not hasattr(os, name)]
    if missing:
        msg = (
            f"Bookies run only on Linux; this system, {os.uname().sysname}, lacks {', '.join(missing)}: run bookies on Linux, "
            "in a virtual machine or a container if need be"
        )
        raise MisuseError(msg)


def expanded(path: str) -> Path:
    """A path with the home of the user that it names; what names no user of this machine stays as it is."""
    return Path(os.path.expanduser(path))  # noqa: PTH111 - `Path.expanduser` raises for an unknown user


def disk_bytes(directory: Path) -> int:
    """The size of the disk that a directory lies on, or will lie on."""
    there = next(one for one in (directory.absolute(), *directory.absolute().parents) if one.exists())
    found = os.statvfs(there)
    return found.f_blocks * found.f_frsize


class RealClock:
    """The machine's clocks."""

    def now_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000

    def now_ns(self) -> int:
        return time.monotonic_ns()

    def boot_ms(self) -> int:
        return time.clock_gettime_ns(_BOOT_CLOCK) // 1_000_000

    def cpu_ms(self) -> int:
        return time.process_time_ns() // 1_000_000

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000


class RealFile:
    """A file by its descriptor. `direct`: opened O_DIRECT|O_DSYNC, so a write that returned is on the disk."""

    __slots__ = ("_descriptor", "_direct")

    def __init__(self, descriptor: int, *, direct: bool = False) -> None:
        self._descriptor = descriptor
        self._direct = direct

    def read_at(self, offset: int, size: int) -> bytes:
        data = os.pread(self._descriptor, size, offset)
        if len(data) == size or not data:
            return data
        parts = [data]
        got = len(data)
        while got < size:
            data = os.pread(self._descriptor, size - got, offset + got)
            if not data:
                break
            parts.append(data)
            got += len(data)
        return b"".join(parts)

    def write_at(self, data: Buffer, offset: int) -> None:
        written = os.pwrite(self._descriptor, data, offset)
        if written == len(data):
            return
        view = memoryview(data)
        while written < len(view):
            more = os.pwrite(self._descriptor, view[written:], offset + written)
            if more == 0:
                raise OSError(errno.EIO, "the file takes no more bytes")
            written += more

    def sync(self) -> None:
        if not self._direct:
            os.fdatasync(self._descriptor)

    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def expect(self, offset: int, size: int) -> None:
        os.posix_fadvise(self._descriptor, offset, size, os.POSIX_FADV_WILLNEED)

    def release(self, offset: int, size: int) -> None:
        os.posix_fadvise(self._descriptor, offset, size, os.POSIX_FADV_DONTNEED)

    def next_data(self, offset: int) -> int:
        try:
            return os.lseek(self._descriptor, offset, os.SEEK_DATA)
        except OSError as error:
            return self.size() if error.errno == errno.ENXIO else offset

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _inode(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


class RealLock:
    """A lock (flock) on a directory itself: it excludes within a process too, and a cleaner of old files finds none.

    A child of a fork would share it, and let it go for both: a child closes it.
    """

    _held: set[RealLock] = set()  # noqa: RUF012 - one table for the process, for the children that it forks

    __slots__ = ("_descriptor", "_directory", "_key")

    def __init__(self, directory: Path) -> None:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            if isinstance(error, BlockingIOError):
                raise BlockingIOError(errno.EAGAIN, "locked by another bookie", str(directory)) from error
            raise
        self._directory = directory.absolute()
        self._key = _inode(os.fstat(descriptor))
        self._descriptor = descriptor
        self._held.add(self)

    def release(self) -> None:
        if self._descriptor >= 0:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
            self._let_go()

    def stands(self) -> bool:
        try:
            return _inode(self._directory.stat()) == self._key
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:
            return True  # nothing is known against it

    def _let_go(self) -> None:
        self._held.discard(self)
        os.close(self._descriptor)
        self._descriptor = -1

    @classmethod
    def forget_in_child(cls) -> None:
        """In the child of a fork: the locks are the parent's."""
        for lock in list(cls._held):
            lock._let_go()  # noqa: SLF001 - of the same class


os.register_at_fork(after_in_child=RealLock.forget_in_child)


class RealFiles:
    """The machine's file system."""

    def writes_direct(self, directory: Path) -> tuple[bool, str]:
        kind = _file_system(directory)
        if kind not in DIRECT_FILE_SYSTEMS:
            return False, kind
        probe = directory / f"probe-{os.getpid()}.tmp"
        try:
            descriptor = os.open(
                probe, os.O_RDWR | os.O_CREAT | os.O_DIRECT | os.O_DSYNC | os.O_CLOEXEC, 0o600
            )
            try:
                with mmap.mmap(-1, BLOCK_BYTES) as block:
                    os.pwrite(descriptor, block, 0)
            finally:
                os.close(descriptor)
                probe.unlink()
        except OSError as error:
            if error.errno == errno.EINVAL:
                return False, kind
            # A full or failing disk shows itself where it matters; it says nothing about the way of writing.
            return True, kind
        return True, kind

    def make_directory(self, path: Path) -> None:
        # From the top, each synced before the next is made: a directory that is there has all its parents on the disk. Only
        # the name of the lowest may not be there: a process may have been killed between its making and its sync.
        missing = [each for each in (path, *path.parents) if not each.exists()]
        self._sync_name(missing[-1].parent if missing else path)
        for made in reversed(missing):
            made.mkdir(FOLDER_MODE, exist_ok=True)
            self._sync_name(made)

    def _sync_name(self, path: Path) -> None:
        with contextlib.suppress(PermissionError):
            self.sync_directory(path.parent)

    def names(self, directory: Path) -> list[str]:
        try:
            return sorted(os.listdir(directory))  # noqa: PTH208 - names only, of many files
        except FileNotFoundError:
            return []

    def exists(self, path: Path) -> bool:
        return path.exists()

    def stamp(self, path: Path) -> FileStamp:
        found = path.stat()
        return FileStamp(found.st_ino, found.st_ctime_ns)

    def read_whole(self, path: Path) -> bytes:
        return path.read_bytes()

    def write_whole(self, path: Path, data: bytes) -> None:
        temporary = path.with_name(path.name + ".tmp")
        descriptor = os.open(
            temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, file_mode(path.parent)
        )
        try:
            file = RealFile(descriptor)
            file.write_at(data, 0)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        temporary.rename(path)
        self.sync_directory(path.parent)

    def allocate(self, path: Path, size: int) -> None:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, file_mode(path.parent))
        try:
            os.posix_fallocate(descriptor, 0, size)
            os.fsync(descriptor)
        except OSError:
            os.close(descriptor)
            with contextlib.suppress(OSError):
                path.unlink()
            raise
        os.close(descriptor)
        self.sync_directory(path.parent)

    def open_to_read(self, path: Path, *, random: bool) -> RealFile:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        if random:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
        return RealFile(descriptor)

    def open_to_write(self, path: Path, *, direct: bool) -> RealFile:
        flags = os.O_RDWR | os.O_CLOEXEC
        if direct:
            flags |= os.O_DIRECT | os.O_DSYNC
        return RealFile(os.open(path, flags), direct=direct)

    def read_uncached(self, path: Path, offset: int, size: int) -> bytes:
        start = offset // BLOCK_BYTES * BLOCK_BYTES
        length = -(-(offset + size - start) // BLOCK_BYTES) * BLOCK_BYTES
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            self.forget_cached(path)
            file = self.open_to_read(path, random=True)
            try:
                return file.read_at(offset, size)
            finally:
                file.close()
        try:
            with mmap.mmap(-1, length) as buffer:
                got = os.preadv(descriptor, [buffer], start)
                return buffer[offset - start : min(got, offset - start + size)]
        finally:
            os.close(descriptor)

    def forget_cached(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)

    def rename(self, old: Path, new: Path) -> None:
        old.rename(new)

    def shrink(self, path: Path, size: int) -> None:
        if path.stat().st_size > size:
            os.truncate(path, size)

    def remove(self, path: Path) -> None:
        path.unlink()

    def sync_directory(self, directory: Path) -> None:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def lock(self, directory: Path) -> RealLock:
        return RealLock(directory)


@cache
def keep_freed_memory() -> None:
    """Let this process keep memory that it frees: a scan needs as much again at once, and fresh pages are dear.

    The C library raises its limits for giving memory back, from 128 KiB, to twice the largest block that was mapped and
    freed (glibc, `mallopt`, "M_MMAP_THRESHOLD"). The block's pages are never touched, so it costs nothing.
    """
    bytes(FREED_BYTES)


@cache
def _malloc_trim() -> Callable[[int], int] | None:
    """The C library's function; None where it has none."""
    function: Callable[[int], int] | None = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return function


def give_back_memory() -> None:
    """Give the system back what this process has freed. Not on the loop: it takes milliseconds where there is much."""
    trim = _malloc_trim()
    if trim is not None:
        trim(0)


def descriptors_max() -> int:
    """How many files and connections this process may have open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return DESCRIPTORS_MAX if soft == resource.RLIM_INFINITY else min(soft, DESCRIPTORS_MAX)


def raise_descriptors_max() -> int:
    """Let this process have as many files and connections open as the system allows it; returns how many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS_MAX if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS_MAX)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):  # a system may allow less than it says
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return descriptors_max()


def _file_system(directory: Path) -> str:
    """The name of the file system that holds a directory, from the mount table; "unknown" if it is not there."""
    device = directory.stat().st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    try:
        table = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "unknown"
    for line in table.splitlines():
        fields = line.split()
        if len(fields) > 2 and fields[2] == wanted and "-" in fields:
            return fields[fields.index("-") + 1]
    return "unknown"


class ThreadWorker:
    """One daemon thread. The loop is the one that runs when the first job is submitted."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[tuple[Callable[[], Any], Done] | None] = queue.SimpleQueue()
        self._finished: deque[tuple[Done, Any]] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._submitted = 0
        self._completed = 0
        self._idle = threading.Condition()

    def submit(self, job: Callable[[], Any], done: Done) -> None:
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="quire disk", daemon=True)
            thread.start()
            self._thread = thread
        if self._loop is None:
            try:
                self._loop = asyncio.get_running_loop()
            except RuntimeError:
                self._loop = None  # no loop: the caller will `finish`
        self._submitted += 1
        self._jobs.put((job, done))

    def finish(self) -> None:
        while True:
            with self._idle:
                self._idle.wait_for(lambda: self._completed == self._submitted)
            if not self._finished:
                return
            self._deliver()

    def close(self) -> None:
        self.finish()
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        while (work := self._jobs.get()) is not None:
            job, done = work
            result: Any
            try:
                result = job()
            except BaseException as error:  # noqa: BLE001 - handed to the submitter of the job
                result = error
            self._finished.append((done, result))
            with self._idle:
                self._completed += 1
                self._idle.notify_all()
            if self._loop is not None:
                with contextlib.suppress(RuntimeError):  # the loop was closed: `finish` delivers
                    self._loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        # What is finished meanwhile has a call of its own: each is one turn of the loop, and none holds it for long.
        for _ in range(len(self._finished)):
            done, result = self._finished.popleft()
            done(result)

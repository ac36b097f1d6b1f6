"""Records from a blocking source on their way into a writer: grouped, bounded, acknowledged, counted."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from quire.cli.records import GivenRecord, size_of
from quire.core.errors import WindowFullError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from quire.cli.output import ProgressLine

R = TypeVar("R", bytes, bytes | GivenRecord)
R_contra = TypeVar("R_contra", bytes, bytes | GivenRecord, contravariant=True)
GROUP_BYTES_MAX: Final = 4 * 1024 * 1024
"""The reading thread runs at most so far ahead of the writer."""


class Appender(Protocol[R_contra]):
    """What a ledger's and a log's writer have in common."""

    def append_nowait(self, record: R_contra, /) -> asyncio.Future[int]:
        """Start one append; the future gives its id or offset."""
        ...

    async def drain(self) -> None:
        """Wait until everything that was started is acknowledged."""
        ...


async def in_groups(
    records: Iterator[R], failed: asyncio.Future[BaseException] | None = None
) -> AsyncIterator[list[R]]:
    """What `records` gives, in lists: as much as there is whenever the consumer is ready, nothing held back.

    The iterator runs on a thread of its own, because a pipe may have nothing to say for hours. That thread may still wait
    for input when the process ends, so `records` must not hold what the interpreter closes then, as `sys.stdin` is.

    Args:
        records: what to group.
        failed: its result is raised at once when it comes, whatever the input does.
    """
    loop = asyncio.get_running_loop()
    wake = asyncio.Event()
    if failed is not None:
        failed.add_done_callback(lambda _: wake.set())
    ready: deque[R] = deque()
    changed = threading.Condition()
    size = 0
    ended = False
    stopped = False
    failure: BaseException | None = None

    def read() -> None:
        nonlocal size, ended, failure
        try:
            for record in records:
                with changed:
                    while size > GROUP_BYTES_MAX and not stopped:
                        changed.wait()
                    if stopped:
                        return
                    if not ready:
                        loop.call_soon_threadsafe(wake.set)
                    ready.append(record)
                    size += size_of(record) + 64
        except BaseException as error:  # noqa: BLE001 -- raised again where the records are used
            failure = error
        ended = True
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(wake.set)

    threading.Thread(target=read, name="quire input", daemon=True).start()
    try:
        while True:
            await wake.wait()
            wake.clear()
            if failed is not None and failed.done():
                raise failed.result()
            over = ended
            with changed:
                group = list(ready)
                ready.clear()
                size = 0
                changed.notify()
            if group:
                yield group
            if over:
                break
    finally:
        with changed:
            stopped = True
            changed.notify()
    if failure is not None:
        raise failure


async def append_all(
    writer: Appender[R], records: Iterator[R], progress: ProgressLine
) -> tuple[int, int, int]:
    """Append every record and wait until all of them are acknowledged.

    Args:
        writer: where to; it stays open.
        records: read on another thread.
        progress: counts what has been acknowledged.

    Returns:
        How many records, how many bytes, and the last id or offset (-1 without records).

    Raises:
        QuireError: an append failed; it is raised without waiting for the input.
    """
    count = size = 0
    last: asyncio.Future[int] | None = None
    failed: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
    async for group in in_groups(records, failed):
        for record in group:
            while True:
                try:
                    last = writer.append_nowait(record)
                    break
                except WindowFullError:
                    await writer.drain()
        if last is not None:
            group_size = sum(map(size_of, group))
            last.add_done_callback(_Counted(progress, len(group), group_size, failed))
            count += len(group)
            size += group_size
    await writer.drain()
    return count, size, await last if last is not None else -1


class _Counted:
    """Advances a progress when a group's last append is acknowledged, and tells when it failed."""

    def __init__(
        self, progress: ProgressLine, count: int, size: int, failed: asyncio.Future[BaseException]
    ) -> None:
        self.progress, self.count, self.size, self.failed = progress, count, size, failed

    def __call__(self, future: asyncio.Future[int]) -> None:
        if future.cancelled():
            return
        error = future.exception()
        if error is None:
            self.progress.advance(self.count, self.size)
        elif not self.failed.done():
            self.failed.set_result(error)

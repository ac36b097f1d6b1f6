"""`append_nowait` from other threads than the loop's."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import functools
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Final

from quire.blocking.loop import CallRunner
from quire.client.leaving import finished
from quire.core.errors import QuireError, WindowFullError

SUBMIT_BYTES_MAX: Final = 16 * 1024 * 1024
"""`append_nowait` waits while the loop has at least this many bytes to take."""
OVERHEAD: Final = 200
"""What one pending append costs besides its payload."""


class Submissions:
    """`append_nowait` from other threads: many calls cross to the loop together, and wait when it lags behind.

    Args:
        append_nowait: the writer's own, which raises WindowFullError when its window is full.
        drain: the writer's own.
        background: the loop.
    """

    def __init__(
        self,
        append_nowait: Callable[..., asyncio.Future[int]],
        drain: Callable[[], Awaitable[None]],
        background: CallRunner,
    ) -> None:
        self._append_nowait = append_nowait
        self._drain = drain
        self._background = background
        self._lock = threading.Lock()
        self._pending: deque[_Submission] = deque()
        self._pending_bytes = 0
        self._submitted = 0
        self._begun = 0
        self._due = False
        self._slow: asyncio.Task[None] | None = None

    def submit(
        self, size: int, args: tuple[Any, ...], options: dict[str, Any]
    ) -> concurrent.futures.Future[int]:
        """Hand one append over; waits while more than `SUBMIT_BYTES_MAX` have not been taken."""
        self._background.check()
        future: concurrent.futures.Future[int] = concurrent.futures.Future()
        future.set_running_or_notify_cancel()
        with self._lock:
            self._pending.append((size, args, options, future))
            self._pending_bytes += size + OVERHEAD
            self._submitted += 1
            wake, self._due = not self._due, True
            full = self._pending_bytes > SUBMIT_BYTES_MAX
        if wake:
            self._background.loop.call_soon_threadsafe(self._take)
        if full:
            self._background.run(self.taken)
        return future

    async def taken(self) -> None:
        """Wait until the writer has everything that was submitted before this call."""
        submitted = self._submitted
        while self._begun < submitted or (self._begun == submitted and self._slow is not None):
            if self._slow is None:
                self._take()
            else:
                await asyncio.wait([self._slow])

    async def taken_within(self, bound_ms: int) -> int:
        """As `taken`, within a bound; returns how many appends the writer has not taken."""
        await finished(self.taken(), bound_ms)
        return len(self._pending) + (self._slow is not None)

    def _next(self) -> _Submission | None:
        with self._lock:
            if not self._pending:
                self._due = False
                return None
            submission = self._pending.popleft()
            self._begun += 1
            self._pending_bytes -= submission[0] + OVERHEAD
            return submission

    def _take(self) -> None:
        """On the loop: give the writer what is pending, until its window is full."""
        while self._slow is None and (submission := self._next()) is not None:
            if not self._started(submission):
                self._slow = asyncio.get_running_loop().create_task(self._take_slowly(submission))

    async def _take_slowly(self, submission: _Submission) -> None:
        """The window is full: wait for room, then go on."""
        try:
            while not self._started(submission):
                # What `drain` has to complain about, each of the waiting appends will say too.
                with contextlib.suppress(QuireError):
                    await self._drain()
        finally:
            self._slow = None
        self._take()

    def _started(self, submission: _Submission) -> bool:
        """Start one append; False when there is no room."""
        _, args, options, future = submission
        try:
            inner = self._append_nowait(*args, **options)
        except WindowFullError:
            return False
        except Exception as error:  # noqa: BLE001 - it belongs to the caller, who holds the future
            future.set_exception(error)
            return True
        inner.add_done_callback(functools.partial(_pass_on, future))
        return True


_Submission = tuple[int, tuple[Any, ...], dict[str, Any], concurrent.futures.Future[int]]


def _pass_on(future: concurrent.futures.Future[int], inner: asyncio.Future[int]) -> None:
    """Complete the caller's future as the loop's was."""
    if inner.cancelled():
        future.set_exception(concurrent.futures.CancelledError())
    elif (error := inner.exception()) is not None:
        future.set_exception(error)
    else:
        future.set_result(inner.result())

"""Asynchronous iterators of the background loop as ordinary ones that fetch ahead."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import os
import queue
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable
from types import TracebackType
from typing import Any, Final, Generic, Self, TypeVar, cast

from quire.blocking.loop import CallRunner, in_blocking_words
from quire.core.errors import MisuseError
from quire.env.home import not_pickled

T = TypeVar("T")

PREFETCH_BYTES_MAX: Final = 8 * 1024 * 1024
"""An iterator fetches at most so much ahead of its consumer."""
CHUNK_ITEMS_MAX: Final = 512
"""Most items in a group that crosses from the loop to the consumer."""
CLOSED: Final = (
    "the client was closed while this iterator was read; connect again, and read on from the last item"
)
ITEM_OVERHEAD: Final = 200
"""What one item costs besides its bytes."""


def _weigh(item: object) -> int:
    """About how much memory an item holds."""
    size = ITEM_OVERHEAD
    for name in ("payload", "key", "value"):
        data = getattr(item, name, None)
        if isinstance(data, bytes | memoryview):
            size += len(data)
    header = getattr(getattr(item, "view", None), "header", None)
    if header is not None:
        size += header.body_bytes
    return size


class _End:
    """The last thing that the loop hands over: why there is no more, raised in each thread that asks."""

    __slots__ = ("reason",)

    def __init__(self, reason: Exception | type[StopIteration] = StopIteration) -> None:
        self.reason = reason


class Prefetch(Generic[T]):
    """An iterator over an asynchronous iterator of the background loop, which runs ahead of it.

    Threads may share it: each item goes to one of them, and its end, or the error that ended it, to all.
    `close` (or leaving a `with` block, or losing the last reference) ends the work behind it early.
    """

    __reduce__ = not_pickled

    def __init__(self, source: Callable[[], AsyncIterator[T]], background: CallRunner) -> None:
        self._background = background
        self._pump = _Pump(source)
        self._chunk: deque[Any] = deque()
        self._task: concurrent.futures.Future[None] | None = None
        # Held by the one thread that waits for the next chunk.
        self._waiting = threading.Lock()
        # Why no item comes after those of the chunk.
        self._over: Exception | type[StopIteration] | None = None

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        chunk = self._chunk
        while True:
            if not chunk:
                self._await_chunk()
            try:
                item = chunk.popleft()
            except IndexError:  # another thread took the last one
                continue
            if self._pump.consumed(_weigh(item)):
                self._background.loop.call_soon_threadsafe(self._pump.go_on)
            return cast("T", item)

    def _await_chunk(self) -> None:
        """Return when there is something to take; one thread waits for the loop, the others for that thread."""
        self._background.check()
        with self._waiting:
            if not self._chunk and self._over is None:
                if self._task is None:
                    self._task = asyncio.run_coroutine_threadsafe(self._pump.run(), self._background.loop)
                self._take(self._pump.ready.get())
            if not self._chunk and self._over is not None:
                raise self._over

    def _take(self, chunk: list[Any]) -> None:
        if self._over is not None:
            return  # closed meanwhile
        if chunk and isinstance(chunk[-1], _End):
            self._over = chunk.pop().reason
            if isinstance(self._over, Exception):
                in_blocking_words(self._over)
        self._chunk.extend(chunk)

    def close(self) -> None:
        """Stop fetching; the iterator is at its end, also for threads that wait for its next item."""
        self._over = self._over or StopIteration
        self._chunk.clear()
        self._pump.ready.put([])
        if self._task is not None and self._background.pid == os.getpid() and not self._task.done():
            self._task.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self.close()


class _Pump:
    """The side of the loop. It does not know the iterator, so that losing the iterator can end it."""

    def __init__(self, source: Callable[[], AsyncIterator[Any]]) -> None:
        self.ready: queue.SimpleQueue[list[Any]] = queue.SimpleQueue()
        self._source = source
        self._filling: list[Any] = []
        # Each is written by one side only and compared by both.
        self._produced_bytes = 0
        self._consumed_bytes = 0
        self._starved = False
        self._room = asyncio.Event()

    def consumed(self, size: int) -> bool:
        """The consumer took an item; True when the loop waits for room and there is some again."""
        self._consumed_bytes += size
        if not self._starved or self._ahead >= PREFETCH_BYTES_MAX // 2:
            return False
        self._starved = False
        return True

    def go_on(self) -> None:
        """There is room again (on the loop)."""
        self._room.set()

    @property
    def _ahead(self) -> int:
        return self._produced_bytes - self._consumed_bytes

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        source = self._source()
        try:
            async for item in source:
                if not self._filling:
                    # Runs when the source has nothing more at hand: a full chunk is not awaited.
                    loop.call_soon(self._hand_over)
                self._filling.append(item)
                self._produced_bytes += _weigh(item)
                if len(self._filling) >= CHUNK_ITEMS_MAX:
                    self._hand_over()
                while self._ahead > PREFETCH_BYTES_MAX:
                    self._hand_over()
                    self._room.clear()
                    self._starved = True
                    # What was consumed before this line was not announced: look again before waiting.
                    if self._ahead > PREFETCH_BYTES_MAX // 2:
                        await self._room.wait()
            self._filling.append(_End())
        except asyncio.CancelledError:
            # An iterator that was closed itself does not look at it.
            self._filling.append(_End(MisuseError(CLOSED)))
            raise
        except Exception as error:  # noqa: BLE001 - it is raised again where the items are used
            self._filling.append(_End(error))
        finally:
            close = getattr(source, "aclose", None)
            if close is not None:
                with contextlib.suppress(Exception):
                    await close()
            self._hand_over()

    def _hand_over(self) -> None:
        if self._filling:
            self.ready.put(self._filling)
            self._filling = []

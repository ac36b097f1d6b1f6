"""One event loop on one background thread for each process, started at its first use and anew after a fork.

Must not know what runs on it.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import os
import threading
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, ParamSpec, Protocol, TypeVar, cast

from quire.core.errors import MisuseError, QuireError

P = ParamSpec("P")
T = TypeVar("T")

CANCEL_SECONDS: Final = 5.0
"""How long an interrupted call may take to end."""


END_SECONDS: Final = 60.0
"""How long clients that were not closed may take to end at the end of the process; they have shorter bounds themselves."""


class CallRunner(Protocol):
    """Where handles have their calls run: the loop, or a client's session on it."""

    @property
    def pid(self) -> int:
        """The process that it belongs to."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop."""

    def check(self) -> None:
        """Refuse a call that could never be answered."""

    def run(self, function: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call `function` on the loop and wait for what it awaits."""


class Closeable(Protocol):
    """What is to be closed before the loop ends."""

    async def close(self) -> None:
        """Close it; again is allowed."""


class Background:
    """One event loop on one daemon thread of this process.

    Attributes:
        pid: the process.
        loop: the loop.
        thread: its thread.
        stopped: nothing runs there any more.
        sessions: what is closed before the loop ends, as long as it is there.
    """

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.stopped = False
        self.sessions: weakref.WeakSet[Closeable] = weakref.WeakSet()
        self._started: dict[asyncio.Task[None], None] = {}
        self.loop = _new_loop()
        self.thread = threading.Thread(target=self._serve, name="quire.blocking", daemon=True)
        self.thread.start()

    def _serve(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def check(self) -> None:
        """Refuse a call that could never be answered.

        Raises:
            MisuseError: after a fork, or from inside the loop.
        """
        if os.getpid() != self.pid:
            msg = (
                f"This handle was opened by process {self.pid}; after a fork, connect again in the "
                "child process."
            )
            raise MisuseError(msg)
        if threading.current_thread() is self.thread:
            msg = "quire.blocking cannot be called from its own event loop; use quire.connect there."
            raise MisuseError(msg)

    def run(self, function: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call `function` on the loop and wait for what it awaits; Ctrl-C cancels it."""
        self.check()

        async def call() -> T:
            return await function(*args, **kwargs)

        future = None
        try:
            future = asyncio.run_coroutine_threadsafe(call(), self.loop)
            return future.result()
        except BaseException as error:
            in_blocking_words(error)
            if future is not None and not future.done():
                # Interrupted while waiting: let the work end before the caller goes on.
                future.cancel()
                concurrent.futures.wait([future], timeout=CANCEL_SECONDS)
            raise

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Have the loop do something that no caller waits for; it is awaited before the loop ends. From any thread."""

        def begin() -> None:
            task = self.loop.create_task(work)
            self._started[task] = None
            task.add_done_callback(self._started.pop)

        self.loop.call_soon_threadsafe(begin)

    def stop(self) -> None:
        """End the thread; clients that were not closed are closed first."""
        try:
            self.run(self._end)
        finally:
            self.stopped = True
            self.loop.call_soon_threadsafe(self.loop.stop)
            self.thread.join(CANCEL_SECONDS)

    async def _end(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(END_SECONDS):
                closing = [session.close() for session in self.sessions]
                await asyncio.gather(*closing, *self._started, return_exceptions=True)
                # As `asyncio.run` ends: other clients of this loop close themselves then.
                rest = asyncio.all_tasks() - {asyncio.current_task()}
                for task in rest:
                    task.cancel()
                await asyncio.gather(*rest, return_exceptions=True)


def in_blocking_words(error: BaseException) -> None:
    """What an error advises to call is called without `await` here."""
    if isinstance(error, QuireError):
        error.reword(error.message.replace("`await ", "`"))


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return cast("asyncio.AbstractEventLoop", uvloop.new_event_loop())


_lock = threading.Lock()
_background: Background | None = None


def current() -> Background:
    """This process's background loop, started at the first call."""
    global _background
    with _lock:
        if _background is None or _background.pid != os.getpid():
            _background = Background()
        return _background


def _after_fork() -> None:
    """In a forked child: the parent's thread does not exist here, and its lock may be held for ever."""
    global _background, _lock
    _background = None
    _lock = threading.Lock()


def _at_exit() -> None:
    if _background is not None and _background.pid == os.getpid():
        _background.stop()


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)

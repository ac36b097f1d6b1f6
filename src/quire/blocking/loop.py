"""One event loop on one background thread for each process, started at its first use and anew after a fork.

Must not know what runs on it.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import os
import threading
from collections.abc import Awaitable, Callable
from typing import Final, ParamSpec, TypeVar, cast

from quire.core.errors import MisuseError, QuireError

P = ParamSpec("P")
T = TypeVar("T")

CANCEL_SECONDS: Final = 5.0
"""How long an interrupted call may take to end."""


class Background:
    """One event loop on one daemon thread of this process."""

    def __init__(self) -> None:
        self.pid = os.getpid()
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

    def stop(self) -> None:
        """End the thread."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(CANCEL_SECONDS)


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

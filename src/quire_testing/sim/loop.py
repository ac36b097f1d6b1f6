"""Virtual time: one timeline for a whole world, and on it an event loop of its own for each simulated process.

Time stands still while code runs and jumps to the next event afterwards. Whatever a process schedules is its own: a
crash forgets it, a pause keeps it until the process goes on. Nothing here knows of bookies, networks or disks.

Source: docs/simulation.md, "The world".
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import warnings
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from typing import Any

from quire.core.errors import QuireError

Callback = Callable[..., object]
Work = Coroutine[Any, Any, Any] | Generator[Any, None, Any]

MS = 1_000_000
"""Nanoseconds of a millisecond."""
SECOND = 1_000 * MS
_set_running_loop = asyncio._set_running_loop  # noqa: SLF001 - how an event loop says that it runs


class ProcessKilled(BaseException):
    """Thrown into a process that ends in the middle of something; nothing that it does afterwards has any effect."""


class Timeline:
    """All that will happen, in order. What happens at the same moment happens in the order in which it was planned.

    Attributes:
        now_ns: the time.
        events: how many have happened.
        problems: uncaught exceptions, with their process.
    """

    __slots__ = ("_queue", "_sequence", "events", "now_ns", "problems")

    def __init__(self) -> None:
        self.now_ns = SECOND
        self.events = 0
        self.problems: list[str] = []
        self._queue: list[tuple[int, int, Callback, tuple[Any, ...]]] = []
        self._sequence = 0

    def at(self, when_ns: int, action: Callback, *args: Any) -> None:
        """Plan something; a time that has passed is now."""
        self._sequence = number = self._sequence + 1
        heapq.heappush(self._queue, (max(when_ns, self.now_ns), number, action, args))

    def after(self, delay_ns: int, action: Callback, *args: Any) -> None:
        """Plan something for later."""
        self._sequence = number = self._sequence + 1
        heapq.heappush(self._queue, (self.now_ns + delay_ns, number, action, args))

    def run(self, done: Callable[[], bool], *, until_ns: int, events_max: int) -> bool:
        """Let things happen until `done`, the end of time, or this many events.

        Returns:
            Whether `done`.
        """
        queue, pop = self._queue, heapq.heappop
        last = self.events + events_max
        while not done():
            if not queue or self.events >= last or queue[0][0] > until_ns:
                return False
            when, _, action, args = pop(queue)
            self.now_ns = when
            self.events += 1
            action(*args)
        return True


class SimHandle:
    """Something that a process has scheduled."""

    __slots__ = ("_when", "args", "callback")

    def __init__(self, callback: Callback | None, args: tuple[Any, ...], when: float = 0.0) -> None:
        self.callback = callback
        self.args = args
        self._when = when

    def cancel(self) -> None:
        """Forget it."""
        self.callback = None
        self.args = ()

    def cancelled(self) -> bool:
        """Whether it was forgotten."""
        return self.callback is None

    def when(self) -> float:
        """Loop time of a timer."""
        return self._when


class ProcessLoop(asyncio.AbstractEventLoop):
    """The event loop of one simulated process: its ready queue, its timers, its life.

    Args:
        timeline: the world's.
        name: of the process, for transcripts.
        turn_ns: how long a loop turn takes to begin after something became ready.

    Attributes:
        alive: until it is killed.
        paused: stopped as by SIGSTOP.
        network: where `create_server` and `create_connection` go.
        on_kill: called when the process ends.
        watch_delay_ns: how late the metadata store's news comes.
    """

    def __init__(self, timeline: Timeline, name: str, turn_ns: int = 1000) -> None:
        self.timeline = timeline
        self.name = name
        self.turn_ns = turn_ns
        self.alive = True
        self.paused = False
        self.network: Any = None
        self.on_kill: Callable[[], None] | None = None
        self.watch_delay_ns: Callable[[], int] = lambda: 0
        self._ready: deque[SimHandle] = deque()
        self._scheduled = False
        # Every task until the end of the world: nothing is collected, and so nothing runs, at a moment of its own.
        self._tasks: list[asyncio.Task[Any]] = []

    # --- life ----------------------------------------------------------------------------------------------------

    def kill(self) -> None:
        """The process ends: nothing that it scheduled happens any more."""
        was_alive, self.alive = self.alive, False
        self._ready.clear()  # responses of this turn never reach it: no finding
        if was_alive and self.on_kill is not None:
            self.on_kill()

    def pause(self) -> None:
        """Stand still; what comes meanwhile waits."""
        self.paused = True

    def resume(self) -> None:
        """Go on, late."""
        self.paused = False
        self._schedule()

    def bury(self) -> None:
        """Close the coroutines that a killed process, or an ended world, has left. Their clean-up has no effect."""
        for task in self._tasks:
            # An error of the protocol that was not awaited is none; anything else is a defect of a program.
            unread = self.alive and task.done() and task._log_traceback  # noqa: SLF001 - asking marks it as read
            if unread and not isinstance(task.exception(), QuireError):
                self._problem(f"nothing awaits {task.exception()!r} of {task.get_name()}")
        self.kill()
        _set_running_loop(
            self
        )  # what a clean-up makes belongs to this loop, not to one that asyncio makes for it
        try:
            for task in self._tasks:
                if task.done():
                    task._log_traceback = False  # noqa: SLF001
                else:
                    task._log_destroy_pending = False  # type: ignore[attr-defined]  # noqa: SLF001
                    _close(task.get_coro())
        finally:
            _set_running_loop(None)
        with warnings.catch_warnings():  # a task that had no first step never awaited what it was to await
            warnings.simplefilter("ignore", RuntimeWarning)
            self._tasks.clear()

    def spawn(self, work: Work, name: str = "") -> asyncio.Task[Any]:
        """Start a coroutine in this process, from outside."""
        return self.create_task(work, name=name)

    # --- turns ---------------------------------------------------------------------------------------------------

    def _schedule(self) -> None:
        if self._ready and not self._scheduled and self.alive and not self.paused:
            self._scheduled = True
            self.timeline.after(self.turn_ns, self._turn)

    def _turn(self) -> None:
        """One loop turn: everything that is ready now; what that makes ready comes in the next."""
        self._scheduled = False
        if self.paused or not self.alive:
            return
        ready = self._ready
        _set_running_loop(self)
        try:
            for _ in range(len(ready)):
                handle = ready.popleft()
                callback = handle.callback
                if callback is None:
                    continue
                try:
                    callback(*handle.args)
                except Exception as error:  # noqa: BLE001 - as a loop does: it is reported, and the loop goes on
                    self._problem(f"{error!r} in {callback!r}")
                if self.is_closed():
                    break
        except ProcessKilled:
            self.kill()
        finally:
            _set_running_loop(None)
        self._schedule()

    def _problem(self, what: str) -> None:
        if self.alive:
            self.timeline.problems.append(f"{self.name}: {what}")

    # --- asyncio -------------------------------------------------------------------------------------------------

    def time(self) -> float:
        """Seconds."""
        return self.timeline.now_ns / SECOND

    def call_soon(  # type: ignore[override]
        self, callback: Callback, *args: Any, context: contextvars.Context | None = None
    ) -> SimHandle:
        """In the next turn. Contexts are not kept: no program here has context variables."""
        handle = SimHandle(callback, args)
        if self.alive:
            self._ready.append(handle)
            if not self._scheduled and not self.paused:
                self._scheduled = True
                self.timeline.after(self.turn_ns, self._turn)
        return handle

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callback, *args: Any, context: contextvars.Context | None = None
    ) -> SimHandle:
        """From another process: only the metadata store does that, and its news takes its time."""
        handle = SimHandle(callback, args)
        self.timeline.after(self.watch_delay_ns(), self._now, handle)
        return handle

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callback, *args: Any, context: contextvars.Context | None = None
    ) -> SimHandle:
        """After this many seconds."""
        return self.call_at(self.time() + delay, callback, *args)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callback, *args: Any, context: contextvars.Context | None = None
    ) -> SimHandle:
        """At a loop time."""
        handle = SimHandle(callback, args, when)
        if self.alive:
            self.timeline.at(round(when * SECOND), self._now, handle)
        return handle

    def deliver(self, callback: Callback, *args: Any) -> None:
        """Something from outside: it is ready now."""
        self.call_soon(callback, *args)

    def _now(self, handle: SimHandle) -> None:
        if handle.callback is not None and self.alive:
            self._ready.append(handle)
            self._schedule()

    def create_future(self) -> asyncio.Future[Any]:
        """A future of this process."""
        return asyncio.Future(loop=self)

    def create_task(
        self, coro: Work, *, name: object = None, context: contextvars.Context | None = None
    ) -> asyncio.Task[Any]:
        """A task of this process."""
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self, name=str(name) if name else "task")
        self._tasks.append(task)
        return task

    async def create_connection(
        self, protocol_factory: Any, host: Any = None, port: Any = None, **_: Any
    ) -> Any:
        """A connection through the simulated network."""
        return await self.network.connect(self, protocol_factory, host, port)

    async def create_server(
        self, protocol_factory: Any, host: Any = None, port: Any = None, **how: Any
    ) -> Any:
        """A listener in the simulated network."""
        server = self.network.listen(self, protocol_factory, host, port)
        server.serving = how.get("start_serving", True)
        return server

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """An uncaught exception is kept; it is a finding."""
        self._problem(f"{context.get('message')}: {context.get('exception')!r}")

    def get_debug(self) -> bool:
        """Never."""
        return False

    def is_running(self) -> bool:
        """Required by asyncio."""
        return self.alive

    def is_closed(self) -> bool:
        """Whether nothing can happen here any more."""
        return not self.alive


def _close(coroutine: Any) -> None:
    """Close a coroutine although its clean-up may want to wait: it does not wait."""
    for _ in range(20):
        try:
            coroutine.close()
        except BaseException:  # noqa: BLE001, S112 - whatever it raises now is ignored
            continue
        return

"""What a replay runs on: an asyncio loop whose time stands still, or (`simulated.py`) the simulator's loops.

Between two steps of a schedule everything that is ready is run, and no timer: time moves only when a step says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol


class ScriptedNetwork(Protocol):
    """Where connections are made: by a network that stands above."""

    async def connect(self, loop: Any, factory: Callable[[], Any], host: str, port: int) -> Any:
        """A connection of a program on this loop."""


class Stage(Protocol):
    """The loops of a replay."""

    def loop_of(self, name: str) -> asyncio.AbstractEventLoop:
        """The loop that a program runs on."""

    def settle(self) -> None:
        """Run until nothing is ready."""

    def advance(self, ms: int) -> None:
        """Let time pass, and what it makes ready happen."""

    def close(self) -> None:
        """Everything has been seen."""


class StillLoop(asyncio.SelectorEventLoop):
    """asyncio's own loop: real tasks, futures and timers, but time stands still and connections are scripted."""

    def __init__(self, network: ScriptedNetwork) -> None:
        self._now = 1000.0
        super().__init__()
        self._network = network
        self.problems: list[str] = []
        self.set_exception_handler(self._problem)

    def time(self) -> float:
        """Seconds, moved by `advance` only."""
        return self._now

    async def create_connection(  # type: ignore[override]
        self, protocol_factory: Callable[[], Any], host: str, port: int, **_: Any
    ) -> Any:
        """A connection through the scripted network."""
        return await self._network.connect(self, protocol_factory, host, port)

    def settle(self) -> None:
        """Run until nothing is ready."""
        while self._ready:  # type: ignore[attr-defined]
            self.call_soon(self.stop)
            self.run_forever()

    def advance(self, ms: int) -> None:
        """Let time pass."""
        self._now += ms / 1000
        self.call_soon(_nothing)
        self.settle()

    def _problem(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.problems.append(f"{context.get('message')}: {context.get('exception')!r}")


class AsyncioStage:
    """All programs on one asyncio loop."""

    def __init__(self, network: ScriptedNetwork) -> None:
        self._loop = StillLoop(network)

    def loop_of(self, name: str) -> asyncio.AbstractEventLoop:  # noqa: ARG002 - one for all
        """The one loop."""
        return self._loop

    def settle(self) -> None:
        """Run until nothing is ready."""
        self._loop.settle()

    def advance(self, ms: int) -> None:
        """Let time pass."""
        self._loop.advance(ms)

    def close(self) -> None:
        """Cancel what still waits."""
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.settle()
        self._loop.close()


def perform(stage: Stage, loop: asyncio.AbstractEventLoop, act: Callable[[], Any]) -> Any:
    """Do something on a loop, and let everything settle.

    Returns:
        What it returned.
    """
    done: list[Any] = []

    def run() -> None:
        try:
            done.append((act(), None))
        except Exception as error:  # noqa: BLE001 - handed on to the caller
            done.append((None, error))

    loop.call_soon(run)
    stage.settle()
    value, error = done[0]
    if error is not None:
        raise error
    return value


def _nothing() -> None:
    """Makes a loop look at its timers."""

"""One client on the background loop, and what its blocking handles share: it is closed with the last of them at latest.

Source: docs/protocol/closing.md, "Leaving a client".
"""

from __future__ import annotations

import asyncio
import os
import warnings
from collections.abc import Awaitable, Callable
from typing import ParamSpec, TypeVar
from weakref import WeakSet

from quire.blocking.loop import Background
from quire.blocking.submissions import Submissions
from quire.client.client import Client
from quire.client.leaving import CLOSED, warn

P = ParamSpec("P")
T = TypeVar("T")


class Session:
    """A client that blocking handles use; each of them has this in place of the loop, and so keeps it alive.

    Args:
        client: it.
        background: the loop that it lives on.
    """

    def __init__(self, client: Client, background: Background) -> None:
        self._client, self._background = client, background
        self._submissions: WeakSet[Submissions] = WeakSet()
        background.sessions.add(self)

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop."""
        return self._background.loop

    @property
    def pid(self) -> int:
        """The process that opened it."""
        return self._background.pid

    def check(self) -> None:
        """Refuse a call that could never be answered; as `Background.check`."""
        self._background.check()

    def run(self, function: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call `function` on the loop and wait for what it awaits; as `Background.run`."""
        return self._background.run(function, *args, **kwargs)

    def submits(self, submissions: Submissions) -> None:
        """A writer's submissions, which go before the client is closed."""
        self._submissions.add(submissions)

    async def close(self) -> None:
        """Hand over what was submitted, within a bound, and close the client. Again is allowed."""
        await _close(self._client, list(self._submissions))

    def __del__(self) -> None:
        background = self._background
        if os.getpid() != background.pid or background.stopped or self._client.closed:
            return
        background.start(_close(self._client, list(self._submissions)))
        what = "a blocking client and its handles were dropped without `close`; it is closed now"
        warnings.warn(what, ResourceWarning, source=self, stacklevel=2)


async def _close(client: Client, submissions: list[Submissions]) -> None:
    waiting = 0
    try:
        waiting = sum(
            await asyncio.gather(*(each.taken_within(client.config.leave_ms) for each in submissions))
        )
    finally:
        await client.close()
        warn({"those that waited for room": waiting}, CLOSED)

"""What a command says while it waits for bookies: for which, why, and what ends the wait."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Final

from quire.core.errors import QuireError

if TYPE_CHECKING:
    from quire.cli.console.output import Output
    from quire.core.ids import BookieId

PAUSE_S: Final = 1.0
"""A wait that is shorter is not spoken of."""


class StuckAppends:
    """The bookies that a writer waits for, where nothing was confirmed since the last look.

    Args:
        confirmed: how many entries or records are confirmed.
        waits_for: the bookies that lack acknowledgements of what is not.
    """

    def __init__(self, confirmed: Callable[[], int], waits_for: Callable[[], Iterable[BookieId]]) -> None:
        self._confirmed, self._waits_for = confirmed, waits_for
        self._before = -1

    async def __call__(self) -> Mapping[BookieId, str]:
        """Look now."""
        before, self._before = self._before, self._confirmed()
        if before != self._before:
            return {}
        return dict.fromkeys(self._waits_for(), "it has not acknowledged the oldest entries")


@asynccontextmanager
async def telling_who_is_awaited(
    out: Output, what: str, awaited: Callable[[], Awaitable[Mapping[BookieId, str]]]
) -> AsyncIterator[None]:
    """While the block runs, say on stderr which bookies it waits for, each time that these are others.

    Args:
        out: where it is said.
        what: who waits, as the sentence begins: "stream orders".
        awaited: the bookies that are waited for now, and why; empty where none is.
    """

    async def tell() -> None:
        said: Mapping[BookieId, str] = {}
        while True:
            await asyncio.sleep(PAUSE_S)
            with suppress(QuireError):  # what is wrong is for the command itself to say
                now = await awaited()
                if now and now != said:
                    names = ", ".join(f"{bookie} ({why})" for bookie, why in now.items())
                    out.note(
                        f"{what} waits for {names}. It goes on when these respond again, or when other bookies are there."
                    )
                said = now

    telling = asyncio.get_running_loop().create_task(tell(), name="awaited bookies")
    try:
        yield
    finally:
        telling.cancel()
        with suppress(asyncio.CancelledError):
            await telling

"""What a command says while it waits for bookies: for which, why, and what ends the wait."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from quire.cli.console.output import Output
    from quire.core.ids import BookieId

PAUSE_S: Final = 1.0
"""A wait that is shorter is not spoken of."""


@asynccontextmanager
async def telling_who_is_awaited(
    out: Output, what: str, confirmed: Callable[[], int], waits_for: Callable[[], Iterable[BookieId]]
) -> AsyncIterator[None]:
    """While the block runs and nothing is confirmed, say on stderr which bookies are waited for, each time that these are others.

    Args:
        out: where it is said.
        what: who waits, as the sentence begins: "log orders".
        confirmed: how many entries or records are confirmed.
        waits_for: the bookies that lack acknowledgements of what is not.
    """

    async def tell() -> None:
        before = -1
        said: tuple[BookieId, ...] = ()
        while True:
            await asyncio.sleep(PAUSE_S)
            now = tuple(waits_for()) if confirmed() == before else ()
            before = confirmed()
            if now and now != said:
                names = ", ".join(f"{bookie} (it has not acknowledged the oldest entries)" for bookie in now)
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

"""Work of the disk that comes in slices, done between other callbacks of the bookie's loop.

Source: docs/protocol/collection.md, "A pass".
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Sequence
from typing import Final, TypeVar

Result = TypeVar("Result")

NOTHING_SECONDS: Final = 20e-6
WAIT_SECONDS: Final = 0.001
"""A slice that took less than the one waits for something, and is tried again after the other."""
REST_SECONDS_MAX: Final = 0.1
"""A slice that took long was interrupted by another process that needs the core, and says little of its work."""

SLICE: Final = 256
"""So many ledgers are looked at in one turn of the loop."""


def rest_after(took: float, times: float) -> float:
    """How many seconds to rest so many times as long as something took."""
    return min(times * took, REST_SECONDS_MAX)


async def take_slices(
    slices: Generator[None, None, Result],
    before_each: Callable[[], None] = lambda: None,
    *,
    rest: Callable[[], float] | None = None,
) -> Result:
    """Take all slices of some work, with a turn of the loop after each.

    Args:
        slices: the work.
        before_each: called before each slice.
        rest: how many times as long as a slice took it rests then; None: only let others have their turn.

    Returns:
        What the work returns.
    """
    loop = asyncio.get_running_loop()
    while True:
        before_each()
        begun = loop.time()
        try:
            next(slices)
        except StopIteration as end:
            result: Result = end.value
            return result
        took = loop.time() - begun
        if rest is None:
            await asyncio.sleep(0)
        elif took < NOTHING_SECONDS:
            await asyncio.sleep(WAIT_SECONDS)
        else:
            await asyncio.sleep(rest_after(took, rest()))


def settle(done: asyncio.Future[None], outcome: object) -> None:
    """End a wait, with the error if the outcome is one."""
    if done.done():
        return
    if isinstance(outcome, BaseException):
        done.set_exception(outcome)
    else:
        done.set_result(None)


async def turn_for_others(ledger_ids: Sequence[int]) -> None:
    """Let others have their turn where what was done with so many ledgers, or comes, is long."""
    if len(ledger_ids) >= SLICE:
        await asyncio.sleep(0)

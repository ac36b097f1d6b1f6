"""Work of the disk that comes in slices, done between other callbacks of the bookie's loop.

Source: docs/protocol/collection.md, "A pass".
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Sequence
from typing import Final, TypeVar

Result = TypeVar("Result")

SLICE: Final = 256
"""So many ledgers are looked at in one turn of the loop."""


async def take_slices(
    slices: Generator[None, None, Result], before_each: Callable[[], None] = lambda: None
) -> Result:
    """Take all slices of some work, with a turn of the loop behind each.

    Args:
        slices: the work.
        before_each: called before each slice.

    Returns:
        What the work returns.
    """
    while True:
        before_each()
        try:
            next(slices)
        except StopIteration as end:
            result: Result = end.value
            return result
        await asyncio.sleep(0)


async def turn_for_others(ledger_ids: Sequence[int]) -> None:
    """Let others have their turn where what was done with so many ledgers, or comes, is long."""
    if len(ledger_ids) >= SLICE:
        await asyncio.sleep(0)

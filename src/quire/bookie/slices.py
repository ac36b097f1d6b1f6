"""Work of the disk that comes in slices, done between other callbacks of the bookie's loop.

Source: docs/protocol/collection.md, "A pass".
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from typing import TypeVar

Result = TypeVar("Result")


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

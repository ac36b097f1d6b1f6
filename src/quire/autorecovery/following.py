"""Follows watches of a metadata store for as long as a daemon runs; a watch that fails is made anew.

Source: docs/autorecovery.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from typing import Final

from quire.core.errors import QuireError
from quire.metadata.store import Watch

RETRY_S: Final = 2.0
"""The pause after the metadata store did not respond."""
_LOG: Final = logging.getLogger(__name__)


@contextmanager
def following(
    watches: Iterable[Callable[[], Watch]], changed: Callable[[], None]
) -> Generator[None, None, None]:
    """While the `with` block runs, call `changed` after each change that one of the watches reports.

    Args:
        watches: make the watches; each is called again when its watch fails.
        changed: is called once at the beginning too.
    """
    tasks = [asyncio.create_task(_follow(make, changed), name="follow a watch") for make in watches]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()


async def _follow(make: Callable[[], Watch], changed: Callable[[], None]) -> None:
    while True:
        try:
            async with make() as changes:
                async for _ in changes:
                    changed()
        except QuireError as error:
            _LOG.warning("a watch on the metadata store failed: %s", error)
        await asyncio.sleep(RETRY_S)

"""The drops of one pass of a collector that are on their way to the disk.

Source: docs/protocol/collection.md, "A pass".
"""

from __future__ import annotations

import asyncio

from quire.core.errors import StorageError


class PendingDrops:
    """The drops of one pass that are on their way to the disk: counted, as there may be very many.

    Attributes:
        begun: how many there are, durable or not.
    """

    def __init__(self) -> None:
        self.begun = 0
        self._done = 0
        self._error: StorageError | None = None
        self._all: asyncio.Future[None] | None = None

    def one_durable(self, error: StorageError | None) -> None:
        """One is on the disk, or failed."""
        self._done += 1
        self._error = self._error or error
        if self._all is not None and self._done == self.begun and not self._all.done():
            self._all.set_result(None)

    async def durable(self) -> None:
        """Return when all that were begun are on the disk.

        Raises:
            StorageError: one of them is not.
        """
        if self._done < self.begun:
            self._all = asyncio.get_running_loop().create_future()
            await self._all
        if self._error is not None:
            raise self._error

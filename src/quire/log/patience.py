"""What a log's handle does while the metadata store does not respond, and its one compare-and-swap of a record.

Source: docs/protocol/log.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, ParamSpec, TypeVar

from quire.core.errors import AlreadyExistsError, MetadataUnknownError, QuireError
from quire.metadata.store import VersionConflictError

P = ParamSpec("P")
T = TypeVar("T")

_PAUSE_MS: Final = 20
_PAUSES_MAX: Final = 50


LOST: Final = (AlreadyExistsError, VersionConflictError, MetadataUnknownError)
"""What a compare-and-swap raises whose outcome the next reading shows."""


async def at_once(_: int) -> None:
    """Does not wait before the next attempt."""


async def _pause(attempt: int) -> None:
    await asyncio.sleep(_PAUSE_MS * min(attempt, _PAUSES_MAX) / 1000)


class Patience:
    """One handle's count of responses that were missing in a row.

    Args:
        attempts_max: how many may be missing before the handle gives up.
        pause: waits before the next attempt; its argument counts them.
    """

    def __init__(self, attempts_max: int, pause: Callable[[int], Awaitable[None]] = _pause) -> None:
        self._attempts_max = attempts_max
        self._pause = pause
        self._missing = 0

    async def failed(self, error: QuireError, *, again: bool = False) -> None:
        """The store did not do it: return when it may be asked again.

        Args:
            error: what it raised.
            again: whether to ask again although the error itself is not one that passes.

        Raises:
            QuireError: the error, if it does not pass or too many responses were missing.
        """
        self._missing += 1
        if not (error.retriable or again) or self._missing >= self._attempts_max:
            raise error
        await self._pause(self._missing)

    async def ask(self, call: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Ask the store, and again when it did not respond: all that is asked here may be asked twice.

        Raises:
            QuireError: as `failed`.
        """
        while True:
            try:
                answer = await call(*args, **kwargs)
            except QuireError as error:
                await self.failed(error)
            else:
                self._missing = 0
                return answer

    async def until_in(
        self, once: Callable[[], Awaitable[T]], again: tuple[type[QuireError], ...] = LOST
    ) -> T:
        """Read, change and replace by compare-and-swap; after a conflict and a lost response all of it again.

        Args:
            once: reads, judges whether the change is in, and makes it otherwise.
            again: the errors after which it is called again.

        Raises:
            QuireError: as `failed`.
        """
        while True:
            try:
                return await once()
            except again as error:
                await self.failed(error, again=True)

    async def swap(
        self,
        swap: Awaitable[T],
        swapped: Callable[[T], object],
        conflicted: Callable[[], None],
        unknown: Callable[[], None],
    ) -> None:
        """One compare-and-swap. Its outcome goes to exactly one of three inputs of a machine.

        Args:
            swap: the call.
            swapped: it happened; called with the store's result.
            conflicted: it did not happen; the machine reads again and decides anew.
            unknown: the store does not say.

        Raises:
            QuireError: as `failed`.
        """
        try:
            answer = await swap
        except VersionConflictError:
            conflicted()
        except MetadataUnknownError:
            unknown()
        except QuireError as error:
            await self.failed(error)
            conflicted()
        else:
            self._missing = 0
            swapped(answer)

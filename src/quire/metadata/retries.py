"""What a client does while the metadata store does not respond, refuses, or has another client's change first.

Each way has a pause and an end. A compare-and-swap of unknown outcome may have happened, unlike one that conflicted: what was
read before it does not tell, so it is counted apart from the reads that succeed in between.

Source: docs/protocol/log.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, ParamSpec, Self, TypeVar

from quire.core.errors import AlreadyExistsError, MetadataUnknownError, QuireError
from quire.core.ledger.placement import RandomSource
from quire.metadata.store import KeyMissingError, StoreBusyError, VersionConflictError

P = ParamSpec("P")
T = TypeVar("T")

ATTEMPTS_MAX: Final = 20
"""Of a change that no caller has set another limit for."""
CONFLICTS_MAX: Final = 200
"""Each is another client's success, so they end by themselves; a store that never lets this client in is busy."""
AT_ONCE: Final = 4
"""How many retries have no pause: mostly the next reading settles a conflict, or a response that was lost."""
_PAUSE_MS: Final = 20
_PAUSES_MAX: Final = 50

LOST: Final = (AlreadyExistsError, VersionConflictError, MetadataUnknownError)
"""What a compare-and-swap raises whose outcome the next reading shows."""


async def pause(attempt: int) -> None:
    """Wait before another attempt, longer each time."""
    await asyncio.sleep(_PAUSE_MS * min(attempt, _PAUSES_MAX) / 1000)


async def pause_by_chance(wait_ms: int, chance: RandomSource) -> None:
    """Wait between half and all of a time, so that two clients do not meet again and again."""
    await asyncio.sleep(wait_ms * (1 + chance.getrandbits(16) / 65536) / 2000)


async def pause_after(lost: int) -> None:
    """Wait before a compare-and-swap is tried again, of which this many in a row were lost or of unknown outcome."""
    if lost > AT_ONCE:
        await pause(lost - AT_ONCE)


class Attempts:
    """The attempts of a loop that does the same until it succeeds: the first ones at once, the others after pauses.

    It does not end by itself: when there are no more, it raises `MetadataUnknownError`, as the last one may have done it.

    Args:
        what: was to be done, for the error.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._count = 0

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> None:
        if self._count >= ATTEMPTS_MAX:
            msg = f"after {self._count} attempts it is unknown whether {self._what}; try again"
            raise MetadataUnknownError(msg)
        await pause_after(self._count)
        self._count += 1


async def settled(
    change: Callable[[bool], Awaitable[T | None]],
    what: str,
    done: str,
    *,
    again: bool = False,
    attempts_max: int = ATTEMPTS_MAX,
    **ids: object,
) -> T:
    """Make a change by compare-and-swap until it is known to be written or not; give up after some attempts.

    Args:
        change: one attempt, which reads anew what it needs. Its argument says whether the response to an earlier one was
            lost: then it looks whether that one was written before it refuses. None: another client was first where that
            does not matter; it is made again.
        what: is to be changed, as in "the record of ledger 7".
        done: what is to happen to it, as in "written".
        again: whether it is made again after a conflict too.
        attempts_max: how often it is tried.
        ids: of the error.

    Returns:
        What `change` returned: it is written.

    Raises:
        VersionConflictError, AlreadyExistsError: `change` refused, and nothing was written.
        MetadataUnknownError: whether it was written is unknown, even after reading again; never a conflict then.
        StoreBusyError: other clients were first each time; nothing was written.
    """
    lost: MetadataUnknownError | None = None
    for attempt in range(attempts_max):
        await pause_after(attempt)
        try:
            if (result := await change(lost is not None)) is not None:
                return result
        except MetadataUnknownError as error:
            lost = error
        except (VersionConflictError, AlreadyExistsError) as error:
            if again:
                continue
            if lost is None or isinstance(error, AlreadyExistsError | KeyMissingError):
                raise
            msg = f"it is unknown whether {what} was {done} before another client changed it ({lost}); read it and decide again"
            raise MetadataUnknownError(msg, **ids) from error
    if lost is None:
        msg = f"{what} was changed {attempts_max} times while it was to be {done}; try again"
        raise StoreBusyError(msg, **ids)
    msg = (
        f"after {attempts_max} attempts it is unknown whether {what} was {done} ({lost}); read the record before doing "
        "anything else"
    )
    raise MetadataUnknownError(msg, **ids) from lost


class StoreRetries:
    """One handle's retries: it counts calls that failed in a row, and compare-and-swaps that did not happen.

    Args:
        attempts_max: how many may fail in a row before the handle gives up.
        pause: waits before the next attempt; its argument counts them.
    """

    def __init__(self, attempts_max: int, pause: Callable[[int], Awaitable[None]] = pause) -> None:
        self._attempts_max = attempts_max
        self._pause = pause
        self._missing = 0
        self._unsettled = 0
        self._conflicts = 0

    async def failed(self, error: QuireError, *, retry: bool = False) -> None:
        """The store did not do it: return when it may be asked again.

        Args:
            error: what it raised.
            retry: whether to ask again although the error itself is not one that passes.

        Raises:
            QuireError: the error, if it does not pass or too many responses were missing.
        """
        self._missing += 1
        if not (error.retriable or retry) or self._missing >= self._attempts_max:
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
        self, once: Callable[[], Awaitable[T]], retried: tuple[type[QuireError], ...] = LOST
    ) -> T:
        """Read, change and replace by compare-and-swap; after a conflict and a lost response all of it again.

        Args:
            once: reads, judges whether the change is in, and makes it otherwise.
            retried: the errors after which it is called again.

        Raises:
            QuireError: as `failed`.
        """
        while True:
            try:
                return await once()
            except retried as error:
                await self.failed(error, retry=True)

    async def compare_and_swap(
        self,
        write: Awaitable[T],
        written: Callable[[T], object],
        conflicted: Callable[[], None],
        unknown: Callable[[], None],
    ) -> None:
        """One compare-and-swap. Its outcome goes to exactly one of three inputs of a machine, which may ask for the next.

        Args:
            write: the call.
            written: it happened; called with the store's result.
            conflicted: it did not happen; the machine reads again and decides anew.
            unknown: the store does not say.

        Raises:
            StoreBusyError: other clients have changed the record first again and again.
            QuireError: the store did not take a change, or did not say so, too often in a row; or its error does not pass.
        """
        try:
            answer = await write
        except VersionConflictError as error:
            self._unsettled = 0
            await self._beaten(error)
            conflicted()
        except QuireError as error:
            self._unsettled += 1
            if not error.retriable or self._unsettled >= self._attempts_max:
                raise
            if self._unsettled > AT_ONCE:
                await self._pause(self._unsettled - AT_ONCE)
            (unknown if isinstance(error, MetadataUnknownError) else conflicted)()
        else:
            self._missing = self._unsettled = self._conflicts = 0
            written(answer)

    async def _beaten(self, error: VersionConflictError) -> None:
        """Another client was first: read again at once, and if that does not help, a millisecond later each time."""
        self._conflicts += 1
        if self._conflicts >= CONFLICTS_MAX:
            msg = f"other clients changed it first {self._conflicts} times in a row: {error.message}"
            raise StoreBusyError(msg, **error.ids) from error
        if self._conflicts > AT_ONCE:
            await asyncio.sleep(min(self._conflicts - AT_ONCE, _PAUSES_MAX) / 1000)

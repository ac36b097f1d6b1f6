"""How a client is left: its writers confirm what they took, within a bound; one warning says how much was not confirmed.

Source: docs/protocol/closing.md, "Leaving a client".
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import Any, Final, Protocol, runtime_checkable
from weakref import WeakValueDictionary

log = logging.getLogger(__name__)

CLOSED: Final = "the client was closed"
LAST_S: Final = 1.0
"""How long what a writer still has under way after its end may take, such as giving back the lead of a log."""
NAMES_MAX: Final = 8
"""So many writers are named by a warning."""


@runtime_checkable
class LeavingWriter(Protocol):
    """A writer, as its client sees it when that is closed; those of ledgers and of logs stand above."""

    @property
    def label(self) -> str:
        """What it writes, in words."""

    async def leave(self) -> int:
        """Confirm what was taken, and end; returns how many appends are not confirmed."""

    def end(self, why: str) -> int:
        """End at once: fail what is not confirmed; returns how many appends that are. Again is allowed."""


class ComposedWriter(LeavingWriter, Protocol):
    """A writer that writes into ledgers of its own, as that of a log: it leaves before they do."""

    @property
    def ledgers(self) -> Collection[LeavingWriter]:
        """Their writers."""

    async def abandon(self) -> None:
        """Return when nothing of it is under way any more, after its end."""


class OpenWriters:
    """The writers of a client that are made of others, and what of them ends by itself.

    A writer that its user drops is not kept by this.
    """

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._composed: WeakValueDictionary[int, ComposedWriter] = (
            WeakValueDictionary()
        )  # in the order of opening
        self._leaving: dict[asyncio.Task[Any], None] = {}

    def add(self, writer: ComposedWriter) -> None:
        """It is to leave before its client is closed."""
        self._composed[next(self._numbers)] = writer

    def let_leave(self, writer: ComposedWriter) -> None:
        """A writer that was dropped ends by itself; the client waits for it when it is closed."""
        task = asyncio.get_running_loop().create_task(_left_alone(writer))
        self._leaving[task] = None
        task.add_done_callback(self._leaving.pop)

    async def close(
        self,
        unfinished: Callable[[], Iterable[LeavingWriter]],
        open_ledgers: Callable[[], Iterable[LeavingWriter]],
        bound_ms: int,
    ) -> None:
        """The client is closed: let all writers leave, within a bound, then end them; warn of what was not confirmed.

        Args:
            unfinished: writers of ledgers that hold something; those of composed writers leave with these.
            open_ledgers: writers of ledgers that have not ended.
            bound_ms: for all together.
        """
        loop = asyncio.get_running_loop()
        end = loop.time() + bound_ms / 1000
        composed = list(self._composed.values())
        alone = _without(unfinished(), composed)
        works = {loop.create_task(writer.leave()): writer.label for writer in (*composed, *alone)}
        all_works: list[asyncio.Task[Any]] = [*works, *self._leaving]
        lost: Counter[str] = Counter()
        try:
            await _within(all_works, end - loop.time())
            if loop.time() < end:  # bookies that a closed log waits for
                rest = [loop.create_task(writer.leave()) for writer in unfinished()]
                all_works += rest
                await _within(rest, end - loop.time())
        finally:
            for work, label in works.items():
                if work.done() and not work.cancelled() and work.exception() is None:
                    lost[label] += work.result()
            alone = _without(open_ledgers(), composed)
            for writer in (*composed, *alone):
                lost[writer.label] += writer.end(CLOSED)
            for writer in open_ledgers():  # of composed ones, whose records are counted
                writer.end(CLOSED)
            warn(lost, CLOSED)
        await asyncio.gather(*all_works, return_exceptions=True)
        await _within([loop.create_task(writer.abandon()) for writer in composed], LAST_S)


def _without(ledgers: Iterable[LeavingWriter], composed: Iterable[ComposedWriter]) -> list[LeavingWriter]:
    """The writers of ledgers that do not belong to composed ones."""
    within = {id(ledger) for writer in composed for ledger in writer.ledgers}
    return [writer for writer in ledgers if id(writer) not in within]


async def _left_alone(writer: ComposedWriter) -> None:
    if lost := await writer.leave():
        warn({writer.label: lost}, "its writer was dropped")


async def _within(works: Collection[asyncio.Task[Any]], seconds: float) -> None:
    """Wait for works; what is not done when the time is over, or the caller is cancelled, is cancelled."""
    try:
        if works:
            await asyncio.wait(works, timeout=max(0.0, seconds))
    finally:
        for work in works:
            work.cancel()


async def finished(work: Awaitable[Any], bound_ms: int) -> bool:
    """Whether some work was done within a bound; else it is cancelled."""
    try:
        async with asyncio.timeout(bound_ms / 1000):
            await work
    except TimeoutError:
        return False
    return True


def warn(lost: Mapping[str, int], when: str) -> None:
    """One warning about appends that were taken and not confirmed, if there are any."""
    some = {label: count for label, count in lost.items() if count}
    if not some:
        return
    parts = [f"{count} of {label}" for label, count in itertools.islice(some.items(), NAMES_MAX)]
    more = f" and of {len(some) - NAMES_MAX} other writers" if len(some) > NAMES_MAX else ""
    log.warning(
        "%d appends were not confirmed when %s: %s%s; they may or may not be stored, so read before you append them again",
        sum(some.values()),
        when,
        ", ".join(parts),
        more,
    )


def read(futures: Iterable[asyncio.Future[Any] | None]) -> None:
    """The warning speaks for these failed futures: asyncio need not complain that their exceptions were never read."""
    for future in futures:
        if future is not None and future.done() and not future.cancelled():
            future.exception()

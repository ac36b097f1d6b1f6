"""One process's way to the metadata store: requests and responses that take their time, and responses that are lost.

The store itself is the in-memory one, which does every request in one moment; a request takes effect even if no client
waits for it any more, as at a real server.

Source: `metadata/store.py`: the promises; docs/simulation.md, "The world".
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, TypeVar

from quire.core.errors import MetadataUnknownError
from quire.core.ids import LedgerId
from quire.metadata.memory import MemorySpace, MemoryStore
from quire.metadata.store import LIST_LIMIT, MetadataStore, Op, Put, Registration, Versioned, Watch
from quire_testing.sim.loop import MS, ProcessLoop

T = TypeVar("T")


class StoreSettings:
    """How the store's network is in one run.

    Args:
        base_ns: a usual delay of one way.
        tail: the exponent of the delays' tail.
        lost_requests, lost_answers: how many, out of 1024.
        watch_ns: how late news may come.
        unknown_after_ns: when a client gives up waiting for a response.
    """

    __slots__ = ("base_ns", "lost_answers", "lost_requests", "tail", "unknown_after_ns", "watch_ns")

    def __init__(
        self,
        base_ns: int = MS // 2,
        tail: float = 0.6,
        lost_requests: int = 0,
        lost_answers: int = 0,
        watch_ns: int = 20 * MS,
        unknown_after_ns: int = 1000 * MS,
    ) -> None:
        self.base_ns = base_ns
        self.tail = tail
        self.lost_requests = lost_requests
        self.lost_answers = lost_answers
        self.watch_ns = watch_ns
        self.unknown_after_ns = unknown_after_ns


RETRY_SECONDS: Final = 0.01


class SimStore(MetadataStore):
    """A process's handle on the world's store.

    Args:
        space: the store.
        loop: the process.
        chance: of this handle's delays and losses.
        settings: how they are.
        blind: takes a change whatever the version (for a mutant): called with the operations, returns them changed.

    Attributes:
        cut: nothing reaches the store, and nothing comes back.
        lost: answers that were lost after a change that happened.
    """

    def __init__(
        self,
        space: MemorySpace,
        loop: ProcessLoop,
        chance: random.Random,
        settings: StoreSettings,
        blind: Callable[[MemorySpace, Sequence[Op]], Sequence[Op]] | None = None,
    ) -> None:
        self.inner = MemoryStore(space)
        self.cut = False
        self.lost = 0
        self._space = space
        self._loop = loop
        self._chance = chance
        self._settings = settings
        self._blind = blind
        loop.watch_delay_ns = self._watch_delay_ns

    def _delay_ns(self) -> int:
        draw = 1.0 - self._chance.random()
        return min(
            int(self._settings.base_ns * draw**-self._settings.tail), 10 * self._settings.unknown_after_ns
        )

    def _watch_delay_ns(self) -> int:
        return int(self._settings.watch_ns * self._chance.random() ** 4)

    async def _ask(self, request: Callable[[], Coroutine[Any, Any, T]], *, changes: bool) -> T:
        """Ask the store.

        Args:
            request: what the store does.
            changes: it changes a record, so the request or its response may be lost by chance, too (`lost_requests`,
                `lost_answers`). Registrations and new ids pass False: they are late or cut off only.
        """
        answered: asyncio.Future[T] = self._loop.create_future()
        timeline, timeout_ns = self._loop.timeline, self._settings.unknown_after_ns
        lost = self.cut or (changes and self._chance.getrandbits(10) < self._settings.lost_requests)
        there = timeout_ns if lost else self._delay_ns()
        if not lost:
            timeline.after(there, self._serve, request, changes, timeline.now_ns + timeout_ns, answered)
        if there >= timeout_ns:
            timeline.after(timeout_ns, self._loop.deliver, _unknown, answered)
        return await answered

    def _serve(
        self,
        request: Callable[[], Coroutine[Any, Any, T]],
        changes: bool,
        gives_up_at_ns: int,
        answered: asyncio.Future[T],
    ) -> None:
        """At the store: all at once."""
        result: Any = None
        error: Exception | None = None
        try:
            result = _at_once(request())
        except Exception as refused:  # noqa: BLE001 - the response
            error = refused
        timeline = self._loop.timeline
        at = timeline.now_ns + self._delay_ns()
        lost = self.cut or (changes and self._chance.getrandbits(10) < self._settings.lost_answers)
        if lost or at > gives_up_at_ns:
            self.lost += changes and error is None
            timeline.at(gives_up_at_ns, self._loop.deliver, _unknown, answered)
        else:
            timeline.at(at, self._loop.deliver, _settle, answered, result, error)

    # --- the interface -------------------------------------------------------------------------------------------

    @property
    def instance_id(self) -> str:
        """The world's."""
        return self.inner.instance_id

    async def get(self, key: str) -> Versioned | None:
        """See `MetadataStore`."""
        return await self._ask(lambda: self.inner.get(key), changes=False)

    async def list(
        self, prefix: str, *, after: str | None = None, limit: int = LIST_LIMIT
    ) -> list[tuple[str, Versioned]]:
        """See `MetadataStore`."""
        return await self._ask(lambda: self.inner.list(prefix, after=after, limit=limit), changes=False)

    async def multi(self, ops: Sequence[Op]) -> Sequence[int]:
        """See `MetadataStore`."""
        return await self._ask(lambda: self._multi(ops), changes=True)

    async def _multi(self, ops: Sequence[Op]) -> Sequence[int]:
        if self._blind is not None:
            ops = self._blind(self._space, ops)
        return await self.inner.multi(ops)

    def watch(self, prefix: str) -> Watch:
        """See `MetadataStore`."""
        return self.inner.watch(prefix)

    async def register(
        self, key: str, value: bytes, *, sequential: bool = False, again: bool = True
    ) -> Registration:
        """See `MetadataStore`. As every driver does: what the client does not know of is taken back when the store is reached again."""
        made: list[Registration] = []
        given_up = False

        async def request() -> Registration:
            made.append(await self.inner.register(key, value, sequential=sequential, again=again))
            if given_up:
                await made[0].close()
            return made[0]

        try:
            return await self._ask(request, changes=False)
        except MetadataUnknownError:
            given_up = True
            if made:
                self._loop.create_task(self._take_back(made[0]))
            raise

    async def _take_back(self, registration: Registration) -> None:
        while self.cut:
            await asyncio.sleep(RETRY_SECONDS)
        await registration.close()

    async def next_ledger_id(self) -> LedgerId:
        """See `MetadataStore`."""
        return await self._ask(self.inner.next_ledger_id, changes=False)

    async def raise_ledger_ids(self, above: int) -> None:
        """See `MetadataStore`."""
        return await self._ask(lambda: self.inner.raise_ledger_ids(above), changes=True)

    async def close(self) -> None:
        """See `MetadataStore`."""
        await self.inner.close()

    def lose_session(self) -> None:
        """As `MemoryStore.lose_session`: the process hears of it in a turn of its own."""
        self._loop.deliver(self.inner.lose_session)


def blind_put(space: MemorySpace, op: Put) -> Put:
    """The same change, whatever the version is now."""
    row = space.rows.get(op.key)
    return Put(op.key, op.value, row.version) if row is not None else op


def _at_once(work: Coroutine[Any, Any, T]) -> T:
    """What a coroutine that waits for nothing returns."""
    try:
        work.send(None)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
    work.close()
    msg = "the store in memory waits for nothing"
    raise AssertionError(msg)


def _settle(future: asyncio.Future[Any], result: object, error: Exception | None) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)


def _unknown(future: asyncio.Future[Any]) -> None:
    if not future.done():
        future.set_exception(MetadataUnknownError("the metadata store did not answer"))

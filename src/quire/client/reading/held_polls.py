"""What an idle tail waits with: one long poll at each bookie of an entry's write set, and changes of the record.

While nothing comes, each of them gets a request about every half minute. One that hangs delays no reader, because the
others wait too. One that knows a higher LAC responds at once, so that no separate request for the LAC is needed.

Source: Vanlightly's guide: "it can send a long-poll LAC read to a bookie which will respond when a new committed
entry is ready to be read".
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar

from quire.core.answers import Answer
from quire.core.ids import BookieId
from quire.core.settings import doubled
from quire.wire.responses import ReadReply

T = TypeVar("T")

_PAUSE_MS_MIN: Final = 1_000


class HeldPolls:
    """The long polls of one reader that waits for a LAC.

    Args:
        poll: sends a long poll to a bookie and waits for its response.
        wait_ms: how long a bookie is asked to wait. One that does not is asked again after growing pauses, up to this.
    """

    def __init__(self, poll: Callable[[BookieId], Awaitable[ReadReply]], wait_ms: int) -> None:
        self._poll = poll
        self._wait_ms = wait_ms
        self._loop = asyncio.get_running_loop()
        # Polls that are held, with when they began; pauses before the next one.
        self._held: dict[asyncio.Future[ReadReply], tuple[BookieId, float]] = {}
        self._pausing: dict[asyncio.Future[Any], BookieId] = {}
        self._pause_ms: dict[BookieId, int] = {}

    async def first_news(
        self, bookies: Sequence[BookieId], entry_id: int
    ) -> tuple[BookieId, ReadReply] | None:
        """Wait until one of the bookies says that an entry is confirmed.

        Returns:
            Which, and its response; None when none of them waits.
        """
        try:
            for bookie in bookies:
                self._ask(bookie)
            while self._held:
                tasks = (*self._held, *self._pausing)
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in (task for task in tasks if task in done):
                    if task in self._pausing:
                        self._ask(self._pausing.pop(task))
                        continue
                    bookie, since = self._held.pop(task)
                    reply = task.result()
                    if reply.answer is Answer.OK and reply.lac >= entry_id:
                        return bookie, reply
                    self._ask_again(bookie, reply, since)
            return None
        finally:
            for task in (*self._held, *self._pausing):
                task.cancel()

    def _ask(self, bookie: BookieId) -> None:
        self._held[asyncio.ensure_future(self._poll(bookie))] = bookie, self._loop.time()

    def _ask_again(self, bookie: BookieId, reply: ReadReply, since: float) -> None:
        """Nothing new: at once if the bookie has waited, else later."""
        if reply.answer is Answer.OK and 2000 * (self._loop.time() - since) >= self._wait_ms:
            self._pause_ms.pop(bookie, None)
            self._ask(bookie)
            return
        pause_ms = self._pause_ms.get(bookie, min(_PAUSE_MS_MIN, self._wait_ms))
        self._pause_ms[bookie] = doubled(pause_ms, self._wait_ms)
        self._pausing[asyncio.ensure_future(asyncio.sleep(pause_ms / 1000))] = bookie


class RecordChanges:
    """Changes of a ledger's record, which end what a tail waits for.

    Attributes:
        changed: since the last wait began.
    """

    def __init__(self) -> None:
        self.changed = False
        self._waits: asyncio.Timeout | None = None

    def tell(self) -> None:
        """The record has changed."""
        self.changed = True
        waits, self._waits = self._waits, None
        if waits is not None:
            waits.reschedule(0)

    async def unless_it_changes(self, wait: Awaitable[T]) -> T | None:
        """The result of `wait`; None, and it is cancelled, when the record changes meanwhile."""
        self.changed = False
        try:
            async with asyncio.timeout(None) as self._waits:
                return await wait
        except TimeoutError:
            return None
        finally:
            self._waits = None

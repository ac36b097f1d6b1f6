"""When the writer of a log continues in a new ledger: the current one is large, or old, or a caller asks.

The leader rolls; whether it may is its machine's decision (`core/log/machine.py`).

Source: docs/protocol/log.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from quire.core.errors import NotEnoughBookiesError, QuireError, RefusedError
from quire.env.interfaces import Clock
from quire.log.batching import LedgerTarget, fail_waiters
from quire.log.config import LogConfig
from quire.log.leader import LogLeader

ROLL_RETRY_MS: Final = 10_000
"""After a roll for which no ledger could be created: how long size and age of the current one start no other."""
log = logging.getLogger(__name__)


class Rolling:
    """When one writer's ledgers are rolled.

    Args:
        name: the log's name.
        leader: rolls.
        clock: monotonic time.
        config: how large and how old a ledger may become.
        target: the ledger that takes records now.
    """

    __slots__ = (
        "_clock",
        "_leader",
        "_loop",
        "_name",
        "_not_before_ms",
        "_roll_ms",
        "_sealing",
        "_stopped",
        "_target",
        "_timer",
        "_waiters",
    )

    def __init__(
        self,
        name: str,
        leader: LogLeader,
        clock: Clock,
        config: LogConfig,
        target: Callable[[], LedgerTarget | None],
    ) -> None:
        self._name = name
        self._leader = leader
        self._clock = clock
        self._roll_ms = config.roll_ms
        self._target = target
        self._loop = asyncio.get_running_loop()
        self._waiters: list[asyncio.Future[None]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._not_before_ms = 0
        self._sealing = False
        self._stopped = False

    async def ask(self) -> None:
        """A caller wants a new ledger; returns when the former one is closed and its item in the list complete.

        Raises:
            RefusedError: the ledger before the current one is not closed yet.
            QuireError: as `LogWriter.roll`.
        """
        while self._sealing and not self._leader.may_roll:
            await self._until_over()  # of the roll that this ledger came with
        if self._leader.may_roll:
            over = self._until_over()
            self._leader.roll()
            await over
        elif self._leader.rolling:
            await self._until_over()
        else:
            msg = f"log {self._name!r}: the previous ledger is not closed yet; try again"
            raise RefusedError(msg, log=self._name)

    def _until_over(self) -> asyncio.Future[None]:
        """Completes when the roll that is under way, or begins now, is over."""
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiters.append(waiter)
        return waiter

    def by_size(self) -> None:
        """The current ledger is as large as one may become: roll, unless that is not possible now."""
        if self._leader.may_roll and self._clock.now_ms() >= self._not_before_ms and not self._stopped:
            self._leader.roll()

    def served(self) -> None:
        """A ledger takes records from now on: its age counts. The one before it may still have to be closed."""
        self._sealing = self._leader.rolling
        self._look_in(self._roll_ms)

    def _look_in(self, ms: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if self._stopped else self._loop.call_later(ms / 1000, self._by_time)

    def _by_time(self) -> None:
        target = self._target()
        if target is not None and target.sent and self._leader.may_roll:
            self._look_in(min(ROLL_RETRY_MS, self._roll_ms))  # unless another ledger is served by then
            self._leader.roll()
        else:
            self.served()

    def over(self, *, done: bool) -> None:
        """A roll is over; without `done` no new ledger could be created, and the current one stays."""
        waiters, self._waiters = self._waiters, []
        self._sealing = False
        cause = self._leader.cause
        if not done:
            self._not_before_ms = self._clock.now_ms() + ROLL_RETRY_MS
            log.warning(
                "log %r: no new ledger could be created; the writer continues in the current one: %s",
                self._name,
                cause,
            )
        for waiter in waiters:
            if waiter.done():
                continue
            if done:
                waiter.set_result(None)
            else:
                waiter.set_exception(
                    cause or NotEnoughBookiesError(f"log {self._name!r}: no new ledger", log=self._name)
                )

    def stop(self) -> None:
        """Begin no roll any more; one under way continues."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def fail(self, error: QuireError) -> None:
        """The writer has ended: what callers wait for does not come."""
        self.stop()
        self._sealing = False
        fail_waiters(self._waiters, error)
        self._waiters.clear()

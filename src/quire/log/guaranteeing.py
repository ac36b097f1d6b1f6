"""How long an opening leader keeps to a guaranteed write quorum, and when it goes on without.

Without a spare for a lost bookie, a ledger that guarantees its write quorum can neither be closed by its next
writer nor be made. `LogGuarantee.wait_ms` says how long a leader tries before it gives the guarantee up.

Source: docs/protocol/write-quorum.md, "Logs".
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from quire.core.errors import NotEnoughBookiesError
from quire.env.interfaces import Clock

log = logging.getLogger(__name__)

T = TypeVar("T")
RETRY_MS: Final = 200
"""The pause after an attempt that found too few bookies."""


class GuaranteeWait:
    """How long one opening waits for missing bookies.

    Args:
        clock: time.
        wait_ms: how long it lasts, from now.
    """

    def __init__(self, clock: Clock, wait_ms: int) -> None:
        self._clock = clock
        self._until_ms = clock.now_ms() + wait_ms

    async def over(self, what: str, work: Callable[[bool], Awaitable[T]]) -> T:
        """Do some work with the guarantee, again while bookies are missing; when the time is over, without it.

        Args:
            what: it is, for the log.
            work: gets whether it gives the guarantee up.

        Raises:
            NotEnoughBookiesError: there are too few bookies without the guarantee as well.
            QuireError: what `work` raises otherwise.
        """
        gives_up = False
        while True:
            try:
                return await work(gives_up)
            except NotEnoughBookiesError as error:
                if gives_up:
                    raise
                left_ms = self._until_ms - self._clock.now_ms()
                gives_up = left_ms <= 0
                if gives_up:
                    log.warning("%s goes on without its guaranteed write quorum: %s", what, error)
                else:
                    await asyncio.sleep(min(RETRY_MS, left_ms) / 1000)

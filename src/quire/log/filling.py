"""Fills the holes of ledgers that a log's leader has closed, while it leads: slowly, and once the bookies are there.

What is not filled when the leader ends, or belongs to a ledger beyond `FILLS_MAX`, stands in the ledger's record, and
`quire cluster repair` fills it.

Source: docs/protocol/repair.md, "The writer's own holes"; docs/decisions/004-absent-slots.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from quire.client.writing.writer import LedgerWriter
from quire.core.errors import QuireError
from quire.core.repair.effects import RepairOutcome
from quire.log.ledgers import LogLedgers

log = logging.getLogger(__name__)

LOOK_MS: Final = 1_000
"""How often it is checked whether the bookies that lack entries are registered."""
FILLS_MAX: Final = 64
"""Most ledgers of one leader that wait for their bookies, the oldest ones."""
ATTEMPTS_MAX: Final = 5
"""Most repairs that may end with something left."""


async def fill_holes(
    ledgers: LogLedgers, writer: LedgerWriter, bytes_per_s: int, goes_on: Callable[[], bool]
) -> None:
    """Copy what bookies lack of a closed ledger.

    Args:
        ledgers: the log's.
        writer: the ledger's, closed.
        bytes_per_s: how fast.
        goes_on: whether the handle still leads.
    """
    holes = await writer.flushed()
    if not holes:
        return
    ledger_id = writer.ledger_id
    bookies = {hole.bookie for hole in holes}
    for _ in range(ATTEMPTS_MAX):
        while not all(map(ledgers.is_registered, bookies)):
            await asyncio.sleep(LOOK_MS / 1000)
            if not goes_on():
                return
        try:
            if await ledgers.repair(ledger_id, bytes_per_s) is not RepairOutcome.INCOMPLETE:
                log.info(
                    "ledger %d: the copies that %s lacked are restored", ledger_id, ", ".join(sorted(bookies))
                )
                return
        except QuireError as error:
            log.warning("ledger %d: its holes are not filled yet: %s", ledger_id, error)
        await asyncio.sleep(LOOK_MS / 1000)
        if not goes_on():
            return
    log.warning("ledger %d: its holes are left to `quire cluster repair`", ledger_id)

"""How far a ledger is confirmed, asked of its bookies: a `LacMachine` performed.

Source: Vanlightly's guide, "Reading from ledgers": "Quorum LAC read".
"""

from __future__ import annotations

import asyncio

from quire.client.access import LedgerAccess
from quire.client.bookies.bookies import BookieClient
from quire.core.ledger.effects import LacFound, LacUnavailable, SendLacRead
from quire.core.ledger.metadata import LedgerMetadata
from quire.core.ledger.reader import LacMachine
from quire.wire.responses import LacReply


async def newest_lac(
    record: LedgerMetadata, access: LedgerAccess, bookies: BookieClient, *, timeout_ms: int
) -> int:
    """The LAC that enough bookies reported. When too few respond, the highest reported: it is safe to read up to."""
    found = await quorum_lac(record, access, bookies, timeout_ms=timeout_ms)
    return found.last_add_confirmed if isinstance(found, LacFound) else found.highest


async def quorum_lac(
    record: LedgerMetadata, access: LedgerAccess, bookies: BookieClient, *, timeout_ms: int
) -> LacFound | LacUnavailable:
    """The newest LAC; or the bookies that did not respond and the highest LAC that the others reported."""
    of_stream = None if record.terms is None else record
    machine = LacMachine(
        record.last_fragment.ensemble, record.write_quorum, record.ack_quorum, record=of_stream
    )
    machine.read()
    tasks: dict[asyncio.Task[LacReply], int] = {}
    try:
        while True:
            out, machine.out = machine.out, []
            for effect in out:
                if isinstance(effect, SendLacRead):
                    request = bookies.read_lac(effect.bookie, access, timeout_ms=timeout_ms)
                    tasks[asyncio.ensure_future(request)] = effect.slot
                else:
                    return effect
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in [task for task in tasks if task in done]:
                reply = task.result()
                lac = access.trusted_lac(reply)
                machine.answered(tasks.pop(task), reply.answer, lac, reply.lac_term)
    finally:
        for task in tasks:
            task.cancel()

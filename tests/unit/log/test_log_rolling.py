"""When a log's writer has gone on in a new ledger, and which one it left."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from quire.core.log.list import ItemState
from quire.metadata.memory import MemoryStore
from quire.metadata.store import Op, Put
from support.log_cluster import world
from support.waiting import until_async


class GatedStore(MemoryStore):
    """A store that lets no ledger be closed while its gate is shut."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()

    async def multi(self, ops: Sequence[Op]) -> Sequence[int]:
        if any(isinstance(op, Put) and not op.key.startswith("log") for op in ops):
            await self.gate.wait()
        return await super().multi(ops)


async def test_a_roll_leaves_the_ledger_that_took_records_when_it_was_asked_for(tmp_path: Path) -> None:
    """The ledger before that one is still being closed: another caller's roll has come as far as the next one."""
    store = GatedStore()
    async with world(tmp_path, store) as at:
        log = await at.made()
        async with await log.open_writer() as writer:
            await writer.append(b"0")
            first = writer.ledger_id
            earlier = asyncio.ensure_future(writer.roll())
            await until_async(lambda: writer.ledger_id not in {first, None}, "the next ledger")
            await writer.append(b"1")
            later = asyncio.ensure_future(writer.roll())
            await asyncio.sleep(0)
            store.gate.set()
            await asyncio.gather(earlier, later)
            items = (await log.describe()).items
            assert [item.state for item in items] == [ItemState.CLOSED, ItemState.CLOSED, ItemState.OPEN]

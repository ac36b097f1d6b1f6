"""A worker whose listing of marks fails in the middle has the ledgers of that listing from the next one.

Source: docs/protocol/repair-queue.md.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from quire.autorecovery import marked_ledgers
from quire.autorecovery.marked_ledgers import MarkedLedgers
from quire.core.ids import BookieId
from quire.env.real import RealClock
from quire.metadata.memory import MemorySpace, MemoryStore
from quire.metadata.records import AllRecords
from quire.metadata.repairs import RepairStore
from quire.metadata.store import StoreAwayError

LEDGERS = [*range(5)]


def failing(of: Any, name: str, at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the store not respond to one call of a method."""
    method, calls = getattr(of, name), list[int]()

    async def fails_once(*where: Any, **how: Any) -> Any:
        calls.append(len(calls))
        if calls[-1] == at:
            raise StoreAwayError("the store does not respond")
        return await method(*where, **how)

    monkeypatch.setattr(of, name, fails_once)


@pytest.mark.parametrize(("part", "at"), [("read", 0), ("read", 3), ("missing_page", 1)])
async def test_what_a_failed_listing_has_read_is_offered_by_the_next_one(
    part: str, at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its marks say what they said, and nobody but that listing had seen them: the ledgers waited for ever."""
    monkeypatch.setattr(marked_ledgers, "LIST_LIMIT", 2)
    store = MemoryStore(MemorySpace())
    marks, records = RepairStore(store, RealClock(), "a worker"), AllRecords(store)
    page = marks.missing_page
    monkeypatch.setattr(marks, "missing_page", lambda after: page(after, 2))
    listed, offered = MarkedLedgers(marks, records), list[int]()

    async def refresh() -> None:
        await listed.refresh(lambda ledger_id, _: offered.append(ledger_id), lambda: asyncio.sleep(0))

    await marks.mark_missing(0, [BookieId("b1")])
    await refresh()
    for ledger_id in LEDGERS[1:]:
        await marks.mark_missing(ledger_id, [BookieId("b1")])
    failing(records if part == "read" else marks, part, at, monkeypatch)
    with pytest.raises(StoreAwayError):
        await refresh()
    await refresh()
    assert sorted(set(offered)) == LEDGERS
    offered.clear()
    await refresh()
    assert offered == [], "they were offered, and their marks say what they said"

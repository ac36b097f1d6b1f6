"""A bookie's reads of records: whoever asks is told, whenever it asks."""

from __future__ import annotations

import asyncio

import pytest

from quire.bookie.ledgers import record_reads
from quire.bookie.ledgers.record_reads import RecordReads
from quire.core.ledger.metadata import LedgerMetadata
from quire.metadata.memory import MemorySpace, MemoryStore
from quire.metadata.records import AllRecords
from support.records import create_records


async def two_records() -> AllRecords:
    store = MemoryStore(MemorySpace())
    await create_records(store, (1, 2))
    return AllRecords(store)


async def test_who_asks_as_the_last_reader_ends_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three of twenty ledgers took no adds any more after a power cut: their reads had begun in the turn in which every
    reader ended, and nobody was left to do them."""
    monkeypatch.setattr(record_reads, "READING_MAX", 1)
    reads, loop = RecordReads(await two_records()), asyncio.get_running_loop()
    told: asyncio.Future[int] = loop.create_future()

    def second(ledger_id: int, record: object) -> None:
        assert isinstance(record, LedgerMetadata)
        told.set_result(ledger_id)

    def first(*_: object) -> None:
        # In the turn in which the reader ends, before anybody is told of its end.
        loop.call_soon(reads.read, 2, second)

    reads.read(1, first)
    async with asyncio.timeout(10):
        assert await told == 2
    reads.close()


async def test_a_caller_that_fails_keeps_no_record_from_others(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It ended the reader: who had asked after it, and for the next ledger, waited for ever."""
    monkeypatch.setattr(record_reads, "READING_MAX", 1)
    reads, told = RecordReads(await two_records()), list[int]()
    both = asyncio.Event()

    def fails(*_: object) -> None:
        raise ZeroDivisionError

    def tell(ledger_id: int, record: object) -> None:
        assert isinstance(record, LedgerMetadata)
        told.append(ledger_id)
        if len(told) == 2:
            both.set()

    reads.read(1, fails)
    reads.read(1, tell)
    reads.read(2, tell)
    async with asyncio.timeout(10):
        await both.wait()
    assert told == [1, 2]
    reads.close()
    assert "a callback for the record of ledger 1 failed" in caplog.text

"""The records of ledgers and streams together: each id once, in order, whatever pages they come in."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from quire.core.errors import CorruptMetadataError
from quire.core.ids import LedgerId
from quire.core.ledger.metadata import new_stream
from quire.metadata import paging
from quire.metadata import records as all_records
from quire.metadata.keys import STREAM_NAMES, stream_name_key
from quire.metadata.memory import MemorySpace, MemoryStore
from quire.metadata.records import OF_LEDGERS, OF_STREAMS, AllRecords
from quire.metadata.sqlite.store import SqliteStore
from quire.metadata.store import LIST_LIMIT, Create
from support.records import record_of

LEDGERS, STREAMS = {1, 2, 3, 8, 9}, {4, 5, 10}


async def filled() -> AllRecords:
    records = AllRecords(MemoryStore(MemorySpace()))
    for ledger_id in LEDGERS:
        await records.ledgers.create(record_of(ledger_id, ["b"], password=b""))
    for stream_id in STREAMS:
        record = new_stream(record_of(stream_id, ["b"], password=b""), owner=1)
        await records.streams.create(record, f"s{stream_id}")
    return records


@pytest.mark.parametrize("limit", [1, 2, 3, 5, LIST_LIMIT])
async def test_pages_have_every_id_once_and_in_order(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    records = await filled()
    for kind in (records.ledgers, records.streams):
        page = kind.page
        monkeypatch.setattr(kind, "page", lambda after, page=page: page(after, limit))
    monkeypatch.setattr(all_records, "LIST_LIMIT", limit)
    found, after, whole = [], None, False
    while not whole:
        some, whole = await records.page(after)
        found += [(one.ledger_id, one.is_stream, one.parsed().term) for one in some]
        after = some[-1].ledger_id if some else after
    assert found == sorted([*((one, False, 0) for one in LEDGERS), *((one, True, 1) for one in STREAMS)])


async def test_what_has_a_record_is_known_by_its_id() -> None:
    records = await filled()
    assert await records.has(3)
    assert await records.has(4)
    assert not await records.has(6)
    await records._store.multi([Create(OF_STREAMS.key(LedgerId(7)), b"damaged")])
    assert await records.has(7)
    page, _ = await records.page(5)
    assert [one.ledger_id for one in page] == [7, 8, 9, 10], "a damaged one hides no other"
    with pytest.raises(CorruptMetadataError):
        page[0].parsed()


async def test_streams_are_named_from_as_few_pages_of_names_as_needed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    records = await filled()
    store, asked = records._store, list[str]()
    await store.multi([Create(stream_name_key("s0"), b"damaged")])
    listed = store.list

    async def counted(prefix: str, **page: Any) -> Any:
        asked.append(prefix)
        return await listed(prefix, **page)

    monkeypatch.setattr(store, "list", counted)
    monkeypatch.setattr(paging, "LIST_LIMIT", 1)
    assert await records.streams.names_of([]) == {}
    assert asked == []
    assert await records.streams.names_of([10]) == {10: "s10"}
    assert asked == [STREAM_NAMES] * 2, "s0, and s10 after it"
    assert await records.streams.names_of([6, 4, 5]) == {6: None, 4: "s4", 5: "s5"}


async def test_a_value_that_is_damaged_in_the_store_hides_no_other(tmp_path: Path) -> None:
    """Reading such a value raises, which ended every audit, `quire cluster under-replication` and the search for lost ledgers."""
    path = tmp_path / "metadata.db"
    async with await SqliteStore.open(path, create=True) as store:
        records = AllRecords(store)
        for ledger_id in LEDGERS:
            await records.ledgers.create(record_of(ledger_id, ["b"], password=b""))
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            cut = "UPDATE entries SET value = substr(value, 1, length(value) - 1) WHERE key = ?"
            assert connection.execute(cut, (OF_LEDGERS.key(3),)).rowcount == 1
        assert [ledger_id async for ledger_id in records.ids()] == sorted(LEDGERS)
        page, whole = await records.page()
        assert whole
        parsed = [one.parsed().ledger_id for one in page if one.ledger_id != 3]
        assert parsed == sorted(LEDGERS - {3})
        with pytest.raises(CorruptMetadataError, match=OF_LEDGERS.key(3)):
            page[2].parsed()
        assert await records.has(3)

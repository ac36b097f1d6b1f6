"""Which rows of footers stay in memory; and that a table which is too large for them is built once, not at each read."""

from __future__ import annotations

from dataclasses import replace

import pytest

from quire.storage import reading
from quire.storage.index import RowTable, table_of
from quire.storage.segments.footer_cache import ITEM_BYTES, FooterCache
from support.storage_disk import (
    FILLER,
    SMALL,
    Answers,
    FaultyFiles,
    fill_oldest,
    make_run,
    open_storage,
    put,
    read_all,
    settle,
)

UNIT = 100


def test_the_least_used_rows_go_first_and_of_tables_that_are_too_large_the_last_stays() -> None:
    cache, tables = FooterCache(110 * UNIT), [RowTable() for _ in range(3)]
    cache.put(1, 1, b"a", 60 * UNIT - ITEM_BYTES)
    cache.put(2, 1, b"b", 40 * UNIT - ITEM_BYTES)
    assert cache.get(1, 1) == b"a"
    cache.put(3, 1, tables[0], 500 * UNIT - ITEM_BYTES)
    cache.put(4, 1, tables[1], 700 * UNIT - ITEM_BYTES)
    assert (cache.get(3, 1), cache.get(4, 1), cache.bytes) == (None, tables[1], 800 * UNIT)
    cache.put(5, 1, b"c" * 300, 300 * UNIT - ITEM_BYTES)
    assert cache.get(5, 1) is None, "packed rows are read again, and not built"
    cache.put(6, 1, tables[2], 40 * UNIT - ITEM_BYTES)
    assert [cache.get(sequence, 1) for sequence in (1, 2, 4, 6)] == [b"a", None, tables[1], tables[2]]
    cache.segment_freed(3)
    assert cache.bytes == 800 * UNIT
    cache.segment_freed(4)
    cache.forget(6, 1)
    cache.forget(6, 1)
    assert (cache.get(4, 1), cache.get(6, 1), cache.bytes) == (None, None, 60 * UNIT)
    cache.put(7, 1, tables[0], 111 * UNIT - ITEM_BYTES)
    cache.forget(7, 1)
    assert (cache.get(7, 1), cache.bytes) == (None, 60 * UNIT)


def test_rows_of_very_many_ledgers_take_no_more_than_the_cache_may() -> None:
    """A row of 32 bytes cost 300: with a million of them the cache held ten times what it may."""
    cache = FooterCache(1 << 20)
    for ledger_id in range(10_000):
        cache.put(1, ledger_id, bytes(32), 32)
        cache.get(1, 7)
        assert cache.bytes <= 1 << 20
    held = [ledger_id for ledger_id in range(10_000) if cache.get(1, ledger_id) is not None]
    assert (1 << 20) // 300 * 7 // 8 <= len(held) <= (1 << 20) // 288
    assert held == [7, *range(10_000 - len(held) + 1, 10_000)], "the least recently used went"


def test_a_table_larger_than_the_cache_is_built_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """One entry that came twice made each read of the ledger in its segment look at all of its rows."""
    built: list[int] = []

    def counted(rows: bytes) -> RowTable:
        built.append(len(rows))
        return table_of(rows)

    monkeypatch.setattr(reading, "table_of", counted)
    files, callback = FaultyFiles(), Answers()
    storage = open_storage(files, replace(SMALL, footer_cache_bytes_max=1024))
    for entry_id in (*range(100), 50):
        put(storage, make_run(1, entry_id, entry_id, payload=b"p"), callback)
    settle(storage)
    first = fill_oldest(storage, callback)
    for entry_id in range(20):
        assert read_all(storage, 1, entry_id, entry_id) == {entry_id: b"p/%d" % entry_id}
    assert len(built) == 1
    assert storage.statistics()["footer_cache_bytes"] > 1024
    for ledger_id in (1, FILLER):
        storage.delete(ledger_id, 1 << 50, callback, None)
    settle(storage)
    assert storage.housekeeping.reclaim() == 1
    settle(storage)
    assert first not in storage.segments
    assert storage.statistics()["footer_cache_bytes"] <= 1024

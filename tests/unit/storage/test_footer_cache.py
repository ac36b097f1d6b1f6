"""Which rows of footers stay in memory; and that a table which is too large for them is built once, not at each read."""

from __future__ import annotations

from dataclasses import replace

import pytest

from quire.storage import reading
from quire.storage.footer_cache import FooterCache
from quire.storage.index import RowTable, table_of
from quire.wire.entry import Buffer
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


def test_the_least_used_rows_go_first_and_of_tables_that_are_too_large_the_last_stays() -> None:
    cache, tables = FooterCache(100), [RowTable() for _ in range(3)]
    cache.put(1, 1, b"a", 60)
    cache.put(2, 1, b"b", 40)
    assert cache.get(1, 1) == b"a"
    cache.put(3, 1, tables[0], 500)
    cache.put(4, 1, tables[1], 700)
    assert (cache.get(3, 1), cache.get(4, 1), cache.bytes) == (None, tables[1], 800)
    cache.put(5, 1, b"c" * 300, 300)
    assert cache.get(5, 1) is None, "packed rows are read again, and not built"
    cache.put(6, 1, tables[2], 40)
    assert [cache.get(sequence, 1) for sequence in (1, 2, 4, 6)] == [b"a", None, tables[1], tables[2]]
    cache.segment_gone(3)
    assert cache.bytes == 800
    cache.segment_gone(4)
    cache.forget(6, 1)
    cache.forget(6, 1)
    assert (cache.get(4, 1), cache.get(6, 1), cache.bytes) == (None, None, 60)
    cache.put(7, 1, tables[0], 101)
    cache.forget(7, 1)
    assert (cache.get(7, 1), cache.bytes) == (None, 60)


def test_a_table_larger_than_the_cache_is_built_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """One entry that came twice made each read of the ledger in its segment look at all of its rows."""
    built: list[int] = []

    def counted(rows: Buffer) -> RowTable:
        built.append(len(rows))
        return table_of(rows)

    monkeypatch.setattr(reading, "table_of", counted)
    files, sink = FaultyFiles(), Answers()
    storage = open_storage(files, replace(SMALL, footer_cache_bytes_max=1024))
    for entry_id in (*range(100), 50):
        put(storage, make_run(1, entry_id, entry_id, payload=b"p"), sink)
    settle(storage)
    first = fill_oldest(storage, sink)
    for entry_id in range(20):
        assert read_all(storage, 1, entry_id, entry_id) == {entry_id: b"p/%d" % entry_id}
    assert len(built) == 1
    assert storage.statistics()["footer_cache_bytes"] > 1024
    for ledger_id in (1, FILLER):
        storage.delete(ledger_id, 1 << 50, sink, None)
    settle(storage)
    assert storage.reclaim() == 1
    settle(storage)
    assert first not in storage.segments
    assert storage.statistics()["footer_cache_bytes"] <= 1024

"""What a metadata file tells at once, on the event loop: an older value perhaps, never a wrong one, and nothing in the way."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from quire.core.errors import CorruptMetadataError, MisuseError
from quire.metadata.sqlite.store import SqliteStore


@asynccontextmanager
async def in_store(path: Path) -> AsyncIterator[SqliteStore]:
    store = await SqliteStore.open(path, create=True)
    try:
        yield store
    finally:
        await store.close()


async def test_what_was_written_is_seen_with_its_version(tmp_path: Path) -> None:
    async with in_store(tmp_path / "metadata.db") as store:
        assert store.cached("a") is None
        version = await store.create("a", b"1")
        assert store.cached("a") == await store.get("a")
        await store.put("a", b"2", version)
        found = store.cached("a")
        assert found is not None and found.value == b"2"
        await store.delete("a")
        assert store.cached("a") is None


async def test_a_registration_is_not_seen(tmp_path: Path) -> None:
    """Whether its owner lives takes more than a look."""
    async with in_store(tmp_path / "metadata.db") as store:
        await store.register("bookies/1", b"here")
        assert await store.get("bookies/1") is not None
        assert store.cached("bookies/1") is None


async def test_it_waits_for_no_writer(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    async with in_store(path) as store:
        await store.create("a", b"1")
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        other.execute("UPDATE entries SET value = NULL WHERE key = 'a'")
        found = store.cached("a")
        assert found is not None and found.value == b"1", "the commit is not there yet"
        other.execute("ROLLBACK")
        other.close()


async def test_a_damaged_value_is_not_seen(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    async with in_store(path) as store:
        await store.create("a", b"1")
        other = sqlite3.connect(path, isolation_level=None)
        [(stored,)] = other.execute("SELECT value FROM entries WHERE key = 'a'")
        other.execute("UPDATE entries SET value = ? WHERE key = 'a'", [stored[:-1] + bytes([stored[-1] ^ 1])])
        other.close()
        assert store.cached("a") is None
        with pytest.raises(CorruptMetadataError):
            await store.get("a")


async def test_it_leaves_nothing_behind_and_ends_with_its_store(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    async with in_store(path) as store:
        await store.create("a", b"1")
        assert store.cached("a") is not None
    assert not list(tmp_path.glob("*-wal")), "the last one to close takes the log away"
    with pytest.raises(MisuseError, match="closed"):
        store.cached("a")

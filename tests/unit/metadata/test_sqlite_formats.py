"""A metadata file of revision 9e5fe3a: read, written, still what that program reads, and upgraded once and for all."""

import asyncio
import gzip
import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from quire.core.errors import CorruptMetadataError, DiskFullError, MisuseError
from quire.metadata.bookies import BookieRegistry
from quire.metadata.checked import HEAD, open_sealed, seal
from quire.metadata.ledgers import LedgerStore, ledger_key
from quire.metadata.sqlite.file import SqliteFile
from quire.metadata.sqlite.schema import TOO_OLD
from quire.metadata.sqlite.store import SqliteStore
from quire.metadata.store import Create, Upgraded

GOLDEN = Path(__file__).parents[2] / "vectors" / "golden_9e5fe3a" / "metadata.db.gz"
INSTANCE = "54d02935-bc30-42f5-b7af-82a9983dd84c"
OLD_UPSERT = """INSERT INTO entries (key, value, version, session) VALUES (?, ?, ?, ?)
    ON CONFLICT (key) DO UPDATE SET value = excluded.value, version = excluded.version, session = excluded.session"""


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "metadata.db"
    path.write_bytes(gzip.decompress(GOLDEN.read_bytes()))
    return path


def raw(path, query, *values):
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        return connection.execute(query, values).fetchall()


def values_of(path):
    return dict(raw(path, "SELECT key, value FROM entries WHERE value IS NOT NULL ORDER BY key"))


def schema_of(path):
    return raw(path, "SELECT type, name, sql FROM sqlite_schema ORDER BY name")


async def check(store):
    """What the old program left behind."""
    assert store.instance_id == INSTANCE
    ledgers = LedgerStore(store)
    for ledger_id, stored_format in ((1, 3), (2, 2), (3, 1)):
        record, _ = await ledgers.read(ledger_id)
        assert (record.format_version, record.last_entry, record.length) == (stored_format, 99, 9900)
    assert list(await BookieRegistry(store).list_cookies()) == ["a:3181", "b:3181", "c:3181"]
    assert await BookieRegistry(store).available() == {}  # its owner is dead
    assert (await store.get("log-names/first")).value == bytes.fromhex("08011210") + bytes(range(16))


async def test_a_file_of_format_1_is_read_and_written_as_the_old_program_does(path):
    schema, values = schema_of(path), values_of(path)
    async with await SqliteStore.open(path) as store:
        assert store.format == 1
        await check(store)
        found = await store.get("cookies/a:3181")
        await store.put("cookies/a:3181", b"4\nnew", found.version)
        await store.create("b", b"\0QC")
        held = await store.register("bookies/available/d:1", b"x")
        await held.update(b"y")
        assert raw(path, "SELECT value FROM entries WHERE key = ?", held.key) == [(b"y",)]
        assert await store.next_ledger_id() > 4
        for value in (HEAD, b"x" + HEAD[::-1], seal("c", b"v")):
            with pytest.raises(MisuseError, match="quire cluster upgrade") as caught:
                await store.create("c", value)
            assert caught.value.ids == {"key": "c"}
        assert await store.get("c") is None
    del values["bookies/available/a:3181"]
    assert values_of(path) == values | {"cookies/a:3181": b"4\nnew", "b": b"\0QC"}
    assert schema_of(path) == schema
    assert raw(path, "PRAGMA user_version") == [(1,)]
    assert raw(path, "PRAGMA integrity_check") == [("ok",)]


async def test_an_upgrade_seals_every_value_and_keeps_versions(path):
    versions = raw(path, "SELECT key, version FROM entries ORDER BY key")
    values = values_of(path)
    async with await SqliteStore.open(path) as store:
        await check(store)
        before = raw(path, "SELECT key, version FROM entries ORDER BY key")
        assert await store.upgrade() == Upgraded(1, 7)
        assert store.format == 2
        assert raw(path, "SELECT key, version FROM entries ORDER BY key") == before
        assert await store.upgrade() == Upgraded(2, 0)
        await check(store)
        await store.create("new", HEAD)
        assert (await store.get("new")).value == HEAD
    async with await SqliteStore.open(path) as store:
        await check(store)
        assert store.format == 2
    stored = values_of(path)
    assert stored.pop("new") == seal("new", HEAD)
    assert {key: open_sealed(key, value) for key, value in stored.items()} | {
        "bookies/available/a:3181": values["bookies/available/a:3181"]
    } == values
    assert all(value == seal(key, values[key]) for key, value in stored.items())
    assert len(versions) == 9
    assert raw(path, "PRAGMA integrity_check") == [("ok",)]
    # An upgraded file and a new one are the same.
    fresh = path.with_name("fresh.db")
    SqliteFile(fresh, create=True).close()
    assert schema_of(fresh) == schema_of(path)


async def test_who_has_the_file_open_seals_from_the_upgrade_on(path):
    async with await SqliteStore.open(path) as beside, await SqliteStore.open(path) as other:
        held = await beside.register("r", b"1")
        await beside.create("before", b"1")
        async with beside.watch("") as changes:
            await anext(changes)
            await other.upgrade()
            assert (beside.format, other.format) == (1, 2)
            assert (await beside.get("before")).value == b"1"
            await beside.create("after", b"1")
            assert beside.format == 2
            assert await anext(changes) == {"after"}
        await held.update(b"2")
        rows = raw(path, "SELECT key, value FROM entries WHERE key IN ('r', 'before', 'after')")
        assert dict(rows) == {key: seal(key, b"2" if key == "r" else b"1") for key, _ in rows}
        assert len(rows) == 3
        assert await beside.upgrade() == Upgraded(2, 0)


async def test_changes_in_one_commit_with_the_upgrade_are_sealed(path):
    async with await SqliteStore.open(path) as store:
        await asyncio.gather(store.create("x", b"1"), store.upgrade(), store.create("y", b"1"))
        assert [(await store.get(key)).value for key in "xy"] == [b"1", b"1"]
    stored = values_of(path)
    assert (stored["x"], stored["y"]) == (seal("x", b"1"), seal("y", b"1"))


async def test_an_upgrade_that_does_not_fit_has_not_happened(path):
    # Checksums need more pages than there are.
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for number in range(400):
            connection.execute(OLD_UPSERT, (f"fill/{number}", bytes(200), 20 + number, None))
        connection.execute("UPDATE counters SET revision = 500")
    async with await SqliteStore.open(path) as store:
        file = store._thread.file
        pages = await store._ask(lambda: file._one("PRAGMA page_count"))
        await store._ask(lambda: file._one(f"PRAGMA max_page_count = {pages}"))
        with pytest.raises(DiskFullError, match="nothing was changed"):
            await store.upgrade()
        assert store.format == 1
        await store._ask(lambda: file._one("PRAGMA max_page_count = 1000000"))
        await store.create("z", b"1")
        assert raw(path, "SELECT value FROM entries WHERE key = 'z'") == [(b"1",)]
        assert {value for key, value in values_of(path).items() if "fill/" in key} == {bytes(200)}
        assert (await store.upgrade()).before == 1


async def test_an_old_program_that_has_the_file_open_is_told_at_its_next_change(path):
    """The statements are those of revision 9e5fe3a."""
    with closing(sqlite3.connect(path, isolation_level=None)) as old:
        old.execute("BEGIN IMMEDIATE")
        counters = "SELECT revision, trimmed, next_ledger FROM counters"
        revision, trimmed, next_ledger = old.execute(counters).fetchone()
        old.executemany(OLD_UPSERT, [("old", b"1", revision + 1, None)])
        change = "UPDATE counters SET revision = ?, trimmed = ?, next_ledger = ?"
        old.execute(change, (revision + 1, trimmed, next_ledger))
        old.execute("COMMIT")
        async with await SqliteStore.open(path) as store:
            await store.upgrade()
        old.execute("BEGIN IMMEDIATE")
        for key in ("old", "new"):
            with pytest.raises(sqlite3.IntegrityError, match=TOO_OLD):
                old.executemany(OLD_UPSERT, [(key, b"2", revision + 2, None)])
        # It may take back what it registered, and give itself ids: the counters stay right.
        revision, trimmed, next_ledger = old.execute(counters).fetchone()
        old.executemany(OLD_UPSERT, [("old", None, revision + 1, None)])
        old.execute(change, (revision + 1, trimmed, next_ledger + 5))
        old.execute("COMMIT")
    async with await SqliteStore.open(path) as store:
        assert await store.get("old") is None
        assert await store.next_ledger_id() == next_ledger + 5


# --- damage -----------------------------------------------------------------------------------------------------


async def test_a_damaged_value_is_an_error_that_names_the_key_and_can_be_replaced(tmp_path):
    path = tmp_path / "metadata.db"
    async with await SqliteStore.open(path, create=True) as store:
        versions = [await store.create(ledger_key(number), b"value") for number in range(3)]
        stored = seal(ledger_key(1), b"value")
        raw(path, "UPDATE entries SET value = ? WHERE key = ?", stored[:-1] + b"\1", ledger_key(1))
        with pytest.raises(CorruptMetadataError, match=ledger_key(1)):
            await store.get(ledger_key(1))
        with pytest.raises(CorruptMetadataError, match=ledger_key(1)):
            await LedgerStore(store).read(1)
        assert await LedgerStore(store).list() == [0, 1, 2]  # it hides nobody else
        page = await LedgerStore(store).page()
        assert [value.version for _, value in page] == versions
        assert page[2][1].value == b"value"
        with pytest.raises(CorruptMetadataError, match=ledger_key(1)):
            _ = page[1][1].value
        await store.put(ledger_key(1), b"again", versions[1])
        assert (await store.get(ledger_key(1))).value == b"again"
        raw(path, "UPDATE entries SET value = ? WHERE key = ?", stored[1:], ledger_key(1))
        await store.delete(ledger_key(1))
        assert await store.get(ledger_key(1)) is None


def test_every_flipped_bit_of_the_counters_is_found_or_changes_nothing(tmp_path):
    path = tmp_path / "metadata.db"
    file = SqliteFile(path, create=True)
    for _ in range(300):
        file.begin()
        file.apply([Create(f"k{file.revision}", b"")])
        file.reserve_ledger_ids(3)
        file.commit()
    known = (file.instance_id, file.generation, file._counters())
    identity = file._one("SELECT identity FROM counters").encode()
    file.close()
    whole = path.read_bytes()
    end = whole.index(identity) + len(identity)
    assert whole.count(identity) == 1
    found, refused = [], set()
    with open(path, "r+b") as opened:  # the same file: another one is a copy, with another generation
        for bit in range(8 * (end - 140), 8 * end):
            spoilt = bytearray(whole)
            spoilt[bit // 8] ^= 1 << bit % 8
            os.pwrite(opened.fileno(), spoilt, 0)
            try:
                file = SqliteFile(path, create=False)
                found.append((file.instance_id, file.generation, file._counters()) == known)
                file.close()
            except CorruptMetadataError as error:
                refused.add(str(path) in error.message)
        os.pwrite(opened.fileno(), whole, 0)
    assert all(found)
    assert refused == {True}
    assert len(found) < 300  # of 1,120: those before the row, and the row's own number

"""Damage in a metadata file is an error that names the key, or the file."""

import os
import sqlite3
from contextlib import closing

import pytest

from quire.core.errors import CorruptMetadataError
from quire.metadata.checked import seal
from quire.metadata.records import OF_LEDGERS, RecordStore
from quire.metadata.sqlite.file import SqliteFile
from quire.metadata.sqlite.store import SqliteStore
from quire.metadata.store import Create


def raw(path, query, *values):
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        return connection.execute(query, values).fetchall()


async def test_a_damaged_value_is_an_error_that_names_the_key_and_can_be_replaced(tmp_path):
    path = tmp_path / "metadata.db"
    async with await SqliteStore.open(path, create=True) as store:
        versions = [await store.create(OF_LEDGERS.key(number), b"value") for number in range(3)]
        stored = seal(OF_LEDGERS.key(1), b"value")
        raw(path, "UPDATE entries SET value = ? WHERE key = ?", stored[:-1] + b"\1", OF_LEDGERS.key(1))
        with pytest.raises(CorruptMetadataError, match=OF_LEDGERS.key(1)):
            await store.get(OF_LEDGERS.key(1))
        with pytest.raises(CorruptMetadataError, match=OF_LEDGERS.key(1)):
            await RecordStore(store, OF_LEDGERS).read(1)
        assert await RecordStore(store, OF_LEDGERS).list() == [0, 1, 2]  # it hides nobody else
        page = await RecordStore(store, OF_LEDGERS).page()
        assert [value.version for _, value in page] == versions
        assert page[2][1].value == b"value"
        with pytest.raises(CorruptMetadataError, match=OF_LEDGERS.key(1)):
            _ = page[1][1].value
        await store.put(OF_LEDGERS.key(1), b"again", versions[1])
        assert (await store.get(OF_LEDGERS.key(1))).value == b"again"
        raw(path, "UPDATE entries SET value = ? WHERE key = ?", stored[1:], OF_LEDGERS.key(1))
        await store.delete(OF_LEDGERS.key(1))
        assert await store.get(OF_LEDGERS.key(1)) is None


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

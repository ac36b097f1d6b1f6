"""A cluster of revision 9e5fe3a: its metadata key by key, and all that its bookies hold, read by today's programs."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from quire.bookie.config import BookieConfig
from quire.bookie.server import BookieServer
from quire.client.bookies.bookies import BookieClient
from quire.core.errors import NoSuchLedgerError
from quire.core.ledger.metadata import LedgerState
from quire.env.real import RealClock
from quire.log.client import QuireClient
from quire.metadata.bookies import BookieInfo, BookieRegistry
from quire.metadata.connect import open_store
from quire.metadata.sqlite.file import RESTORE_LEAP
from quire.metadata.store import MetadataStore
from quire.storage.config import StorageConfig
from quire.wire import ledger_metadata
from quire.wire.log_cursors import decode_cursor, encode_cursor
from quire.wire.log_records import (
    decode_head,
    decode_name,
    decode_page,
    encode_head,
    encode_name,
    encode_page,
)
from support.golden import FOLDER, digest, unpack

CLUSTER = json.loads((FOLDER / "cluster.json").read_text())
KEYS: dict[str, list[Any]] = CLUSTER["keys"]
SMALL = StorageConfig(segment_bytes=128 * 1024, group_bytes_max=16 * 1024, spares_max=3)
PASSWORD = b"secret"
LIMIT_S = 60


def value_of(key: str) -> bytes:
    return bytes.fromhex(KEYS[key][0])


def under(prefix: str) -> list[str]:
    return [key for key in KEYS if key.startswith(prefix)]


@pytest.mark.parametrize("key", under("ledgers/"))
def test_a_ledgers_record_is_read_and_made_by_the_same_bytes(key: str) -> None:
    value = value_of(key)
    record = ledger_metadata.parse(value, int(key.rpartition("/")[2]))
    assert ledger_metadata.serialize(record) == value


def test_records_of_logs_are_read_and_made_by_the_same_bytes() -> None:
    for key in under("log-names/"):
        name = key.removeprefix("log-names/")
        assert encode_name(decode_name(value_of(key), name)) == value_of(key)
    for key in under("logs/"):
        assert encode_head(decode_head(value_of(key), bytes.fromhex(key.removeprefix("logs/")))) == value_of(
            key
        )
    pages = under("log-pages/")
    assert len(pages) > 1
    for key in pages:
        _, log_id, name = key.split("/")
        assert encode_page(decode_page(value_of(key), bytes.fromhex(log_id), name)) == value_of(key)
    for key in under("log-cursors/"):
        _, owner, name = key.split("/")
        cursor = decode_cursor(value_of(key), owner, name)
        assert (cursor.offset, cursor.hold, cursor.holder) == (57, True, "reader one")
        assert encode_cursor(cursor) == value_of(key)


@pytest.mark.parametrize("key", CLUSTER["registrations"])
def test_a_registration_is_read_and_made_by_the_same_bytes(key: str) -> None:
    value = bytes.fromhex(CLUSTER["registrations"][key])
    info = BookieInfo.parse(key.rpartition("/")[2], value, writable=True)
    assert info is not None
    assert info.native == (info.port, 1)
    assert info.serialize() == value


async def all_keys(store: MetadataStore) -> dict[str, list[Any]]:
    found = {}
    after = None
    while page := await store.list("", after=after, limit=7):
        found.update({key: [value.value.hex(), value.version] for key, value in page})
        after = page[-1][0]
    return found


def test_the_metadata_file_holds_the_same_keys(tmp_path: Path) -> None:
    async def work() -> None:
        folder = unpack(FOLDER / "cluster.tar.xz", tmp_path / "cluster")
        async with await open_store(f"sqlite:{folder / 'metadata.db'}") as store:
            assert store.instance_id == CLUSTER["instance"]
            assert await all_keys(store) == KEYS
            # The file is a copy: ids that the original may have given away since are not given again.
            assert await store.next_ledger_id() == CLUSTER["next_ledger"] + 1 + RESTORE_LEAP
            # What is written now lies beside it, and is still there for the next who opens the file.
            await store.create("cookies/new", b"\0value")
        async with await open_store(f"sqlite:{folder / 'metadata.db'}") as store:
            found = await all_keys(store)
            assert found.pop("cookies/new")[0] == b"\0value".hex()
            assert found == KEYS

    asyncio.run(asyncio.wait_for(work(), LIMIT_S))


@asynccontextmanager
async def started(folder: Path) -> AsyncIterator[QuireClient]:
    """Today's bookies on the old directories, and a client."""
    uri = f"sqlite:{folder / 'metadata.db'}"
    bookies = []
    store = await open_store(uri)
    for name in CLUSTER["bookies"]:
        config = BookieConfig(directory=folder / name, name=name, storage=SMALL, garbage_seconds=0)
        bookies.append(BookieServer(config, await open_store(uri)))
        await bookies[-1].start()
    connections = BookieClient(BookieRegistry(store), store.instance_id)
    await connections.start()
    client = QuireClient(store, connections, RealClock(), random.Random(7))
    try:
        yield client
    finally:
        await client.close()
        for bookie in bookies:
            await bookie.stop()
            await bookie.store.close()


def test_ledgers_and_logs_are_read_by_todays_bookies_and_client(tmp_path: Path) -> None:
    async def work() -> None:
        folder = unpack(FOLDER / "cluster.tar.xz", tmp_path / "cluster")
        async with started(folder) as client:
            for ledger in CLUSTER["ledgers"]:
                reader = await client.open_ledger(ledger["ledger_id"], password=PASSWORD)
                record, _ = await client.ledger_store.read(ledger["ledger_id"])
                assert record.state is LedgerState.CLOSED
                shape = [record.ensemble_size, record.write_quorum, record.ack_quorum]
                assert shape == ledger["shape"]
                found = [digest(entry.payload) async for entry in reader.read()]
                assert found == ledger["payloads"]
            with pytest.raises(NoSuchLedgerError):
                await client.open_ledger(CLUSTER["deleted"], password=PASSWORD)
            facts = CLUSTER["log"]
            log = client.log(facts["name"], PASSWORD)
            described = await log.describe()
            assert described.log_id == facts["log_id"]
            start = described.start_offset
            found = {str(record.offset): digest(record.value) async for record in log.read(start)}
            assert found == facts["records"]
            async with await log.open_writer() as writer:
                assert await writer.append(b"a record of today") == int(max(found, key=int)) + 1

    asyncio.run(asyncio.wait_for(work(), LIMIT_S))

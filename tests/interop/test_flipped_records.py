"""One bit of a record in the metadata store is another: whoever reads it is told its key, and no bookie drops anything.

Source: `docs/protocol/collection.md`; `docs/formats/metadata.md`, "Checked values".
"""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import quire
from interop.test_space_after_deletion import bookies_on, uri_of
from quire.core.errors import CorruptMetadataError
from quire.metadata.keys import passes_key, tombstone_key
from quire.metadata.records import OF_LEDGERS, RecordStore

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

STEP = 11
Write = Callable[[str, bytes], Awaitable[None]]
Read = Callable[[str], Awaitable[bytes]]


def raw_sqlite(path: Path) -> tuple[Read, Write]:
    """Values as the file has them, past all that checks them."""

    async def read(key: str) -> bytes:
        with closing(sqlite3.connect(path)) as file:
            (value,) = file.execute("SELECT value FROM entries WHERE key = ?", (key,)).fetchone()
        return bytes(value)

    async def write(key: str, value: bytes) -> None:
        with closing(sqlite3.connect(path)) as file, file:
            file.execute("UPDATE entries SET value = ? WHERE key = ?", (value, key))

    return read, write


def raw_etcd(store: Any) -> tuple[Read, Write]:
    """Values as the server has them."""
    from quire.metadata.etcd.connection import TXN
    from quire.metadata.etcd.keys import put
    from quire.metadata.etcd.keys import read as asked
    from quire.wire.proto.etcd_pb2 import TxnRequest

    async def read(key: str) -> bytes:
        request = TxnRequest(success=[asked(store._layout.key(key))])
        answer = await store._connection.read(TXN, request)
        return bytes(answer.responses[0].response_range.kvs[0].value)

    async def write(key: str, value: bytes) -> None:
        await store._connection.read(TXN, TxnRequest(success=[put(store._layout.key(key), value)]))

    return read, write


async def error_of(asked: Awaitable[Any]) -> str:
    """What is told of damage; empty if nothing is."""
    try:
        value = await asked
        assert not isinstance(value, int) or value == 0, "a ledger was dropped"
        assert getattr(value, "value", b"?"), "damage is told when the value is looked at"
    except CorruptMetadataError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("kind", ["sqlite", "etcd"])
async def test_every_eleventh_bit(kind: str, tmp_path: Path) -> None:
    uri = uri_of(kind, tmp_path)
    async with bookies_on(uri, tmp_path, count=2) as (server, other), quire.connect(uri) as client:
        ids: list[int] = []
        for _ in range(4):
            async with await client.create_ledger(ensemble_size=2, write_quorum=2, ack_quorum=2) as ledger:
                await ledger.append(b"entry")
            ids.append(int(ledger.ledger_id))
        await other.collector.collect()  # its watermark passes no tombstone: this is its last pass
        for _ in range(2):
            await server.collector.collect()
        records = RecordStore(server.store, OF_LEDGERS)
        read, write = raw_sqlite(tmp_path / "metadata.db") if kind == "sqlite" else raw_etcd(server.store)
        # A tombstone whose ledger is there again: Java creates such, and whoever believed the tombstone would drop it.
        again, _ = await records.read(ids[3])
        await records.delete(ids[3])
        await records.create(again)
        named = 0
        for key in (
            OF_LEDGERS.key(ids[0]),
            tombstone_key(ids[3]),
            passes_key(server.bookie_id),
        ):
            whole = await read(key)
            for at in range(0, len(whole) * 8, STEP):
                flipped = bytearray(whole)
                flipped[at // 8] ^= 1 << at % 8
                await write(key, bytes(flipped))
                told = [await error_of(look) for look in (server.store.get(key), server.collector.collect())]
                assert all(key in error for error in told if error), (key, at, told)
                named += any(told)
                assert all(server.storage.held(ledger_id) for ledger_id in ids), (key, at)
                await write(key, whole)
            assert await server.collector.collect() == 0
        assert named > 100, "a flipped bit is an error"

"""`quire bookie forget`: a bookie that a record names, or may name, stays one of the cluster's."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from quire.cli.main import app
from quire.core.ids import BookieId
from quire.core.ledger.metadata import new_stream
from quire.metadata.bookies import BookieInfo, BookieRegistry
from quire.metadata.records import OF_STREAMS, AllRecords
from quire.metadata.sqlite.store import SqliteStore
from support.records import record_of

GONE, OTHER = BookieId("b3.x7k2pq"), BookieId("b4.aaaaaa")


async def a_ledger(store: SqliteStore) -> None:
    await AllRecords(store).ledgers.create(record_of(8, [GONE], password=b""))


async def a_stream(store: SqliteStore) -> None:
    record = new_stream(record_of(9, [GONE], password=b""), owner=1)
    await AllRecords(store).streams.create(record, "orders")


async def a_damaged_stream(store: SqliteStore) -> None:
    await store.create(OF_STREAMS.key(9), b"the record of a later version")


async def others(store: SqliteStore) -> None:
    records = AllRecords(store)
    await records.ledgers.create(record_of(8, [OTHER], password=b""))
    record = new_stream(record_of(9, [OTHER], password=b""), owner=1)
    await records.streams.create(record, "orders")


def forget(tmp_path: Path, fill: Callable[[SqliteStore], Awaitable[None]]) -> tuple[int, dict[str, Any]]:
    """What the command says of a bookie in a cluster with these records: exit code, and the last line."""
    path = tmp_path / "metadata.db"

    async def filled() -> None:
        async with await SqliteStore.open(path, create=True) as store:
            await BookieRegistry(store).write_cookie(GONE, b"a cookie")
            await fill(store)

    asyncio.run(filled())
    command = ["bookie", "forget", GONE, "--json", "--cluster", f"sqlite:{path}"]
    result = CliRunner().invoke(app, command)
    return result.exit_code, json.loads((result.stdout or result.stderr).splitlines()[-1])


@pytest.mark.parametrize(
    ("fill", "says"),
    [
        (a_ledger, f"bookie {GONE} is named by 1 ledger (8)."),
        (a_stream, f"bookie {GONE} is named by 1 stream (orders)."),
        (a_damaged_stream, f"bookie {GONE} may be named by a stream whose record cannot be read"),
    ],
)
def test_a_bookie_that_is_or_may_be_named_is_not_forgotten(
    tmp_path: Path, fill: Callable[[SqliteStore], Awaitable[None]], says: str
) -> None:
    code, said = forget(tmp_path, fill)
    assert (code, said["error"]["message"][: len(says)]) == (1, says)


def test_a_bookie_that_starts_while_the_records_are_looked_at_is_not_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = AllRecords.page

    async def page_beside_a_start(self: AllRecords, after: int | None = None) -> Any:
        await BookieRegistry(self._store).register(BookieInfo(GONE, "127.0.0.1", 3181))
        return await page(self, after)

    monkeypatch.setattr(AllRecords, "page", page_beside_a_start)
    code, said = forget(tmp_path, others)
    assert (code, said["error"]["message"]) == (1, f"bookie {GONE} is registered: stop it first")


def test_a_bookie_that_no_record_names_is_forgotten(tmp_path: Path) -> None:
    assert forget(tmp_path, others) == (0, {"bookie": GONE, "forgotten": True})

"""Handles on another event loop than their own: each call is refused at once, and they go on at home."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import quire
from quire.bookie.config import BookieConfig
from quire.bookie.server import BookieServer
from quire.core.errors import MisuseError
from quire.metadata.connect import open_store


async def first_of(items: AsyncIterator[Any]) -> Any:
    async for item in items:
        return item
    return None


def calls(handles: dict[str, Any]) -> list[Callable[[], Awaitable[Any]]]:
    client, log, writer = handles["client"], handles["log"], handles["writer"]
    ledger, reader, stream, term = (handles[name] for name in ("ledger", "reader", "stream", "term"))
    return [
        client.create_ledger, client.logs, client.close, client.available_bookies, lambda: first_of(client.ledgers()),
        lambda: first_of(log.read(0)), lambda: first_of(log.tail(0)), log.open_writer, log.cursors, log.describe,
        lambda: writer.append(b"x"), lambda: writer.append_many([b"x"]), writer.drain, writer.roll, writer.close,
        writer.abandon, lambda: writer.append_nowait(b"x"),
        lambda: ledger.append(b"x"), lambda: ledger.append_many([b"x"]), ledger.drain, ledger.close, ledger.release,
        ledger.abandon, lambda: ledger.append_nowait(b"x"), lambda: term.append_nowait(b"x"),
        lambda: first_of(reader.read(0, 0)), lambda: first_of(reader.tail()), reader.refresh,
        stream.open_writer, stream.show, lambda: first_of(stream.read()),
    ]  # fmt: skip


async def opened(uri: str) -> dict[str, Any]:
    client = await quire.connect(uri)
    log, stream, ledger = (
        client.log("orders"),
        client.unbounded_ledger("orders"),
        await client.create_ledger(),
    )
    await log.create()
    await stream.create()
    await ledger.append(b"0")
    return {
        "client": client,
        "log": log,
        "writer": await log.open_writer(),
        "ledger": ledger,
        "reader": await client.open_ledger(ledger.ledger_id, recover=False),
        "stream": stream,
        "term": await stream.open_writer(),
    }


async def all_refuse(handles: dict[str, Any]) -> None:
    for call in calls(handles):
        with pytest.raises(MisuseError):
            await asyncio.wait_for(call(), 10)


def test_another_threads_loop_is_refused_and_so_is_a_second_run(tmp_path: Path) -> None:
    handles: dict[str, Any] = {}

    async def at_home() -> None:
        uri = f"sqlite:{tmp_path}/metadata.db"
        store = await open_store(uri, create=True)
        bookies = [BookieServer(BookieConfig(tmp_path / f"b{n}", name=f"b{n}"), store) for n in range(3)]
        for bookie in bookies:
            await bookie.start()
        handles.update(await opened(uri))
        await asyncio.to_thread(lambda: asyncio.run(all_refuse(handles)))
        assert [await handles["writer"].append(b"1"), await handles["ledger"].append(b"1")] == [0, 1]
        for handle in handles.values():
            with pytest.raises(MisuseError, match="neither pickled nor copied"):
                pickle.dumps(handle)
        await handles["client"].close()
        for bookie in bookies:
            await bookie.stop()
        await store.close()

    asyncio.run(at_home())
    asyncio.run(all_refuse(handles))

"""Sessions with ZooKeeper that never come about."""

from __future__ import annotations

import asyncio
import threading

import pytest

from quire.metadata.zookeeper import session as zookeeper_session
from quire.metadata.zookeeper.options import ZookeeperAddress, ZookeeperOptions
from quire.metadata.zookeeper.store import ZookeeperStore
from support.waiting import until_async


async def test_a_server_that_is_silent_delays_no_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """An attempt to connect lasts as long as a session may, and is not waited for."""
    monkeypatch.setattr(zookeeper_session, "CLOSE_S", 0.01)
    before = set(threading.enumerate())
    came, asked = asyncio.Event(), asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(1)
        came.set()
        await asked.wait()
        writer.close()

    async with await asyncio.start_server(silent, "127.0.0.1") as server:
        host = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        address = ZookeeperAddress((host,), "/ledgers", ZookeeperOptions(session_timeout_ms=600_000))
        opening = asyncio.ensure_future(ZookeeperStore.open(address))
        await came.wait()
        opening.cancel()
        await asyncio.wait({opening}, timeout=20)
        assert opening.cancelled()
        await until_async(lambda: not set(threading.enumerate()) - before, "kazoo to end", 10)
        asked.set()


async def test_an_opening_that_is_cancelled_leaves_no_thread_behind() -> None:
    before = set(threading.enumerate())

    def more() -> list[threading.Thread]:
        return [
            thread
            for thread in threading.enumerate()
            if thread not in before and "asyncio" not in thread.name
        ]

    opening = asyncio.ensure_future(ZookeeperStore.open(ZookeeperAddress(("127.0.0.1:1",), "/ledgers")))
    await until_async(more, "kazoo to try")
    opening.cancel()
    await asyncio.wait({opening})
    assert opening.cancelled()
    await until_async(lambda: not more(), "kazoo to end", 10)

"""A bookie that was gone and registers again is known to have come back."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from quire.client.bookies.bookies import BookieClient
from quire.core.answers import Answer
from quire.core.ids import BookieId
from quire.metadata.bookies import BookieInfo, BookieRegistry
from quire.metadata.memory import MemoryStore
from support.waiting import until_async


async def test_who_registers_again_is_reported_once() -> None:
    store = MemoryStore()
    registry = BookieRegistry(store)
    client = BookieClient(registry, store.instance_id)
    returned: list[BookieId] = []
    client.on_return = returned.append
    stays = await registry.register(BookieInfo(BookieId("b1.aaaaa"), "127.0.0.1", 1))
    goes = await registry.register(BookieInfo(BookieId("b2.bbbbb"), "127.0.0.1", 2))
    await client.start()
    assert returned == [], "who is there from the beginning has not come back"
    await goes.close()
    await until_async(lambda: client.writable() == ["b1.aaaaa"], "the loss to be seen")
    again = await registry.register(BookieInfo(BookieId("b2.bbbbb"), "127.0.0.1", 2))
    await until_async(lambda: len(client.writable()) == 2, "the return to be seen")
    assert returned == ["b2.bbbbb"]
    for registration in (stays, again):
        await registration.close()
    await client.close()
    await store.close()


async def test_who_registers_an_address_that_is_none_is_unreachable_until_it_registers_another() -> None:
    store = MemoryStore()
    registry = BookieRegistry(store)
    wrong = BookieInfo(BookieId("b1.aaaaa"), "rack..b1", 1)
    registration = await registry.register(wrong)
    client = BookieClient(registry, store.instance_id)
    await client.start()
    answer, _ = await client.info(wrong.bookie_id, timeout_ms=60_000)
    assert answer is Answer.UNREACHABLE
    connected = asyncio.Queue[asyncio.StreamWriter]()
    server = await asyncio.start_server(lambda _, writer: connected.put_nowait(writer), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    await registration.update(replace(wrong, host="127.0.0.1", port=port))
    await until_async(lambda: client._known[wrong.bookie_id].port == port, "the new address to be seen")
    asking = asyncio.ensure_future(client.info(wrong.bookie_id))
    accepted = await connected.get()
    await client.close()
    await asking
    accepted.close()
    await accepted.wait_closed()
    server.close()
    await registration.close()
    await store.close()


async def test_a_list_that_comes_late_brings_no_address_of_before(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    registry = BookieRegistry(store)
    old = BookieInfo(BookieId("b1.aaaaa"), "127.0.0.1", 1)
    registration = await registry.register(old)
    client = BookieClient(registry, store.instance_id)
    await client.start()
    asked, may_come = asyncio.Event(), asyncio.Event()

    async def late() -> dict[BookieId, BookieInfo]:
        found = await BookieRegistry(store).available()
        if asyncio.current_task() is asking:  # and not the watch
            asked.set()
            await may_come.wait()
        return found

    monkeypatch.setattr(registry, "available", late)
    asking = asyncio.ensure_future(client.bookies())
    await asked.wait()
    await registration.update(replace(old, port=2))
    await until_async(lambda: client._known[old.bookie_id].port == 2, "the new address to be seen")
    may_come.set()
    assert (await asking)[old.bookie_id].port == 1
    assert client._known[old.bookie_id].port == 2
    await client.close()
    await registration.close()
    await store.close()

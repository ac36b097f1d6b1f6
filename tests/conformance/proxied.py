"""A store behind a proxy that fails like a network, and what is asked of every store there."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from conformance.metadata_drivers import clients, present, until
from quire.core.errors import MetadataUnknownError
from quire.metadata.keys import lock_key
from quire.metadata.store import StoreAwayError
from support.tcp_proxy import tcp_proxy


@asynccontextmanager
async def behind(driver, open_through):
    """A store that a test may cut off, opened by `open_through(proxy)`, and one that it may not."""
    host, port = driver.server.host.split(":")
    async with clients(driver, 1) as (other,), tcp_proxy(host, int(port)) as proxy:
        store = await open_through(proxy)
        try:
            yield store, other, proxy
        finally:
            await store.close()


async def lose_answer(proxy, change, happened, *, cut=False):
    """Start a change whose answer is lost although it happens; with `cut` nothing passes from then on."""
    proxy.lose_answers()
    task = asyncio.ensure_future(change)
    await until(happened)
    if not cut:
        proxy.pass_everything()
    return task


async def a_registration_settles_a_lost_answer(store, other, proxy):
    task = await lose_answer(
        proxy,
        store.register("bookies/available/b:1", b"x"),
        lambda: present(other, "bookies/available/b:1", b"x"),
    )
    held = await task
    await held.update(b"y")
    assert (await other.get(held.key)).value == b"y"

    first = await store.register("e/n-", b"", sequential=True)

    async def numbered():
        return len(await other.list("e/")) == 2

    task = await lose_answer(proxy, store.register("e/n-", b"", sequential=True), numbered)
    numbered_one = await task
    assert [key for key, _ in await other.list("e/")] == [first.key, numbered_one.key]
    await numbered_one.close()
    assert [key for key, _ in await other.list("e/")] == [first.key]
    assert held.renewed == 0


async def a_lock_whose_answer_is_lost_is_not_left_to_nobody(store, other, proxy):
    """`store` has little patience. Its session lives on, and so would a lock that its owner does not know of."""
    key = lock_key(7)
    first = await store.register(lock_key(6), b"", again=False)

    async def give_one_up():
        task = await lose_answer(
            proxy, store.register(key, b"x", again=False), lambda: present(other, key, b"x"), cut=True
        )
        proxy.refuse()
        with pytest.raises((MetadataUnknownError, StoreAwayError)):
            await task
        proxy.pass_everything()

    await give_one_up()
    held = await _registered(store, key, b"y")
    assert await present(other, key, b"y")
    await held.close()
    assert await other.get(key) is None
    await give_one_up()

    async def gone():
        return await other.get(key) is None

    await until(gone)
    assert not held.lost.is_set()
    assert not first.lost.is_set(), "it was not the end of the session"


async def _registered(store, key, value):
    """A registration, as soon as the store is reached again."""
    while True:
        try:
            return await store.register(key, value, again=False)
        except StoreAwayError:
            continue

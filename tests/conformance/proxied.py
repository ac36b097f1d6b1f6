"""A store behind a proxy that fails like a network, and what is asked of every store there."""

import asyncio
import functools
from contextlib import asynccontextmanager

from conformance import metadata_drivers
from conformance.metadata_drivers import clients, present, until
from support.tcp_proxy import tcp_proxy

run = functools.partial(metadata_drivers.run, patience_s=120)


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

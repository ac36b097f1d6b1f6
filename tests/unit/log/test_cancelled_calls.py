"""Cancelled calls leave nothing behind: no place in the election, no task, no exception that nobody heard of."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator, Awaitable
from typing import Any

import pytest

from quire.core.errors import QuireError
from quire.log.log import Log
from quire.log.writer import LogWriter
from support.log_cluster import World, take
from support.rounds import rounds
from support.waiting import until_async

TURNS = rounds(12, 100)
"""So many turns of the loop later, at most, a call is cancelled."""


async def cancelled_after(turns: int, call: Awaitable[Any]) -> Any:
    """Cancel a call after so many turns of the loop; what it came to if that was sooner."""
    task = asyncio.ensure_future(call)
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError, QuireError):
        return await task
    return None


async def nobody_stands(log: Log) -> None:
    """Wait until no writer has a place in the election; the test's limit of time says if one keeps it."""
    async with asyncio.timeout(10):
        async with await log.open_writer(wait_for_leadership=True):
            pass


@contextlib.asynccontextmanager
async def leaving_nothing(at: World) -> AsyncIterator[Log]:
    """A log; at the end only the tasks of before are left, and the loop was told of no error."""

    def names() -> set[str]:
        return {repr(task.get_coro()).split(" at ")[0] for task in asyncio.all_tasks()}

    told: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, what: told.append(what))
    log = await at.made()
    await nobody_stands(log)
    before = names()
    yield log
    await until_async(lambda: names() <= before)
    gc.collect()
    await asyncio.sleep(0)
    assert told == []


async def written(log: Log) -> LogWriter:
    writer = await log.open_writer()
    for value in (b"a", b"b"):
        writer.append_nowait(value).add_done_callback(_heard)
    return writer


def _heard(confirmed: asyncio.Future[int]) -> None:
    if not confirmed.cancelled():
        confirmed.exception()


async def test_a_cancelled_close_gives_the_lead_up(at: World) -> None:
    async with leaving_nothing(at) as log:
        for turns in range(1, TURNS + 1):
            writer = await written(log)
            await cancelled_after(turns, writer.close())
            await nobody_stands(log)


async def test_a_close_that_is_cancelled_twice_gives_the_lead_up(at: World) -> None:
    """The first time while it closes, the second while what follows gives the place up."""
    async with leaving_nothing(at) as log:
        for turns in range(1, TURNS + 1):
            closing = asyncio.ensure_future((await written(log)).close())
            for _ in range(turns):
                await asyncio.sleep(0)
            closing.cancel()
            await asyncio.sleep(0)
            closing.cancel()
            await asyncio.wait({closing})
            _heard(closing)
            await nobody_stands(log)


@pytest.mark.parametrize("wait", [False, True])
async def test_a_cancelled_opening_leaves_nothing(wait: bool, at: World) -> None:
    async with leaving_nothing(at) as log:
        for turns in range(1, TURNS + 1):
            writer = await cancelled_after(turns, log.open_writer(wait_for_leadership=wait))
            if writer is not None:
                await writer.close()
            await nobody_stands(log)


async def test_a_cancelled_append_and_a_cancelled_tail_leave_nothing(at: World) -> None:
    async with leaving_nothing(at) as log:
        for turns in range(1, TURNS + 1):
            async with await log.open_writer() as writer:
                await cancelled_after(turns, writer.append(b"x"))
                await cancelled_after(turns, take(log.tail(0), 1 << 20))
        await nobody_stands(log)


async def test_a_writer_that_lost_its_log_gives_its_place_up_though_nobody_closes_it(at: World) -> None:
    async with leaving_nothing(at) as log:
        lost = await log.open_writer()
        async with await log.open_writer() as second:
            await second.append(b"a")
            with contextlib.suppress(QuireError):
                await lost.append(b"b")
        await nobody_stands(log)
        await until_async(
            lambda: not lost._sender._leader._tasks, "nobody to watch the list for it", seconds=5
        )
        with contextlib.suppress(QuireError):
            await lost.close()

"""A log's writer that is left with an error, or dropped, loses nothing that it took."""

from __future__ import annotations

import asyncio

import pytest

from quire.core.errors import NotWritingError
from support.log_cluster import World, numbers, values
from support.waiting import until_async
from unit.log.test_cancelled_calls import leaving_nothing, nobody_stands


@pytest.mark.parametrize("error", [ZeroDivisionError, asyncio.CancelledError])
async def test_with_an_error_what_was_taken_is_confirmed_and_the_lead_given_back(
    at: World, error: type[BaseException]
) -> None:
    async with leaving_nothing(at) as log:
        with pytest.raises(error):
            async with await log.open_writer() as writer:
                taken = [writer.append_nowait(value) for value in numbers(0, 1000)]
                raise error
        assert await asyncio.gather(*taken) == list(range(1000))
        assert await values(log) == numbers(0, 1000)
        with pytest.raises(NotWritingError):
            await writer.append(b"late")
        await nobody_stands(log)


async def test_one_that_is_dropped_closes_itself_and_warns_once(at: World) -> None:
    async with leaving_nothing(at) as log:
        writer = await log.open_writer()
        taken = [writer.append_nowait(value) for value in numbers(0, 1000)]
        with pytest.warns(ResourceWarning, match="dropped without `close`") as said:  # noqa: PT031 - it comes later
            del writer
            assert await asyncio.gather(*taken) == list(range(1000))
            await until_async(lambda: len(said) == 1)
            await nobody_stands(log)
        assert len(said) == 1


async def test_a_client_that_is_closed_names_the_reason_at_once(at: World) -> None:
    log = await at.made()
    writer = await log.open_writer()
    for bookie in at.bookies:
        await bookie.stop(clean=False)
    taken = [writer.append_nowait(value) for value in numbers(0, 10)]
    writer._sender.end("the client was closed")
    for future in taken:
        with pytest.raises(Exception, match="was left open: the client was closed"):
            await future

"""Where a read of a log begins and ends, as programs say it.

Source: docs/log-commands.md, "Where a read begins and ends".
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import quire
from quire.core.errors import MisuseError, PastEndError, TrimmedError
from quire.log.log import Log
from support.log_cluster import World, take, values
from support.waiting import until_async

NOON = datetime(2026, 12, 1, 12, tzinfo=UTC)
NOON_MS = 1_796_126_400_000


async def minutes(at: World) -> Log:
    """Records 0 to 9, one a minute from noon, in three ledgers."""
    log = await at.made()
    async with log.open_writer() as writer:
        for number in range(10):
            await writer.append(b"%d" % number, timestamp_ms=NOON_MS + 60_000 * number)
            if number in {3, 6}:
                await writer.roll()
    return log


def noon(minute: float) -> datetime:
    return NOON + timedelta(minutes=minute)


async def offsets(records: AsyncIterator[Any]) -> list[int]:
    return [record.offset async for record in records]


@pytest.mark.parametrize(
    ("start", "end", "found"),
    [
        (None, None, range(10)),
        ("start", 3, range(3)),
        (noon(4), None, range(4, 10)),
        (noon(3.5), noon(8), range(4, 8)),
        (noon(2).astimezone(), noon(2.00001), range(2, 3)),
        (noon(-60), noon(90), range(10)),
        (noon(60), None, ()),
        ("end", None, ()),
        (quire.last(3), None, range(7, 10)),
        (quire.last(100), noon(1), range(1)),
        (quire.last(3), 8, range(7, 8)),
    ],
)
async def test_a_read_begins_and_ends_where_it_is_said(at: World, start: Any, end: Any, found: range) -> None:
    log = await minutes(at)
    assert await offsets(log.read(start, end)) == [*found]
    batches = [batch async for batch in log.read_entries(start, end)]
    assert all(batch.end_offset > found[0] and batch.first_offset <= found[-1] for batch in batches)


async def test_a_tail_begins_at_the_end_at_a_time_or_behind_the_end(at: World) -> None:
    log = await minutes(at)
    async with log.open_writer() as writer:
        assert [record.offset for record in await take(log.tail(noon(8.5)), 1)] == [9]
        for number in range(10, 14):
            await writer.append(b"%d" % number)

        async def seen() -> bool:
            return (await log.describe()).end_offset == 14

        await until_async(seen, "what was appended to be seen")
        assert [record.offset for record in await take(log.tail(quire.last(2)), 2)] == [12, 13]
        assert [record.offset for record in await take(log.tail(13), 1)] == [13]


async def test_a_truncation_by_time_leaves_the_first_record_that_is_as_late(at: World) -> None:
    log = await minutes(at)
    await log.truncate(before=noon(4.5))
    assert await values(log) == [b"5", b"6", b"7", b"8", b"9"]
    await log.truncate(before=noon(-5))
    assert (await log.describe()).start_offset == 5
    with pytest.raises(TrimmedError):
        await offsets(log.read(4))
    await log.truncate(before=noon(600))
    assert await values(log) == []


@pytest.mark.parametrize(
    ("start", "end", "said"),
    [
        (datetime(2026, 12, 1, 12), None, "start= takes a datetime with a zone"),
        (None, datetime(2026, 12, 1, 12), "end= takes a datetime with a zone"),
        ("1", None, "start= takes an offset or a datetime with a zone, `quire.last"),
        (True, None, "not True"),
        ([1], None, r"not \[1\]"),
        (None, "end", "end= takes an offset or a datetime with a zone, not 'end'"),
        (5, 4, "the end 4 lies before the start 5"),
        (noon(5), noon(4), "lies before the start"),
        (-1, None, "offsets start at 0"),
    ],
)
async def test_what_is_no_position_is_refused(at: World, start: Any, end: Any, said: str) -> None:
    log = await minutes(at)
    with pytest.raises(MisuseError, match=said):
        await offsets(log.read(start, end))
    with pytest.raises(PastEndError):
        await offsets(log.read(11))


async def test_what_cannot_be_a_beginning_is_refused_at_the_call(at: World) -> None:
    log = await minutes(at)
    for count in (0, -1, True, "3"):
        with pytest.raises(MisuseError, match="1 or more"):
            quire.last(count)  # type: ignore[arg-type]
    for before in (None, "5", datetime(2026, 12, 1)):
        with pytest.raises(MisuseError, match="before= takes"):
            await log.truncate(before=before)  # type: ignore[arg-type]

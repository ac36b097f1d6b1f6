"""Logs on real bookies in this process: append, read, roll, take over, duel, truncate, follow."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from dataclasses import replace
from typing import cast

import pytest

from quire.client.writing.writer import LedgerWriter
from quire.core.errors import (
    AlreadyExistsError,
    MisuseError,
    NoSuchLogError,
    NotLeaderError,
    NotWritingError,
    OutcomeUnknownError,
    PastEndError,
    QuireError,
    TrimmedError,
    WindowFullError,
)
from quire.core.ledger.metadata import LedgerState
from quire.core.log.list import ItemState, LogItem
from quire.log.batching import LedgerTarget, RecordQueue
from quire.log.config import LogConfig
from quire.log.heads import LogHeads
from quire.wire.batch_format import Codec
from support.log_cluster import World, numbers, take, values
from support.waiting import until_async


async def test_records_come_back_with_everything_they_went_in_with(at: World) -> None:
    log = await at.made()
    async with await log.open_writer() as writer:
        assert await writer.append(b"a", b"k", [("h", b"1"), ("h", None)], 42) == 0
        futures = [writer.append_nowait(value) for value in (b"b", None, b"")]
        assert await asyncio.gather(*futures) == [1, 2, 3]
        assert await writer.append_many([b"x", b"y"], keys=[None, b"q"], timestamps_ms=[7, 5]) == range(4, 6)
        assert (writer.end_offset, writer.epoch) == (6, 1)
    found = [record async for record in log.read()]
    assert [record.offset for record in found] == [0, 1, 2, 3, 4, 5]
    assert [record.value for record in found] == [b"a", b"b", None, b"", b"x", b"y"]
    assert [record.key for record in found] == [b"k", None, None, None, None, b"q"]
    assert found[0].headers == (("h", b"1"), ("h", None))
    assert [found[i].timestamp_ms for i in (0, 4, 5)] == [42, 7, 5]
    assert len({(record.ledger_id, record.entry_id, record.index) for record in found}) == 6
    assert await values(log, 2, 4) == [None, b""]
    assert await values(log, 6) == []
    about = await log.describe()
    assert (about.start_offset, about.end_offset, about.epoch) == (0, 6, 1)
    [item] = about.items
    assert (item.state, item.count, item.min_time_ms) == (ItemState.CLOSED, 6, 5)


async def test_many_appends_share_entries_and_keep_their_order(at: World) -> None:
    log = await at.made(config=LogConfig(batch_bytes_max=2000, window_bytes_max=20_000))
    async with await log.open_writer() as writer:
        offsets = await asyncio.gather(*(writer.append(value) for value in numbers(0, 3000)))
        assert list(offsets) == list(range(3000))
    assert await values(log) == numbers(0, 3000)
    entries = [batch async for batch in log.read_entries()]
    assert 10 < len(entries) < 3000
    assert [batch.first_offset for batch in entries] == [
        0,
        *[batch.end_offset for batch in entries][:-1],
    ]
    for start in (0, 1, 777, 2999):
        assert await values(log, start, start + 3) == numbers(start, min(start + 3, 3000))


async def test_a_full_window_says_so_and_lets_in_again(at: World) -> None:
    log = await at.made(config=LogConfig(window_bytes_max=1000))
    async with await log.open_writer() as writer:
        writer.append_nowait(bytes(2000))
        with pytest.raises(WindowFullError, match="drain"):
            writer.append_nowait(b"x")
        await writer.drain()
        assert writer.pending_bytes == 0
        assert await writer.append_nowait(b"x") == 1
        with pytest.raises(MisuseError, match="split it"):
            await writer.append(bytes(6 * 1024 * 1024))
    with pytest.raises(NotWritingError):
        await writer.append(b"late")


async def test_a_record_is_stored_as_it_was_when_it_was_appended(at: World) -> None:
    """A caller uses its lists again: for the next record, and while it waits for room."""
    log = await at.made(config=LogConfig(window_bytes_max=1000))
    async with await log.open_writer() as writer:
        headers, keys, times = [("n", b"1")], [b"k"], [7]
        writer.append_nowait(b"a", None, headers)
        headers[0] = ("n", b"2")
        writer.append_nowait(bytes(2000), None, headers)
        waiting = asyncio.ensure_future(
            writer.append_many([b"c"], keys=keys, headers=[headers], timestamps_ms=times)
        )
        await asyncio.sleep(0)
        headers[0], keys[0], times[0] = ("n", b"3"), b"another", 8
        await waiting
    found = [(one.headers, one.key) async for one in log.read()]
    assert found == [((("n", b"1"),), None), ((("n", b"2"),), None), ((("n", b"2"),), b"k")]


@pytest.mark.parametrize("codec", [None, Codec.ARROW])
def test_a_batch_of_many_headers_is_no_larger_than_an_entry(codec: Codec | None) -> None:
    queue, headers = RecordQueue("orders", LogConfig(), 70_000), [("", None)] * 100
    while len(queue.waiting) < 2:
        queue.add(b"v", None, headers, 1, queue.size(b"v", None, headers, 1))
    target = LedgerTarget(cast("LedgerWriter", None), 0, 1)
    assert len(queue.waiting[0].encode(target, codec, None)) <= 70_000


@pytest.mark.parametrize(
    ("record", "text"),
    [
        (("text",), "value is bytes, bytearray, memoryview or None, not str: encode it"),
        ((b"v", 5), "key is bytes, bytearray, memoryview or None, not int"),
        ((b"v", None, [("h",)]), "each header is a pair"),
        ((b"v", None, [(b"h", b"1")]), "each header is a pair"),
        ((b"v", None, [("h", "1")]), "header 'h' is bytes, .* not str: encode it"),
        ((b"v", None, [("h" * 70_000, b"")]), "shorter than 65536"),
        ((b"v", None, "h"), "headers are a mapping, or pairs of a name and bytes, not str"),
        ((b"v", None, 5), "headers are a mapping, or pairs of a name and bytes, not int"),
        ((b"v", None, None, 2**63), "in the years 1 to 9999"),
        ((b"v", None, None, 2**60), "in the years 1 to 9999"),
        ((b"v", None, None, -(2**60)), "in the years 1 to 9999"),
        ((b"v", None, None, 1.5), "whole number of milliseconds"),
    ],
)
async def test_what_cannot_be_a_record_is_refused_before_it_is_taken(
    at: World, record: tuple, text: str
) -> None:
    log = await at.made()
    async with await log.open_writer() as writer:
        with pytest.raises(MisuseError, match=text):
            writer.append_nowait(*record)
        with pytest.raises(MisuseError, match="as many keys"):
            await writer.append_many([b"a"], keys=[])
        assert await writer.append(b"good") == 0
    assert await values(log) == [b"good"]


async def test_what_a_caller_changes_after_the_call_is_stored_as_it_was(at: World) -> None:
    log = await at.made()
    value, key, header = bytearray(b"value"), bytearray(b"key"), bytearray(b"header")
    async with await log.open_writer() as writer:
        one = writer.append_nowait(value, memoryview(key), {"h": header})
        many = asyncio.ensure_future(
            writer.append_many([value, None], keys=[None, key], headers=[[("h", header)], {}])
        )
        await asyncio.sleep(0)
        for part in (value, key, header):
            part[:] = b"?" * len(part)
        assert (await one, await many) == (0, range(1, 3))
    found = [(one.value, one.key, one.headers) async for one in log.read()]
    headers = (("h", b"header"),)
    assert found == [(b"value", b"key", headers), (b"value", None, headers), (None, b"key", ())]


async def test_a_writer_says_what_it_is(at: World) -> None:
    log = await at.made()
    async with await log.open_writer() as writer:
        await writer.append(b"one")
        writer.append_nowait(b"two")
        assert repr(writer) == "<LogWriter orders, epoch 1, end 1, 1 pending>"
    assert repr(log) == "<Log orders>"


async def test_rolling_under_load_loses_and_reorders_nothing(at: World) -> None:
    log = await at.made(config=LogConfig(batch_bytes_max=500, roll_bytes=5000, page_items=2, fan_out=2))
    async with await log.open_writer() as writer:
        for part in range(20):
            pending = [writer.append_nowait(value) for value in numbers(part * 100, part * 100 + 100)]
            if part % 5 == 2:
                await writer.roll()
            await asyncio.gather(*pending)
    assert await values(log) == numbers(0, 2000)
    about = await log.describe()
    assert len(about.items) > 5
    assert all(item.state is ItemState.CLOSED for item in about.items)
    assert [item.first_offset for item in about.items] == [
        0,
        *[item.next_offset for item in about.items][:-1],
    ]
    for item in about.items:
        record = await at.client.ledger_metadata(item.ledger_id)
        assert (record.state, record.length) == (LedgerState.CLOSED, item.bytes)
    assert await at.ledgers() == [item.ledger_id for item in about.items]
    for start in range(0, 2000, 173):
        assert await values(log, start, start + 2) == numbers(start, start + 2)


async def test_a_second_writer_takes_over_and_the_first_learns_it(at: World) -> None:
    log = await at.made()
    first = await log.open_writer()
    await first.append_many(numbers(0, 10))
    second = await log.open_writer()
    assert await second.append(b"10") == 10
    pending = first.append_nowait(b"lost")
    with pytest.raises(OutcomeUnknownError, match="may or may not"):
        await pending
    with pytest.raises(NotLeaderError, match="took it over"):
        await first.append(b"refused")
    with pytest.raises(QuireError):
        await first.close()
    await second.close()
    assert await values(log) == numbers(0, 11)
    assert (await log.describe()).epoch == 2


async def test_what_an_abandoned_writer_had_just_begun_is_not_left_unawaited(at: World) -> None:
    """The roll's first question is cancelled in the turn that made it, before it ran: Python warned of it."""
    log = await at.made()
    writer = await log.open_writer()
    rolled, _ = await asyncio.gather(writer.roll(), writer.abandon(), return_exceptions=True)
    assert isinstance(rolled, NotWritingError)
    gc.collect()


async def test_an_abandoned_writer_leaves_everything_that_was_confirmed(at: World) -> None:
    log = await at.made()
    for generation in range(5):
        writer = await log.open_writer()
        first = generation * 30
        for number in range(first, first + 30):
            assert await writer.append(b"%d" % number) == number
        await writer.abandon()
        await writer.abandon()
        with pytest.raises(NotWritingError):
            await writer.append(b"late")
    async with await log.open_writer():
        assert await values(log) == numbers(0, 150)


async def test_two_writers_duel_and_the_log_stays_one(at: World) -> None:
    await at.made()
    acknowledged: dict[bytes, int] = {}
    takeovers = [0, 0]

    async def duel(who: int) -> None:
        log, number = at.log(), 0
        while min(takeovers) < 6:
            try:
                writer = await log.open_writer()
            except QuireError:
                continue
            takeovers[who] += 1
            with contextlib.suppress(QuireError):
                for _ in range(10):
                    value = b"%d:%d" % (who, number)
                    number += 1
                    acknowledged[value] = await writer.append(value)
            with contextlib.suppress(QuireError):
                await writer.close()

    await asyncio.gather(duel(0), duel(1))
    async with await at.log().open_writer():
        found = {record.value: record.offset async for record in at.log().read()}
    assert len(acknowledged) > 10
    assert {value: found.get(value) for value in acknowledged} == acknowledged
    by_offset = sorted(found, key=lambda value: found[value])
    for who in (0, 1):
        mine = [int(value.split(b":")[1]) for value in by_offset if value.startswith(b"%d:" % who)]
        assert mine == sorted(mine)


async def test_a_follower_sees_every_record_across_rolls_and_writers(at: World) -> None:
    log = await at.made()
    following = asyncio.ensure_future(take(log.tail(), 60))
    for generation in range(3):
        async with await log.open_writer() as writer:
            for number in range(generation * 20, generation * 20 + 20):
                await writer.append(b"%d" % number)
                if number % 7 == 0:
                    await writer.roll()
    found = await following
    assert [record.offset for record in found] == list(range(60))
    assert [record.value for record in found] == numbers(0, 60)
    assert [record.offset for record in await take(log.tail(57), 3)] == [57, 58, 59]


async def test_reading_beside_the_writer_disturbs_nobody(at: World) -> None:
    log = await at.made()
    async with await log.open_writer() as writer:
        await writer.append_many(numbers(0, 10))
        found = await take(log.tail(), 10)
        assert [record.value for record in found] == numbers(0, 10)
        about = await log.describe()
        assert about.items[-1].state is ItemState.OPEN
        assert await writer.append(b"10") == 10


async def test_truncating_forgets_the_beginning_and_leaves_no_orphans(at: World) -> None:
    log = await at.made()
    writer = await log.open_writer()
    for ledger in range(9):
        await writer.append_many(numbers(ledger * 10, ledger * 10 + 10))
        if ledger < 8:
            await writer.roll()
    before = await at.ledgers()
    await log.truncate(before=45)

    async def everything_is_confirmed() -> bool:
        return (await log.describe()).end_offset == 90

    await until_async(everything_is_confirmed)
    assert (await log.describe()).start_offset == 45
    assert [record.offset async for record in log.read(45, 50)] == [45, 46, 47, 48, 49]
    assert await values(log) == numbers(45, 90)
    with pytest.raises(TrimmedError, match="requested offset 3, the earliest is 45"):
        await values(log, 3)
    assert await at.ledgers() == before[4:]
    with pytest.raises(PastEndError):
        await log.truncate(before=91)
    await log.truncate(before=45)
    await log.truncate(before=85)
    # The leader did not notice, the open ledger is there, and it goes on.
    assert await at.ledgers() == before[8:]
    assert await writer.append(b"90") == 90
    await writer.roll()
    assert await writer.append(b"91") == 91
    await writer.close()
    assert await values(log) == numbers(85, 92)
    assert (await anext(log.read_entries())).first_offset <= 85


async def test_a_deleted_log_is_gone_with_its_ledgers_and_its_name_is_free(at: World) -> None:
    log = await at.made()
    with pytest.raises(AlreadyExistsError, match="orders"):
        await log.create()
    writer = await log.open_writer()
    for number in range(8):
        await writer.append(b"%d" % number)
        await writer.roll()
    await at.made("other")
    assert await at.client.logs() == ["orders", "other"]
    await at.client.delete_log("orders")
    assert await at.client.logs() == ["other"]
    assert await at.ledgers() == []
    with pytest.raises(QuireError):
        await writer.append(b"nobody hears it")
    with pytest.raises(QuireError):
        await writer.close()
    for call in (log.describe(), log.open_writer(), log.truncate(before=1), log.delete(), values(log)):
        with pytest.raises(NoSuchLogError, match="orders"):
            await call
    left = [key for prefix in ("logs/", "log-") for key, _ in await at.store.list(prefix)]
    assert len(left) == 2
    await log.create()
    assert (await log.describe()).end_offset == 0


async def test_another_client_closes_the_ledger_and_the_list_is_completed(at: World) -> None:
    log = await at.made()
    writer = await log.open_writer()
    await writer.append_many(numbers(0, 25), timestamps_ms=list(range(100, 125)))
    [item] = (await log.describe()).items
    await writer.abandon()
    await at.client.recover_ledger(item.ledger_id)
    assert await values(log) == numbers(0, 25)
    assert (await log.describe()).items[0].state is ItemState.OPEN
    assert await log.complete_items() == 1
    assert await log.complete_items() == 0
    [item] = (await log.describe()).items
    assert (item.state, item.count, item.min_time_ms, item.max_time_ms) == (
        ItemState.CLOSED,
        25,
        100,
        124,
    )
    async with await log.open_writer() as again:
        assert await again.append(b"25") == 25


async def test_a_reader_that_begins_behind_a_ledger_which_the_list_still_calls_open(at: World) -> None:
    """It took its own start for the start of the ledger, and gave earlier records again as later ones (sim, log, 44)."""
    log = await at.made()
    writer = await log.open_writer()
    await writer.append_many(numbers(0, 3))
    await writer.roll()
    await writer.append_many(numbers(3, 8))
    await writer.close()
    heads = LogHeads(at.client.store)
    log_id = await heads.find("orders")
    assert log_id is not None
    found = await heads.read(log_id)
    assert found is not None
    # As a leader leaves the list that dies between the end of the first ledger and its line in the list.
    head, version = found
    first, second = head.items
    items = (
        LogItem(first.ledger_id, first.token, first_offset=0),
        LogItem(second.ledger_id, second.token),
    )
    await heads.write(replace(head, items=items, generation=head.generation + 1), version)
    for start in range(9):
        found_now = [(record.offset, record.value) async for record in log.read(start)]
        assert found_now == [(offset, b"%d" % offset) for offset in range(start, 8)]


async def test_a_plan_covers_every_record_once(at: World) -> None:
    log = await at.made(config=LogConfig(batch_bytes_max=1000))
    async with await log.open_writer() as writer:
        for part in range(4):
            await writer.append_many([b"%06d" % n for n in range(part * 500, part * 500 + 500)])
            if part < 3:
                await writer.roll()

        async def everything_is_confirmed() -> bool:
            return (await log.describe()).end_offset == 2000

        # What was acknowledged becomes visible to others with the next entry or, as here, the explicit LAC.
        await until_async(everything_is_confirmed)
        ranges = await log.plan(start=123, end=1700, split_bytes=4000)
    assert len(ranges) > 4
    assert (ranges[0].first_offset, ranges[-1].end_offset) == (123, 1700)
    assert [each.first_offset for each in ranges[1:]] == [each.end_offset for each in ranges[:-1]]
    for each in ranges:
        reader = await at.client.open_ledger(each.ledger_id, recover=False)
        assert 0 <= each.first_entry <= each.last_entry <= reader.last_add_confirmed
    assert len(await log.plan(split_bytes=1 << 30)) == 4
    with pytest.raises(PastEndError):
        await log.plan(start=5000)


async def test_waiting_for_the_lead_lets_the_leader_finish(at: World) -> None:
    log = await at.made()
    first = await log.open_writer(wait_for_leadership=True)
    waiting = asyncio.ensure_future(log.open_writer(wait_for_leadership=True))
    for number in range(20):
        assert await first.append(b"%d" % number) == number
    assert not waiting.done()
    await first.close()
    async with await waiting as second:
        assert await second.append(b"20") == 20


async def test_an_arrow_log_reads_like_any_other(at: World) -> None:
    log = await at.made(config=LogConfig(codec="arrow", compression="zstd"))
    async with await log.open_writer() as writer:
        await writer.append_many(numbers(0, 100), keys=[None] * 99 + [b"k"])
        await writer.append(b"100")
    assert await values(log) == numbers(0, 101)


async def test_two_followers_and_an_end(at: World) -> None:
    log = await at.made()
    async with await log.open_writer() as writer:
        await writer.append_many(numbers(0, 5))
    assert await values(log, 5) == []
    with pytest.raises(PastEndError, match="ends at 5"):
        await values(log, 6)
    with pytest.raises(MisuseError):
        await values(log, -1)
    assert await values(log, 0, 99) == numbers(0, 5)

"""A stream's answers, asked as Spark asks them, against real bookies in this process and without Spark."""

from __future__ import annotations

import json
import random

import pytest

from quire.core.errors import ReadUnavailableError, TrimmedError
from quire.log.cursors import CursorTakenError, LogCursors
from quire.log.rewriting import LogRewriter
from quire.log.staging import StagedBy
from quire.spark import planning
from quire.spark.options import SparkOptions, SparkUseError, Use
from quire.spark.read_options import READ_OPTIONS, parse
from quire.spark.stream import Limits, Stream
from support.log_cluster import numbers
from unit.log import test_log_gaps as gaps

T0 = 1_795_000_000_000
NO_LIMITS = Limits()


def options(path, **given):
    return parse(SparkOptions({"cluster": "sqlite:/c.db", "path": path, **given}, READ_OPTIONS), Use.STREAM)


class Query:
    """What Spark does with a source: keeps offsets in its checkpoint, asks twice for the first one."""

    def __init__(self, at, path, **given):
        self.at, self.options = at, options(path, **given)
        self.stream = Stream(self.options)
        self.checkpoint = []

    def restart(self):
        self.stream = Stream(self.options)

    async def trigger(self, limits=NO_LIMITS, *, fail=False):
        """One trigger; returns the records of its batch as (log, offset), None when there was no new one."""
        client = self.at.client
        start = self.checkpoint[-1] if self.checkpoint else await self._initial()
        if self.checkpoint:
            await self.stream.commit(client, start)
        end = await self.stream.latest(client, start, limits)
        if json.dumps(end) == json.dumps(start):
            return None
        read = await self._read(start, end)
        if not fail:
            self.checkpoint.append(json.loads(json.dumps(end)))
        return read

    async def _initial(self):
        first = await self.stream.initial(self.at.client)
        assert json.dumps(first) == json.dumps(await self.stream.initial(self.at.client))
        return json.loads(json.dumps(first))

    async def _read(self, start, end):
        found = []
        for task in await self.stream.plan(self.at.client, start, end):
            for piece in task.pieces:
                log = self.at.log(piece.origin.log)
                for first, stop in piece.offsets:
                    found += [(piece.origin.log, record.offset) async for record in log.read(first, stop)]
        return found


async def append(at, name, first, end):
    async with await at.log(name).open_writer() as writer:
        await writer.append_many(
            numbers(first, end), timestamps_ms=[T0 + offset for offset in range(first, end)]
        )


@pytest.mark.parametrize("share", [0.02, 0.5])
async def test_a_limit_of_records_is_kept_where_most_of_them_were_compacted_away(at, share):
    chance = random.Random(7)
    log = await gaps.made(at)
    maker = await gaps.rewriter(at)
    _, items = await maker.candidates()
    end = gaps.LEDGERS * gaps.EACH
    stays = {offset for offset in range(end) if chance.random() < share or offset == end - 1}
    stays |= set(range(items[-1].next_offset or 0, end))
    groups = [items[start : start + 5] for start in range(0, len(items), 5)]
    await maker.replace(
        [await gaps.without(at, log, group, stays) for group in groups],
        compacted_below=items[-1].next_offset or 0,
    )
    for limit in (1, 4, 37):
        query = Query(at, "orders")
        batches = []
        while (batch := await query.trigger(Limits(limit))) is not None:
            batches.append([offset for _, offset in batch])
        assert [offset for batch in batches for offset in batch] == sorted(stays)
        full, rest = divmod(len(stays), limit)
        assert [len(batch) for batch in batches] == [limit] * full + [rest] * (rest > 0)


async def test_a_stream_from_its_beginning_to_its_end(at):
    await at.made("shop/a")
    await append(at, "shop/a", 0, 50)
    query = Query(at, "shop/*")
    assert await query.trigger() == [("shop/a", offset) for offset in range(50)]
    assert await query.trigger() is None
    assert query.stream.newest()["logs"]["shop/a"]["offset"] == 50
    # A new log of the pattern is read from its beginning, beside what the other one has got.
    await at.made("shop/b")
    assert await query.trigger() is None
    await append(at, "shop/b", 0, 10)
    await append(at, "shop/a", 50, 60)
    expected = [("shop/a", offset) for offset in range(50, 60)] + [("shop/b", offset) for offset in range(10)]
    assert await query.trigger(fail=True) == expected
    query.restart()
    assert await query.trigger() == expected
    # In small batches, shared out, to exactly what was there when it was told to stop.
    await append(at, "shop/a", 60, 150)
    await append(at, "shop/b", 10, 40)
    await query.stream.stop_at_now(at.client)
    await append(at, "shop/b", 40, 41)
    read, sizes = [], []
    while (batch := await query.trigger(Limits(records=40))) is not None:
        read += batch
        sizes.append(len(batch))
    assert sorted(read) == [("shop/a", o) for o in range(60, 150)] + [("shop/b", o) for o in range(10, 40)]
    assert max(sizes) == 40
    assert len(sizes) == 3
    # `shop/b` is deleted: the stream says so.
    await at.log("shop/b").delete()
    with pytest.raises(SparkUseError, match="'shop/b' was deleted; the stream was at offset 40 of it"):
        await query.trigger()


async def test_where_a_stream_begins(at):
    await at.made("orders")
    await append(at, "orders", 0, 20)
    assert await Query(at, "orders", startingOffsets='{"orders": 17}').trigger() == [
        ("orders", offset) for offset in (17, 18, 19)
    ]
    assert len(await Query(at, "orders", startingTimestamp=str(T0 + 15)).trigger()) == 5
    with pytest.raises(SparkUseError, match="no record is as late as startingTimestamp"):
        await Query(at, "orders", startingTimestamp=str(T0 + 20)).trigger()
    with pytest.raises(SparkUseError, match="startingOffsets says 21, the log ends at 20"):
        await Query(at, "orders", startingOffsets='{"orders": 21}').trigger()
    with pytest.raises(SparkUseError, match=r"no log 'ordres' at sqlite:/c.db. Nearest: 'orders'"):
        await Query(at, "ordres").trigger()
    # The trap of a start that means "now": the first batch fails, more is appended, the query is started again.
    query = Query(at, "orders", startingOffsets="latest", cursor="copy")
    assert await query.trigger() is None
    await append(at, "orders", 20, 23)
    assert await query.trigger(fail=True) == [("orders", offset) for offset in (20, 21, 22)]
    query.restart()
    await append(at, "orders", 23, 25)
    assert await query.trigger() == [("orders", offset) for offset in range(20, 25)]
    assert await query.trigger() is None
    # What is done is where another query goes on that has the cursor; the former one is told.
    other = Query(at, "orders", startingOffsets="latest", cursor="copy")
    await append(at, "orders", 25, 26)
    assert await other.trigger() == [("orders", 25)]
    with pytest.raises(CursorTakenError):
        await query.trigger()
    [cursor] = await LogCursors(at.store, lambda: 0).of((await at.log().describe()).log_id)
    assert (cursor.first_offset, cursor.offset) == (20, 25)


@pytest.mark.parametrize("available_now", [True, False])
async def test_a_log_that_is_left_out_at_a_restart_is_read_on_under_every_trigger(at, caplog, available_now):
    for name in ("a", "b"):
        await at.made(name)
        await append(at, name, 0, 10)
    query = Query(at, "a,b")
    await query.trigger()
    for name in ("a", "b"):
        await append(at, name, 10, 20)
    query.options = options("a")
    query.restart()
    if available_now:
        await query.stream.stop_at_now(at.client)
    read = await query.trigger(Limits(records=10))
    # What comes once the run has begun belongs to the next one, of this log too.
    await append(at, "b", 20, 25)
    while (batch := await query.trigger(Limits(records=10))) is not None:
        read += batch
    expected = [("a", offset) for offset in range(10, 20)]
    expected += [("b", offset) for offset in range(10, 20 if available_now else 25)]
    assert sorted(read) == expected
    [warning] = [each.message for each in caplog.records if "'b'" in each.message]
    assert warning == (
        "quire: log 'b' is not loaded any more, but the checkpoint names it (at offset 10): it is read on. A new "
        "checkpoint leaves it out."
    )


async def test_what_is_lost_is_said(at):
    def ended(query):
        (name, position) = next(iter(query.checkpoint[-1]["logs"].items()))
        return {"logs": {name: {**position, "offset": position["offset"] + 1}}}

    await at.made("orders")
    await append(at, "orders", 0, 20)
    strict, lax = Query(at, "orders"), Query(at, "orders", failOnDataLoss="false")
    for query in (strict, lax):
        assert len(await query.trigger(Limits(records=5))) == 5
    await at.log().truncate(before=12)
    with pytest.raises(TrimmedError) as trimmed:
        await strict.trigger()
    assert str(trimmed.value) == (
        "quire: log 'orders': requested offset 5, the earliest is 12 (trimmed). failOnDataLoss=false skips 7 records."
    )
    assert await lax.trigger() == [("orders", offset) for offset in range(12, 20)]
    await at.log().delete()
    await at.made("orders")
    await append(at, "orders", 0, 30)
    with pytest.raises(TrimmedError, match=r"'orders' was deleted and created again \(ids "):
        await strict.trigger()
    with pytest.raises(TrimmedError, match="the checkpoint belongs to the old one"):
        await strict.stream.plan(
            at.client, strict.checkpoint[-1], strict.checkpoint[-1] | {"v": 1} | ended(strict)
        )
    assert await lax.trigger() == [("orders", offset) for offset in range(30)]


async def test_what_was_confirmed_once_is_read_though_fewer_bookies_know_it(at, monkeypatch):
    def fields(value):
        return {name: getattr(value, name) for name in value.__slots__}

    log = await at.made("orders")
    writer = await log.open_writer()
    for part in range(3):
        await writer.append_many(numbers(part * 4, part * 4 + 4))
    query = Query(at, "orders")
    read = await query.trigger()
    assert len(read) == 8
    # The same batch, planned anew by a process that is told of fewer records for a while.
    described, calls = log.describe, []

    async def fewer(since=0):
        about = await described(since)
        calls.append(since)
        if len(calls) > 2:
            return about
        [item] = about.items
        item = type(item)(*[getattr(item, name) for name in item.__slots__][:13], 0)
        return type(about)(**{**fields(about), "items": [item], "end_offset": 4})

    query.restart()
    query.stream._logs["orders"] = log
    monkeypatch.setattr(log, "describe", fewer)
    monkeypatch.setattr("quire.spark.stream._PAUSE_SECONDS", 0)
    [task] = await query.stream.plan(at.client, {"v": 1, "logs": {}}, query.checkpoint[-1])
    assert sum(piece.last_entry - piece.first_entry + 1 for piece in task.pieces) == 2
    monkeypatch.setattr("quire.spark.stream._ATTEMPTS", 2)
    query.restart()
    query.stream._logs["orders"] = log
    calls.clear()
    with pytest.raises(
        SparkUseError, match="the batch ends at offset 8, but only 4 is known to be acknowledged"
    ):
        await query.stream.plan(at.client, {"v": 1, "logs": {}}, query.checkpoint[-1])
    await writer.close()


async def test_a_raw_ledger_is_a_stream_too(at):
    ledger = await at.client.create_ledger()
    name = f"ledger:{ledger.ledger_id}"
    assert await Query(at, name).trigger() is None
    await ledger.append_many([b"x"] * 5)
    await ledger.append(b"tells that the five are confirmed")
    query = Query(at, name, startingOffsets=json.dumps({name: 2}), cursor="raw")
    start = await query._initial()
    await ledger.append_many([b"y"] * 5)
    await ledger.close()
    end = await query.stream.latest(at.client, start, Limits(records=4))
    assert (start["logs"][name]["offset"], end["logs"][name]["offset"]) == (2, 6)
    [task] = await query.stream.plan(at.client, start, end)
    assert [(piece.first_entry, piece.last_entry) for piece in task.pieces] == [(2, 5)]
    await query.stream.commit(at.client, end)
    with pytest.raises(SparkUseError, match="its entries have no times"):
        await Query(at, name, startingTimestamp="5").trigger()


async def test_a_plan_that_was_made_ahead_serves_the_batch_that_it_was_made_for_and_no_other(at):
    await at.made("orders")
    await append(at, "orders", 0, 50)
    client, stream = at.client, Stream(options("orders"))
    start = await stream.initial(client)
    whole = await stream.latest(client, start, NO_LIMITS)
    some = await stream.latest(client, start, Limits(20))

    async def offsets(end):
        tasks = await stream.plan(client, start, end)
        return [span for task in tasks for piece in task.pieces for span in piece.offsets]

    assert await offsets(whole) == [(0, 50)]
    await stream.latest(client, start, Limits(20))
    assert await offsets(some) == [(0, 20)]
    assert await offsets(some) == [(0, 20)]  # a batch that is planned again


async def test_what_was_wrong_when_a_plan_was_made_ahead_is_looked_at_again(at, monkeypatch):
    await at.made("orders")
    await append(at, "orders", 0, 50)
    client, stream = at.client, Stream(options("orders"))
    start = await stream.initial(client)
    plans = []
    plan = stream._plan

    async def planned(*asked):
        plans.append(asked)
        if len(plans) == 1:
            raise SparkUseError("quire: for a moment.")
        return await plan(*asked)

    monkeypatch.setattr(stream, "_plan", planned)
    end = await stream.latest(client, start, NO_LIMITS)
    assert len(await stream.plan(client, start, end)) == 1
    assert len(plans) == 2


async def test_a_batch_is_planned_with_the_list_as_it_is_then(at, monkeypatch):
    await at.made("orders")
    for first in range(0, 50, 10):
        await append(at, "orders", first, first + 10)
    client, stream = at.client, Stream(options("orders"))
    rewriter = LogRewriter(client, (await at.log("orders").identify()).log_id)
    head, items = await rewriter.candidates()
    copy = await rewriter.copy(items, head.settings, StagedBy(host="here"))
    read = planning.pieces_between

    async def away(*_):
        raise ReadUnavailableError("for a moment")

    monkeypatch.setattr(planning, "pieces_between", away)
    start = await stream.initial(client)
    end = await stream.latest(client, start, NO_LIMITS)
    await rewriter.replace([copy])
    for item in items:
        await client.delete_ledger(item.ledger_id)
    monkeypatch.setattr(planning, "pieces_between", read)
    [task] = await stream.plan(client, start, end)
    assert [piece.offsets for piece in task.pieces] == [((0, 30),), ((30, 40),), ((40, 50),)]

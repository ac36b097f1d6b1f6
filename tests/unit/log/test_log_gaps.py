"""A log whose superseded records are gone: what is left has its old offsets, wherever a read begins and ends."""

from __future__ import annotations

import random

import pytest

from quire.core.errors import MisuseError
from quire.core.log.list import ItemFlags, LogItem
from quire.core.log.rewriting import Replacement
from quire.log.heads import LogHeads
from quire.log.log import Log
from quire.log.records import Record
from quire.log.rewriting import LogRewriter
from quire.log.staging import StagedBy, stage
from quire.wire.batch import encode_batch, with_gaps
from support.log_cluster import FAST, World, numbers, take

BY = StagedBy(host="here")
LEDGERS, EACH = 14, 10


async def made(at: World) -> Log:
    """Closed ledgers of ten records in batches of three, most of them in pages."""
    log = await at.made()
    async with await log.open_writer() as writer:
        for part in range(LEDGERS):
            for first in range(part * EACH, part * EACH + EACH, 3):
                await writer.append_many(numbers(first, min(first + 3, part * EACH + EACH)))
            await writer.roll()
    return log


async def without(at: World, log: Log, items: list[LogItem], stays: set[int]) -> Replacement:
    """Some neighbours as one ledger with only the records that stay, three in a batch."""
    log_id = bytes.fromhex((await log.describe()).log_id)
    head = await log.identify()
    first, behind = items[0].first_offset, items[-1].next_offset
    records = [record async for record in log.read(first, behind) if record.offset in stays]
    staged = await stage(at.client, log_id, head.settings, BY)
    for start in range(0, len(records), 3):
        some = records[start : start + 3]
        entry = encode_batch(
            [record.value for record in some],
            base_ms=0,
            times_ms=[record.timestamp_ms for record in some],
            records_before=some[0].offset - first,
        )
        await staged.append(with_gaps(entry, [record.offset - some[0].offset for record in some]))
    times = [record.timestamp_ms for record in records]
    new = await staged.close(len(records), min(times, default=None), max(times, default=None))
    return Replacement.by_copy(items, new, compacted=True)


async def rewriter(at: World) -> LogRewriter:
    log_id = await LogHeads(at.store).find("orders")
    assert log_id is not None
    return LogRewriter(at.client, log_id, config=FAST)


async def seen(log: Log, *span: int | None) -> list[tuple[int, bytes | None]]:
    return [(record.offset, record.value) async for record in log.read(*span)]


@pytest.mark.parametrize("seed", range(4))
async def test_every_read_of_a_log_with_gaps_gives_what_stayed(at: World, seed: int) -> None:
    chance = random.Random(seed)
    log = await made(at)
    maker = await rewriter(at)
    _, items = await maker.candidates()
    groups = [items[start : start + 3] for start in range(0, len(items), 3)]
    # Whole ledgers, their beginnings and their ends are emptied too.
    stays = {offset for offset in range(LEDGERS * EACH) if chance.random() < (0.1, 0.5, 0.02, 0)[seed]}
    stays |= set(range(items[-1].next_offset or 0, LEDGERS * EACH))
    await maker.replace(
        [await without(at, log, group, stays) for group in groups],
        compacted_below=items[-1].next_offset or 0,
    )
    about = await log.describe()
    assert about.compacted_below == items[-1].next_offset
    expected = {offset: b"%d" % offset for offset in sorted(stays)}
    whole = await seen(log)
    assert [offset for offset, _ in whole] == sorted(stays)
    values = dict(whole)
    assert len(expected) == len(values)
    for start in range(0, LEDGERS * EACH, 7):
        for end in range(start, LEDGERS * EACH + 1, 11):
            assert await seen(log, start, end) == [one for one in whole if start <= one[0] < end]
    # In ranges, as tasks read it.
    for split in (20, 200, 100_000):
        got: list[Record] = []
        for part in await log.plan(5, 100, split_bytes=split):
            assert part.first_entry <= part.last_entry
            got += [record async for record in log.read(part.first_offset, part.end_offset)]
        assert [one.offset for one in got] == [one for one in sorted(stays) if 5 <= one < 100]
    followed = await take(log.tail(3), len([one for one in stays if one >= 3]))
    assert [record.offset for record in followed] == [one for one in sorted(stays) if one >= 3]
    # What has gaps can be copied again, and be truncated inside one.
    _, items = await maker.candidates()
    copied = await maker.copy(items[:3], (await log.identify()).settings, BY)
    assert copied.new.flags & ItemFlags.COMPACTED
    await maker.replace([copied])
    assert await seen(log) == whole
    await log.truncate(before=17)
    assert await seen(log) == [one for one in whole if one[0] >= 17]


async def test_a_copy_with_fewer_records_is_no_copy_unless_it_says_so(at: World) -> None:
    log = await made(at)
    _, items = await (await rewriter(at)).candidates()
    made_of = await without(at, log, items[:2], {3, 4})
    with pytest.raises(MisuseError, match="holds 2 records, the old ones 20"):
        Replacement.by_copy(items[:2], made_of.new)

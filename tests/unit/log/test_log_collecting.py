"""What a crash leaves behind is found and deleted, after a grace time and a second look; nothing else is."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from quire.core.errors import StagedLedgerGoneError
from quire.core.log.commit import CommitBatch, Part
from quire.core.log.list import LogItem, LogPage, LogSettings
from quire.env.real import RealClock
from quire.log.collecting import LogCollector
from quire.log.committing import LogCommitter
from quire.log.cursors import CursorUse, LogCursors
from quire.log.heads import LogHeads
from quire.log.ledgers import LOG_KEY, LogLedgers
from quire.log.staging import STAGED_KEY, StagedBy, stage
from quire.metadata.memory import MemoryStore
from quire.metadata.store import Delete, Op, Put
from quire.wire.batch import encode_batch
from support.log_cluster import World, numbers, values, world


@dataclass
class LaterClock(RealClock):
    """The real clock, some time later."""

    later_ms: int = 0
    wall_later_ms: int = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.later_ms

    def wall_ms(self) -> int:
        return super().wall_ms() + self.wall_later_ms


async def test_unlisted_ledgers_and_pages_go_after_the_grace_time(at: World) -> None:
    clock = LaterClock()
    at.client.clock = clock
    log = await at.made()
    async with await log.open_writer() as writer:
        for part in range(8):
            await writer.append_many(numbers(part * 5, part * 5 + 5))
            await writer.roll()
    heads = LogHeads(at.store)
    log_id = await heads.find("orders")
    assert log_id is not None
    found = await heads.read(log_id)
    assert found is not None
    # What an opener that died before its compare-and-swap leaves: a ledger, a page.
    orphan = await LogLedgers(at.client).create(found[0], "a crashed one")
    await orphan.append(b"never acknowledged by the log")
    await orphan.abandon()
    await heads.write_page(LogPage(log_id, 0, (LogItem(orphan.ledger_id),)))
    # A ledger that no log made is nobody's business here.
    async with await at.client.create_ledger() as plain:
        await plain.append(b"plain")
    collector = LogCollector(at.client, grace_ms=3_600_000)
    ledgers = await at.ledgers()
    first = await collector.collect()
    assert (first.ledgers, first.pages, first.suspected) == ((), (), 2)
    clock.later_ms = 1_800_000
    assert (await collector.collect()).suspected == 2
    clock.later_ms = 3_600_000
    second = await collector.collect()
    assert (second.ledgers, len(second.pages), second.suspected) == ((orphan.ledger_id,), 1, 0)
    assert await at.ledgers() == [each for each in ledgers if each != orphan.ledger_id]
    assert await values(log) == numbers(0, 40)
    # A log whose records cannot be read keeps everything.
    await log.truncate(before=20)
    [(key, head)] = await at.store.list("logs/")
    await at.store.put(key, b"\xff", head.version)
    assert (await collector.collect()).suspected == 0


class OvertakenStore(MemoryStore):
    """A store of which something is asked right before the next change of a kind."""

    kind: type[Delete | Put]
    key = ""
    before: Callable[[], Awaitable[object]] | None = None

    async def multi(self, ops: Sequence[Op]) -> Sequence[int]:
        if self.before and any(isinstance(op, self.kind) and op.key.startswith(self.key) for op in ops):
            before, self.before = self.before, None
            await before()
        return await super().multi(ops)


@pytest.mark.parametrize("first", ["the list", "the deletion"])
async def test_a_page_that_a_list_comes_to_name_while_it_is_collected_is_there(
    tmp_path: Path, first: str
) -> None:
    """Its writer crashed before its list named it; after the grace time the next writer makes the same page."""
    store = OvertakenStore()
    async with world(tmp_path, store) as at:
        clock = LaterClock()
        at.client.clock = clock
        log = await at.made()
        async with await log.open_writer() as writer:
            for part in range(3):
                await writer.append(b"%d" % part)
                if part < 2:
                    await writer.roll()
        head = await log.identify()
        await LogHeads(store).write_page(LogPage(head.log_id, 0, head.items[:2]))
        collector = LogCollector(at.client, grace_ms=3_600_000)
        assert (await collector.collect()).suspected == 1
        clock.later_ms = 3_600_000

        async def next_writer() -> None:
            async with await log.open_writer():
                pass

        if first == "the list":
            store.kind, store.key, store.before = Delete, "log-pages/", next_writer
            assert (await collector.collect()).pages == ()
        else:
            store.kind, store.key, store.before = Put, "logs/", collector.collect
            await next_writer()
        assert store.before is None
        assert len((await log.identify()).pages) == 1
        assert await values(at.log()) == numbers(0, 3)


async def begin_to_cut(at: World, name: str, *, deleted: bool = False) -> None:
    """A log of six ledgers after the first compare-and-swap of a truncation before offset 17, or of a deletion; its client died."""
    log = await at.made(name)
    async with await log.open_writer() as writer:
        for part in range(6):
            await writer.append_many(numbers(part * 5, part * 5 + 5))
            await writer.roll()
    heads = LogHeads(at.store)
    log_id = await heads.find(name)
    assert log_id is not None
    found = await heads.read(log_id)
    assert found is not None
    head, version = found
    await heads.write(head.with_deletion(0) if deleted else head.with_truncation(17, 30, 0), version)


async def test_what_a_crashed_truncation_or_deletion_left_is_carried_out(at: World) -> None:
    clock = LaterClock()
    at.client.clock = clock
    await begin_to_cut(at, "cut")
    await begin_to_cut(at, "gone", deleted=True)
    kept = [item.ledger_id for item in (await at.log("cut").describe()).items]
    assert len(await at.ledgers()) > len(kept)
    cursors = LogCursors(at.store, clock.wall_ms)
    for log_id in await LogHeads(at.store).log_ids():
        await cursors.begin(log_id.hex(), CursorUse("copy", "a reader"), 20)
    collector = LogCollector(at.client, grace_ms=3_600_000)
    assert (await collector.collect()).suspected == 2
    clock.later_ms = 3_600_000
    done = await collector.collect()
    assert (len(done.intents), done.ledgers, done.pages) == (2, (), ())
    assert await at.ledgers() == kept
    assert await values(at.log("cut")) == numbers(17, 30)
    assert await at.client.logs() == ["cut"]
    left = await at.store.list("log-cursors/")
    assert [key.split("/")[1] for key, _ in left] == [(await at.log("cut").describe()).log_id]
    assert (await collector.collect()).suspected == 0


async def test_damaged_records_of_one_log_stop_the_collection_of_no_other(at: World) -> None:
    clock = LaterClock()
    at.client.clock = clock
    for name in ("a", "b"):
        await begin_to_cut(at, name)
    damaged, whole = await LogHeads(at.store).log_ids()
    [(key, page), *_] = await at.store.list(f"log-pages/{damaged.hex()}/")
    await at.store.put(key, b"\xff", page.version)
    # And the record of a ledger says unreadably whose it is.
    custom = {LOG_KEY: whole.hex().encode(), STAGED_KEY: b'{"batch": 1e999}'}
    async with await at.client.create_ledger(custom=custom):
        pass
    collector = LogCollector(at.client, grace_ms=3_600_000)
    await collector.collect()
    clock.later_ms = 3_600_000
    done = await collector.collect()
    assert [whole.hex() in intent for intent in done.intents] == [True]
    assert len(done.ledgers) == 1


async def test_ledgers_of_a_page_that_is_lost_are_kept(at: World) -> None:
    clock = LaterClock()
    at.client.clock = clock
    log = await at.made()
    async with await log.open_writer() as writer:
        for part in range(8):
            await writer.append(b"%d" % part)
            await writer.roll()
    ledgers = await at.ledgers()
    pages = await at.store.list("log-pages/")
    collector = LogCollector(at.client, grace_ms=3_600_000)
    for key, _ in pages:
        await at.store.delete(key)
    assert (await collector.collect()).suspected == 0
    clock.later_ms = 3_600_000
    assert (await collector.collect()).ledgers == ()
    assert await at.ledgers() == ledgers
    for key, page in pages:
        await at.store.create(key, page.value)
    assert await values(log) == numbers(0, 8)


async def test_what_sinks_staged_goes_by_facts_or_when_it_is_old(at: World) -> None:
    clock = LaterClock()
    at.client.clock = clock
    await at.made()
    log_id = await LogHeads(at.store).find("orders")
    assert log_id is not None

    async def staged(query: str, batch: int) -> LogItem:
        ledger = await stage(at.client, log_id, LogSettings(), StagedBy(query, batch))
        await ledger.append(encode_batch([b"x"], base_ms=1))
        return await ledger.close(1, 1, 1)

    first, retried, next_one, nameless = [
        await staged(query, batch) for query, batch in (("q", 0), ("q", 0), ("q", 1), ("", -1))
    ]
    collector = LogCollector(at.client, grace_ms=3_600_000)
    assert (await collector.collect()).ledgers == ()
    await LogCommitter(at.client, ["orders"], CommitBatch((Part(log_id, (first,)),), "q", 0)).commit()
    # The batch is in the log without it: the retried attempt's ledger can never join. The others may.
    assert (await collector.collect()).ledgers == (retried.ledger_id,)
    clock.wall_later_ms = 3_600_000
    fresh = LogCollector(at.client, grace_ms=3_600_000)
    assert (await fresh.collect()).ledgers == (next_one.ledger_id, nameless.ledger_id)
    with pytest.raises(StagedLedgerGoneError):
        await LogCommitter(at.client, ["orders"], CommitBatch((Part(log_id, (next_one,)),), "q", 1)).commit()
    assert await values(at.log()) == [b"x"]
    left = await staged("q", 2)
    await at.log().delete()
    assert (await fresh.collect()).ledgers == (left.ledger_id,)

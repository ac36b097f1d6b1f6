"""A sink's batches meet real logs: closed ones, led ones, abandoned ones, deleted ones."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from quire.core.errors import (
    LogLedError,
    MetadataUnknownError,
    MisuseError,
    NoSuchLogError,
    NotEnoughBookiesError,
    StagedLedgerGoneError,
    TransactionResetError,
)
from quire.core.log.commit import CommitBatch, OnReset, Part
from quire.core.log.list import INTENTS_MAX, Adoption, Intent, IntentKind, LogHead, LogItem, SinkPosition
from quire.core.log.sink_positions import with_position
from quire.log.committing import LogCommitter, discard
from quire.log.config import LogConfig
from quire.log.cursors import CursorHoldsError, CursorUse, LogCursors
from quire.log.heads import LogHeads
from quire.metadata.memory import MemoryStore
from quire.metadata.store import StoreAwayError
from quire.wire.log_records import encode_head, parse_head
from support.log_cluster import World, log_id_of, numbers, staged, values, world
from support.waiting import until_async


async def committed(at: World, *items: LogItem, name: str = "orders", wait_ms: int = 0, **batch: Any) -> Any:
    part = Part(await log_id_of(at, name), tuple(items))
    committer = LogCommitter(at.client, [name], CommitBatch((part,), **batch))
    return await committer.commit(placed_within_ms=wait_ms)


async def head_of(at: World, name: str = "orders") -> Any:
    found = await LogHeads(at.store).read(await log_id_of(at, name))
    assert found is not None
    return found[0]


async def test_batches_stand_in_the_order_of_partitions_and_a_replay_changes_nothing(at: World) -> None:
    log = await at.made()
    items = [await staged(at, numbers(n * 10, n * 10 + 10)) for n in range(3)]
    done = await committed(at, *items, query_id="query-1", batch_id=0, now_ms=7)
    assert (done.already, done.unplaced) == (False, ())
    assert await values(log) == numbers(0, 30)
    assert [record.offset async for record in log.read()] == list(range(30))
    again = [await staged(at, numbers(n * 10, n * 10 + 10)) for n in range(3)]
    assert (await committed(at, *again, query_id="query-1", batch_id=0)).already
    assert await values(log) == numbers(0, 30)
    # What the replay staged is gone, what the batch staged is not.
    assert await at.ledgers() == [item.ledger_id for item in items]
    [position] = (await head_of(at)).sink_positions
    assert (position.query_id, position.batch_id, position.time_ms) == ("query-1", 0, 7)
    more = await staged(at, numbers(30, 31))
    await committed(at, more, query_id="query-2", batch_id=0)
    await committed(at, query_id="query-1", batch_id=1)
    assert await values(log) == numbers(0, 31)


async def test_a_reader_that_follows_meets_the_batches(at: World) -> None:
    log = await at.made()
    found: list[bytes | None] = []

    async def follow() -> None:
        async for record in log.tail():
            found.append(record.value)
            if len(found) == 20:
                return

    async with asyncio.timeout(20):
        following = asyncio.ensure_future(follow())
        for n in range(4):
            await committed(at, await staged(at, numbers(n * 5, n * 5 + 5)), query_id="q", batch_id=n)
        await following
    assert found == numbers(0, 20)


async def test_a_leader_adopts_in_its_own_order_and_goes_on(at: World) -> None:
    log = await at.made()
    async with await log.open_writer() as writer:
        await writer.append_many([b"w"] * 5)
        done = await committed(at, await staged(at, [b"s"] * 3), wait_ms=10_000, query_id="q")
        assert done.unplaced == ()
        await writer.append_many([b"w"] * 2)
        assert (await committed(at, await staged(at, [b"s"] * 3), query_id="q")).already
        assert (await head_of(at)).leader.adopts
    assert await values(log) == [b"w"] * 5 + [b"s"] * 3 + [b"w"] * 2
    assert not (await head_of(at)).adoptions


async def test_appends_and_adoptions_under_way_together_lose_nothing(at: World) -> None:
    log = await at.made()
    async with await log.open_writer() as writer:

        async def append() -> None:
            for n in range(60):
                await writer.append(b"w%d" % n)

        async def commit() -> None:
            for n in range(6):
                await committed(at, await staged(at, [b"s%d" % n] * 2), query_id="q", batch_id=n)

        await asyncio.gather(append(), commit())
    found = await values(log)
    assert [each for each in found if each and each[:1] == b"w"] == [b"w%d" % n for n in range(60)]
    assert [each for each in found if each and each[:1] == b"s"] == [b"s%d" % (n // 2) for n in range(12)]
    assert [record.offset async for record in log.read()] == list(range(72))


class LateStore(MemoryStore):
    """A store whose answer to one change of a head comes later than what is asked after it."""

    before = -1

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()

    async def multi(self, ops: Any) -> Any:
        done = await super().multi(ops)
        if any(op.key.startswith("logs/") for op in ops):
            self.before -= 1
            if self.before == 0:
                await self.gate.wait()
        return done


async def test_a_batch_that_comes_before_the_answer_to_the_leaders_cas_is_placed(tmp_path: Path) -> None:
    store = LateStore()
    async with world(tmp_path, store) as at:
        log = await at.made()
        async with await log.open_writer() as writer:
            await writer.append(b"0")
            item = await staged(at, [b"1"])
            store.before = 2  # the roll lists the next ledger, and calls the former one closed
            rolling = asyncio.ensure_future(writer.roll())
            await until_async(lambda: store.before == 0, "the roll's last swap")
            await committed(at, item, query_id="q")
            for _ in range(20):
                await asyncio.sleep(0)
            store.gate.set()
            await rolling

            async def placed() -> bool:
                return not (await head_of(at)).adoptions

            await until_async(placed, "the leader to place the batch", seconds=5)
            assert await values(log) == numbers(0, 2)


async def test_a_leader_that_finds_too_few_bookies_has_one_task_that_waits_to_adopt(at: World) -> None:
    log = await at.made(min_present=3)
    async with await log.open_writer() as writer:
        await writer.append(b"0")
        await at.bookies[0].stop()
        item = await staged(at, [b"1"])
        assert (await committed(at, item, query_id="q")).unplaced == ("orders",)
        tasks = writer._sender._leader._tasks
        await until_async(
            lambda: not writer._sender._leader.rolling and len(tasks) == 2, "the first roll's end"
        )
        for _ in range(3):
            with pytest.raises(NotEnoughBookiesError):
                await writer.roll()
        await asyncio.sleep(0)
        assert len(tasks) == 2  # the other one watches the list


async def test_a_leader_that_does_not_adopt_or_is_gone_needs_consent(at: World) -> None:
    await at.made()
    log = at.log(config=LogConfig(adopts=False, host="b"))
    writer = await log.open_writer()
    await writer.append(b"w")
    item = await staged(at, [b"s"])
    with pytest.raises(LogLedError, match=r"has a leader \(host b, term 1\) that does not adopt; stop it or"):
        await committed(at, item, query_id="q")
    await writer.abandon()
    with pytest.raises(
        LogLedError, match=r"has an open ledger of a leader that has ended \(host b, term 1\); set take"
    ):
        await committed(at, item, query_id="q")
    await committed(at, item, query_id="q", takeover=True)
    assert await values(log) == [b"w", b"s"]
    assert (await head_of(at)).leader.epoch == 2


async def test_what_a_dead_leader_did_not_place_is_placed_by_the_next_one_or_on_request(at: World) -> None:
    log = await at.made()
    writer = await log.open_writer()
    await writer.append(b"w")
    head = await head_of(at)
    # The leader is there for the commit and dies before it looks.
    await writer.abandon()
    heads = LogHeads(at.store)
    item = await staged(at, [b"s"])
    found = await heads.read(head.log_id)
    assert found is not None
    await heads.write(replace(found[0], adoptions=(Adoption((item,), "q", 0),)), found[1])
    await log.place()
    assert await values(log) == [b"w", b"s"]


async def test_overwrite_takes_the_old_records_out_in_the_same_cas(at: World) -> None:
    log = await at.made()
    async with await log.open_writer() as writer:
        for n in range(6):
            await writer.append_many(numbers(n, n + 1))
            await writer.roll()
    await committed(at, await staged(at, [b"new"]), truncate=True)
    assert [(record.offset, record.value) async for record in log.read()] == [(6, b"new")]
    await committed(at, await staged(at, [b"newer"] * 2), truncate=True)
    assert [record.offset async for record in log.read()] == [7, 8]
    assert len(await at.ledgers()) == 1
    owner = (await log.identify()).log_id.hex()
    await LogCursors(at.store, at.client.clock.wall_ms).begin(
        owner, CursorUse("slow", hold=True, holder="q"), 7
    )
    with pytest.raises(CursorHoldsError):
        await committed(at, await staged(at, [b"x"]), truncate=True)
    await log.remove_cursor("slow")
    async with await log.open_writer() as writer:
        with pytest.raises(LogLedError, match="cannot be truncated while it runs"):
            await committed(at, await staged(at, [b"x"]), truncate=True)


async def test_a_list_that_is_full_of_unfinished_truncations_takes_another_one(at: World) -> None:
    """Clients that ended in the middle of theirs left them: they are finished first."""

    async def fill(at: World) -> None:
        heads = LogHeads(at.store)
        head, version = await heads.read(await log_id_of(at)) or (LogHead(b""), -1)
        left = tuple(Intent(IntentKind.TRUNCATE, 0, created_ms=n) for n in range(INTENTS_MAX))
        await heads.write(replace(head, intents=left), version)

    log = await at.made()
    async with await log.open_writer() as writer:
        for n in range(3):
            await writer.append_many(numbers(n, n + 1))
            await writer.roll()
    await fill(at)
    await log.truncate(before=1)
    assert (await head_of(at)).intents == ()
    assert await values(log) == numbers(1, 3)
    await fill(at)
    await committed(at, await staged(at, [b"new"]), truncate=True)
    assert (await head_of(at)).intents == ()
    assert await values(log) == [b"new"]


async def test_a_named_transaction_that_begins_again_is_refused_unless_the_user_says_what_is_meant(
    at: World,
) -> None:
    log = await at.made()

    async def write(batch_id: int, incarnation: str, on_reset: OnReset = OnReset.ERROR) -> bool:
        item = await staged(at, [f"{incarnation}{batch_id}".encode()])
        done = await committed(
            at,
            item,
            query_id="app:etl",
            batch_id=batch_id,
            incarnation=incarnation,
            on_reset=on_reset,
            named=True,
        )
        return bool(done.already)

    assert not await write(812, "a")
    with pytest.raises(
        TransactionResetError,
        match=r"txnAppId 'etl' last wrote batch 812 from another checkpoint; this run starts again at 0\. Use a new "
        r"txnAppId, or set txnOnReset=continue\|skip\.",
    ):
        await write(0, "b")
    assert await write(0, "b", OnReset.SKIP)
    assert not await write(0, "b", OnReset.CONTINUE)
    assert await write(0, "b", OnReset.CONTINUE)
    assert not await write(1, "b")
    assert await values(log) == [b"a812", b"b0", b"b1"]


async def test_several_logs_get_a_batch_in_one_cas(at: World) -> None:
    for name in ("a", "b"):
        await at.made(name)
    parts = tuple(
        [Part(await log_id_of(at, name), (await staged(at, [name.encode()], name),)) for name in ("a", "b")]
    )
    await LogCommitter(at.client, ["a", "b"], CommitBatch(parts, "q", 0)).commit()
    assert [await values(at.log(name)) for name in ("a", "b")] == [[b"a"], [b"b"]]
    # One of two logs is led and refuses: the other gets nothing.
    writer = await at.log("b", LogConfig(adopts=False)).open_writer()
    more = tuple([Part(await log_id_of(at, name), (await staged(at, [b"2"], name),)) for name in ("a", "b")])
    with pytest.raises(LogLedError):
        await LogCommitter(at.client, ["a", "b"], CommitBatch(more, "q", 1)).commit()
    assert await values(at.log("a")) == [b"a"]
    await writer.close()
    await LogCommitter(at.client, ["a", "b"], CommitBatch(more, "q", 1)).commit()
    assert [await values(at.log(name)) for name in ("a", "b")] == [[b"a", b"2"], [b"b", b"2"]]


class LossyStore(MemoryStore):
    """A store that does, or does not do, what it is asked and then does not say so."""

    lose: str = ""

    async def multi(self, ops: Any) -> Any:
        heads = [op for op in ops if op.key.startswith("logs/") and hasattr(op, "value")]
        if not heads or not self.lose:
            return await super().multi(ops)
        lost, self.lose = self.lose, ""
        if lost == "after":
            await super().multi(ops)
        raise MetadataUnknownError("lost")


@pytest.mark.parametrize("lose", ["before", "after"])
@pytest.mark.parametrize("query", ["q", ""])
async def test_a_lost_answer_is_settled_by_reading(tmp_path: Path, lose: str, query: str) -> None:
    store = LossyStore()
    async with world(tmp_path, store) as at:
        log = await at.made()
        item = await staged(at, numbers(0, 5))
        store.lose = lose
        assert not (await committed(at, item, query_id=query)).already
        assert await values(log) == numbers(0, 5)
        assert await discard(at.client, await log_id_of(at), [item.ledger_id]) == [item.ledger_id]
        assert await values(log) == numbers(0, 5)


class GoneStore(MemoryStore):
    """A store that responds to no question about a log once the list of one has changed as a batch wants it."""

    gone: bool | None = None
    says_so = True

    async def multi(self, ops: Any) -> Any:
        done = await super().multi(ops)
        if self.gone is False and any(op.key.startswith("logs/") for op in ops):
            self.gone = True
            if not self.says_so:
                raise MetadataUnknownError("lost")
        return done

    async def get(self, key: str) -> Any:
        if self.gone:
            raise StoreAwayError("the store is away")
        return await super().get(key)


@pytest.mark.parametrize("truncate", [False, True])
async def test_a_batch_that_is_in_is_committed_though_the_store_is_away_at_once(
    tmp_path: Path, truncate: bool
) -> None:
    store = GoneStore()
    async with world(tmp_path, store) as at:
        log = await at.made()
        await committed(at, await staged(at, [b"0"]))
        item = await staged(at, [b"1"])
        batch = CommitBatch((Part(await log_id_of(at), (item,)),), truncate=truncate)
        committer = LogCommitter(at.client, ["orders"], batch, config=LogConfig(metadata_attempts_max=1))
        store.gone = False
        done = await committer.commit()
        store.gone = None
        assert (done.already, done.unplaced) == (False, ("orders",))
        assert await values(log) == ([b"1"] if truncate else numbers(0, 2))


async def test_a_batch_whose_cas_got_no_answer_may_be_in_when_the_store_stays_away(tmp_path: Path) -> None:
    store = GoneStore()
    async with world(tmp_path, store) as at:
        log = await at.made()
        batch = CommitBatch((Part(await log_id_of(at), (await staged(at, [b"0"]),)),))
        config = LogConfig(metadata_attempts_max=1)
        store.gone, store.says_so = False, False
        with pytest.raises(MetadataUnknownError, match="may or may not be in log 'orders'"):
            await LogCommitter(at.client, ["orders"], batch, config=config).commit()
        # Before it was asked for the compare-and-swap, it is not.
        with pytest.raises(StoreAwayError):
            await LogCommitter(at.client, ["orders"], batch, config=config).commit()
        store.gone = None
        assert await values(log) == [b"0"]


async def test_an_abort_deletes_only_what_no_list_holds_and_a_late_commit_finds_out(at: World) -> None:
    log = await at.made()
    log_id = await log_id_of(at)
    first, second = await staged(at, [b"1"]), await staged(at, [b"2"])
    await committed(at, first, query_id="q", batch_id=0)
    assert await discard(at.client, log_id, [first.ledger_id, second.ledger_id]) == [first.ledger_id]
    with pytest.raises(StagedLedgerGoneError, match="a ledger of this batch was deleted"):
        await committed(at, second, query_id="q", batch_id=1)
    assert await values(log) == [b"1"]
    await log.delete()
    with pytest.raises(NoSuchLogError):
        await LogCommitter(at.client, ["orders"], CommitBatch((Part(log_id, (first,)),), "q", 2)).commit()


def test_marks_of_silent_queries_make_room_and_that_is_counted() -> None:
    day = 86_400_000
    head = LogHead(b"\x01" * 16, "orders")
    for n in range(256):
        head = with_position(head, SinkPosition(f"q{n}", 0, day + n))
    with pytest.raises(MisuseError, match="remembers 256 queries"):
        with_position(head, SinkPosition("one more", 0, day + 300))
    head = with_position(head, SinkPosition("q7", 1, day + 300))
    assert (len(head.sink_positions), head.positions_dropped) == (256, 0)
    head = with_position(head, SinkPosition("one more", 0, 2 * day + 5))
    assert (len(head.sink_positions), head.positions_dropped, head.positions_dropped_ms) == (256, 1, day)
    head = with_position(head, SinkPosition("much later", 0, 91 * day + 10))
    assert (len(head.sink_positions), head.positions_dropped) == (248, 10)
    assert parse_head(encode_head(head), head.log_id) == head

"""Logs when the metadata store loses answers, a bookie dies, records in the store are damaged."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from quire.bookie.server import BookieServer
from quire.core.errors import (
    CorruptMetadataError,
    DiskFullError,
    MetadataUnknownError,
    MisuseError,
    NotEnoughBookiesError,
    NotLeaderError,
    NotWritingError,
    QuireError,
)
from quire.core.log.commit import CommitBatch, Part
from quire.core.log.list import ItemState, LogHead, LogItem
from quire.log import altering
from quire.log.altering import alter_log
from quire.log.committing import LogCommitter
from quire.log.config import LogConfig
from quire.log.heads import LogHeads
from quire.metadata.memory import MemorySpace, MemoryStore
from quire.metadata.sqlite.store import SqliteStore
from quire.metadata.store import Delete, Op, Put, StoreAwayError, StoreBusyError, Versioned
from support.log_cluster import BY, FAST, LIMIT_S, World, log_id_of, numbers, staged, values, world
from support.waiting import until_async


class ForgetfulStore(MemoryStore):
    """A store that loses some answers to changes of logs: the change may have happened or not."""

    def __init__(self, seed: int, share: float) -> None:
        super().__init__()
        self.chance = random.Random(seed)
        self.share = share
        self.lost = 0

    async def multi(self, ops: Sequence[Op]) -> Sequence[int]:
        if not any(op.key.startswith("log") for op in ops) or self.chance.random() >= self.share:
            return await super().multi(ops)
        self.lost += 1
        fate = self.chance.randrange(3)
        if fate == 0:
            raise StoreBusyError("busy")
        if fate == 1:
            await super().multi(ops)
        raise MetadataUnknownError("the answer was lost")


class CountingSpace(MemorySpace):
    """Versions as ZooKeeper has them: a key that was deleted and made again begins anew."""

    def _take(self, staged: dict[str, Any]) -> None:
        for key, row in staged.items():
            if row is not None:
                version = self.rows[key].version + 1 if key in self.rows else 0
                staged[key] = replace(row, version=version)
        super()._take(staged)


class OvertakenStore(MemoryStore):
    """A store of which something is asked by another client right before the first deletion of a log."""

    before: Callable[[], Awaitable[None]] | None = None

    async def multi(self, ops: Sequence[Op]) -> Sequence[int]:
        if self.before is not None and isinstance(ops[0], Delete):
            before, self.before = self.before, None
            await before()
        return await super().multi(ops)


@pytest.mark.parametrize("space", [MemorySpace, CountingSpace])
async def test_a_deletion_that_another_client_ended_leaves_the_next_log_of_that_name(
    space: type[MemorySpace],
) -> None:
    shared = space()
    store, others = OvertakenStore(shared), LogHeads(MemoryStore(shared))
    former, later = LogHead(bytes(16), "orders"), LogHead(bytes([1]) * 16, "orders")
    await others.create(former)

    async def ended_and_made_anew() -> None:
        await others.remove(former)
        await others.create(later)

    store.before = ended_and_made_anew
    await LogHeads(store).remove(former)
    assert await others.find("orders") == later.log_id


@pytest.mark.parametrize("seed", range(4))
async def test_lost_answers_change_nothing_but_the_time(tmp_path: Path, seed: int) -> None:
    store = ForgetfulStore(seed, 0)
    async with world(tmp_path, store) as at:
        config = LogConfig(
            back_off_ms_min=1, back_off_ms_max=2, page_items=2, fan_out=2, metadata_attempts_max=50
        )
        log = await at.made(config=config)
        store.share = 0.4
        expected = 0
        for _ in range(3):
            writer = await log.open_writer()
            for _ in range(4):
                assert await writer.append_many(numbers(expected, expected + 5)) == range(
                    expected, expected + 5
                )
                expected += 5
                await writer.roll()
            assert await writer.append(b"%d" % expected) == expected
            expected += 1
            await writer.close()
        for before in (7, 20, 44):
            # What nobody can tell happened is tried again: an intent is carried out as often as it takes.
            for _ in range(50):
                with contextlib.suppress(MetadataUnknownError, StoreBusyError):
                    await log.truncate(before=before)
                    break
        store.share = 0
        await log.truncate(before=44)
        assert store.lost > 5
        assert await values(log) == numbers(44, expected)
        about = await log.describe()
        assert await at.ledgers() == [item.ledger_id for item in about.items]


async def test_a_bookie_dies_under_a_log(at: World) -> None:
    log = await at.made(ensemble_size=3, write_quorum=3, ack_quorum=2)
    writer = await log.open_writer()
    await writer.append_many(numbers(0, 20))
    await at.bookies[0].stop()
    await writer.append_many(numbers(20, 40))
    # The next ledger begins with an absent slot; so does that of whoever opens the log anew.
    await writer.roll()
    assert await writer.append(b"40") == 40
    await writer.close()
    assert await values(log) == numbers(0, 41)
    async with await log.open_writer() as writer:
        assert await writer.append(b"41") == 41
    assert await values(log) == numbers(0, 42)
    # With one bookie there is no ack quorum.
    await at.bookies[1].stop()
    another = await at.made("another", ensemble_size=3, write_quorum=3, ack_quorum=2)
    with pytest.raises(NotEnoughBookiesError, match="1 are writable"):
        await another.open_writer()


async def test_a_log_that_wants_all_its_bookies_there(at: World) -> None:
    log = await at.made(ensemble_size=3, write_quorum=3, ack_quorum=2, min_present=3)
    writer = await log.open_writer()
    await writer.append_many(numbers(0, 20))
    await at.bookies[0].stop()
    await writer.append_many(numbers(20, 40))
    # No third bookie for another ledger: the current one goes on.
    with pytest.raises(NotEnoughBookiesError):
        await writer.roll()
    assert await writer.append(b"40") == 40
    await writer.abandon()
    with pytest.raises(NotWritingError, match="abandoned"):
        await writer.append(b"41")
    assert [record.value async for record in log.read(recover=True)] == numbers(0, 41)
    with pytest.raises(NotEnoughBookiesError, match="at least 3 of its 3"):
        await log.open_writer()


async def test_a_roll_by_time_that_found_too_few_bookies_is_tried_again(
    at: World, caplog: pytest.LogCaptureFixture
) -> None:
    log = await at.made(config=replace(FAST, roll_ms=20), min_present=3)
    async with await log.open_writer() as writer:
        await at.bookies[0].stop()
        first = writer.ledger_id
        await writer.append(b"0")
        await until_async(lambda: "no new ledger could be created" in caplog.text, "a roll that failed")
        at.bookies[0] = BookieServer(at.bookies[0].config, at.store)
        await at.bookies[0].start()
        await until_async(lambda: writer.ledger_id not in {first, None}, "the next roll", seconds=10)


async def test_the_list_on_sqlite(tmp_path: Path) -> None:
    async def run(at: World) -> None:
        log = await at.made()
        async with await log.open_writer() as writer:
            for part in range(6):
                await writer.append_many(numbers(part * 10, part * 10 + 10))
                await writer.roll()
        await log.truncate(before=35)
        assert await values(log) == numbers(35, 60)
        assert all(item.state is ItemState.CLOSED for item in (await log.describe()).items)
        await log.delete()
        assert await at.client.logs() == []
        assert await at.ledgers() == []

    store = await SqliteStore.open(tmp_path / "metadata.db", create=True)
    async with world(tmp_path, store) as at:
        await asyncio.wait_for(run(at), 30)


async def test_a_log_may_be_there_when_the_store_went_away_while_it_was_made(at: World) -> None:
    multi, get = at.store.multi, at.store.get

    async def away(key: str) -> Versioned | None:
        raise StoreAwayError("the store is away")

    async def lost(ops: Sequence[Op]) -> Sequence[int]:
        await multi(ops)
        at.store.get = away  # type: ignore[method-assign]
        raise MetadataUnknownError("the answer was lost")

    at.store.multi = lost  # type: ignore[method-assign]
    with pytest.raises(MetadataUnknownError):
        await at.made()
    at.store.multi, at.store.get = multi, get  # type: ignore[method-assign]
    assert await at.log().exists()


async def test_an_alteration_whose_answer_was_lost_says_what_it_changed(at: World) -> None:
    await at.made()
    put = at.store.put

    async def lost(key: str, value: bytes, version: int) -> int:
        at.store.put = put  # type: ignore[method-assign]
        await put(key, value, version)
        raise MetadataUnknownError("the answer was lost")

    at.store.put = lost  # type: ignore[method-assign]
    before, after = await alter_log(at.client, "orders", ack_quorum=3)
    assert (before.ack_quorum, after.ack_quorum) == (2, 3)


async def test_damaged_records_are_named(at: World) -> None:
    log = await at.made()
    async with await log.open_writer() as writer:
        for part in range(6):
            await writer.append(b"%d" % part)
            await writer.roll()
    [(key, page), *_] = await at.store.list("log-pages/")
    await at.store.put(key, page.value + b"\x18\x01", page.version)
    with pytest.raises(CorruptMetadataError, match="other bytes than its name"):
        await values(at.log())
    await at.store.delete(key)
    for call in (at.log().describe(), values(at.log())):
        with pytest.raises(CorruptMetadataError, match="is missing, and the list still names it"):
            await call
    [(key, head)] = await at.store.list("logs/")
    await at.store.put(key, b"\xff\xff\xff", head.version)
    for call in (at.log().describe(), at.log().open_writer(), values(at.log())):
        with pytest.raises(CorruptMetadataError, match="head record of log"):
            await call


async def test_a_ledger_that_has_the_id_of_one_in_the_list_is_left_to_its_writer(at: World) -> None:
    """The store went back in time, and gave the id out again."""
    log = await at.made()
    async with await at.client.create_ledger() as another:
        await another.append(b"0")
        heads = LogHeads(at.store)
        found = await heads.read((await log.identify()).log_id)
        assert found is not None
        item = LogItem(another.ledger_id, another.metadata.token ^ 2)
        await heads.write(found[0].with_item(item), found[1])
        with pytest.raises(CorruptMetadataError, match="is not the ledger in the log's list"):
            await log.open_writer()
        with pytest.raises(CorruptMetadataError, match="is not the ledger in the log's list"):
            [record async for record in log.read(recover=True)]
        assert await another.append(b"1") == 1


async def test_a_leader_whose_head_was_damaged_stops(at: World) -> None:
    log = await at.made(config=FAST)
    writer = await log.open_writer()
    await writer.append(b"0")
    [(key, head)] = await at.store.list("logs/")
    await at.store.put(key, b"\xff", head.version)
    with pytest.raises(CorruptMetadataError):
        await writer.roll()
    with pytest.raises(CorruptMetadataError):
        await writer.append(b"1")
    with pytest.raises(QuireError):
        await writer.close()


async def test_a_deposed_leader_stops_at_its_next_cas(at: World) -> None:
    log = await at.made()
    first = await log.open_writer()
    await first.append(b"0")
    async with await log.open_writer() as second:
        with pytest.raises(NotLeaderError, match="leads it since epoch 2"):
            await first.roll()
        with pytest.raises(NotLeaderError):
            await first.append(b"x")
        assert await second.append(b"1") == 1
    with contextlib.suppress(QuireError):
        await first.close()
    # The ledger that the first one made for its roll is in no list, and is gone.
    about = await log.describe()
    assert await at.ledgers() == [item.ledger_id for item in about.items]


class FewAtOnce(MemoryStore):
    """A store that takes few operations in one step, as etcd does."""

    @property
    def ops_max(self) -> int:
        return 5

    async def multi(self, ops: Sequence[Op]) -> Sequence[int]:
        if len(ops) > self.ops_max:
            raise MisuseError(f"{len(ops)} operations are more than {self.ops_max}")
        return await super().multi(ops)


async def test_a_batch_into_several_logs_keeps_within_what_the_store_takes_in_one_step(
    tmp_path: Path,
) -> None:
    """What is left beside the lists requires ledgers; more logs than that are refused before anything is changed."""

    async def committed(at: World, names: Sequence[str], ledgers: int) -> None:
        parts = []
        for name in names:
            items = [
                await staged(at, [name.encode()], name, replace(BY, partition=number))
                for number in range(ledgers)
            ]
            parts.append(Part(await log_id_of(at, name), tuple(items)))
        await LogCommitter(at.client, names, CommitBatch(tuple(parts))).commit()

    async with world(tmp_path, FewAtOnce()) as at:
        names = ["a", "b", "c", "d", "e", "f"]
        for name in names:
            await at.made(name)
        await committed(at, names[:4], ledgers=2)
        assert [await values(at.log(name)) for name in names[:4]] == [
            [name.encode()] * 2 for name in names[:4]
        ]
        with pytest.raises(
            MisuseError, match=r"into 6 logs, .* at most 5 in one step; nothing was committed"
        ):
            await committed(at, names, ledgers=1)
        assert await values(at.log("f")) == []


async def test_a_batch_that_the_store_refuses_is_not_in(tmp_path: Path) -> None:
    """Only a response that is lost leaves that open."""

    class Refusing(MemoryStore):
        async def multi(self, ops: Sequence[Op]) -> Sequence[int]:
            if isinstance(ops[-1], Put) and ops[-1].key.startswith("logs/"):
                raise MisuseError("these lists are larger than the store takes at once")
            return await super().multi(ops)

    async with world(tmp_path, Refusing()) as at:
        await at.made()
        part = Part(await log_id_of(at), (await staged(at, [b"0"]),))
        with pytest.raises(MisuseError, match="larger than the store takes"):
            await LogCommitter(at.client, ["orders"], CommitBatch((part,))).commit()


class RefusingStore(MemoryStore):
    """A store that answers reads, and takes no change of a log; it counts what was tried."""

    answer: QuireError | None = None
    tried = 0

    async def multi(self, ops: Sequence[Op]) -> Sequence[int]:
        if self.answer is None or not any(op.key.startswith("log") for op in ops):
            return await super().multi(ops)
        self.tried += 1
        raise self.answer


@pytest.mark.timeout(LIMIT_S)
@pytest.mark.parametrize(
    "answer", [MetadataUnknownError("lost"), DiskFullError("full"), StoreAwayError("away")]
)
async def test_a_truncation_that_the_store_never_takes_ends(tmp_path: Path, answer: QuireError) -> None:
    """Reads that go well between the attempts say nothing of whether the store takes the change."""
    store = RefusingStore()
    async with world(tmp_path, store) as at:
        config = replace(FAST, metadata_attempts_max=6)
        log = await at.made(config=config)
        store.answer = answer
        with pytest.raises(type(answer), match=answer.message):
            await log.delete()
        assert store.tried == config.metadata_attempts_max
        store.answer = None
        await log.delete()


async def test_settings_that_the_store_never_takes_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(altering, "ATTEMPTS_MAX", 5)
    store = RefusingStore()
    async with world(tmp_path, store) as at:
        await at.made()
        store.answer = MetadataUnknownError("lost")
        with pytest.raises(MetadataUnknownError, match="lost"):
            await alter_log(at.client, "orders", ensemble_size=1, write_quorum=1, ack_quorum=1)
        assert store.tried == 5

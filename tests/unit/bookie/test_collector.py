"""A bookie's collector on its real disk, with a store in memory that is put back, changed and damaged."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from quire.core.answers import Answer
from quire.core.errors import CorruptMetadataError, RefusedError
from quire.core.ids import BookieId, LedgerId
from quire.env.real import RealFiles
from quire.metadata.accepting import accept_store, stopped_collections
from quire.metadata.keys import passes_key, tombstone_key
from quire.metadata.memory import MemoryStore
from quire.metadata.records import OF_LEDGERS, AllRecords
from quire.metadata.store import Create, StoreBusyError
from quire.storage.directory.collector_file import COLLECTOR_FILE
from quire.wire.store_records import PASSES_CODEC, Passes
from support.one_collector import At, one_collector
from support.small_cluster import small_cluster


@pytest.fixture
async def at(tmp_path: Path) -> AsyncIterator[At]:
    async with one_collector(tmp_path) as made:
        yield made


async def test_a_tombstone_is_enough_at_once(at: At, caplog: pytest.LogCaptureFixture) -> None:
    dead, alive = await at.write(2)
    await at.client.delete_ledger(dead)
    assert at.holds(dead), "the record goes at once, the entries with the next pass"
    with caplog.at_level(logging.INFO):
        assert await at.passes() == 1
    assert f"dropped ledger {dead}, proof: tombstone" in caplog.text, "every deletion is logged"
    assert not at.holds(dead)
    assert at.holds(alive)
    assert await at.store.list("tombstones/") == [], "the only bookie's watermark has passed it"
    await at.restart()
    assert not at.holds(dead)


async def test_a_missing_record_is_no_proof_however_often(at: At) -> None:
    ledger_id, found_once = await at.write(2)
    await at.forget_record(ledger_id)
    assert await at.passes() == 0
    await at.forget_record(found_once)
    assert await at.passes(4) == 0
    assert at.unknown == [ledger_id, found_once]
    assert at.holds(ledger_id)
    assert at.holds(found_once)


async def test_found_twice_and_missing_then_is_one_also_after_a_restart(at: At) -> None:
    ledger_id, alive = await at.write(2)
    await at.passes()
    await at.restart()
    await at.passes()
    await at.restart()
    await at.forget_record(ledger_id)
    assert await at.passes() == 1
    assert not at.holds(ledger_id)
    assert at.holds(alive)


@pytest.mark.parametrize("spoilt", [b"", b"\0" * 200, None])
async def test_without_its_file_a_collector_finds_everything_anew(
    at: At, spoilt: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    (ledger_id,) = await at.write()
    await at.passes(2)
    file = at.server.config.directory / COLLECTOR_FILE
    if spoilt is None:
        file.unlink()
    else:
        file.write_bytes(spoilt)
    await at.restart()
    await at.forget_record(ledger_id)
    assert await at.passes(3) == 0
    assert at.unknown == [ledger_id]
    assert ("gathered again" in caplog.text) == (spoilt is not None)


async def test_a_file_that_the_disk_does_not_give_is_as_good_as_none(
    at: At, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bookie did not start because of it, although nothing but time is lost with it."""
    read = RealFiles.read_whole

    def bad_sector(files: RealFiles, path: Path) -> bytes:
        if path.name == COLLECTOR_FILE:
            raise OSError(errno.EIO, "injected", str(path))
        return read(files, path)

    (ledger_id,) = await at.write()
    await at.passes(2)
    with monkeypatch.context() as patch:
        patch.setattr(RealFiles, "read_whole", bad_sector)
        await at.restart()
    assert "gathered again" in caplog.text
    await at.forget_record(ledger_id)
    assert await at.passes(3) == 0
    assert at.unknown == [ledger_id]
    assert at.holds(ledger_id)
    await at.restart()
    assert caplog.text.count("gathered again") == 1, "a pass has written it anew"


async def test_what_was_written_since_it_was_found_has_no_proof(at: At) -> None:
    ledger = await at.client.create_ledger(ensemble_size=1, write_quorum=1, ack_quorum=1)
    await ledger.append(b"before")
    await at.passes(2)
    await ledger.append(b"since")
    await at.forget_record(int(ledger.ledger_id))
    assert await at.passes(2) == 0
    assert at.unknown == [ledger.ledger_id]


async def test_a_record_that_is_there_again_keeps_the_ledger(at: At) -> None:
    """Callers choose ids again, and Java sees no tombstone: what counts is the record."""
    (ledger_id,) = await at.write()
    record, _ = await at.records.ledgers.read(ledger_id)
    await at.passes(2)
    await at.records.ledgers.delete(LedgerId(ledger_id))
    await at.records.ledgers.create(record)
    assert await at.passes(2) == 0
    assert at.holds(ledger_id)


class Meddled(MemoryStore):
    """A store in which something happens right before a pass's last look."""

    meddle: Callable[[], Coroutine[Any, Any, object]] | None = None

    async def multi(self, ops: Any) -> Any:
        looks = len(ops) > 1 and all(type(op).__name__ == "Require" for op in ops)
        if looks and self.meddle is not None:
            meddle, self.meddle = self.meddle, None
            await meddle()
        return await super().multi(ops)


async def meddled(at: At, meddle: Callable[[], Coroutine[Any, Any, object]]) -> None:
    """Something is to happen right before the next look of the only bookie."""
    store = Meddled(at.cluster.space)
    store.meddle = meddle
    at.server.collector._store._store = store


@pytest.mark.parametrize("by", ["tombstone", "chain"])
async def test_the_last_look_sees_the_record_of_the_same_moment(at: At, by: str) -> None:
    (ledger_id,) = await at.write()
    record, _ = await at.records.ledgers.read(ledger_id)
    await at.passes(2)
    if by == "chain":
        await at.forget_record(ledger_id)
    else:
        await at.records.ledgers.delete(LedgerId(ledger_id))
    await meddled(at, lambda: at.records.ledgers.create(record))
    assert await at.passes(2) == 0
    assert at.holds(ledger_id)


async def test_a_counter_that_somebody_else_changed_ends_the_pass(at: At) -> None:
    (ledger_id,) = await at.write()
    await at.passes(2)
    await at.forget_record(ledger_id)
    key = passes_key(at.server.bookie_id)

    async def change() -> None:
        found = await at.store.get(key)
        assert found is not None
        await at.store.put(key, found.value, found.version)

    await meddled(at, change)
    with pytest.raises(StoreBusyError, match="changed during the pass"):
        await at.passes()
    assert at.holds(ledger_id)
    assert await at.passes() == 1, "the next pass has a counter of its own again"


async def test_a_store_that_went_back_is_held_against_and_accepted(
    at: At, caplog: pytest.LogCaptureFixture
) -> None:
    old, dead = await at.write(2)
    await at.client.delete_ledger(dead)
    backup = await at.kept()
    young = await at.write(3)
    await at.passes(2)
    newest = await at.kept()
    await at.put_back(backup)
    assert await at.passes(4) == 0
    assert at.unknown == young
    at.server.alerts.look()
    assert caplog.text.count("deletes no ledgers: the store ") == 1
    (one,) = await stopped_collections(at.store)
    assert one.why == at.server.collector.info()["holding"]
    await at.restart()
    assert await at.passes() == 0
    assert at.server.collector.info()["holding"], "it is still that store"
    with pytest.raises(RefusedError, match="has a record"):
        await at.records.delete_orphan(old)

    assert [one.bookie for one in await accept_store(at.store)] == [at.server.bookie_id]
    with pytest.raises(RefusedError, match="already accepted"):
        await accept_store(at.store)
    assert await at.passes(4) == 0
    assert at.unknown == young
    assert at.server.collector.info()["holding"] is None
    with pytest.raises(RefusedError, match="no bookie has stopped deleting"):
        await accept_store(at.store)
    await at.records.delete_orphan(young[0])
    assert await at.passes() == 1
    assert at.unknown == young[1:]

    await at.put_back(newest)
    assert await at.passes(3) == 0
    assert at.server.collector.info()["holding"], "the newer one is another again"
    for ledger_id in (old, *young[1:]):
        assert at.holds(ledger_id)


async def test_an_acceptance_that_meets_a_pass_is_not_said_to_be_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store, key = MemoryStore(), passes_key("b1")
    stopped = Passes(BookieId("b1"), 3, own=9, held="the store went back")
    await store.create(key, PASSES_CODEC.encode(stopped))
    put = store.put

    async def begins_a_pass(key: str, value: bytes, version: int) -> int:
        await put(key, PASSES_CODEC.encode(replace(stopped, passes=4)), version)
        return await put(key, value, version)

    monkeypatch.setattr(store, "put", begins_a_pass)
    with pytest.raises(StoreBusyError, match="try again"):
        await accept_store(store)
    monkeypatch.setattr(store, "put", put)
    assert [one.bookie for one in await accept_store(store)] == ["b1"]


async def test_a_formatted_store_deletes_nothing(at: At) -> None:
    before = await at.write(3)
    await at.passes(2)
    await at.put_back({})
    fresh = await at.write(3)
    assert min(fresh) > max(before)
    assert await at.passes(4) == 0
    assert all(map(at.holds, before + fresh))
    assert "no counter" in at.server.collector.info()["holding"]


async def test_ids_that_the_bookie_holds_are_not_given_again(at: At) -> None:
    await at.write(2)
    backup, ids = await at.kept(), at.cluster.space.ledger_ids
    young = await at.write(3)
    await at.put_back(backup)
    at.cluster.space.ledger_ids = ids
    await at.restart()
    assert min(await at.write(2)) > max(young)


async def test_damaged_values_are_named_and_harmless(at: At, caplog: pytest.LogCaptureFixture) -> None:
    ids = await at.write(40)
    some = await at.store.get(OF_LEDGERS.key(ids[0]))
    assert some is not None
    for first in range(1_000, 11_000, 100):  # of ledgers that this bookie does not hold
        await at.store.multi([Create(OF_LEDGERS.key(one), some.value) for one in range(first, first + 100)])
    await at.passes(2)
    found = await at.store.get(OF_LEDGERS.key(ids[7]))
    assert found is not None
    await at.store.put(OF_LEDGERS.key(ids[7]), b"\xff" * 30, found.version)
    await at.client.delete_ledger(ids[1])
    await at.records.ledgers.delete(LedgerId(ids[2]))
    stone = await at.store.get(tombstone_key(ids[2]))
    assert stone is not None
    await at.store.put(tombstone_key(ids[2]), b"\xff" * 30, stone.version)
    assert await at.passes() == 2, "the chain proves what a damaged tombstone does not"
    assert f"tombstone of ledger {ids[2]}" in caplog.text
    assert all(at.holds(ledger_id) for ledger_id in ids if ledger_id not in ids[1:3])

    key = passes_key(at.server.bookie_id)
    counter = await at.store.get(key)
    assert counter is not None
    await at.store.put(key, b"\xff" * 30, counter.version)
    with pytest.raises(CorruptMetadataError, match="pass counter of bookie"):
        await at.passes()


async def test_a_tombstone_of_another_life_of_the_id_proves_nothing(at: At) -> None:
    (ledger_id,) = await at.write()
    record, _ = await at.records.ledgers.read(ledger_id)
    await at.passes()
    await at.records.ledgers.delete(LedgerId(ledger_id))
    await at.records.ledgers.create(
        replace(
            record,
            custom=tuple(
                (key, b"12345678" if key == "quire.token" else value) for key, value in record.custom
            ),
        )
    )
    await at.records.ledgers.delete(LedgerId(ledger_id))
    assert await at.passes(2) == 0
    assert at.unknown == [ledger_id]


class Failing(MemoryStore):
    """A store that fails in a way that nobody foresaw, until it is told not to."""

    fails = False

    async def list(self, *given: Any, **named: Any) -> Any:
        if self.fails:
            raise ZeroDivisionError("nobody foresaw this")
        return await super().list(*given, **named)


async def test_a_collector_that_fails_goes_on_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with one_collector(tmp_path, garbage_seconds=0.01) as at:
        collector = at.server.collector
        store = Failing(at.cluster.space)
        store.fails = True
        collector._store.records = AllRecords(store)
        async with asyncio.timeout(20):
            while collector.info()["failures"] < 3:
                await asyncio.sleep(0.01)
        assert "nobody foresaw this" in collector.info()["failure"]
        assert "failed" in caplog.text
        store.fails = False
        async with asyncio.timeout(20):
            while collector.info()["failure"] is not None:
                await asyncio.sleep(0.01)
        assert collector.info()["passes"] > 0


async def test_a_tombstone_waits_for_every_bookie_with_a_cookie(tmp_path: Path) -> None:
    async with small_cluster(tmp_path, bookies=3, garbage_seconds=0, tombstone_seconds=0) as cluster:
        client = await cluster.client()
        servers = list(cluster.servers.values())
        for server in servers:
            await server.collector.collect()
        async with await client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=3) as ledger:
            await ledger.append(b"entry")
        ledger_id = int(ledger.ledger_id)
        away = servers[2]
        name = await cluster.stop_bookie(away.bookie_id)
        await client.delete_ledger(ledger_id)
        store = MemoryStore(cluster.space)
        for _ in range(3):
            for server in servers[:2]:
                await server.collector.collect()
        assert len(await store.list("tombstones/")) == 1, "a bookie that is down will need it"
        back = await cluster.start_bookie(name)
        for server in (back, *servers[:2], back):
            await server.collector.collect()
        assert await store.list("tombstones/") == []
        assert not back.storage.held(ledger_id)
        await store.close()


async def test_a_tombstone_stands_while_an_add_may_be_late(tmp_path: Path) -> None:
    """What a slow bookie gets of a deleted ledger after a pass would be nobody's without it."""
    async with one_collector(tmp_path, tombstone_seconds=3600) as at:
        (ledger_id,) = await at.write()
        await at.client.delete_ledger(ledger_id)
        assert await at.passes(3) == 1
        assert len(await at.store.list("tombstones/")) == 1


async def test_orphans_come_in_pages(at: At, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quire.bookie.collecting.collector.ORPHANS_LISTED_MAX", 2)
    ids = await at.write(5)
    for ledger_id in ids:
        await at.forget_record(ledger_id)
    await at.passes()
    told: list[int] = []
    after = -1
    while True:
        answer, page = await at.client.bookies.orphans(at.server.bookie_id, after)
        assert answer is Answer.OK
        assert page is not None
        told += page.unknown
        if len(page.unknown) < 2:
            break
        after = page.through
    assert told == ids

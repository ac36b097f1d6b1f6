"""A bookie that may have lost fences: it asks the metadata store before it takes a normal add, once a ledger."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from quire.bookie.collecting import lost_ledgers
from quire.bookie.ledgers import record_reads, unknown_ledgers
from quire.bookie.server import BookieServer
from quire.client.access import LedgerAccess
from quire.core.answers import Answer
from quire.core.bookie.ledger import LedgerFacts
from quire.core.ids import BookieId, LedgerId
from quire.core.ledger.metadata import DigestType, LedgerMetadata, new_ledger
from quire.metadata.memory import MemoryStore
from quire.metadata.records import OF_LEDGERS, RecordStore
from quire.metadata.store import Put, Versioned
from quire.storage.journal import Journal
from quire.storage.segments.segment_files import Space
from support.records import put_record
from unit.bookie.test_bookie_server import World, access


class SlowStore(MemoryStore):
    """A store whose reads of records wait for a gate."""

    gate: asyncio.Event

    async def get(self, key: str) -> Versioned | None:
        if key.startswith("ledgers/"):
            await self.gate.wait()
        return await super().get(key)


async def created(at: World, ledger_id: int, ensemble: list[str] | None = None) -> LedgerMetadata:
    """A ledger on this bookie."""
    record = new_ledger(
        LedgerId(ledger_id),
        [BookieId(name) for name in ensemble or [at.bookie]],
        write_quorum=1,
        ack_quorum=1,
        digest_type=DigestType.CRC32C,
        password=b"secret",
    )
    await put_record(at.store, record)
    return record


async def lose(at: World, store: MemoryStore | None = None) -> None:
    """The bookie stops, what it had is gone without a name, and it starts again."""
    await at.server.stop(clean=False)
    for segment in (at.config.directory / "segments").iterdir():
        segment.unlink()
    at.server = BookieServer(at.config, store or at.store)
    await at.server.start()
    await reachable(at)


async def reachable(at: World) -> None:
    async with asyncio.timeout(20):
        while (await at.client.info(at.bookie))[0] is not Answer.OK:
            await at.client.bookies()


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(20):
        while not await condition():
            await asyncio.sleep(0)


async def has_looked(at: World) -> None:
    """Wait until it has looked through the records for what it may have lost."""

    async def writable() -> bool:
        return bool((await at.client.info(at.bookie))[1]["writable"])

    await until(writable)


async def told(at: World, who: LedgerAccess) -> dict[str, Any]:
    return (await at.client.info(at.bookie, who))[1]


async def test_an_open_ledger_that_names_the_bookie_takes_adds_again_and_gives_no_negatives(
    at: World,
) -> None:
    who = access(1)
    await created(at, 1)
    assert await at.add(who, [0]) is Answer.OK
    await lose(at)
    await has_looked(at)
    assert await at.add(who, [1], lac=0) is Answer.OK
    assert await at.add(who, [2], lac=1) is Answer.OK
    assert (await at.read(who, 0, 0)).conclusive_through < 0, "it may have had entry 0"
    facts = await told(at, who)
    assert (facts["limbo"], facts["fenced"], facts["fence_known"]) == (True, False, True)
    assert at.server.record_reads.reads == 1


@pytest.mark.parametrize("how", ["in recovery", "closed", "replaced", "deleted", "not readable"])
async def test_any_other_record_refuses_the_writer(how: str, at: World) -> None:
    who, records = access(1), RecordStore(at.store, OF_LEDGERS)
    record = await created(at, 1)
    assert await at.add(who, [0]) is Answer.OK
    _, version = await records.read(1)
    if how == "in recovery":
        await records.write(record.in_recovery(), version)
    elif how == "closed":
        await records.write(record.closed(0, 7), version)
    elif how == "replaced":
        await records.write(record.with_ensemble(1, [BookieId("other")]), version)
    elif how == "deleted":
        await records.delete(1)
    else:
        await at.store.multi([Put(OF_LEDGERS.key(1), b"no record", version)])
    await lose(at)
    await has_looked(at)
    if how == "deleted":
        assert await at.add(who, [1], lac=0) is Answer.DELETED, (
            "all trace of it is lost, and it has no record"
        )
        return
    assert await at.add(who, [1], lac=0) is Answer.READ_ONLY
    assert await at.add(who, [1], recovery=True) is Answer.OK, "a recoverer passes any fence"


async def test_a_record_that_cannot_be_read_refuses_its_own_ledger_only(at: World) -> None:
    await created(at, 1)
    await created(at, 2)
    _, version = await RecordStore(at.store, OF_LEDGERS).read(1)
    await at.store.multi([Put(OF_LEDGERS.key(1), b"no record", version)])
    await lose(at)
    await has_looked(at)
    assert (await told(at, access(1)))["limbo"], "nobody knows whom it names"
    assert await at.add(access(1), [0]) is Answer.READ_ONLY
    assert await at.add(access(2), [0]) is Answer.OK
    assert (await at.read(access(3), 0, 0)).answer is Answer.NO_LEDGER, "its negatives count again for others"


async def test_a_ledger_that_became_known_otherwise_is_asked_about_too(at: World) -> None:
    """The record names the bookie no more, and an explicit LAC makes the ledger known."""
    who, records = access(1), RecordStore(at.store, OF_LEDGERS)
    record = await created(at, 1)
    assert await at.add(who, [0]) is Answer.OK
    _, version = await records.read(1)
    version = await records.write(record.in_recovery(), version)
    assert (await at.client.read_lac(at.bookie, who, fence=True)).answer is Answer.OK
    closed = record.in_recovery().with_ensemble(0, [BookieId("other")]).closed(0, 7)
    await records.write(closed, version)
    await lose(at)
    await has_looked(at)
    assert (await at.client.write_lac(at.bookie, who, 0)).answer is Answer.OK
    assert not (await told(at, who))["limbo"]
    assert await at.add(who, [1], lac=0) is Answer.READ_ONLY


async def test_the_loss_is_remembered_over_restarts_and_costs_one_read_each(at: World) -> None:
    await lose(at)
    await has_looked(at)
    for ledger_id in (5, 6):
        await created(at, ledger_id)
    for _ in range(2):
        assert at.server.storage.states.unnamed_limbo.lost_at
        for number in range(3):
            for ledger_id in (5, 6):
                assert await at.add(access(ledger_id), [number]) is Answer.OK
        assert at.server.record_reads.reads == 2
        await at.restart(clean=True)


async def test_a_bookie_without_a_loss_reads_nothing(at: World) -> None:
    assert await at.add(access(1), [0]) is Answer.OK
    await at.restart(clean=False)
    assert await at.add(access(1), [1]) is Answer.OK
    assert at.server.record_reads.reads == 0


async def asking(at: World, count: int) -> list[asyncio.Task[Answer]]:
    """So many adds that wait for one read of the record, in order."""
    store = SlowStore(at.store._space)
    store.gate = asyncio.Event()
    await created(at, 1)
    await lose(at, store)
    await has_looked(at)
    adds = [asyncio.create_task(at.add(access(1), [number])) for number in range(count)]

    async def kept() -> bool:
        return sum(map(len, at.server.ledgers.unknown_ledgers._waiting.values())) == count

    if count:
        await until(kept)
    return adds


def gate_of(at: World) -> asyncio.Event:
    assert isinstance(at.server.store, SlowStore)
    return at.server.store.gate


async def test_runs_wait_in_order_for_one_read_and_count_as_pending(at: World) -> None:
    adds = await asking(at, 5)
    assert (await at.client.info(at.bookie))[1]["pending_bytes"] > 0
    gate_of(at).set()
    assert await asyncio.gather(*adds) == [Answer.OK] * 5
    assert at.server.record_reads.reads == 1
    assert (await at.client.info(at.bookie))[1]["pending_bytes"] == 0
    assert (await told(at, access(1)))["last_entry"] == 4


async def test_a_fence_that_arrives_meanwhile_wins(at: World) -> None:
    adds = await asking(at, 3)
    assert (await at.client.read_lac(at.bookie, access(1), fence=True)).answer is Answer.OK
    gate_of(at).set()
    assert await asyncio.gather(*adds) == [Answer.FENCED] * 3


async def test_without_an_answer_of_the_store_runs_are_refused(
    at: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_reads, "READ_TIMEOUT_SECONDS", 0.1)
    adds = await asking(at, 2)
    assert await asyncio.gather(*adds) == [Answer.READ_ONLY] * 2
    gate_of(at).set()
    assert await at.add(access(1), [0]) is Answer.OK, "it asks again"


@pytest.mark.parametrize("limit", ["WAITING_MAX", "LEDGERS_MAX", "bytes"])
async def test_no_more_runs_wait_than_there_is_room_for(
    limit: str, at: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    adds = await asking(at, 2)
    other = 1
    if limit == "WAITING_MAX":
        monkeypatch.setattr(unknown_ledgers, "WAITING_MAX", 2)
    elif limit == "LEDGERS_MAX":
        monkeypatch.setattr(unknown_ledgers, "LEDGERS_MAX", 1)
        other = 2
    else:
        at.server.ledgers.unknown_ledgers._bytes_max = at.server.ledgers.unknown_ledgers._bytes
    assert await at.add(access(other), [9]) is Answer.READ_ONLY
    gate_of(at).set()
    assert await asyncio.gather(*adds) == [Answer.OK] * 2
    assert at.server.ledgers.unknown_ledgers._bytes == 0


async def test_a_store_that_went_back_settles_no_fence(at: World) -> None:
    adds = await asking(at, 1)
    at.server.collector._machine.stopped = "the counter of its passes went back"
    gate_of(at).set()
    assert await asyncio.gather(*adds) == [Answer.READ_ONLY]
    at.server.collector._machine.stopped = ""
    assert await at.add(access(1), [0]) is Answer.OK


async def test_one_read_serves_fence_and_digest_type(at: World) -> None:
    [add] = await asking(at, 1)
    assert at.server.digest_types.get(1) is None
    gate_of(at).set()
    assert await add is Answer.OK
    assert at.server.digest_types.get(1) is DigestType.CRC32C
    assert at.server.record_reads.reads == 1


async def test_leaving_limbo_sets_the_fence_unless_it_is_known(at: World) -> None:
    for ledger_id in (1, 2):
        await created(at, ledger_id)
        assert await at.add(access(ledger_id), [0]) is Answer.OK
        stored: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        at.server.ledgers.put_in_limbo(LedgerFacts(ledger_id), stored.set_result)  # type: ignore[arg-type]
        await stored
    assert await at.add(access(2), [1]) is Answer.OK, "asked, and known from now on"
    for ledger_id in (1, 2):
        lsn = (await told(at, access(ledger_id)))["doubt_lsn"]
        assert await at.client.clear_limbo(at.bookie, access(ledger_id), lsn + 1) is Answer.BAD_REQUEST
        assert await at.client.clear_limbo(at.bookie, access(ledger_id), lsn) is Answer.OK
    await at.restart(clean=False)
    assert await at.add(access(1), [1]) is Answer.FENCED
    assert await at.add(access(2), [2]) is Answer.OK
    assert at.server.record_reads.reads == 0


async def test_a_later_loss_of_everything_has_a_later_limbo(at: World) -> None:
    """Or a CLEAR_LIMBO that was sent before it would end the limbo."""
    await created(at, 1)
    assert await at.add(access(1), [0]) is Answer.OK
    seen = []
    for _ in range(3):
        await lose(at)
        await has_looked(at)
        seen.append((await told(at, access(1)))["doubt_lsn"])
    assert seen == sorted(set(seen))


async def test_a_search_that_a_full_disk_stops_goes_on_when_there_is_room(
    at: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    put, asked = Journal.put, 0

    def full_now_and_then(journal: Journal, *record: Any, **options: Any) -> object:
        nonlocal asked
        if record[3] is Space.STATE:
            asked += 1
            if asked in {1, 3}:
                raise journal._disk_full()
        return put(journal, *record, **options)

    await created(at, 1)
    assert await at.add(access(1), [0]) is Answer.OK
    monkeypatch.setattr(lost_ledgers, "PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(Journal, "put", full_now_and_then)
    await lose(at)
    await has_looked(at)
    assert asked == 4, "ledger 1 in limbo, and the end of the search, each once more"
    assert (await told(at, access(1)))["limbo"]
    assert (await at.read(access(99), 0, 0)).answer is Answer.NO_LEDGER

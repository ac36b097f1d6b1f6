"""V2 and V3 have no word for a deleted ledger: to a fence it is "no such ledger" only where the id has no record."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from quire.bookie.ledgers.record_reads import ReadOutcome, RecordReads
from quire.client.bookies.bookies import BookieClient
from quire.client.config import ClientConfig
from quire.core.answers import Answer
from quire.core.bookie.rules import RULES, BookieRules
from quire.core.errors import NoSuchLedgerError
from quire.core.ids import NO_ENTRY
from quire.core.ledger.metadata import LedgerMetadata
from quire.metadata.bookies import BookieRegistry
from quire.metadata.records import AllRecords
from quire.wire.native import Flag, Kind
from support.one_bookie import OneBookie, opened, recovered
from support.records import put_record, record_of
from support.small_cluster import SmallCluster
from support.storage_disk import FaultyFiles
from support.waiting import until_async
from unit.bookie.test_bookie_server import World, access
from unit.bookie.test_limbo_of_ledgers import SlowStore
from unit.bookie.test_unknown_ledgers import NEW, AwayStore, create, over

PROTOCOLS = ["v2", "v3"]
LATER = 10**15


async def fences(at: World, protocol: str) -> list[Answer]:
    """What a fence and a fencing read of a recovery are answered."""
    client = BookieClient(BookieRegistry(at.store), at.store.instance_id, protocol=protocol)
    await client.start()
    try:
        who = access(NEW, token=0)
        reply = await client.read(at.bookie, who, 0, 0, 1 << 20, fence=True, recovery=True)
        return [(await client.read_lac(at.bookie, who, fence=True)).answer, reply.answer]
    finally:
        await client.close()


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("before", ["deleted here", "never known here"])
async def test_without_a_record_there_is_no_such_ledger(protocol: str, before: str, at: World) -> None:
    if before == "deleted here":
        at.server.ledgers.delete(NEW, LATER)
    assert await fences(at, protocol) == [Answer.NO_LEDGER, Answer.NO_LEDGER]


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("store", ["has no record", "has a record", "is away"])
async def test_a_read_that_fences_nothing_says_no_such_ledger(protocol: str, store: str, at: World) -> None:
    """It reports only what this bookie has: nothing is concluded of a fence."""
    away: AwayStore = await over(at, AwayStore(at.store._space))
    at.server.ledgers.delete(NEW, LATER)
    if store == "has a record":
        await create(at)
    away.away = store == "is away"
    client = BookieClient(BookieRegistry(at.store), at.store.instance_id, protocol=protocol)
    await client.start()
    try:
        reply = await client.read(at.bookie, access(NEW, token=0), 0, 0, 1 << 20)
        assert reply.answer is Answer.NO_LEDGER
    finally:
        await client.close()


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("store", ["has a record", "is away"])
async def test_with_a_record_or_without_an_answer_it_is_unknown(protocol: str, store: str, at: World) -> None:
    away: AwayStore = await over(at, AwayStore(at.store._space))
    at.server.ledgers.delete(NEW, LATER)
    await create(at)
    away.away = store == "is away"
    # V2 has no code for it that every Java client knows.
    unknown = Answer.ERROR if protocol == "v2" else Answer.UNKNOWN
    found = await fences(at, protocol)
    assert found[0] is unknown
    assert found[1] is unknown


async def test_a_read_that_had_begun_says_nothing_of_a_record_made_since(at: World) -> None:
    store = SlowStore(at.store._space)
    store.gate = asyncio.Event()
    reads, found = RecordReads(AllRecords(store)), list[ReadOutcome]()

    def tell(_: int, outcome: ReadOutcome) -> None:
        found.append(outcome)

    store.gate.set()
    reads.read(NEW, tell)
    await until_async(lambda: len(found) == 1)
    store.gate.clear()
    reads.read(NEW, tell)
    await until_async(lambda: reads.reads == 2)
    reads.read_anew(NEW, tell)
    await put_record(at.store, record_of(NEW, [at.bookie]))
    store.gate.set()
    await until_async(lambda: len(found) == 3)
    assert reads.reads == 3, "one more than the one that had begun"
    assert isinstance(found[0], NoSuchLedgerError)
    assert isinstance(found[2], LedgerMetadata)
    reads.close()


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_recovery_beside_a_deletion_says_that_there_is_no_such_ledger(
    protocol: str, cluster: SmallCluster
) -> None:
    """The recovery has read the record when the ledger is deleted, and its bookies have dropped it."""
    client = await cluster.client(ClientConfig(protocol=protocol))
    writer = await client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=2)
    await writer.append(b"entry")
    await writer.abandon()
    record = await client.ledger_metadata(writer.ledger_id)
    other = await cluster.client(ClientConfig(protocol=protocol))
    honest = other.context.records.ledgers.read
    gone = False

    async def read(ledger_id: Any, *args: Any, **options: Any) -> Any:
        nonlocal gone
        found = await honest(ledger_id, *args, **options)
        if not gone:
            gone = True
            await client.delete_ledger(writer.ledger_id)
            for server in cluster.servers.values():
                server.ledgers.delete(writer.ledger_id, LATER)
        return found

    other.context.records.ledgers.read = read  # type: ignore[method-assign]
    with pytest.raises(NoSuchLedgerError):
        await other.open_ledger(writer.ledger_id)
    assert record.ledger_id == writer.ledger_id


class InBookKeepersWords(OneBookie):
    """Answers fences as V2 and V3 do, about a ledger whose id has a record."""

    def __init__(self, name: str, rules: BookieRules) -> None:
        super().__init__(opened(FaultyFiles()), rules=rules, name=name)
        self.fence_of_deleted = rules.fence_of_deleted

    def fenced_lac(self, ledger_id: int) -> tuple[Answer, int]:
        answers: list[Answer] = []
        asked = self.request(Kind.READ_LAC, ledger_id, int(Flag.FENCE))
        self.ledgers.fence(asked, answers.append)
        self.settle()
        answer = answers[0]
        return self.fence_of_deleted(has_no_record=False) if answer is Answer.DELETED else answer, NO_ENTRY


@pytest.mark.parametrize("mutant", [False, True])
async def test_an_acknowledged_entry_is_lost_if_unknown_is_no_such_ledger(mutant: bool) -> None:
    """An id came again while a bookie still refuses it: that bookie has set no fence, and takes entries later."""
    rules = RULES.but(fence_of_deleted=lambda *, has_no_record: Answer.NO_LEDGER) if mutant else RULES
    bookies = [InBookKeepersWords(name, rules) for name in ("b1", "b2", "b3")]
    first, _, third = bookies
    first.ledgers.delete(1, 1)
    first.settle()
    closed = recovered(bookies, (3, 3, 2), slow={"b3"})
    shrunk = [ledger_id for some in first.storage.housekeeping.shrink_tombstones(LATER) for ledger_id in some]
    assert shrunk == [1], "late adds are impossible by now"
    first.ledgers.forget(shrunk)
    assert first.add(1, 0, 0) is third.add(1, 0, 0) is Answer.OK, "the ack quorum of entry 0"
    if mutant:
        assert closed is not None
        assert closed.last_entry == NO_ENTRY, "entry 0 is acknowledged and not in the ledger"
    else:
        assert closed is None, "one bookie is fenced, and two are needed"

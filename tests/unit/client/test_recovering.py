"""Recovery over real bookies in this process: nothing acknowledged is lost, silence is named, limbo is cleared."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import warnings
from types import SimpleNamespace
from typing import Any

import pytest

from quire.cli.ledger.ledger import recovered_text
from quire.client.access import LedgerAccess
from quire.client.bookies.bookies import BookieClient
from quire.client.client import Client
from quire.client.config import ClientConfig
from quire.client.connecting import Connecting
from quire.client.recovering.recovery import RecoveryPerformer
from quire.client.repairing.ledger_repair import LedgerRepair
from quire.core.answers import Answer
from quire.core.bookie.ledger import LedgerFacts
from quire.core.errors import (
    LedgerFencedError,
    NoClusterError,
    OutcomeUnknownError,
    RecoveryInconclusiveError,
    WrongPasswordError,
)
from quire.core.ids import LedgerId
from quire.core.ledger.metadata import DigestType, LedgerState, new_ledger
from quire.core.repair.effects import ReadRecord, RepairOutcome
from quire.storage.segments.segment import NO_CALLBACK
from support.small_cluster import SmallCluster, small_cluster
from unit.client.test_reading import put, texts

PATIENT = ClientConfig(recovery_read_bytes_max=4 * 1024 * 1024)


async def unfinished(client: Client, cluster: SmallCluster, bookies: int = 3, **options):
    """A ledger whose writer never came to write anything."""
    record = new_ledger(
        LedgerId(await client.records.ledgers.next_id()),
        sorted(cluster.servers)[:bookies],
        write_quorum=options.get("write_quorum", bookies),
        ack_quorum=options.get("ack_quorum", 2),
        digest_type=options.get("digest_type", DigestType.CRC32C),
        password=b"",
        creation_token=1,
    )
    await client.records.ledgers.create(record)
    return record


async def test_a_successor_finds_everything_that_was_acknowledged_and_stops_the_writer(
    cluster, client
) -> None:
    writer = await client.create_ledger(password=b"p")
    futures = [writer.append_nowait(text) for text in texts(500)]
    await futures[299]
    other = await cluster.client()
    reader = await other.open_ledger(writer.ledger_id, b"p")
    acknowledged = sum(f.done() and not f.cancelled() and f.exception() is None for f in futures)
    assert reader.closed
    assert reader.last_add_confirmed >= acknowledged - 1
    got = [bytes(entry.payload) async for entry in reader.read()]
    assert got == texts(500)[: len(got)]
    with pytest.raises(OutcomeUnknownError):
        while True:
            await writer.append(b"too late")
    await writer.abandon()
    for future in futures:
        if future.done() and not future.cancelled():
            future.exception()
    report = await other.verify_ledger(writer.ledger_id, b"p")
    assert report.complete, report


async def test_a_thousand_unconfirmed_entries_take_a_few_round_trips(monkeypatch, cluster) -> None:
    client = await cluster.client(PATIENT)
    record = await unfinished(client, cluster)
    payloads = [b"%4d" % i + bytes(1020) for i in range(1000)]
    for bookie in record.fragments[0].ensemble[:2]:
        await put(client, bookie, record, 0, payloads)
    asked = []
    read = BookieClient.read

    async def counted(self, bookie, *args, **options):
        asked.append(bookie)
        return await read(self, bookie, *args, **options)

    monkeypatch.setattr(BookieClient, "read", counted)
    report = await client.recover_ledger(record.ledger_id)
    assert report.recovered == 1000
    assert report.record.last_entry == 999
    assert report.record.length == 1_024_000
    assert len(asked) <= 9, "a few windows on three bookies"
    verified = await client.verify_ledger(record.ledger_id)
    assert verified.complete, "also on the bookie that had nothing"


@pytest.mark.parametrize("answer", [None, Answer.TIMED_OUT, Answer.READ_ONLY])
async def test_a_recovery_says_which_bookies_had_not_acknowledged_when_it_closed(
    monkeypatch, answer, cluster
) -> None:
    client = await cluster.client(ClientConfig(recovery_read_bytes_max=100))
    record = await unfinished(client, cluster)
    *two, slow = record.fragments[0].ensemble
    for bookie in two:
        await put(client, bookie, record, 0, texts(9))
    add_run = BookieClient.add_run

    def unanswered(self, bookie, run, callback, tag, *args):
        if bookie != slow:
            return add_run(self, bookie, run, callback, tag, *args)
        if answer is not None:
            asyncio.get_running_loop().call_soon(callback.add_answered, tag, answer)
        return True

    monkeypatch.setattr(BookieClient, "add_run", unanswered)
    report = await client.recover_ledger(record.ledger_id)
    assert report.record.last_entry == 8
    assert [(hole.bookie, hole.first, hole.last) for hole in report.stragglers] == [(slow, 0, 8)]
    monkeypatch.undo()
    repaired = await LedgerRepair(record.ledger_id, client.context).run()
    assert repaired.outcome is RepairOutcome.WHOLE
    assert (await client.verify_ledger(record.ledger_id)).complete


@pytest.mark.parametrize("digest_type", [DigestType.CRC32C, DigestType.HMAC])
async def test_a_striped_ledger_is_recovered(tmp_path, digest_type) -> None:
    async with small_cluster(tmp_path, 4) as cluster:
        client = await cluster.client(ClientConfig(recovery_read_bytes_max=3000, run_bytes_max=2000))
        digest = "mac" if digest_type is DigestType.HMAC else "crc32c"
        writer = await client.create_ledger(ensemble_size=4, write_quorum=3, ack_quorum=2, digest=digest)
        await writer.append_many(texts(333))
        other = await cluster.client(ClientConfig(recovery_read_bytes_max=3000, run_bytes_max=2000))
        report = await other.recover_ledger(writer.ledger_id)
        assert report.record.last_entry == 332
        assert (await other.verify_ledger(writer.ledger_id)).complete
        reader = await other.open_ledger(writer.ledger_id)
        assert [bytes(entry.payload) async for entry in reader.read()] == texts(333)
        await writer.abandon()


async def test_the_silent_bookies_are_named_and_recovery_can_be_run_again(cluster, client) -> None:
    writer = await client.create_ledger()
    await writer.append_many(texts(10))
    await writer.abandon()
    stopped = sorted(cluster.servers)[1:]
    names = [await cluster.stop_bookie(bookie) for bookie in stopped]
    other = await cluster.client(ClientConfig(recovery_patience_ms=0))
    with pytest.raises(RecoveryInconclusiveError) as caught:
        await other.open_ledger(writer.ledger_id)
    assert sorted(caught.value.ids["bookies"]) == stopped
    assert (await other.ledger_metadata(writer.ledger_id)).state is LedgerState.IN_RECOVERY
    await cluster.start_bookie(names[0])
    again = await cluster.client()
    reader = await again.open_ledger(writer.ledger_id)
    assert [bytes(entry.payload) async for entry in reader.read()] == texts(10)


async def test_recovery_has_patience_with_bookies_that_restart(cluster) -> None:
    client = await cluster.client(ClientConfig(recovery_patience_ms=20_000))
    writer = await client.create_ledger()
    await writer.append_many(texts(10))
    await writer.abandon()
    names = [await cluster.stop_bookie(bookie, clean=False) for bookie in sorted(cluster.servers)]
    opening = asyncio.ensure_future(client.open_ledger(writer.ledger_id))
    while (await client.ledger_metadata(writer.ledger_id)).state is LedgerState.OPEN:
        await asyncio.sleep(0)
    for name in names[:2]:
        await cluster.start_bookie(name)
    reader = await opening
    assert [bytes(entry.payload) async for entry in reader.read()] == texts(10)


async def test_two_of_three_bookies_are_enough(cluster, client) -> None:
    writer = await client.create_ledger()
    await writer.append_many(texts(10))
    await writer.abandon()
    await cluster.stop_bookie(sorted(cluster.servers)[0], clean=False)
    other = await cluster.client()
    reader = await other.open_ledger(writer.ledger_id)
    assert [bytes(entry.payload) async for entry in reader.read()] == texts(10)


async def test_a_spare_takes_the_place_of_a_bookie_that_takes_nothing_back(tmp_path) -> None:
    async with small_cluster(tmp_path, 4) as cluster:
        client = await cluster.client()
        record = await unfinished(client, cluster)
        await put(client, record.fragments[0].ensemble[0], record, 0, texts(20))
        await cluster.stop_bookie(record.fragments[0].ensemble[2])
        other = await cluster.client()
        report = await other.recover_ledger(record.ledger_id)
        assert report.record.last_entry == 19
        (spare,) = set(cluster.servers) - set(record.fragments[0].ensemble)
        assert spare in report.record.fragments[0].ensemble
        assert (await other.verify_ledger(record.ledger_id)).complete


async def test_recoverers_at_one_time_agree(cluster, client) -> None:
    record = await unfinished(client, cluster)
    await put(client, record.fragments[0].ensemble[0], record, 0, texts(50))
    await put(client, record.fragments[0].ensemble[1], record, 0, texts(30))
    clients = [await cluster.client() for _ in range(3)]
    readers = await asyncio.gather(*(c.open_ledger(record.ledger_id) for c in clients))
    ends = {reader.last_add_confirmed for reader in readers}
    assert len(ends) == 1
    assert {reader.length for reader in readers} == {sum(map(len, texts(ends.pop() + 1)))}


async def test_a_bookie_with_another_key_is_an_obstacle_and_not_a_negative(cluster, client) -> None:
    record = await unfinished(client, cluster)
    access = LedgerAccess.of(record)
    foreign = LedgerAccess(access.ledger_id, b"k" * 20, access.token, access.digest)
    for bookie in record.fragments[0].ensemble:
        refused = await client.bookies.read_lac(bookie, foreign, fence=True)
        assert refused.answer is Answer.UNAUTHORISED, "the record has another key"
        # As a program before 0.2 took it, which did not read the record.
        storage = cluster.servers[bookie].storage
        storage.put_facts(LedgerFacts(record.ledger_id, key=foreign.key), NO_CALLBACK, None)
    with pytest.raises(WrongPasswordError, match="another password"):
        await client.open_ledger(record.ledger_id)


async def test_a_bookie_in_limbo_gets_what_it_lacks_and_denies_again(cluster, client) -> None:
    record = await unfinished(client, cluster)
    first, second, third = record.fragments[0].ensemble
    await put(client, first, record, 0, texts(40))
    await put(client, second, record, 0, texts(40))
    done = asyncio.get_running_loop().create_future()
    cluster.servers[third].ledgers.put_in_limbo(LedgerFacts(record.ledger_id), done.set_result)
    assert await done is None
    await put(client, third, record, 5, texts(1, 5), length_before=sum(map(len, texts(5))))
    # Limbo is silence: with another bookie away nobody can tell, and nothing is decided.
    report = await client.recover_ledger(record.ledger_id)
    assert report.record.last_entry == 39
    assert report.limbo.cleared == [third]
    assert not report.limbo.left
    access = LedgerAccess.of(record)
    _, info = await client.bookies.info(third, access)
    assert (info["limbo"], info["fenced"]) == (False, True)
    assert (await client.verify_ledger(record.ledger_id)).complete
    again = await client.recover_ledger(record.ledger_id)
    assert again.already_closed
    assert not again.limbo.cleared


async def test_a_recovery_says_how_many_entries_have_no_copy_left(cluster, client) -> None:
    record = await unfinished(client, cluster)
    for bookie in record.fragments[0].ensemble:
        await put(client, bookie, record, 0, texts(37))
    # As after a loss of all three copies: the record says forty, the disks have thirty-seven.
    closed = record.closed(39, sum(map(len, texts(40))))
    _, version = await client.records.ledgers.read(record.ledger_id)
    await client.records.ledgers.write(closed, version)
    done = asyncio.get_running_loop().create_future()
    first = cluster.servers[record.fragments[0].ensemble[0]]
    first.ledgers.put_in_limbo(LedgerFacts(record.ledger_id), done.set_result)
    assert await done is None
    report = await client.recover_ledger(record.ledger_id)
    assert [(lost.first, lost.last) for lost in report.limbo.lost] == [(37, 39)]
    assert "3 entries have no copy left: 37..39" in recovered_text(report)


async def test_opening_a_ledger_clears_limbo_in_the_background(cluster, client) -> None:
    writer = await client.create_ledger()
    await writer.append_many(texts(30))
    await writer.abandon()
    lost = writer.metadata.fragments[0].ensemble[1]
    done = asyncio.get_running_loop().create_future()
    cluster.servers[lost].ledgers.put_in_limbo(LedgerFacts(writer.ledger_id), done.set_result)
    await done
    await client.open_ledger(writer.ledger_id)
    access = LedgerAccess.of(writer.metadata)

    async def cleared() -> bool:
        answer, info = await client.bookies.info(lost, access)
        return answer is Answer.OK and not info["limbo"]

    while not await cleared():
        await asyncio.sleep(0)


async def test_a_client_that_closes_right_after_a_recovery_leaves_nothing_unawaited(recwarn, cluster) -> None:
    record = await unfinished(await cluster.client(), cluster)
    other = await cluster.client()
    await other.open_ledger(record.ledger_id)
    await other.close()
    gc.collect()
    assert not recwarn.list


async def test_verify_names_holes_and_differences(cluster, client) -> None:
    record = await unfinished(client, cluster)
    first, second, third = record.fragments[0].ensemble
    await put(client, first, record, 0, texts(9))
    await put(client, second, record, 0, texts(9))
    await put(client, third, record, 3, texts(2, 3), length_before=sum(map(len, texts(3))))
    await put(client, third, record, 5, [b"forged, with a good digest"], length_before=0)
    stored, version = await client.records.ledgers.read(record.ledger_id)
    await client.records.ledgers.write(stored.closed(8, sum(map(len, texts(9)))), version)
    report = await client.verify_ledger(record.ledger_id)
    assert [(hole.bookie, hole.first, hole.last) for hole in report.holes] == [
        (third, 0, 2),
        (third, 6, 8),
    ]
    assert [entry_id for entry_id, _ in report.different] == [5]
    assert (report.entries, report.copies_wanted, report.copies) == (9, 27, 20)
    assert not report.below_ack_quorum
    assert not report.good


async def test_a_ledger_that_is_closed_is_opened_without_recovery(client) -> None:
    async with await client.create_ledger() as writer:
        await writer.append(b"x")
    before = await client.records.ledgers.read(writer.ledger_id)
    await client.open_ledger(writer.ledger_id)
    assert (await client.recover_ledger(writer.ledger_id)).already_closed
    assert await client.records.ledgers.read(writer.ledger_id) == before


async def test_a_fenced_writer_learns_it(cluster, client) -> None:
    writer = await client.create_ledger()
    await writer.append(b"x")
    await (await cluster.client()).open_ledger(writer.ledger_id)
    with pytest.raises(LedgerFencedError):
        await writer.append(b"y")
    with contextlib.suppress(OutcomeUnknownError):
        await writer.close()
    assert (await client.ledger_metadata(writer.ledger_id)).last_entry == 0


async def test_connecting_takes_the_environments_cluster(monkeypatch) -> None:
    monkeypatch.setenv("QUIRE_CLUSTER", "memory:from the environment")
    async with Connecting(None, Client) as client:
        assert [ledger async for ledger in client.ledgers()] == []
    client = await Connecting("memory:given", Client)
    await client.close()
    monkeypatch.delenv("QUIRE_CLUSTER")
    with pytest.raises(NoClusterError, match="QUIRE_CLUSTER"):
        await Connecting(None, Client)
    with pytest.raises(NoClusterError):
        await Connecting("sqlite:/nowhere/at/all.db", Client)


def _spawn_of_a_recovery(begun: list[bool]) -> RecoveryPerformer[Any]:
    async def work():
        begun.append(True)

    recovery = object.__new__(RecoveryPerformer)
    recovery._tasks = {}
    recovery._spawn(work())
    return recovery


def _spawn_of_a_repair(begun: list[bool]) -> LedgerRepair:
    async def do(*_):
        begun.append(True)

    repair = object.__new__(LedgerRepair)
    repair._tasks, repair._loop, repair._do = {}, asyncio.get_running_loop(), do
    repair._perform(SimpleNamespace(out=[ReadRecord()]), None)
    return repair


@pytest.mark.parametrize("spawn", [_spawn_of_a_recovery, _spawn_of_a_repair])
async def test_work_that_is_cancelled_before_its_first_step_is_no_warning(spawn) -> None:
    """Found by simulated runs and by a copied directory: `coroutine 'LedgerRepair._do' was never awaited`."""
    begun = []
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        performer = spawn(begun)
        [task] = performer._tasks
        task.cancel()
        await asyncio.wait([task])
        await asyncio.sleep(0)
        assert not performer._tasks
        gc.collect()
    assert (begun, [str(each.message) for each in said]) == ([], [])

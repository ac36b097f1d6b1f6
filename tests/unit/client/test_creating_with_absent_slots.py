"""Ledgers that are created while a bookie is away: real bookies in this process."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from quire.core.errors import InvalidQuorumError, NotEnoughBookiesError
from quire.core.ledger.metadata import LedgerState
from support.small_cluster import SOON
from support.waiting import until_async

CONFIG = replace(SOON, change_retry_ms_min=20, change_retry_ms_max=100, quarantine_ms=200)
PAYLOADS = [b"entry %d" % number for number in range(8)]


async def without(cluster, client, *bookies):
    """Stop bookies, and wait until the client has seen it; returns their names."""
    names = [await cluster.stop_bookie(bookie) for bookie in bookies]
    await until_async(lambda: not {*client.bookies.writable()} & {*bookies}, "the loss to be seen")
    return names


async def contents(client, ledger_id):
    reader = await client.open_ledger(ledger_id)
    return [bytes(entry.payload) async for entry in reader.read()]


async def test_it_is_written_read_and_recovered_while_a_bookie_is_away_and_after(cluster):
    client = await cluster.client(CONFIG)
    bookies = sorted(cluster.servers)
    [name] = await without(cluster, client, bookies[1])
    writer = await client.create_ledger()
    assert sorted(writer.metadata.last_fragment.ensemble) == bookies
    slot = writer.metadata.last_fragment.ensemble.index(bookies[1])
    for payload in PAYLOADS:
        await writer.append(payload)
    assert [tuple(hole) for hole in writer.holes] == [(slot, bookies[1], 0, 7)]
    await writer.abandon()
    assert await contents(client, writer.ledger_id) == PAYLOADS, "a recovery while it is away"
    await cluster.start_bookie(name)
    assert await contents(await cluster.client(), writer.ledger_id) == PAYLOADS
    report = await client.verify_ledger(writer.ledger_id)
    assert [(hole.bookie, hole.first, hole.last) for hole in report.holes] == [(bookies[1], 0, 7)]
    assert (report.lost, report.below_ack_quorum, report.different) == ([], [], [])


async def test_its_bookie_returns_to_its_slot_and_what_it_missed_is_a_hole(cluster):
    client = await cluster.client(CONFIG)
    bookies = sorted(cluster.servers)
    [name] = await without(cluster, client, bookies[2])
    writer = await client.create_ledger()
    slot = writer.metadata.last_fragment.ensemble.index(bookies[2])
    await writer.append(PAYLOADS[0])
    await cluster.start_bookie(name)
    await until_async(lambda: not writer._machine.absent, "the bookie to return")
    for payload in PAYLOADS[1:]:
        await writer.append(payload)
    assert [tuple(hole) for hole in writer.holes] == [(slot, bookies[2], 0, 0)]
    await writer.close()
    assert len(writer.metadata.fragments) == 1

    async def healed():
        report = await client.verify_ledger(writer.ledger_id)
        return [(hole.bookie, hole.first, hole.last) for hole in report.holes] == [(bookies[2], 0, 0)]

    await until_async(healed, "the returned bookie's copies")


async def test_a_client_that_is_closed_records_what_the_slot_of_an_idle_writer_lacks(cluster):
    client = await cluster.client(replace(CONFIG, slow_after_ms=10, explicit_lac_after_ms=10))
    bookies = sorted(cluster.servers)
    await without(cluster, client, bookies[1])
    writer = await client.create_ledger()
    for payload in PAYLOADS:
        await writer.append(payload)
    await until_async(lambda: not writer._effects._ticking, "the writer to be idle")
    cluster.clients.remove(client)
    await client.close()
    assert writer.problem is None
    assert writer._effects._timer is None, "nothing is looked for any more"
    store = (await cluster.client()).records.ledgers
    record, notes, _ = await store.read_with_notes(writer.ledger_id)
    assert record.state is LedgerState.OPEN
    recorded = [(hole.bookie, part.first, part.last) for hole in notes.holes for part in hole.ranges]
    assert recorded == [(bookies[1], 0, 7)]


async def test_another_bookie_takes_the_slot(cluster):
    client = await cluster.client(CONFIG)
    bookies = sorted(cluster.servers)
    await without(cluster, client, bookies[0])
    writer = await client.create_ledger()
    fourth = (await cluster.start_bookie("b4")).bookie_id
    await until_async(lambda: not writer._machine.absent, "another bookie in the slot")
    for payload in PAYLOADS:
        await writer.append(payload)
    assert writer.holes == ()
    await writer.close()
    assert {*writer.metadata.fragments[0].ensemble} == {*bookies[1:], fourth}
    assert len(writer.metadata.fragments) == 1
    assert await contents(client, writer.ledger_id) == PAYLOADS


async def test_an_idle_writer_tells_its_last_entry_also_while_another_bookie_takes_the_slot(
    monkeypatch, cluster
):
    client = await cluster.client(replace(CONFIG, protocol="v3", explicit_lac_after_ms=3_600_000))
    bookies = sorted(cluster.servers)
    await without(cluster, client, bookies[0])
    writer = await client.create_ledger()
    await writer.append(PAYLOADS[0])
    changing, may_change = asyncio.Event(), asyncio.Event()

    async def late(record, version, *, vouched, write=client.records.ledgers.write):
        changing.set()
        await may_change.wait()
        return await write(record, version, vouched=vouched)

    monkeypatch.setattr(client.records.ledgers, "write", late)
    await cluster.start_bookie("b4")
    await changing.wait()
    writer._effects.quiet()

    async def told():
        access = writer.access
        replies = [await client.bookies.read_lac(bookie, access) for bookie in bookies[1:]]
        return [access.trusted_lac(reply) for reply in replies] == [0, 0]

    await until_async(told, "the LAC on both bookies")
    may_change.set()
    await writer.close()


async def test_with_too_few_bookies_nothing_is_created_and_the_error_names_them(cluster):
    client = await cluster.client(CONFIG)
    bookies = sorted(cluster.servers)
    await without(cluster, client, bookies[0])
    with pytest.raises(NotEnoughBookiesError, match=f"at least 3 of its 3.*not registered: {bookies[0]}"):
        await client.create_ledger(min_present=3)
    with pytest.raises(NotEnoughBookiesError, match="2 of every write set"):
        await client.create_ledger(write_quorum=2, ack_quorum=2)
    with pytest.raises(NotEnoughBookiesError, match=r"4 needs as many known bookies.*1 with a cookie"):
        await client.create_ledger(ensemble_size=4, write_quorum=4)
    with pytest.raises(InvalidQuorumError, match=r"`min_present` \(4\)"):
        await client.create_ledger(min_present=4)
    await without(cluster, client, bookies[1])
    with pytest.raises(NotEnoughBookiesError, match=f"1 are writable: {bookies[2]}"):
        await client.create_ledger()
    assert [ledger_id async for ledger_id in client.ledgers()] == []


async def test_a_bookie_without_a_cookie_gets_no_slot(cluster):
    client = await cluster.client(CONFIG)
    bookies = sorted(cluster.servers)
    await without(cluster, client, bookies[0])
    await client.bookies.registry.delete_cookie(bookies[0])
    with pytest.raises(NotEnoughBookiesError, match="0 with a cookie are not registered: none; start or add"):
        await client.create_ledger()


async def test_a_client_has_a_minimum_of_its_own(cluster):
    client = await cluster.client(replace(CONFIG, min_present=3))
    await without(cluster, client, sorted(cluster.servers)[0])
    with pytest.raises(NotEnoughBookiesError, match="at least 3 of its 3"):
        await client.create_ledger()
    async with await client.create_ledger(min_present=2) as writer:
        await writer.append(b"as asked for")
    # A ledger of two bookies has no third that could be there.
    async with await client.create_ledger(ensemble_size=2, write_quorum=2) as writer:
        await writer.append(b"two")


async def test_a_read_only_bookie_takes_the_absent_slot_and_gets_nothing_until_it_takes_entries(cluster):
    client = await cluster.client(CONFIG)
    full = sorted(cluster.servers)[1]
    cluster.servers[full].ledgers.read_only = True
    await until_async(lambda: client.bookies.read_only() == [full], "the client to see it")
    writer = await client.create_ledger()
    assert full in writer.metadata.last_fragment.ensemble
    await writer.append(PAYLOADS[0])
    assert cluster.servers[full].ledgers.entries_added == 0
    await writer.abandon()
    assert await contents(client, writer.ledger_id) == PAYLOADS[:1], "its fence counts in a recovery"
    other, before = await client.create_ledger(), cluster.servers[full].ledgers.entries_added
    cluster.servers[full].ledgers.read_only = False
    await until_async(lambda: not other._machine.absent, "the bookie to return")
    await other.append(PAYLOADS[1])
    await other.close()
    assert cluster.servers[full].ledgers.entries_added == before + 1


async def test_a_stream_begins_with_absent_slots_where_terms_are_in_the_identifier(cluster):
    client = await cluster.client(CONFIG)
    await without(cluster, client, sorted(cluster.servers)[0])
    stream = client.unbounded_ledger("orders")
    await stream.create()
    writer = await stream.open_writer()
    assert await writer.append(PAYLOADS[0]) == 0
    assert len(writer.holes) == 1
    await writer.close()
    fencing = client.unbounded_ledger("payments", mode="fencing")
    with pytest.raises(
        NotEnoughBookiesError, match=r"at least 3 of its 3 bookies.*every bookie of the ensemble trunc"
    ):
        await fencing.create()

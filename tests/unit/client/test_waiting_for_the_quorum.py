"""A writer whose ack quorum is away waits for it within a bound: real bookies in this process."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from quire.core.errors import (
    LedgerClosedError,
    LedgerFencedError,
    QuorumLostError,
    WindowFullError,
)
from quire.core.ledger.metadata import LedgerState
from support.small_cluster import SOON, small_cluster
from support.waiting import until_async

CONFIG = replace(SOON, change_retry_ms_min=20, change_retry_ms_max=100, quarantine_ms=200)
PATIENT = replace(CONFIG, quorum_wait_ms=60_000)
PAYLOADS = [b"entry %d" % number for number in range(8)]


async def lose(cluster, writer, bookies):
    """Stop bookies, and append one entry; returns their names and the entry's future once the writer waits."""
    names = [await cluster.stop_bookie(bookie, clean=False) for bookie in bookies]
    pending = writer.append_nowait(PAYLOADS[1])
    await until_async(lambda: writer._machine.below_quorum, "the writer to wait")
    return names, pending


async def contents(client, ledger_id):
    reader = await client.open_ledger(ledger_id)
    return [bytes(entry.payload) async for entry in reader.read()]


async def test_all_bookies_stop_and_come_back_and_nothing_is_lost(cluster):
    client = await cluster.client(PATIENT)
    writer = await client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=2)
    await writer.append(PAYLOADS[0])
    names, first = await lose(cluster, writer, sorted(cluster.servers))
    pending = [first, *(writer.append_nowait(payload) for payload in PAYLOADS[2:])]
    await cluster.start_bookie(names[0])
    await until_async(lambda: len(writer._machine.absent) == 2, "the first to return")
    assert writer._machine.below_quorum
    assert writer.last_add_confirmed == 0, "one of the two that it needs"
    for name in names[1:]:
        await cluster.start_bookie(name)
    assert await asyncio.gather(*pending) == list(range(1, len(PAYLOADS)))
    assert not writer._machine.below_quorum
    assert len(writer.metadata.fragments) == 1
    await writer.close()
    assert await contents(client, writer.ledger_id) == PAYLOADS


async def test_what_is_appended_meanwhile_waits_for_room_in_the_window(cluster):
    client = await cluster.client(replace(PATIENT, window_bytes_max=256 * 1024))
    writer = await client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=2)
    await writer.append(PAYLOADS[0])
    names, first = await lose(cluster, writer, sorted(cluster.servers))
    pending = [first]
    with pytest.raises(WindowFullError):
        while True:
            pending.append(writer.append_nowait(bytes(16 * 1024)))
    waiting = asyncio.create_task(writer.append(bytes(16 * 1024)))
    await until_async(lambda: writer._window.waiters, "an append to wait")
    assert writer.held_bytes <= 256 * 1024 + 64 * 1024
    assert not any(future.done() for future in (*pending, waiting))
    for name in names:
        await cluster.start_bookie(name)
    assert await asyncio.gather(*pending, waiting) == list(range(1, len(pending) + 2))


async def test_another_bookie_is_as_good_as_the_one_that_was_lost(tmp_path):
    async with small_cluster(tmp_path, 2) as cluster:
        client = await cluster.client(PATIENT)
        writer = await client.create_ledger(ensemble_size=2, write_quorum=2, ack_quorum=2)
        await writer.append(PAYLOADS[0])
        _, pending = await lose(cluster, writer, [max(cluster.servers)])
        spare = await cluster.start_bookie("b3")
        assert await pending == 1
        assert spare.bookie_id in writer.metadata.last_fragment.ensemble
        await writer.close()


@pytest.mark.parametrize("wait_ms", [0, 150])
async def test_when_nobody_comes_the_writer_ends_and_closes(wait_ms, cluster):
    client = await cluster.client(replace(CONFIG, quorum_wait_ms=wait_ms))
    writer = await client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=2)
    await writer.append(PAYLOADS[0])
    for bookie in sorted(cluster.servers)[1:]:
        await cluster.stop_bookie(bookie)
    said = "did not come back within 150 ms" if wait_ms else r"ack quorum of 2.*start bookies"
    with pytest.raises(QuorumLostError, match=said):
        await writer.append(PAYLOADS[1])
    with pytest.raises(QuorumLostError):
        await writer.close()
    record, _ = await writer._context.records.read(writer.ledger_id)
    assert (record.state, record.last_entry) == (LedgerState.CLOSED, 0)


async def test_who_comes_back_fenced_ends_the_writer(cluster):
    looks_later = replace(PATIENT, change_retry_ms_min=3_600_000, change_retry_ms_max=3_600_000)
    client, other = await cluster.client(looks_later), await cluster.client()
    writer = await client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=2)
    await writer.append(PAYLOADS[0])
    names, pending = await lose(cluster, writer, sorted(cluster.servers))
    for name in names:
        await cluster.start_bookie(name)
    assert await contents(other, writer.ledger_id) == PAYLOADS[:1]
    writer._machine.waits.look_at_ms = 0
    writer._effects._timer_fired()  # only now it looks
    with pytest.raises(LedgerFencedError):
        await pending
    assert writer.last_add_confirmed == 0


async def test_a_waiting_writer_is_closed_at_its_last_acknowledged_entry(cluster):
    client = await cluster.client(PATIENT)
    writer = await client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=2)
    await writer.append(PAYLOADS[0])
    _, pending = await lose(cluster, writer, sorted(cluster.servers))
    await writer.close()
    with pytest.raises(LedgerClosedError):
        await pending
    assert (writer.metadata.state, writer.metadata.last_entry) == (LedgerState.CLOSED, 0)

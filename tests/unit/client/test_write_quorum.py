"""Ledgers that guarantee their write quorum: real bookies in this process.

Source: docs/protocol/write-quorum.md.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from quire.client.repairing.copies import LedgerReport, MissingRange
from quire.core.answers import Answer
from quire.core.errors import (
    LedgerClosedError,
    MisuseError,
    NotEnoughBookiesError,
    NotWritingError,
    WindowFullError,
)
from quire.core.ledger.guarantee import GIVEN_UP, GUARANTEED
from quire.core.ledger.metadata import LedgerState
from support.small_cluster import SOON
from support.waiting import until_async

CONFIG = replace(SOON, change_retry_ms_min=20, change_retry_ms_max=100, quarantine_ms=200)
SHAPE = {"ensemble_size": 3, "write_quorum": 3, "ack_quorum": 2, "guarantee": "write_quorum"}


async def without_one(cluster, writer):
    """Stop a bookie of the ledger and append until the writer knows; returns the bookie's id and name."""
    bookie = writer.metadata.last_fragment.ensemble[2]
    name = await cluster.stop_bookie(bookie, clean=False)
    await writer.append(b"told by two of three")
    await until_async(lambda: writer._machine.absent == (2,), "the slot to be absent")
    return bookie, name


async def is_whole(client, ledger_id):
    report = await client.verify_ledger(ledger_id)
    return report.complete and report.copies == report.copies_wanted == 3 * report.entries


async def test_a_closed_ledger_is_on_its_whole_write_quorum(cluster):
    client = await cluster.client(CONFIG)
    async with await client.create_ledger(**SHAPE) as writer:
        await asyncio.gather(*(writer.append_nowait(b"%d" % number) for number in range(50)))
    assert GUARANTEED in writer.metadata.custom
    assert writer.waits_for == ()
    assert writer.held_bytes == 0
    assert await is_whole(client, writer.ledger_id)


async def test_a_bookie_that_fails_is_replaced_and_its_successor_gets_what_callers_were_told_of(cluster):
    await cluster.start_bookie("spare")
    client = await cluster.client(CONFIG)
    writer = await client.create_ledger(**SHAPE)
    bookie = writer.metadata.last_fragment.ensemble[0]
    await cluster.stop_bookie(bookie, clean=False)
    for number in range(20):
        await writer.append(b"%d" % number)
    await writer.close()
    assert bookie not in writer.metadata.last_fragment.ensemble
    assert await is_whole(client, writer.ledger_id)


async def test_without_a_spare_the_close_waits_for_the_bookie_that_it_names(cluster):
    client = await cluster.client(CONFIG)
    writer = await client.create_ledger(**SHAPE)
    bookie, name = await without_one(cluster, writer)
    closing = asyncio.create_task(writer.close())
    await until_async(lambda: writer._machine.stage == "closing", "the close to wait")
    assert writer.waits_for == (bookie,)
    with pytest.raises(NotWritingError, match="closing"):
        await writer.append(b"too late")
    assert not closing.done()
    await cluster.start_bookie(name)
    assert await closing == ()
    assert writer.metadata.state is LedgerState.CLOSED
    assert writer.metadata.guaranteed
    assert await is_whole(client, writer.ledger_id)


async def test_a_close_at_the_ack_quorum_gives_the_guarantee_up_and_says_so(cluster):
    client = await cluster.client(CONFIG)
    writer = await client.create_ledger(**SHAPE)
    bookie, _ = await without_one(cluster, writer)
    closing = asyncio.create_task(writer.close())
    await until_async(lambda: writer._machine.stage == "closing", "the close to wait")
    holes = await writer.close(at="ack_quorum")
    await closing
    assert [(hole.bookie, hole.first, hole.last) for hole in holes] == [(bookie, 0, 0)]
    record = await client.ledger_metadata(writer.ledger_id)
    assert record.state is LedgerState.CLOSED
    assert GIVEN_UP in record.custom
    assert not record.guaranteed


async def test_a_close_that_waits_ends_when_another_client_recovers_the_ledger(cluster):
    client, other = await cluster.client(CONFIG), await cluster.client(CONFIG)
    writer = await client.create_ledger(**SHAPE)
    await without_one(cluster, writer)
    closing = asyncio.create_task(writer.close())
    await until_async(lambda: writer._machine.stage == "closing", "the close to wait")
    await other.recover_ledger(writer.ledger_id, at="ack_quorum")
    await cluster.start_bookie("spare")  # a change, by which the writer learns of it
    with pytest.raises(LedgerClosedError, match="closed at entry 0 by another client"):
        await closing


async def test_a_recovery_without_a_spare_names_the_bookie_and_the_way_out(cluster):
    client = await cluster.client(CONFIG)
    writer = await client.create_ledger(**SHAPE)
    bookie, _ = await without_one(cluster, writer)
    await writer.abandon()
    with pytest.raises(NotEnoughBookiesError, match=r"--at ack-quorum") as refused:
        await client.open_ledger(writer.ledger_id)
    assert str(bookie) in refused.value.message
    done = await client.recover_ledger(writer.ledger_id, at="ack_quorum")
    assert done.record.last_entry == 0
    assert GIVEN_UP in done.record.custom


async def test_a_recovery_puts_every_entry_on_the_whole_write_quorum(cluster):
    client = await cluster.client(CONFIG)
    writer = await client.create_ledger(**SHAPE)
    _, name = await without_one(cluster, writer)
    await writer.abandon()
    await cluster.start_bookie(name)
    done = await client.recover_ledger(writer.ledger_id)
    assert done.record.guaranteed
    assert await is_whole(client, writer.ledger_id)


async def test_memory_stays_under_the_window_while_a_bookie_is_away(cluster):
    client = await cluster.client(replace(CONFIG, window_bytes_max=256 * 1024))
    writer = await client.create_ledger(**SHAPE)
    _, name = await without_one(cluster, writer)
    told = 1
    with pytest.raises(WindowFullError):
        for _ in range(1000):
            await asyncio.wait_for(writer.append_nowait(bytes(1000)), 60)
            told += 1
    assert writer.held_bytes <= 256 * 1024
    assert writer.last_add_confirmed == told - 1, "callers were told of all that were taken"
    await cluster.start_bookie(name)
    await writer.append(b"there is room again")
    await writer.close()
    assert writer.metadata.last_entry == told
    assert await is_whole(client, writer.ledger_id)


async def test_what_cannot_be_guaranteed_is_refused(caplog, cluster):
    client = await cluster.client(CONFIG)
    for wrong, words in (
        ({"guarantee": "ack_quorum"}, "is 'write_quorum' or None"),
        ({"min_present": 2}, "leave `min_present` out"),
        ({"custom": {"quire.guarantee": b"write_quorum"}, "guarantee": None}, "is the argument"),
    ):
        with pytest.raises(MisuseError, match=words):
            await client.create_ledger(**(SHAPE | wrong))
    writer = await client.create_ledger(**(SHAPE | {"ack_quorum": 3}))
    assert "no effect" in caplog.text
    assert not writer.metadata.guaranteed
    with pytest.raises(MisuseError, match="at 'write_quorum' or at 'ack_quorum', not at 'once'"):
        await writer.close(at="once")
    await writer.close()
    await cluster.stop_bookie(next(iter(cluster.servers)))
    await until_async(lambda: len(client.bookies.writable()) == 2, "the client to know of it")
    with pytest.raises(NotEnoughBookiesError):
        await client.create_ledger(**SHAPE)


def test_a_report_tells_a_broken_guarantee_from_a_hole():
    report = LedgerReport(1, 9, closed=True, guaranteed_through=4)
    report.holes = [MissingRange("b1", 5, 9, Answer.OK), MissingRange("b2", 0, 3, Answer.UNREACHABLE)]
    assert report.good
    assert not report.complete
    report.holes.append(MissingRange("b1", 2, 2, Answer.NO_ENTRY))
    assert report.below_write_quorum == [MissingRange("b1", 2, 2, Answer.NO_ENTRY)]
    assert not report.good

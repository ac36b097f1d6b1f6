"""Logs whose ledgers guarantee their write quorum: rolls, and leaders that open them while a bookie is gone.

Source: docs/protocol/write-quorum.md, "Logs".
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from quire.bookie.server import BookieServer
from quire.core.errors import MisuseError, NotEnoughBookiesError, NotWritingError, OutcomeUnknownError
from quire.core.ledger.guarantee import GIVEN_UP, GUARANTEE_KEY
from quire.core.ledger.metadata import LedgerMetadata, LedgerState
from quire.log.config import LogConfig, LogGuarantee
from quire.log.log import Log
from quire.log.writer import LogWriter
from support.log_cluster import FAST, World, numbers, values
from support.waiting import until_async

GUARANTEED = replace(FAST, guarantee=LogGuarantee())


async def records(at: World, log: Log) -> list[LedgerMetadata]:
    """Of the log's ledgers, in order."""
    return [await at.client.ledger_metadata(item.ledger_id) for item in (await log.describe()).items]


async def left_to_its_successor(at: World, log: Log) -> None:
    """A writer appends while one of three bookies is gone, and is abandoned."""
    writer = await log.open_writer()
    await writer.append_many(numbers(0, 10))
    await at.bookies[0].stop()
    await until_async(
        lambda: len(at.client.bookies.writable()) == 2, "the client to know that a bookie is gone"
    )
    await writer.append_many(numbers(10, 20))
    await writer.abandon()


async def test_every_ledger_of_the_log_has_the_guarantee(at: World) -> None:
    # `min_present` is for ledgers that may begin with bookies away, which these may not.
    log = await at.made(config=GUARANTEED, min_present=2)
    async with await log.open_writer() as writer:
        await writer.append_many(numbers(0, 10))
        await writer.roll()
        await writer.append_many(numbers(10, 20))
    found = await records(at, log)
    assert len(found) == 2
    assert all(record.guaranteed for record in found)
    for record in found:
        report = await at.client.verify_ledger(record.ledger_id)
        assert report.complete
        assert report.copies == 3 * report.entries
    assert await values(log) == numbers(0, 20)


async def test_a_roll_that_finds_too_few_bookies_goes_on_in_its_ledger(at: World) -> None:
    log = await at.made(config=replace(GUARANTEED, guarantee=LogGuarantee(wait_ms=0)))
    writer = await log.open_writer()
    await at.bookies[0].stop()
    await writer.append_many(numbers(0, 10))
    with pytest.raises(NotEnoughBookiesError, match="at least 3 of its 3"):
        await writer.roll()
    await writer.append_many(numbers(10, 20))
    await writer.abandon()
    assert [record.guaranteed for record in await records(at, log)] == [True]


async def test_without_a_word_for_it_no_leader_gives_the_guarantee_up(at: World) -> None:
    log = await at.made(config=GUARANTEED)
    await left_to_its_successor(at, log)
    with pytest.raises(NotEnoughBookiesError, match="--at ack-quorum"):
        await log.open_writer()
    (record,) = await records(at, log)
    assert record.guaranteed


async def test_a_leader_whose_time_is_over_gives_the_guarantee_up(
    at: World, caplog: pytest.LogCaptureFixture
) -> None:
    await left_to_its_successor(at, await at.made(config=GUARANTEED))
    log = at.log(config=replace(GUARANTEED, guarantee=LogGuarantee(wait_ms=300)))
    async with await log.open_writer() as writer:
        assert await writer.append(b"20") == 20
    former, new = await records(at, log)
    assert GIVEN_UP in former.custom
    assert new.custom_value(GUARANTEE_KEY) is None
    assert await values(log) == numbers(0, 21)
    assert caplog.text.count("goes on without its guaranteed write quorum") == 2


async def test_a_bookie_that_comes_back_in_time_keeps_the_guarantee(at: World) -> None:
    await left_to_its_successor(at, await at.made(config=GUARANTEED))
    log = at.log(config=replace(GUARANTEED, guarantee=LogGuarantee(wait_ms=60_000)))
    opening = asyncio.ensure_future(log.open_writer())

    async def is_tried() -> bool:
        (record,) = await records(at, log)
        return record.state is LedgerState.IN_RECOVERY

    await until_async(is_tried, "the opening to find that a bookie is gone")
    assert not opening.done()
    at.bookies[0] = BookieServer(at.bookies[0].config, at.store)
    await at.bookies[0].start()
    async with await opening as writer:
        assert await writer.append(b"20") == 20
    assert [record.guaranteed for record in await records(at, log)] == [True, True]
    assert await values(log) == numbers(0, 21)


def waits_for_b0(writer: LogWriter) -> bool:
    return [each.partition(".")[0] for each in writer.waits_for] == ["b0"]


async def test_a_close_names_whom_it_waits_for_and_another_call_ends_it(at: World) -> None:
    log = await at.made(config=GUARANTEED)
    writer = await log.open_writer()
    await writer.append_many(numbers(0, 10))
    await at.bookies[0].stop()
    await writer.append_many(numbers(10, 20))
    closing = asyncio.create_task(writer.close())
    await until_async(lambda: waits_for_b0(writer), "the close to wait for the bookie")
    with pytest.raises(MisuseError, match="at 'write_quorum' or at 'ack_quorum', not at 'all'"):
        await writer.close(at="all")
    assert not closing.done()
    await writer.close(at="ack_quorum")
    await closing
    (record,) = await records(at, log)
    assert record.state is LedgerState.CLOSED
    assert GIVEN_UP in record.custom
    assert await values(log) == numbers(0, 20)


async def test_a_close_at_the_ack_quorum_fails_what_found_no_room(at: World) -> None:
    log = await at.made(config=GUARANTEED)
    writer = await log.open_writer()
    await writer.append(b"0")
    assert writer._sender.target is not None
    writer._sender.target.ledger._window.limit_bytes = 1 << 20
    await at.bookies[0].stop()
    large = [bytes([number]) * 1_000_000 for number in range(20)]
    futures = [writer.append_nowait(value) for value in large]
    closing = asyncio.create_task(writer.close())
    await until_async(
        lambda: writer._sender._stalled and not writer._sent.batches, "the window to be full", seconds=10
    )
    assert not closing.done()
    await writer.close(at="ack_quorum")
    await closing
    ended = await asyncio.gather(*futures, return_exceptions=True)
    sent = [offset for offset in ended if isinstance(offset, int)]
    assert sent == [*range(1, 1 + len(sent))]
    assert 0 < len(sent) < len(large)
    for error in ended[len(sent) :]:
        assert isinstance(error, NotWritingError)
        assert "was not sent" in error.message
    assert await values(log) == [b"0", *large[: len(sent)]]


async def test_records_of_which_the_first_are_on_their_way_are_not_said_to_be_unsent(at: World) -> None:
    log = await at.made(config=replace(GUARANTEED, batch_records_max=1))
    writer = await log.open_writer()
    assert writer._sender.target is not None
    writer._sender.target.ledger._window.limit_bytes = 1 << 20
    large = [bytes([number]) * 600_000 for number in range(3)]
    appending = asyncio.ensure_future(writer.append_many(large))
    while not writer._sender._stalled:
        await asyncio.sleep(0)
    assert writer._sent.batches
    await writer.close(at="ack_quorum")
    with pytest.raises(OutcomeUnknownError, match="the first of these records were sent"):
        await appending
    assert (await values(log))[:1] == large[:1]


def test_a_configuration_that_cannot_be_meant_is_refused() -> None:
    with pytest.raises(MisuseError, match=r"guarantee` must be a LogGuarantee or None, got 'write_quorum'"):
        LogConfig(guarantee="write_quorum")  # type: ignore[arg-type]
    with pytest.raises(MisuseError, match=r"LogGuarantee\.wait_ms` must be an integer from 0"):
        LogGuarantee(wait_ms=-1)

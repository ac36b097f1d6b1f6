"""What a writer's end does about bookies that have not acknowledged all: over bookies that do as told."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from quire.client.config import ClientConfig
from quire.client.sending.ticks import Ticks
from quire.core.answers import Answer
from quire.core.errors import (
    MetadataUnknownError,
    NotWritingError,
    OutcomeUnknownError,
    QuorumLostError,
    WrongPasswordError,
)
from quire.core.ledger.metadata import LedgerState
from quire.core.ledger.placement import Quarantine
from quire.env.real import RealClock
from quire.metadata.memory import MemoryStore
from support.scripted_bookies import SOCKET_BYTES, ScriptedCluster
from support.waiting import until_async

SHORT = ClientConfig(
    flush_ms=40,
    slow_after_ms=10_000,
    change_retry_ms_min=10_000,
    change_retry_ms_max=10_000,
    quorum_wait_ms=0,
)
LONG = ClientConfig(flush_ms=3_600_000, add_timeout_ms=3_600_000)


class CountingStore(MemoryStore):
    """Counts changes of records; with `silent` it answers no read of theirs any more."""

    writes = 0
    silent = False

    async def multi(self, ops):
        self.writes += 1
        return await super().multi(ops)

    async def get(self, key):
        if self.silent:
            msg = "no answer"
            raise MetadataUnknownError(msg)
        return await super().get(key)


class World(ScriptedCluster):
    async def writer(self, config=SHORT, ack=2, stored_format=3, period_ms=5):
        self.quarantine, self.ticks = Quarantine(60_000), Ticks(period_ms, 10_000, lambda: True)
        ledger = await super().writer(
            config,
            ack_quorum=ack,
            format_version=stored_format,
            quarantine=self.quarantine,
            ticks=self.ticks,
        )
        self.store.writes = 0
        return ledger

    async def recorded(self, ledger):
        """(state, [(bookie, first, last)]) as the store has it."""
        record, notes, _ = await self.ledgers.read_with_notes(ledger.ledger_id)
        return record.state, [(hole.bookie, *part[:2]) for hole in notes.holes for part in hole.ranges]


@pytest.fixture
async def w():
    async with World(store=CountingStore()) as made:
        yield made


async def test_what_a_slow_bookie_was_not_sent_reaches_it_before_the_close_returns(w):
    ledger = await w.writer(LONG)
    w.bookies.set("b3", "stopped")
    await asyncio.gather(*(ledger.append_nowait(bytes(1000)) for _ in range(2 * SOCKET_BYTES // 1000)))
    closing = asyncio.ensure_future(ledger.close())
    await until_async(lambda: ledger.metadata.state is LedgerState.CLOSED)
    assert not closing.done()
    w.bookies.set("b3", "ok")
    await closing
    assert w.bookies.entries["b3"] == w.bookies.entries["b1"]
    assert await w.recorded(ledger) == (LedgerState.CLOSED, [])
    assert (ledger.holes, w.store.writes, w.ticks.unfinished) == ((), 1, ())


async def test_who_waits_for_room_goes_on_when_the_slow_bookie_answers(w):
    """All is confirmed by the others, and no periodic look comes: the slow bookie's answer makes the room."""
    ledger = await w.writer(replace(LONG, window_bytes_max=3 * SOCKET_BYTES), period_ms=3_600_000)
    w.bookies.set("b3", "stopped")
    await asyncio.gather(*(ledger.append_nowait(bytes(1000)) for _ in range(2 * SOCKET_BYTES // 1000)))
    waiting = asyncio.ensure_future(ledger.append(bytes(2 * SOCKET_BYTES)))
    await until_async(lambda: ledger._window.waiters)
    w.bookies.set("b3", "ok")
    await waiting
    await ledger.close()


async def test_a_closed_writer_holds_nothing_any_more(w):
    ledger = await w.writer(replace(LONG, window_bytes_max=3 * SOCKET_BYTES))
    w.bookies.set("b3", "stopped")
    await asyncio.gather(*(ledger.append_nowait(bytes(1000)) for _ in range(2 * SOCKET_BYTES // 1000)))
    closing = asyncio.ensure_future(ledger.close())
    await until_async(lambda: ledger.metadata.state is LedgerState.CLOSED)
    draining = asyncio.ensure_future(ledger.drain())
    w.bookies.set("b3", "ok")
    await closing
    assert ledger.held_bytes == 0
    await draining
    await ledger.drain()


@pytest.mark.parametrize("stored_format", [1, 2, 3])
async def test_what_a_bookie_was_not_sent_within_the_bound_is_a_hole(stored_format, w):
    ledger = await w.writer(stored_format=stored_format)
    await ledger.append(b"everywhere")
    await until_async(lambda: 0 in w.bookies.entries["b3"])
    w.bookies.set("b3", "stopped")
    count = 2 * SOCKET_BYTES // 1000
    await asyncio.gather(*(ledger.append_nowait(bytes(1000)) for _ in range(count)))
    assert [hole[1:] for hole in await ledger.close()] == [("b3", 1, count)]
    assert await w.recorded(ledger) == (LedgerState.CLOSED, [("b3", 1, count)])
    assert ledger.holes == await ledger.flushed()
    assert w.quarantine.bookies(RealClock().now_ms()) == ("b3",)
    assert "b3" in w.bookies.dropped, "it is sent no more of it"
    await ledger.close()
    await ledger.abandon()
    assert (await w.recorded(ledger))[1]


async def test_who_closes_does_not_wait_for_what_was_sent_but_the_client_does(w):
    ledger = await w.writer()
    w.bookies.set("b3", "stopped")
    await ledger.append(b"0")
    await ledger.close()
    assert await w.recorded(ledger) == (LedgerState.CLOSED, [])
    [unfinished] = w.ticks.unfinished
    await unfinished.leave()
    assert await w.recorded(ledger) == (LedgerState.CLOSED, [("b3", 0, 0)])
    assert w.ticks.unfinished == ()


async def test_what_is_acknowledged_late_is_no_hole(w):
    ledger = await w.writer(LONG)
    w.bookies.set("b3", "stopped")
    await ledger.append(b"0")
    await ledger.close()
    w.bookies.set("b3", "ok")
    await until_async(lambda: not w.ticks.unfinished)
    assert await w.recorded(ledger) == (LedgerState.CLOSED, [])
    assert w.store.writes == 1


async def test_a_bookie_that_was_silent_long_before_is_in_the_closing_record(w):
    ledger = await w.writer()
    w.bookies.set("b3", "stopped")
    await ledger.append(b"0")
    now_ms = RealClock().now_ms
    [connection] = [connection for connection in ledger._outgoing._connections if connection.unacked]
    await until_async(
        lambda: connection.oldest is not None and now_ms() >= connection.oldest_ms + SHORT.flush_ms
    )
    await ledger.close()
    assert await w.recorded(ledger) == (LedgerState.CLOSED, [("b3", 0, 0)])
    assert w.store.writes == 1, "the close and its holes are one write"


async def test_the_holes_of_an_absent_slot_are_in_the_closing_record(w):
    ledger = await w.writer()
    await ledger.append(b"0")
    w.bookies.set("b3", "dead")
    for number in range(1, 5):
        await ledger.append(b"%d" % number)
    await ledger.close()
    assert await w.recorded(ledger) == (LedgerState.CLOSED, [("b3", 1, 4)])
    assert w.store.writes == 1


async def test_a_writer_that_lost_its_quorum_records_holes_too(w):
    ledger = await w.writer(ack=2)
    await ledger.append(b"0")
    w.bookies.set("b3", "stopped")
    await ledger.append(b"1")
    w.bookies.set("b2", "dead")
    pending = ledger.append_nowait(b"2")
    w.bookies.set("b3", "dead")
    with pytest.raises(QuorumLostError):
        await pending
    with pytest.raises(QuorumLostError):
        await ledger.close()
    assert await w.recorded(ledger) == (LedgerState.CLOSED, [("b3", 1, 1)])


async def test_a_writer_that_ends_among_many_entries_does_not_say_that_none_was_sent(w):
    ledger = await w.writer(replace(SHORT, run_bytes_max=1))
    w.bookies.set("b3", "stopped")
    await ledger.append(b"on b1 and b2")
    late = w.bookies.waiting["b3"].pop()
    w.bookies.set("b3", "ok")
    w.bookies.set("b2", "stopped")
    await ledger.append(b"on b1 and b3")
    for name in ("b2", "b3"):
        w.bookies.set(name, "dead")
    late[2].add_answered(late[3], Answer.UNREACHABLE)
    await until_async(lambda: ledger._machine.change.delayed.keys() == {1, 2}, "both losses to be noted")
    with pytest.raises(QuorumLostError) as ended:
        await ledger.append_many([b"2", b"3"])
    assert (ledger.held_bytes, ended.value.ids["entry_id"]) == (0, 2)
    await until_async(lambda: 2 in w.bookies.entries["b1"], "the first of them to be stored")


async def test_what_one_bookie_refuses_another_may_have_stored(w):
    ledger = await w.writer()
    w.bookies.set("b2", "stopped")
    w.bookies.set("b3", "refusing")
    with pytest.raises(OutcomeUnknownError, match=r"another password; entries .* may or may not be in"):
        await ledger.append(b"x")
    assert 0 in w.bookies.entries["b1"]
    assert isinstance(ledger.problem, WrongPasswordError)
    with pytest.raises(NotWritingError):
        await ledger.append(b"y")


async def test_a_refusal_during_the_flush_is_a_hole(w):
    ledger = await w.writer(LONG)
    w.bookies.set("b3", "stopped")
    await ledger.append(b"0")
    await ledger.close()
    w.bookies.time_out("b3")
    await until_async(lambda: not w.ticks.unfinished)
    assert await w.recorded(ledger) == (LedgerState.CLOSED, [("b3", 0, 0)])


async def test_a_client_that_leaves_confirms_flushes_and_records(w):
    ledger = await w.writer()
    w.bookies.set("b3", "stopped")
    last = [ledger.append_nowait(b"%d" % number) for number in range(10)][-1]
    assert list(ledger._context.unfinished) == [ledger], (
        "before the loop turn in which they are sent has ended"
    )
    await ledger.leave()
    assert await last == 9
    assert await w.recorded(ledger) == (LedgerState.OPEN, [("b3", 0, 9)])
    with pytest.raises(NotWritingError, match="abandoned"):
        await ledger.append(b"more")
    await ledger.leave()


async def test_a_store_that_does_not_answer_does_not_keep_a_closed_ledger_from_its_caller(caplog, w):
    ledger = await w.writer()
    w.bookies.set("b3", "stopped")
    await asyncio.gather(*(ledger.append_nowait(bytes(1000)) for _ in range(2 * SOCKET_BYTES // 1000)))
    closing = asyncio.ensure_future(ledger.close())
    await until_async(lambda: ledger.metadata.state is LedgerState.CLOSED)
    w.store.silent = True
    await closing
    assert "may lack a hole: b3 may lack 0.." in caplog.text
    assert ledger.holes


async def test_several_entries_whose_first_were_sent_are_unknown_when_the_writer_ends(w):
    """A run of them has left; the rest waits for the end of the loop turn, in which a bookie refuses an earlier entry."""
    ledger = await w.writer(replace(LONG, run_bytes_max=1000))
    for bookie in ("b1", "b2", "b3"):
        w.bookies.set(bookie, "stopped")
    first = ledger.append_nowait(b"first")
    await until_async(lambda: len(w.bookies.waiting["b3"]) == 1, "the first to leave")
    many = asyncio.ensure_future(ledger.append_many([bytes(600), bytes(600)]))
    while ledger._machine.lap < 1:
        await asyncio.sleep(0)
    assert ledger._payloads, "the second of them was not sent"
    _, _, requester, tag, _ = w.bookies.waiting["b1"][0]
    requester.add_answered(tag, Answer.UNAUTHORISED)
    for pending in (first, many):
        with pytest.raises(OutcomeUnknownError, match="may or may not be in the ledger") as caught:
            await pending
    assert caught.value.ids["entry_id"] == 1, "the last that was sent"
    assert isinstance(ledger.problem, WrongPasswordError)
    await ledger.abandon()

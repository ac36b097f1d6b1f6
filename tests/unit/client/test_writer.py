"""The asyncio writer over bookies that do as told, with the real metadata store in memory."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from quire.client.config import ClientConfig
from quire.core.errors import (
    LedgerClosedError,
    LedgerFencedError,
    MetadataConflictError,
    MetadataUnknownError,
    MisuseError,
    NotWritingError,
    QuorumLostError,
    WindowFullError,
)
from quire.core.ledger.metadata import DigestType, LedgerState
from quire.env.real import RealClock
from support.scripted_bookies import SOCKET_BYTES, ScriptedCluster
from support.waiting import until_async

FAST = ClientConfig(
    slow_after_ms=40,
    lac_after_ms=1,
    explicit_lac_after_ms=20,
    change_retry_ms_min=10,
    change_retry_ms_max=40,
    quorum_wait_ms=100,
    quarantine_ms=100,
    window_bytes_max=4 * 1024 * 1024,
)
NOT_IDLE = ClientConfig(explicit_lac_after_ms=3_600_000)
"""Nothing is told because the writer is idle."""


class Cluster(ScriptedCluster):
    async def writer(self, size=3, write=3, ack=2, digest=DigestType.CRC32C, config=FAST):
        return await super().writer(config, size, write_quorum=write, ack_quorum=ack, digest=digest)


@pytest.fixture
async def c():
    async with Cluster() as made:
        yield made


async def test_entries_of_one_loop_turn_are_one_run_and_complete_in_order(c):
    async with await c.writer() as ledger:
        done = []
        futures = [ledger.append_nowait(b"%d" % n) for n in range(1000)]
        for future in futures:
            future.add_done_callback(lambda f: done.append(f.result()))
        assert await asyncio.gather(*futures) == list(range(1000))
        await until_async(lambda: len(done) == 1000)
        assert done == list(range(1000))
        assert c.bookies.frames == {"b1": 1, "b2": 1, "b3": 1}
        assert c.bookies.entries["b2"][999] == (b"999", sum(len(str(n)) for n in range(1000)))
        assert ledger.last_add_confirmed == 999
        assert ledger.length == 2890


async def test_runs_are_cut_at_their_size_and_a_large_entry_is_its_own(c):
    async with await c.writer() as ledger:
        futures = [ledger.append_nowait(bytes(400_000)) for _ in range(5)]
        futures.append(ledger.append_nowait(bytes(1_500_000)))
        futures.append(ledger.append_nowait(b"x"))
        assert await asyncio.gather(*futures) == list(range(7))
        assert c.bookies.frames["b1"] == 5


async def test_a_payload_is_copied_if_its_owner_can_change_it(c):
    async with await c.writer() as ledger:
        payload = bytearray(b"before")
        future = ledger.append_nowait(payload)
        view = ledger.append_nowait(memoryview(payload)[:3])
        payload[:] = b"after!"
        await future
        await view
        assert c.bookies.entries["b1"][0][0] == b"before"
        assert c.bookies.entries["b1"][1][0] == b"bef"
        with pytest.raises(MisuseError, match="not str"):
            ledger.append_nowait("text")


@pytest.mark.parametrize("digest", list(DigestType), ids=lambda digest: digest.name)
@pytest.mark.parametrize(
    ("size", "write", "ack"), [(1, 1, 1), (3, 2, 2), (4, 3, 2), (5, 3, 3), (6, 3, 2), (7, 2, 1)]
)
async def test_a_striped_ledger_gives_each_bookie_its_stripes(size, write, ack, digest):
    async with Cluster(size) as c, await c.writer(size, write, ack, digest) as ledger:
        count = 0
        for amount in (1, 2, 3, 50, size, 1):
            ids = await ledger.append_many([b"%d" % (count + n) for n in range(amount)])
            assert ids == range(count, count + amount)
            count += amount
        await ledger.drain()
        for connection, name in enumerate(c.bookies.names):
            held = c.bookies.entries[name]
            assert set(held) == {entry for entry in range(count) if (connection - entry) % size < write}
            assert all(payload == b"%d" % entry for entry, (payload, _) in held.items())


async def test_leaving_the_context_keeps_everything_and_closes(c):
    async with await c.writer() as ledger:
        futures = [ledger.append_nowait(b"x") for _ in range(10)]
    assert [future.result() for future in futures] == list(range(10))
    record, _ = await c.records.ledgers.read(ledger.ledger_id)
    assert (record.state, record.last_entry, record.length) == (LedgerState.CLOSED, 9, 10)
    with pytest.raises(NotWritingError, match="closed"):
        await ledger.append(b"late")
    await ledger.close()


async def test_an_error_in_the_context_keeps_what_was_taken(c):
    with pytest.raises(ZeroDivisionError):
        async with await c.writer() as ledger:
            kept = ledger.append_nowait(b"not yet sent")
            raise ZeroDivisionError
    record, _ = await c.records.ledgers.read(ledger.ledger_id)
    assert (record.state, record.last_entry) == (LedgerState.CLOSED, 0)
    assert await kept == 0


async def test_close_fails_what_is_not_acknowledged(c):
    ledger = await c.writer()
    for name in c.bookies.names:
        c.bookies.set(name, "stopped")
    future = ledger.append_nowait(b"x")
    await until_async(lambda: c.bookies.waiting["b1"])
    await ledger.close()
    with pytest.raises(LedgerClosedError) as caught:
        await future
    assert caught.value.ids == {"ledger_id": ledger.ledger_id, "entry_id": 0}
    assert ledger.held_bytes == 0
    assert (await c.records.ledgers.read(ledger.ledger_id))[0].last_entry == -1


async def test_abandon_leaves_the_record_alone(c):
    ledger = await c.writer()
    await ledger.append(b"x")
    await ledger.abandon()
    await ledger.abandon()
    assert (await c.records.ledgers.read(ledger.ledger_id))[0].state is LedgerState.OPEN
    with pytest.raises(NotWritingError, match="abandoned"):
        await ledger.close()


async def test_an_idle_ledger_tells_its_last_entry_to_all_bookies(c):
    async with await c.writer() as ledger:
        await ledger.append(b"x")
        await until_async(lambda: all(sent == [0] for sent in c.bookies.explicit.values()))


async def test_a_caller_who_appends_again_needs_no_explicit_lac(c):
    async with await c.writer() as ledger:
        for _ in range(50):
            await ledger.append(b"x")
        await until_async(lambda: c.bookies.explicit["b1"])
        assert c.bookies.explicit["b1"] == [49]


async def test_a_bookie_where_a_reader_waits_is_told_at_once_and_the_others_when_the_writer_is_idle(c):
    async with await c.writer(config=NOT_IDLE) as ledger:
        c.bookies.followed.add("b2")
        for n in range(3):
            await ledger.append(b"x")
            await until_async(lambda last=n: c.bookies.explicit["b2"][-1:] == [last])
        assert c.bookies.explicit == {"b1": [], "b2": [0, 1, 2], "b3": []}


async def test_a_writer_that_rests_keeps_no_places_and_goes_on_with_new_ones():
    async with Cluster(4) as c, await c.writer() as ledger:
        for n in range(3):
            assert await ledger.append(b"%d" % n) == n
            await until_async(lambda: not ledger._outgoing._connections)
            await until_async(lambda n=n: c.bookies.explicit["b1"][-1:] == [n])
        c.bookies.set("b1", "dead")
        assert await ledger.append(b"3") == 3
        await until_async(lambda: ledger.metadata.last_fragment.ensemble == ("b4", "b2", "b3"))
        await until_async(lambda: not ledger._outgoing._connections)
        assert await ledger.append(b"4") == 4
        await until_async(lambda: 4 in c.bookies.entries["b4"])
        assert 4 not in c.bookies.entries["b1"]


async def test_a_writer_does_not_rest_while_a_bookie_has_not_answered(c):
    async with await c.writer() as ledger:
        c.bookies.set("b3", "stopped")
        await ledger.append(b"x")
        await until_async(lambda: c.bookies.explicit["b1"])
        connection = ledger._outgoing.connection_at(2)
        c.bookies.set("b3", "ok")
        await until_async(lambda: connection.answers == 1)
        assert ledger._outgoing.connection_at(2) is connection


async def test_readers_elsewhere_are_told_while_a_bookie_that_hangs_has_not_been_sent_the_last_entry(c):
    async with await c.writer() as ledger:
        c.bookies.set("b3", "stopped")
        await ledger.append(bytes(2 * SOCKET_BYTES))
        await until_async(lambda: c.bookies.explicit["b1"] == [0] and c.bookies.explicit["b2"] == [0])
        assert ledger._outgoing._held


async def test_a_bookie_that_turns_out_to_be_followed_after_the_confirmation_is_told(c):
    async with await c.writer(config=NOT_IDLE) as ledger:
        c.bookies.set("b3", "stopped")
        await ledger.append(b"x")
        c.bookies.followed.add("b3")
        c.bookies.set("b3", "ok")
        await until_async(lambda: c.bookies.explicit["b3"])
        assert c.bookies.explicit == {"b1": [], "b2": [], "b3": [0]}


async def test_a_dead_bookie_is_replaced_and_no_append_fails():
    async with Cluster(4) as c, await c.writer() as ledger:
        await ledger.append(b"0")
        c.bookies.set("b2", "dead")
        futures = [ledger.append_nowait(b"%d" % n) for n in range(1, 100)]
        assert await asyncio.gather(*futures) == list(range(1, 100))
        record, _ = await c.records.ledgers.read(ledger.ledger_id)
        assert [part.ensemble for part in record.fragments] == [("b1", "b2", "b3"), ("b1", "b4", "b3")]
        assert record.fragments[1].first_entry == 1
        await until_async(lambda: set(c.bookies.entries["b4"]) == set(range(1, 100)))
        assert ledger.holes == ()


async def test_several_bookies_die_under_load():
    async with Cluster(7) as c, await c.writer(5, 3, 2) as ledger:
        futures = []
        for n in range(400):
            futures.append(ledger.append_nowait(b"%d" % n))
            if n == 100:
                c.bookies.set("b1", "dead")
            if n == 200:
                c.bookies.set("b3", "read_only")
            if n % 10 == 0:
                await asyncio.sleep(0)
        assert await asyncio.gather(*futures) == list(range(400))
        await ledger.drain()
        record = (await c.records.ledgers.read(ledger.ledger_id))[0]
        for entry in range(400):
            ensemble = record.ensemble_of(entry)
            names = [ensemble[(entry + i) % 5] for i in range(3)]
            assert sum(entry in c.bookies.entries[name] for name in names) >= 2


async def test_without_a_spare_the_slot_is_absent_until_its_bookie_is_back(c):
    async with await c.writer() as ledger:
        await ledger.append(b"0")
        c.bookies.set("b3", "dead")
        for n in range(1, 5):
            await ledger.append(b"%d" % n)
        assert ledger.metadata.last_fragment.ensemble == ("b1", "b2", "b3")
        # Also entry 1, though it may have had its quorum before b3's failure was known: b3 never acknowledged it.
        assert [(hole.bookie, hole.first == 1, hole.last) for hole in ledger.holes] == [("b3", True, 4)]
        c.bookies.set("b3", "ok")
        await until_async(lambda: not ledger._machine.absent)
        await ledger.append(b"5")
        await ledger.append(b"6")
        await until_async(lambda: {5, 6} <= set(c.bookies.entries["b3"]))
        assert 2 not in c.bookies.entries["b3"]


async def test_when_no_quorum_is_left_the_writer_ends_and_closes(c):
    ledger = await c.writer(3, 3, 3)
    await ledger.append(b"0")
    c.bookies.set("b2", "dead")
    with pytest.raises(QuorumLostError, match="b2"):
        await ledger.append(b"1")
    with pytest.raises(NotWritingError, match="ack quorum"):
        await ledger.append(b"2")
    with pytest.raises(QuorumLostError):
        await ledger.close()
    record, _ = await c.records.ledgers.read(ledger.ledger_id)
    assert (record.state, record.last_entry) == (LedgerState.CLOSED, 0)
    with pytest.raises(QuorumLostError):
        await ledger.drain()


async def test_two_dead_bookies_that_are_still_registered_take_turns_with_growing_pauses():
    long_quarantine = replace(FAST, quarantine_ms=60_000)
    async with Cluster(4) as c, await c.writer(config=long_quarantine) as ledger:
        c.bookies.set("b4", "dead")
        c.bookies.set("b3", "dead")
        for n in range(3):
            await ledger.append(b"%d" % n)
        assert ledger._machine.absent == (2,)
        before = ledger._machine.cas.version
        ledger._context.quarantine.failed("b4", RealClock().now_ms())
        c.bookies.set("b4", "registered")
        c.bookies.set("b2", "registered")
        appended = ledger.append_nowait(b"3")
        await until_async(lambda: ledger._effects.choices._paused[1] == FAST.change_retry_ms_max)
        assert ledger._machine.cas.version - before <= 8, "a compare-and-swap of the record each time"
        c.bookies.set("b4", "ok")
        assert await appended == 3
        assert "b4" in ledger.metadata.last_fragment.ensemble


async def test_a_fenced_writer_ends_with_unknown_outcome(c):
    ledger = await c.writer()
    await ledger.append(b"0")
    record, version = await c.records.ledgers.read(ledger.ledger_id)
    await c.records.ledgers.write(record.in_recovery(), version)
    for name in c.bookies.names:
        c.bookies.set(name, "fenced")
    with pytest.raises(LedgerFencedError) as caught:
        await ledger.append(b"1")
    assert caught.value.ids["entry_id"] == 1
    assert isinstance(ledger.problem, LedgerFencedError)
    assert (await c.records.ledgers.read(ledger.ledger_id))[0].state is LedgerState.IN_RECOVERY


async def test_closing_a_ledger_that_another_client_closed_elsewhere(c):
    ledger = await c.writer()
    await ledger.append(b"0")
    record, version = await c.records.ledgers.read(ledger.ledger_id)
    version = await c.records.ledgers.write(record.in_recovery(), version)
    await c.records.ledgers.write(record.in_recovery().closed(3, 9), version)
    with pytest.raises(MetadataConflictError, match="entry 3"):
        await ledger.close()


async def test_a_stopped_bookie_neither_fills_memory_nor_stalls_the_writer(c):
    async with await c.writer() as ledger:
        await ledger.append(b"first")
        c.bookies.set("b3", "stopped")
        most = 0
        for _ in range(300):
            await ledger.append(bytes(100_000))
            most = max(most, ledger.held_bytes)
        assert most <= FAST.window_bytes_max
        assert "b3" in c.bookies.dropped
        assert ledger._machine.absent == (2,)
        assert ledger.last_add_confirmed == 300


async def test_a_stopped_bookie_of_a_striped_ledger_is_given_up_too():
    async with Cluster(6) as c, await c.writer(6, 3, 2) as ledger:
        c.bookies.set("b4", "stopped")
        for _ in range(100):
            await ledger.append_many([bytes(10_000)] * 20)
        assert ledger.last_add_confirmed == 1999
        assert "b4" in c.bookies.dropped


async def test_the_window_refuses_and_drain_makes_room(c):
    async with await c.writer() as ledger:
        sent = 0
        with pytest.raises(WindowFullError, match="drain"):
            while True:
                ledger.append_nowait(bytes(100_000))
                sent += 1
        assert 35 < sent < 42
        await ledger.drain()
        assert ledger.last_add_confirmed == sent - 1
        assert await ledger.append_nowait(bytes(100_000)) == sent
        assert c.bookies.frames["b1"] > 1


async def test_append_waits_for_room_in_the_order_of_the_calls(c):
    async with await c.writer() as ledger:
        tasks = [asyncio.ensure_future(ledger.append(bytes([n]) * 500_000)) for n in range(40)]
        most = 0
        while not all(task.done() for task in tasks):
            most = max(most, ledger.held_bytes)
            await asyncio.sleep(0)
        assert [task.result() for task in tasks] == list(range(40))
        assert [c.bookies.entries["b1"][n][0][0] for n in range(40)] == list(range(40))
        assert most <= FAST.window_bytes_max


async def test_a_cancelled_append_gives_its_room_back(c):
    async with await c.writer() as ledger:
        for name in c.bookies.names:
            c.bookies.set(name, "stopped")
        tasks = [asyncio.ensure_future(ledger.append(bytes(1_000_000))) for _ in range(8)]
        await until_async(lambda: c.bookies.waiting["b1"])
        waiting = tasks[5:]
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        for name in c.bookies.names:
            c.bookies.set(name, "ok")
        assert sorted(await asyncio.gather(*tasks[:5])) == list(range(5))
        await ledger.drain()
        await until_async(lambda: ledger.held_bytes == 0)


async def test_limits_are_said_plainly(c):
    async with await c.writer() as ledger:
        with pytest.raises(MisuseError, match="window_bytes_max"):
            ledger.append_nowait(bytes(FAST.payload_bytes_max + 1))
        with pytest.raises(MisuseError, match="in parts"):
            await ledger.append_many([bytes(1_000_000)] * 5)
        assert await ledger.append_many([]) == range(0)
        with pytest.raises(MisuseError, match="add_timeout_ms"):
            ClientConfig(add_timeout_ms=0)


async def test_a_store_that_stays_silent_during_a_change_ends_the_writer():
    async with Cluster(4) as c:
        config = ClientConfig(metadata_attempts_max=3, change_retry_ms_min=5, change_retry_ms_max=5)
        ledger = await c.writer(config=config)
        ledger._effects._context = replace(ledger._context, records=SilentStore())
        c.bookies.set("b2", "dead")
        with pytest.raises(MetadataUnknownError):
            await ledger.append(b"x")
        await ledger.abandon()


class SilentStore:
    """A store that is there and never says what it did."""

    async def write(self, record, version, *, vouched):
        raise MetadataUnknownError("no answer")

    async def read(self, ledger_id):
        raise MetadataUnknownError("no answer")

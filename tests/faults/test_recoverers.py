"""Auto-recovery as processes beside real bookies: restarts, a bookie that comes back, open ledgers, an outage, a stopped bookie.

Each runs in the full ring; what it measured is in docs/proof. Delays and grace times are shorter than in production in the
reduced forms.

Source: docs/autorecovery.md; docs/decisions/034-who-may-recover-an-open-ledger.md.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import quire
from faults.harness import cluster
from faults.recoverers import PacedWriter, Recoverer, members, naming, no_marks, written
from quire.autorecovery.marking import mark_findings
from quire.autorecovery.repair import ClusterRepair
from quire.cli.cluster.marked import marked_ledgers
from quire.client.client import Client
from quire.client.config import ClientConfig
from quire.client.repairing.scrubbing import ReplicaCheck
from quire.core.ids import BookieId
from quire.core.ledger.metadata import LedgerState
from quire.core.ledger.stripes import BookieStripes, bookie_stripes
from quire.core.repair.audit_effects import CountedState
from quire.env.real import RealClock
from quire.metadata.bookies import BookieInfo, BookieRegistry
from quire.metadata.connect import open_store
from quire.metadata.records import OF_LEDGERS
from quire.metadata.repairs import RepairStore
from quire.metadata.store import Create
from quire.wire.ledger_metadata import serialize
from support.etcd_server import own_server
from support.programs import NEW, BookieProcess
from support.records import record_of
from support.shared_server import or_skip
from support.tcp_proxy import tcp_proxy
from support.waiting import until_async
from support.zookeeper_server import zookeeper_or_skip

Rounds = Callable[[int, int], int]
Record = Callable[[str, dict[str, Any]], None]
pytestmark = [pytest.mark.faults, pytest.mark.slow, pytest.mark.timeout(3600)]
WAIT_S = 600.0
WIDE = {"ensemble_size": 5, "write_quorum": 3, "ack_quorum": 2}
FIXED = 100
"""Requests of the audits, and of listing what is marked, besides those for each ledger."""
HASTY = ClientConfig(left_wait_ms_min=1_000, left_wait_ms_max=3_000)
"""An idle writer waits a tenth as long as in production."""


# --- a bookie that is gone for good ------------------------------------------------------------------------------


async def gone_under_a_paced_writer(folder: Path, ledgers: int) -> dict[str, Any]:
    """One of five bookies is killed while a writer appends at half of its rate."""
    async with cluster(folder, 5) as local, quire.connect(local.uri) as client:
        marks = RepairStore(client.store, RealClock(), "test")
        await marks.set_lost_delay_s(0)
        made = await written(client, ledgers)
        recoverer = await Recoverer.start(local.uri)
        await recoverer.until("audited", ledgers, WAIT_S)
        writer = PacedWriter(client)
        writing = asyncio.create_task(writer.run())
        await asyncio.sleep(3)
        full = writer.figures()
        writer.phase(full["appends_per_s"] / 2)
        before = await recoverer.figures()
        await asyncio.sleep(15)
        quiet, idle = writer.figures(), await recoverer.figures()
        gone = local.bookies[2]
        touched = await naming(client, made, gone.id)
        await asyncio.to_thread(local.kill, 2)
        writer.phase(full["appends_per_s"] / 2)
        began, half, estimate, early = time.monotonic(), 0.0, None, None
        while (now := await recoverer.figures())["repaired"] < len(touched):
            assert time.monotonic() - began < WAIT_S, now
            if not half and now["repaired"] >= len(touched) // 2:
                estimate = (await marked_ledgers(client.records, marks))[1]["estimate_s"]
                half = time.monotonic()  # when a person reads it: to list thousands of marks takes a while
            early = early or (now if now["repaired"] > len(touched) // 10 else None)
            await asyncio.sleep(0.1)
        assert early is not None
        ended = time.monotonic()
        beside = writer.figures()
        await until_async(lambda: no_marks(marks), "every mark is gone", WAIT_S)
        last = await recoverer.figures()
        writer.stop()
        await writing
        assert writer.errors == []
        assert await naming(client, made, gone.id) == []
        for each in touched[:: max(1, len(touched) // 100)]:
            assert (await client.verify_ledger(each)).complete
        await recoverer.stop()
        requests = (last["requests"] - idle["requests"]) / last["attempts"]
        figures = {
            "ledgers": ledgers,
            "ledgers_touched": len(touched),
            "seconds": round(ended - began, 1),
            "seconds_left_at_half_time": round(ended - half, 1),
            "estimated_s_at_half_time": estimate,
            "writer_at_full_rate": full,
            "writer_at_half_rate": quiet,
            "writer_beside_repairs": beside,
            "requests_while_nothing_is_marked": idle["requests"] - before["requests"],
            "repairs": last["attempts"],
            "requests_a_repair": round(requests, 2),
            "worker_kib_before": idle["rss_kib"],
            "worker_kib_at_most": last["peak_kib"],
            "worker_kib_after": last["rss_kib"],
            "descriptors_early_and_at_the_end": [early["descriptors"], last["descriptors"]],
            "tasks_before_and_at_the_end": [idle["tasks"], last["tasks"]],
        }
        print(figures)
        assert figures["requests_while_nothing_is_marked"] == 0, figures
        assert requests <= 8 + FIXED / last["attempts"], figures
        assert last["peak_kib"] - idle["rss_kib"] <= 32 * 1024, figures
        assert last["descriptors"] <= early["descriptors"] + 1, figures
        assert last["tasks"] <= idle["tasks"] + 1, figures
        return figures


async def test_a_writer_goes_on_beside_the_repair_of_many_ledgers(
    tmp_path: Path, rounds: Rounds, record: Record
) -> None:
    record("recovered_beside_a_writer", await gone_under_a_paced_writer(tmp_path / "c", rounds(10_000, 500)))


# --- bookies that come back --------------------------------------------------------------------------------------


async def restarted_one_by_one(folder: Path, away_s: float, delay_s: int) -> dict[str, Any]:
    async with cluster(folder, 5) as local, quire.connect(local.uri) as client:
        marks = RepairStore(client.store, RealClock(), "test")
        await marks.set_lost_delay_s(delay_s)
        made = await written(client, 200) + await written(client, 200, **WIDE)
        writer = await client.create_ledger()
        await writer.append(b"first")
        recoverer = await Recoverer.start(local.uri)
        await recoverer.until("audited", len(made) + 1, WAIT_S)
        marked = 0
        for index in range(len(local.bookies)):
            await asyncio.to_thread(local.kill, index)
            end = time.monotonic() + away_s
            if index == 2:
                assert (await ClusterRepair(client).look()).looked_at >= len(made)
            while time.monotonic() < end:
                marked += not await no_marks(marks)
                await asyncio.sleep(0.2)
            await asyncio.to_thread(local.restart, index)
        await until_async(lambda: back(client, marks, 5), "all are back", WAIT_S)
        said = await recoverer.figures()
        assert (said["copied"], said["recovered"], said["attempts"], marked) == (0, 0, 0, 0)
        assert await no_marks(marks)
        assert (await client.ledger_metadata(writer.ledger_id)).state is LedgerState.OPEN
        await writer.append(b"and on")
        await writer.close()
        await recoverer.stop()
        for each in made[::20]:
            assert (await client.verify_ledger(each)).complete
        return {
            "ledgers": len(made),
            "bookies": 5,
            "away_s": away_s,
            "delay_s": delay_s,
            "bytes_copied": said["copied"],
            "ledgers_recovered": said["recovered"],
            "looks_that_saw_a_mark": marked,
        }


async def back(client: Client, marks: RepairStore, count: int) -> bool:
    """Whether so many bookies take entries, and nobody counts one as away."""
    return len(client.bookies.writable()) == count and not await marks.times(CountedState.AWAY)


async def test_a_rolling_restart_copies_nothing(tmp_path: Path, rounds: Rounds, record: Record) -> None:
    work = restarted_one_by_one(tmp_path / "c", rounds(30, 6), rounds(60, 15))
    record("rolling_restart_of_bookies", await work)


async def away_and_back(folder: Path, delay_s: int) -> dict[str, Any]:
    """A bookie is away for longer than the delay, and comes back in the middle of the copying."""
    async with cluster(folder, 5) as local, quire.connect(local.uri) as client:
        marks = RepairStore(client.store, RealClock(), "test")
        await marks.set_lost_delay_s(delay_s)
        made, repair = await written(client, 40, 4_000), ClusterRepair(client)
        await repair.run(
            (await repair.look()).to_repair
        )  # what a writer closed with holes is not what is tested
        recoverer = await Recoverer.start(local.uri, bytes_per_s=16_000_000)
        await recoverer.until("audited", len(made), WAIT_S)
        await asyncio.to_thread(local.kill, 1)
        began = time.monotonic()
        await until_async(lambda: copies(recoverer), "it copies", WAIT_S)
        await asyncio.to_thread(local.restart, 1)
        returned, at_return = time.monotonic(), (await recoverer.figures())["copied"]
        assert not await no_marks(marks), "it came back too late: all was repaired"
        await until_async(lambda: no_marks(marks), "every mark is gone", WAIT_S)
        seconds, said = time.monotonic() - returned, await recoverer.figures()
        await recoverer.stop()
        assert said["copied"] - at_return <= 64 << 20, "one window of all repairs together"
        for each in made[::10]:
            assert (await client.verify_ledger(each)).complete
        return {
            "away_s": round(returned - began, 1),
            "delay_s": delay_s,
            "bytes_copied_before": at_return,
            "bytes_copied_after": said["copied"] - at_return,
            "seconds_until_no_mark": round(seconds, 1),
        }


async def copies(recoverer: Recoverer) -> bool:
    return bool((await recoverer.figures())["copied"])


async def test_a_bookie_that_comes_back_ends_the_copying(
    tmp_path: Path, rounds: Rounds, record: Record
) -> None:
    record("bookie_back_after_the_delay", await away_and_back(tmp_path / "c", rounds(60, 10)))


# --- open ledgers ------------------------------------------------------------------------------------------------


async def three_writers(
    folder: Path, quiet_s: float, grace_s: int, idle_wait_s: int, config: ClientConfig
) -> dict[str, Any]:
    """One of three bookies dies; of three writers one is busy, one idle, and one died before."""
    async with cluster(folder / "three", 3) as local, quire.connect(local.uri, config=config) as client:
        await RepairStore(client.store, RealClock(), "test").set_lost_delay_s(2)
        busy, idle, dead = [await client.create_ledger() for _ in range(3)]
        for writer in (busy, idle, dead):
            await writer.append(b"first")
        await dead.abandon()
        recoverer = await Recoverer.start(local.uri, grace_s=grace_s, idle_wait_s=idle_wait_s)
        await recoverer.until("audited", 3, WAIT_S)
        gone = local.bookies[0].id
        await asyncio.to_thread(local.kill, 0)
        appended, end = 0, time.monotonic() + quiet_s
        while time.monotonic() < end:
            await busy.append(b"more")
            appended += 1
            await asyncio.sleep(0.1)
        await idle.append(b"second")
        for writer in (busy, idle, dead):
            assert (await client.ledger_metadata(writer.ledger_id)).state is LedgerState.OPEN
        assert (await recoverer.figures())["recovered"] == 0
        fourth = BookieProcess("b4", folder / "b4", local.uri)
        await asyncio.to_thread(fourth.start, NEW)
        began, took = time.monotonic(), dict[str, float]()
        try:
            for name, writer in (("busy", busy), ("idle", idle)):

                async def replaced(writer: Any = writer) -> bool:
                    if writer is busy:
                        await busy.append(b"more")
                    record = await client.ledger_metadata(writer.ledger_id)
                    return gone not in record.last_fragment.ensemble

                await until_async(replaced, f"the {name} writer takes the fourth bookie", WAIT_S)
                took[name] = round(time.monotonic() - began, 1)

            async def closed() -> bool:
                return (await client.ledger_metadata(dead.ledger_id)).state is LedgerState.CLOSED

            await until_async(closed, "the dead writer's ledger is recovered", WAIT_S)
            took["dead"] = round(time.monotonic() - began, 1)
            assert (await recoverer.figures())["recovered"] == 1
            for writer in (busy, idle):
                await writer.append(b"last")
                assert (await client.ledger_metadata(writer.ledger_id)).state is LedgerState.OPEN
                await writer.close()
            await until_async(lambda: whole(client, [dead, busy, idle], gone), "all are whole", WAIT_S)
            await recoverer.stop()
        finally:
            await asyncio.to_thread(fourth.stop)
        return {
            "quiet_s": quiet_s,
            "grace_s": grace_s,
            "appended": appended,
            "seconds_after_the_fourth": took,
        }


async def whole(client: Client, writers: list[Any], gone: str) -> bool:
    """Whether ledgers are without a bookie, and every copy is there."""
    for writer in writers:
        if gone in members(await client.ledger_metadata(writer.ledger_id)):
            return False
        if not (await client.verify_ledger(writer.ledger_id)).complete:
            return False
    return True


async def test_of_three_bookies_one_dies_and_no_living_writer_is_fenced(
    tmp_path: Path, rounds: Rounds, record: Record
) -> None:
    config = ClientConfig() if rounds(1, 0) else HASTY
    work = three_writers(tmp_path, rounds(120, 40), rounds(60, 12), rounds(30, 3), config)
    record("open_ledgers_of_three_bookies", await work)


# --- an outage ---------------------------------------------------------------------------------------------------


async def nobody_is_registered(folder: Path, away_s: float) -> dict[str, Any]:
    """The metadata store does not answer for so long that every session ends."""
    server = or_skip(own_server(folder / "etcd"))
    host, _, port = server.host.rpartition(":")
    async with tcp_proxy(host.rpartition("/")[2], int(port)) as proxy:
        uri = f"etcd://127.0.0.1:{proxy.port}/quire?session_timeout_ms=2000"
        bookies = [BookieProcess(f"b{number}", folder / f"b{number}", uri) for number in range(4)]
        try:
            for bookie in bookies:
                await asyncio.to_thread(bookie.start, NEW)
            async with quire.connect(uri, config=HASTY) as client:
                marks = RepairStore(client.store, RealClock(), "test")
                await marks.set_lost_delay_s(5)
                made = await written(client, 100)
                writers = [await client.create_ledger() for _ in range(5)]
                for writer in writers:
                    await writer.append(b"first")
                recoverer = await Recoverer.start(uri, grace_s=10, idle_wait_s=3)
                await recoverer.until("audited", len(made) + 5, WAIT_S)
                proxy.go_silent()
                end = time.monotonic() + away_s
                while time.monotonic() < end:
                    await writers[0].append(b"more")
                    await asyncio.sleep(0.1)
                proxy.pass_everything()
                await until_async(lambda: back(client, marks, 4), "all are back", WAIT_S)
                for writer in writers:
                    await writer.append(b"and on")
                    record = await client.ledger_metadata(writer.ledger_id)
                    assert (record.state, len(record.fragments)) == (LedgerState.OPEN, 1)
                said = await recoverer.figures()
                assert (said["copied"], said["recovered"]) == (0, 0)
                assert await no_marks(marks)
                for writer in writers:
                    await writer.close()
                await recoverer.stop()
        finally:
            for bookie in bookies:
                if bookie.process is not None:
                    await asyncio.to_thread(bookie.stop)
            server.stop()
    return {"away_s": away_s, "ledgers": len(made), "writers": len(writers), "attempts": said["attempts"]}


async def test_an_outage_that_ends_every_session_moves_nothing(tmp_path: Path, record: Record) -> None:
    record("every_registration_gone", await nobody_is_registered(tmp_path, 30))


# --- a check of every copy ---------------------------------------------------------------------------------------


async def stopped_during_a_check(folder: Path, ledgers: int) -> dict[str, Any]:
    """Every bookie is asked for its list of every ledger; one stands still meanwhile."""
    async with cluster(folder, 5) as local, quire.connect(local.uri) as client:
        marks = RepairStore(client.store, RealClock(), "test")
        made, under_way, found = await written(client, ledgers), asyncio.Semaphore(64), [0, 0]
        recoverer = await Recoverer.start(local.uri)
        await recoverer.until("audited", ledgers, WAIT_S)

        async def check(ledger: int) -> None:
            async with under_way:
                record = await client.ledger_metadata(ledger)
                replicas = ReplicaCheck(client.bookies, record, timeout_ms=1_000)
                by_bookie: dict[BookieId, list[BookieStripes]] = {}
                for part in bookie_stripes(record):
                    by_bookie.setdefault(part.bookie, []).append(part)
                for bookie, mine in by_bookie.items():
                    findings = await replicas.audit(bookie, mine)
                    found[0] += len(findings)
                    made_marks = await mark_findings(client, ledger, bookie, findings, "a check")
                    found[1] += len(made_marks)

        checking = asyncio.gather(*map(check, made))
        await asyncio.sleep(0.5)
        process = local.bookies[3].process
        assert process is not None
        os.kill(process.pid, signal.SIGSTOP)
        await asyncio.sleep(10)
        os.kill(process.pid, signal.SIGCONT)
        await checking
        said = await recoverer.figures()
        await recoverer.stop()
        assert found[0], "nothing was asked while it stood still"
        assert (found[1], said["copied"]) == (0, 0)
        assert await no_marks(marks), (await marks.missing_page(limit=3), await marks.marks_page(limit=3))
        return {"ledgers": ledgers, "lists_without_an_answer": found[0], "marks": found[1]}


async def test_a_bookie_that_stands_still_during_a_check_is_not_marked(
    tmp_path: Path, rounds: Rounds, record: Record
) -> None:
    record("stopped_during_a_check", await stopped_during_a_check(tmp_path / "c", rounds(10_000, 1_000)))


# --- many ledgers ------------------------------------------------------------------------------------------------


async def audited(uri: str, ledgers: int) -> dict[str, Any]:
    """The audit of a cluster whose bookies exist only as registrations, one of them gone."""
    names = [f"b{number}" for number in range(5)]
    store = await open_store(uri, create=True)
    try:
        registry = BookieRegistry(store)
        for name in names:
            await registry.write_cookie(name, b"of a test")
        held = [await registry.register(BookieInfo(BookieId(name), "127.0.0.1", 1)) for name in names[1:]]
        ops = []
        for ledger in range(1, ledgers + 1):
            # One in a hundred names the bookie that is gone.
            ensemble = (
                ["b0", "b1"] if ledger % 100 == 0 else [f"b{1 + ledger % 4}", f"b{1 + (ledger + 1) % 4}"]
            )
            ops.append(Create(OF_LEDGERS.key(ledger), serialize(record_of(ledger, ensemble, password=b"x"))))
        for start in range(0, len(ops), 100):
            await store.multi(ops[start : start + 100])
        marks = RepairStore(store, RealClock(), "test")
        await marks.set_lost_delay_s(0)
        recoverer = await Recoverer.start(uri, repairs=False)
        began = time.monotonic()
        said = await recoverer.until("audited", ledgers, WAIT_S)
        seconds = time.monotonic() - began
        assert said["leads"], "its session has held"
        assert said["marked"] == ledgers // 100
        assert said["outstanding_max"] <= 64
        assert said["peak_kib"] <= 128 * 1024, said
        await recoverer.stop()
        for each in held:
            await each.close()
        return {
            "ledgers": ledgers,
            "marked": said["marked"],
            "seconds": round(seconds, 1),
            "requests": said["requests"],
            "outstanding_max": said["outstanding_max"],
            "longest_request_s": said["longest_s"],
            "peak_kib": said["peak_kib"],
        }
    finally:
        await store.close()


async def test_an_audit_of_many_ledgers(tmp_path: Path, rounds: Rounds, record: Record) -> None:
    """The session of four seconds holds throughout: its owner answers while it reads records."""
    server = zookeeper_or_skip()
    uri = f"zk://{server.host}/audit{time.time_ns()}?session_timeout_ms=4000"
    record("audit_of_many_ledgers", await audited(uri, rounds(100_000, 5_000)))

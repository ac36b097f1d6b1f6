"""What is closed is whole, or its record says what is missing: closes next to a stopped bookie, of real processes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import pytest

import quire
from faults.harness import cluster, lacking
from quire.cli.local.local_cluster import LocalBookie, LocalCluster
from quire.client.client import Client
from support.records import is_hole

pytestmark = pytest.mark.faults

ENTRIES = 8_000
PAYLOAD = b"x" * 1_000
TRIPLE = {"ensemble_size": 3, "write_quorum": 3, "ack_quorum": 2}


@contextmanager
def stopped(bookie: LocalBookie) -> Iterator[None]:
    """The bookie's process is stopped meanwhile: its sockets live, and take bytes until their buffers are full."""
    os.kill(bookie.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(bookie.pid, signal.SIGCONT)


@asynccontextmanager
async def client_of(made: LocalCluster) -> AsyncIterator[Client]:
    """A client that is gone when the block is left: nothing that it holds reaches a bookie later."""
    async with quire.connect(made.uri) as client:
        yield client


async def append(writer: object, count: int) -> None:
    """Append so many entries and wait until all are acknowledged."""
    futures = []
    for _ in range(count):
        try:
            futures.append(writer.append_nowait(PAYLOAD))
        except quire.WindowFullError:
            await writer.drain()
            futures.append(writer.append_nowait(PAYLOAD))
        if len(futures) % 100 == 0:
            await asyncio.sleep(0)
    await asyncio.gather(*futures)


async def unrecorded(client: Client, ledger_id: int, last: int | None = None) -> tuple[int, int]:
    """How many copies are neither on their bookie nor a hole of the record, and how many the record calls holes."""
    notes, wanted, gaps = await lacking(client, ledger_id, last)
    missing = sum(not is_hole(notes, gap.bookie, entry_id) for gap in gaps for entry_id in gap.ids())
    return missing, sum(is_hole(notes, part.bookie, entry_id) for part in wanted for entry_id in part.ids())


def command(made: LocalCluster, *words: str, given: bytes = b"") -> tuple[int, dict[str, object]]:
    """A command's exit code and what it prints."""
    program = [sys.executable, "-m", "quire", *words, "--json"]
    environment = {**os.environ, "QUIRE_CLUSTER": made.uri}
    done = subprocess.run(program, input=given, capture_output=True, env=environment, check=False)
    return done.returncode, json.loads(done.stdout.splitlines()[-1])


async def test_a_close_records_what_a_stopped_bookie_lacks(tmp_path):
    async with cluster(tmp_path / "data", 3) as made:
        with stopped(made.bookies[1]):
            async with client_of(made) as client:
                writer = await client.create_ledger(**TRIPLE)
                await append(writer, ENTRIES)
                await writer.close()
                ledger_id, holes = writer.ledger_id, writer.holes
        assert holes
        async with client_of(made) as client:
            missing, recorded = await unrecorded(client, ledger_id)
            assert (await client.ledger_metadata(ledger_id)).last_entry == ENTRIES - 1
        assert missing == 0
        assert recorded
        code, found = await asyncio.to_thread(command, made, "ledger", "verify", str(ledger_id))
        assert (code, found["good"], found["complete"]) == (5, True, False)
        [bookie] = {hole["bookie"] for hole in found["holes"]}
        assert {hole["bookie"] for hole in found["recorded_holes"]} == {bookie}
        code, shown = await asyncio.to_thread(command, made, "ledger", "show", str(ledger_id))
        assert (code, shown["complete"]) == (5, False)
        [lacking] = [each for each in shown["ensembles"][0]["bookies"] if each["held"] < each["wanted"]]
        assert lacking["id"] == bookie
        assert lacking["missing"]
        assert lacking["recorded_holes"]


@pytest.mark.parametrize(
    "returns", [pytest.param(True, id="continues", marks=pytest.mark.slow), pytest.param(False, id="dies")]
)
async def test_many_closes_leave_no_hole_that_no_record_has(tmp_path, rounds, record, returns):
    """Also what the system had taken for the stopped bookie: killed, it never sees that."""
    closes = rounds(1000, 40)

    async def one(client: Client, taken: list[float]) -> int:
        writer = await client.create_ledger(**TRIPLE)
        await append(writer, 5)
        began = time.perf_counter()
        await writer.close()
        taken.append((time.perf_counter() - began) * 1000)
        return writer.ledger_id

    taken: list[float] = []
    async with cluster(tmp_path / "data", 3) as made:
        bookie = made.bookies[2]
        with stopped(bookie):
            async with client_of(made) as client:
                ledgers = [
                    ledger
                    for _ in range(0, closes, 20)
                    for ledger in await asyncio.gather(*(one(client, taken) for _ in range(20)))
                ]
            if not returns:
                await asyncio.to_thread(made.kill, 2)
                await asyncio.to_thread(made.restart, 2)
        async with client_of(made) as client:
            found = [await unrecorded(client, ledger) for ledger in ledgers]
    assert [ledger for ledger, (missing, _) in zip(ledgers, found, strict=True) if missing] == []
    assert any(holes for _, holes in found)
    taken.sort()
    name = "closes_beside_a_bookie_that_" + ("continues" if returns else "dies")
    figures = {"closes": len(ledgers), "unrecorded holes": 0, "holes": sum(holes for _, holes in found)}
    times = {
        "close ms p50": round(taken[len(taken) // 2], 1),
        "p99": round(taken[len(taken) * 99 // 100], 1),
    }
    record(name, figures | times)


async def test_appends_of_a_command_reach_every_bookie(tmp_path, rounds):
    """Some bookie is always the slowest of three; what it has not been sent yet is not dropped when a process ends."""
    lines = b"".join(b"%d\n" % number for number in range(2_000))
    async with cluster(tmp_path / "data", 3) as made:
        ledgers = []
        for _ in range(rounds(60, 4)):
            code, done = await asyncio.to_thread(command, made, "ledger", "append", given=lines)
            assert (code, done["entries"]) == (0, 2_000)
            ledgers.append(done["ledger_id"])
        async with client_of(made) as client:
            assert {(await unrecorded(client, ledger))[0] for ledger in ledgers} == {0}


async def test_a_log_that_is_closed_records_what_a_stopped_bookie_lacks(tmp_path):
    async with cluster(tmp_path / "data", 3) as made:
        with stopped(made.bookies[0]):
            async with quire.connect(made.uri) as client:
                log = client.log("orders")
                await log.create()
                writer = await log.open_writer()
                for _ in range(3):
                    await writer.append_many([PAYLOAD] * 2_000)
                    await writer.roll()
                await writer.append_many([PAYLOAD] * 2_000)
                await writer.close()
        async with client_of(made) as client:
            ledgers = [ledger async for ledger in client.ledgers()]
            found = [await unrecorded(client, ledger) for ledger in ledgers]
        assert len(ledgers) == 4
        assert [missing for missing, _ in found] == [0] * 4
        assert all(holes for _, holes in found)


async def test_a_client_that_is_closed_leaves_its_open_ledgers_whole_or_with_recorded_holes(tmp_path):
    async with cluster(tmp_path / "data", 3) as made:
        with stopped(made.bookies[1]):
            async with client_of(made) as client:
                writer = await client.create_ledger(**TRIPLE)
                await append(writer, ENTRIES)
                last = writer.append_nowait(PAYLOAD)
                healthy = await client.create_ledger(ensemble_size=2, write_quorum=2, ack_quorum=1)
        assert await last == ENTRIES
        async with client_of(made) as client:
            record = await client.ledger_metadata(writer.ledger_id)
            assert record.state is quire.LedgerState.OPEN
            missing, holes = await unrecorded(client, writer.ledger_id, ENTRIES)
            assert (missing, holes > 0) == (0, True)
            reader = await client.open_ledger(writer.ledger_id)
            assert reader.last_add_confirmed == ENTRIES
            assert await unrecorded(client, writer.ledger_id) == (0, holes), "a recovery keeps them"
            assert (await client.ledger_metadata(healthy.ledger_id)).state is quire.LedgerState.OPEN

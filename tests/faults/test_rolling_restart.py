"""No one types a command: bookies are restarted one by one under writers that die, and every copy that is missing comes back.

The second run has a bookie whose disk stays full: what it lacks is copied to others.

Source: docs/autorecovery.md, "What it does"; docs/protocol/repair.md, "A bookie that takes no copies".
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

import quire
from faults.recoverers import Recoverer, members, written
from quire.autorecovery.repair import ClusterRepair, UnderReplication
from quire.core.answers import Answer
from quire.core.ids import BookieId
from quire.core.repair.under_replication import MissingReason
from quire.env.real import RealClock
from quire.log.client import QuireClient
from quire.metadata.repairs import RepairStore
from quire.metadata.sqlite.store import SqliteStore
from support.programs import NEW, BookieProcess
from support.small_disks import small_disk
from support.waiting import until_async

pytestmark = [pytest.mark.faults, pytest.mark.slow, pytest.mark.timeout(3600)]

WRITER = Path(__file__).with_name("rolling_writer.py")
WRITERS = [
    ("log", "orders"),
    ("log", "clicks"),
    ("stream", "by-identifiers", "identifiers"),
    ("stream", "by-fencing", "fencing"),
    ("ledgers",),
]
AWAY_S = 20.0
PAUSED_S = 30.0
"""Longer than a session."""
WHOLE_S = 300.0
DELAY_S = 60
MIB = 1 << 20


@contextlib.asynccontextmanager
async def writers(uri: str) -> AsyncIterator[list[asyncio.subprocess.Process]]:
    """All of them, at work."""
    started: list[asyncio.subprocess.Process] = []
    try:
        for names in WRITERS:
            started.append(await a_writer(uri, *names))
        yield started
    finally:
        for process in started:
            if process.returncode is None:
                process.kill()
                await process.wait()


async def a_writer(uri: str, *names: str) -> asyncio.subprocess.Process:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(WRITER),
        uri,
        *names,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert process.stdout is not None
    assert await process.stdout.readline() == b"begins\n"
    return process


async def fill(client: QuireClient, bookie: BookieProcess) -> None:
    """Write ledgers until the disk of a bookie is full."""
    filler = bytes(200_000)

    async def is_full() -> bool:
        with contextlib.suppress(quire.QuireError):
            async with await client.create_ledger(ensemble_size=4, write_quorum=4, ack_quorum=2) as writer:
                for _ in range(20):
                    await writer.append(filler)
        answer, info = await client.bookies.info(BookieId(bookie.id))
        return answer is Answer.OK and bool(info["storage"]["full"])

    await until_async(is_full, f"{bookie.name} is full", 120)
    await until_async(lambda: _is_read_only(client, bookie), f"{bookie.name} says so", 30)


async def _is_read_only(client: QuireClient, bookie: BookieProcess) -> bool:
    return BookieId(bookie.id) in client.bookies.read_only()


async def roll(uri: str, bookies: list[BookieProcess], processes: list[asyncio.subprocess.Process]) -> None:
    """Restart every bookie, each away for a while; kill a writer while each is, and stop the process of one bookie."""
    for number, bookie in enumerate(bookies):
        await asyncio.to_thread(bookie.kill)
        await asyncio.sleep(AWAY_S / 2)
        processes[number].kill()
        await processes[number].wait()
        await asyncio.sleep(AWAY_S / 2)
        await asyncio.to_thread(bookie.start, NEW)
        processes[number] = await a_writer(uri, *WRITERS[number])
    stopped = bookies[1].process
    assert stopped is not None
    os.kill(stopped.pid, signal.SIGSTOP)
    await asyncio.sleep(PAUSED_S)
    os.kill(stopped.pid, signal.SIGCONT)


def of_decided(found: UnderReplication) -> Counter[str]:
    """How many copies are missing where no living writer is waited for, by reason."""
    missing: Counter[str] = Counter()
    for lacking in found.ledgers.values():
        for kind, count in lacking.entries.items():
            if kind.reason is not MissingReason.OPEN:
                missing[kind.reason.value] += count
        missing["not looked at"] += sum(lacking.unseen.values())
    return +missing


async def rolled(folder: Path, disk: Path | None) -> dict[str, Any]:
    uri = f"sqlite:{folder / 'metadata.db'}"
    async with await SqliteStore.open(folder / "metadata.db", create=True) as store:
        await RepairStore(store, RealClock(), "test").set_lost_delay_s(DELAY_S)
    bookies = [BookieProcess(f"b{number}", folder / f"b{number}", uri) for number in range(5)]
    if disk is not None:
        bookies[4] = BookieProcess("b4", disk, uri)
    for bookie in bookies:
        await asyncio.to_thread(bookie.start, NEW)
    recoverers = [await Recoverer.start(uri, grace_s=60) for _ in range(2)]
    try:
        async with quire.connect(uri) as client:
            made = await written(client, 200)
            for name in ("orders", "clicks"):
                await client.log(name).create(ensemble_size=3, write_quorum=3, ack_quorum=2)
            for name, mode in (("by-identifiers", "identifiers"), ("by-fencing", "fencing")):
                await client.unbounded_ledger(name, mode=mode).create(
                    ensemble_size=3, write_quorum=3, ack_quorum=2
                )
            if disk is not None:
                await fill(client, bookies[4])
            async with writers(uri) as processes:
                await asyncio.sleep(5)
                await roll(uri, bookies, processes)
                began = time.monotonic()
                first = of_decided(await ClusterRepair(client).look())
                looks: list[Counter[str]] = []

                async def whole() -> bool:
                    await asyncio.sleep(1)
                    looks.append(of_decided(await ClusterRepair(client).look()))
                    return not looks[-1]

                await until_async(whole, "every decided fragment is whole", WHOLE_S)
                took = time.monotonic() - began
                assert all(process.returncode is None for process in processes)
                last = await ClusterRepair(client).look()
            figures: dict[str, Any] = {
                "ledgers": last.looked_at,
                "missing_after_the_last_start": dict(first),
                "whole_s": round(took, 1),
                "copied": sum([(await one.figures())["copied"] for one in recoverers]),
            }
            if disk is not None:
                assert await _is_read_only(client, bookies[4])
                records = [await client.ledger_metadata(each) for each in made]
                figures["still_on_the_full_one"] = sum(bookies[4].id in members(record) for record in records)
                assert figures["still_on_the_full_one"] > 0, (
                    "it keeps the fragments of which it lacks nothing"
                )
            return figures
    finally:
        for one in recoverers:
            await one.kill()
        for bookie in bookies:
            bookie.kill()


async def test_after_a_rolling_restart_every_copy_comes_back(
    tmp_path: Path, record: Callable[[str, dict[str, Any]], None]
) -> None:
    record("rolling_restart", await rolled(tmp_path, None))


async def test_after_a_rolling_restart_beside_a_full_bookie_every_copy_comes_back(
    tmp_path: Path, record: Callable[[str, dict[str, Any]], None]
) -> None:
    with small_disk("tmpfs", tmp_path / "disk", 24) as disk:
        record("rolling_restart_beside_a_full_bookie", await rolled(tmp_path, disk))

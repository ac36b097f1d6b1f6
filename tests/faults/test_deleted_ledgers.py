"""Ledgers made, written and deleted in cycles: memory, disk and CPU of the bookies stay as they were after the first ones."""

from __future__ import annotations

import asyncio
import os
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import quire
from faults.restored import Cluster
from quire.core.answers import Answer
from quire.core.ids import BookieId
from support.programs import NEW

pytestmark = [pytest.mark.faults, pytest.mark.timeout(3600)]

AT_ONCE = 64
CYCLES = 10
MIB = 1 << 20
TICKS = os.sysconf("SC_CLK_TCK")
GROWTH_MIB = 32
"""Beside noise of the allocator, a bookie's memory may grow by this from the third cycle to the last."""


def resident(pid: int) -> int:
    """Bytes in memory."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def cpu_seconds(pid: int) -> float:
    """CPU that a process has taken."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def on_disk(directory: Path) -> int:
    """Bytes that a directory's files take."""
    return sum(file.stat().st_blocks * 512 for file in directory.rglob("*") if file.is_file())


async def cycle(client: quire.Client, count: int, *, quorum: int = 3) -> None:
    """Make, write, close and delete so many."""
    left = iter(range(count))

    async def some() -> None:
        for _ in left:
            async with await client.create_ledger(
                ensemble_size=quorum, write_quorum=quorum, ack_quorum=quorum
            ) as ledger:
                await ledger.append(b"x" * 1000)
            await client.delete_ledger(int(ledger.ledger_id))

    await asyncio.gather(*(some() for _ in range(AT_ONCE)))


async def all_collected(cluster: Cluster, tools: quire.Client) -> None:
    """Wait until no bookie and no store has anything left of a deleted ledger but what it always has."""

    async def left() -> int:
        held = 0
        for bookie in cluster.bookies:
            answer, info = await tools.bookies.info(BookieId(bookie.id))
            assert answer is Answer.OK
            held += info["storage"]["ledgers"]
        return held + len(await tools.store.list("tombstones/"))

    async with asyncio.timeout(300):
        while await left():
            await asyncio.sleep(0.1)


async def cycles(directory: Path, count: int) -> dict[str, Any]:
    cluster = Cluster(directory, f"sqlite:{directory / 'metadata.db'}")
    rows: list[dict[str, Any]] = []
    async with cluster.serving() as tools, quire.connect(cluster.uri) as client:
        pids = [bookie.process.pid for bookie in cluster.bookies if bookie.process is not None]
        for _ in range(CYCLES):
            before = [cpu_seconds(pid) for pid in pids]
            await cycle(client, count)
            await all_collected(cluster, tools)
            rows.append(
                {
                    "memory_mib": round(max(resident(pid) for pid in pids) / MIB, 1),
                    "disk_mib": round(sum(on_disk(bookie.directory) for bookie in cluster.bookies) / MIB, 1),
                    "database_mib": round((directory / "metadata.db").stat().st_size / MIB, 1),
                    "cpu_s": round(
                        sum(cpu_seconds(pid) - was for pid, was in zip(pids, before, strict=True)), 2
                    ),
                }
            )
    return {"ledgers": CYCLES * count, "cycles": rows}


@pytest.mark.slow
async def test_deleted_ledgers_cost_nothing_for_ever(
    tmp_path: Path,
    rounds: Callable[[int, int], int],
    record: Callable[[str, dict[str, Any]], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("QUIRE_COLLECT_EVERY", "0.5")
    monkeypatch.setenv("QUIRE_TOMBSTONES_FOR", "1")
    figures = await cycles(tmp_path, rounds(20_000, 150))
    record("deleted_ledgers", figures)
    rows = figures["cycles"]
    assert rows[-1]["memory_mib"] <= rows[2]["memory_mib"] + GROWTH_MIB
    assert rows[-1]["disk_mib"] <= 1.5 * rows[2]["disk_mib"]
    assert rows[-1]["database_mib"] <= 1.5 * rows[2]["database_mib"] + 2
    first, last = (statistics.median(row["cpu_s"] for row in part) for part in (rows[1:5], rows[-4:]))
    print({"cpu_s_of_early_cycles": first, "cpu_s_of_late_cycles": last})


async def soak(directory: Path, seconds: float, chance: random.Random) -> dict[str, Any]:
    """Cycles of ledgers, while one bookie after another is killed and started again."""
    cluster = Cluster(directory, f"sqlite:{directory / 'metadata.db'}")
    rows: list[dict[str, Any]] = []
    kills = ledgers = 0
    async with cluster.serving() as tools, quire.connect(cluster.uri) as client:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            await cycle(client, 3 * AT_ONCE, quorum=2)
            ledgers += 3 * AT_ONCE
            bookie = chance.choice(cluster.bookies)
            going = asyncio.create_task(cycle(client, AT_ONCE, quorum=2))
            await asyncio.to_thread(bookie.kill)
            await asyncio.to_thread(bookie.start, NEW)
            await going
            kills, ledgers = kills + 1, ledgers + AT_ONCE
            await all_collected(cluster, tools)
            pids = [one.process.pid for one in cluster.bookies if one.process is not None]
            rows.append(
                {
                    "memory_mib": round(max(resident(pid) for pid in pids) / MIB, 1),
                    "open_files": max(len(os.listdir(f"/proc/{pid}/fd")) for pid in pids),
                    "files": sum(1 for one in cluster.bookies for _ in one.directory.rglob("*")),
                    "disk_mib": round(sum(on_disk(one.directory) for one in cluster.bookies) / MIB, 1),
                }
            )
    return {"seconds": round(seconds), "kills": kills, "ledgers": ledgers, "rows": rows}


@pytest.mark.slow
@pytest.mark.timeout(7200)
async def test_an_hour_of_cycles_and_kills_leaves_nothing(
    tmp_path: Path,
    rounds: Callable[[int, int], int],
    record: Callable[[str, dict[str, Any]], None],
    monkeypatch: pytest.MonkeyPatch,
    chance: random.Random,
) -> None:
    monkeypatch.setenv("QUIRE_COLLECT_EVERY", "0.5")
    monkeypatch.setenv("QUIRE_TOMBSTONES_FOR", "1")
    figures = await soak(tmp_path, rounds(3600, 20), chance)
    rows = figures.pop("rows")
    part = max(1, len(rows) // 4)
    for name in rows[0]:
        figures[name] = [
            round(statistics.median(row[name] for row in some), 1) for some in (rows[:part], rows[-part:])
        ]
    record("soak_with_kills", figures)
    if len(rows) >= 8:
        assert figures["memory_mib"][1] <= figures["memory_mib"][0] + GROWTH_MIB
        assert figures["open_files"][1] <= figures["open_files"][0] + 16
        assert figures["files"][1] <= figures["files"][0] + 3 * 16
        assert figures["disk_mib"][1] <= 1.5 * figures["disk_mib"][0]

"""Appends, and reads of one ledger, while bookies compact at full pace: beside the same on quiet bookies."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import quire
from faults.restored import Cluster
from quire.core.answers import Answer
from quire.core.ids import BookieId
from quire.wire.native_info import SpaceTask

pytestmark = [pytest.mark.faults, pytest.mark.slow, pytest.mark.timeout(3600)]

SIZE = 1000
PARTS = 8
MIB = 1 << 20


async def appended(
    client: quire.Client, until: Callable[[], bool], *, window: int
) -> tuple[float, list[float]]:
    """Append until then; (entries a second, how long each tenth took, in milliseconds)."""
    took: list[float] = []
    waiting: deque[tuple[float, asyncio.Future[int]]] = deque()
    count, begun, value = 0, time.monotonic(), bytes(SIZE)
    ledger = await client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=3)
    async with ledger:
        while not until():
            waiting.append((time.monotonic(), ledger.append_nowait(value)))
            if len(waiting) >= window:
                sent, one = waiting.popleft()
                await one
                took.append(1000 * (time.monotonic() - sent))
            count += 1
        for _, one in waiting:
            await one
    rate = count / (time.monotonic() - begun)
    await client.delete_ledger(int(ledger.ledger_id))
    return rate, took


def p99(took: list[float]) -> float:
    return statistics.quantiles(took, n=100)[98]


async def sparse(client: quire.Client, mib: int) -> list[int]:
    """Segments of which an eighth lives: ledgers written side by side, and all but one of each eight deleted."""
    kept: list[int] = []
    for _ in range(mib // PARTS):
        ledgers = [
            await client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=3) for _ in range(PARTS)
        ]
        for _ in range(16):
            await asyncio.gather(*(one for ledger in ledgers for one in [ledger.append(bytes(64_000))]))
        for ledger in ledgers:
            await ledger.close()
        await asyncio.gather(*(client.delete_ledger(int(ledger.ledger_id)) for ledger in ledgers[1:]))
        kept.append(int(ledgers[0].ledger_id))
    return kept


async def compacted(cluster: Cluster, tools: quire.Client) -> int:
    """Let every bookie compact now; how many segments that were."""
    done = await asyncio.gather(
        *(
            tools.bookies.space(BookieId(one.id), SpaceTask.COMPACT, timeout_ms=600_000)
            for one in cluster.bookies
        )
    )
    assert all(answer is Answer.OK for answer, _ in done)
    return sum(info["came_back"]["compacted"] for _, info in done)


async def paces(directory: Path, rounds: int, seconds: float, mib: int) -> list[dict[str, Any]]:
    cluster = Cluster(directory, f"sqlite:{directory / 'metadata.db'}")
    rows: list[dict[str, Any]] = []
    async with cluster.serving() as tools, quire.connect(cluster.uri) as client:
        for _ in range(rounds):
            kept = await sparse(client, mib)
            row: dict[str, Any] = {}
            for window in (1000, 1):
                end = time.monotonic() + seconds
                row[f"quiet {window}"] = await appended(
                    client, lambda end=end: time.monotonic() >= end, window=window
                )
                work = asyncio.create_task(compacted(cluster, tools))
                row[f"busy {window}"] = await appended(client, work.done, window=window)
                row[f"segments {window}"] = await work
                await asyncio.gather(*(client.delete_ledger(one) for one in kept))
                kept = await sparse(client, mib)
            for ledger_id in kept:
                async with await client.open_ledger(ledger_id) as reader:
                    assert len([entry async for entry in reader.read(0, 15)]) == 16
            rows.append(
                {
                    "ratio": round(row["busy 1000"][0] / row["quiet 1000"][0], 3),
                    "ratio_one": round(row["busy 1"][0] / row["quiet 1"][0], 3),
                    "p99_quiet_ms": round(p99(row["quiet 1"][1]), 2),
                    "p99_busy_ms": round(p99(row["busy 1"][1]), 2),
                    "segments": row["segments 1000"] + row["segments 1"],
                }
            )
            print(rows[-1], flush=True)
    return rows


async def test_appends_beside_compaction(
    tmp_path: Path, record: Callable[[str, dict[str, Any]], None], rounds: Callable[[int, int], int]
) -> None:
    full = rounds(5, 1) > 1
    rows = await paces(tmp_path, rounds(5, 1), 5.0 if full else 1.0, 256 if full else 64)
    figures = {
        "ratio": statistics.median(row["ratio"] for row in rows),
        "p99_times": round(statistics.median(row["p99_busy_ms"] / row["p99_quiet_ms"] for row in rows), 2),
        "rounds": rows,
    }
    record("appends_beside_compaction", figures)
    assert all(row["segments"] for row in rows), "nothing was compacted"

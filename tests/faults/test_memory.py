"""Memory: an idle cluster, a cluster under load, and a client with one bookie of three stopped."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import quire
from faults.harness import Loader, cluster

pytestmark = [pytest.mark.faults, pytest.mark.timeout(900)]
MIB = 1024 * 1024
INTERPRETER_MIB = 16
"""What the interpreter may take beside the bytes in the window: futures, lists, what the allocator has not given back."""
Record = Callable[[str, dict[str, Any]], None]
Rounds = Callable[[int, int], int]


def resident(pid: int) -> int:
    """The resident memory of a process, in bytes."""
    status = Path(f"/proc/{pid}/status").read_text()
    [line] = [line for line in status.splitlines() if line.startswith("VmRSS:")]
    return int(line.split()[1]) * 1024


def highest(pid: int) -> int:
    """The most resident memory that a process has ever had, in bytes."""
    status = Path(f"/proc/{pid}/status").read_text()
    [line] = [line for line in status.splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) * 1024


def test_an_idle_cluster(tmp_path: Path, record: Record) -> None:
    command = [sys.executable, "-m", "quire", "up", "--dir", str(tmp_path), "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as up:
        assert up.stdout is not None
        try:
            ready = json.loads(up.stdout.readline())
            pids = [up.pid, *(bookie["pid"] for bookie in ready["bookies"])]
            sizes = [resident(pid) for pid in pids]
        finally:
            up.send_signal(signal.SIGINT)
            up.wait(60)
    assert len(ready["bookies"]) == 3
    record("an_idle_cluster", {"mib": [size // MIB for size in sizes], "total_mib": sum(sizes) // MIB})
    assert sum(sizes) < 300 * MIB


async def load(directory: Path, entries: int) -> dict[str, Any]:
    async with cluster(directory, 3) as local, quire.connect(local.uri) as client:
        writer = await client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=2)
        loader = Loader(writer, size=1024)
        loading = asyncio.create_task(loader.run())
        await loader.reaches(entries, timeout=600)
        loader.stop()
        await loading
        assert not loader.failures
        await writer.close()
        peaks = [highest(bookie.pid) for bookie in local.bookies]
    return {"entries_of_1_kib": loader.acknowledged, "bookie_peak_mib": [peak // MIB for peak in peaks]}


async def test_bookies_under_full_load(tmp_path: Path, rounds: Rounds, record: Record) -> None:
    figures = await load(tmp_path, rounds(5_000_000, 200_000))
    record("bookies_under_full_load", figures)
    assert max(figures["bookie_peak_mib"]) < 300


async def one_stopped(directory: Path, seconds: int) -> dict[str, Any]:
    window = 64 * MIB
    async with cluster(directory, 3) as local, quire.connect(local.uri) as client:
        writer = await client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=2)
        loader = Loader(writer, size=1024)
        loading = asyncio.create_task(loader.run())
        await loader.reaches(20_000)
        before, at_start = loader.acknowledged, resident(os.getpid())
        process = local.bookies[0].process
        assert process is not None
        process.send_signal(signal.SIGSTOP)
        most = held = 0
        for _ in range(seconds * 4):
            tick = asyncio.get_running_loop().create_future()
            asyncio.get_running_loop().call_later(0.25, tick.set_result, None)
            await tick
            most = max(most, resident(os.getpid()))
            held = max(held, writer.held_bytes)
            assert not loader.failures, loader.failures
        during = loader.acknowledged - before
        process.send_signal(signal.SIGCONT)
        loader.stop()
        await loading
        await writer.close()
        report = await client.verify_ledger(writer.ledger_id)
        assert not report.below_ack_quorum
        assert not report.different
    return {
        "seconds_stopped": seconds,
        "acknowledged_meanwhile": during,
        "client_grew_mib": round((most - at_start) / MIB, 1),
        "held_at_most_mib": round(held / MIB, 1),
        "window_mib": window // MIB,
    }


@pytest.mark.slow
async def test_one_bookie_stopped(tmp_path: Path, rounds: Rounds, record: Record) -> None:
    figures = await one_stopped(tmp_path, rounds(60, 6))
    record("one_bookie_stopped", figures)
    assert figures["acknowledged_meanwhile"] > 0
    assert figures["held_at_most_mib"] <= figures["window_mib"]
    assert figures["client_grew_mib"] < figures["window_mib"] + INTERPRETER_MIB

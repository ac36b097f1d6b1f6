"""A ledger that guarantees its write quorum, on three bookies that are real processes: one is stopped, or dies for good.

Source: docs/protocol/write-quorum.md, "A lost bookie without a spare".
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import quire
from faults.harness import Loader, cluster
from quire.cli.local.local_cluster import LocalBookie
from quire.client.config import ClientConfig
from quire.client.writing.writer import LedgerWriter
from quire.core.errors import NotEnoughBookiesError
from support.waiting import until_async

pytestmark = [pytest.mark.faults, pytest.mark.slow, pytest.mark.timeout(900)]
Record = Callable[[str, dict[str, Any]], None]
Rounds = Callable[[int, int], int]
MIB = 1 << 20
CONFIG = ClientConfig(window_bytes_max=4 * MIB)
SHAPE: dict[str, Any] = {"ensemble_size": 3, "write_quorum": 3, "ack_quorum": 2, "guarantee": "write_quorum"}


async def appends_wait(writer: LedgerWriter, bookie: LocalBookie) -> None:
    """Callers were told of all that was taken, and the next ones wait for room, which a bookie must make."""

    def waits() -> bool:
        told = writer._machine.window.lap == writer.last_add_confirmed
        return told and bool(writer._window.waiters) and writer.waits_for == (bookie.id,)

    await until_async(waits, "appends to wait, and the writer to name the bookie", seconds=60)


async def one_stopped(directory: Path, seconds: int) -> dict[str, Any]:
    async with cluster(directory, 3) as local, quire.connect(local.uri, config=CONFIG) as client:
        writer = await client.create_ledger(**SHAPE)
        loader = Loader(writer, size=1024)
        loading = asyncio.create_task(loader.run())
        await loader.reaches(2_000)
        process = local.bookies[0].process
        assert process is not None
        process.send_signal(signal.SIGSTOP)
        await appends_wait(writer, local.bookies[0])
        told, most = int(writer.last_add_confirmed), 0
        for _ in range(seconds * 4):
            tick = asyncio.get_running_loop().create_future()
            asyncio.get_running_loop().call_later(0.25, tick.set_result, None)
            await tick
            most = max(most, writer.held_bytes)
        assert writer.last_add_confirmed == told
        assert not loader.failures
        process.send_signal(signal.SIGCONT)
        returned = time.monotonic()
        await until_async(lambda: writer.last_add_confirmed > told, "appends to go on", seconds=60)
        resumed = time.monotonic() - returned
        loader.stop()
        await loading
        await writer.close()
        assert not loader.failures
        assert writer.waits_for == ()
        report = await client.verify_ledger(writer.ledger_id)
        assert report.complete
        assert report.copies == 3 * report.entries
    return {
        "seconds_stopped": seconds,
        "entries": report.entries,
        "held_at_most_kib": most // 1024,
        "window_kib": CONFIG.window_bytes_max // 1024,
        "resumed_after_ms": round(1000 * resumed),
    }


async def test_appends_wait_for_a_bookie_that_is_stopped(
    tmp_path: Path, rounds: Rounds, record: Record
) -> None:
    figures = await one_stopped(tmp_path / "cluster", rounds(60, 2))
    record("guaranteed_with_one_bookie_stopped", figures)
    assert figures["held_at_most_kib"] <= figures["window_kib"]
    assert figures["resumed_after_ms"] < 1000


async def one_dead(directory: Path) -> dict[str, Any]:
    async with cluster(directory, 3) as local, quire.connect(local.uri, config=CONFIG) as client:
        writer, left = await client.create_ledger(**SHAPE), await client.create_ledger(**SHAPE)
        await left.append(b"on all three")
        loader = Loader(writer, size=1024)
        loading = asyncio.create_task(loader.run())
        await loader.reaches(2_000)
        dead = await asyncio.to_thread(local.kill, 0)
        await left.append(b"on two of them")
        await appends_wait(writer, dead)
        told = int(writer.last_add_confirmed) + 1
        await left.abandon()
        with pytest.raises(NotEnoughBookiesError, match="--at ack-quorum") as refused:
            await client.open_ledger(left.ledger_id)
        assert dead.id in refused.value.message
        await client.recover_ledger(left.ledger_id, at="ack_quorum")
        loader.stop()
        holes = await writer.close(at="ack_quorum")
        await loading
        assert {hole.bookie for hole in holes} == {dead.id}
        for ledger, entries in ((writer.ledger_id, told), (left.ledger_id, 2)):
            report = await client.verify_ledger(ledger)
            assert report.entries >= entries
            assert not report.below_ack_quorum
            marks = await client.records.repairs("a test").marks(ledger)
            assert marks is not None
    return {"entries": told, "lacking": sum(hole.last - hole.first + 1 for hole in holes)}


async def test_one_that_is_dead_for_good_is_named_with_the_way_out(tmp_path: Path, record: Record) -> None:
    record("guaranteed_with_one_bookie_dead", await one_dead(tmp_path / "cluster"))

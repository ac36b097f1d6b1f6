"""Bookies killed with SIGKILL under full load: no append fails, and nothing acknowledged is missing afterwards.

Of three bookies the one that was away lacks what was written meanwhile: the repair of the ledger fills that.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import quire
from faults.harness import Loader, cluster, facts, judged, new_history, pause
from quire.cli.local.local_cluster import LocalCluster
from quire_testing.recording import record_open, record_read, record_scan

pytestmark = [pytest.mark.faults, pytest.mark.timeout(3600)]
Record = Callable[[str, dict[str, Any]], None]
Rounds = Callable[[int, int], int]


ROUNDS_A_CLUSTER = 10
"""A full load writes gigabytes: after so many rounds a new cluster begins on an empty disk."""


async def one_bookie_a_round(
    directory: Path, bookies: int, rounds: int, chance: random.Random
) -> dict[str, Any]:
    figures: dict[str, Any] = {"bookies": bookies, "rounds": rounds, "entries": 0, "fragments": 0, "holes": 0}
    if bookies == 3:  # nobody could take the place of the one that was away
        figures |= {"filled": 0, "repair_seconds": 0.0}
    began = time.monotonic()
    for first in range(0, rounds, ROUNDS_A_CLUSTER):
        place = directory / f"from-{first}"
        async with cluster(place, bookies) as local, quire.connect(local.uri) as client:
            for number in range(first, min(first + ROUNDS_A_CLUSTER, rounds)):
                await one_round(local, client, number, chance, figures)
    figures["seconds"] = round(time.monotonic() - began)
    return figures


async def one_round(
    local: LocalCluster, client: Any, number: int, chance: random.Random, figures: dict[str, Any]
) -> None:
    writer = await client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=2)
    history = new_history()
    loader = Loader(writer, history=history)
    loading = asyncio.create_task(loader.run())
    await loader.reaches(1)
    await pause(chance)
    victim = chance.randrange(len(local.bookies))
    await asyncio.to_thread(local.kill, victim)
    at_kill = loader.acknowledged
    await loader.reaches(at_kill + 2000)
    await asyncio.to_thread(local.restart, victim)
    await loader.reaches(loader.acknowledged + 1000)
    loader.stop()
    await loading
    assert not loader.failures, f"round {number}: {loader.failures}"
    assert loader.acknowledged == loader.sent
    closing = history.invoke("writer", "close", ledger=int(writer.ledger_id))
    await writer.close()
    closing.ok(last=int(writer.last_add_confirmed))
    figures["fragments"] += len(writer.metadata.fragments)
    figures["entries"] += loader.acknowledged
    reader = await record_open(history, "reader", client, writer.ledger_id)
    assert await record_read(history, "reader", reader, loader.acknowledged - 1) == loader.acknowledged
    holes = await record_scan(history, client, writer.ledger_id)
    figures["holes"] += holes
    judged(history.events, 1, 2, 3, 4, 5, 8, 9)
    if "filled" in figures:
        began = time.monotonic()
        (done,) = await facts(local, "ledger", "repair", str(writer.ledger_id))
        figures["filled"] += done["entries"]
        figures["repair_seconds"] += round(time.monotonic() - began, 1)
        left = await record_scan(history, client, writer.ledger_id)
        assert (done["entries"], left) == (holes, 0)
    await client.delete_ledger(writer.ledger_id)


@pytest.mark.parametrize("bookies", [4, pytest.param(3, marks=pytest.mark.slow)])
async def test_kill_one_bookie_a_round(
    bookies: int, tmp_path: Path, chance: random.Random, rounds: Rounds, record: Record
) -> None:
    figures = await one_bookie_a_round(tmp_path, bookies, rounds(100, 2), chance)
    record(f"kill_one_bookie_a_round_of_{bookies}", figures)


async def all_at_once(directory: Path, rounds: int, chance: random.Random) -> dict[str, Any]:
    figures: dict[str, Any] = {"rounds": rounds, "acknowledged": 0, "read_back": 0}
    for first in range(0, rounds, ROUNDS_A_CLUSTER):
        async with cluster(directory / f"from-{first}", 3) as local:
            for _ in range(first, min(first + ROUNDS_A_CLUSTER, rounds)):
                await everyone_dies(local, chance, figures)
    return figures


async def everyone_dies(local: LocalCluster, chance: random.Random, figures: dict[str, Any]) -> None:
    history = new_history()
    async with quire.connect(local.uri) as client:
        writer = await client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=2)
        loader = Loader(writer, history=history)
        loading = asyncio.create_task(loader.run())
        await loader.reaches(1)
        await pause(chance)
        for bookie in local.bookies:
            assert bookie.process is not None
            bookie.process.kill()
        for index in range(3):
            await asyncio.to_thread(local.kill, index)
        await writer.abandon()
        await loading
    for index in range(3):
        await asyncio.to_thread(local.restart, index)
    async with quire.connect(local.uri) as client:
        reader = await record_open(history, "reader", client, writer.ledger_id)
        last = reader.last_add_confirmed
        figures["acknowledged"] += loader.acknowledged
        figures["read_back"] += await record_read(history, "reader", reader, last)
        await record_scan(history, client, writer.ledger_id)
        judged(history.events, 1, 2, 3, 4, 5, 8, 9)
        await client.delete_ledger(writer.ledger_id)


async def test_kill_all_bookies_at_once(
    tmp_path: Path, chance: random.Random, rounds: Rounds, record: Record
) -> None:
    record("kill_all_bookies_at_once", await all_at_once(tmp_path, rounds(20, 1), chance))

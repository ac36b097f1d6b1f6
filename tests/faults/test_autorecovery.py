"""A bookie killed for good under a writer, and `quire autorecovery` killed again and again: everything is whole in the end."""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import quire
from faults.harness import cluster, run
from faults.recoverers import written
from quire.cli.local_cluster import LocalCluster
from quire.core.ledger_metadata import LedgerState
from quire.env.real import RealClock
from quire.metadata.repairs import RepairStore
from support.waiting import until_async

Rounds = Callable[[int, int], int]
Record = Callable[[str, dict[str, Any]], None]
WAIT_S = 600.0


async def daemon(local: LocalCluster) -> asyncio.subprocess.Process:
    words = ("-m", "quire", "autorecovery", "--json", "--cluster", local.uri)
    process = await asyncio.create_subprocess_exec(
        sys.executable, *words, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    assert process.stdout is not None
    assert await process.stdout.readline(), "it did not begin"
    return process


async def gone_under_a_writer(
    folder: Path, chance: random.Random, *, ledgers: int, kills: int
) -> dict[str, Any]:
    """Write, lose one of five bookies while a writer goes on, and wait.

    Args:
        folder: of the cluster.
        chance: which bookie it is.
        ledgers: how many.
        kills: so often the daemon is killed, after it has repaired some more, and started again.
    """
    async with cluster(folder, 5) as local, quire.connect(local.uri) as client:
        marks = RepairStore(client.store, RealClock(), "test")
        await marks.set_lost_delay_s(0)
        made = await written(client, ledgers)
        writer = await client.create_ledger()
        process = await daemon(local)
        gone = chance.choice(local.bookies)
        await asyncio.to_thread(local.kill, local.bookies.index(gone))
        began = time.monotonic()
        touched = [
            each for each in made if gone.id in (await client.ledger_metadata(each)).fragments[0].ensemble
        ]

        async def left() -> int:
            await writer.append(b"and on")
            return sum(
                [gone.id in (await client.ledger_metadata(each)).fragments[0].ensemble for each in touched]
            )

        for number in range(kills):
            wanted = len(touched) * (kills - number) // (kills + 1)

            async def some() -> bool:
                return await left() <= wanted  # noqa: B023 - awaited before the next round

            await until_async(some, "more is repaired", WAIT_S)
            process.kill()
            await process.wait()
            process = await daemon(local)

        async def all_done() -> bool:
            return not await left() and not await marks.missing_page() and not await marks.marks_page()

        await until_async(all_done, "every mark is gone", WAIT_S)
        seconds = time.monotonic() - began
        process.terminate()
        assert await process.wait() == 0
        for each in touched:
            assert (await client.verify_ledger(each)).complete
        assert (await client.ledger_metadata(writer.ledger_id)).state is LedgerState.OPEN
        await writer.close()
    return {"ledgers": ledgers, "ledgers_touched": len(touched), "kills": kills, "seconds": round(seconds, 1)}


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_daemon_is_killed_again_and_again(
    tmp_path: Path, chance: random.Random, rounds: Rounds, record: Record
) -> None:
    kills = rounds(200, 5)
    figures = run(gone_under_a_writer(tmp_path / "c", chance, ledgers=20 * kills, kills=kills))
    record("autorecovery_killed_again_and_again", figures)

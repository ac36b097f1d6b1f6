"""A bookie killed for good under a writer, and `quire autorecovery` killed again and again: everything is whole in the end."""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import quire
from faults.harness import cluster
from faults.recoverers import naming, no_marks, written
from quire.core.ledger.metadata import LedgerState
from quire.env.real import RealClock
from quire.metadata.repairs import RepairStore
from support.programs import NEW, BookieProcess
from support.tcp_proxy import tcp_proxy
from support.waiting import until_async
from support.zookeeper_server import zookeeper_or_skip

Rounds = Callable[[int, int], int]
Record = Callable[[str, dict[str, Any]], None]
WAIT_S = 600.0
SLOWLY = ("--rate", "0.1")
"""Ten ledgers a second: some are left when a daemon is killed."""


async def started(uri: str, *options: str) -> asyncio.subprocess.Process:
    words = ("-m", "quire", "autorecovery", "--json", "--cluster", uri, *options)
    return await asyncio.create_subprocess_exec(
        sys.executable, *words, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )


async def killed(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.kill()
    await process.wait()


def is_after(end: float) -> Callable[[], Awaitable[bool]]:
    async def over() -> bool:
        return time.monotonic() >= end

    return over


async def daemon(uri: str, *options: str) -> asyncio.subprocess.Process:
    process = await started(uri, *options)
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
        process = await daemon(local.uri)
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
            process = await daemon(local.uri)

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
async def test_the_daemon_is_killed_again_and_again(
    tmp_path: Path, chance: random.Random, rounds: Rounds, record: Record
) -> None:
    kills = rounds(200, 5)
    figures = await gone_under_a_writer(tmp_path / "c", chance, ledgers=20 * kills, kills=kills)
    record("autorecovery_killed_again_and_again", figures)


async def killed_while_the_store_is_away(
    folder: Path, *, ledgers: int, kills: int, away_s: float
) -> dict[str, Any]:
    """One of five bookies dies; two daemons are killed in turn, and in the middle of that the store is silent for a while.

    Args:
        folder: of the bookies.
        ledgers: how many.
        kills: so often one of the daemons is killed and started again; while the store is away it is killed as well.
        away_s: for so long nothing that bookies and daemons say reaches the store. All sessions end meanwhile.
    """
    server = zookeeper_or_skip()
    host, _, port = server.host.rpartition(":")
    async with tcp_proxy(host, int(port)) as proxy:
        cluster = f"killed{time.time_ns()}?session_timeout_ms=4000"
        uri = f"zk://127.0.0.1:{proxy.port}/{cluster}"
        bookies = [BookieProcess(f"b{number}", folder / f"b{number}", uri) for number in range(5)]
        daemons: list[asyncio.subprocess.Process] = []
        try:
            for bookie in bookies:
                await asyncio.to_thread(bookie.start, NEW)
            async with quire.connect(f"zk://{server.host}/{cluster}") as client:
                marks = RepairStore(client.store, RealClock(), "test")
                await marks.set_lost_delay_s(10)
                made = await written(client, ledgers)
                daemons += [await daemon(uri, *SLOWLY), await daemon(uri, *SLOWLY)]
                gone = bookies[0]
                await asyncio.to_thread(gone.kill)
                touched = await naming(client, made, gone.id)

                async def left() -> int:
                    return len(await naming(client, touched, gone.id))

                for number in range(kills):
                    wanted = len(touched) * (kills - number) // (kills + 1)

                    async def some() -> bool:
                        return await left() <= wanted  # noqa: B023 - awaited before the next round

                    await until_async(some, "more is repaired", WAIT_S)
                    if number == kills // 2:
                        before = await left()
                        proxy.go_silent()
                        await killed(daemons[0])
                        alone = await started(uri, *SLOWLY)
                        end = time.monotonic() + away_s
                        await until_async(is_after(end), "the store is away for so long", WAIT_S)
                        assert await left() >= before - 64, "what was under way, and no more"
                        assert before, "all was repaired before the store was away"
                        proxy.pass_everything()
                        await killed(alone)
                        daemons[0] = await daemon(uri, *SLOWLY)
                    await killed(daemons[number % 2])
                    daemons[number % 2] = await daemon(uri, *SLOWLY)

                async def all_done() -> bool:
                    return not await left() and await no_marks(marks)

                await until_async(all_done, "every mark is gone", WAIT_S)
                for each in touched:
                    assert (await client.verify_ledger(each)).complete
        finally:
            for process in daemons:
                await killed(process)
            for bookie in bookies[1:]:
                if bookie.process is not None:
                    await asyncio.to_thread(bookie.stop)
    return {"ledgers": ledgers, "ledgers_touched": len(touched), "kills": kills, "store_away_s": away_s}


@pytest.mark.slow
@pytest.mark.timeout(3600)
async def test_daemons_are_killed_and_the_store_is_away(
    tmp_path: Path, rounds: Rounds, record: Record
) -> None:
    kills = rounds(20, 4)
    figures = killed_while_the_store_is_away(
        tmp_path, ledgers=100 * kills, kills=kills, away_s=rounds(60, 10)
    )
    record("autorecovery_killed_while_the_store_is_away", await figures)

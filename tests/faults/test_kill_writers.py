"""Writers of a log killed with SIGKILL, and two that fight for one: one order, nothing acknowledged is lost."""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import quire
from faults.harness import STAMP, cluster, pause, run

pytestmark = [pytest.mark.faults, pytest.mark.timeout(3600)]
WORKER = Path(__file__).parent / "log_worker.py"
Record = Callable[[str, dict[str, Any]], None]
Rounds = Callable[[int, int], int]


class Worker:
    """One writer process and what it has said."""

    def __init__(self, process: asyncio.subprocess.Process, writer: int) -> None:
        self.process = process
        self.writer = writer
        self.acknowledged: dict[int, int] = {}
        self.takeovers = 0
        self.first = asyncio.Event()
        self._listening = asyncio.create_task(self._listen())

    @classmethod
    async def start(cls, uri: str, name: str, writer: int, *extra: str) -> Worker:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            str(WORKER),
            uri,
            name,
            str(writer),
            *extra,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=1 << 24,
        )
        return cls(process, writer)

    async def _listen(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            if not line.endswith(b"\n"):
                break
            word, _, rest = line.decode().strip().partition(" ")
            if word == "takeovers":
                self.takeovers = int(rest)
            elif word != "open":
                self.acknowledged[int(word)] = int(rest)
                self.first.set()
        self.first.set()

    async def over(self) -> int:
        """Everything it said has been read and it is gone; its exit code."""
        await self._listening
        return await self.process.wait()


async def read_log(client: Any, name: str) -> list[tuple[int, int, int]]:
    """(offset, writer, number) of every record, in order."""
    found = []
    async for record in client.log(name).read():
        writer, number = STAMP.unpack_from(record.value)
        found.append((record.offset, writer, number))
    return found


def judge(found: list[tuple[int, int, int]], workers: list[Worker]) -> None:
    """Dense offsets, each acknowledged append once at its offset, each writer's appends in its order."""
    assert [offset for offset, _, _ in found] == list(range(len(found)))
    at = {(writer, number): offset for offset, writer, number in found}
    assert len(at) == len(found), "an append is in the log twice"
    for worker in workers:
        for number, offset in worker.acknowledged.items():
            assert at.get((worker.writer, number)) == offset, (worker.writer, number, offset)
        mine = [number for _, writer, number in found if writer == worker.writer]
        assert mine == sorted(mine)


async def killed_again_and_again(directory: Path, rounds: int, chance: random.Random) -> dict[str, Any]:
    workers = []
    async with cluster(directory, 3) as local, quire.connect(local.uri) as client:
        await client.log("orders").create()
        for number in range(rounds):
            worker = await Worker.start(local.uri, "orders", number)
            await asyncio.wait_for(worker.first.wait(), 60)
            await pause(chance, high_ms=300)
            worker.process.kill()
            await worker.over()
            assert worker.acknowledged
            workers.append(worker)
        async with await client.log("orders").open_writer():
            judge(await read_log(client, "orders"), workers)
    return {"rounds": rounds, "acknowledged": sum(len(worker.acknowledged) for worker in workers)}


def test_kill_the_writer(tmp_path: Path, chance: random.Random, rounds: Rounds, record: Record) -> None:
    record("kill_the_writer", run(killed_again_and_again(tmp_path, rounds(100, 5), chance)))


async def fight(directory: Path, seconds: int) -> dict[str, Any]:
    async with cluster(directory, 3) as local, quire.connect(local.uri) as client:
        await client.log("orders").create()
        workers = [await Worker.start(local.uri, "orders", number, "duel") for number in range(2)]
        over = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_later(seconds, over.set_result, None)
        await over
        for worker in workers:
            assert worker.process.stdin is not None
            with contextlib.suppress(ConnectionError):
                worker.process.stdin.close()
        for worker in workers:
            assert await worker.over() == 0
        found = await read_log(client, "orders")
        judge(found, workers)
        return {
            "seconds": seconds,
            "records": len(found),
            "acknowledged": [len(worker.acknowledged) for worker in workers],
            "takeovers": [worker.takeovers for worker in workers],
        }


def test_duel(tmp_path: Path, rounds: Rounds, record: Record) -> None:
    figures = run(fight(tmp_path, rounds(60, 8)))
    assert all(figures["takeovers"]), figures
    record("duel", figures)

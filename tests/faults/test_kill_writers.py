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
from faults.harness import cluster, judged, pause
from quire_testing.history import HistoryFile, Verdict, merged
from quire_testing.recording import history_into, record_log_read

pytestmark = [pytest.mark.faults, pytest.mark.timeout(3600)]
WORKER = Path(__file__).parent / "log_worker.py"
Record = Callable[[str, dict[str, Any]], None]
Rounds = Callable[[int, int], int]


class Worker:
    """One writer process, what it has said, and the history that it leaves."""

    def __init__(self, process: asyncio.subprocess.Process, history: Path) -> None:
        self.process = process
        self.history = history
        self.acknowledged = 0
        self.takeovers = 0
        self.first = asyncio.Event()
        self._listening = asyncio.create_task(self._listen())

    @classmethod
    async def start(cls, uri: str, name: str, writer: int, directory: Path, *extra: str) -> Worker:
        history = directory / f"writer-{writer}.jsonl"
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            str(WORKER),
            uri,
            name,
            str(writer),
            str(history),
            *extra,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=1 << 24,
        )
        return cls(process, history)

    async def _listen(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            if not line.endswith(b"\n"):
                break
            word, _, rest = line.decode().strip().partition(" ")
            if word == "takeovers":
                self.takeovers = int(rest)
            else:
                self.acknowledged = int(word)
                self.first.set()
        self.first.set()

    async def over(self) -> int:
        """Everything it said has been read and it is gone; its exit code."""
        await self._listening
        return await self.process.wait()


async def read_log(client: Any, name: str, directory: Path) -> Path:
    """Read the whole log; the history of it."""
    path = directory / "reader.jsonl"
    with path.open("wb", buffering=0) as file:
        await record_log_read(history_into(file), "reader", client.log(name))
    return path


def judge_together(workers: list[Worker], reader: Path) -> Verdict:
    """Dense offsets, each acknowledged append once at its offset and in order, nothing that nobody appended, by one judge."""
    with contextlib.ExitStack() as opened:
        files = [
            HistoryFile(opened.enter_context(path.open("rb")), path.name)
            for path in (*(worker.history for worker in workers), reader)
        ]
        return judged(merged(files), 10)


async def killed_again_and_again(directory: Path, rounds: int, chance: random.Random) -> dict[str, Any]:
    workers = []
    async with cluster(directory, 3) as local, quire.connect(local.uri) as client:
        await client.log("orders").create()
        for number in range(rounds):
            worker = await Worker.start(local.uri, "orders", number, directory)
            await asyncio.wait_for(worker.first.wait(), 60)
            await pause(chance, high_ms=300)
            worker.process.kill()
            await worker.over()
            assert worker.acknowledged
            workers.append(worker)
        async with await client.log("orders").open_writer():
            verdict = judge_together(workers, await read_log(client, "orders", directory))
        assert verdict.kinds["log_append"]["open"] > 0, "no writer was killed with an append under way"
    return {"rounds": rounds, "acknowledged": sum(worker.acknowledged for worker in workers)}


async def test_kill_the_writer(tmp_path: Path, chance: random.Random, rounds: Rounds, record: Record) -> None:
    record("kill_the_writer", await killed_again_and_again(tmp_path, rounds(100, 3), chance))


async def fight(directory: Path, seconds: int) -> dict[str, Any]:
    async with cluster(directory, 3) as local, quire.connect(local.uri) as client:
        await client.log("orders").create()
        workers = [await Worker.start(local.uri, "orders", number, directory, "duel") for number in range(2)]
        over = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_later(seconds, over.set_result, None)
        await over
        for worker in workers:
            assert worker.process.stdin is not None
            with contextlib.suppress(ConnectionError):
                worker.process.stdin.close()
        for worker in workers:
            assert await worker.over() == 0
        judge_together(workers, await read_log(client, "orders", directory))
        return {
            "seconds": seconds,
            "acknowledged": [worker.acknowledged for worker in workers],
            "takeovers": [worker.takeovers for worker in workers],
        }


async def test_duel(tmp_path: Path, rounds: Rounds, record: Record) -> None:
    figures = await fight(tmp_path, rounds(60, 8))
    assert all(figures["takeovers"]), figures
    record("duel", figures)

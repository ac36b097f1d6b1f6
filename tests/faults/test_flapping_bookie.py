"""A bookie that is stopped one second of three, under writers with and without the guarantee of the write quorum.

Source: docs/protocol/write-quorum.md.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import quire
from faults.harness import cluster
from quire.cli.local.local_cluster import LocalBookie
from quire.core.errors import QuireError
from support.waiting import until_async

pytestmark = [pytest.mark.faults, pytest.mark.slow, pytest.mark.timeout(3600)]
Record = Callable[[str, dict[str, Any]], None]
Rounds = Callable[[int, int], int]
WORKER = Path(__file__).parent / "flapping_worker.py"
STOPPED_S, RUNNING_S = 1.0, 2.0


async def flap(
    bookie: LocalBookie, counted: Counter[str], meanwhile: list[Callable[[], Awaitable[None]]]
) -> None:
    """Stop it and let it go on, until cancelled; it runs at the end. What is to be done is done at the end of a stop."""
    assert bookie.process is not None
    try:
        while True:
            bookie.process.send_signal(signal.SIGSTOP)
            counted["stops"] += 1
            await asyncio.sleep(STOPPED_S)
            while meanwhile:
                await meanwhile[-1]()
                meanwhile.pop()
            bookie.process.send_signal(signal.SIGCONT)
            await asyncio.sleep(RUNNING_S)
    finally:
        bookie.process.send_signal(signal.SIGCONT)


class Writers:
    """One process of writers, and what it has said of its ledgers."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.acknowledged: dict[int, int] = {}
        self.closed: set[int] = set()
        self._listening = asyncio.create_task(self._listen())

    @classmethod
    async def start(cls, uri: str, ledgers: int, guarantee: str) -> Writers:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            str(WORKER),
            uri,
            str(ledgers),
            guarantee,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        return cls(process)

    async def _listen(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            if not line.endswith(b"\n"):
                break  # killed in the middle of it
            said = json.loads(line)
            self.acknowledged[said["ledger"]] = said["acknowledged"]
            if said.get("closed"):
                self.closed.add(said["ledger"])

    async def close(self) -> None:
        """Have it close its ledgers; all of them were."""
        assert self.process.stdin is not None
        self.process.stdin.write(b"close\n")
        await self.process.stdin.drain()
        await self._listening
        assert await self.process.wait() == 0
        assert self.closed == {*self.acknowledged}

    async def kill(self) -> None:
        """With SIGKILL."""
        self.process.kill()
        await self._listening
        await self.process.wait()


async def recovered(client: Any, ledger: int) -> int:
    """Recover a ledger whose writer was killed, again as long as it cannot be; how often it took."""
    for attempt in range(1, 101):
        try:
            await client.recover_ledger(ledger)
        except QuireError as error:
            if not error.retriable:
                raise
            await asyncio.sleep(0.2)
        else:
            return attempt
    pytest.fail(f"ledger {ledger} could not be recovered")


async def scanned(client: Any, acknowledged: dict[int, int]) -> dict[str, Any]:
    """Read every copy of every entry, bookie by bookie."""
    lacking: Counter[str] = Counter()
    entries = whole = 0
    for ledger, told in sorted(acknowledged.items()):
        report = await client.verify_ledger(ledger)
        assert report.closed
        assert report.entries >= told, f"ledger {ledger}: {told} were acknowledged"
        assert report.good, report
        entries += report.entries
        whole += report.complete
        for hole in report.holes:
            lacking[hole.bookie] += hole.last - hole.first + 1
    return {
        "ledgers": len(acknowledged),
        "on_all_of_the_write_quorum": whole,
        "entries": entries,
        "copies_missing": lacking.total(),
        "bookies_that_lack_some": len(lacking),
    }


async def beside_one_that_flaps(directory: Path, ledgers: int, seconds: int) -> dict[str, Any]:
    async with cluster(directory, 5) as local, quire.connect(local.uri) as client:
        flapping: Counter[str] = Counter()
        killing: list[Callable[[], Awaitable[None]]] = []
        task = asyncio.create_task(flap(local.bookies[0], flapping, killing))
        kinds = {"with": "write_quorum", "without": "none"}
        closing = {kind: await Writers.start(local.uri, ledgers // 2, word) for kind, word in kinds.items()}
        killed = {kind: await Writers.start(local.uri, ledgers // 2, word) for kind, word in kinds.items()}
        everyone = [*closing.values(), *killed.values()]
        await until_async(
            lambda: all(len(writers.acknowledged) == ledgers // 2 for writers in everyone),
            "every ledger to be written to",
            seconds=120,
        )
        await asyncio.sleep(seconds)
        killing += [writers.kill for writers in killed.values()]
        await until_async(lambda: not killing, "the writers to be killed", seconds=60)
        await asyncio.gather(*(writers.close() for writers in closing.values()))
        left = [ledger for writers in killed.values() for ledger in writers.acknowledged]
        attempts = await asyncio.gather(*(recovered(client, ledger) for ledger in left))
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        found = {
            f"{kind} the guarantee": await scanned(
                client, closing[kind].acknowledged | killed[kind].acknowledged
            )
            for kind in kinds
        }
    return {
        **found,
        "seconds": seconds,
        "stops": flapping["stops"],
        "recovered": len(left),
        "recovery_attempts": sum(attempts),
    }


async def test_every_entry_is_on_its_whole_write_quorum(
    tmp_path: Path, rounds: Rounds, record: Record
) -> None:
    ledgers = rounds(100, 12)
    figures = await beside_one_that_flaps(tmp_path / "cluster", ledgers, 60 if ledgers == 100 else 4)
    record("guaranteed_beside_a_flapping_bookie", figures)
    kept, other = figures["with the guarantee"], figures["without the guarantee"]
    assert kept["ledgers"] == other["ledgers"] == ledgers
    assert kept["copies_missing"] == 0
    assert other["copies_missing"] > 0, "what the option changes"
    assert kept["on_all_of_the_write_quorum"] == ledgers

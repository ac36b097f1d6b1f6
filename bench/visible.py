"""How soon an acknowledged entry is visible, and what telling costs: no claim against a peer, Java's default is never.

First a writer in a process of its own appends one entry at a time, and behind each of them nothing follows: how long
after the acknowledgement does a reader that opens the ledger anew see it? Then the LACs of many ledgers are told in turn,
as when each has an add now and then, without the adds: what does that cost all processes?
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import quire
from harness import say
from peers import QuireCluster
from quire.client.config import ClientConfig
from quire.client.sending.lac_sending import LacFrames
from quire.client.writing.writer import LedgerWriter
from quire.core.ids import BookieId, EntryId

PASSWORD = b"bench"
IN_FLIGHT = 64
SETTLE_SECONDS = 0.3
"""After this the frames of the last adds have left and were taken."""
RATE = 10_000
PAUSE_MS = 25
"""Between two frames to a bookie."""


async def write(uri: str, count: int) -> None:
    """The writer's process: an entry for each line on standard input; says its id and when it was acknowledged."""
    async with quire.connect(uri) as client:
        ledger = await client.create_ledger(password=PASSWORD)
        _answer({"ledger": ledger.ledger_id})
        for _ in range(count):
            await asyncio.to_thread(sys.stdin.readline)
            entry_id = await ledger.append(b"x" * 100)
            _answer({"entry": entry_id, "at_ns": time.monotonic_ns()})
        await ledger.close()


def _answer(what: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


async def how_soon(uri: str, count: int) -> list[float]:
    """Milliseconds from each acknowledgement to the moment when a new reader sees the entry."""
    command = (sys.executable, __file__, "--write", uri, "--appends", str(count))
    pipe = asyncio.subprocess.PIPE
    writer = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
    assert writer.stdin is not None
    assert writer.stdout is not None
    ledger_id = json.loads(await writer.stdout.readline())["ledger"]
    took: list[float] = []
    async with quire.connect(uri) as client:
        for _ in range(count):
            writer.stdin.write(b"\n")
            told = json.loads(await writer.stdout.readline())
            while (await client.open_ledger(ledger_id, PASSWORD, recover=False)).last_add_confirmed < told[
                "entry"
            ]:
                await asyncio.sleep(0.001)
            took.append((time.monotonic_ns() - told["at_ns"]) / 1e6)
    await writer.wait()
    return took


def scheduled(pids: Sequence[int]) -> float:
    """CPU seconds of processes, from the scheduler's account in nanoseconds."""
    tasks = (task for pid in pids for task in Path(f"/proc/{pid}/task").iterdir())
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


async def _in_parallel(work: list[Any]) -> None:
    waiting = iter(work)

    async def worker() -> None:
        for one in waiting:
            await one()

    await asyncio.gather(*(worker() for _ in range(IN_FLIGHT)))


class Rising:
    """A ledger whose LAC has risen each time that it is looked at, as if there had been another add."""

    def __init__(self, ledger: LedgerWriter) -> None:
        self.access = ledger.access
        self.lac_waits = False
        self._lac = ledger.last_add_confirmed
        self._bookies = ledger.metadata.last_fragment.ensemble

    def pending_explicit_lac(self, takes: Callable[[BookieId], bool]) -> tuple[int, tuple[BookieId, ...]]:  # noqa: ARG002 - as a writer
        """As a writer says it."""
        self._lac = EntryId(self._lac + 1)
        return self._lac, self._bookies


async def what_it_costs(uri: str, pids: list[int], ledgers: int, rounds: int) -> list[float]:
    """CPU microseconds for each LAC that is told, over all processes, at `RATE` ledgers a second, all in turn."""
    used = []
    async with quire.connect(uri) as client:
        writers: list[LedgerWriter] = []

        async def make() -> None:
            writers.append(await client.create_ledger(password=PASSWORD))
            await writers[-1].append(b"x" * 100)

        await _in_parallel([make] * ledgers)
        say(f"  {len(writers):,} ledgers are open")
        await asyncio.sleep(SETTLE_SECONDS)
        gc.freeze()
        rising = [Rising(ledger) for ledger in writers]
        frames = LacFrames(client.bookies, ClientConfig(lac_after_ms=1))
        batch = RATE * PAUSE_MS // 1000
        everybody = (os.getpid(), *pids)
        for _ in range(rounds):
            before = scheduled(everybody)
            for start in range(0, ledgers, batch):
                for one in rising[start : start + batch]:
                    frames.confirmed(one)
                    frames.carried(one)
                    frames.confirmed(one)
                await asyncio.sleep(PAUSE_MS / 1000)
            used.append((scheduled(everybody) - before) / ledgers * 1e6)
        await _in_parallel([ledger.close for ledger in writers])
    return sorted(used)


async def measure(uri: str, pids: list[int], given: argparse.Namespace) -> None:
    """Both parts."""
    if given.appends:
        took = sorted(await how_soon(uri, given.appends))
        p50, p99 = took[len(took) // 2], took[int(len(took) * 0.99)]
        say(f"visible after an acknowledgement, ms: p50 {p50:.1f}, p99 {p99:.1f}, most {took[-1]:.1f}")
    if given.rounds:
        costs = await what_it_costs(uri, pids, given.ledgers, given.rounds)
        say(
            f"CPU us of all processes for each LAC told, {given.ledgers:,} ledgers in turn: "
            f"least {costs[0]:.2f}, median {statistics.median(costs):.2f}"
        )


def main() -> None:
    """Parse the options and run."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument(
        "--appends", type=int, default=1000, help="entries to look for (default %(default)s)"
    )
    options.add_argument("--ledgers", type=int, default=10_000, help="idle ledgers (default %(default)s)")
    options.add_argument("--rounds", type=int, default=20, help="each ledger once (default %(default)s)")
    options.add_argument("--write", metavar="CLUSTER", help="be the writer's process")
    given = options.parse_args()
    if given.write:
        asyncio.run(write(given.write, given.appends))
        return
    with QuireCluster("quire-visible") as cluster:
        asyncio.run(measure(cluster.uri, cluster.pids, given))


if __name__ == "__main__":
    main()

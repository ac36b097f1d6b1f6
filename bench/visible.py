"""How soon an acknowledged entry is visible, and what telling costs: no claim against a peer, Java's default is never.

First a writer in a process of its own appends one entry at a time, and behind each of them nothing follows: how long
after the acknowledgement does a reader that opens the ledger anew see it? Then adds go in turn to many idle ledgers,
by a client that tells its LACs and by one that does not: the difference in CPU is what the frames cost an add.
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
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import quire
from harness import say
from peers import QuireCluster
from quire.client.config import ClientConfig

PASSWORD = b"bench"
NEVER_MS = 3_600_000
IN_FLIGHT = 64
SETTLE_SECONDS = 0.3
"""After this the frames of the last adds have left and were taken."""


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


async def what_it_costs(uri: str, pids: list[int], ledgers: int, pairs: int) -> dict[str, Any]:
    """CPU microseconds an add over all processes, with the LACs told and not, by turns."""
    configs = {
        name: ClientConfig(lac_after_ms=after_ms, explicit_lac_after_ms=NEVER_MS)
        for name, after_ms in (("told", ClientConfig().lac_after_ms), ("not told", NEVER_MS))
    }
    used: dict[str, list[float]] = {name: [] for name in configs}
    async with (
        quire.connect(uri, config=configs["told"]) as one,
        quire.connect(uri, config=configs["not told"]) as other,
    ):
        writers: dict[str, list[Any]] = {}
        for name, client in (("told", one), ("not told", other)):
            kept = writers[name] = []

            async def make(client: Any = client, kept: list[Any] = kept) -> None:
                kept.append(await client.create_ledger(password=PASSWORD))
                await kept[-1].append(b"x" * 100)

            await _in_parallel([make] * ledgers)
            say(f"  {len(kept):,} ledgers are open")
        gc.freeze()
        everybody = (os.getpid(), *pids)
        for _ in range(pairs):
            for name, kept in writers.items():
                before = scheduled(everybody)
                await _in_parallel([lambda ledger=ledger: ledger.append(b"x" * 100) for ledger in kept])
                await asyncio.sleep(SETTLE_SECONDS)
                used[name].append((scheduled(everybody) - before) / ledgers * 1e6)
        for kept in writers.values():
            await _in_parallel([ledger.close for ledger in kept])
    differences = [told - not_told for told, not_told in zip(used["told"], used["not told"], strict=True)]
    medians = {name: round(statistics.median(found), 2) for name, found in used.items()}
    return medians | {
        "frames": round(statistics.median(differences), 2),
        "quartiles": [round(one, 2) for one in statistics.quantiles(differences, n=4)],
    }


async def measure(uri: str, pids: list[int], given: argparse.Namespace) -> None:
    """Both parts."""
    if given.appends:
        took = sorted(await how_soon(uri, given.appends))
        p50, p99 = took[len(took) // 2], took[int(len(took) * 0.99)]
        say(f"visible after an acknowledgement, ms: p50 {p50:.1f}, p99 {p99:.1f}, most {took[-1]:.1f}")
    if given.pairs:
        costs = await what_it_costs(uri, pids, given.ledgers, given.pairs)
        say(f"CPU us an add, adds in turn to {given.ledgers:,} ledgers: {costs}")


def main() -> None:
    """Parse the options and run."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument(
        "--appends", type=int, default=1000, help="entries to look for (default %(default)s)"
    )
    options.add_argument("--ledgers", type=int, default=10_000, help="idle ledgers (default %(default)s)")
    options.add_argument("--pairs", type=int, default=20, help="rounds of each (default %(default)s)")
    options.add_argument("--write", metavar="CLUSTER", help="be the writer's process")
    given = options.parse_args()
    if given.write:
        asyncio.run(write(given.write, given.appends))
        return
    with QuireCluster("quire-visible") as cluster:
        asyncio.run(measure(cluster.uri, cluster.pids, given))


if __name__ == "__main__":
    main()

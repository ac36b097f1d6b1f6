"""Streams beside ordinary ledgers: how long a take-over takes, and what the terms cost. No claim against a peer.

A take-over is timed from the old writer's last acknowledgement to the new writer's first one, a recovery of a ledger with
the same unconfirmed tail from the last acknowledgement to the reader that has the end. Then CPU of all processes for each
entry: appended, and read from the beginning. Streams and ledgers in turn, in pairs; the ratio is the median of the pairs'.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import statistics
import time
from collections.abc import Awaitable, Callable
from typing import Any

import quire
from accounting import load_average
from harness import keep, say
from peers import QuireCluster
from quire.client.access import LedgerAccess
from quire.core.answers import Answer
from revisions import interval
from visible import scheduled

SIZE = 1024
WINDOW = 500
TAKE_OVER = "last acknowledgement of the old writer to first of the new one"
Timed = Callable[[int], Awaitable[float]]


async def tail_of(writer: Any, tail: int) -> float:
    """Append a tail of which no later entry says that it is confirmed; the moment of the last acknowledgement."""
    await writer.append(b"confirmed")
    await asyncio.gather(*(writer.append(bytes(SIZE)) for _ in range(tail)))
    return time.monotonic()


class Sides:
    """A stream and ledgers of one cluster, as two clients have them.

    Args:
        clients: two of them.
        mode: the stream's.
    """

    def __init__(self, *clients: Any, mode: str) -> None:
        self.clients = clients
        self.streams = [client.unbounded_ledger("bench", mode=mode) for client in clients]

    async def take_over(self, tail: int) -> float:
        """Milliseconds until the other client's first acknowledgement."""
        writer = await self.streams[0].open_writer()
        last = await tail_of(writer, tail)
        await writer.abandon()
        other = await self.streams[1].open_writer()
        await other.append(b"first")
        took = time.monotonic() - last
        await other.release()
        return took * 1e3

    async def recovery(self, tail: int) -> float:
        """Milliseconds until the other client knows the end of a ledger."""
        writer = await self.clients[0].create_ledger()
        last = await tail_of(writer, tail)
        await writer.abandon()
        reader = await self.clients[1].open_ledger(writer.ledger_id)
        took = time.monotonic() - last
        assert reader.last_add_confirmed == tail
        return took * 1e3

    async def new_stream(self) -> tuple[Any, Any]:
        """A new stream, and its writer."""
        await self.streams[0].close()
        await self.streams[0].delete()
        await self.streams[0].create()
        return self.streams[0], await self.streams[0].open_writer()

    async def in_stream(self, count: int) -> tuple[float, float]:
        """CPU microseconds of this process for each entry of a stream: appended, read."""
        stream, writer = await self.new_stream()
        return await self._costs(writer, stream.open_reader, count, writer.last_add_confirmed + 1)

    async def in_ledger(self, count: int) -> tuple[float, float]:
        """The same of a ledger."""
        writer = await self.clients[0].create_ledger()
        return await self._costs(
            writer, lambda: self.clients[0].open_ledger(writer.ledger_id, recover=False), count
        )

    async def _costs(
        self, writer: Any, opened: Callable[[], Awaitable[Any]], count: int, first: int = 0
    ) -> tuple[float, float]:
        before = scheduled(PROCESSES)
        for _ in range(count // WINDOW):
            for _ in range(WINDOW):
                writer.append_nowait(bytes(SIZE))
            await writer.drain()
        appended = scheduled(PROCESSES) - before
        while (reader := await opened()).last_add_confirmed < first + count - 1:
            await asyncio.sleep(0.01)
        before, found = scheduled(PROCESSES), 0
        async for entries in reader.read_runs(first):
            found += len(entries)
        assert found == count
        took = scheduled(PROCESSES) - before
        await writer.abandon()
        return appended / count * 1e6, took / count * 1e6


async def truncations(client: Any, rounds: int) -> list[float]:
    """CPU milliseconds of a bookie that truncates 1,000 entries of an earlier term, each of which came alone."""
    took: list[float] = []
    for _ in range(rounds):
        stream = client.unbounded_ledger("dirty", mode="fencing")
        await stream.create()
        async with await stream.open_writer() as writer:
            for _ in range(1000):
                await writer.append(bytes(SIZE))
        record = await stream.show()
        access = LedgerAccess.of(record, record.term + 1)
        for bookie in record.last_fragment.ensemble:
            before = scheduled(PROCESSES[1:])
            assert await client.bookies.truncate(bookie, access, 1) is Answer.OK
            took.append((scheduled(PROCESSES[1:]) - before) * 1e3)
        await stream.delete(fence=False)
    return took


PROCESSES: list[int] = [os.getpid()]


def told(what: str, ours: list[float], theirs: list[float], unit: str, bar: float) -> dict[str, Any]:
    """Both medians, the ratio and its interval: said in one line, and as a row."""
    ratios = [mine / other for mine, other in zip(ours, theirs, strict=True)]
    ratio, (low, high) = round(statistics.median(ratios), 3), (round(each, 3) for each in interval(ratios))
    stream, ledger = (round(statistics.median(side), 2) for side in (ours, theirs))
    say(
        f"{what}: stream {stream} {unit}, ledger {ledger} {unit}, ratio {ratio} ({low} to {high}, {len(ratios)} pairs; bar {bar})"
    )
    return {
        "what": what,
        "unit": unit,
        "stream": stream,
        "ledger": ledger,
        "ratio": ratio,
        "interval": [low, high],
        "bar": bar,
        "pairs": len(ratios),
        "load": load_average(),
    }


async def measure(uri: str, given: argparse.Namespace) -> list[dict[str, Any]]:
    """All parts, a row each."""
    say(f"mode {given.mode}")
    rows: list[dict[str, Any]] = []
    async with quire.connect(uri) as one, quire.connect(uri) as two:
        sides = Sides(one, two, mode=given.mode)
        await sides.streams[0].create()
        for tail in (1, 1000):
            await sides.take_over(tail)
            await sides.recovery(tail)
            ours, theirs = [], []
            for _ in range(given.pairs):
                ours.append(await sides.take_over(tail))
                theirs.append(await sides.recovery(tail))
            rows.append(told(f"{TAKE_OVER}, {tail:,} unconfirmed", ours, theirs, "ms", 3))
        if given.mode == "fencing":
            took = await truncations(one, 5)
            middle, most = round(statistics.median(took), 2), round(max(took), 2)
            what = "truncation of 1,000 entries, CPU of a bookie"
            say(f"{what}: median {middle} ms, highest {most} ms (bar 5)")
            rows.append({"what": what, "unit": "ms", "stream": middle, "highest": most, "bar": 5})
        await sides.in_stream(given.entries)
        await sides.in_ledger(given.entries)
        gc.freeze()
        stream, ledger = [], []
        for number in range(given.pairs):
            for of_stream in (True, False) if number % 2 else (False, True):
                if of_stream:
                    stream.append(await sides.in_stream(given.entries))
                else:
                    ledger.append(await sides.in_ledger(given.entries))
        for part, what in enumerate(("CPU of an append of 1 KB", "CPU of a catch-up read of 1 KB")):
            ours, theirs = [each[part] for each in stream], [each[part] for each in ledger]
            rows.append(told(what, ours, theirs, "us", 1.05))
    return rows


def main() -> None:
    """Parse the options and run."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--pairs", type=int, default=30, help="of each part (default %(default)s)")
    options.add_argument("--entries", type=int, default=10_000, help="of each ledger (default %(default)s)")
    options.add_argument(
        "--mode", choices=("identifiers", "fencing"), default="identifiers", help="the stream's"
    )
    options.add_argument("--save", action="store_true", help="keep the results in docs/proof")
    given = options.parse_args()
    with QuireCluster("quire-streams") as cluster:
        PROCESSES.extend(cluster.pids)
        rows = asyncio.run(measure(cluster.uri, given))
    if given.save:
        figures = {row["what"]: row.get("ratio", row["stream"]) for row in rows}
        command = f"streams.py --mode {given.mode} --pairs {given.pairs} --entries {given.entries} --save"
        keep(f"streams_beside_ledgers_{given.mode}", figures, rows, command)


if __name__ == "__main__":
    main()

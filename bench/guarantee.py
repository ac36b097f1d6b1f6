"""What a guaranteed write quorum costs: ledgers with the guarantee beside ordinary ones. No claim against a peer.

In pairs, the two in turn: CPU of all processes for each entry appended, one append at a time, a close right behind 100
appends, a recovery with 1,000 unconfirmed entries; the ratio is the median of the pairs'. Then, with one of four bookies
whose responses take 50 ms longer, how fast appends go and how many bytes the writer holds.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, Final

import quire
from harness import say
from peers import ROOT, QuireCluster
from revisions import interval
from streams import tail_of
from visible import scheduled

SIZE: Final = 1024
WINDOW: Final = 500
SLOW_S: Final = 0.05
SINGLE: Final = 50
KINDS: Final = ("write_quorum", None)
PROCESSES: list[int] = [os.getpid()]
Measured = Callable[[str | None], Awaitable[float]]


class Costs:
    """What ledgers of two clients cost; each method makes one with or without the guarantee, and measures it once."""

    def __init__(self, one: Any, two: Any, entries: int) -> None:
        self._one, self._two, self._entries = one, two, entries

    async def cpu(self, guarantee: str | None) -> float:
        """CPU microseconds of an entry."""
        writer = await self._one.create_ledger(guarantee=guarantee)
        before = scheduled(PROCESSES)
        for _ in range(self._entries // WINDOW):
            for _ in range(WINDOW):
                writer.append_nowait(bytes(SIZE))
            await writer.drain()
        took = scheduled(PROCESSES) - before
        await writer.close()
        return took / self._entries * 1e6

    async def single(self, guarantee: str | None) -> float:
        """Milliseconds of an append, the median of some."""
        writer = await self._one.create_ledger(guarantee=guarantee)
        times = []
        for _ in range(SINGLE):
            began = time.perf_counter()
            await writer.append(bytes(SIZE))
            times.append(time.perf_counter() - began)
        await writer.close()
        return statistics.median(times) * 1e3

    async def close(self, guarantee: str | None) -> float:
        """Milliseconds of a close right behind appends."""
        writer = await self._one.create_ledger(guarantee=guarantee)
        for _ in range(100):
            writer.append_nowait(bytes(SIZE))
        await writer.drain()
        began = time.perf_counter()
        await writer.close()
        return (time.perf_counter() - began) * 1e3

    async def recovery(self, guarantee: str | None) -> float:
        """Milliseconds until another client knows the end."""
        writer = await self._one.create_ledger(guarantee=guarantee)
        last = await tail_of(writer, 1000)
        await writer.abandon()
        reader = await self._two.open_ledger(writer.ledger_id)
        took = time.monotonic() - last
        assert reader.last_add_confirmed == 1000
        return took * 1e3


async def pairs(what: str, measured: Measured, count: int, unit: str) -> None:
    """Measure both kinds in turn, so often, and say what came of it."""
    found: dict[str | None, list[float]] = {kind: [] for kind in KINDS}
    for kind in KINDS:
        await measured(kind)
    for number in range(count):
        for kind in KINDS if number % 2 else reversed(KINDS):
            found[kind].append(await measured(kind))
    ours, theirs = (found[kind] for kind in KINDS)
    ratios = [mine / other for mine, other in zip(ours, theirs, strict=True)]
    low, high = interval(ratios)
    say(
        f"{what}: guaranteed {statistics.median(ours):.3f} {unit}, ordinary {statistics.median(theirs):.3f} {unit}, "
        f"ratio {statistics.median(ratios):.3f} ({low:.3f} to {high:.3f}, {count} pairs)"
    )


# --- one bookie that is slow ------------------------------------------------------------------------------------------


def free_port() -> int:
    """A port that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.asynccontextmanager
async def slow_responses(port: int, bookie_port: int) -> AsyncIterator[None]:
    """Forward connections to a bookie; what it says arrives later."""
    loop = asyncio.get_running_loop()

    async def forward(reader: asyncio.StreamReader, give: Callable[[bytes], None]) -> None:
        with contextlib.suppress(ConnectionError):
            while some := await reader.read(1 << 18):
                give(some)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_bookie, to_bookie = await asyncio.open_connection("127.0.0.1", bookie_port)
        tasks = [
            asyncio.create_task(forward(reader, to_bookie.write)),
            asyncio.create_task(
                forward(from_bookie, lambda some: void(loop.call_later(SLOW_S, writer.write, some)))
            ),
        ]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        for end in (writer, to_bookie):
            end.close()

    server = await asyncio.start_server(serve, "127.0.0.1", port)
    try:
        yield
    finally:
        server.close()


def void(_: object) -> None:
    """Nothing."""


@contextlib.contextmanager
def slow_bookie(uri: str, directory: str, port: int, advertised: int) -> Iterator[None]:
    """A fourth bookie, which clients reach by another port."""
    command = [sys.executable, "-m", "quire", "bookie", "--dir", directory, "--cluster", uri]
    command += ["--listen", f"127.0.0.1:{port}", "--advertise", f"127.0.0.1:{advertised}"]
    process = subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )
    try:
        yield
    finally:
        process.terminate()
        process.wait()


async def beside_a_slow_one(cluster: QuireCluster, seconds: float) -> None:
    """Appends of 1 KB as fast as the window allows, with one of four bookies slow."""
    port, advertised = free_port(), free_port()
    with slow_bookie(cluster.uri, str(cluster.directory / "slow"), port, advertised):
        async with slow_responses(advertised, port), quire.connect(cluster.uri) as client:
            while len(client.bookies.writable()) < 4:
                await asyncio.sleep(0.05)
            for kind in KINDS * 2:
                writer = await client.create_ledger(
                    ensemble_size=4, write_quorum=3, ack_quorum=2, guarantee=kind
                )
                began, most = time.monotonic(), 0
                while time.monotonic() - began < seconds:
                    with contextlib.suppress(quire.WindowFullError):
                        for _ in range(WINDOW):
                            writer.append_nowait(bytes(SIZE))
                    most = max(most, writer.held_bytes)
                    if most > 32 << 20:
                        await writer.drain()
                    await asyncio.sleep(0)
                told = int(writer.last_add_confirmed) + 1
                took = time.monotonic() - began
                fragments = len(writer.metadata.fragments)
                await writer.drain()
                await writer.close()
                say(
                    f"one of four slow by {SLOW_S * 1e3:.0f} ms, {kind or 'ordinary'}: {told / took:,.0f} entries/s, "
                    f"{most / 2**20:.1f} MiB held at most, {fragments} fragments"
                )


async def measure(cluster: QuireCluster, given: argparse.Namespace) -> None:
    """All parts, or those that are named."""
    async with quire.connect(cluster.uri) as one, quire.connect(cluster.uri) as two:
        costs = Costs(one, two, given.entries)
        gc.freeze()
        parts: dict[str, tuple[str, Measured, str]] = {
            "cpu": ("CPU of an append of 1 KB", costs.cpu, "us"),
            "single": (f"one append, p50 of {SINGLE}", costs.single, "ms"),
            "close": ("a close behind 100 appends", costs.close, "ms"),
            "recovery": ("a recovery with 1,000 unconfirmed", costs.recovery, "ms"),
        }
        for name, (what, measured, unit) in parts.items():
            if not given.only or name in given.only:
                await pairs(what, measured, given.pairs, unit)
    if not given.only or "slow" in given.only:
        await beside_a_slow_one(cluster, given.seconds)


def main() -> None:
    """Parse the options and run."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--pairs", type=int, default=30, help="of each part (default %(default)s)")
    options.add_argument("--entries", type=int, default=10_000, help="of each ledger (default %(default)s)")
    options.add_argument(
        "--seconds", type=float, default=5.0, help="beside a slow bookie (default %(default)s)"
    )
    options.add_argument("--only", nargs="*", help="cpu, single, close, recovery, slow")
    given = options.parse_args()
    with QuireCluster("quire-guarantee") as cluster:
        PROCESSES.extend(cluster.pids)
        asyncio.run(measure(cluster, given))


if __name__ == "__main__":
    main()

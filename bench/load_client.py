"""Our load client: the same jobs, the same window and the same checks as `tools/java-bench`.

One job per line on standard input, one JSON object per line on standard output:

  append SIZE SECONDS WINDOW    asynchronous adds, at most WINDOW outstanding
  latency SIZE COUNT            one add at a time

Each job writes a new ledger (E = Qw = 3, Qa = 2, CRC32C), reads all of it back and compares, and deletes it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sys
import time
from collections import deque
from typing import Any

import quire
from accounting import cpu_of, cpu_seconds

PAYLOADS = 64
PASSWORD = b"bench"
STEPS_PER_WINDOW = 10


class Bench:
    """The jobs, on one open client.

    Args:
        client: as `quire.connect` gives it.
        pids: the bookies, whose CPU time is accounted.
    """

    def __init__(self, client: Any, pids: list[int]) -> None:
        self._client = client
        self._pids = pids

    async def run(self, job: list[str]) -> dict[str, Any]:
        """Run one job."""
        match job:
            case ["append", size, seconds, window]:
                return await self.append(int(size), float(seconds), int(window))
            case ["latency", size, count]:
                return await self.latency(int(size), int(count))
        raise ValueError(f"no such job: {' '.join(job)}")

    async def append(self, size: int, seconds: float, window: int) -> dict[str, Any]:
        """Append for some seconds with a full window.

        Adds complete in order, so waiting for the last future of the oldest step bounds the window.
        """
        payloads = _payloads(size)
        ledger = await self._create()
        step = max(1, window // STEPS_PER_WINDOW)
        waiting: deque[asyncio.Future[int]] = deque()
        bookies, own = cpu_of(self._pids), cpu_seconds(os.getpid())
        start = time.perf_counter()
        count = 0
        while time.perf_counter() - start < seconds:
            for _ in range(step):
                last = ledger.append_nowait(payloads[count % PAYLOADS])
                count += 1
            waiting.append(last)
            while len(waiting) >= STEPS_PER_WINDOW:
                await waiting.popleft()
        while waiting:
            await waiting.popleft()
        wall = time.perf_counter() - start
        own = cpu_seconds(os.getpid()) - own
        bookies = cpu_of(self._pids) - bookies
        await ledger.close()
        reading = await self._read_back(ledger.ledger_id, count, payloads)
        return {
            "job": "append",
            "size": size,
            "window": window,
            "entries": count,
            "seconds": round(wall, 3),
            "entries_per_s": round(count / wall),
            "client_cpu_us": round(own / count * 1e6, 3),
            "bookies_cpu_us": round(bookies / count * 1e6, 3),
            "failed": 0,
            "verified": count,
            "read_entries_per_s": round(count / reading),
        }

    async def latency(self, size: int, count: int) -> dict[str, Any]:
        """Append one entry at a time and time each."""
        payloads = _payloads(size)
        ledger = await self._create()
        nanos = []
        bookies, own = cpu_of(self._pids), cpu_seconds(os.getpid())
        for number in range(count):
            start = time.perf_counter_ns()
            await ledger.append(payloads[number % PAYLOADS])
            nanos.append(time.perf_counter_ns() - start)
        own = cpu_seconds(os.getpid()) - own
        bookies = cpu_of(self._pids) - bookies
        await ledger.close()
        await self._read_back(ledger.ledger_id, count, payloads)
        nanos.sort()
        return {
            "job": "latency",
            "size": size,
            "entries": count,
            "min_us": round(nanos[0] / 1e3, 1),
            "p50_us": round(nanos[count // 2] / 1e3, 1),
            "p99_us": round(nanos[int(count * 0.99)] / 1e3, 1),
            "p999_us": round(nanos[int(count * 0.999)] / 1e3, 1),
            "client_cpu_us": round(own / count * 1e6, 1),
            "bookies_cpu_us": round(bookies / count * 1e6, 1),
            "failed": 0,
            "verified": count,
        }

    async def _create(self) -> Any:
        return await self._client.create_ledger(
            ensemble_size=3, write_quorum=3, ack_quorum=2, password=PASSWORD, digest="crc32c"
        )

    async def _read_back(self, ledger_id: int, count: int, payloads: list[bytes]) -> float:
        """Read everything, compare it, delete the ledger; the seconds that reading took."""
        reader = await self._client.open_ledger(ledger_id, password=PASSWORD)
        start = time.perf_counter()
        seen = 0
        async for entry in reader.read(0, count - 1):
            if entry.entry_id != seen or entry.payload != payloads[seen % PAYLOADS]:
                raise ValueError(f"ledger {ledger_id}: entry {seen} came back as something else")
            seen += 1
        if seen != count:
            raise ValueError(f"ledger {ledger_id}: {seen} of {count} entries came back")
        seconds = time.perf_counter() - start
        await self._client.delete_ledger(ledger_id)
        return seconds


def _payloads(size: int) -> list[bytes]:
    chance = random.Random(7)
    return [chance.randbytes(size) for _ in range(PAYLOADS)]


async def serve(cluster: str, pids: list[int]) -> None:
    """Answer jobs until the input ends."""
    async with quire.connect(cluster) as client:
        bench = Bench(client, pids)
        _say({"ready": True})
        while line := await asyncio.to_thread(sys.stdin.readline):
            try:
                _say(await bench.run(line.split()))
            except Exception as error:  # noqa: BLE001 - whatever it is, the harness must hear of it
                _say({"error": f"{type(error).__name__}: {error}"})


def _say(answer: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Parse the options and serve."""
    options = argparse.ArgumentParser()
    options.add_argument("--cluster", required=True)
    options.add_argument("--pids", default="")
    given = options.parse_args()
    pids = [int(pid) for pid in given.pids.split(",") if pid]
    try:
        import uvloop

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve(given.cluster, pids))
    except ImportError:
        asyncio.run(serve(given.cluster, pids))


if __name__ == "__main__":
    main()

"""What every job needs: the client, payloads, ledgers, the check of what was written, and the accounts."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from accounting import cpu_of, cpu_seconds

PAYLOADS = 64
PASSWORD = b"bench"
DIGEST = "crc32c"


@dataclass(frozen=True)
class Job:
    """One line of input: a name, words in order, and `key=value` options (e, qw, qa).

    Args:
        name: which job.
        words: what comes after it.
        options: the words with an equals sign.
    """

    name: str
    words: tuple[str, ...]
    options: dict[str, str]

    @classmethod
    def parse(cls, line: str) -> Job:
        """Take a line apart.

        Raises:
            ValueError: the line is empty.
        """
        name, *rest = line.split()
        options = dict(word.split("=", 1) for word in rest if "=" in word)
        return cls(name, tuple(word for word in rest if "=" not in word), options)

    @property
    def quorums(self) -> dict[str, int]:
        """The keyword arguments of `create_ledger`; E = Qw = 3 and Qa = 2 unless the job says otherwise."""
        return {
            "ensemble_size": int(self.options.get("e", 3)),
            "write_quorum": int(self.options.get("qw", 3)),
            "ack_quorum": int(self.options.get("qa", 2)),
        }


@dataclass
class Used:
    """Time that passed, and the CPU time of this process and of the bookies, in seconds."""

    wall: float = 0.0
    client: float = 0.0
    bookies: float = 0.0

    def per(self, count: int, digits: int = 3) -> dict[str, float]:
        """The CPU per entry, in microseconds."""
        return {
            "client_cpu_us": round(self.client / count * 1e6, digits),
            "bookies_cpu_us": round(self.bookies / count * 1e6, digits),
        }


class World:
    """An open client, and the bookies whose CPU time is accounted.

    Args:
        client: as `quire.connect` gives it.
        cluster: the address that it was opened with.
        pids: the bookies.
        tunes_collector: jobs may set Python's garbage collector for what they do.
    """

    def __init__(self, client: Any, cluster: str, pids: list[int], *, tunes_collector: bool = True) -> None:
        self.client = client
        self.cluster = cluster
        self.pids = pids
        self.tunes_collector = tunes_collector

    async def create(self, job: Job) -> Any:
        """A new ledger with the job's quorums."""
        return await self.client.create_ledger(**job.quorums, password=PASSWORD, digest=DIGEST)

    async def open(self, ledger_id: int) -> Any:
        """Open a ledger to read it."""
        return await self.client.open_ledger(ledger_id, password=PASSWORD)

    async def read_back(self, ledger_id: int, count: int, payloads: list[bytes]) -> float:
        """Read everything and compare it.

        Returns:
            The seconds that reading took.

        Raises:
            ValueError: something is missing, or is not what was written.
        """
        reader = await self.open(ledger_id)
        start = time.perf_counter()
        seen = 0
        async for entry in reader.read(0, count - 1):
            if entry.entry_id != seen or entry.payload != payloads[seen % PAYLOADS]:
                raise ValueError(f"ledger {ledger_id}: entry {seen} came back as something else")
            seen += 1
        if seen != count:
            raise ValueError(f"ledger {ledger_id}: {seen} of {count} entries came back")
        return time.perf_counter() - start

    async def verify_and_delete(self, ledger_id: int, count: int, payloads: list[bytes]) -> float:
        """Read back, compare, delete; the seconds that reading took."""
        seconds = await self.read_back(ledger_id, count, payloads)
        await self.client.delete_ledger(ledger_id)
        return seconds

    @contextmanager
    def accounted(self) -> Iterator[Used]:
        """Account for what happens inside; the figures are there afterwards."""
        used = Used()
        bookies, own = cpu_of(self.pids), cpu_seconds(os.getpid())
        start = time.perf_counter()
        try:
            yield used
        finally:
            used.wall = time.perf_counter() - start
            used.client = cpu_seconds(os.getpid()) - own
            used.bookies = cpu_of(self.pids) - bookies


def payloads_of(size: int) -> list[bytes]:
    """The same random payloads in every run; entry n holds number n modulo their count."""
    chance = random.Random(7)
    return [chance.randbytes(size) for _ in range(PAYLOADS)]


def percentiles(nanos: list[int]) -> dict[str, float]:
    """Minimum, median, 99th and 99.9th percentile of some times, in microseconds."""
    nanos = sorted(nanos)
    count = len(nanos)
    return {
        "min_us": round(nanos[0] / 1e3, 1),
        "p50_us": round(nanos[count // 2] / 1e3, 1),
        "p99_us": round(nanos[int(count * 0.99)] / 1e3, 1),
        "p999_us": round(nanos[int(count * 0.999)] / 1e3, 1),
    }

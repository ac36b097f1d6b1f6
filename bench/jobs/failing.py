"""Writing while bookies fail: what the harness does to them meanwhile is its own business."""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque
from typing import Any

from accounting import resident_mib
from jobs.samples import Timeline
from jobs.world import PAYLOADS, Job, World, payloads_of
from quire import WindowFullError

STEPS_PER_WINDOW = 50
SAMPLE_SECONDS = 0.05

_ledgers: dict[int, Any] = {}


async def begin(world: World, job: Job) -> dict[str, Any]:
    """A new ledger, and its bookies: `begin`."""
    ledger = await world.create(job)
    _ledgers[ledger.ledger_id] = ledger
    return {"ledger": ledger.ledger_id, "ensemble": list(ledger.metadata.last_fragment.ensemble)}


async def write(world: World, job: Job) -> dict[str, Any]:  # noqa: ARG001 - as all jobs
    """Append with a full window, and note when acknowledgements come: `write LEDGER SIZE SECONDS WINDOW`.

    `longest_gap_ms` is the longest time without any; `start_ns` is on the clock that the harness reads, too.
    """
    ledger = _ledgers[int(job.words[0])]
    size, seconds, window = int(job.words[1]), float(job.words[2]), int(job.words[3])
    payloads = payloads_of(size)
    acks = _Acknowledgements()
    step = max(1, window // STEPS_PER_WINDOW)
    waiting: deque[asyncio.Future[int]] = deque()
    count = 0
    memory = asyncio.create_task(_largest_growth(ledger))
    while acks.seconds() < seconds:
        for _ in range(step):
            try:
                last = ledger.append_nowait(payloads[count % PAYLOADS])
            except WindowFullError:
                # A bookie is far behind the others: this one waits for room, and those behind it in their turn.
                last = asyncio.ensure_future(ledger.append(payloads[count % PAYLOADS]))
            count += 1
        last.add_done_callback(lambda _: acks.add(step))
        waiting.append(last)
        while len(waiting) >= STEPS_PER_WINDOW:
            await waiting.popleft()
    while waiting:
        await waiting.popleft()
    memory.cancel()
    return {"entries": count, "failed": 0, **acks.figures(), **(await memory)}


async def verify(world: World, job: Job) -> dict[str, Any]:
    """Close, read everything back and compare, delete: `verify LEDGER SIZE COUNT`."""
    ledger_id, size, count = map(int, job.words)
    await _ledgers.pop(ledger_id).close()
    seconds = await world.verify_and_delete(ledger_id, count, payloads_of(size))
    return {"verified": count, "seconds": round(seconds, 3)}


class _Acknowledgements:
    """When acknowledgements came."""

    def __init__(self) -> None:
        self.start = self._last = time.perf_counter()
        self._gap = (0.0, 0.0)
        self._timeline = Timeline(self.start)

    def seconds(self) -> float:
        return time.perf_counter() - self.start

    def add(self, count: int) -> None:
        now = time.perf_counter()
        self._gap = max(self._gap, (now - self._last, self._last - self.start))
        self._last = now
        self._timeline.add(now, count)

    def figures(self) -> dict[str, Any]:
        return {
            "start_ns": round(self.start * 1e9),
            "longest_gap_ms": round(self._gap[0] * 1e3, 1),
            "longest_gap_at_s": round(self._gap[1], 2),
            "timeline": self._timeline.counts,
        }


async def _largest_growth(ledger: Any) -> dict[str, float]:
    """How much the process grows, and how much the ledger's window holds at most, until it is cancelled."""
    before = largest = resident_mib(os.getpid())
    held = 0
    try:
        while True:
            await asyncio.sleep(SAMPLE_SECONDS)
            largest = max(largest, resident_mib(os.getpid()))
            held = max(held, ledger.held_bytes)
    except asyncio.CancelledError:
        return {"growth_mib": round(largest - before, 1), "held_mib": round(held / 2**20, 1)}

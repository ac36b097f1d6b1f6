"""Adds: with a full window, and one at a time."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import Any

from jobs.samples import Timeline, quantiles_us
from jobs.world import PAYLOADS, Job, World, payloads_of, percentiles
from quire import WindowFullError

STEPS_PER_WINDOW = 10


async def append(world: World, job: Job) -> dict[str, Any]:
    """Append for some seconds with a full window: `append SIZE SECONDS WINDOW`.

    Adds complete in order, so waiting for the last future of the oldest step bounds the window, and when that one is
    complete so is its whole step.
    """
    size, seconds, window = int(job.words[0]), float(job.words[1]), int(job.words[2])
    payloads = payloads_of(size)
    ledger = await world.create(job)
    step = max(1, window // STEPS_PER_WINDOW)
    waiting: deque[asyncio.Future[int]] = deque()
    count = 0
    with world.accounted() as used:
        now = start = time.perf_counter()
        timeline = Timeline(start)
        while now - start < seconds:
            for _ in range(step):
                try:
                    last = ledger.append_nowait(payloads[count % PAYLOADS])
                except (
                    WindowFullError
                ):  # a bookie is far behind the ack quorum, and what it was not sent yet is held
                    await ledger.drain()
                    last = ledger.append_nowait(payloads[count % PAYLOADS])
                count += 1
            waiting.append(last)
            while len(waiting) >= STEPS_PER_WINDOW:
                await waiting.popleft()
                now = time.perf_counter()
                timeline.add(now, step)
        while waiting:
            await waiting.popleft()
    await ledger.close()
    reading = await world.verify_and_delete(ledger.ledger_id, count, payloads)
    return {
        "entries": count,
        "seconds": round(used.wall, 3),
        "entries_per_s": round(count / used.wall),
        "mb_per_s": round(count * size / used.wall / 1e6, 1),
        **used.per(count),
        "failed": 0,
        "verified": count,
        "read_entries_per_s": round(count / reading),
        "timeline": timeline.counts,
    }


async def latency(world: World, job: Job) -> dict[str, Any]:
    """Append one entry at a time and time each: `latency SIZE COUNT`."""
    size, count = int(job.words[0]), int(job.words[1])
    payloads = payloads_of(size)
    ledger = await world.create(job)
    nanos = []
    with world.accounted() as used:
        for number in range(count):
            start = time.perf_counter_ns()
            await ledger.append(payloads[number % PAYLOADS])
            nanos.append(time.perf_counter_ns() - start)
    await ledger.close()
    await world.verify_and_delete(ledger.ledger_id, count, payloads)
    return {
        "entries": count,
        **percentiles(nanos),
        **used.per(count, 1),
        "failed": 0,
        "verified": count,
        "sample_us": quantiles_us(nanos),
    }

"""Catch-up reads of closed ledgers: filling them, and reading one of them again and again.

Filling and reading are jobs of their own, because a reader must find what another run of the bookies has written.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import Any

from jobs.world import PAYLOADS, Job, World, payloads_of

STEPS_PER_WINDOW = 10


async def fill(world: World, job: Job) -> dict[str, Any]:
    """Write ledgers round robin, an entry each in turn, and close them: `fill-ledgers LEDGERS COUNT SIZE WINDOW`.

    COUNT entries go to each ledger. WINDOW entries of all ledgers together may be outstanding.
    """
    ledgers, count, size, window = (int(word) for word in job.words)
    payloads = payloads_of(size)
    writers = [await world.create(job) for _ in range(ledgers)]
    step = max(1, window // STEPS_PER_WINDOW)
    waiting: deque[list[asyncio.Future[int]]] = deque()
    sent: list[asyncio.Future[int]] = []
    for number in range(count):
        for writer in writers:
            sent.append(writer.append_nowait(payloads[number % PAYLOADS]))
            if len(sent) >= step:
                waiting.append(sent)
                sent = []
                await asyncio.sleep(0)
            while len(waiting) >= STEPS_PER_WINDOW:
                await asyncio.gather(*waiting.popleft())
    for futures in (*waiting, sent):
        await asyncio.gather(*futures)
    for writer in writers:
        await writer.close()
    return {"ledgers": [writer.ledger_id for writer in writers], "entries": count * ledgers, "failed": 0}


async def read(world: World, job: Job) -> dict[str, Any]:
    """Read a whole ledger some times and compare each entry: `read-ledger LEDGER COUNT SIZE TIMES`.

    `by=run` takes the entries many at a time, as they come, `by=entry` one at a time.
    """
    ledger_id, count, size, times = (int(word) for word in job.words)
    payloads = payloads_of(size)
    expected = (payloads * (count // PAYLOADS + 1))[:count]
    scan = _by_entry if job.options.get("by") == "entry" else _by_run
    rates: list[float] = []
    with world.accounted() as used:
        for _ in range(times):
            reader = await world.open(ledger_id)
            start = time.perf_counter()
            seen = await scan(reader, expected)
            rates.append(count / (time.perf_counter() - start))
            if seen != count:
                raise ValueError(f"ledger {ledger_id}: {seen} of {count} entries came back as written")
    rates.sort()
    rate = rates[len(rates) // 2]
    return {
        "entries": count,
        "entries_per_s": round(rate),
        "mb_per_s": round(rate * size / 1e6, 1),
        "ms": round(count / rate * 1e3, 3),
        **used.per(count * times),
        "failed": 0,
        "verified": count * times,
    }


async def _by_run(reader: Any, expected: list[bytes]) -> int:
    seen = 0
    async for entries in reader.read_runs(0, len(expected) - 1):
        end = seen + len(entries)
        if entries.entry_ids[0] != seen or list(entries.payloads) != expected[seen:end]:
            return seen
        seen = end
    return seen


async def _by_entry(reader: Any, expected: list[bytes]) -> int:
    seen = 0
    async for entry in reader.read(0, len(expected) - 1):
        if entry.entry_id != seen or entry.payload != expected[seen]:
            return seen
        seen += 1
    return seen


async def delete(world: World, job: Job) -> dict[str, Any]:
    """Delete ledgers: `delete-ledgers LEDGER...`."""
    for word in job.words:
        await world.client.delete_ledger(int(word))
    return {"deleted": len(job.words), "failed": 0}

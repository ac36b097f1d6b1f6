"""Tailing reads: a paced writer, and a reader that follows it."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from jobs.world import PASSWORD, PAYLOADS, Job, World, payloads_of, percentiles

LAST_ENTRY_SECONDS = 2.0
WARM_UP_SHARE = 3
"""One part in so many of the entries comes before the figures: connections, the first poll."""


async def tail(world: World, job: Job) -> dict[str, Any]:
    """Follow a writer that appends at a fixed rate: `tail SIZE COUNT RATE`.

    The schedule is absolute, so a late entry does not delay the next; what is timed is from the call of an append to
    the delivery of its entry. Nothing is appended after the last entry: `last_us` says when it came by itself, -1 that
    it did not.
    """
    size, count, rate = int(job.words[0]), int(job.words[1]), int(job.words[2])
    payloads = payloads_of(size)
    sent, acknowledged, delivered = [0] * count, [0] * count, [0] * count
    ledger = await world.create(job)
    reader = await world.client.open_ledger(ledger.ledger_id, password=PASSWORD, recover=False)

    async def follow() -> None:
        seen = 0
        async for entry in reader.tail():
            delivered[entry.entry_id] = time.perf_counter_ns()
            if entry.entry_id != seen or entry.payload != payloads[seen % PAYLOADS]:
                raise ValueError(f"the reader got something else as entry {seen}")
            seen += 1
            if seen == count:
                return

    def is_acknowledged(future: asyncio.Future[int]) -> None:
        acknowledged[future.result()] = time.perf_counter_ns()

    following = asyncio.create_task(follow())
    with world.accounted() as used:
        start = time.perf_counter_ns()
        for number in range(count):
            wait = start + number * 1_000_000_000 // rate - time.perf_counter_ns()
            await asyncio.sleep(max(wait, 0) / 1e9)
            sent[number] = time.perf_counter_ns()
            last = ledger.append_nowait(payloads[number % PAYLOADS])
            last.add_done_callback(is_acknowledged)
        await last
        done, _ = await asyncio.wait({following}, timeout=LAST_ENTRY_SECONDS)
    if done:
        following.result()
    measured = range(count // WARM_UP_SHARE, count - 1)
    acks = percentiles([acknowledged[number] - sent[number] for number in measured])
    await ledger.close()
    await following
    await world.verify_and_delete(ledger.ledger_id, count, payloads)
    return {
        "entries": count,
        "seconds": round((sent[-1] - sent[0]) / 1e9, 3),
        **percentiles([delivered[number] - sent[number] for number in measured]),
        "ack_p50_us": acks["p50_us"],
        "last_us": round((delivered[-1] - sent[-1]) / 1e3, 1) if done else -1,
        **used.per(count, 1),
        "failed": 0,
        "verified": count,
    }

"""Ledgers made, closed and opened: whole cycles one after another, and creations at once."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from jobs.world import Job, World, payloads_of

IN_FLIGHT = 64
ENTRY_BYTES = 100
STEPS = ("create", "add", "close", "open")


async def cycle(world: World, job: Job) -> dict[str, Any]:
    """Create a ledger, add one entry, close, open it again; one at a time: `cycle COUNT`."""
    count = int(job.words[0])
    payloads = payloads_of(ENTRY_BYTES)
    nanos = dict.fromkeys(STEPS, 0)
    ledger_ids = []
    clock = time.perf_counter_ns
    with world.accounted() as used:
        for _ in range(count):
            marks = [clock()]
            ledger = await world.create(job)
            marks.append(clock())
            await ledger.append(payloads[0])
            marks.append(clock())
            await ledger.close()
            marks.append(clock())
            reader = await world.open(ledger.ledger_id)
            marks.append(clock())
            if not reader.closed or reader.last_add_confirmed != 0:
                raise ValueError(f"ledger {ledger.ledger_id} is not closed at entry 0")
            ledger_ids.append(ledger.ledger_id)
            for step, start, end in zip(STEPS, marks, marks[1:], strict=False):
                nanos[step] += end - start
    for ledger_id in ledger_ids:
        await world.verify_and_delete(ledger_id, 1, payloads)
    return {
        "cycles": count,
        "cycles_per_s": round(count / used.wall, 1),
        **{f"{step}_ms": round(nanos[step] / count / 1e6, 3) for step in STEPS},
        **used.per(count, 1),
        "failed": 0,
        "verified": count,
    }


async def create(world: World, job: Job) -> dict[str, Any]:
    """Create ledgers, 64 at once: `create COUNT`."""
    count = int(job.words[0])
    ledgers: list[Any] = []
    waiting = iter(range(count))

    async def creator() -> None:
        for _ in waiting:
            ledgers.append(await world.create(job))

    with world.accounted() as used:
        await asyncio.gather(*(creator() for _ in range(IN_FLIGHT)))
    if len({ledger.ledger_id for ledger in ledgers}) != count:
        raise ValueError("two ledgers have one id")
    for ledger in ledgers:
        await ledger.abandon()
        await world.client.delete_ledger(ledger.ledger_id, fence=False)
    return {"creates": count, "creates_per_s": round(count / used.wall, 1), **used.per(count, 1), "failed": 0}

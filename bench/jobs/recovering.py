"""Opening what a writer left open."""

from __future__ import annotations

import statistics
import time
from typing import Any

from jobs.world import PASSWORD, PAYLOADS, Job, World, payloads_of

STEP = 500
ATTEMPTS_MAX = 50
TURN_ENTRIES = 1000
TURNS_PER_LOOK = 10


async def recover(world: World, job: Job) -> dict[str, Any]:
    """Recover ledgers whose writers are gone: `recover SIZE LEDGERS TAIL BEFORE...`.

    For each BEFORE that many ledgers are made, of BEFORE entries that everybody knows to be confirmed, and TAIL entries
    that went out as one window, so that no bookie heard of a LAC behind the first of them; the writer ends when they are
    acknowledged. Then they are recovered, one of each BEFORE in turn.
    """
    size, count, tail = (int(word) for word in job.words[:3])
    lengths = [int(word) for word in job.words[3:]]
    payloads = payloads_of(size)
    left = [
        [await _left_open(world, job, before, tail, payloads) for _ in range(count)] for before in lengths
    ]
    millis: dict[int, list[float]] = {before: [] for before in lengths}
    with world.accounted() as used:
        for row in zip(*left, strict=True):
            for before, ledger_id in zip(lengths, row, strict=True):
                start = time.perf_counter()
                reader = await world.open(ledger_id)
                millis[before].append((time.perf_counter() - start) * 1e3)
                if not reader.closed or reader.last_add_confirmed != before + tail - 1:
                    raise ValueError(f"ledger {ledger_id} ends at {reader.last_add_confirmed}")
    for before, ledger_ids in zip(lengths, left, strict=True):
        for ledger_id in ledger_ids:
            await world.verify_and_delete(ledger_id, before + tail, payloads)
    return {
        "ledgers": count * len(lengths),
        "above_lac": tail,
        "ms": {str(before): round(statistics.median(millis[before]), 3) for before in lengths},
        **used.per(count * len(lengths), 1),
        "failed": 0,
        "verified": sum(before + tail for before in lengths) * count,
    }


async def _left_open(world: World, job: Job, before: int, tail: int, payloads: list[bytes]) -> int:
    """Write a ledger and leave it, as a writer that is killed right after its last acknowledgement does.

    The tail leaves in several runs. Where the first was acknowledged before the last one left, that one says so in its
    headers, and the tail above the LAC is shorter than wanted: such a ledger is thrown away.
    """
    for _ in range(ATTEMPTS_MAX):
        ledger = await world.create(job)
        for first in range(0, before - 1, STEP):
            await ledger.append_many(
                payloads[entry_id % PAYLOADS] for entry_id in range(first, min(first + STEP, before - 1))
            )
        await ledger.append(payloads[(before - 1) % PAYLOADS])
        waiting = [
            ledger.append_nowait(payloads[entry_id % PAYLOADS]) for entry_id in range(before, before + tail)
        ]
        await waiting[-1]
        await ledger.abandon()
        ledger_id: int = ledger.ledger_id
        beside = await world.client.open_ledger(ledger_id, password=PASSWORD, recover=False)
        if beside.last_add_confirmed == before - 1:
            return ledger_id
        await world.client.delete_ledger(ledger_id)
    raise ValueError(f"in {ATTEMPTS_MAX} ledgers acknowledgements came before {tail} entries had left")


async def fill_journal(world: World, job: Job) -> dict[str, Any]:
    """Fill the journal of the only bookie: `fill-journal SIZE MIB LEDGERS`; each turn appends to every ledger.

    The ledgers stay open; `ledgers` of the answer is what `read-back` takes.
    """
    size, mib, count = (int(word) for word in job.words)
    payloads = payloads_of(size)
    ledgers = [await world.create(job) for _ in range(count)]
    (bookie,) = ledgers[0].metadata.last_fragment.ensemble
    per_turn = TURN_ENTRIES if count == 1 else 1
    written = 0
    entries = 0
    while written < mib << 20:
        for _ in range(TURNS_PER_LOOK):
            waiting = [
                ledger.append_nowait(payloads[entry_id % PAYLOADS])
                for ledger in ledgers
                for entry_id in range(entries, entries + per_turn)
            ]
            await waiting[-1]
            entries += per_turn
        _, facts = await world.client.bookies.info(bookie)
        written = facts["storage"]["bytes_written"]
    for ledger in ledgers:
        await ledger.drain()
        await ledger.abandon()
    return {
        "entries": entries * count,
        "journal_bytes": written,
        "ledgers": [f"{ledger.ledger_id}:{entries}" for ledger in ledgers],
        "failed": 0,
    }


async def read_back(world: World, job: Job) -> dict[str, Any]:
    """Recover, read and compare what was left open: `read-back SIZE LEDGER:ENTRIES...`."""
    payloads = payloads_of(int(job.words[0]))
    verified = 0
    for word in job.words[1:]:
        ledger_id, _, entries = word.partition(":")
        await world.read_back(int(ledger_id), int(entries), payloads)
        verified += int(entries)
    return {"verified": verified, "failed": 0}

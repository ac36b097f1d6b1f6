"""How cost grows: with the number of open ledgers, with a ledger's length, with its fragments."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import quire
from accounting import resident_mib
from jobs.adding import STEPS_PER_WINDOW
from jobs.world import DIGEST, PASSWORD, PAYLOADS, Job, World, payloads_of, percentiles
from quire.client.config import ClientConfig
from quire.core.ids import EntryId
from quire.core.ledger.metadata import Fragment

IN_FLIGHT = 64
"""Ledgers that are created, closed or read at one time."""
OPENS = 500
LOOKUPS = 3000
SETTLE_SECONDS = 1.0 + ClientConfig().explicit_lac_after_ms / 1000
"""After this an idle writer has told its bookies all there is to tell."""


@dataclass
class Kept:
    """A ledger that stays open between jobs, and how many entries it has."""

    ledger: Any
    count: int = 0


@dataclass
class Many:
    """Open ledgers, and the client that they belong to.

    Each client asks for runs in its own way: as they come, or with `frames=1` one entry each.
    """

    client: Any
    kept: list[Kept] = field(default_factory=list)


_MANY: dict[str, Many] = {}


async def _many(world: World, job: Job) -> Many:
    frames = job.options.get("frames", "0")
    if frames not in _MANY:
        config = ClientConfig(run_bytes_max=1) if frames == "1" else ClientConfig()
        _MANY[frames] = Many(await quire.connect(world.cluster, config))
    return _MANY[frames]


async def kept_ledgers(world: World, job: Job) -> list[Kept]:
    """The ledgers that are open between jobs."""
    return (await _many(world, job)).kept


async def open_many(world: World, job: Job) -> dict[str, Any]:
    """Open ledgers, one entry in each, and keep them: `open-many LEDGERS SIZE`. Says what memory that took."""
    ledgers, payloads = int(job.words[0]), payloads_of(int(job.words[1]))
    many = await _many(world, job)
    before = _memory(world)

    async def one() -> None:
        ledger = await many.client.create_ledger(**job.quorums, password=PASSWORD, digest=DIGEST)
        await ledger.append(payloads[0])
        many.kept.append(Kept(ledger, 1))

    start = time.perf_counter()
    await _in_parallel(one() for _ in range(ledgers))
    seconds = time.perf_counter() - start
    await asyncio.sleep(SETTLE_SECONDS)
    client, *bookies = (after - was for was, after in zip(before, _memory(world), strict=True))
    if world.tunes_collector:
        gc.freeze()  # as a program may that keeps so many objects for its lifetime
    return {
        "ledgers": ledgers,
        "open": len(many.kept),
        "opened_per_s": round(ledgers / seconds),
        "client_bytes": round(client / ledgers),
        "bookie_bytes": [round(bookie / ledgers) for bookie in bookies],
        "failed": 0,
    }


async def round_robin(world: World, job: Job) -> dict[str, Any]:
    """Add to the kept ledgers in turn: `round-robin LEDGERS SECONDS WINDOW SIZE`. They stay open until `close-many`.

    A WINDOW of 0 is one outstanding add for each ledger: a task each, which awaits one append after the other.
    """
    ledgers, seconds, window, size = (float(word) for word in job.words)
    many = await _many(world, job)
    kept = many.kept[: int(ledgers)]
    if window:
        result = await _adds(world, kept, seconds, int(window), int(size))
    else:
        result = await _in_tasks(world, kept, len(kept), seconds, int(size))
    await asyncio.sleep(SETTLE_SECONDS)  # the next round is not to pay for what idle writers tell
    return result


async def tasks(world: World, job: Job) -> dict[str, Any]:
    """Tasks that await one append each, over and over, to one ledger: `tasks COUNT SECONDS SIZE`."""
    count, seconds, size = int(job.words[0]), float(job.words[1]), int(job.words[2])
    one = Kept(await world.create(job))
    result = await _in_tasks(world, [one], count, seconds, size)
    await one.ledger.close()
    await world.verify_and_delete(one.ledger.ledger_id, one.count, payloads_of(size))
    return result | {"verified": one.count}


async def close_many(world: World, job: Job) -> dict[str, Any]:
    """Close the kept ledgers of all clients, read all of them back, delete them: `close-many SIZE`."""
    payloads = payloads_of(int(job.words[0]))

    async def one(kept: Kept) -> None:
        await kept.ledger.close()
        await world.verify_and_delete(kept.ledger.ledger_id, kept.count, payloads)

    start = time.perf_counter()
    count = 0
    for many in _MANY.values():
        await _in_parallel(one(kept) for kept in many.kept)
        count += sum(kept.count for kept in many.kept)
        await many.client.close()
    _MANY.clear()
    gc.unfreeze()
    return {"verified": count, "seconds": round(time.perf_counter() - start, 1), "failed": 0}


async def keep(world: World, job: Job) -> dict[str, Any]:
    """As `append`, but the ledger stays in the cluster: `keep SIZE SECONDS WINDOW`."""
    size, seconds, window = int(job.words[0]), float(job.words[1]), int(job.words[2])
    one = Kept(await world.create(job))
    result = await _adds(world, [one], seconds, window, size)
    await one.ledger.close()
    await world.read_back(one.ledger.ledger_id, one.count, payloads_of(size))
    return result | {"verified": one.count}


async def length(world: World, job: Job) -> dict[str, Any]:
    """CPU per entry of one ledger when it is short and when it is long: `length SIZE WINDOW CHUNK AT AT ...`.

    At each length a chunk of adds is accounted; then single reads among the last CHUNK entries, so that where they lie
    (in memory or not) is the same at each length.
    """
    size, window, chunk, *at = map(int, job.words)
    payloads = payloads_of(size)
    one = Kept(await world.create(job))
    adds, reads = {}, {}
    for entries in at:
        await _fill(one, payloads, entries - one.count, window)
        with _precisely(world) as used:
            await _fill(one, payloads, chunk, window)
        adds[entries] = round(used[0] / chunk * 1e6, 3)
        reads[entries] = round(await _lookups(world, one, chunk), 1)
    await one.ledger.close()
    await world.verify_and_delete(one.ledger.ledger_id, one.count, payloads)
    return {"add_cpu_us": adds, "read_cpu_us": reads, "verified": one.count, "failed": 0}


async def fragments(world: World, job: Job) -> dict[str, Any]:
    """Opening and reading closed ledgers with fragments: `fragments SIZE ENTRIES COUNT COUNT ...`.

    One ledger for each count, used in turn, so that what happens to the machine meanwhile hits all alike. Opening with
    a read of one entry after it is timed as well: a reader could put off what it does not do when it is opened.
    """
    size, entries, *counts = map(int, job.words)
    payloads = payloads_of(size)
    ledgers = {count: await _with_fragments(world, job, entries, payloads, count) for count in counts}
    chance = random.Random(7)

    async def open_only(count: int) -> None:
        await world.open(ledgers[count])

    async def open_and_read(count: int) -> None:
        await _read_one(await world.open(ledgers[count]), chance.randrange(entries), payloads)

    readers = {count: await world.open(ledger_id) for count, ledger_id in ledgers.items()}

    async def read(count: int) -> None:
        await _read_one(readers[count], chance.randrange(entries), payloads)

    result = {
        "open_p50_us": await _in_turn(open_only, counts, OPENS),
        "open_and_read_p50_us": await _in_turn(open_and_read, counts, OPENS),
        "read_p50_us": await _in_turn(read, counts, LOOKUPS),
    }
    for ledger_id in ledgers.values():
        await world.verify_and_delete(ledger_id, entries, payloads)
    return {**result, "verified": entries * len(counts), "failed": 0}


# --- pieces -----------------------------------------------------------------------------------------------------------


async def _in_parallel(work: Iterable[Awaitable[None]]) -> None:
    """Run all of it, some at a time."""
    waiting = iter(work)

    async def worker() -> None:
        for one in waiting:
            await one

    await asyncio.gather(*(worker() for _ in range(IN_FLIGHT)))


async def _adds(world: World, kept: list[Kept], seconds: float, window: int, size: int) -> dict[str, Any]:
    """Add to ledgers in turn for some seconds with a full window."""
    payloads = payloads_of(size)
    step = max(1, window // STEPS_PER_WINDOW)
    waiting: deque[list[asyncio.Future[int]]] = deque()
    turns = _turns(kept)
    count = 0
    with world.accounted() as used:
        start = time.perf_counter()
        while time.perf_counter() - start < seconds:
            futures = []
            for one in islice(turns, step):
                futures.append(one.ledger.append_nowait(payloads[one.count % PAYLOADS]))
                one.count += 1
            waiting.append(futures)
            count += step
            while len(waiting) >= STEPS_PER_WINDOW:
                for future in waiting.popleft():
                    await future
        for futures in waiting:
            for future in futures:
                await future
    return {
        "ledgers": len(kept),
        "entries": count,
        "entries_per_s": round(count / used.wall),
        **used.per(count),
        "failed": 0,
    }


async def _in_tasks(world: World, kept: list[Kept], count: int, seconds: float, size: int) -> dict[str, Any]:
    """Tasks that await one append each until the time is over, to the ledgers in turn."""
    payloads = payloads_of(size)

    async def appending(one: Kept, end: float) -> int:
        done = 0
        while time.perf_counter() < end:
            payload = payloads[one.count % PAYLOADS]
            one.count += 1
            await one.ledger.append(payload)
            done += 1
        return done

    with world.accounted() as used:
        end = time.perf_counter() + seconds
        total = sum(await asyncio.gather(*(appending(one, end) for one in islice(_turns(kept), count))))
    return {
        "ledgers": len(kept),
        "entries": total,
        "entries_per_s": round(total / used.wall),
        **used.per(total),
        "failed": 0,
    }


def _turns(kept: list[Kept]) -> Iterator[Kept]:
    while True:
        yield from kept


async def _fill(one: Kept, payloads: list[bytes], count: int, window: int) -> None:
    """Add `count` entries with a full window."""
    step = max(1, window // STEPS_PER_WINDOW)
    waiting: deque[asyncio.Future[int]] = deque()
    end = one.count + count
    while one.count < end:
        for _ in range(min(step, end - one.count)):
            last = one.ledger.append_nowait(payloads[one.count % PAYLOADS])
            one.count += 1
        waiting.append(last)
        while len(waiting) >= STEPS_PER_WINDOW:
            await waiting.popleft()
    while waiting:
        await waiting.popleft()


async def _lookups(world: World, one: Kept, newest: int) -> float:
    """CPU microseconds of a read of one entry among the newest."""
    chance = random.Random(7)
    reader = await world.client.open_ledger(one.ledger.ledger_id, password=PASSWORD, recover=False)
    end = reader.last_add_confirmed + 1
    with _precisely(world) as used:
        for _ in range(LOOKUPS):
            first = chance.randrange(end - newest, end)
            async for _ in reader.read(first, first):
                pass
    return used[0] / LOOKUPS * 1e6


async def _with_fragments(world: World, job: Job, entries: int, payloads: list[bytes], count: int) -> int:
    """A closed ledger whose record says that it has `count` fragments.

    With E = Qw every bookie has every entry, so the fragments' ensembles are the bookies in turning order.
    """
    one = Kept(await world.create(job))
    await _fill(one, payloads, entries, entries)
    await one.ledger.close()
    store = world.client.records.ledgers
    record, version = await store.read(one.ledger.ledger_id)
    bookies = record.fragments[0].ensemble
    parts = tuple(
        Fragment(EntryId(number * entries // count), bookies[number % 3 :] + bookies[: number % 3])
        for number in range(count)
    )
    await store.write(replace(record, fragments=parts).checked(), version)
    return int(one.ledger.ledger_id)


async def _read_one(reader: Any, entry_id: int, payloads: list[bytes]) -> None:
    async for entry in reader.read(entry_id, entry_id):
        assert entry.payload == payloads[entry_id % PAYLOADS]


async def _in_turn(
    work: Callable[[int], Awaitable[None]], counts: list[int], rounds: int
) -> dict[int, float]:
    """The median time of each count's work, in microseconds."""
    nanos: dict[int, list[int]] = {count: [] for count in counts}
    for _ in range(rounds):
        for count in counts:
            start = time.perf_counter_ns()
            await work(count)
            nanos[count].append(time.perf_counter_ns() - start)
    return {count: percentiles(times)["p50_us"] for count, times in nanos.items()}


def _memory(world: World) -> list[float]:
    """Resident bytes of this process and of each bookie."""
    gc.collect()
    return [resident_mib(pid) * 2**20 for pid in (os.getpid(), *world.pids)]


@contextmanager
def _precisely(world: World) -> Iterator[list[float]]:
    """The CPU seconds of client and bookies inside, from the scheduler's account in nanoseconds (one number)."""
    used: list[float] = []
    before = _scheduled(world)
    yield used
    used.append(_scheduled(world) - before)


def _scheduled(world: World) -> float:
    tasks = (task for pid in (os.getpid(), *world.pids) for task in Path(f"/proc/{pid}/task").iterdir())
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9

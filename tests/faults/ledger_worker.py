"""A process that writes or reads ledgers until its stdin ends, and records what it asks and is told.

    python tests/faults/ledger_worker.py write URI NAME HISTORY QUORUMS PACE    E/Qw/Qa, several with commas; ms a group
    python tests/faults/ledger_worker.py read URI NAME HISTORY             ledgers as they come, some with recovery
    python tests/faults/ledger_worker.py read-all URI NAME HISTORY         every ledger, once; scan: every copy
    python tests/faults/ledger_worker.py scan URI NAME HISTORY

It prints a JSON object a line.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import sys
from collections import Counter, deque
from pathlib import Path
from typing import Any

import quire
from quire_testing.history import History, entry_hashes
from quire_testing.recording import (
    RecordedAppends,
    history_into,
    record_open,
    record_read,
    record_scan,
)

GROUP = 40
WINDOW = 200
ENTRIES = (200, 2500)
RECENT = 12
"""Readers look at so many of the newest ledgers: the older ones do not change any more."""
RECOVERIES = 6
"""One in so many of a reader's opens recovers, and stops the writer if there is one."""
FOLLOWS = 3
"""One in so many of a reader's looks follows the ledger."""
FOLLOWED_S = 0.4
FOLLOWED_MAX = 400


def say(**facts: Any) -> None:
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


def payloads(name: str, ledger: int, first: int) -> list[bytes]:
    return [
        (b"%s/%d/%d " % (name.encode(), ledger, number) * 20)[: 90 + number % 60]
        for number in range(first, first + GROUP)
    ]


async def append(writer: Any, recorded: RecordedAppends, name: str, count: int, pace: float) -> int:
    """Append entries with a window of them in flight; how many were acknowledged."""
    waiting: deque[asyncio.Future[int]] = deque()
    acknowledged = 0
    try:
        while recorded.next_entry < count or waiting:
            if recorded.next_entry < count and len(waiting) < WINDOW:
                group = payloads(name, int(writer.ledger_id), recorded.next_entry)
                recorded.sending(group)
                waiting.extend(writer.append_nowait(value) for value in group)
                await asyncio.sleep(pace)
                continue
            await waiting.popleft()
            recorded.acknowledged()
            acknowledged += 1
    except quire.QuireError as error:
        recorded.ended(error)
        for future in waiting:
            future.cancel()
        say(error=error.code, acknowledged=acknowledged, ledger=int(writer.ledger_id))
        raise
    return acknowledged


async def one_ledger(
    client: Any, history: History, name: str, quorums: tuple[int, ...], pace: float, chance: random.Random
) -> None:
    """Create, append, close; one in four is left open, as by a writer that dies."""
    ensemble, write, ack = quorums
    created = history.invoke(name, "create")
    writer = await client.create_ledger(ensemble_size=ensemble, write_quorum=write, ack_quorum=ack)
    ledger = int(writer.ledger_id)
    created.ok(ledger=ledger)
    recorded = RecordedAppends(history, name, ledger)
    closed = False
    try:
        acknowledged = await append(writer, recorded, name, chance.randint(*ENTRIES), pace)
        if chance.randrange(4):
            closing = history.invoke(name, "close", ledger=ledger)
            await writer.close()
            closing.ok(last=int(writer.last_add_confirmed))
            closed = True
    finally:
        if not closed:
            with contextlib.suppress(quire.QuireError):
                await writer.abandon()
    say(ledger=ledger, acknowledged=acknowledged, fragments=len(writer.metadata.fragments))


async def write(client: Any, history: History, name: str, over: asyncio.Event, rest: list[str]) -> None:
    chance = random.Random(name)
    shapes = [tuple(map(int, shape.split("/"))) for shape in rest[0].split(",")]
    pace = int(rest[1]) / 1000
    turn = 0
    while not over.is_set():
        try:
            await one_ledger(client, history, name, shapes[turn % len(shapes)], pace, chance)
        except quire.QuireError as error:
            # Too few bookies at the moment, or a reader has recovered the ledger: the next shape, the next ledger.
            say(error=error.code)
            await asyncio.sleep(0.02)
        turn += 1


async def ledgers_of(client: Any) -> list[int]:
    return [int(ledger) async for ledger in client.ledgers()]


async def read_one(client: Any, history: History, name: str, ledger: int, *, recover: bool) -> int:
    """One ledger up to what is confirmed; how many entries there were."""
    reader = await record_open(history, name, client, ledger, recover=recover)
    last = int(reader.last_add_confirmed)
    return 0 if last < 0 else await record_read(history, name, reader, last)


async def follow_one(client: Any, history: History, name: str, ledger: int) -> int:
    """Entries as they are confirmed, for a moment; how many came."""
    reader = await record_open(history, name, client, ledger, recover=False)
    first = max(0, int(reader.last_add_confirmed))
    values: list[bytes] = []
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(FOLLOWED_S), contextlib.aclosing(reader.tail(first)) as entries:
            async for entry in entries:
                assert entry.entry_id == first + len(values)
                values.append(bytes(entry.payload))
                if len(values) == FOLLOWED_MAX:
                    break
    if values:
        asked = history.invoke(name, "read", ledger=ledger, first=first, last=first + len(values) - 1)
        asked.ok(hashes=entry_hashes(values))
    return len(values)


async def read(client: Any, history: History, name: str, over: asyncio.Event, rest: list[str]) -> None:
    """Each look at a ledger is by a handle of its own: it knows of no LAC that an earlier one was told."""
    chance = random.Random(name)
    looks = 0
    while not over.is_set():
        newest = (await ledgers_of(client))[-RECENT:]
        for ledger in chance.sample(newest, len(newest)):
            looks += 1
            handle = f"{name}-{looks}"
            try:
                if chance.randrange(FOLLOWS):
                    recover = not chance.randrange(RECOVERIES)
                    say(read=await read_one(client, history, handle, ledger, recover=recover))
                else:
                    say(followed=await follow_one(client, history, handle, ledger))
            except quire.QuireError as error:
                say(error=error.code)
                await asyncio.sleep(0.02)
            if over.is_set():
                break


async def read_all(client: Any, history: History, name: str, over: asyncio.Event, rest: list[str]) -> None:
    """Nothing fails here: all bookies are up."""
    entries = 0
    found = await ledgers_of(client)
    for ledger in found:
        with contextlib.suppress(quire.NoSuchLedgerError):
            entries += await read_one(client, history, name, ledger, recover=True)
    say(ledgers=len(found), read=entries)


async def scan(client: Any, history: History, name: str, over: asyncio.Event, rest: list[str]) -> None:
    holes: Counter[str] = Counter()
    for ledger in await ledgers_of(client):
        holes["copies missing"] += await record_scan(history, client, ledger)
    say(**holes)


async def main(mode: str, uri: str, name: str, file: str, rest: list[str]) -> None:
    over = asyncio.Event()
    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), over.set)
    work = {"write": write, "read": read, "read-all": read_all, "scan": scan}[mode]
    with Path(file).open("wb", buffering=0) as out:
        async with quire.connect(uri) as client:
            await work(client, history_into(out), name, over, rest)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:5], sys.argv[5:]))

"""After a crowd of readers that never read, a bookie has as little memory as before."""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import quire
from quire.cli.local.local_cluster import LocalCluster
from quire.wire import native, native_bodies, native_hello
from quire.wire.run import checksum
from support.process import highest, resident
from support.rounds import keep_figures, rounds
from support.waiting import until_async

pytestmark = [pytest.mark.faults, pytest.mark.timeout(300)]
READERS = rounds(200, 450)
ENTRIES = 256
MIB = 1024 * 1024
MINUTE = 60.0
CLOSE_TO_THE_START = 1.1


def stands_still(pid: int) -> Callable[[], bool]:
    """Whether a process's highest memory has not risen at the last fifty looks."""
    seen: deque[int] = deque(maxlen=50)

    def look() -> bool:
        seen.append(highest(pid))
        return len(seen) == seen.maxlen and seen[0] == seen[-1]

    return look


async def crowd(local: LocalCluster) -> dict[str, Any]:
    [bookie] = local.bookies
    host, port = bookie.address.split(":")
    async with quire.connect(local.uri) as client:
        ledger = await client.create_ledger(ensemble_size=1, write_quorum=1, ack_quorum=1)
        # More than the bookie keeps of the newest runs, so that this share of its memory stands at the start.
        await ledger.append_many([os.urandom(64 * 1024)] * ENTRIES)
        await ledger.close()
        async with await client.open_ledger(ledger.ledger_id) as reader:
            assert len([entry.entry_id async for entry in reader.read(0, ENTRIES - 1)]) == ENTRIES
        start = resident(bookie.pid)
        hello = native_hello.encode_hello(native_hello.Hello("", bookie.id))
        body = native_bodies.encode_body(native_bodies.ReadBody(0, ENTRIES - 1, 4 * MIB))
        ask = native.encode_request(
            native.Kind.READ, 1, len(body), checksum(body), ledger_id=ledger.ledger_id
        )
        silent = []
        for _ in range(READERS):
            reader, writer = await asyncio.open_connection(host, int(port), limit=1024)
            reader._transport.pause_reading()
            writer.write(hello + (ask + body) * 20)
            silent.append(writer)
        await until_async(lambda: resident(bookie.pid) > 1.5 * start, "the crowd to take memory")
        await until_async(stands_still(bookie.pid), "the crowd to have all that it gets")
        for writer in silent:
            writer.transport.abort()
        began = time.perf_counter()
        await until_async(
            lambda: resident(bookie.pid) <= CLOSE_TO_THE_START * start, "the memory to come back", MINUTE
        )
        taken = time.perf_counter() - began
        async with await client.open_ledger(ledger.ledger_id) as reader:
            assert [entry.entry_id async for entry in reader.read(0, 0)] == [0]
    return {
        "readers": READERS,
        "start_mib": start // MIB,
        "highest_mib": highest(bookie.pid) // MIB,
        "seconds_until_back_within_10_percent": round(taken, 1),
    }


def test_the_memory_of_a_crowd_comes_back(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, bookies=1) as local:
        figures = asyncio.run(crowd(local))
    keep_figures("memory_comes_back", figures, seed=0)

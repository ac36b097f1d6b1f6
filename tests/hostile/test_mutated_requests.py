"""A million random and mutated frames to a bookie, over our protocol, V2 and V3: it answers or hangs up, and that is all."""

from __future__ import annotations

import asyncio
import random
import re
from pathlib import Path
from typing import Any

import pytest

import quire
from quire.cli.local.local_cluster import LocalCluster
from quire.core.errors import WrongPasswordError
from quire.wire import native_hello
from support.hostile_frames import PROTOCOLS, Mutator
from support.hostile_worlds import NATIVE
from support.process import descriptors, highest, resident
from support.rounds import keep_figures, rounds

pytestmark = pytest.mark.timeout(7000)
SEED = 20261121
FRAMES = rounds(6000, 1_000_000)
FRAMES_A_CONNECTION = 12
AT_ONCE = 8
GROWTH_MIB_MAX = 64
MIB = 1024 * 1024
LINE = re.compile("closing the connection|refused|more connections were")
IDS_TAKEN_MAX = 200
WARM_UP = 24 * MIB
"""A bookie keeps the newest entries in memory, whoever sent them: that fills up before anything is measured."""


async def attack(host: str, port: int, streams: asyncio.Queue[bytes], counts: dict[str, int]) -> None:
    while not streams.empty():
        stream = streams.get_nowait()
        reader, writer = await asyncio.open_connection(host, port)
        try:
            writer.write(stream)
            writer.write_eof()
            async with asyncio.timeout(120):
                while data := await reader.read(65536):
                    counts["answer_bytes"] += len(data)
        except OSError:  # the bookie has hung up already
            pass
        writer.close()
        counts["connections"] += 1


async def serves_the_next(uri: str) -> None:
    """A client that comes now is served. Whoever adds to a ledger first names its key: some ids were taken by frames."""
    async with quire.connect(uri) as client:
        for _ in range(IDS_TAKEN_MAX):
            ledger = await client.create_ledger(ensemble_size=1, write_quorum=1, ack_quorum=1)
            try:
                assert await ledger.append(b"as before") == 0
            except WrongPasswordError:
                await ledger.abandon()
                continue
            await ledger.close()
            return
    raise AssertionError("no new ledger can be written")


async def survive(local: LocalCluster, mutator: Mutator, folder: Path) -> dict[str, Any]:
    [bookie] = local.bookies
    hello = native_hello.encode_hello(native_hello.Hello("", bookie.id))
    async with quire.connect(local.uri) as client:
        one = {"ensemble_size": 1, "write_quorum": 1, "ack_quorum": 1}
        written = [b"entry %d" % number for number in range(100)]
        async with await client.create_ledger(**one) as ledger:
            await ledger.append_many(written)
            good = ledger.ledger_id
        async with await client.create_ledger(**one) as ledger:
            await ledger.append_many([bytes(64 * 1024)] * (WARM_UP // (64 * 1024)))
        before, open_before = resident(bookie.pid), descriptors(bookie.pid)
        counts = {"connections": 0, "answer_bytes": 0}
        while mutator.made < FRAMES:
            streams: asyncio.Queue[bytes] = asyncio.Queue()
            for number in range(300):
                protocol = PROTOCOLS[number % 3]
                stream = mutator.some(protocol, FRAMES_A_CONNECTION)
                streams.put_nowait(hello + stream if protocol == NATIVE else stream)
            host, port = bookie.address.split(":")
            await asyncio.gather(*(attack(host, int(port), streams, counts) for _ in range(AT_ONCE)))
            assert bookie.running, bookie.how_it_ended()
        # The next good client: what was written is there, and more can be.
        async with await client.open_ledger(good) as ledger:
            assert [bytes(entry.payload) async for entry in ledger.read(0, 99)] == written
    await serves_the_next(local.uri)
    lines = (folder / "bookie-1.log").read_text(errors="replace").splitlines()
    return {
        "frames": mutator.made,
        **counts,
        "grown_mib": round((highest(bookie.pid) - before) / MIB, 1),
        "resident_mib": round(resident(bookie.pid) / MIB, 1),
        "descriptors": [open_before, descriptors(bookie.pid)],
        "log_lines": len(lines),
        "of_them_about_connections": sum(1 for line in lines if LINE.search(line)),
        "tracebacks": sum(1 for line in lines if "Traceback" in line),
    }


def test_mutated_requests(tmp_path: Path) -> None:
    mutator = Mutator(random.Random(SEED), "bookie", share=0.8)
    with LocalCluster(tmp_path, bookies=1) as local:
        figures = asyncio.run(survive(local, mutator, tmp_path))
    keep_figures("mutated_requests", figures, seed=SEED)
    assert figures["tracebacks"] == 0
    assert figures["of_them_about_connections"] <= figures["connections"]
    assert figures["log_lines"] - figures["of_them_about_connections"] < 50
    assert figures["grown_mib"] <= GROWTH_MIB_MAX
    assert figures["descriptors"][1] <= figures["descriptors"][0] + 8

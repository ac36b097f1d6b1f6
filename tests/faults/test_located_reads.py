"""Reads out of a bookie's files, while its segments are compacted, given back and written again: never a wrong byte."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import pytest

import quire
from faults.restored import Cluster
from quire.client.bookies import short_circuit
from quire.core.answers import Answer
from quire.core.ids import BookieId
from quire.wire.native_info import SpaceTask
from support.small_disks import small_disk
from support.waiting import until_async

pytestmark = [pytest.mark.faults, pytest.mark.slow, pytest.mark.timeout(7200)]

RUN, SIZE = 16, 4_500
"""A ledger is one run, which is just so long that it is placed: 72 KB."""
PARTS = 4
GROUPS = 80
KEPT = 400
"""More than a bookie keeps in memory, and does not place."""
READERS = 4
TIMES = 10
"""A ledger that was opened is read so many times."""
READS_A_ROUND = 10_000
"""So many places are read between two rounds of writing, deleting and compacting."""


@lru_cache(2 * KEPT)
def values_of(ledger_id: int) -> list[bytes]:
    return [(b"%d of %d " % (number, ledger_id) * (SIZE // 8))[:SIZE] for number in range(RUN)]


class Placed:
    """Counts what is read out of files, and what has to be asked for once more."""

    def __init__(self) -> None:
        self.counted: Counter[str] = Counter()
        self._fill = short_circuit.fill

    def has_read(self, count: int) -> bool:
        return self.counted["read"] >= count

    async def fill(self, reply: Any, memory: Any) -> Any:
        locations = len(reply.locations)
        outcome = await self._fill(reply, memory)
        self.counted["read" if outcome is short_circuit.FileReadOutcome.READ else "asked twice"] += locations
        return outcome


async def written(client: quire.Client) -> list[int]:
    """Ledgers side by side, so that a segment has some of each."""
    ledgers = [
        await client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=3) for _ in range(PARTS)
    ]
    for ledger in ledgers:
        await asyncio.gather(*map(ledger.append_nowait, values_of(int(ledger.ledger_id))))
    for ledger in ledgers:
        await ledger.close()
    return [int(ledger.ledger_id) for ledger in ledgers]


async def moved(
    client: quire.Client, cluster: Cluster, tools: quire.Client, kept: list[int], located: Placed, count: int
) -> int:
    """Write, delete and compact, until the reader has enough; how many segments were given back."""
    given_back = 0
    while located.counted["read"] < count:
        enough = min(located.counted["read"] + READS_A_ROUND, count)
        for _ in range(GROUPS):
            ledgers = await written(client)
            kept.append(ledgers[0])
            await asyncio.gather(*(client.delete_ledger(one) for one in ledgers[1:]))
        for bookie in cluster.bookies:
            answer, info = await tools.bookies.space(
                BookieId(bookie.id), SpaceTask.COMPACT, timeout_ms=60_000
            )
            assert answer is Answer.OK
            given_back += info["came_back"]["retired"]
        for ledger_id in kept[:-KEPT]:
            kept.remove(ledger_id)
            await client.delete_ledger(ledger_id)
        print(dict(located.counted), given_back, flush=True)
        await until_async(partial(located.has_read, enough), "the reader to read", 600)
    return given_back


async def read(client: quire.Client, ledger_id: int, kept: list[int], located: Placed) -> None:
    """Read a ledger again and again; it may be deleted meanwhile."""
    try:
        async with await client.open_ledger(ledger_id) as reader:
            for _ in range(TIMES):
                values = iter(values_of(ledger_id))
                async for entry in reader.read(0, RUN - 1):
                    assert entry.payload == next(values), ledger_id
                assert next(values, None) is None
                located.counted["entries"] += RUN
    except quire.QuireError:
        assert ledger_id not in kept, ledger_id


async def reads(directory: Path, disks: list[Path], count: int, located: Placed) -> dict[str, Any]:
    cluster = Cluster(directory, f"sqlite:{directory / 'metadata.db'}")
    for bookie, disk in zip(cluster.bookies, disks, strict=True):
        bookie.directory = disk
    kept, at = [], 0
    async with (
        cluster.serving() as tools,
        quire.connect(cluster.uri) as writer,
        quire.connect(cluster.uri) as client,
    ):
        for _ in range(2 * GROUPS):
            kept += (await written(writer))[:1]
        moving = asyncio.create_task(moved(writer, cluster, tools, kept, located, count))
        while located.counted["read"] < count and not moving.done():
            some = [kept[(at + number) % len(kept)] for number in range(READERS)]
            at += READERS
            await asyncio.gather(*(read(client, ledger_id, kept, located) for ledger_id in some))
        given_back = await moving
    return {"given_back": given_back, **located.counted}


async def test_nothing_wrong_is_read_while_segments_move(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    record: Callable[[str, dict[str, Any]], None],
    rounds: Callable[[int, int], int],
) -> None:
    located = Placed()
    monkeypatch.setattr(short_circuit, "fill", located.fill)
    monkeypatch.setenv("QUIRE_COLLECT_EVERY", "0.5")
    with contextlib.ExitStack() as stack:  # small disks have small segments: many of them move
        disks = [
            stack.enter_context(small_disk("ext4", tmp_path / f"disk{number}", 512)) for number in range(3)
        ]
        figures = await reads(tmp_path, disks, rounds(1_000_000, 5_000), located)
    record("placed_reads_while_segments_move", figures)
    assert figures["given_back"] > 0
    assert figures.get("asked twice", 0) * 1_000 < figures["read"]

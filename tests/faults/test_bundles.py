"""Many ledgers written in turn, so that their runs travel in bundles, while bookies are killed and stopped: nothing is lost.

Each round has a fault of its own. Afterwards each ledger is recovered, and has every entry that was acknowledged, as it was
appended, with no gap; what bookies of its record lack is in its record.
"""

from __future__ import annotations

import asyncio
import random
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import quire
from faults.harness import cluster, pause, payload, run
from quire.cli.local_cluster import LocalCluster
from quire.core.errors import QuireError
from support.rounds import rounds as rounds_of_this_run
from support.waiting import until_async

pytestmark = [pytest.mark.faults, pytest.mark.timeout(7200)]
LEDGERS = rounds_of_this_run(100, 1_000)
OUTSTANDING_MAX = 5_000
GROWS = rounds_of_this_run(2_000, 20_000)
"""So many more are acknowledged while a bookie is away."""
A_TURN = 500
"""Appends of one turn of the loop, to ledgers in turn."""
ROUNDS_A_CLUSTER = 10
FAULTS = ("one dies", "one stops", "all die", "all die and the writers are abandoned")


class Load:
    """Appends to many ledgers in turn, and what of each was acknowledged: entries, in order."""

    def __init__(self, writers: list[Any]) -> None:
        self.writers = writers
        self.sent = [0] * len(writers)
        self.acknowledged = [0] * len(writers)
        self.failed: Counter[str] = Counter()
        self.outstanding = 0
        self.goes_on = True

    async def run(self) -> None:
        """Append until `goes_on` is false, or nothing can be appended any more."""
        at = 0
        while self.goes_on:
            for _ in range(A_TURN):
                at = (at + 1) % len(self.writers)
                self._append(at)
            await asyncio.sleep(0)
            await until_async(lambda: self.outstanding < OUTSTANDING_MAX, seconds=120)

    def _append(self, at: int) -> None:
        try:
            future = self.writers[at].append_nowait(payload(at, self.sent[at], 100))
        except QuireError as error:
            self.failed[type(error).__name__] += 1
            return
        self.sent[at] += 1
        self.outstanding += 1
        future.add_done_callback(lambda done: self._done(at, done))

    def _done(self, at: int, future: asyncio.Future[int]) -> None:
        self.outstanding -= 1
        error = future.exception()
        if error is None:
            assert future.result() == self.acknowledged[at], "confirmed in order"
            self.acknowledged[at] += 1
        else:
            self.failed[type(error).__name__] += 1

    async def grows(self, entries: int) -> None:
        """Return when so many more were acknowledged."""
        wanted = sum(self.acknowledged) + entries
        await until_async(lambda: sum(self.acknowledged) >= wanted, seconds=120)


async def fault(local: LocalCluster, kind: str, load: Load, chance: random.Random) -> None:
    """Make it, and return when it is over."""
    victim = chance.randrange(len(local.bookies))
    if kind == "one dies":
        await asyncio.to_thread(local.kill, victim)
        await load.grows(GROWS)
        await asyncio.to_thread(local.restart, victim)
    elif kind == "one stops":
        process = local.bookies[victim].process
        assert process is not None
        process.send_signal(signal.SIGSTOP)
        await load.grows(GROWS)
        process.send_signal(signal.SIGCONT)
    else:
        for bookie in local.bookies:
            assert bookie.process is not None
            bookie.process.kill()
        if kind == "all die and the writers are abandoned":
            load.goes_on = False
            await asyncio.gather(*(writer.abandon() for writer in load.writers))
        for index in range(len(local.bookies)):
            await asyncio.to_thread(local.kill, index)
            await asyncio.to_thread(local.restart, index)


async def one_round(local: LocalCluster, number: int, chance: random.Random, figures: Counter[str]) -> None:
    kind = FAULTS[number % len(FAULTS)]
    async with quire.connect(local.uri) as client:
        create = client.create_ledger
        writers = [await create(ensemble_size=3, write_quorum=3, ack_quorum=2) for _ in range(LEDGERS)]
        load = Load(writers)
        loading = asyncio.create_task(load.run())
        await load.grows(2 * LEDGERS)
        await pause(chance)
        await fault(local, kind, load, chance)
        load.goes_on = False
        await loading
        if kind.startswith("one"):
            await asyncio.gather(*(writer.drain() for writer in writers))
            assert not load.failed
            assert load.acknowledged == load.sent
        for writer in writers:
            await writer.abandon()
        await until_async(lambda: not load.outstanding)
    async with quire.connect(local.uri) as client:
        for at, writer in enumerate(writers):
            await client.recover_ledger(writer.ledger_id)
            reader = await client.open_ledger(writer.ledger_id)
            count = reader.last_add_confirmed + 1
            assert load.acknowledged[at] <= count <= load.sent[at], f"round {number}, {kind}"
            found = [bytes(entry.payload) async for entry in reader.read()] if count else []
            assert found == [payload(at, entry, 100) for entry in range(count)], f"round {number}, {kind}"
            figures["resolved"] += count - load.acknowledged[at]
            await client.delete_ledger(writer.ledger_id)
    figures[kind] += 1
    figures["acknowledged"] += sum(load.acknowledged)


async def all_rounds(directory: Path, rounds: int, chance: random.Random) -> dict[str, Any]:
    figures: Counter[str] = Counter()
    for first in range(0, rounds, ROUNDS_A_CLUSTER):
        async with cluster(directory / f"from-{first}", 4) as local:
            for number in range(first, min(first + ROUNDS_A_CLUSTER, rounds)):
                await one_round(local, number, chance, figures)
    return {"ledgers": LEDGERS, "rounds": rounds, **figures, "lost": 0}


def test_bookies_die_and_stop_under_bundles(
    tmp_path: Path, chance: random.Random, rounds: Callable[[int, int], int], record: Callable[..., None]
) -> None:
    record("bookies_die_and_stop_under_bundles", run(all_rounds(tmp_path, rounds(200, 4), chance)))

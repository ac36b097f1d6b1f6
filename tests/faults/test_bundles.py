"""Many ledgers written in turn, so that their runs travel in bundles, while processes die and stop, syncs fail and disks fill.

Each round has a fault of its own. Afterwards each ledger is closed by its writer or recovered, and has every entry that
was acknowledged, as it was appended, with no gap, on Qa bookies. What bookies of its record lack is a hole there where the
writer ended in order; of what a recovery wrote back it is one, or stands in the recovery's report.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import quire
from faults import bundle_worker, faulty_bookie
from faults.bundle_worker import ENTRY_BYTES, PATIENCE_S, Counts, Load, new_counts
from faults.harness import cluster, lacking, pause, payload
from quire.cli.local.local_bookie import LocalBookie
from quire.cli.local.local_cluster import LocalCluster
from quire.client.access import LedgerAccess
from quire.core.answers import Answer
from quire.core.ids import NO_ENTRY, BookieId
from quire.core.ledger.writer_state import Hole
from quire.net.channel import NativeCodec
from support.records import is_hole
from support.rounds import FULL
from support.small_disks import small_disk
from support.waiting import until_async

pytestmark = [pytest.mark.faults, pytest.mark.timeout(7200)]
LEDGERS = 1_000 if FULL else 60
GROWS = 20_000 if FULL else 2_000
"""So many more are acknowledged while a bookie is away."""
PAUSE_MS = 500 if FULL else 200
BOOKIES = 4
DISK_MIB = 96 if FULL else 48
AT_ONCE = 32
"""Ledgers that are looked at side by side."""
ROUNDS_A_CLUSTER = 10
Record = Callable[[str, dict[str, Any]], None]
Rounds = Callable[[int, int], int]


class FaultyCluster(LocalCluster):
    """A cluster of bookies whose syncs can be made to fail; they lie in these folders if there are any."""

    def __init__(self, directory: Path, bookies: int, disks: Sequence[Path] = ()) -> None:
        super().__init__(directory, bookies)
        for bookie, disk in zip(self.bookies, disks, strict=False):
            bookie.directory = disk

    def _run(self, bookie: LocalBookie, command: list[str]) -> None:
        super()._run(bookie, [faulty_bookie.__file__, *command[2:]])


async def back(local: LocalCluster, victims: Iterable[int]) -> None:
    """Start bookies again; those that run are killed before."""
    for index in victims:
        await asyncio.to_thread(local.kill, index)
    await asyncio.gather(*(asyncio.to_thread(local.restart, index) for index in victims))


def send(local: LocalCluster, victims: Iterable[int], number: int) -> None:
    for index in victims:
        os.kill(local.bookies[index].pid, number)


# --- what is there afterwards -------------------------------------------------------------------------------------


class Written:
    """Ledgers that many runs were written to, and what is known of them.

    Args:
        ledgers: their ids.
        counts: how many entries of each were sent, and how many acknowledged.
        in_order: the numbers of those whose writers have closed them, or left them with their client.
    """

    def __init__(self, ledgers: list[int], counts: Counts, in_order: Iterable[int] = ()) -> None:
        self.ledgers, self.in_order = ledgers, set(in_order)
        self.sent, self.acknowledged = counts
        self.known = [NO_ENTRY] * len(ledgers)
        self.stragglers: list[Sequence[Hole]] = [()] * len(ledgers)

    async def recover(self, client: Any) -> None:
        """Each of them. `known`: the last entry that a bookie knew to be confirmed before. `stragglers`: see the report."""

        async def one(at: int) -> None:
            ledger_id = self.ledgers[at]
            record = await client.ledger_metadata(ledger_id)
            access = LedgerAccess.of(record)
            bookies = {bookie for fragment in record.fragments for bookie in fragment.ensemble}
            said = await asyncio.gather(*(client.bookies.read_lac(bookie, access) for bookie in bookies))
            self.known[at] = max(reply.lac for reply in said)
            self.stragglers[at] = (await client.recover_ledger(ledger_id)).stragglers

        await each(one, self.ledgers)

    async def verify(self, client: Any, where: str) -> Counter[str]:
        """All that was acknowledged is there and nothing else; figures."""
        figures: Counter[str] = Counter()

        async def one(at: int) -> None:
            async with await client.open_ledger(self.ledgers[at]) as reader:
                count = reader.last_add_confirmed + 1
                assert self.acknowledged[at] <= count <= self.sent[at], where
                found = [bytes(entry.payload) async for entry in reader.read()] if count else []
            assert found == [payload(at, entry, ENTRY_BYTES) for entry in range(count)], where
            figures["resolved"] += count - self.acknowledged[at]
            notes, _, gaps = await lacking(client, self.ledgers[at])
            lacks = [(gap.bookie, entry) for gap in gaps for entry in gap.ids()]
            assert set(Counter(entry for _, entry in lacks).values()) <= {1}, f"{where}: fewer than Qa copies"
            noted = {lack for lack in lacks if is_hole(notes, *lack)}
            runs = ((run.bookie, range(run.first, run.last + 1)) for run in self.stragglers[at])
            reported = {(bookie, entry) for bookie, entries in runs for entry in entries}.intersection(lacks)
            figures["lacks"] += len(lacks)
            figures["lacks in the record"] += len(noted)
            figures["lacks reported by a recovery"] += len(reported)
            first = 0 if at in self.in_order else self.known[at] + 1
            silent = {lack for lack in lacks if lack[1] >= first} - noted - reported
            assert not silent, f"{where}: lacks without a hole"
            await client.delete_ledger(self.ledgers[at])

        await each(one, self.ledgers)
        figures["acknowledged"] += sum(self.acknowledged)
        return figures


async def each(work: Callable[[int], Awaitable[None]], ledgers: Sequence[int]) -> None:
    """Do this to each of some ledgers, by number, several side by side."""
    numbers = iter(range(len(ledgers)))

    async def some() -> None:
        for at in numbers:
            await work(at)

    await asyncio.gather(*(some() for _ in range(AT_ONCE)))


# --- what happens to one bookie, or to each ------------------------------------------------------------------------


class Scene:
    """A cluster under load, and where a fault strikes."""

    def __init__(self, local: LocalCluster, client: Any, load: Load, chance: random.Random) -> None:
        self.local, self.client, self.load, self.chance = local, client, load, chance
        self.victims: Sequence[int] = ()

    async def grows(self) -> None:
        """More is acknowledged without the one bookie; without any nothing is."""
        if len(self.victims) == 1:
            await self.load.grows(GROWS)

    async def says(self, index: int, what: str) -> bool:
        """Whether a bookie says this of itself."""
        answer, info = await self.client.bookies.info(BookieId(self.local.bookies[index].id))
        assert answer is Answer.OK
        return what in str(info["conditions"])

    async def until_said(self, what: str) -> None:
        """Return when a victim says this of itself; of all bookies all but one: without three nothing is written to it."""
        wanted = max(1, len(self.victims) - 1)

        async def said() -> bool:
            return sum([await self.says(index, what) for index in self.victims]) >= wanted

        await until_async(said, what, seconds=PATIENCE_S)

    async def dies(self) -> None:
        send(self.local, self.victims, signal.SIGKILL)
        await self.grows()
        await back(self.local, self.victims)

    async def dies_and_the_writers_are_abandoned(self) -> None:
        send(self.local, self.victims, signal.SIGKILL)
        self.load.goes_on = False
        await asyncio.gather(*(writer.abandon() for writer in self.load.writers))
        self.load.ended.update(range(LEDGERS))
        await back(self.local, self.victims)

    async def stops(self) -> None:
        send(self.local, self.victims, signal.SIGSTOP)
        await self.grows()
        if len(self.victims) > 1:
            await pause(self.chance, high_ms=PAUSE_MS)
        send(self.local, self.victims, signal.SIGCONT)

    async def cannot_sync(self) -> None:
        send(self.local, self.victims, self.chance.choice([faulty_bookie.KEPT, faulty_bookie.LOST]))
        await self.until_said("injected")
        await self.grows()
        await back(self.local, self.victims)

    async def is_full(self) -> None:
        fillers = [self.local.bookies[index].directory.with_name("filler") for index in self.victims]
        for filler in fillers:
            with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
                while True:
                    file.write(bytes(64 * 1024))
        await self.until_said("the disk is full")
        await self.grows()
        for filler in fillers:
            filler.unlink()

        async def have_room() -> bool:
            return not any([await self.says(index, "the disk is full") for index in self.victims])

        await until_async(have_room, "room", seconds=PATIENCE_S)


FAULTS = {
    "dies": Scene.dies,
    "stops": Scene.stops,
    "dies, and the writers are abandoned": Scene.dies_and_the_writers_are_abandoned,
    "cannot sync": Scene.cannot_sync,
    "is full": Scene.is_full,
}


async def under_a_fault(local: LocalCluster, kind: str, chance: random.Random) -> Written:
    """Write to many ledgers while a fault strikes; `kind`: whom, and what."""
    whom, _, what = kind.partition(" ")
    async with quire.connect(local.uri) as client:
        load = await Load.begin(client, LEDGERS)
        loading = asyncio.create_task(load.run())
        await load.grows(2 * LEDGERS)
        await pause(chance, high_ms=PAUSE_MS)
        scene = Scene(local, client, load, chance)
        scene.victims = range(BOOKIES) if whom == "each" else [chance.randrange(BOOKIES)]
        await FAULTS[what](scene)
        load.goes_on = False
        await loading
        await until_async(lambda: not load.outstanding, seconds=PATIENCE_S)
        in_order = [at for at in range(LEDGERS) if at not in load.ended]
        # Half of the writers close their ledgers; the others are left to the end of the client.
        await asyncio.gather(*(load.writers[at].close() for at in in_order[::2]))
    assert all(load.acknowledged[at] == load.sent[at] for at in in_order)
    if whom == "one":
        assert not load.failed, load.failed
    ledgers = [int(writer.ledger_id) for writer in load.writers]
    written = Written(ledgers, (load.sent, load.acknowledged), in_order)
    async with quire.connect(local.uri) as client:
        await written.recover(client)
    return written


# --- what happens to a process that writes -----------------------------------------------------------------------


async def with_a_process(local: LocalCluster, kind: str, chance: random.Random) -> Written:
    """Another process writes to many ledgers, and is killed or stopped; all are recovered meanwhile."""
    file = local.directory / "counts"
    counts = new_counts(file, LEDGERS)
    command = (sys.executable, bundle_worker.__file__, local.uri, str(file), str(LEDGERS))
    with (local.directory / "writer.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, stderr=log)
    assert process.stdout is not None
    written = Written(json.loads(await process.stdout.readline()), counts)
    await until_async(lambda: sum(written.acknowledged) >= 2 * LEDGERS, seconds=PATIENCE_S)
    await pause(chance, high_ms=PAUSE_MS)
    victims = [chance.randrange(BOOKIES)] if kind.endswith("a bookie die") else []
    process.send_signal(signal.SIGSTOP if kind.endswith("stops") else signal.SIGKILL)
    send(local, victims, signal.SIGKILL)
    async with quire.connect(local.uri) as client:
        await written.recover(client)
    await back(local, victims)
    if kind.endswith("stops"):
        process.send_signal(signal.SIGCONT)
    rest = await process.stdout.read()
    assert await process.wait() == (0 if rest else -signal.SIGKILL)
    if kind.endswith("stops"):
        failed = json.loads(rest)
        assert failed.keys() - {"NotWritingError"} == {"LedgerFencedError"}, failed
    return written


async def one_round(local: LocalCluster, kind: str, chance: random.Random, figures: Counter[str]) -> None:
    began = time.monotonic()
    work = with_a_process if kind.startswith("the writer") else under_a_fault
    written = await work(local, kind, chance)
    async with quire.connect(local.uri) as client:
        found = await written.verify(client, kind)
    found |= {kind: 1, "writers that ended": LEDGERS - len(written.in_order)}
    print(f"{time.monotonic() - began:.1f} s: {dict(found)}", flush=True)
    figures.update(found)


async def all_rounds(
    directory: Path, kinds: Sequence[str], rounds: int, chance: random.Random, disks: Sequence[Path] = ()
) -> dict[str, Any]:
    figures: Counter[str] = Counter()
    with pytest.MonkeyPatch.context() as patch:
        count_bundles(patch, figures)
        for first in range(0, rounds, ROUNDS_A_CLUSTER):
            place = directory / f"from-{first}"
            async with cluster(place, BOOKIES, partial(FaultyCluster, disks=disks)) as local:
                for number in range(first, min(first + ROUNDS_A_CLUSTER, rounds)):
                    await one_round(local, kinds[number % len(kinds)], chance, figures)
            for disk in disks:  # the next cluster is another one
                shutil.rmtree(disk)
    assert figures["bundles"]
    return {"ledgers": LEDGERS, "rounds": rounds, **figures, "lost": 0}


def count_bundles(patch: pytest.MonkeyPatch, figures: Counter[str]) -> None:
    """Those that clients of this process send."""
    send_bundle = NativeCodec.send_bundle

    def counted(*given: Any) -> bool:
        figures["bundles"] += 1
        return send_bundle(*given)

    patch.setattr(NativeCodec, "send_bundle", counted)


KINDS = (
    "one dies",
    "one stops",
    "one cannot sync",
    "each cannot sync",
    "the writer and a bookie die",
    "the writer stops",
    "each dies",
    "each stops",
    "each dies, and the writers are abandoned",
    "the writer dies",
)
KINDS_OF_DISKS = ("one is full", "each is full")


async def test_processes_die_and_stop_under_bundles(
    tmp_path: Path, chance: random.Random, rounds: Rounds, record: Record
) -> None:
    record("processes_die_and_stop_under_bundles", await all_rounds(tmp_path, KINDS, rounds(160, 3), chance))


async def test_disks_fill_under_bundles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chance: random.Random, rounds: Rounds, record: Record
) -> None:
    monkeypatch.setenv("QUIRE_COLLECT_EVERY", "0.5")
    with contextlib.ExitStack() as stack:
        disks = [
            stack.enter_context(small_disk("tmpfs", tmp_path / f"disk-{number}", DISK_MIB))
            for number in range(BOOKIES)
        ]
        work = all_rounds(tmp_path, KINDS_OF_DISKS, rounds(40, 1), chance, disks)
        record("disks_fill_under_bundles", await work)

"""Incidents of what a bookie says and takes: the real ledgers over the real storage, on a disk in memory."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from quire.bookie.collecting.collector import GarbageCollector
from quire.bookie.collecting.collector_store import CollectorStore, Doomed
from quire.bookie.config import BookieConfig
from quire.bookie.ledgers.ledgers import Ledgers
from quire.bookie.ledgers.unknown_ledgers import NO_CLIENT
from quire.core.answers import Answer
from quire.core.bookie.ledger import BookieLedgerMachine
from quire.core.bookie.rules import RULES
from quire.core.ids import BookieId, EntryId, LedgerId
from quire.metadata.memory import MemoryStore
from quire.metadata.records import OF_LEDGERS, RecordStore
from quire.storage.ledger_storage import LedgerStorage
from quire.wire.native import Request
from quire_testing.kit.stepped import StepClock, StepWorker
from support.museum import incident, require
from support.one_bookie import Denies, OneBookie, check_nothing_denied, filled, opened, recovered
from support.records import record_of
from support.storage_disk import (
    FaultyFiles,
)


def damage_last_run(files: FaultyFiles, storage: LedgerStorage, ledger_id: int) -> None:
    """Flip a bit in the entries of a ledger's last run."""
    record = next(r for r in storage.scan() if r.ledger_id == ledger_id and r.first == 50)
    files.nodes[str(storage._files.path(record.segment))].data[record.offset + 700] ^= 4


@incident(
    ref="issues/2908",
    title='A damaged entry log answers "no such entry"',
    happened=(
        "The entry logger threw NoEntryException when a log file was corrupt. Recovery takes that for a conclusive negative: "
        "with enough of them it closes the ledger before the entry, and damage that another copy would have healed has "
        "become a loss."
    ),
    ours=(
        "Three bookies hold entries 0 to 59; the last run rots on two of them, the third is slow. The shipped bookie says "
        '"unknown", so nothing is decided without the third.'
    ),
    switch="a disk for which what cannot be read is not there",
    violates="I1",
)
async def test_2908_rot_is_not_an_answer(fault: bool) -> None:
    bookies = []
    for name in ("b1", "b2", "b3"):
        files = FaultyFiles()
        storage = filled(files)
        if name != "b3":
            damage_last_run(files, storage, 1)
        bookies.append(OneBookie(Denies(storage) if fault else storage, name=name))
    first = recovered(bookies, (3, 3, 2), slow=["b3"])
    if first is not None:
        require(
            first.last_entry == 59, "I1", f"entries up to 59 were acknowledged, closed at {first.last_entry}"
        )
    after = recovered(bookies, (3, 3, 2))
    assert after is not None
    assert after.last_entry == 59


@incident(
    ref="issues/2612",
    title="An emptied bookie that is still itself says that there is no ledger",
    happened=(
        "E=Qw=Qa=3. One bookie's data are wiped while its identity stays. Asked for the last confirmed entry it answers "
        '"no such ledger" at once, and with Qa=3 one answer is enough: the application takes the ledger for empty and '
        'throws it away. The thread settles on BP-46: such a bookie must say "unknown".'
    ),
    ours=(
        "Three bookies with sixty entries; the segments of one are taken away, its cookie stays, and it answers first. "
        "This run found that we had the fault: an empty directory with a cookie started as a new one. It is in limbo now."
    ),
    switch="a directory without segments is a new one, whatever its cookie says",
    violates="I1",
)
async def test_2612_emptied_but_still_itself(fault: bool) -> None:
    bookies = [OneBookie(opened(FaultyFiles(), served=not fault), name="b1")]
    bookies += [OneBookie(filled(FaultyFiles()), name=name) for name in ("b2", "b3")]
    if not fault:
        assert bookies[0].storage.report.unknown_in_limbo
        assert "all segments are missing" in bookies[0].storage.damages.kept[0].what
    # Where the fault is not switched on, the two that have it are heard after the first, and decide.
    closed = recovered(bookies, (3, 3, 3), slow=["b2", "b3"] if fault else [])
    assert closed is not None
    require(
        closed.last_entry == 59, "I1", f"entries up to 59 were acknowledged, closed at {closed.last_entry}"
    )


class TwoHandles(Ledgers):
    """Adds and fences may come to know one ledger by two machines, each made in its own turn of the race."""

    def _known(self, ledger_id: int) -> BookieLedgerMachine | None:
        if not hasattr(self, "_handles"):
            self._handles: dict[int, BookieLedgerMachine] = {}
        if ledger_id not in self._handles:
            facts = self._storage.facts(ledger_id)
            if facts is None:
                return None
            self._handles[ledger_id] = BookieLedgerMachine(facts, known=True, rules=RULES)
        return self._handles[ledger_id]

    def fence(self, request: Request, callback: Any, client: Any = NO_CLIENT) -> None:
        mine = self._known(request.ledger_id)
        assert mine is not None
        self._handles[request.ledger_id] = BookieLedgerMachine(mine.facts.copy(), known=True, rules=RULES)
        super().fence(request, callback, client)
        self._handles[request.ledger_id] = mine


@incident(
    ref="pull/4701",
    title="Two handles of one ledger: one is fenced, the other takes adds",
    happened=(
        "Fencing and adding lock the ledger's descriptor. Two threads that both find none each make one, and only the map "
        "agrees on which stays: the add goes on with the descriptor that nobody fences. It is stored and acknowledged "
        "after the recoverer has read the LAC: an entry lost."
    ),
    ours=(
        "A fence and an add in one loop turn, before and after two thousand other ledgers have pushed the machine out of "
        "memory. A ledger is touched by one loop only, and a machine is let go only when the disk knows what it knew."
    ),
    switch="a bookie that fences another handle of the ledger than the one that adds see",
    violates="I9",
)
async def test_4701_two_handles(fault: bool) -> None:
    bookie = OneBookie(opened(FaultyFiles()), TwoHandles if fault else Ledgers)
    assert bookie.add(7, 0, 0) is Answer.OK
    answers = bookie.fence(7)
    assert answers == [], "the fence is not durable yet"
    told = bookie.add(7, 1, 1)
    require(told is Answer.FENCED, "I9", f"the add after the fence was answered {told.name}")
    bookie.settle()
    for ledger_id in range(100, 100 + 2 * 1024 + 10):
        bookie.fence(ledger_id)
    bookie.settle()
    assert bookie.add(7, 1, 1) is Answer.FENCED
    assert answers == [Answer.OK]
    assert bookie.add(7, 1, 1, recovery=True) is Answer.OK


@incident(
    mutant="X30",
    ref="pull/4462",
    title="A write succeeds after the ledger was deleted (the bookie's half)",
    happened=(
        "A broker lost its session; its successor opened the last ledger and deleted it, because it was empty. Bookies "
        "dropped the ledger, with it the fence, and the old broker's next add made it again: acknowledged, and nobody "
        "will ever read it."
    ),
    ours="Deleting leaves a tombstone that refuses adds, also after a restart of the bookie, until late adds are impossible.",
    switch="a tombstone refuses nothing",
    violates="I9",
)
async def test_4462_a_tombstone_refuses(fault: bool) -> None:
    files = FaultyFiles()
    bookie = OneBookie(opened(files))
    assert bookie.add(7, 0, 9) is Answer.OK
    bookie.ledgers.delete(7, 10**15)
    bookie.settle()
    for again in range(2):
        for recovery in (False, True):
            answer = bookie.add(7, 10, 10, recovery=recovery)
            require(
                answer is Answer.DELETED, "I9", f"an add to the deleted ledger was answered {answer.name}"
            )
        if not again:
            bookie.storage.close(clean=False)
            bookie = OneBookie(opened(files))


class ListingIsProof(CollectorStore):
    """What a listing does not show is gone: nobody looks again before the drop."""

    async def look(self, batch: Sequence[Doomed], mine: int) -> list[bool]:
        return [False] * len(batch)


class ShortListing(RecordStore):
    """A store whose listing shows nothing from some moment on, whatever there is."""

    empty = False

    async def page(self, after: LedgerId | None = None) -> list[tuple[LedgerId, Any]]:
        return [] if self.empty else await super().page(after)


@incident(
    ref="issues/870",
    title="A listing that is empty by mistake deletes everything",
    happened=(
        "Scan-and-compare garbage collection had a path of its own for an empty listing of all ledgers: it deleted "
        "whatever the bookie held without looking again. Bugs in ledger managers made listings end early more than once, "
        "and live ledgers were deleted."
    ),
    ours="Three living ledgers that two passes found, and a store whose listing is empty from then on: a ledger goes only when one last look, at its record and the bookie's own counter in one moment, says that it is gone.",
    switch="a collector for which the listing is proof",
    violates="kept",
)
async def test_870_an_empty_listing(fault: bool, tmp_path: Path) -> None:
    files = FaultyFiles()
    bookie = OneBookie(filled(files))
    store = MemoryStore()
    records = ShortListing(store, OF_LEDGERS)
    for ledger_id in (1, 2, 3):
        await records.create(record_of(ledger_id, ["b1"], password=b""))
    asked = (ListingIsProof if fault else CollectorStore)(store, BookieId("b1"))
    asked.records.ledgers = records
    worker = StepWorker()
    collector = GarbageCollector(
        BookieConfig(directory=tmp_path),
        bookie.storage,
        bookie.ledgers,
        asked,
        clock=StepClock(1_000_000),
        files=files,
        worker=worker,
        chance=random.Random(7),
    )
    for number in range(4):
        records.empty = number >= 2
        one = asyncio.ensure_future(collector.collect())
        while not one.done():
            await asyncio.sleep(0)
            worker.finish()
            bookie.settle()
        await one
    check_nothing_denied(bookie.storage, (1, 2, 3), "kept")
    await store.close()


def test_the_museum_runs_its_bookies_on_a_loop() -> None:
    """Ledgers schedule their flush on a loop; every run above is a coroutine for that reason."""

    async def work() -> None:
        bookie = OneBookie(opened(FaultyFiles()))
        assert bookie.add(1, 0, 2) is Answer.OK
        assert bookie.recovery_read(1, 0, 5)[1].keys() == {0, 1, 2}
        assert EntryId(2) in bookie.recovery_read(1, 0, 5)[1]

    asyncio.run(work())

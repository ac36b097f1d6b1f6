"""What is judged of marks in a simulated world: no decided hole is without one at rest, and nothing that is there is called lost.

M1: once every program is at rest, what a bookie lacks of a decided fragment is marked for repair. M2: a look at the copies
calls no entry lost; the faults of this mix lose none. Excepted from M1 is a ledger whose writer was killed while it waited for
bookies after its close.

Source: docs/simulation.md, "The world"; docs/protocol/audit.md; docs/decisions/050-who-decides-marks.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any, Final, TypeAlias

from quire.autorecovery.repair import ClusterRepair
from quire.client.reading.lac_read import newest_lac
from quire.client.repairing.inspection import held_stripes, look_at
from quire.client.repairing.ledger_repair import access_of
from quire.core.errors import NoSuchLedgerError, QuireError
from quire.core.ids import BookieId
from quire.core.ledger.metadata import LedgerMetadata, LedgerState
from quire.core.ledger.notes import EntryRange
from quire.core.ledger.stripes import HeldInterval
from quire.core.repair.under_replicated_marks import ANY_BOOKIE, MarkReason, UnderReplicatedMark
from quire.log.client import QuireClient
from quire.metadata.records import OF_LEDGERS, OF_STREAMS
from quire.metadata.repairs import LedgerMarks
from quire.storage.segments.findings import Damage
from quire_testing.sim.ledger_box import LedgerBox
from quire_testing.sim.programs import SimBookie, SimClient
from quire_testing.sim.world import World

Connect: TypeAlias = Callable[[SimClient], Coroutine[Any, Any, QuireClient]]
LOOKS: Final = 15
"""As often an inspector or a scrubber looks at all ledgers, at most."""
REST_TRIES: Final = 16
"""As often it is looked whether what is not marked yet is, half a second apart."""
LIST_MS: Final = 1000


class MarkPrograms:
    """What looks at the marks of a world.

    Args:
        world: which.
        boxes: the ledgers that its writers have.
    """

    def __init__(self, world: World, boxes: Sequence[LedgerBox]) -> None:
        self._world, self._boxes = world, boxes
        # What was found to be damaged, by ledger: the bookie and the entry; before its mark is known to be stored, and after.
        self._being_marked: set[tuple[int, BookieId, int]] = set()
        self._marked: defaultdict[int, set[tuple[BookieId, int]]] = defaultdict(set)
        world.space.on_unmarked = self._unmarked_now

    async def inspect(self, process: SimClient, connect: Connect) -> None:
        """Look at the copies of all ledgers again and again, as an operator's commands do."""
        client, chance = await connect(process), self._world.chance(process.name)
        for _ in range(LOOKS):
            await asyncio.sleep(chance.random() ** 2)
            with contextlib.suppress(QuireError):
                found = await ClusterRepair(client).look()
                for ledger_id, lacking in found.ledgers.items():
                    self._world.saw("a look finds that copies are missing")
                    if lacking.lost:
                        first, last = lacking.lost[0].first, lacking.lost[0].last
                        self._world.broken(
                            f"M2: entries {first}..{last} of ledger {ledger_id} are called lost"
                        )

    async def scrub(self, process: SimClient, connect: Connect) -> None:
        """One bookie, the same throughout, finds copies damaged, and that is marked.

        Also of a fragment that is not decided: what the bookie has acknowledged its writer vouches for, when it is.
        """
        name, client, bookies = process.name, await connect(process), [*self._world.bookies.values()]
        chance = self._world.chance(name)
        for _ in range(LOOKS):
            await asyncio.sleep(chance.random() ** 2)
            with contextlib.suppress(QuireError):
                await self._damage_some(name, client, chance, bookies[self._world.seed % len(bookies)])

    async def _damage_some(
        self, name: str, client: QuireClient, chance: random.Random, bookie: SimBookie
    ) -> None:
        async for listed in client.records.listed():
            record, version = listed.parsed(), listed.stored.version
            last = int(record.last_entry)
            if record.state is not LedgerState.CLOSED:
                access = access_of(record, b"s")
                last = int(await newest_lac(record, access, client.bookies, timeout_ms=LIST_MS))
            some = [] if chance.getrandbits(1) else _held(bookie, int(record.ledger_id), last)
            if not some:
                continue
            await self._damage(name, client, bookie, record, version, *chance.choice(some))

    async def _damage(
        self,
        name: str,
        client: QuireClient,
        bookie: SimBookie,
        record: LedgerMetadata,
        version: int,
        entry_id: int,
        origin: int,
    ) -> None:
        assert bookie.server is not None
        bookie_id, ledger_id = bookie.server.bookie_id, int(record.ledger_id)
        self._being_marked.add((ledger_id, bookie_id, entry_id))
        bookie.server.storage.damages.found(Damage("", 0, ledger_id, entry_id, entry_id, "damaged", origin))
        decided = "a decided" if entry_id <= record.decided_through else "an undecided"
        self._world.saw(f"a copy is found to be damaged in {decided} fragment")
        entries, now_ms = EntryRange(entry_id, entry_id), client.clock.wall_ms()
        mark = UnderReplicatedMark(MarkReason.DAMAGE, bookie_id, entries, version, name, now_ms)
        await client.records.repairs(name).mark(ledger_id, [mark])
        self._being_marked.discard((ledger_id, bookie_id, entry_id))
        self._marked[ledger_id].add((bookie_id, entry_id))

    def _unmarked_now(self, ledger_id: int) -> None:
        """M1 at the moment at which the marks of a ledger go: what was marked of it is put back."""
        rows, record = self._world.space.rows, self._world.record(ledger_id)
        if record is None or not {OF_LEDGERS.key(ledger_id), OF_STREAMS.key(ledger_id)} & rows.keys():
            return
        for bookie_id, entry_id in self._marked[ledger_id]:
            bookie = next(one for one in self._world.bookies.values() if bookie_id.startswith(f"{one.name}."))
            good = {good for good, _ in _held(bookie, ledger_id, entry_id)}
            is_its_own = bookie.up and bookie_id in record.ensemble_of(entry_id)
            if (
                is_its_own
                and entry_id not in good
                and (ledger_id, bookie_id, entry_id) not in self._being_marked
            ):
                self._world.broken(
                    f"M1: the marks of ledger {ledger_id} go, and {bookie_id} lacks entry {entry_id}, which was marked"
                )

    async def check(self, client: QuireClient) -> None:
        """M1, once every program is at rest."""
        wrong: list[str] = []
        for _ in range(REST_TRIES):
            wrong = []
            with contextlib.suppress(QuireError):
                wrong = [each async for each in self._unmarked(client)]
                if not wrong:
                    return
            await asyncio.sleep(0.5)
        for each in wrong:
            self._world.broken(f"M1: {each}")

    async def _unmarked(self, client: QuireClient) -> AsyncIterator[str]:
        """What is missing and not marked, in sentences."""
        marks = client.records.repairs("")
        async for listed in client.records.listed():
            ledger_id = int(listed.ledger_id)
            if self._waited(ledger_id):
                self._world.saw("a writer is killed while it waits for bookies after its close")
                continue
            with contextlib.suppress(NoSuchLedgerError):
                # Before the lists: what is filled meanwhile loses its mark.
                known = await marks.marks_of(ledger_id)
                look = await look_at(ledger_id, client.records, client.bookies, timeout_ms=LIST_MS)
                decided = look.record.decided_through
                for one in held_stripes(look):
                    for part in one.missing:
                        if part.first > decided:
                            continue
                        self._world.saw("a hole is marked at rest")
                        left = [
                            each
                            for each in part.ids()
                            if (ledger_id, part.bookie, each) not in self._being_marked
                        ]
                        if not _covers(known, part.bookie, left):
                            yield f"{part.bookie} lacks entries {part.first}..{part.last} of ledger {ledger_id}, without a mark"

    def _waited(self, ledger_id: int) -> bool:
        return any(
            box.ledger_id == ledger_id and box.closing is not None and not box.closing.loop.alive
            for box in self._boxes
        )


def _held(bookie: SimBookie, ledger_id: int, last: int) -> list[tuple[int, int]]:
    """The entries of a ledger up to one that a bookie holds and knows to be good, each with its origin term."""
    if not bookie.up or bookie.server is None:
        return []
    found = []
    for each in bookie.server.storage.held(ledger_id):
        one = HeldInterval(*each)
        ids = range(one.first, min(last, one.last) + 1)
        found += [(entry_id, one.origin_term) for entry_id in ids if one.stripes >> entry_id % one.period & 1]
    return found


def _covers(marks: LedgerMarks, bookie: BookieId, entries: Sequence[int]) -> bool:
    """Whether marks say that a bookie may lack these entries, or that it was lost."""
    if marks.missing is not None and marks.missing.mark and bookie in marks.missing.mark.bookies:
        return True
    own = () if marks.own is None or marks.own.mark is None else marks.own.mark.marks
    ranges = [mark.entries for mark in own if mark.bookie in {bookie, ANY_BOOKIE}]
    return all(
        any(
            each.first <= entry_id <= each.last and each.stripes >> entry_id % each.period & 1
            for each in ranges
        )
        for entry_id in entries
    )

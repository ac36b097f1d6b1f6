"""One ledger, its copies and its record in memory, on which a `RepairMachine` works: effects are done in any order."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from quire.core.answers import Answer
from quire.core.ids import BookieId
from quire.core.ledger.metadata import LedgerMetadata
from quire.core.ledger.notes import NO_NOTES, EntryRange, LedgerNotes
from quire.core.ledger.quorum import stripes_of_slot
from quire.core.ledger.replica import ReplicaList
from quire.core.ledger.stripes import HeldInterval
from quire.core.repair.effects import (
    REPAIR_TABLE,
    CopyRange,
    EndLimbo,
    ListReplica,
    ReadRecord,
    RepairEffect,
    RepairEnded,
    WriteRepaired,
)
from quire.core.repair.rereplication import RepairMachine

INPUTS = {
    ReadRecord: "record_read",
    ListReplica: "listed",
    CopyRange: "copied",
    WriteRepaired: "stored",
    EndLimbo: "limbo_cleared",
}


def intervals(entries: set[int], record: LedgerMetadata) -> tuple[HeldInterval, ...]:
    """A bookie's list of entries: whole intervals, or one for each id where the ledger is striped."""
    if record.write_quorum < record.ensemble_size:
        size = record.ensemble_size
        return tuple(HeldInterval(entry, entry, size, 1 << entry % size) for entry in sorted(entries))
    found: list[HeldInterval] = []
    for entry in sorted(entries):
        if found and found[-1].last + 1 == entry:
            found[-1] = found[-1]._replace(last=entry)
        else:
            found.append(HeldInterval(entry, entry, 1, 1))
    return tuple(found)


def entry_ids(entries: EntryRange) -> list[int]:
    """The ids of a range."""
    return [entry for entry in range(entries.first, entries.last + 1) if entries.holds(entry)]


class RepairedLedger:
    """The world of one ledger.

    Attributes:
        record, notes, version: as they stand in the metadata store; None: the ledger was deleted.
        disks: the entries of each bookie that can be read.
        rotten: entries that a bookie lists and cannot read.
        limbo: bookies that are in limbo.
        silent: bookies that do not answer.
        refusing: bookies that take no copies.
        log: every effect, in order.
        before: called with each effect before it is done.
    """

    def __init__(self, record: LedgerMetadata, disks: dict[str, set[int]]) -> None:
        self.record: LedgerMetadata | None = record
        self.notes: LedgerNotes = NO_NOTES
        self.version = 1
        self.disks = {BookieId(bookie): set(entries) for bookie, entries in disks.items()}
        self.rotten: dict[BookieId, set[int]] = {}
        self.limbo: set[BookieId] = set()
        self.silent: set[BookieId] = set()
        self.refusing: dict[BookieId, Answer] = {}
        self.log: list[RepairEffect] = []
        self.before: Callable[[RepairEffect], None] = lambda _effect: None

    def run(self, machine: RepairMachine, chance: random.Random | None = None) -> RepairEnded:
        """Do what a machine asks until it ends."""
        machine.start()
        waiting: list[RepairEffect] = []
        for _ in range(10_000):
            waiting += machine.out
            machine.out.clear()
            effect = waiting.pop(chance.randrange(len(waiting)) if chance else 0)
            self.log.append(effect)
            self.before(effect)
            if isinstance(effect, RepairEnded):
                assert waiting == [], "a machine that ended has asked for more"
                return effect
            before = machine.status
            self._do(machine, effect)
            moved = machine.status, REPAIR_TABLE.rows[INPUTS[type(effect)]][before]
            assert machine.status is before or moved[0] in moved[1], (effect, before, moved)
        raise AssertionError("it does not end")

    def _do(self, machine: RepairMachine, effect: RepairEffect) -> None:
        match effect:
            case ReadRecord():
                machine.record_read(self.record, self.version, self.notes)
            case ListReplica(bookie):
                machine.listed(bookie, self.listed(bookie))
            case CopyRange(bookie, entries, sources):
                self._copy(machine, effect, bookie, entry_ids(entries), sources)
            case WriteRepaired(record, notes, version):
                if version != self.version or self.record is None:
                    machine.conflicted()
                else:
                    self.record, self.notes, self.version = record, notes, version + 1
                    machine.stored(self.version)
            case EndLimbo(bookie):
                self.limbo.discard(bookie)
                machine.limbo_cleared(bookie, Answer.OK)

    def listed(self, bookie: BookieId) -> ReplicaList:
        """What a bookie says that it has."""
        if bookie in self.silent or bookie not in self.disks:
            return ReplicaList(Answer.TIMED_OUT)
        if self.record is None:
            return ReplicaList(Answer.NO_LEDGER)
        held = self.disks[bookie] | self.rotten.get(bookie, set())
        return ReplicaList(Answer.OK, intervals(held, self.record), bookie in self.limbo, 7)

    def _copy(
        self,
        machine: RepairMachine,
        piece: CopyRange,
        bookie: BookieId,
        wanted: Sequence[int],
        sources: Sequence[BookieId],
    ) -> None:
        if bookie in self.silent | set(self.refusing):
            machine.copied(piece, self.refusing.get(bookie, Answer.TIMED_OUT))
            return
        there = [source for source in sources if source not in self.silent]
        stored = {entry for entry in wanted if any(entry in self.disks[source] for source in there)}
        self.disks[bookie] |= stored
        damaged = {
            source: [EntryRange(entry, entry) for entry in wanted if entry in self.rotten.get(source, set())]
            for source in there
        }
        self.rotten.get(bookie, set()).difference_update(stored)
        machine.copied(
            piece, Answer.OK, {source: some for source, some in damaged.items() if some}, len(stored)
        )

    def whole(self) -> bool:
        """Whether every bookie of every decided fragment has its entries on its disk, for all that was read of it."""
        record = self.record
        assert record is not None
        for index, fragment in enumerate(record.fragments):
            last = record.last_entry_of_fragment(index)
            if last is None:
                continue
            for slot, bookie in enumerate(fragment.ensemble):
                stripes = stripes_of_slot(slot, record.ensemble_size, record.write_quorum)
                held = self.disks.get(bookie, set()) | self.rotten.get(bookie, set())
                for entry in range(fragment.first_entry, last + 1):
                    if stripes >> entry % record.ensemble_size & 1 and entry not in held:
                        return False
        return True

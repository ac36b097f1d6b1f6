"""What a repair knows of a ledger and has chosen, for one version of its record.

Source: docs/protocol/repair.md.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from quire.core.ids import BookieId
from quire.core.ledger.metadata import LedgerMetadata
from quire.core.ledger.notes import LedgerNotes
from quire.core.ledger.replica import Replica
from quire.core.ledger.stripes import Stretch
from quire.core.repair.effects import CopyRange, WriteRepaired
from quire.core.repair.rules import RepairRules


@dataclass(slots=True)
class RepairPlan:
    """What is known and chosen for one version of the record.

    Attributes:
        rules: the protocol's rules (`core/rules.py`).
        record, notes, version: as they were read, or written.
        targets: by fragment, the bookie that is to take the place of each that leaves it.
        lists: what bookies said.
        awaited: bookies whose lists are asked for.
        queue: copies to be asked for; `under_way` are those that are.
        filled: bookies that were copied to and have not been listed since.
        is_fresh: the record was read, or written, after the last copy.
        is_stale: other bookies are lost than when it was made.
        written: the change of the record that is under way.
    """

    rules: RepairRules
    record: LedgerMetadata
    notes: LedgerNotes
    version: int
    targets: dict[int, dict[BookieId, BookieId]] = field(default_factory=dict)
    lists: dict[BookieId, Replica] = field(default_factory=dict)
    awaited: set[BookieId] = field(default_factory=set)
    queue: list[CopyRange] = field(default_factory=list)
    under_way: set[CopyRange] = field(default_factory=set)
    filled: set[BookieId] = field(default_factory=set)
    is_fresh: bool = True
    is_stale: bool = False
    written: WriteRepaired | None = None

    def decided(self) -> list[int]:
        """The fragments that may be touched, by index.

        Only its writer, or a recovery, knows what an undecided fragment will hold: neither copies nor compare-and-swaps there.
        """
        record, rules = self.record, self.rules
        return [index for index in range(len(record.fragments)) if rules.fragment_is_decided(record, index)]

    def bounds(self, index: int) -> Stretch:
        """The first and the last entry of a fragment; where it is not decided, the last that any bookie lists.

        What lies before the start of a stream (a ledger without an end, whose record has terms) may be deleted, and is not
        asked for.
        """
        last = self.record.last_entry_of_fragment(index)
        if last is None:
            last = max((held.last for each in self.lists.values() for held in each.response.held), default=-1)
        first, terms = int(self.record.fragments[index].first_entry), self.record.terms
        return first if terms is None else max(first, terms.start), last

    def responded(self, bookie: BookieId) -> bool:
        """Whether a bookie said what it holds."""
        replica = self.lists.get(bookie)
        return replica is not None and self.rules.counts_as_missing(replica.response.answer)

    def new_bookies(self) -> set[BookieId]:
        """All that are to take a slot."""
        return {new for changes in self.targets.values() for new in changes.values()}

"""What a ledger lacks of the copies that its record promises, by reason and by how many copies are left.

It is what a repair would find, before it chooses targets: for a lost bookie no target is named.

Source: docs/protocol/repair.md, "What is missing".
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple

from quire.core.answers import Answer
from quire.core.ids import NO_ENTRY, BookieId
from quire.core.ledger.metadata import LedgerMetadata
from quire.core.ledger.notes import NO_NOTES, EntryRange, LedgerNotes
from quire.core.ledger.replica import Replica, ReplicaList, period_of
from quire.core.ledger.stripes import bookie_stripes
from quire.core.repair.effects import LIMITS, NONE_READ_ONLY, ReadOnlyBookies
from quire.core.repair.missing_copies import MissingCopies
from quire.core.repair.plan import RepairPlan
from quire.core.repair.rules import RULES, RepairRules


class MissingReason(StrEnum):
    """Why a copy is missing."""

    GONE = "gone"
    """The bookie that the record names is permanently lost."""
    HOLE = "hole"
    """The bookie is there and lacks the entries."""
    OPEN = "open"
    """It lacks entries of a fragment that the ledger's writer may still change: nothing is copied there."""
    DAMAGED = "damaged"
    """The bookie knows that entries are damaged, and does not list them."""
    LIMBO = "limbo"
    """The bookie may have lost entries, and does not list them."""
    LOST = "lost"
    """Every bookie of the write set says that it has none, or has it damaged."""
    GONE_ONLY = "gone only"
    """Only permanently lost bookies may have the entries."""
    NO_RESPONSE = "unheard"
    """Nothing can be said of the entries, since a bookie did not respond."""


_NOT_COPYABLE: Final = (
    MissingReason.LOST,
    MissingReason.GONE_ONLY,
    MissingReason.NO_RESPONSE,
    MissingReason.OPEN,
)


class MissingKind(NamedTuple):
    """What missing copies are counted by.

    Attributes:
        reason: why copies are missing.
        copies_left: how many other bookies have the entries.
        bookie: which has none of them, or is lost; "" where that is not about one bookie.
    """

    reason: MissingReason
    copies_left: int
    bookie: BookieId = BookieId("")


@dataclass(slots=True)
class UnderReplicatedLedger:
    """What one ledger lacks.

    Attributes:
        entries: how many entries are missing, by kind; copies of one entry on two bookies count twice.
        entry_bytes: the average of an entry, for estimates; 0 where the record does not say it.
        lost, gone_only, unanswered: which entries these are, without losses that a person accepted.
        silent: bookies that did not list, with their answers; `unseen`: how many entries each may hold.
        lost_bookies: permanently lost bookies that decided fragments name.
        undecided: permanently lost bookies that a fragment names whose end is not decided.
        limbo: bookies that are in limbo for this ledger.
        read_only: bookies that lack entries and take no copies: True: a repair gives their part of these fragments to
            others; False: not yet.
        stale_notes: whether the record lists holes that are filled.
    """

    ledger_id: int
    entry_bytes: int
    entries: defaultdict[MissingKind, int] = field(default_factory=lambda: defaultdict(int))
    lost: tuple[EntryRange, ...] = ()
    gone_only: tuple[EntryRange, ...] = ()
    unanswered: tuple[EntryRange, ...] = ()
    silent: dict[BookieId, Answer] = field(default_factory=dict)
    unseen: dict[BookieId, int] = field(default_factory=dict)
    lost_bookies: tuple[BookieId, ...] = ()
    undecided: tuple[BookieId, ...] = ()
    limbo: tuple[BookieId, ...] = ()
    read_only: dict[BookieId, bool] = field(default_factory=dict)
    stale_notes: bool = False

    @property
    def copyable(self) -> int:
        """Entries that a repair can copy."""
        return sum(count for kind, count in self.entries.items() if kind.reason not in _NOT_COPYABLE)

    @property
    def of_open(self) -> int:
        """Entries that lack a copy in a fragment that the ledger's writer may still change."""
        return sum(count for kind, count in self.entries.items() if kind.reason is MissingReason.OPEN)

    @property
    def is_complete(self) -> bool:
        """Whether every copy was looked at and is on a bookie that is there."""
        return not (self.entries or self.silent or self.lost_bookies)

    @property
    def has_losses(self) -> bool:
        """Whether entries are lost, or only permanently lost bookies may have them."""
        return bool(self.lost or self.gone_only)

    @property
    def needs_repair(self) -> bool:
        """Whether a repair may find something to do."""
        return bool(self.copyable or self.lost_bookies or self.limbo or self.stale_notes)


def under_replication_of(
    record: LedgerMetadata,
    notes: LedgerNotes,
    lists: Mapping[BookieId, ReplicaList],
    lost_bookies: Collection[BookieId],
    lac: int = NO_ENTRY,
    read_only: ReadOnlyBookies = NONE_READ_ONLY,
    rules: RepairRules = RULES,
) -> UnderReplicatedLedger:
    """What a ledger lacks.

    Args:
        record: its record.
        notes: its holes and accepted losses.
        lists: what its bookies said that they hold.
        lost_bookies: bookies that are permanently lost, and were not asked.
        lac: how far the last fragment is compared of a ledger that is not closed.
        read_only: bookies that take no copies, and for how long.
        rules: the protocol's rules (`core/rules.py`).
    """
    period = period_of(record)
    lacking = UnderReplicatedLedger(record.ledger_id, int(record.entry_bytes))
    plan = RepairPlan(rules, record, notes, 0)
    plan.lists = {
        bookie: Replica.of(response, record, rules)
        for bookie, response in lists.items()
        if bookie not in lost_bookies
    }
    responded = {bookie: replica for bookie, replica in plan.lists.items() if plan.responded(bookie)}
    lacking.silent = {
        bookie: response.answer
        for bookie, response in lists.items()
        if bookie not in {*responded, *lost_bookies}
    }
    lacking.limbo = tuple(sorted(bookie for bookie, replica in responded.items() if replica.response.limbo))
    decided = plan.decided()
    # In place of each lost bookie another name, with an empty list: so all that it should hold counts as missing.
    stand_in = {bookie: BookieId(f"\0{bookie}") for bookie in sorted(lost_bookies)}
    empty = {name: Replica(ReplicaList(Answer.NO_LEDGER), period) for name in stand_in.values()}
    found = MissingCopies(
        record,
        responded | empty,
        lost_bookies=lost_bookies,
        refusing=(),
        accepted=None,
        piece_entries=LIMITS.piece_entries,
        is_lost=rules.is_lost,
    )
    named: dict[BookieId, None] = {}
    undecided: dict[BookieId, None] = {}
    for index, fragment in enumerate(record.fragments):
        here = [bookie for bookie in fragment.ensemble if bookie in stand_in]
        (named if index in decided else undecided).update(dict.fromkeys(here))
        first, last = plan.bounds(index)
        last = last if index in decided else lac
        if first <= last:
            found.look(index, first, last, {bookie: stand_in[bookie] for bookie in here})
    lacking.lost_bookies, lacking.undecided = tuple(named), tuple(undecided)
    _count(lacking, found, responded, record, notes)
    lacking.read_only = _read_only_in(lacking, read_only, record.ack_quorum, rules)
    for part in bookie_stripes(record, lac):
        if part.bookie in lacking.silent:
            lacking.unseen[part.bookie] = lacking.unseen.get(part.bookie, 0) + part.count
    lacking.stale_notes = notes.holes != NO_NOTES.holes and not lacking.entries and not lacking.silent
    return lacking


def _read_only_in(
    lacking: UnderReplicatedLedger, read_only: ReadOnlyBookies, ack_quorum: int, rules: RepairRules
) -> dict[BookieId, bool]:
    """See `UnderReplicatedLedger.read_only`."""
    found: dict[BookieId, bool] = {}
    for kind in lacking.entries:
        if kind.bookie in read_only.seconds and kind.reason not in _NOT_COPYABLE:
            found[kind.bookie] = found.get(kind.bookie, False) or rules.copy_is_due(
                away_s=read_only.seconds[kind.bookie],
                delay_s=read_only.delay_s,
                copies_left=kind.copies_left,
                ack_quorum=ack_quorum,
            )
    return found


def _count(
    lacking: UnderReplicatedLedger,
    found: MissingCopies,
    responded: Mapping[BookieId, Replica],
    record: LedgerMetadata,
    notes: LedgerNotes,
) -> None:
    """Note what was found missing, by kind; where the ledger's writer may still change the fragment that is the kind."""
    period = period_of(record)
    for (holder, first, last), copy in found.copies.items():
        reason = MissingReason.OPEN if first > record.decided_through else _reason(holder, responded)
        kind = MissingKind(reason, copy.copies, BookieId(holder.lstrip("\0")))
        lacking.entries[kind] += EntryRange(first, last, period, copy.stripes).size()
    lacking.lost, lacking.gone_only, lacking.unanswered = (
        tuple(sorted(each for each in some if not notes.accepts(each)))
        for some in (found.lost, found.gone_only, found.unanswered)
    )
    for reason, ranges in (
        (MissingReason.LOST, lacking.lost),
        (MissingReason.GONE_ONLY, lacking.gone_only),
        (MissingReason.NO_RESPONSE, lacking.unanswered),
    ):
        if ranges:
            lacking.entries[MissingKind(reason, 0)] = sum(each.size() for each in ranges)


def names_same_copies(
    before: tuple[LedgerMetadata, LedgerNotes], now: tuple[LedgerMetadata, LedgerNotes]
) -> bool:
    """Whether lists of entries that were asked for in between say what they would have said at once.

    The bookies are the same, and so are the ends of fragments, the terms' ranges and the accepted losses. Only the start
    of a stream may have moved: what lies before it is not asked for.
    """

    def named(record: LedgerMetadata, notes: LedgerNotes) -> object:
        return record.fragments, record.state, record.last_entry, record.ranges, notes.losses

    return named(*before) == named(*now)


def _reason(holder: BookieId, responded: Mapping[BookieId, Replica]) -> MissingReason:
    if holder not in responded:
        return MissingReason.GONE
    response = responded[holder].response
    if response.limbo:
        return MissingReason.LIMBO
    return MissingReason.DAMAGED if response.damaged else MissingReason.HOLE

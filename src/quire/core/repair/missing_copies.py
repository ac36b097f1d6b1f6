"""Which copies of a ledger's entries are missing, what each can be copied from, and why the others cannot be.

It compares what bookies list with what the record gives them. The work goes with the intervals of the lists, not with
the entries.

Source: docs/protocol/repair.md, "What is missing".
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from quire.core.ids import BookieId
from quire.core.ledger.metadata import LedgerMetadata
from quire.core.ledger.notes import EntryRange
from quire.core.ledger.quorum import write_set
from quire.core.ledger.replica import Replica, period_of
from quire.core.ledger.stripes import Stretch, has_stripe, stretches_between
from quire.core.ledger.terms import TermRange, by_origin
from quire.core.repair.effects import Loss


@dataclass(slots=True)
class MissingCopy:
    """A piece of a ledger that one bookie lacks and others have.

    Attributes:
        stripes: the stripes of entries, as bits.
        copies: how many other bookies have all of it.
        sources: those, and behind them such as have a part.
    """

    stripes: int = 0
    copies: int = 0
    sources: dict[BookieId, None] = field(default_factory=dict)


class MissingCopies:
    """What is missing of one ledger; `look` at each fragment in turn.

    Args:
        record: the ledger's record.
        lists: what each bookie has that said so.
        lost_bookies: bookies that are permanently lost.
        refusing: bookies that do not take copies.
        accepted: a loss that a person accepted: entries of it, which only lost bookies may have, keep no bookie out of
            the record.
        piece_entries: the most ids of one piece.
        is_lost: the rule that says that an entry is nowhere.

    Attributes:
        copies: what can be copied, by (bookie, first, last).
        missing: how many entries a bookie lacks in a fragment that are not accepted as lost, by (fragment, bookie).
        fewest: of those that others have, the fewest copies that there are elsewhere, by (fragment, bookie).
        lost: entries of which every bookie of the write set says that it has none.
        gone_only: entries that only permanently lost bookies may have.
        unanswered: entries of which nothing can be said, since a bookie said nothing.
    """

    __slots__ = (
        "_accepted",
        "_is_lost",
        "_lists",
        "_lost_bookies",
        "_period",
        "_piece_entries",
        "_record",
        "_refusing",
        "copies",
        "fewest",
        "gone_only",
        "lost",
        "missing",
        "unanswered",
    )

    def __init__(
        self,
        record: LedgerMetadata,
        lists: Mapping[BookieId, Replica],
        *,
        lost_bookies: Collection[BookieId],
        refusing: Collection[BookieId],
        accepted: Loss | None,
        piece_entries: int,
        is_lost: Callable[..., bool],
    ) -> None:
        self._record, self._lists = record, lists
        self._lost_bookies, self._refusing, self._accepted = lost_bookies, refusing, accepted
        self._piece_entries, self._is_lost = piece_entries, is_lost
        self._period = period_of(record)
        self.copies: dict[tuple[BookieId, int, int], MissingCopy] = {}
        self.missing: defaultdict[tuple[int, BookieId], int] = defaultdict(int)
        self.fewest: dict[tuple[int, BookieId], int] = {}
        self.lost: set[EntryRange] = set()
        self.gone_only: set[EntryRange] = set()
        self.unanswered: set[EntryRange] = set()

    def is_whole(self, bookie: BookieId) -> bool:
        """Whether a bookie lacks nothing that may come back, in the fragments that were looked at."""
        return not any(count for (_, lacking), count in self.missing.items() if lacking == bookie)

    def look(self, index: int, first: int, last: int, targets: Mapping[BookieId, BookieId]) -> None:
        """Find what is missing of one fragment.

        Args:
            index: of the fragment.
            first: its first entry; `last` is its last one, and there is one.
            targets: by the bookie that is to leave the fragment, the one that is to take its place.
        """
        ensemble = self._record.fragments[index].ensemble
        for stripe in range(self._period):
            if not has_stripe(first, last, self._period, stripe):
                continue
            members: Sequence[BookieId] = ensemble
            if self._period > 1:
                members = [
                    ensemble[slot] for slot in write_set(stripe, len(ensemble), self._record.write_quorum)
                ]
            for member in members:
                holder = targets.get(member, member)
                if holder in self._lists:
                    for stretch in self._lists[holder].lacks(stripe, first, last):
                        self._note(index, holder, members, stripe, stretch)

    def _note(
        self, index: int, holder: BookieId, members: Sequence[BookieId], stripe: int, stretch: Stretch
    ) -> None:
        """A bookie lacks the entries of a stripe in a stretch: what can be copied, and why the rest cannot."""
        unheld = [stretch]
        others = {bookie: held for bookie, held in self._lists.items() if bookie != holder}
        for held in others.values():
            unheld = [part for some in unheld for part in held.lacks(stripe, *some)]
        for first, last in unheld:
            entries = EntryRange(first, last, self._period, 1 << stripe)
            if self._keeps_waiting(members, entries):
                self.missing[index, holder] += entries.size()
        for first, last in stretches_between(*stretch, unheld):
            self.missing[index, holder] += EntryRange(first, last, self._period, 1 << stripe).size()
            for piece in _pieces(first, last, self._piece_entries, self._record.ranges):
                if has_stripe(*piece, self._period, stripe):
                    self._note_copy(index, holder, stripe, piece, others)

    def _note_copy(
        self, index: int, holder: BookieId, stripe: int, piece: Stretch, others: Mapping[BookieId, Replica]
    ) -> None:
        whole, part = [], []
        for bookie, held in others.items():
            lacking = held.lacks(stripe, *piece)
            if not lacking:
                whole.append(bookie)
            elif lacking != [piece]:
                part.append(bookie)
        self.fewest[index, holder] = min(len(whole), self.fewest.get((index, holder), len(whole)))
        if holder in self._refusing:
            return
        copy = self.copies.setdefault((holder, *piece), MissingCopy(copies=len(whole)))
        copy.stripes |= 1 << stripe
        copy.copies = min(copy.copies, len(whole))
        copy.sources |= dict.fromkeys([*whole, *part])

    def _keeps_waiting(self, members: Sequence[BookieId], entries: EntryRange) -> bool:
        """No bookie that responded has these: say why, and whether a bookie that lacks them is not whole for that."""
        silent = [bookie for bookie in members if bookie not in self._lists]
        if self._is_lost(holders=0, silent=len(silent)):
            self.lost.add(entries)
            return False
        if all(bookie in self._lost_bookies for bookie in silent):
            self.gone_only.add(entries)
            return self._accepted is None or not self._accepted.covers(entries)
        self.unanswered.add(entries)
        return True


def _pieces(first: int, last: int, entries: int, ranges: Sequence[TermRange]) -> Iterator[Stretch]:
    """A stretch in parts of one origin term, which end where ids are multiples of `entries`: all stripes are cut alike."""
    for begin, through, _ in by_origin(first, last, ranges):
        at = begin
        while at <= through:
            end = min(through, (at // entries + 1) * entries - 1)
            yield at, end
            at = end + 1

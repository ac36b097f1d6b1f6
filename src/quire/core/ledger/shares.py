"""What each bookie should hold of a ledger or stream, and what of it a bookie's own list does not have.

Source: BookKeeper protocol, "Write Quorums"; `docs/formats/native-protocol.md`, LIST_ENTRIES; docs/protocol/streams.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from quire.core.ids import BookieId
from quire.core.ledger.metadata import LedgerMetadata
from quire.core.ledger.notes import EntryRange
from quire.core.ledger.quorum import residues_of_slot
from quire.core.ledger.terms import by_origin

Stretch: TypeAlias = tuple[int, int]
"""Ids from the first to the last, both included."""


def joined_stretches(stretches: Iterable[Stretch]) -> list[Stretch]:
    """The same ids, ascending; stretches that touch or overlap are one."""
    found: list[Stretch] = []
    for first, last in sorted(stretches):
        if found and first <= found[-1][1] + 1:
            found[-1] = found[-1][0], max(found[-1][1], last)
        else:
            found.append((first, last))
    return found


class HeldInterval(NamedTuple):
    """Ids first..last, those of some classes (id mod `period`), of which a bookie holds the entries of one term."""

    first: int
    last: int
    period: int
    residues: int
    origin_term: int = 0


@dataclass(frozen=True, slots=True)
class BookieShare:
    """What one bookie should hold of a stretch of a ledger's entries: those of some classes (id mod `period`).

    `origin_term` is the term that wrote all of them, of a stream; 0 of a ledger.
    """

    bookie: BookieId
    first: int
    last: int
    period: int
    residues: int
    origin_term: int = 0

    @property
    def is_whole(self) -> bool:
        """Whether every entry of the stretch belongs to it."""
        return self.residues == (1 << self.period) - 1

    @property
    def count(self) -> int:
        """How many ids it has."""
        if self.last < self.first:
            return 0
        return EntryRange(self.first, self.last, self.period, self.residues).size()

    def ids(self) -> Iterable[int]:
        """The ids of the share, ascending."""
        if self.is_whole:
            return range(self.first, self.last + 1)
        return (e for e in range(self.first, self.last + 1) if self.residues >> e % self.period & 1)

    def has(self, entry_id: int) -> bool:
        """Whether the bookie should hold an entry."""
        return self.first <= entry_id <= self.last and bool(self.residues >> entry_id % self.period & 1)

    def cut(self, first: int, last: int) -> BookieShare:
        """The part of it from `first` to `last`."""
        first, last = max(first, self.first), min(last, self.last)
        return BookieShare(self.bookie, first, last, self.period, self.residues, self.origin_term)


def shares(record: LedgerMetadata, last_entry: int | None = None) -> Iterator[BookieShare]:
    """What each bookie should hold of a ledger: a share for each fragment and slot that is not empty.

    Of a stream what lies before its start is left out, and there is a share for each term of a fragment.

    Args:
        record: the ledger's record.
        last_entry: how far to look in a ledger that is not closed; without it its last fragment is left out.
    """
    size, write_quorum = record.ensemble_size, record.write_quorum
    start = 0 if record.terms is None else record.terms.start
    for index, fragment in enumerate(record.fragments):
        last = record.last_entry_of_fragment(index)
        if last is None:
            last = last_entry
        if last is None or last < fragment.first_entry:
            continue
        for first, end, term in by_origin(max(fragment.first_entry, start), last, record.ranges):
            for slot, bookie in enumerate(fragment.ensemble):
                residues = residues_of_slot(slot, size, write_quorum)
                yield BookieShare(bookie, first, end, size, residues, term)


def not_held(share: BookieShare, held: Sequence[HeldInterval]) -> list[int]:
    """The ids of a share that no interval of its term holds."""
    near = [
        each
        for each in held
        if each.origin_term == share.origin_term and each.first <= share.last and each.last >= share.first
    ]
    if any(each.first <= share.first and each.last >= share.last and each.period == 1 for each in near):
        return []
    there = {
        entry_id
        for low, high, period, classes, _ in near
        for entry_id in range(max(low, share.first), min(high, share.last) + 1)
        if period == 1 or classes >> entry_id % period & 1
    }
    return [entry_id for entry_id in share.ids() if entry_id not in there]


def gaps(share: BookieShare, held: Sequence[HeldInterval]) -> list[BookieShare]:
    """The parts of a share that no interval holds, by first id; the work goes with the intervals, not the entries.

    Intervals are whole, or have the share's period.
    """
    if share.is_whole and all(each.period == 1 for each in held):
        return [BookieShare(share.bookie, low, high, 1, 1) for low, high in _between(share, held)]
    found: list[BookieShare] = []
    for residue in range(share.period):
        if not share.residues >> residue & 1:
            continue
        having = [
            each
            for each in held
            if each.period == 1 or (each.period == share.period and each.residues >> residue & 1)
        ]
        for low, high in _between(share, having):
            part = BookieShare(share.bookie, low, high, share.period, 1 << residue)
            if has_class(low, high, share.period, residue):
                found.append(part)
    return sorted(found, key=lambda part: (part.first, part.residues))


def _between(share: BookieShare, held: Sequence[HeldInterval]) -> Iterator[Stretch]:
    """The stretches of a share that lie between intervals."""
    return stretches_between(share.first, share.last, sorted((each.first, each.last) for each in held))


def stretches_between(first: int, last: int, parts: Iterable[Stretch]) -> Iterator[Stretch]:
    """What is left of first..last without some stretches, which go up by their first ids."""
    following = first
    for low, high in parts:
        if low > last:
            break
        if low > following:
            yield following, low - 1
        following = max(following, high + 1)
    if following <= last:
        yield following, last


def has_class(first: int, last: int, period: int, residue: int) -> bool:
    """Whether an id of a class (id mod `period`) lies in first..last."""
    return first + (residue - first) % period <= last

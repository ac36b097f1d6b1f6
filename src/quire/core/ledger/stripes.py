"""What each bookie should hold of a ledger or stream, and what of it a bookie's own list does not have.

A ledger whose ensemble has E bookies is striped with the period E: stripe r is the entries whose id mod E is r. With E > Qw
the bookie at a slot stores Qw of the stripes, with E = Qw all of them. A set of stripes is a bit mask, bit r for stripe r.

Source: BookKeeper protocol, "Write Quorums"; `docs/formats/native-protocol.md`, LIST_ENTRIES; docs/protocol/streams.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from quire.core.ids import BookieId
from quire.core.ledger.metadata import LedgerMetadata
from quire.core.ledger.notes import EntryRange
from quire.core.ledger.quorum import stripes_of_slot
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


def stretches_of(ids: Iterable[int], near: int = 1) -> list[Stretch]:
    """Ascending ids as stretches: two that are at most `near` apart lie in one, with what is between them."""
    found: list[Stretch] = []
    for entry_id in ids:
        if found and entry_id - found[-1][1] <= near:
            found[-1] = found[-1][0], entry_id
        else:
            found.append((entry_id, entry_id))
    return found


class HeldInterval(NamedTuple):
    """Ids first..last, those of some stripes (id mod `period`), of which a bookie holds the entries of one term."""

    first: int
    last: int
    period: int
    stripes: int
    origin_term: int = 0


@dataclass(frozen=True, slots=True)
class BookieStripes:
    """What one bookie should hold of a stretch of a ledger's entries: those of some stripes (id mod `period`).

    `origin_term` is the term that wrote all of them, of a stream; 0 of a ledger.
    """

    bookie: BookieId
    first: int
    last: int
    period: int
    stripes: int
    origin_term: int = 0

    @property
    def is_whole(self) -> bool:
        """Whether every entry of the stretch belongs to it."""
        return self.stripes == (1 << self.period) - 1

    @property
    def count(self) -> int:
        """How many ids it has."""
        if self.last < self.first:
            return 0
        return EntryRange(self.first, self.last, self.period, self.stripes).size()

    def ids(self) -> Iterable[int]:
        """The ids, ascending."""
        if self.is_whole:
            return range(self.first, self.last + 1)
        return (e for e in range(self.first, self.last + 1) if self.stripes >> e % self.period & 1)

    def has(self, entry_id: int) -> bool:
        """Whether the bookie should hold an entry."""
        return self.first <= entry_id <= self.last and bool(self.stripes >> entry_id % self.period & 1)

    def cut(self, first: int, last: int) -> BookieStripes:
        """The part of it from `first` to `last`."""
        first, last = max(first, self.first), min(last, self.last)
        return BookieStripes(self.bookie, first, last, self.period, self.stripes, self.origin_term)


def bookie_stripes(record: LedgerMetadata, last_entry: int | None = None) -> Iterator[BookieStripes]:
    """What each bookie should hold of a ledger: one for each fragment and slot that is not empty.

    Of a stream what lies before its start is left out, and there is one for each term of a fragment.

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
                stripes = stripes_of_slot(slot, size, write_quorum)
                yield BookieStripes(bookie, first, end, size, stripes, term)


def not_held(part: BookieStripes, held: Sequence[HeldInterval]) -> list[int]:
    """What of a bookie's stripes no interval of its term holds: the ids."""
    near = [
        each
        for each in held
        if each.origin_term == part.origin_term and each.first <= part.last and each.last >= part.first
    ]
    if any(each.first <= part.first and each.last >= part.last and each.period == 1 for each in near):
        return []
    there = {
        entry_id
        for low, high, period, stripes, _ in near
        for entry_id in range(max(low, part.first), min(high, part.last) + 1)
        if period == 1 or stripes >> entry_id % period & 1
    }
    return [entry_id for entry_id in part.ids() if entry_id not in there]


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


def has_stripe(first: int, last: int, period: int, stripe: int) -> bool:
    """Whether an id of a stripe (id mod `period`) lies in first..last."""
    return first + (stripe - first) % period <= last

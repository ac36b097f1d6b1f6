"""What one bookie says that it holds of a ledger, in a shape that answers quickly what it lacks.

Source: docs/protocol/repair.md, "Listing"; `docs/formats/native-protocol.md`, LIST_ENTRIES.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from quire.core.answers import Answer
from quire.core.ledger_notes import EntryRange
from quire.core.shares import HeldInterval, Stretch, has_class, stretches_between

FIRST_TERM = 0
"""The origin term of every entry so far; a copy counts only where it has the term that the record names."""


@dataclass(frozen=True, slots=True)
class ReplicaList:
    """One bookie's response about one ledger.

    Attributes:
        answer: OK, or why there is no list; NO_LEDGER is an empty list.
        held: its intervals, without what it knows to be damaged.
        limbo: it may have lost entries of the ledger, so that what is not listed may have been there.
        doubt_lsn: names the loss; CLEAR_LIMBO ends that one only.
        damaged: it knows that entries are damaged, which it does not list.
    """

    answer: Answer
    held: tuple[HeldInterval, ...] = ()
    limbo: bool = False
    doubt_lsn: int = 0
    damaged: bool = False


@dataclass(slots=True)
class Replica:
    """A bookie's list by classes of entries (id mod `period`), each as stretches that do not touch.

    Attributes:
        told: what the bookie said.
        period: 1 where every bookie holds every entry, else the ensemble size.
    """

    told: ReplicaList
    period: int
    _classes: dict[int, tuple[list[int], list[int]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Sort the intervals into classes."""
        stretches: dict[int, list[Stretch]] = {}
        for each in self.told.held:
            if each.origin_term != FIRST_TERM:
                continue
            if each.period == 1:
                classes: Iterable[int] = range(self.period)
            elif each.period == self.period:
                classes = (residue for residue in range(self.period) if each.residues >> residue & 1)
            else:
                continue  # a list of another ensemble size says nothing about these classes
            for residue in classes:
                stretches.setdefault(residue, []).append((each.first, each.last))
        self._classes = {residue: _ordered(some) for residue, some in stretches.items()}

    def lacks(self, residue: int, first: int, last: int) -> list[Stretch]:
        """The stretches of first..last in which it has no entry of a class, apart from none of that class at all."""
        firsts, lasts = self._classes.get(residue, ((), ()))
        place = max(0, bisect_right(firsts, first) - 1)
        near = ((firsts[at], lasts[at]) for at in range(place, len(firsts)))
        found = stretches_between(first, last, near)
        return [stretch for stretch in found if has_class(*stretch, self.period, residue)]

    def without(self, damaged: Sequence[EntryRange]) -> Replica:
        """The same list without entries that could not be read there."""
        held = self.told.held
        for lost in damaged:
            held = tuple(part for each in held for part in _cut(each, lost))
        return Replica(replace(self.told, held=held), self.period)


def _ordered(stretches: list[Stretch]) -> tuple[list[int], list[int]]:
    """First and last ids of the same stretches, joined where they touch."""
    firsts: list[int] = []
    lasts: list[int] = []
    for first, last in sorted(stretches):
        if lasts and first <= lasts[-1] + 1:
            lasts[-1] = max(lasts[-1], last)
        else:
            firsts.append(first)
            lasts.append(last)
    return firsts, lasts


def _cut(held: HeldInterval, lost: EntryRange) -> Iterator[HeldInterval]:
    """What is left of an interval; where only some classes are lost, all between goes: it is asked for again."""
    if lost.last < held.first or held.last < lost.first:
        yield held
        return
    if held.first < lost.first:
        yield held._replace(last=lost.first - 1)
    if held.last > lost.last:
        yield held._replace(first=lost.last + 1)

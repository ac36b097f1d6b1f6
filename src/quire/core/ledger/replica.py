"""What one bookie says that it holds of a ledger, in a shape that answers quickly what it lacks.

Source: docs/protocol/repair.md, "Listing"; `docs/formats/native-protocol.md`, LIST_ENTRIES.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

from quire.core.answers import Answer
from quire.core.ledger.metadata import LedgerMetadata
from quire.core.ledger.notes import EntryRange
from quire.core.ledger.rules import RULES, LedgerRules
from quire.core.ledger.stripes import BookieStripes, HeldInterval, Stretch, has_stripe, stretches_between
from quire.core.ledger.terms import TermRange, by_origin


@dataclass(frozen=True, slots=True)
class ReplicaList:
    """One bookie's response about one ledger.

    Attributes:
        answer: OK, or why there is no list; NO_LEDGER is an empty list.
        held: its intervals, without what it knows to be damaged.
        limbo: it may have lost entries of the ledger, so that what is not listed may have been there.
        limbo_lsn: names the loss; CLEAR_LIMBO ends that one only.
        damaged: it knows that entries are damaged, which it does not list.
    """

    answer: Answer
    held: tuple[HeldInterval, ...] = ()
    limbo: bool = False
    limbo_lsn: int = 0
    damaged: bool = False


@dataclass(frozen=True, slots=True)
class Replica:
    """A bookie's list by stripes of entries (id mod `period`), each as stretches that do not touch. It never changes.

    Attributes:
        response: the entries that the bookie lists.
        period: 1 where every bookie holds every entry, else the ensemble size.
        ranges: of a stream: which term's entry each id stands for. Another term's on this bookie is none of them.
        rules: the protocol's rules (`core/rules.py`).
    """

    response: ReplicaList
    period: int
    ranges: Sequence[TermRange] = ()
    rules: LedgerRules = RULES
    _stripes: dict[int, tuple[list[int], list[int]]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Sort the intervals into stripes."""
        stretches: dict[int, list[Stretch]] = {}
        for each in self.response.held:
            if each.period == 1:
                stripes: Iterable[int] = range(self.period)
            elif each.period == self.period:
                stripes = (stripe for stripe in range(self.period) if each.stripes >> stripe & 1)
            else:
                continue  # a list of another ensemble size says nothing about these stripes
            named = self._named(each)
            for stripe in stripes:
                stretches.setdefault(stripe, []).extend(named)
        ordered = {stripe: _ordered(some) for stripe, some in stretches.items()}
        object.__setattr__(self, "_stripes", ordered)

    @classmethod
    def of(cls, response: ReplicaList, record: LedgerMetadata, rules: LedgerRules = RULES) -> Self:
        """A bookie's list as the ledger's record sees it."""
        return cls(response, period_of(record), record.ranges, rules)

    def _named(self, held: HeldInterval) -> list[Stretch]:
        """The ids of an interval at which the record means the entries of the interval's term."""
        return [
            (first, last)
            for first, last, origin in by_origin(held.first, held.last, self.ranges)
            if self.rules.counts_as_listed(held.origin_term, origin)
        ]

    def lacks(self, stripe: int, first: int, last: int) -> list[Stretch]:
        """The stretches of first..last in which it lacks entries of a stripe. Stretches without an id of the stripe are left out."""
        firsts, lasts = self._stripes.get(stripe, ((), ()))
        index = max(0, bisect_right(firsts, first) - 1)
        near = ((firsts[at], lasts[at]) for at in range(index, len(firsts)))
        found = stretches_between(first, last, near)
        return [stretch for stretch in found if has_stripe(*stretch, self.period, stripe)]

    def without(self, damaged: Sequence[EntryRange]) -> Replica:
        """The same list without entries that could not be read there."""
        if not damaged:
            return self
        held = self.response.held
        for lost in damaged:
            held = tuple(part for each in held for part in _cut(each, lost))
        return replace(self, response=replace(self.response, held=held))


def gaps(part: BookieStripes, replica: Replica) -> list[BookieStripes]:
    """What of a bookie's stripes of a ledger its list does not have, by first id."""
    return sorted(
        (
            BookieStripes(part.bookie, *stretch, replica.period, 1 << stripe, part.origin_term)
            for stripe in range(replica.period)
            if part.stripes >> stripe & 1
            for stretch in replica.lacks(stripe, part.first, part.last)
        ),
        key=lambda gap: (gap.first, gap.stripes),
    )


def dirty_parts(
    held: Iterable[HeldInterval], record: LedgerMetadata, rules: LedgerRules = RULES
) -> list[tuple[int, int, int]]:
    """(first, last, origin term that stays) of the decided entries of a stream of which a bookie holds others as well."""
    decided = record.decided_through
    found: list[tuple[int, int, int]] = []
    for each in held:
        for first, last, origin in by_origin(each.first, min(each.last, decided), record.ranges):
            if rules.copy_drops_others(each.origin_term, origin):
                found.append((first, last, int(origin)))
    return found


def period_of(record: LedgerMetadata) -> int:
    """How many stripes of entries a ledger has: one where each bookie of an ensemble stores every entry."""
    return 1 if record.write_quorum == record.ensemble_size else record.ensemble_size


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
    """What is left of an interval. Where only some stripes are lost, the others in between count as lacking too: they are copied again."""
    if lost.last < held.first or held.last < lost.first:
        yield held
        return
    if held.first < lost.first:
        yield held._replace(last=lost.first - 1)
    if held.last > lost.last:
        yield held._replace(first=lost.last + 1)

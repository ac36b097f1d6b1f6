"""The *notes* of a ledger, beside its state and fragments: entries that bookies lack, and losses that a person accepted.

Holes: a bookie that the record names lacks these entries; it was put into the record although it could not be sent
them. Losses: these entries may be on no bookie any more, and a person said that the ledger is to be read without them.
Both stand with the record. Without a loss there, the only copy of such an entry, on a bookie that the record does not name,
could be dropped as over-replicated. Pure.

Source: `docs/formats/metadata.md`, "Holes and accepted losses".
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple

from quire.core.errors import MisuseError
from quire.core.ids import ENSEMBLE_MAX, ID_MAX, BookieId

ACCEPTED_BY_MAX: Final = 256
"""Characters of the name of who accepted a loss."""


class EntryRange(NamedTuple):
    """Entries of a ledger: those of `first..last` whose id mod `period` has its bit in `stripes`."""

    first: int
    last: int
    period: int = 1
    stripes: int = 1

    def holds(self, entry_id: int) -> bool:
        """Whether an entry is one of them."""
        return self.first <= entry_id <= self.last and bool(self.stripes >> entry_id % self.period & 1)

    def size(self) -> int:
        """How many entries it has."""
        rounds, rest = divmod(self.last - self.first + 1, self.period)
        tail = sum(self.stripes >> (self.first + index) % self.period & 1 for index in range(rest))
        return rounds * self.stripes.bit_count() + tail

    def overlaps(self, other: EntryRange) -> bool:
        """Whether some entry between both ends of one lies between those of the other."""
        return self.first <= other.last and other.first <= self.last

    def has_all_of(self, part: EntryRange) -> bool:
        """Whether all entries of another range are among these."""
        if not self.first <= part.first <= part.last <= self.last:
            return False
        return self.period == 1 or (self.period == part.period and not part.stripes & ~self.stripes)

    def flaw(self) -> str | None:
        """What makes it impossible, if anything does."""
        if not 0 <= self.first <= self.last <= ID_MAX:
            return f"the range {self.first}..{self.last} is none: ids go up, from 0 to {ID_MAX}"
        if not 1 <= self.period <= ENSEMBLE_MAX:
            return f"the range {self.first}..{self.last} has the period {self.period}, and not 1 to {ENSEMBLE_MAX}"
        if not 1 <= self.stripes < 1 << self.period:
            return f"the range {self.first}..{self.last} has the stripes {self.stripes:#x} of a period {self.period}"
        return None


@dataclass(frozen=True, slots=True)
class BookieHoles:
    """What one bookie of the record lacks. `unknown`: fields of later versions, here and below."""

    bookie: BookieId
    ranges: tuple[EntryRange, ...]
    unknown: bytes = b""


@dataclass(frozen=True, slots=True)
class AcceptedLoss:
    """Entries without which a person took the ledger.

    Attributes:
        ranges: which.
        accepted_ms: wall time, for people.
        accepted_by: who it was, for people.
        lost_bookies: the bookies that had them last, if that is known: one that comes back is a source of them.
    """

    ranges: tuple[EntryRange, ...]
    accepted_ms: int
    accepted_by: str
    lost_bookies: tuple[BookieId, ...] = ()
    unknown: bytes = b""


@dataclass(frozen=True, slots=True)
class LedgerNotes:
    """All notes of one ledger; `holes` in the order of the bookies' ids.

    `unknown_of_holes`, `unknown_of_losses`: fields of later versions next to the two lists.
    """

    holes: tuple[BookieHoles, ...] = ()
    losses: tuple[AcceptedLoss, ...] = ()
    unknown_of_holes: bytes = b""
    unknown_of_losses: bytes = b""

    def accepts(self, entries: EntryRange) -> bool:
        """Whether a person accepted the loss of all these entries."""
        return any(each.has_all_of(entries) for loss in self.losses for each in loss.ranges)

    def flaw(self) -> str | None:
        """What makes them impossible, if anything does."""
        if any(before.bookie >= after.bookie for before, after in pairwise(self.holes)):
            return "its bookies with holes are not in the order of their ids, each once"
        for hole in self.holes:
            if flaw := _flaw_of(hole.ranges):
                return f"of the holes of bookie {hole.bookie}, {flaw}"
        for loss in self.losses:
            if flaw := _flaw_of(loss.ranges):
                return f"of an accepted loss, {flaw}"
            if not 0 < len(loss.accepted_by) <= ACCEPTED_BY_MAX or loss.accepted_ms < 0:
                return f"a loss was accepted by {loss.accepted_by[:80]!r} at {loss.accepted_ms} ms"
        return None

    def checked(self, ledger_id: int) -> LedgerNotes:
        """These notes, if they are possible ones.

        Raises:
            MisuseError: saying what is not.
        """
        if flaw := self.flaw():
            msg = f"the notes of ledger {ledger_id} are not possible: {flaw}"
            raise MisuseError(msg, ledger_id=ledger_id)
        return self


NO_NOTES: Final = LedgerNotes()
"""Of a ledger of which nothing is known besides its record."""


def _flaw_of(ranges: tuple[EntryRange, ...]) -> str | None:
    if not ranges:
        return "there is no range"
    if any(before.first > after.first for before, after in pairwise(ranges)):
        return "the ranges do not go up"
    return next((flaw for flaw in (each.flaw() for each in ranges) if flaw), None)

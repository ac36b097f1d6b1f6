"""The terms of an unbounded ledger, or stream: a ledger without an end, which writers take over from each other.

A term is one writer's turn. An entry of a stream is named by its id and by the term that first wrote it, its origin
term; the ranges say which term's entry an id stands for. Ordinary ledgers have no terms: in their requests a term is 0.

Source: Vanlightly's unbounded ledgers, "Terms are also entry identifiers"; docs/formats/stream.md.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from itertools import pairwise
from typing import Final, NamedTuple, TypeAlias

from quire.core.errors import MisuseError
from quire.core.ids import ID_MAX, EntryId, Term

OWNER_MAX: Final = 2**64 - 1
NO_TERM: Final = Term(0)
"""The term of everything that belongs to an ordinary ledger."""
ANY_ORIGIN: Final = Term(-1)
"""In place of an origin term: whichever an entry has. Where terms only fence, an id names the entry that was put last."""


TERMS_FEATURE: Final = "terms"
"""What a bookie registers that can hold a stream."""
FENCING_FEATURE: Final = "fencing"
"""What it registers besides if it truncates, and reads by id alone."""


class StreamMode(IntEnum):
    """How a writer is kept out after a take-over."""

    IDENTIFIERS = 1
    """Entries of an earlier term are recognised by their ids: each term begins at an id of its own."""
    FENCING = 2
    """Bookies refuse the earlier term, and a take-over takes away what it left."""

    @property
    def word(self) -> str:
        """The mode as users write it."""
        return self.name.lower()

    @property
    def needs(self) -> tuple[str, ...]:
        """The features that a bookie must have registered to hold such a stream."""
        fencing = (FENCING_FEATURE,) if self is StreamMode.FENCING else ()
        return (TERMS_FEATURE, *fencing)


def mode_of(word: str | StreamMode) -> StreamMode:
    """The mode for a user's word: identifiers or fencing.

    Raises:
        MisuseError: for any other word, with the list.
    """
    found = next((mode for mode in StreamMode if word in {mode, mode.word}), None)
    if found is None:
        words = " or ".join(mode.word for mode in StreamMode)
        msg = f"unknown mode {word!r} of a stream: use {words}"
        raise MisuseError(msg)
    return found


class TermRange(NamedTuple):
    """The entries from `first_entry` up to the next range's first were written in this term."""

    term: Term
    first_entry: EntryId


Ranges: TypeAlias = Sequence[TermRange]
IDENTIFIERS: Final = StreamMode.IDENTIFIERS
"""The mode of a stream for which none is chosen."""


def origin_of(entry_id: int, ranges: Sequence[TermRange]) -> Term:
    """The term that an entry of this id was first written in; `NO_TERM` without ranges, or before the first.

    Source: Vanlightly's unbounded ledgers, "Terms are also entry identifiers": "the client can include the correct term when
    performing a read of a given entry".
    """
    index = bisect_right(ranges, entry_id, key=lambda each: each.first_entry)
    return ranges[index - 1].term if index else NO_TERM


def last_of_range(entry_id: int, ranges: Sequence[TermRange]) -> int | None:
    """The last id that has the same origin term as this one; None in the last range, which has no end."""
    index = bisect_right(ranges, entry_id, key=lambda each: each.first_entry)
    return ranges[index].first_entry - 1 if index < len(ranges) else None


def last_of_term(term: int, ranges: Sequence[TermRange]) -> int | None:
    """The last id at which an entry of this origin term may be in the stream; None if no later term has a range."""
    return next((each.first_entry - 1 for each in ranges if each.term > term), None)


def confirmed_in(term: int, lac: int, ranges: Sequence[TermRange]) -> int:
    """What a LAC says that a writer of this term confirmed: never more than the entries which its term was left with.

    What was acknowledged in a term lies below the first entry of the next one, and a LAC as well, unless an operator has had
    LACs ignored: then what is at or above that entry is of another writer, who says for himself how far it is confirmed.
    A LAC without a term stays as it is.
    """
    last = last_of_term(term, ranges) if term != NO_TERM else None
    return lac if last is None else min(lac, last)


def by_origin(first: int, last: int, ranges: Sequence[TermRange]) -> Iterator[tuple[int, int, Term]]:
    """The ids first..last in parts of one origin term each: (first, last, origin term)."""
    while first <= last:
        end = last_of_range(first, ranges)
        through = last if end is None else min(end, last)
        yield first, through, origin_of(first, ranges)
        first = through + 1


def reach_of(ranges: Sequence[TermRange]) -> Term:
    """The newest term whose first entry is known; `NO_TERM` without ranges."""
    return ranges[-1].term if ranges else NO_TERM


def resolve(entry_id: int, term: int, ranges: Sequence[TermRange]) -> bool | None:
    """Whether an entry that a term wrote is kept, once the writer of that term was superseded.

    Args:
        entry_id: the entry's id, as its writer gave it.
        term: the writer's.
        ranges: of the stream's record as it is now.

    Returns:
        True: every reader sees it. False: no reader ever will. None: no later term is open yet.
    """
    later = next((each for each in ranges if each.term > term), None)
    return None if later is None else entry_id < later.first_entry


@dataclass(frozen=True, slots=True)
class Terms:
    """What the record of a stream has and that of a ledger has not.

    Attributes:
        term: of the last take-over that began; above that of the last range until the take-over is done.
        ranges: which term wrote which entries, ascending in both; of a term that wrote nothing the first entry is the
            next one's too. Those wholly before `start` may be deleted.
        owner: 64 random bits of the last take-over: they show whether a compare-and-swap whose response was lost was
            one's own.
        mode: how a writer is kept out.
        start: the first entry that is kept.
        first_length: payload bytes of the entries before `start`.
        unknown: fields of later versions.
    """

    term: Term
    ranges: tuple[TermRange, ...]
    owner: int
    mode: StreamMode = StreamMode.IDENTIFIERS
    start: EntryId = EntryId(0)  # noqa: RUF009 - an int
    first_length: int = 0
    unknown: bytes = b""

    @property
    def decided_through(self) -> EntryId:
        """The last entry of an open stream that is there for certain, whatever its writer has said since.

        What an earlier term wrote is on its ack quorum once a later one is open; a no-op is on every bookie.
        """
        no_op = self.mode is StreamMode.FENCING and len(self.ranges) > 1
        return EntryId(self.ranges[-1].first_entry - (not no_op))

    def opened(self, last_entry: int, recovered: Sequence[TermRange]) -> Terms:
        """The same, once its last term is open, after an entry.

        Args:
            last_entry: the last one that its take-over recovered.
            recovered: ranges of terms that were never opened, of which entries were recovered: no-ops, where terms only
                fence. So the ranges say of each entry below the last term's its origin term.
        """
        last = self.ranges[-1]
        between = [
            each for each in recovered if each.term > last.term and each.first_entry >= last.first_entry
        ]
        ranges = (*self.ranges, *between, TermRange(self.term, EntryId(last_entry + 1)))
        return replace(self, ranges=ranges)

    def wrong(self) -> str | None:
        """What is not possible about them; None if nothing is."""
        for name, number, most in (
            ("start", self.start, ID_MAX),
            ("first length", self.first_length, ID_MAX),
            ("owner", self.owner, OWNER_MAX),
        ):
            if not 0 <= number <= most:
                return f"its {name} is {number}, and goes from 0 to {most}"
        if not self.ranges:
            return "it has no range"
        first = self.ranges[0]
        if first.term < 1 or not 0 <= first.first_entry <= self.start:
            return f"its first range is of term {first.term}, from entry {first.first_entry}"
        for before, after in pairwise(self.ranges):
            if after.term <= before.term or after.first_entry < before.first_entry:
                return (
                    f"the range of term {after.term} from entry {after.first_entry} does not come after that of term"
                    f" {before.term} from entry {before.first_entry}"
                )
        last = self.ranges[-1]
        if not last.term <= self.term <= ID_MAX or last.first_entry > ID_MAX:
            return f"it is in term {self.term}, and its last range is of term {last.term}, from entry {last.first_entry}"
        return None


def needs_of(terms: Terms | None) -> tuple[str, ...]:
    """The features that a bookie must have registered to be chosen for a stream; none for an ordinary ledger."""
    return () if terms is None else terms.mode.needs

"""The log-end search: where a ledger of an absent writer ends, what its bookies said to the fence and to the reads, and the verdicts.

1. The fence: enough bookies of the last fragment must have answered a fencing LAC read, so that no ack quorum is left
   which the old writer could still reach. Reading starts at the highest LAC that they reported.
2. Reading: votes of every bookie about a window of ids, and verdicts one by one, strictly in order. One copy is enough
   to recover an entry; enough conclusive denials end the ledger before it.
3. The end is taken with care: silent bookies are waited for once, and what contradicts a LAC is read once more.

Of a stream whose terms only fence, bookies may have entries of several origin terms under one id: a take-over that died left
its no-op on some bookies, and on others what was to go. Recovered origin terms never fall: what is below the term of the
entry before it is no such entry. So a window ends where the origin term rises, if anybody voted for an entry after it that is
below the new one.

It sends no request by itself, and does not know what is written back: `recovery/machine.py` carries out what it says.

Source: BookKeeper protocol, "Closing a ledger as a reader"; Vanlightly's guide, "Recovery Phase 1", "Recovery Phase 2".
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import Final

from quire.core.answers import Answer
from quire.core.ids import NO_ENTRY, BookieId, EntryId, Term
from quire.core.ledger.effects import RecoveryInconclusive, WaitForAnswers
from quire.core.ledger.metadata import LedgerMetadata
from quire.core.ledger.quorum import stripes_of_slot, told_through, write_set_masks
from quire.core.ledger.terms import NO_TERM, TermRange, last_of_range, reach_of
from quire.core.recovery.rules import RecoveryRules
from quire.core.state_table import StateTable

_BLOCK: Final = 512
"""Of so many ids at a time it is looked whether any bookie has voted: above the end none has, and most of a window lies there."""

NO_ORIGINS: Final[Mapping[int, int]] = MappingProxyType({})


class EndStatus(Enum):
    """How far the search for the end is."""

    FENCING = "fencing"
    READING = "reading"
    WAITING = "waiting"
    """As reading; an end is denied already, and bookies that have not answered are waited for."""
    FOUND = "found"


class EndStep(Enum):
    """What the search for the end does next, by the votes for one entry."""

    GO_ON = "go on"
    AGAIN = "again"
    """Open a window at the same entry: a LAC contradicts what the bookies said."""
    WAIT = "wait"
    """For the bookies that have not responded about the entry, each of which must have been asked."""


END_TABLE: Final = StateTable(
    EndStatus,
    {
        "fenced": "fencing > = reading; reading waiting > =",
        "asks": "reading waiting > =",
        "answered": "reading waiting > =",
        "conclude": "reading > = waiting found; waiting > = found",
        "waited": "waiting > reading",
    },
)
"""What the inputs of the search do."""


@dataclass(slots=True, eq=False)
class FenceAnswers:
    """The responses of the last fragment's bookies to the fencing LAC read.

    Attributes:
        known: slots that answered it, as a mask; `failed`: those that did not.
        lacs: the LAC that a slot reported, by ascending slot.
        lafr: the highest LAFR that was reported.
    """

    known: int = 0
    failed: int = 0
    lacs: dict[int, int] = field(default_factory=dict)
    lafr: int = NO_ENTRY

    def check(self) -> None:
        """Assert what must always hold."""
        assert list(self.lacs) == sorted(self.lacs), "LACs stand in the order of their slots"


@dataclass(slots=True, eq=False)
class Votes:
    """The window of ids that is read, and what each slot said of each of them.

    Attributes:
        first: the first id of the window; `last`: the last one.
        positive: for each id the slots that have it, as a mask; `negative`: that deny it; `unknown`: that cannot tell.
        lengths: for each id the length in the header of an entry that was found.
        by_id: whether bookies may have entries of several origin terms under one id.
        origins: then, for each id, the origin term of the entry that was found first, which is the one that is recovered;
            `lowest`: the lowest of all that were found.
        conclusive: each slot's responses cover every id up to here.
        asked: the ids that each slot was asked for and has not answered yet.
    """

    first: int = 0
    last: int = -1
    positive: list[int] = field(default_factory=list)
    negative: list[int] = field(default_factory=list)
    unknown: list[int] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    by_id: bool = False
    origins: list[int] = field(default_factory=list)
    lowest: list[int] = field(default_factory=list)
    conclusive: list[int] = field(default_factory=list)
    asked: list[tuple[int, int] | None] = field(default_factory=list)

    def open(self, first: int, count: int, *, by_id: bool = False) -> None:
        """Begin a window of so many ids, on which no bookie has voted."""
        self.first, self.last, self.by_id = first, first + count - 1, by_id
        self.positive, self.negative, self.unknown, self.lengths = ([0] * count for _ in range(4))
        self.origins, self.lowest = ([0] * (count if by_id else 0) for _ in range(2))
        self.conclusive = [first - 1] * len(self.asked)

    def end_at(self, last: int) -> None:
        """The window ends at this id: what was said of later ones is asked again."""
        self.last, count = last, last + 1 - self.first
        for votes in (self.positive, self.negative, self.unknown, self.lengths, self.origins, self.lowest):
            del votes[count:]
        self.conclusive = [min(through, last) for through in self.conclusive]

    def ask(self, lap: int, needed: int) -> list[tuple[int, int]]:
        """Ask each idle slot that has not responded about `needed`: (slot, first id); the last one is the window's."""
        found = [
            (slot, max(through, lap) + 1)
            for slot, through in enumerate(self.conclusive)
            if self.asked[slot] is None and through < needed
        ]
        for slot, first in found:
            self.asked[slot] = (first, self.last)
        return found

    def count(
        self,
        slot: int,
        asked: tuple[int, int],
        entries: Mapping[int, int],
        unknown: Sequence[tuple[int, int]],
        origins: Mapping[int, int] = NO_ORIGINS,
    ) -> None:
        """A slot has these entries, with the lengths in their headers, and cannot tell of those ranges.

        Args:
            origins: the origin terms of the entries, in a window by id.
        """
        bit, base, last = 1 << slot, self.first, self.last
        positive, lengths = self.positive, self.lengths
        for entry_id, length in entries.items():
            if base <= entry_id <= last and asked[0] <= entry_id <= asked[1]:
                i = entry_id - base
                if self.by_id:
                    origin = origins[entry_id]
                    self.lowest[i] = min(origin, self.lowest[i] or origin)
                    self.origins[i] = self.origins[i] or origin
                if not positive[i]:
                    lengths[i] = length
                positive[i] |= bit
        for lower, upper in unknown:
            for i in range(max(lower, base) - base, min(upper, last) - base + 1):
                if not positive[i] & bit:
                    self.unknown[i] |= bit

    def count_rest(self, slot: int, first: int, through: int, *, negative: bool) -> None:
        """Of the other ids from `first` on up to `through` a slot said that they are not there, or cannot tell."""
        bit, base = 1 << slot, self.first
        votes = self.negative if negative else self.unknown
        start, end = max(first, base) - base, min(through, self.last) - base + 1
        for at in range(start, end, _BLOCK):
            until = min(at + _BLOCK, end)
            if any(self.positive[at:until]) or any(self.unknown[at:until]):
                for i in range(at, until):
                    if not (self.positive[i] | self.unknown[i]) & bit:
                        votes[i] |= bit
            else:
                others = votes[at:until]
                alike = others.count(others[0]) == len(others)
                votes[at:until] = (
                    [others[0] | bit] * len(others) if alike else [vote | bit for vote in others]
                )
        self.conclusive[slot] = max(self.conclusive[slot], min(through, self.last))

    def found_after(self, lap: int, masks: Sequence[int]) -> list[int]:
        """The lengths of the entries after `lap` of which a bookie of their write set has a copy, without a gap.

        One copy is enough: including an unacknowledged entry is harmless, dropping an acknowledged one is not.
        """
        base, positive = self.first, self.positive
        begin = i = lap + 1 - base
        while i < len(positive) and positive[i] & masks[(base + i) % len(masks)]:
            i += 1
        return self.lengths[begin:i]

    def check(self) -> None:
        """Assert what must always hold."""
        for positive, negative, unknown in zip(self.positive, self.negative, self.unknown, strict=True):
            assert not negative & positive, "a slot has one vote"
            assert not unknown & negative, "unknown is never negative"


@dataclass(slots=True, eq=False)
class LogEndSearch:
    """The search for one ledger's end. Others read its fields, and only it changes them.

    Attributes:
        record: the ledger's record, IN_RECOVERY: its last fragment is fenced and read.
        ensemble: the bookies that are fenced and asked: those of the last fragment.
        rules: the protocol's rules (`core/rules.py`).
        window_entries: how many ids one window has.
        ignored_lacs: bookies whose LAC is ignored.
        status: how far it is.
        start: every entry up to here is confirmed by a LAC, or in an earlier fragment. With a guaranteed write quorum a
            LAFR says so, since what is only confirmed may lack copies.
        lap: every entry up to here is recoverable.
        length: the length in the header of the last entry that was recovered.
        origins: where terms only fence, the origin terms of what was recovered: each with the first entry that has it.
        final_quorum: how many bookies of a write set must have an entry in the end.
        fence: what the bookies answered to the fence.
        votes: the window of ids, and what the bookies said of each.
    """

    record: LedgerMetadata
    ensemble: tuple[BookieId, ...]
    rules: RecoveryRules
    window_entries: int
    ignored_lacs: Collection[BookieId]
    status: EndStatus = field(default=EndStatus.FENCING, init=False)
    start: int = field(default=NO_ENTRY, init=False)
    lap: int = field(default=NO_ENTRY, init=False)
    length: int = field(default=0, init=False)
    origins: tuple[TermRange, ...] = field(default=(), init=False)
    final_quorum: int = field(default=0, init=False)
    fence: FenceAnswers = field(default_factory=FenceAnswers, init=False)
    votes: Votes = field(default_factory=Votes, init=False)
    _masks: tuple[int, ...] = field(default=(), init=False)
    _needed: int = field(default=0, init=False)
    """How many bookies of a write set must have an entry to recover it, and how many must deny it to end the ledger."""
    _waited: bool = field(default=False, init=False)
    _asked_again: bool = field(default=False, init=False)

    # --- the fence -------------------------------------------------------------------------------------------------

    def fenced(
        self, slot: int, answer: Answer, last_add_confirmed: int, lafr: int
    ) -> bool | RecoveryInconclusive:
        """A bookie answered the fencing LAC read, or did not. Later than coverage its LAC may still contradict an end.

        Returns:
            Whether the fence covers by it, so that reading begins; or what is missing, if it cannot cover any more.
        """
        assert END_TABLE.acts["fenced"][self.status]
        rules, fence, bit = self.rules, self.fence, 1 << slot
        known = rules.counts_as_known(answer)
        if known and self.ensemble[slot] not in self.ignored_lacs:
            fence.lacs = dict(sorted({**fence.lacs, slot: last_add_confirmed}.items()))
            fence.lafr = max(fence.lafr, lafr)
        fence.known, fence.failed = fence.known | known * bit, fence.failed | (not known) * bit
        if self.status is not EndStatus.FENCING:
            return False
        record, size = self.record, self.record.ensemble_size
        quorums = record.write_quorum, record.ack_quorum
        if rules.covers(fence.known, size, *quorums):
            self._needed = rules.negative_votes_needed(*quorums)
            highest = max(fence.lacs.values(), default=NO_ENTRY)
            self.final_quorum = rules.final_quorum(record)
            if self.final_quorum > record.ack_quorum:
                highest = min(highest, fence.lafr)  # no digest covers a LAFR, which is never above the LAC
            self.start = self.lap = rules.recovery_start(highest, record.fragments[-1].first_entry)
            self.status = END_TABLE.moved[self.status, EndStatus.READING]
            self.votes.asked = [None] * size
            self._masks = write_set_masks(size, record.write_quorum)
            return True
        if fence.known | fence.failed == (1 << size) - 1:
            return RecoveryInconclusive(NO_ENTRY, self._names(fence.failed & ~fence.known))
        return False

    # --- the window ------------------------------------------------------------------------------------------------

    def _open_window(self) -> None:
        count, terms = self.window_entries, self.record.terms
        by_id = terms is not None and self.record.only_fences
        if terms is not None and not by_id:
            end = last_of_range(self.lap + 1, terms.ranges)
            count = count if end is None else min(count, end - self.lap)  # a request names one origin term
        self.votes.open(self.lap + 1, count, by_id=by_id)

    def asks(self, *, anew: bool = False) -> list[tuple[int, int]]:
        """Each idle slot, with the first id that its responses do not cover yet: it is asked up to `votes.last`.

        While bookies are waited for, only those are asked: one may have responded about an older window so far.

        Args:
            anew: the window begins at what follows the recovered entries, and no bookie has voted on it.
        """
        assert END_TABLE.acts["asks"][self.status]
        if anew:
            self._open_window()
        waits = self.status is EndStatus.WAITING
        return self.votes.ask(self.lap, self.lap + 1 if waits else self.votes.last)

    def answered(
        self,
        slot: int,
        answer: Answer,
        entries: Mapping[int, int],
        conclusive_through: int,
        unknown: Sequence[tuple[int, int]],
        origins: Mapping[int, int],
    ) -> list[int]:
        """One bookie answered its read, or did not. The arguments are those of `RecoveryMachine.read_answered`.

        Returns:
            The lengths in the headers of the entries that became recoverable by it, those up to `lap`: verdicts fall
            in order, as far as the votes reach.
        """
        assert END_TABLE.acts["answered"][self.status]
        votes = self.votes
        asked, votes.asked[slot] = votes.asked[slot], None
        assert asked is not None, "it was asked"
        first, last = asked
        if votes.by_id:
            entries = self._not_left_over(slot, entries, origins)
        through = last  # of an error; and most answers are conclusive for all that was asked
        absent_is_negative = self.rules.counts_as_negative(Answer.NO_ENTRY if answer is Answer.OK else answer)
        if answer is Answer.OK and conclusive_through < last:
            size = self.record.ensemble_size
            stripes = stripes_of_slot(slot, size, self.record.write_quorum)
            through = told_through(first, last, tuple(entries), conclusive_through, unknown, stripes, size)
        votes.count(slot, asked, entries, unknown, origins)
        if through < first:
            # A response that does not cover the first id asked for: waiting for more would never end.
            through, absent_is_negative = last, False
        votes.count_rest(slot, first, through, negative=absent_is_negative)
        lengths = votes.found_after(self.lap, self._masks)
        if votes.by_id:
            lengths = self._until_votes_fall(lengths)
        if lengths:
            self.lap, self.length = self.lap + len(lengths), lengths[-1]
        return lengths

    def _not_left_over(
        self, slot: int, entries: Mapping[int, int], origins: Mapping[int, int]
    ) -> dict[int, int]:
        """Where terms only fence: of a response those entries that count. Of the others the bookie may have had newer ones.

        What is not of the slot's write sets was not truncated with them, and may be of any writer. What is below the origin
        term that the record names, or below the last one that was recovered, is what a bookie kept that was away.
        """
        record, counts, reached = self.record, self.rules.counts_as_positive, reach_of(self.origins)
        size = record.ensemble_size
        stripes = stripes_of_slot(slot, size, record.write_quorum)
        return {
            entry_id: length
            for entry_id, length in entries.items()
            if stripes >> entry_id % size & 1
            and counts(origins[entry_id], max(reached, record.origin_of(entry_id)))
        }

    def _until_votes_fall(self, lengths: list[int]) -> list[int]:
        """Of these entries those up to one whose origin term makes votes for later entries void; the window ends there."""
        votes, fall = self.votes, self.rules.votes_fall
        begin = self.lap + 1 - votes.first
        for i in range(begin, begin + len(lengths)):
            origin, entry_id = votes.origins[i], votes.first + i
            if origin == reach_of(self.origins):
                continue
            self.origins = (*self.origins, TermRange(Term(origin), EntryId(entry_id)))
            if any(fall(lowest, origin) for lowest in votes.lowest[i + 1 :] if lowest != NO_TERM):
                votes.end_at(entry_id)
                return lengths[: i + 1 - begin]
        return lengths

    # --- verdicts --------------------------------------------------------------------------------------------------

    def conclude(self) -> EndStep | WaitForAnswers | RecoveryInconclusive:
        """What follows from the votes on the entry that is not recovered.

        Bookies whose directory was restored from a copy deny what they acknowledged. The one that still has it may only
        be slow, and a LAC may prove it: neither costs more than one short wait. A LAC may be wrong as well (a Java
        client's recovery sends bookies a LAC beyond the end that another recovery then sets): a person must say so.
        """
        assert END_TABLE.acts["conclude"][self.status]
        entry_id = self.lap + 1
        votes = self.votes
        i = entry_id - votes.first
        if i == len(votes.positive):
            return EndStep.GO_ON
        asked_of = self._masks[entry_id % len(self._masks)]
        if (votes.negative[i] & asked_of).bit_count() < self._needed:
            if (votes.positive[i] | votes.negative[i] | votes.unknown[i]) & asked_of != asked_of:
                return EndStep.GO_ON
            return RecoveryInconclusive(EntryId(entry_id), self._names(votes.unknown[i] & asked_of))
        silent = self._silent_about(entry_id)
        if any(lac >= entry_id for lac in self.fence.lacs.values()):
            return EndStep.AGAIN if self.asks_again() else self.contradicted(entry_id, silent)
        if silent and not self._waited:
            if self.status is EndStatus.WAITING:
                return EndStep.WAIT
            self.status = END_TABLE.moved[self.status, EndStatus.WAITING]
            return WaitForAnswers(silent)
        self.status = END_TABLE.moved[self.status, EndStatus.FOUND]
        return EndStep.GO_ON

    def waited(self) -> None:
        """The bookies that have not answered are waited for no longer, now and later."""
        assert END_TABLE.acts["waited"][self.status]
        self.status, self._waited = END_TABLE.moved[self.status, EndStatus.READING], True

    def asks_again(self) -> bool:
        """Whether what contradicts a LAC may be asked for once more; the second time it may not."""
        again, self._asked_again = not self._asked_again, True
        return again

    def contradicted(self, entry_id: int, silent: Sequence[BookieId]) -> RecoveryInconclusive:
        """The result where enough bookies deny an entry, and the LACs of others say that it is acknowledged."""
        contradicting = [
            (self.ensemble[slot], EntryId(lac)) for slot, lac in self.fence.lacs.items() if lac >= entry_id
        ]
        return RecoveryInconclusive(EntryId(entry_id), tuple(silent), tuple(contradicting))

    def measured(self, length: int) -> None:
        """The length in the header of the last entry, where that was not recovered."""
        self.length = length

    def _silent_about(self, entry_id: int) -> tuple[BookieId, ...]:
        """The bookies that have not responded about this entry; after another round, the inconclusive ones as well.

        A bookie that holds no copy of this entry is asked too: it has answered the fence before, with its LAC.
        """
        votes = self.votes
        cannot_tell = votes.unknown[entry_id - votes.first] if self._asked_again else 0
        silent = (
            slot
            for slot, through in enumerate(votes.conclusive)
            if through < entry_id or cannot_tell >> slot & 1
        )
        return tuple(self.ensemble[slot] for slot in silent)

    def _names(self, slots: int) -> tuple[BookieId, ...]:
        return tuple(bookie for slot, bookie in enumerate(self.ensemble) if slots >> slot & 1)

    def check(self) -> None:
        """Assert every invariant of the state (I6: docs/counterexamples.md). For tests and the explorer."""
        record = self.record
        if self.status is EndStatus.FENCING:
            assert self.lap == self.start == NO_ENTRY, "nothing is judged before the fence covers"
            return
        assert self.rules.covers(
            self.fence.known, record.ensemble_size, record.write_quorum, record.ack_quorum
        )
        assert self.start >= record.last_fragment.first_entry - 1, "I6: never below the last fragment"
        assert self.start <= self.lap, "reading goes forward"
        self.fence.check()
        assert all(each.first_entry <= self.lap for each in self.origins), "only what is recovered has one"
        assert len(self.votes.origins) == len(self.votes.positive) * self.votes.by_id, "one for each id"
        if self.status is not EndStatus.FOUND:
            self.votes.check()

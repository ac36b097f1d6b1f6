"""Take-over: a client becomes the writer of a stream, in a term of its own, without losing an acknowledged entry.

1. Announce: compare-and-swap the record to the next term and IN_RECOVERY, with 64 random bits as its owner.
2. Recover: fence the bookies of the last fragment with the term, read forward, write back. A take-over is a recovery
   (`recovery/machine.py`) that ends otherwise; its driver sends the term with every request, reads each entry under the term
   that the ranges name, and writes it back under that.
3. Open: compare-and-swap the record to OPEN, with the range (term, last + 1) and the fragments that the recovery used.

A compare-and-swap of unknown outcome is settled by the owner: two clients may have asked for the same term, and a record
in one's own term is not yet one's own. The client that finds a higher term ends, and may begin again with a term above it.

Nothing needs to be written at its end: entries of an earlier term that are left on some bookie have another name than
those of this one. A take-over that dies has written entries of earlier terms only.

Where terms only fence, an entry is named by its id alone, and there is a step before the last (`truncation.py`): a no-op
that truncates, on every bookie of the ensemble. The take-over is closing meanwhile. What is recovered is waited for on its whole write sets, and is written back
under the origin term that it was found with: a bookie may have had another entry of that id.

Source: Vanlightly's unbounded ledgers, "Protocol changes for unbounded ledgers", "Terms are also entry identifiers";
docs/protocol/streams.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Final

from quire.core.answers import Answer
from quire.core.ids import NO_ENTRY, BookieId, Slot
from quire.core.ledger.effects import (
    AwaitBookies,
    RecoveryClosed,
    RecoveryFailed,
    TakenOver,
    TakeOverResult,
    TakeOverSuperseded,
    WriteMetadata,
)
from quire.core.ledger.ensemble_change import ChangeStatus
from quire.core.ledger.metadata import LedgerMetadata, LedgerState
from quire.core.ledger.terms import origin_of
from quire.core.recovery.machine import (
    RECOVERY_ROWS,
    WINDOW_BYTES,
    WINDOW_ENTRIES,
    RecoveryMachine,
    RecoveryStatus,
)
from quire.core.recovery.rules import RULES, RecoveryRules
from quire.core.recovery.truncation import FencingEnd
from quire.core.state_table import StateTable

TAKE_OVER_TABLE: Final = StateTable(
    RecoveryStatus,
    {
        **RECOVERY_ROWS,
        "recover": "new > announcing ended",
        "replacements_found": "reading > = measuring closing ended; closing > =; new announcing fencing measuring ended > -",
        "truncation_answered": "closing > = ended; new announcing fencing reading measuring ended > -",
        "waited_for_bookies": "closing > =; new announcing fencing reading measuring ended > -",
    },
)
"""What a take-over's inputs do."""


class TakeOverMachine(RecoveryMachine):
    """One take-over of one stream: a recovery that opens the stream in a term of its own.

    A bookie that has a higher term ends it (TakeOverSuperseded), whatever it is asked. Of the entries that a bookie returns
    only those count that are under the origin term that was asked for; where terms only fence, those of the ids.

    Args:
        record: the stream's record as it was read.
        version: its version in the store.
        owner: 64 random bits, of this take-over alone.
        rules: the protocol's rules (`core/rules.py`); only tests pass changed ones.
        window_entries: how many ids one round of reads asks for.
        window_bytes: payload bytes on their way back beyond which reading waits.

    Attributes:
        term: this take-over's.
        truncation: what ends it where terms only fence.

    Source: Vanlightly's unbounded ledgers: "When a client decides it should be the one that writes to the ledger it increments
    the ledger term", "The client sends the LAC requests to the current fragment as normal, but with the new term,
    rather than a fencing flag".
    """

    __slots__ = ("_owner", "term", "truncation")
    _table: ClassVar = TAKE_OVER_TABLE

    def __init__(
        self,
        record: LedgerMetadata,
        version: int,
        owner: int,
        rules: RecoveryRules = RULES,
        window_entries: int = WINDOW_ENTRIES,
        window_bytes: int = WINDOW_BYTES,
    ) -> None:
        super().__init__(record, version, rules, window_entries, window_bytes)
        self._owner = owner
        self.term = rules.next_term(record.term)
        self.truncation = FencingEnd(record.ensemble_size, record.write_quorum, record.ack_quorum, rules)

    def origin_of(self, entry_id: int) -> int:
        """The origin term under which an entry is written back: the one it was recovered with."""
        return origin_of(entry_id, self.end.origins if self.record.only_fences else self.record.ranges)

    # --- what begins and ends it -------------------------------------------------------------------------------------

    def ended_by(self, record: LedgerMetadata, version: int) -> RecoveryClosed | TakeOverSuperseded | None:
        """Why a record ends this take-over: the stream was closed for good, or another client has taken it over."""
        if record.state is LedgerState.CLOSED:
            return RecoveryClosed(record, version, accepted=True)
        # Nothing was announced before its first step: a record in this very term, which only the mutant `own-term` begins with,
        # is then another take-over's, and is taken over.
        goes_on = self.status is RecoveryStatus.NEW or record.term < self.term
        goes_on = goes_on or self._rules.is_own_take_over(record, self.term, self._owner)
        return None if goes_on else TakeOverSuperseded(record.term)

    def _over(self) -> TakeOverResult | None:
        over = self.ended_by(self.record, self._version)
        if over is None and self.status is RecoveryStatus.CLOSING:
            if self.record.term < self.term:
                return RecoveryFailed(Answer.ERROR, ())  # a term never falls
            if self.record.state is LedgerState.OPEN:
                return self._result()
        return over

    def _begin(self) -> None:
        self._forget()  # also after a conflict: the last fragment may be another one, before it is announced
        super()._begin()

    def _announcement(self) -> LedgerMetadata | None:
        if self.status is not RecoveryStatus.NEW and self.record.term == self.term:
            return None
        return self.record.taken_over(self.term, self._owner)

    def _acts_on(self, name: str, answer: Answer) -> bool:
        acts = super()._acts_on(name, answer)
        if acts and answer is Answer.INVALID_TERM:
            self._stop(TakeOverSuperseded(None))
        return acts and answer is not Answer.INVALID_TERM

    def _close(self) -> None:
        self.status = self._table.moved[self.status, RecoveryStatus.CLOSING]
        if self.record.only_fences and self.truncation.entry_id == NO_ENTRY:
            # "a final truncate no-op entry as the last entry to be written back"
            self.truncation.begin(self.end.lap + 1)
            self._truncate(self.back.change.live)
        else:
            self._open()

    def _open(self) -> None:
        """The range begins with the no-op, if there is one, and so may a fragment."""
        last, opened = self.end.lap, self.record.ranges[-1].term
        unopened = tuple(each for each in self.end.origins if each.term > opened)
        fragments = self._record_through(last + self.record.only_fences).fragments
        self.out.append(WriteMetadata(self.record.opened(last, fragments, unopened), self._version))

    def _result(self) -> TakeOverResult:
        """The record is open in this term; slots without a bookie begin as absent ones."""
        change, named = self.back.change, self.record.last_fragment.ensemble
        absent = tuple(slot for slot in sorted(change.absent) if change.ensemble[slot] == named[slot])
        last = self.record.ranges[-1].first_entry - (not self.record.only_fences)
        return TakenOver(self.record, self._version, last, self.end.length, absent)

    # --- where terms only fence: the truncation ----------------------------------------------------------------------

    @property
    def truncates(self) -> bool:
        """Whether the truncation is on its way."""
        return self.status is RecoveryStatus.CLOSING and self.truncation.under_way

    @property
    def awaited(self) -> tuple[BookieId, ...]:
        """The bookies without which, or others in their place, the take-over cannot end."""
        return self.back.absent() if self.truncates else ()

    def _truncate(self, slots: Sequence[int]) -> None:
        """The no-op and the truncation to some slots of the ensemble that the recovery has come to.

        Bookies are wanted in the place of those that failed. Without one at each slot the take-over cannot end.
        """
        self.out += self.truncation.sends(slots, self.back.change.ensemble, self.end.start)
        self._find_replacements()
        if absent := self.awaited:
            self.out.append(AwaitBookies(absent))

    def truncation_answered(self, slot: int, bookie: BookieId, answer: Answer) -> None:
        """One bookie answered a `SendTruncation`, or did not.

        Args:
            slot: as in the effect, like `bookie`. A response from a bookie that is no longer at its slot changes nothing.

        Effects:
            the record's opening when every bookie of the ensemble has acknowledged it; FindReplacements when the bookie
            failed; TakeOverSuperseded when it has a higher term.

        Source: Vanlightly's unbounded ledgers: "We must guarantee that this last entry is written to all bookies of the last
        fragment".
        """
        change = self.back.change
        if (
            not self.truncates
            or not self._acts_on("truncation_answered", answer)
            or change.ensemble[slot] != bookie
        ):
            return
        if answer is Answer.UNAUTHORISED:
            self._stop(RecoveryFailed(answer, (bookie,)))
        elif answer is not Answer.OK:
            if change.lost(slot, bookie):
                self._find_replacements()
        elif self.truncation.acked(slot):
            self._open()

    def replacements_found(self, replacements: Mapping[Slot, BookieId]) -> None:
        """As for a recovery; a fragment begins with the no-op, and its new bookies are sent the truncation."""
        if not self.truncates:
            super().replacements_found(replacements)
        elif self.back.change.status is ChangeStatus.CHOOSING:
            changed = self.back.replace(replacements)
            self.truncation.replaced(changed)
            self._truncate(changed)

    def waited_for_bookies(self, *, clears_failures: bool = False) -> None:
        """The pause of `AwaitBookies` is over: the bookies without which it cannot end are sent the truncation again.

        Args:
            clears_failures: bookies that failed before the pause may take the place of others again.

        Effects:
            SendTruncation to each of them.
        """
        if self._table.acts["waited_for_bookies"][self.status] and self.truncates:
            self._truncate(self.back.come_back(clears_failures=clears_failures))

    def check(self) -> None:
        """Assert every invariant of the state (U4: docs/counterexamples.md). For tests and the explorer."""
        super().check()
        self.truncation.check()
        if self.status not in {RecoveryStatus.NEW, RecoveryStatus.ANNOUNCING, RecoveryStatus.ENDED}:
            assert self.record.state is LedgerState.IN_RECOVERY, "what is recovered was announced"
            assert self.record.term == self.term, "U4: the term stands in the record first"

"""Take-over: a client becomes the writer of a stream, in a term of its own, without losing an acknowledged entry.

1. Announce: compare-and-swap the record to the next term and IN_RECOVERY, with 64 random bits as its owner.
2. Recover: fence the bookies of the last fragment with the term, read forward, write back. It is what a recovery does
   (`recovery/machine.py`), on the same machine; its driver sends the term with every request, reads each entry under the term
   that the ranges name, and writes it back under that.
3. Open: compare-and-swap the record to OPEN, with the range (term, last + 1) and the fragments that the recovery used.

A compare-and-swap of unknown outcome is settled by the owner: two clients may have asked for the same term, and a record
in one's own term is not yet one's own. The client that finds a higher term ends, and may begin again with a term above it.

Nothing needs to be written at its end: entries of an earlier term that are left on some bookie have another name than
those of this one. A take-over that dies has written entries of earlier terms only.

Where terms only fence, an entry is named by its id alone, and there is a step before the last (`truncation.py`): a no-op
that truncates, on every bookie of the ensemble. What is recovered is waited for on its whole write sets, and is written back
under the origin term that it was found with: a bookie may have had another entry of that id.

Source: Vanlightly's unbounded ledgers, "Protocol changes for unbounded ledgers", "Terms are also entry identifiers";
docs/protocol/streams.md.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from enum import Enum
from typing import Final

from quire.core.answers import Answer
from quire.core.ids import NO_ENTRY, BookieId, Slot
from quire.core.ledger.effects import (
    AwaitBookies,
    RecoveryClosed,
    RecoveryFailed,
    RereadMetadata,
    TakenOver,
    TakeOverEffect,
    TakeOverSuperseded,
    WriteMetadata,
)
from quire.core.ledger.ensemble_change import ChangeStatus
from quire.core.ledger.metadata import Fragment, LedgerMetadata, LedgerState
from quire.core.ledger.terms import origin_of
from quire.core.recovery.log_end_search import NO_ORIGINS
from quire.core.recovery.machine import WINDOW_BYTES, WINDOW_ENTRIES, RecoveryMachine, RecoveryStatus
from quire.core.recovery.rules import RULES, RecoveryRules
from quire.core.recovery.truncation import FencingEnd
from quire.core.state_table import StateTable


class TakeOverStatus(Enum):
    """Where a take-over stands."""

    NEW = "new"
    ANNOUNCING = "announcing"
    RECOVERING = "recovering"
    TRUNCATING = "truncating"
    OPENING = "opening"
    ENDED = "ended"


_RECOVERS: Final = "recovering > = truncating opening ended; new announcing truncating opening ended > -"
_WRITES_BACK: Final = "recovering > = opening ended; truncating > {}; new announcing opening ended > -"
TAKE_OVER_TABLE: Final = StateTable(
    TakeOverStatus,
    {
        "take_over": "new > announcing ended",
        "metadata_written": "announcing > recovering; opening > ended",
        "metadata_conflicted": "announcing opening > =",
        "metadata_read": "announcing > = recovering ended; opening > = ended",
        "fence_answered": _RECOVERS,
        "read_answered": _RECOVERS,
        "waited": _RECOVERS,
        "adds_answered": _WRITES_BACK.format("-"),
        "replacements_found": _WRITES_BACK.format("="),
        "truncation_answered": "truncating > = opening ended; new announcing recovering opening ended > -",
        "waited_for_bookies": "truncating > =; new announcing recovering opening ended > -",
        "length_found": "recovering > truncating opening",
        "length_unavailable": "recovering > = ended",
    },
)
"""What a take-over's inputs do."""


class TakeOverMachine:
    """One take-over of one stream. Inputs are methods; what it wants done appears in `out`.

    Args:
        record: the stream's record as it was read.
        version: its version in the store.
        owner: 64 random bits, of this take-over alone.
        rules: the protocol's rules (`core/rules.py`); only tests pass changed ones.
        window_entries: how many ids one round of reads asks for.
        window_bytes: payload bytes on their way back beyond which reading waits.

    Attributes:
        record: the newest record that is known to have been stored.
        term: this take-over's.
        recovery: what fences, reads forward and writes back; None before it has begun.
        truncation: what ends it where terms only fence; None where they name entries.
    """

    __slots__ = (
        "_ignored_lacs",
        "_owner",
        "_rules",
        "_version",
        "_window",
        "out",
        "record",
        "recovery",
        "status",
        "term",
        "truncation",
    )

    def __init__(
        self,
        record: LedgerMetadata,
        version: int,
        owner: int,
        rules: RecoveryRules = RULES,
        window_entries: int = WINDOW_ENTRIES,
        window_bytes: int = WINDOW_BYTES,
    ) -> None:
        self.record = record
        self._version = version
        self._owner = owner
        self._rules = rules
        self._window = (window_entries, window_bytes)
        self.truncation: FencingEnd | None = None
        if record.only_fences:
            sizes = record.ensemble_size, record.write_quorum, record.ack_quorum
            self.truncation = FencingEnd(*sizes, rules)
        self._ignored_lacs: tuple[BookieId, ...] = ()
        self.term = rules.next_term(record.term)
        self.recovery: RecoveryMachine | None = None
        self.status = TakeOverStatus.NEW
        self.out: list[TakeOverEffect] = []

    # --- the beginning: announced in the record ----------------------------------------------------------------------

    def take_over(self, ignored_lacs: Collection[BookieId] = ()) -> None:
        """Begin.

        Args:
            ignored_lacs: bookies whose LAC is ignored: an operator's way out where a LAC contradicts the entries.

        Effects:
            WriteMetadata with the next term and IN_RECOVERY; RecoveryClosed when the stream was closed for good.

        Raises:
            MisuseError: the record is no stream's.

        Source: Vanlightly's unbounded ledgers: "When a client decides it should be the one that writes to the ledger it increments
        the ledger term".
        """
        assert TAKE_OVER_TABLE.acts["take_over"][self.status]
        self._ignored_lacs = tuple(sorted(ignored_lacs))
        if self.record.terms is not None and self.record.state is LedgerState.CLOSED:
            self._stop(RecoveryClosed(self.record, self._version, accepted=True))
            return
        effect = self._announcement()
        self.status = TAKE_OVER_TABLE.moved[self.status, TakeOverStatus.ANNOUNCING]
        self.out.append(effect)

    def _announcement(self) -> WriteMetadata:
        return WriteMetadata(self.record.taken_over(self.term, self._owner), self._version)

    # --- responses of the metadata store -----------------------------------------------------------------------------

    def metadata_written(self, record: LedgerMetadata, version: int) -> None:
        """The compare-and-swap that was asked for succeeded.

        Effects:
            fencing LAC reads after the announcement; TakenOver after the opening.
        """
        assert TAKE_OVER_TABLE.acts["metadata_written"][self.status]
        self.record, self._version = record, version
        if self.status is TakeOverStatus.ANNOUNCING:
            self._recover()
        else:
            self._taken()

    def metadata_conflicted(self) -> None:
        """The record had another version; or the response was lost, and it may have been written.

        Effects:
            RereadMetadata: a conflict may be this client's own earlier success.
        """
        assert TAKE_OVER_TABLE.acts["metadata_conflicted"][self.status]
        self.out.append(RereadMetadata())

    def metadata_read(self, record: LedgerMetadata | None, version: int) -> None:
        """What the store holds now; None when the stream was deleted.

        Effects:
            Announcing: on with the fence if it is announced, again if no other client is in this term or a later one.
            Opening: TakenOver if it is open, again on the new record if another client changed something else. Else
            TakeOverSuperseded; RecoveryClosed if the stream was closed for good.
        """
        assert TAKE_OVER_TABLE.acts["metadata_read"][self.status]
        if record is None:
            self._stop(RecoveryFailed(Answer.NO_LEDGER, ()))
            return
        self.record, self._version = record, version
        if (over := self.ended_by(record, version)) is not None:
            self._stop(over)
        elif self.status is TakeOverStatus.ANNOUNCING:
            if record.term == self.term:
                self._recover()
            else:
                self.out.append(self._announcement())
        elif record.term < self.term:
            self._stop(RecoveryFailed(Answer.ERROR, ()))  # a term never falls
        elif record.state is LedgerState.OPEN:
            self._taken()
        else:
            assert self.recovery is not None
            self.recovery.metadata_read(record, version)
            self._follow()

    def ended_by(self, record: LedgerMetadata, version: int) -> RecoveryClosed | TakeOverSuperseded | None:
        """Why a record ends this take-over: the stream was closed for good, or another client has taken it over."""
        if record.state is LedgerState.CLOSED:
            return RecoveryClosed(record, version, accepted=True)
        goes_on = record.term < self.term or self._rules.is_own_take_over(record, self.term, self._owner)
        return None if goes_on else TakeOverSuperseded(record.term)

    # --- the middle: a recovery --------------------------------------------------------------------------------------

    def _recover(self) -> None:
        entries, size = self._window
        self.recovery = RecoveryMachine(self.record, self._version, self._rules, entries, size)
        self.recovery.recover(self._ignored_lacs, at_write_quorum=self.truncation is not None)
        self.status = TAKE_OVER_TABLE.moved[self.status, TakeOverStatus.RECOVERING]
        self._follow()

    def _follow(self) -> None:
        """What the recovery wants done is wanted; where it would close, the stream is opened in its new term."""
        recovery = self.recovery
        assert recovery is not None
        effects, recovery.out = recovery.out, []
        for effect in effects:
            if isinstance(effect, WriteMetadata) and effect.record.state is LedgerState.CLOSED:
                self._recovered(effect.record)
            else:
                self.out.append(effect)
        if recovery.status is RecoveryStatus.ENDED:
            self.status = TAKE_OVER_TABLE.moved[self.status, TakeOverStatus.ENDED]

    def _recovered(self, end: LedgerMetadata) -> None:
        """Everything up to the end is recovered and written back, as this record says, which would close a ledger."""
        truncation = self.truncation
        if truncation is None:
            self._open(end.last_entry, end.fragments)
        elif truncation.entry_id == NO_ENTRY:
            # "a final truncate no-op entry as the last entry to be written back"
            self._truncate(end.last_entry + 1)
        else:
            self._open_truncated()  # once more, after a conflict

    def _open(self, last_entry: int, fragments: Sequence[Fragment]) -> None:
        if self.status is not TakeOverStatus.OPENING:
            self.status = TAKE_OVER_TABLE.moved[self.status, TakeOverStatus.OPENING]
        assert self.recovery is not None
        opened = self.record.ranges[-1].term
        unopened = tuple(each for each in self.recovery.end.origins if each.term > opened)
        self.out.append(WriteMetadata(self.record.opened(last_entry, fragments, unopened), self._version))

    def _on_response(self, name: str, answer: Answer) -> RecoveryMachine | None:
        """The recovery that a bookie's response is for; None if it is for none, or ends the take-over."""
        if not TAKE_OVER_TABLE.acts[name][self.status]:
            return None
        if answer is Answer.INVALID_TERM:
            self._stop(TakeOverSuperseded(None))
            return None
        return self.recovery

    def fence_answered(
        self, slot: int, answer: Answer, last_add_confirmed: int, lafr: int = NO_ENTRY
    ) -> None:
        """One bookie of the last fragment answered the fencing LAC read, or did not: as for a recovery.

        Effects:
            TakeOverSuperseded when it has a higher term.

        Source: Vanlightly's unbounded ledgers: "The client sends the LAC requests to the current fragment as normal, but with the new
        term, rather than a fencing flag".
        """
        if (recovery := self._on_response("fence_answered", answer)) is not None:
            recovery.fence_answered(slot, answer, last_add_confirmed, lafr)
            self._follow()

    def read_answered(
        self,
        slot: int,
        answer: Answer,
        entries: Mapping[int, int],
        conclusive_through: int,
        unknown: Sequence[tuple[int, int]],
        origins: Mapping[int, int] = NO_ORIGINS,
    ) -> None:
        """One bookie answered its recovery read, or did not: as for a recovery.

        Args:
            entries: those under the origin term that was asked for; an entry of another one is no such entry. Where terms
                only fence, those of the ids that were asked for.
            origins: where terms only fence, the origin term of each of them.

        Effects:
            TakeOverSuperseded when it has a higher term.
        """
        if (recovery := self._on_response("read_answered", answer)) is None:
            return
        recovery.read_answered(slot, answer, entries, conclusive_through, unknown, origins)
        self._follow()

    def origin_of(self, entry_id: int) -> int:
        """The origin term under which an entry is written back: the one it was recovered with."""
        if self.truncation is None:
            return self.record.origin_of(entry_id)
        assert self.recovery is not None
        return origin_of(entry_id, self.recovery.end.origins)

    @property
    def awaited(self) -> tuple[BookieId, ...]:
        """The bookies without which, or others in their place, the take-over cannot end."""
        if self.status is not TakeOverStatus.TRUNCATING:
            return ()
        assert self.recovery is not None
        return self.recovery.back.absent()

    def adds_answered(self, slot: int, bookie: BookieId, first: int, last: int, answer: Answer) -> None:
        """One bookie answered a `SendRecoveryAdds`, or did not: as for a recovery.

        Effects:
            TakeOverSuperseded when it has a higher term.
        """
        if (recovery := self._on_response("adds_answered", answer)) is not None:
            recovery.adds_answered(slot, bookie, first, last, answer)
            self._follow()

    def waited(self) -> None:
        """The time of `WaitForAnswers` is over: as for a recovery."""
        if TAKE_OVER_TABLE.acts["waited"][self.status]:
            assert self.recovery is not None
            self.recovery.waited()
            self._follow()

    def replacements_found(self, replacements: Mapping[Slot, BookieId]) -> None:
        """The spares for the slots of the last `FindReplacements`: as for a recovery.

        Raises:
            MisuseError: a bookie was chosen that is in the ensemble, has failed or was chosen twice.
        """
        if not TAKE_OVER_TABLE.acts["replacements_found"][self.status]:
            return
        assert self.recovery is not None
        if self.status is TakeOverStatus.TRUNCATING:
            self._truncate_replaced(replacements)
        else:
            self.recovery.replacements_found(replacements)
            self._follow()

    def length_found(self, length: int) -> None:
        """The length in the header of the entry that `FindLength` asked for."""
        assert TAKE_OVER_TABLE.acts["length_found"][self.status]
        assert self.recovery is not None
        self.recovery.length_found(length)
        self._follow()

    def length_unavailable(self, silent: Sequence[BookieId]) -> None:
        """No bookie could serve the last entry now: as for a recovery."""
        assert TAKE_OVER_TABLE.acts["length_unavailable"][self.status]
        assert self.recovery is not None
        self.recovery.length_unavailable(silent)
        self._follow()

    # --- where terms only fence: the truncation ----------------------------------------------------------------------

    def _truncate(self, entry_id: int) -> None:
        """The no-op and the truncation to every bookie of the ensemble that the recovery has come to."""
        assert self.truncation is not None
        assert self.recovery is not None
        self.truncation.begin(entry_id)
        self.status = TAKE_OVER_TABLE.moved[self.status, TakeOverStatus.TRUNCATING]
        self._send_truncations(self.recovery.back.change.live)
        self._replace_failed()
        self._await_absent()

    def _send_truncations(self, slots: Sequence[int]) -> None:
        assert self.truncation is not None
        assert self.recovery is not None
        change, start = self.recovery.back.change, self.recovery.end.start
        self.out += self.truncation.sends(slots, change.ensemble, start)

    def _replace_failed(self) -> None:
        """Bookies are wanted for those that failed."""
        assert self.recovery is not None
        if (effect := self.recovery.back.find()) is not None:
            self.out.append(effect)

    def _await_absent(self) -> None:
        """Without a bookie at each slot the take-over cannot end: none may be left out."""
        assert self.recovery is not None
        if absent := self.recovery.back.absent():
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
        recovery = self._on_response("truncation_answered", answer)
        if recovery is None or recovery.back.change.ensemble[slot] != bookie:
            return
        assert self.truncation is not None
        change = recovery.back.change
        if answer is Answer.UNAUTHORISED:
            self._stop(RecoveryFailed(answer, (bookie,)))
        elif answer is not Answer.OK:
            if change.lost(slot, bookie):
                self._replace_failed()
        elif self.truncation.acked(slot):
            self._open_truncated()

    def _truncate_replaced(self, replacements: Mapping[Slot, BookieId]) -> None:
        """The new bookies of a fragment that begins with the no-op: each is sent the truncation."""
        assert self.truncation is not None
        assert self.recovery is not None
        back = self.recovery.back
        if back.change.status is not ChangeStatus.CHOOSING:
            return
        changed = back.replace(replacements)
        self.truncation.replaced(changed)
        self._send_truncations(changed)
        self._replace_failed()
        self._await_absent()

    def waited_for_bookies(self, *, clears_failures: bool = False) -> None:
        """The pause of `AwaitBookies` is over: the bookies without which it cannot end are sent the truncation again.

        Args:
            clears_failures: bookies that failed before the pause may take the place of others again.

        Effects:
            SendTruncation to each of them.
        """
        if TAKE_OVER_TABLE.acts["waited_for_bookies"][self.status]:
            assert self.recovery is not None
            self._send_truncations(self.recovery.back.come_back(clears_failures=clears_failures))

    def _open_truncated(self) -> None:
        """The range begins with the no-op, and the fragments are those that the truncation has reached."""
        assert self.truncation is not None
        assert self.recovery is not None
        record = self.record
        for first, ensemble in self.recovery.back.changes.items():
            record = record.with_ensemble(first, ensemble)
        self._open(self.truncation.entry_id - 1, record.fragments)

    # --- the end -----------------------------------------------------------------------------------------------------

    def _taken(self) -> None:
        """The record is open in this term; slots without a bookie begin as absent ones."""
        assert self.recovery is not None
        change, named = self.recovery.back.change, self.record.last_fragment.ensemble
        absent = tuple(slot for slot in sorted(change.absent) if change.ensemble[slot] == named[slot])
        last = self.record.ranges[-1].first_entry - (self.truncation is None)
        self._stop(TakenOver(self.record, self._version, last, self.recovery.end.length, absent))

    def _stop(self, result: TakenOver | TakeOverSuperseded | RecoveryClosed | RecoveryFailed) -> None:
        self.status = TAKE_OVER_TABLE.moved[self.status, TakeOverStatus.ENDED]
        self.out.append(result)

    def check(self) -> None:
        """Assert every invariant of the state (U4: docs/counterexamples.md). For tests and the checker."""
        self.record.checked()
        recovers = self.status in {
            TakeOverStatus.RECOVERING,
            TakeOverStatus.TRUNCATING,
            TakeOverStatus.OPENING,
        }
        assert (self.recovery is not None) >= recovers
        if recovers:
            assert self.recovery is not None
            self.recovery.check()
            assert self.record.state is LedgerState.IN_RECOVERY, "what is recovered was announced"
            assert self.record.term == self.term, "U4: the term stands in the record first"
        if self.truncation is not None:
            self.truncation.check()

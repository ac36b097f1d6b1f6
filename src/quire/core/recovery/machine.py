"""Recovery: any client closes a ledger whose writer has stopped, without losing an acknowledged entry.

Three phases, after announcing them in the record:

1. Fence the bookies of the last fragment and learn the highest LAC, until no ack quorum is left unfenced.
2. Read forward from there with fencing reads, judge entry by entry in order, and write every recoverable entry
   back to its whole write set.
3. Set the record to CLOSED at the last entry recovered, by compare-and-swap.

Where the write quorum is guaranteed, reading begins after the LAFR, and the close waits until what was written back is on
all of its write sets.

It is made of parts with their own state: what finds the end (`recovery/log_end_search.py`), and what writes back
(`recovery/write_back.py`) with an ensemble change of its own. Here are the announcement, the close, and every effect.

A take-over of a stream is the same with another beginning and another end (`recovery/take_over.py`): what differs stands
under "what begins and ends it".

Entries are read by window (many ids, one request per bookie) but judged one by one, strictly in order. Reads go to
the ensemble that the record named; writes go to another one, which starts as the same and changes when bookies fail.

The machine sees ids and lengths; payloads stay with the driver.

Source: BookKeeper protocol, "Closing a ledger as a reader"; Vanlightly's guide, "Ledger Recovery".
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from enum import Enum
from typing import ClassVar, Final

from quire.core.answers import Answer
from quire.core.ids import NO_ENTRY, BookieId, EntryId, Slot
from quire.core.ledger.effects import (
    FindLength,
    RecoveryClosed,
    RecoveryFailed,
    RecoveryInconclusive,
    RereadMetadata,
    SendLacRead,
    SendRecoveryRead,
    TakeOverEffect,
    TakeOverResult,
    WaitForAnswers,
    WriteMetadata,
)
from quire.core.ledger.ensemble_change import ChangeStatus, EnsembleChange
from quire.core.ledger.metadata import LedgerMetadata, LedgerState
from quire.core.recovery.log_end_search import NO_ORIGINS, EndStatus, EndStep, LogEndSearch
from quire.core.recovery.rules import RULES, RecoveryRules
from quire.core.recovery.write_back import WriteBack
from quire.core.state_table import StateTable

WINDOW_ENTRIES: Final = 4096
"""Entries asked for at once; also the bound on entries written back and not yet confirmed."""
WINDOW_BYTES: Final = 16 * 1024 * 1024
"""Payload bytes written back and not yet confirmed beyond which no more is read."""


class RecoveryStatus(Enum):
    """Where a recovery or a take-over stands."""

    NEW = "new"
    ANNOUNCING = "announcing"
    FENCING = "fencing"
    READING = "reading"
    MEASURING = "measuring"
    CLOSING = "closing"
    ENDED = "ended"


_READS: Final = "reading > = measuring closing ended; new announcing fencing measuring closing ended > -"
RECOVERY_ROWS: Final = {
    "recover": "new > announcing fencing ended",
    "metadata_written": "announcing > fencing; closing > ended",
    "metadata_conflicted": "announcing closing > =",
    "metadata_read": "announcing > = fencing ended; closing > = ended",
    "fence_answered": "fencing > = reading ended; reading > = measuring closing ended; new announcing measuring closing ended > -",
    "read_answered": _READS,
    "waited": _READS,
    "adds_answered": _READS,
    "replacements_found": _READS,
    "length_found": "measuring > closing",
    "length_unavailable": "measuring > = ended",
}
RECOVERY_TABLE: Final = StateTable(RecoveryStatus, RECOVERY_ROWS)
"""What a recovery's inputs do."""


class RecoveryMachine:
    """One recovery of one ledger. Inputs are methods; what it wants done appears in `out`.

    Args:
        record: the ledger's record as it was read.
        version: the record's version in the store.
        rules: the protocol's rules (`core/rules.py`); only tests pass changed ones.
        window_entries: how many ids one round of reads asks for.
        window_bytes: payload bytes on their way back beyond which reading waits.

    Attributes:
        record: the newest record that is known to have been stored.
        end: what finds the end.
        back: what writes back.
    """

    __slots__ = (
        "_gives_up",
        "_ignored_lacs",
        "_rules",
        "_version",
        "_window_bytes",
        "_window_entries",
        "back",
        "end",
        "out",
        "record",
        "status",
    )
    _table: ClassVar = RECOVERY_TABLE

    def __init__(
        self,
        record: LedgerMetadata,
        version: int,
        rules: RecoveryRules = RULES,
        window_entries: int = WINDOW_ENTRIES,
        window_bytes: int = WINDOW_BYTES,
    ) -> None:
        self._rules = rules
        self._ignored_lacs: frozenset[BookieId] = frozenset()
        self._gives_up = False
        self.record = record
        self._version = version
        self._window_entries = window_entries
        self._window_bytes = window_bytes
        self.status = RecoveryStatus.NEW
        self.out: list[TakeOverEffect] = []
        self._forget()

    def _forget(self) -> None:
        """Know nothing but the record: at the beginning, and when it was reread before anything was asked."""
        ensemble, rules = self.record.fragments[-1].ensemble, self._rules
        self.end = LogEndSearch(self.record, ensemble, rules, self._window_entries, self._ignored_lacs)
        slots = tuple(range(len(ensemble)))
        change = EnsembleChange(self.record.ledger_id, ensemble, slots, seeks_absent=False)
        self.back = WriteBack(self.record, change, rules)

    @property
    def lac(self) -> int:
        """Every entry at or below is confirmed."""
        return self.back.lac

    @property
    def lap(self) -> int:
        """Every entry at or below was found recoverable; those above `lac` are being written back."""
        return self.end.lap

    # --- the beginning: announced in the record ----------------------------------------------------------------------

    def recover(self, ignored_lacs: Collection[BookieId] = (), *, at_ack_quorum: bool = False) -> None:
        """Begin.

        Args:
            ignored_lacs: bookies whose LAC is ignored: an operator's way out where a LAC contradicts the entries.
            at_ack_quorum: give a guarantee of the write quorum up, which the closed record then says: a way out where a
                bookie is lost and no other one can take its place.

        Effects:
            RecoveryClosed at once when the record is CLOSED; WriteMetadata with IN_RECOVERY when it is OPEN, and always of
            a take-over; fencing LAC reads when another recoverer announced it already.

        Raises:
            MisuseError: it is a stream, or of a take-over a ledger.

        Source: BookKeeper protocol: "To recover a ledger, we first update the state in the metadata to IN_RECOVERY".
        """
        assert self._table.acts["recover"][self.status]
        self._ignored_lacs, self._gives_up = frozenset(ignored_lacs), at_ack_quorum
        if (over := self._over()) is not None:
            self._stop(over)
        else:
            self._begin()

    def _begin(self) -> None:
        if (announced := self._announcement()) is not None:
            self.status = self._table.moved[self.status, RecoveryStatus.ANNOUNCING]
            self.out.append(WriteMetadata(announced, self._version))
        else:
            self._forget()
            self.status = self._table.moved[self.status, RecoveryStatus.FENCING]
            self.out += [SendLacRead(Slot(s), b, fence=True) for s, b in enumerate(self.end.ensemble)]

    # --- responses of the metadata store -----------------------------------------------------------------------------

    def metadata_written(self, record: LedgerMetadata, version: int) -> None:
        """The compare-and-swap that was asked for succeeded.

        Effects:
            fencing LAC reads after the announcement; RecoveryClosed after the close, of a take-over TakenOver.
        """
        assert self._table.acts["metadata_written"][self.status]
        self.record, self._version = record, version
        if self.status is RecoveryStatus.ANNOUNCING:
            self._begin()
        else:
            self._stop(self._result())

    def metadata_conflicted(self) -> None:
        """The record had another version; or the response was lost, and it may have been written.

        Effects:
            RereadMetadata: a conflict may be this client's own earlier success.
        """
        assert self._table.acts["metadata_conflicted"][self.status]
        self.out.append(RereadMetadata())

    def metadata_read(self, record: LedgerMetadata | None, version: int) -> None:
        """What the store holds now; None when the ledger was deleted.

        Effects:
            CLOSED: RecoveryClosed with that end, whichever client set it. Announcing: again, or on with the fence.
            Closing: again on the new record; RecoveryInconclusive if its last fragment is another one. Of a take-over
            TakeOverSuperseded if another client is in its term or a later one; TakenOver if it is open in its own.
        """
        assert self._table.acts["metadata_read"][self.status]
        if record is None:
            self._stop(RecoveryFailed(Answer.NO_LEDGER, ()))
            return
        fenced, self.record, self._version = self.record.last_fragment, record, version
        if (over := self._over()) is not None:
            self._stop(over)
        elif self.status is RecoveryStatus.ANNOUNCING:
            self._begin()
        elif record.last_fragment != fenced:
            # What was fenced is no longer the last fragment: the responses so far do not count for the new one.
            self._stop(RecoveryInconclusive(NO_ENTRY, ()))
        else:
            self._close()

    # --- the middle: fence, read forward, write back -----------------------------------------------------------------

    def fence_answered(
        self, slot: int, answer: Answer, last_add_confirmed: int, lafr: int = NO_ENTRY
    ) -> None:
        """One bookie of the last fragment answered the fencing LAC read, or did not.

        A response that comes after coverage moves nothing, but its LAC may contradict an end that is judged later.

        Args:
            last_add_confirmed: the highest LAC it knows, `NO_ENTRY` if none; `lafr`: likewise of a ledger that guarantees
                the write quorum.

        Effects:
            at coverage the first window of recovery reads; all answered without it: RecoveryInconclusive; as
            `read_answered` if its response was waited for.

        Source: BookKeeper protocol: "Once we receive a response from at least (Qw-Qa)+1 bookies from each write
        quorum in the ensemble, the ledger is fenced".
        """
        end = self.end
        if not self._acts_on("fence_answered", answer) or end.status is EndStatus.FOUND:
            return
        if answer is Answer.UNAUTHORISED:
            self._stop(RecoveryFailed(answer, (end.ensemble[slot],)))
            return
        covered = end.fenced(slot, answer, last_add_confirmed, lafr)
        if isinstance(covered, RecoveryInconclusive):
            self._stop(covered)
        elif covered:
            self.status = self._table.moved[self.status, RecoveryStatus.READING]
            record, quorum = self.record, end.final_quorum
            if self._gives_up:
                quorum = record.ack_quorum
            elif record.terms is not None and record.only_fences:
                quorum = record.write_quorum
            self.back.begin(end.start, quorum)
            self._ask(anew=True)
        elif end.status is EndStatus.WAITING:
            self._go_by([])

    def read_answered(
        self,
        slot: int,
        answer: Answer,
        entries: Mapping[int, int],
        conclusive_through: int,
        unknown: Sequence[tuple[int, int]],
        origins: Mapping[int, int] = NO_ORIGINS,
    ) -> None:
        """One bookie answered its recovery read, or did not.

        Args:
            entries: id -> length in its header, of each entry that came with a valid digest, by ascending id.
            conclusive_through: each id asked for up to here that did not come is not there; later ids are not covered.
            unknown: ranges for which the response is inconclusive, or whose entry came with a wrong digest.
            origins: of a stream whose terms only fence the origin term of each of `entries`; of others nothing.

        Effects:
            recovery adds for entries that became recoverable; further reads; WaitForAnswers before the first end, if
            a bookie is still silent; the close when reading has ended and everything is confirmed;
            RecoveryInconclusive when the next id got all its votes and no verdict, or a negative one that a LAC
            contradicts.

        Source: Vanlightly's guide, "Recovery Phase 2": "Each recovery read determines whether an entry is committed
        or uncommitted".
        """
        end = self.end
        if (
            not self._acts_on("read_answered", answer)
            or end.status is EndStatus.FOUND
            or end.votes.asked[slot] is None
        ):
            return
        if answer is Answer.UNAUTHORISED:
            self._stop(RecoveryFailed(answer, (end.ensemble[slot],)))
        else:
            self._go_by(end.answered(slot, answer, entries, conclusive_through, unknown, origins))

    def waited(self) -> None:
        """The time of `WaitForAnswers` is over, or none of the bookies that it names is worth waiting for.

        Effects:
            as `read_answered`.
        """
        if self._table.acts["waited"][self.status] and self.end.status is EndStatus.WAITING:
            self.end.waited()
            self._go_by([])

    def adds_answered(self, slot: int, bookie: BookieId, first: int, last: int, answer: Answer) -> None:
        """One bookie answered a `SendRecoveryAdds`, or did not.

        Args:
            slot: as in the effect, like `bookie`, `first` and `last`. A response from a bookie that is no longer
                at its slot changes nothing.

        Effects:
            the next window or the close when entries became confirmed; FindReplacements when the bookie failed.

        Source: BookKeeper protocol: "replicating all entries it sees to the entire write quorum".
        """
        back = self.back
        if not self._acts_on("adds_answered", answer) or back.change.ensemble[slot] != bookie:
            return
        if answer is Answer.UNAUTHORISED:
            self._stop(RecoveryFailed(answer, (bookie,)))
        elif answer is Answer.OK:
            if back.acked(slot, first, last):
                self._go_on()
        elif back.change.lost(slot, bookie) and back.lap > back.lac:
            # With nothing unconfirmed the failure can wait for the next entries, which may never come.
            self._find_replacements()

    def replacements_found(self, replacements: Mapping[Slot, BookieId]) -> None:
        """The spares for the slots of the last `FindReplacements`; a slot left out has none and becomes absent.

        Effects:
            the unconfirmed entries again, to the new bookies; RecoveryFailed when some write set can no longer
            reach its ack quorum.

        Raises:
            MisuseError: a bookie was chosen that is in the ensemble, has failed or was chosen twice.

        Source: BookKeeper protocol, "Writing to the ledger": "by replacing the failed node in the current ensemble".
        The change stays local until the close.
        """
        back = self.back
        if (
            not self._table.acts["replacements_found"][self.status]
            or back.change.status is not ChangeStatus.CHOOSING
        ):
            return
        changed = back.replace(replacements)
        self.out += back.resend(changed)
        if self._can_still_confirm():
            self._find_replacements()
            if back.confirm():
                self._go_on()

    def _ask(self, *, anew: bool = False) -> None:
        """Read on, in this window or in a new one."""
        end = self.end
        asks, last = end.asks(anew=anew), EntryId(end.votes.last)
        ensemble = end.ensemble  # which the record named: replacements are not read from
        # A recovery read fences too, so what a bookie lacks it can no longer get.
        self.out += [
            SendRecoveryRead(Slot(slot), ensemble[slot], EntryId(first), last, fence=True)
            for slot, first in asks
        ]

    def _go_by(self, recovered: Sequence[int]) -> None:
        """Write back the entries that became recoverable (their lengths); then what follows for the next entry."""
        end, back = self.end, self.back
        if recovered:
            self.out += back.add(recovered)
            if back.change.absent and not self._can_still_confirm():
                return
            self._find_replacements()
        found = end.conclude()
        if isinstance(found, RecoveryInconclusive):
            self._stop(found)
        elif found is EndStep.GO_ON:
            self._go_on()
        else:
            if isinstance(found, WaitForAnswers):
                self.out.append(found)
            self._ask(anew=found is EndStep.AGAIN)

    def _go_on(self) -> None:
        """Read further, or go on to the end."""
        end, back = self.end, self.back
        if end.status is EndStatus.FOUND:
            if back.lac == end.lap:  # the close waits until every entry written back is confirmed
                self._measure()
        elif back.lengths and back.lengths[-1] - back.lengths[0] > self._window_bytes:
            return  # goes on when some of it is confirmed
        elif end.lap < end.votes.last:
            self._ask()
        elif end.lap - back.lac < self._window_entries:
            self._ask(anew=True)

    def _find_replacements(self) -> None:
        if self.back.change.delayed and (effect := self.back.find()) is not None:
            self.out.append(effect)

    def _can_still_confirm(self) -> bool:
        """Whether every entry on its way can still reach its ack quorum; if not, the recovery has failed."""
        can = self.back.can_still_confirm()
        if not can:
            self._stop(RecoveryFailed(Answer.READ_ONLY, self.back.absent()))
        return can

    # --- the end: the ledger is closed -------------------------------------------------------------------------------

    def _measure(self) -> None:
        """The length is the one in the last entry's header; if nothing was recovered that entry has to be read."""
        end = self.end
        if end.lap == end.start and end.lap != NO_ENTRY:
            self.status = self._table.moved[self.status, RecoveryStatus.MEASURING]
            self.out.append(FindLength(EntryId(end.lap)))
        else:
            self._close()

    def length_found(self, length: int) -> None:
        """The length in the header of the entry that `FindLength` asked for."""
        assert self._table.acts["length_found"][self.status]
        self.end.measured(length)
        self._close()

    def length_unavailable(self, silent: Sequence[BookieId]) -> None:
        """No bookie could serve the last entry now.

        Args:
            silent: those without a conclusive response; empty when each reports that the entry is not there.

        Effects:
            FindLength once more if every bookie denies it; else RecoveryInconclusive: the entry was acknowledged, so
            it is somewhere, or the LAC that says so is wrong.
        """
        assert self._table.acts["length_unavailable"][self.status]
        last = EntryId(self.end.lap)
        if silent:
            self._stop(RecoveryInconclusive(last, tuple(silent)))
        elif self.end.asks_again():
            self.out.append(FindLength(last))
        else:
            self._stop(self.end.contradicted(last, ()))

    def _record_through(self, last: int) -> LedgerMetadata:
        """The record with the ensembles that were used up to an entry: one that holds nothing was chosen in vain."""
        record = self.record
        for first, ensemble in self.back.changes.items():
            if first <= last:
                record = record.with_ensemble(first, ensemble)
        return record

    # --- what begins and ends it: a take-over answers these otherwise -------------------------------------------------

    def _over(self) -> TakeOverResult | None:
        """Why the record, as it was read, ends it."""
        if self.record.state is LedgerState.CLOSED:
            return RecoveryClosed(self.record, self._version, accepted=True)
        never = self.record.state is LedgerState.OPEN and self.status is RecoveryStatus.CLOSING
        return RecoveryFailed(Answer.ERROR, ()) if never else None  # never back to OPEN

    def _announcement(self) -> LedgerMetadata | None:
        """The record that announces it; None if it is announced."""
        return self.record.in_recovery() if self.record.state is LedgerState.OPEN else None

    def _acts_on(self, name: str, answer: Answer) -> bool:  # noqa: ARG002 - a take-over looks at it
        """Whether this input acts now, with a bookie's response."""
        return self._table.acts[name][self.status]

    def _close(self) -> None:
        """Everything is recovered and written back."""
        self.status = self._table.moved[self.status, RecoveryStatus.CLOSING]
        last = self.end.lap  # what was read forward to, not the LAC that was reported
        record = self._record_through(last)
        record = record.without_guarantee() if self._gives_up else record
        self.out.append(WriteMetadata(record.closed(last, self.end.length), self._version))

    def _result(self) -> TakeOverResult:
        """The last compare-and-swap has succeeded."""
        return RecoveryClosed(self.record, self._version, accepted=False)

    # --- inside ------------------------------------------------------------------------------------------------------

    def _stop(self, result: TakeOverResult) -> None:
        self.status = self._table.moved[self.status, RecoveryStatus.ENDED]
        self.out.append(result)

    def check(self) -> None:
        """Assert every invariant of the state. For tests and the explorer; drivers never call it."""
        self.record.checked()
        self.end.check()
        self.back.check()
        if self.status in {RecoveryStatus.READING, RecoveryStatus.MEASURING, RecoveryStatus.CLOSING}:
            assert self.record.state is LedgerState.IN_RECOVERY, "reading forward is announced"
            assert self.end.status is not EndStatus.FENCING
            assert self.back.lap == self.end.lap, "what is recovered is written back"
        if self.status in {RecoveryStatus.MEASURING, RecoveryStatus.CLOSING}:
            assert self.end.status is EndStatus.FOUND

"""One open ledger as its only writer sees it: entries out, acknowledgements in, confirmed to callers in order.

It must not know sockets, payloads, futures or the time. Inputs are methods; answers appear in `out`. Which input
does what in which status: `writer_state.LEGAL`.

Source: BookKeeper protocol, "Writing to the ledger".
"""

from __future__ import annotations

from quire.core.answers import Answer
from quire.core.effects import DropUnsent, Problem, RereadMetadata, SendRun
from quire.core.ensemble_change import EnsembleChange
from quire.core.errors import (
    LedgerClosedError,
    LedgerFencedError,
    LedgerIdReusedError,
    MisuseError,
    TermSupersededError,
    WrongPasswordError,
)
from quire.core.ids import NO_ENTRY, BookieId, EntryId
from quire.core.ledger_metadata import LedgerMetadata
from quire.core.rules import AddOutcome
from quire.core.writer_state import LEGAL, Legality, Run, Status, StoreRequest


class WriterMachine(EnsembleChange):
    """The writer of one ledger: the inputs of the hot path, and where the store's responses go."""

    __slots__ = ()

    # --- adding ----------------------------------------------------------------------------------------------------

    def append(self, count: int, payload_bytes: int) -> EntryId:
        """Give a run of new entries their ids and send it.

        Args:
            count: entries in the run, at least 1.
            payload_bytes: their payloads together.

        Returns:
            The id of the first; the others follow without a gap.

        Effects:
            ChooseReplacements first, if a failure was only noted until now; SendRun to every live slot that stores
            something of it.

        Raises:
            NotWritingError: after close, fence or failure.
            MisuseError: an empty run.

        Source: BookKeeper protocol, "Writing to the ledger": "it is assigned an entry id the write quorum is
        calculated".
        """
        status = self.status
        if status is not Status.WRITING and status is not Status.CHANGING:
            raise self._not_writing("appended to")
        if count < 1:
            msg = "a run holds at least one entry"
            raise MisuseError(msg)
        if self._delayed and status is Status.WRITING:
            self._start_change()
        first = self.lap + 1
        self.lap = last = self.lap + count
        self.length += payload_bytes
        masks = self._all_masks
        if count < len(masks):
            masks = tuple(masks[(first + offset) % len(masks)] for offset in range(count))
        number = self._next_run
        self._next_run = number + 1
        self._runs[number] = Run(first, last, self.lac, payload_bytes, masks)
        self._acked[number] = 0
        slots = self._live if masks is self._all_masks else tuple(self._slots_of(masks))
        self.out.append(SendRun(number, first, last, self.lac, slots))
        return EntryId(first)

    def adds_acked(self, slot: int, bookie: BookieId, run: int) -> None:
        """A bookie stored its share of a run. Late answers, and those of replaced bookies, change nothing.

        Effects:
            Confirmed when the head of the pending runs has its quorum and no change is in flight.
        """
        acked = self._acked.get(run)
        if acked is None or self.ensemble[slot] != bookie:
            return
        self._acked[run] = acked | 1 << slot
        if run == self._head:
            self._advance()

    def add_failed(self, slot: int, bookie: BookieId, run: int, answer: Answer) -> None:
        """A bookie did not store its share of a run, or that is unknown.

        Effects:
            Ended for responses that end the writer; SendRun once more for a run that was damaged on its way; else as
            `bookie_lost`.

        Source: BookKeeper protocol: "The client will get a LedgerFenced error instead … LedgerFenced should be
        treated like a timeout".
        """
        if self.status not in (Status.WRITING, Status.CHANGING) or self.ensemble[slot] != bookie:
            return
        outcome = self.rules.add_outcome(answer)
        unconfirmed = run in self._acked and not self._is_confirmed(run)
        if unconfirmed and outcome not in (AddOutcome.RESEND, AddOutcome.BOOKIE_FAILED):
            self._ended_by(bookie, answer, outcome)
        elif unconfirmed and outcome is AddOutcome.RESEND and not self._resent.get(run, 0) >> slot & 1:
            self._resent = {**self._resent, run: self._resent.get(run, 0) | 1 << slot}
            sent = self._runs[run]
            if slot in self._live:
                self.out.append(SendRun(run, sent.first, sent.last, sent.lac, (slot,)))
        else:
            self.bookie_lost(slot, bookie)

    def bookie_lost(self, slot: int, bookie: BookieId) -> None:
        """A bookie failed: it refused, timed out, broke its connection or does not keep up.

        Effects:
            DropUnsent. While entries are pending a change begins at once (ChooseReplacements); else the failure is
            noted until the next append. During a change it waits for the change's next round.
        """
        if self.status not in (Status.WRITING, Status.CHANGING) or self.ensemble[slot] != bookie:
            return
        if slot in self._absent or slot in self._failing or slot in self._delayed:
            return
        self._delayed = {**self._delayed, slot: bookie}
        self._refresh_live()
        self.out.append(DropUnsent(slot, bookie))
        if self.status is Status.WRITING and self._runs:
            self._start_change()

    def _ended_by(self, bookie: BookieId, answer: Answer, outcome: AddOutcome) -> None:
        where = f"ledger {self.record.ledger_id}: bookie {bookie} answered {answer.name}"
        # A ledger of which nothing is confirmed is new: what a bookie keeps as deleted is an earlier one of the same id.
        if outcome is AddOutcome.DELETED and self.lac == NO_ENTRY:
            outcome = AddOutcome.REUSED
        if outcome is AddOutcome.FENCED:
            msg = (
                f"{where}, another client recovers it; unacknowledged entries may or may not be in "
                "it, open it to see"
            )
            self._end(Problem(LedgerFencedError, msg), close=False)
        elif outcome is AddOutcome.SUPERSEDED:
            msg = f"{where}, another writer has a newer term; unacknowledged entries may or may not be in it"
            self._end(Problem(TermSupersededError, msg), close=False)
        elif outcome is AddOutcome.REUSED:
            self._end(Problem(LedgerIdReusedError, self._reused(where, answer)), close=True)
        elif outcome is AddOutcome.DELETED:
            msg = f"{where}, another client deleted the ledger"
            self._end(Problem(LedgerClosedError, msg), close=False)
        elif answer is Answer.UNAUTHORISED:
            self._end(
                Problem(WrongPasswordError, f"{where}, the bookie has the ledger with another password"),
                close=True,
            )
        else:
            self._end(Problem(MisuseError, f"{where}, the bookie does not accept such a request"), close=True)

    def _reused(self, where: str, answer: Answer) -> str:
        held = "the bookie still holds entries of that ledger"
        if answer is Answer.DELETED:
            held = "the bookie keeps a tombstone of that ledger (or another client has just deleted this one)"
        return (
            f"{where}: id {self.record.ledger_id} was used before by another ledger, and {held}; "
            "create the ledger again, which gives it another id; if the metadata store was restored "
            "from a backup, see docs/metadata.md, 'Restoring a backup'"
        )

    # --- answers of the metadata store, one at a time ----------------------------------------------------------------

    def _answers(self, name: str, *asked: StoreRequest) -> bool:
        """Whether this response acts; False for a late one after the end.

        Raises:
            MisuseError: it was not asked for.
        """
        if LEGAL[name][self.status] is Legality.IGNORED:
            return False
        if LEGAL[name][self.status] is Legality.REFUSED or self.asked not in asked:
            msg = f"{name} while {self.status.value}, and what is asked is {self.asked.value}"
            raise MisuseError(msg, ledger_id=self.record.ledger_id)
        return True

    def metadata_written(self, version: int) -> None:
        """The compare-and-swap succeeded; the record has this version now.

        Effects:
            The end of the change (EnsembleChanged, SendRun, Confirmed), its next round, or of the close (Closed).
        """
        if not self._answers("metadata_written", StoreRequest.WRITE):
            return
        assert self._proposed is not None
        self.record, self._proposed = self._proposed, None
        self.version = version
        self._attempts = 0
        self.asked = StoreRequest.NOTHING
        if self.status is Status.CLOSING:
            self._close_written()
        else:
            self._round_done()

    def metadata_conflicted(self) -> None:
        """The compare-and-swap was lost: the stored record is another one by now.

        Effects:
            RereadMetadata.
        """
        if self._answers("metadata_conflicted", StoreRequest.WRITE):
            self._reread()

    def metadata_unknown(self, now_ms: int) -> None:
        """The store did not say what happened: read the record again, with growing patience.

        Effects:
            RereadMetadata or SetTimer; Ended or CloseFailed after too many.
        """
        if not self._answers("metadata_unknown", StoreRequest.WRITE, StoreRequest.READ):
            return
        self._attempts += 1
        if self._attempts >= self.limits.metadata_attempts_max:
            self._store_is_silent()
        elif self.asked is StoreRequest.WRITE:
            self._in_doubt = self.version
            self._reread()
        else:
            wait = self.limits.retry_ms_min << min(max(0, self._attempts - 2), 20)
            self._read_at_ms = now_ms + min(wait, self.limits.retry_ms_max)
            self._arm()

    def metadata_read(self, record: LedgerMetadata, version: int) -> None:
        """The record as it is stored now.

        Effects:
            The change or the close goes on with it, or the writer ends.
        """
        if not self._answers("metadata_read", StoreRequest.READ):
            return
        self.record, self.version = record, version
        self.asked = StoreRequest.NOTHING
        if self.status is Status.CLOSING:
            self._close_read()
        else:
            self._change_read()

    def metadata_missing(self) -> None:
        """The record is gone: the ledger was deleted.

        Effects:
            Ended or CloseFailed.
        """
        if self._answers("metadata_missing", StoreRequest.WRITE, StoreRequest.READ):
            self._record_is_gone()

    # --- time --------------------------------------------------------------------------------------------------------

    def timer_fired(self, now_ms: int) -> None:
        """The time of SetTimer has come.

        Effects:
            RereadMetadata or LookForBookies, whichever was due; SetTimer for the other. Ended when the wait for the ack
            quorum is over.
        """
        self._timer_at_ms = None
        if self.status is Status.WRITING and self.below_quorum and not self._may_wait(now_ms):
            self._end(self._quorum_lost(self.absent, waited=True), close=True)
            return
        if self._read_at_ms is not None and self._read_at_ms <= now_ms:
            self._read_at_ms = None
            self.out.append(RereadMetadata())
        if self._look_at_ms is not None and self._look_at_ms <= now_ms:
            self._look()
        self._arm()

"""One handle that wants to lead, or leads, a log: opening, rolling, closing.

Inputs are methods, what should happen is appended to `out`. The machine does one compare-and-swap of the head at a
time and treats a lost response like a conflict: it reads the head again and looks whether its change is in. It must not
know records, stores or bookies; the driver is `log/leader.py`.

    IDLE -> READING -> FENCING -> CREATING -> SWAPPING -> SERVING -> CLOSING -> ENDED
                ^                                |
                +------- BACKING_OFF <-----------+   another leader's write came first

What it knows is in `log/handle.py`, with the table of its states; what it does in `log/opening.py`, `log/rolling.py`
(adopted ledgers get their places there) and `log/closing.py`.

Source: BookKeeper ledgers to logs, "Opening a log", "Rolling ledgers";
docs/decisions/016-open-items-are-recovered.md; docs/decisions/017-leader-epoch.md;
docs/decisions/020-next-ledger-waits.md; docs/decisions/021-batch-header.md; docs/decisions/024-adoption.md.
"""

from __future__ import annotations

from quire.core.errors import MisuseError, NotWritingError
from quire.core.ids import LedgerId
from quire.core.log import closing as log_closing
from quire.core.log import opening as log_opening
from quire.core.log import rolling as log_rolling
from quire.core.log.effects import CompleteLedger, DeleteLedger, EndReason, ListLedger, PlaceAdoptions
from quire.core.log.handle import LEADING, LOG, HandleState, LogStatus
from quire.core.log.list import LedgerSummary, LogHead, LogItem
from quire.core.log.roll import ROLL, RollStep


class LogMachine(HandleState):
    """One handle on one log. Use a new machine for a new handle; its arguments are those of `HandleState`."""

    __slots__ = ()

    @property
    def head(self) -> LogHead | None:
        """The newest head that this handle has read or written."""
        return self.swap.value

    @property
    def rolling(self) -> bool:
        """Whether a roll is under way."""
        return self.rolls.under_way

    @property
    def adoptions_wait(self) -> bool:
        """Whether closed ledgers were committed to the log and wait for their offsets, as far as is known."""
        return self.head is not None and bool(self.head.adoptions)

    @property
    def is_closing(self) -> bool:
        """Whether a close is under way, or the handle has ended."""
        return self.closing or self.status is LogStatus.ENDED

    @property
    def may_roll(self) -> bool:
        """Whether a roll may start now: the ledger before the current one must be closed in the list."""
        can = self.status in LOG.rows["roll"] and self.rolls.step in ROLL.rows["roll"] and not self.closing
        return can and self.rules.may_roll(len(self.known.open_items))

    # --- opening: the five steps -------------------------------------------------------------------------------

    def open(self) -> None:
        """Start to become the leader.

        Effects:
            ReadHead, step 1: "read the list of ledgers for the log".

        Raises:
            MisuseError: it was opened before.
        """
        assert LOG.acts["open"][self.status]
        log_opening.read(self)

    def retry(self) -> None:
        """Go back to step 1 after a `BackOff`: the elector was asked again and names this handle, or no candidate."""
        if LOG.acts["retry"][self.status]:
            log_opening.read(self)

    def recovered(self, ledger_id: LedgerId, summary: LedgerSummary) -> None:
        """A ledger is closed for good; this is what it holds.

        Effects:
            After the last one CreateLedger, step 3, or WriteHead when only the compare-and-swap has to be done again.
        """
        if self._is_fencing("recovered", ledger_id) and self.fencing.done(ledger_id, summary):
            log_opening.fenced(self)

    def recovery_failed(self, ledger_id: LedgerId, *, gone: bool, detail: str) -> None:
        """A ledger could not be closed.

        Args:
            ledger_id: which.
            gone: it does not exist; a truncation may have taken it since the list was read.
            detail: for people.

        Effects:
            ReadHead when it is gone and that may be why; else LeadershipEnded: nothing was confirmed to callers.
        """
        if not self._is_fencing("recovery_failed", ledger_id):
            return
        # No compare-and-swap is in flight here, and an earlier one was for a version that is no more.
        self.delete_new()
        if self.fencing.failed(gone=gone, version=self.swap.version):
            log_opening.read(self)
        else:
            self.end(EndReason.RECOVERY_FAILED, f"ledger {ledger_id}: {detail}")

    def _is_fencing(self, name: str, ledger_id: LedgerId) -> bool:
        return LOG.acts[name][self.status] and ledger_id in self.fencing.waiting

    # --- new ledgers -------------------------------------------------------------------------------------------

    def created(self, ledger_id: LedgerId, token: int) -> None:
        """A new ledger exists, in no list yet.

        Effects:
            WriteHead: steps 4 and 5 of opening, or steps 2 and 3 of rolling. DeleteLedger if it is not awaited.
        """
        item = LogItem(ledger_id, token, digest=self.digest)
        if self.status is LogStatus.CREATING:
            log_opening.created(self, item)
        elif self.status in LEADING and ROLL.acts["created"][self.rolls.step]:
            log_rolling.created(self, item)
        else:
            self.out.append(DeleteLedger(ledger_id))

    def create_failed(self, detail: str) -> None:
        """No ledger could be made: opening ends, a roll is given up and may be tried again later."""
        if self.status is LogStatus.CREATING:
            self.end(EndReason.CREATE_FAILED, detail)
        elif LOG.acts["create_failed"][self.status] and ROLL.acts["create_failed"][self.rolls.step]:
            log_rolling.create_failed(self)

    # --- the head ----------------------------------------------------------------------------------------------

    def head_read(self, head: LogHead | None, version: int) -> None:
        """The head, as the store has it now; None when there is no such log.

        Effects:
            While opening: step 2, RecoverLedger for what the rules name. After a lost compare-and-swap: as if it had
            been written, if it is in; else WriteHead again, BackOff while opening, or LeadershipEnded if another client leads.

        Source: docs/decisions/017-leader-epoch.md: another epoch stops the handle, the same one makes it merge and
        retry.
        """
        if not (LOG.acts["head_read"][self.status] and self.swap.awaits("found")):
            return
        if head is None or head.is_being_deleted:
            # The deletion of the log deletes its ledgers; one that never got into the list is ours to delete.
            self.delete_new()
            self.end(EndReason.NO_SUCH_LOG, "the log was deleted")
        elif self.status is LogStatus.READING:
            log_opening.found(self, head, version)
        elif self.status is LogStatus.SWAPPING:
            log_opening.reread(self, head, version)
        elif head.leader.epoch != self.epoch or head.leader.holder not in {self.me.holder, ""}:
            if self.rolls.step is RollStep.LISTING and self.surely_absent(head, version):
                self.delete_new()
            self.end(EndReason.NOT_LEADER, _taken_over(head))
        else:
            self.swap.found(head, version)
            self._settle()

    def head_written(self, version: int) -> None:
        """The compare-and-swap is done.

        Effects:
            Serve after opening; the next step of a roll or of a close; WriteHead when another change waits.
        """
        if not (LOG.acts["head_written"][self.status] and self.swap.awaits("written")):
            return
        self.swap.written(version)
        if self.status is LogStatus.SWAPPING:
            log_opening.opened(self)
        else:
            self._settle()

    def head_conflicted(self) -> None:
        """Another client changed the head first; or this handle did, and the response was lost.

        Effects:
            ReadHead: nothing is deleted and no leader is replaced before the list was read again.
        """
        if LOG.acts["head_conflicted"][self.status] and self.swap.awaits("written"):
            self.read()

    def head_unknown(self) -> None:
        """The outcome of the compare-and-swap is unknown. Like a conflict: read again."""
        self.head_conflicted()

    def head_seen(self, head: LogHead, version: int) -> None:
        """The head, read because another client changed it: a sink may have committed ledgers to the log.

        Known is only what is newer, and nothing while a compare-and-swap is in flight: its response, or a reading after
        it, shows it.
        """
        mine = head.leader.epoch == self.epoch and head.leader.holder == self.me.holder
        if (
            LOG.acts["head_seen"][self.status]
            and self.swap.awaits("learned")
            and mine
            and version > self.swap.version
        ):
            self.swap.learned(head, version)

    def _settle(self) -> None:
        """Go on with every change that the head now has, and try the others (again)."""
        head = self.known
        done = [change for change in self.changes if change.is_in(head)]
        self.changes = [change for change in self.changes if not change.is_in(head)]
        for change in done:
            match change:
                case ListLedger(item):
                    log_rolling.listed(self, item)
                case PlaceAdoptions(item=item):
                    log_rolling.placed(self, item)
                case CompleteLedger(ledger_id):
                    log_rolling.completed(self, ledger_id)
                case _:
                    self.end(EndReason.CLOSED, "closed")
                    return
        self.write_changes()

    # --- rolling and closing -----------------------------------------------------------------------------------

    def roll(self) -> None:
        """Start to go on in a new ledger.

        Effects:
            CreateLedger, step 1 of rolling; appends go on in the current ledger meanwhile.

        Raises:
            MisuseError: `may_roll` says no.
        """
        if not self.may_roll:
            where = f"{self.status.value}, roll step {self.rolls.step.value}"
            raise MisuseError(f"cannot roll while {where}; see may_roll")
        log_rolling.begin(self)

    def drained(self, ledger_id: LedgerId, records: int) -> None:
        """All that the ledger was sent is confirmed: so many records.

        Effects:
            SwitchLedger with the first offset, then CloseLedger for the former: step 4 of rolling.

        Source: docs/decisions/020-next-ledger-waits.md: the next ledger's first offset is fixed before its first
        byte.
        """
        awaited = ROLL.acts["drained"][self.rolls.step] and ledger_id == self.rolls.former
        if LOG.acts["drained"][self.status] and awaited:
            log_rolling.drained(self, records)

    def ledger_closed(self, ledger_id: LedgerId, summary: LedgerSummary) -> None:
        """A ledger that this handle asked to close is closed at what it confirmed.

        Effects:
            WriteHead that calls it closed; with the last ledger also gives the lead back.
        """
        if not LOG.acts["ledger_closed"][self.status]:
            return
        if ledger_id in self.rolls.sealing:
            self.change(CompleteLedger(ledger_id, summary))
        elif ROLL.acts["ledger_closed"][self.rolls.step] and ledger_id == self.rolls.former:
            log_rolling.sealed(self, summary)
        elif self.status is LogStatus.CLOSING and ledger_id == self.current:
            log_closing.closed(self, summary)

    def ledger_failed(self, ledger_id: LedgerId, detail: str) -> None:
        """A ledger of this handle ended otherwise: fenced, no quorum, closed at another end.

        Effects:
            LeadershipEnded. A next ledger that is listed stays, empty; one that comes later is deleted.
        """
        if LOG.acts["ledger_failed"][self.status]:
            if self.rolls.adopting and self.rolls.step in {RollStep.DRAINING, RollStep.SEALING}:
                self.delete_new()  # no compare-and-swap has named it
            self.end(EndReason.LEDGER_FAILED, f"ledger {ledger_id}: {detail}")

    def close(self) -> None:
        """Close the current ledger and give the lead back; a roll under way is finished first.

        Effects:
            CloseLedger, then WriteHead, then LeadershipEnded.

        Raises:
            NotWritingError: this handle does not lead.
        """
        if self.status not in LOG.rows["close"] or self.closing:
            raise NotWritingError(f"this handle does not lead: it is {self.status.value}")
        log_closing.begin(self)

    def abandon(self, detail: str = "abandoned") -> None:
        """Stop at once; the next opener recovers what is open."""
        if LOG.acts["abandon"][self.status]:
            if self.status is LogStatus.FENCING:
                self.delete_new()
            self.end(EndReason.ABANDONED, detail)


def _taken_over(head: LogHead) -> str:
    who = head.leader.host or head.leader.holder or "somebody"
    return f"{who} leads it since epoch {head.leader.epoch}"

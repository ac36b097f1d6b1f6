"""One handle that wants to lead, or leads, a log: opening, rolling, closing.

Inputs are methods, what should happen is appended to `out`. The machine does one compare-and-swap of the head at a
time and treats a lost response like a conflict: it reads the head again and looks whether its change is in. It must not
know records, stores or bookies; the driver is `log/leader.py`.

    IDLE -> READING -> FENCING -> CREATING -> STORING -> SERVING -> CLOSING -> ENDED
                ^                                |
                +------- BACKING_OFF <-----------+   another leader's write came first

Rolling: the next ledger is listed early and sent to late. Appends go on until DRAINING; then they wait for one round trip,
so that the next ledger's first offset is known before its first byte is sent. No other roll begins before the former ledger
is sealed. A roll while adopted ledgers wait closes the former ledger first: one compare-and-swap then completes it, gives the
adopted ones their offsets and lists the next one. Appends wait for the close and that compare-and-swap.

Source: BookKeeper ledgers to logs, "Opening a log", "Rolling ledgers";
docs/decisions/016-open-items-are-recovered.md; docs/decisions/017-leader-epoch.md;
docs/decisions/020-next-ledger-waits.md; docs/decisions/021-batch-header.md; docs/decisions/024-adoption.md.
"""

from __future__ import annotations

from dataclasses import replace
from enum import Enum
from typing import Final

from quire.core.errors import CorruptMetadataError, MisuseError, NotWritingError
from quire.core.ids import LedgerId
from quire.core.log.cas import HeadCas
from quire.core.log.effects import (
    BackOff,
    Change,
    CloseLedger,
    CompleteLedger,
    CreateLedger,
    DeleteLedger,
    DrainLedger,
    Effect,
    EndReason,
    LeadershipEnded,
    ListLedger,
    PlaceAdoptions,
    ReadHead,
    RecoverLedger,
    Resign,
    Rolled,
    Serve,
    SwitchLedger,
    WriteHead,
)
from quire.core.log.fencing import Fencing
from quire.core.log.list import (
    DEFAULT_LAYOUT,
    OPEN_ITEMS_MAX,
    ItemFlags,
    Leader,
    LedgerSummary,
    LogHead,
    LogItem,
    PageLayout,
    PageNamer,
    paged,
)
from quire.core.log.roll import ROLL, Roll, RollStep
from quire.core.log.rules import RULES, LogRules
from quire.core.state_table import StateTable


class LogStatus(Enum):
    """Where a log's handle is."""

    IDLE = "idle"
    READING = "reading"
    FENCING = "fencing"
    CREATING = "creating"
    STORING = "storing"
    BACKING_OFF = "backing_off"
    SERVING = "serving"
    CLOSING = "closing"
    ENDED = "ended"


LEADING: Final = (LogStatus.SERVING, LogStatus.CLOSING)

LOG: Final = StateTable(
    LogStatus,
    {
        "open": "idle > reading",
        "retry": "backing_off > reading",
        "head_read": "reading > fencing creating storing ended;"
        "storing > fencing storing serving backing_off ended;"
        "serving > serving closing ended; closing > closing ended",
        "recovered": "fencing > fencing creating storing",
        "recovery_failed": "fencing > reading ended",
        "created": "creating > storing; idle reading fencing storing backing_off serving closing ended > =",
        "create_failed": "creating > ended; serving > serving closing",
        "head_written": "storing > serving; serving > serving closing; closing > closing ended",
        "head_conflicted": "storing serving closing > =",
        "head_unknown": "storing serving closing > =",
        "roll": "serving > =",
        "head_seen": "serving > =",
        "drained": "serving > =",
        "ledger_closed": "serving closing > =",
        "ledger_failed": "serving closing > ended",
        "close": "serving > serving closing",
        "abandon": "idle reading fencing creating storing backing_off serving closing > ended",
    },
    refused=frozenset({"open", "roll", "close"}),
)
"""Which input does what in which status. A ledger that comes when it is not awaited is deleted."""


class LogMachine:
    """One handle on one log. Use a new machine for a new handle.

    Args:
        holder: names this handle and no other, ever.
        host: where it runs, for people.
        name_page: the name of a page, from its content.
        layout: when items move to pages.
        digest: BookKeeper's number of the digest of the ledgers that it makes.
        adopts: whether it places what others commit to the log while it leads; its driver calls `head_seen` then.
        rules: the protocol's rules (`core/rules.py`).
    """

    __slots__ = (
        "_layout",
        "_name_page",
        "_seen",
        "attempt",
        "cas",
        "changes",
        "closing",
        "current",
        "current_offset",
        "digest",
        "ended",
        "epoch",
        "fencing",
        "me",
        "new",
        "out",
        "rolls",
        "rules",
        "served",
        "status",
    )

    def __init__(
        self,
        holder: str,
        *,
        name_page: PageNamer,
        host: str = "",
        layout: PageLayout = DEFAULT_LAYOUT,
        digest: int = 3,
        adopts: bool = False,
        rules: LogRules = RULES,
    ) -> None:
        self.me = Leader(0, holder, host, adopts)
        self._name_page = name_page
        self._layout = layout
        self.digest = digest
        self.rules = rules
        self.status = LogStatus.IDLE
        self.out: list[Effect] = []
        self.ended: LeadershipEnded | None = None
        self.epoch = 0
        self.current: LedgerId | None = None
        self.current_offset: int | None = None
        self.cas: HeadCas[LogHead, int] = HeadCas(-1)
        self.changes: list[Change] = []
        self.fencing = Fencing()
        self.rolls = Roll()
        # The ledger that was created and is not known to be in the list.
        self.new: LogItem | None = None
        self.attempt = 0
        self.served = False
        self.closing = False
        self._seen: dict[int, int] = {}

    @property
    def known(self) -> LogHead:
        """The newest head that was read or written; there is one as soon as a ledger may be fenced."""
        assert self.cas.value is not None
        return self.cas.value

    @property
    def head(self) -> LogHead | None:
        """The newest head that this handle has read or written."""
        return self.cas.value

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
        self._read_list()

    def retry(self) -> None:
        """Go back to step 1 after a `BackOff`: the elector was asked again and names this handle, or no candidate."""
        if LOG.acts["retry"][self.status]:
            self._read_list()

    def _read_list(self) -> None:
        """Step 1: "read the list of ledgers for the log"."""
        self._to(LogStatus.READING)
        self._read()

    def _list_found(self, head: LogHead, version: int) -> None:
        """Step 2: "fence the last 2 ledgers in the list", and every one that the list calls open."""
        if len(head.open_items) > OPEN_ITEMS_MAX:
            self._end(EndReason.CORRUPT, f"the list calls {len(head.open_items)} ledgers open")
            return
        self.cas.found(head, version)
        self._fence()

    def _fence(self) -> None:
        """Fence what is named and not fenced yet."""
        self._to(LogStatus.FENCING)
        items = self.fencing.begin([self.known], self.rules)
        self.out += [RecoverLedger(item) for item in items]
        if not items:
            self._fenced()

    def recovered(self, ledger_id: LedgerId, summary: LedgerSummary) -> None:
        """A ledger is closed for good; this is what it holds.

        Effects:
            After the last one CreateLedger, step 3, or WriteHead when only the compare-and-swap has to be done again.
        """
        if self._is_fencing("recovered", ledger_id) and self.fencing.done(ledger_id, summary):
            self._fenced()

    def recovery_failed(self, ledger_id: LedgerId, *, deleted: bool, detail: str) -> None:
        """A ledger could not be closed.

        Args:
            ledger_id: which.
            deleted: it does not exist; a truncation may have taken it since the list was read.
            detail: for people.

        Effects:
            ReadHead when it is deleted and that may be why; else LeadershipEnded: nothing was confirmed to callers.
        """
        if not self._is_fencing("recovery_failed", ledger_id):
            return
        # No compare-and-swap is in flight here, and an earlier one was for a version that is no more.
        self._delete_new()
        if self.fencing.failed(deleted=deleted, version=self.cas.version):
            self._read_list()
        else:
            self._end(EndReason.RECOVERY_FAILED, f"ledger {ledger_id}: {detail}")

    def _is_fencing(self, name: str, ledger_id: LedgerId) -> bool:
        return LOG.acts[name][self.status] and ledger_id in self.fencing.waiting

    def _fenced(self) -> None:
        """Step 3: create a ledger, unless only the compare-and-swap has to be done again."""
        if self.new is None:
            self._to(LogStatus.CREATING)
            self.out.append(CreateLedger())
        else:
            self._write_opening()

    def _created_in_opening(self, item: LogItem) -> None:
        """The ledger of step 3 exists."""
        self.new = item
        self._write_opening()

    def _write_opening(self) -> None:
        """Steps 4 and 5: complete what was fenced, place adoptions, add the new ledger, take the epoch."""
        assert self.new is not None
        assert not self.fencing.waiting, "a head is written while ledgers are being fenced"
        head = self.fencing.completed(self.known).with_adoptions_placed().with_item(self.new)
        self._to(LogStatus.STORING)
        self._write(head.with_leader(replace(self.me, epoch=self.known.leader.epoch + 1)))

    def _reread(self, head: LogHead, version: int) -> None:
        """After a lost compare-and-swap: it is in; or the fences hold and it is done again; or another leader came."""
        assert self.new is not None
        if head.leader.holder == self.me.holder and head.item(self.new.ledger_id) is not None:
            self.cas.found(head, version)
            self._opened()
        elif head.leader.epoch == self.known.leader.epoch and len(head.open_items) <= OPEN_ITEMS_MAX:
            # Only a sink, a truncation or another client's completion came between.
            self.cas.found(head, version)
            self._fence()
        else:
            if self._surely_absent(head, version):
                self._delete_new()
            self.new = None
            self.cas.found(head, version)
            self.attempt += 1
            self._to(LogStatus.BACKING_OFF)
            self.out.append(BackOff(self.attempt))

    def _opened(self) -> None:
        """Step 5 is done: "The node must not serve any writes until step 5 completes successfully"."""
        assert self.new is not None
        item = self.known.item(self.new.ledger_id)
        assert item is not None
        self.epoch = self.known.leader.epoch
        self.new = None
        self.attempt = 0
        self._to(LogStatus.SERVING)
        if not self.served:
            self._serve(item, item.first_offset)

    def _serve(self, item: LogItem, first_offset: int | None) -> None:
        """Send appends to the new ledger."""
        self.served = True
        self.current = item.ledger_id
        self.current_offset = first_offset
        self.out.append(Serve(item.ledger_id, first_offset, self.epoch))

    # --- new ledgers -------------------------------------------------------------------------------------------

    def created(self, ledger_id: LedgerId, token: int) -> None:
        """A new ledger exists, in no list yet.

        Effects:
            WriteHead: steps 4 and 5 of opening, or steps 2 and 3 of rolling. DeleteLedger if it is not awaited.
        """
        item = LogItem(ledger_id, token, digest=self.digest)
        if self.status is LogStatus.CREATING:
            self._created_in_opening(item)
        elif self.status in LEADING and ROLL.acts["created"][self.rolls.step]:
            self._created_in_roll(item)
        else:
            self.out.append(DeleteLedger(ledger_id))

    def create_failed(self, detail: str) -> None:
        """No ledger could be made: opening ends, a roll is abandoned and may be tried again later."""
        if self.status is LogStatus.CREATING:
            self._end(EndReason.CREATE_FAILED, detail)
        elif LOG.acts["create_failed"][self.status] and ROLL.acts["create_failed"][self.rolls.step]:
            self.rolls.to(RollStep.NONE)
            self._roll_over(done=False)

    def _delete_new(self) -> None:
        """Delete the new ledger: no list will name it."""
        if self.new is not None:
            self.out.append(DeleteLedger(self.new.ledger_id))
            self.new = None

    def _surely_absent(self, head: LogHead, version: int) -> bool:
        """Whether the list does not hold the new ledger and never will.

        A compare-and-swap whose response is missing can still take effect while the version is the one that it names;
        and a list that was cut into pages or truncated since may hold, or have held, the ledger where this handle does
        not look. Where that is unknown the ledger is left to the collector, which looks twice.
        """
        assert self.new is not None
        base = self.known
        alike = head.pages == base.pages and head.dropped_items == base.dropped_items
        return version != self.cas.version and alike and head.item(self.new.ledger_id) is None

    # --- the head ----------------------------------------------------------------------------------------------

    def head_read(self, head: LogHead | None, version: int) -> None:
        """The head, as the store has it now; None when there is no such log.

        Effects:
            While opening: step 2, RecoverLedger for what the rules name. After a lost compare-and-swap: as if it had
            been written, if it is in; else WriteHead again, BackOff while opening, or LeadershipEnded if another client leads.

        Source: docs/decisions/017-leader-epoch.md: another epoch stops the handle, the same one makes it merge and
        retry.
        """
        if not (LOG.acts["head_read"][self.status] and self.cas.awaits("found")):
            return
        if head is None or head.is_being_deleted:
            # The deletion of the log deletes its ledgers; one that never got into the list is ours to delete.
            self._delete_new()
            self._end(EndReason.NO_SUCH_LOG, "the log was deleted")
        elif self.status is LogStatus.READING:
            self._list_found(head, version)
        elif self.status is LogStatus.STORING:
            self._reread(head, version)
        elif head.leader.epoch != self.epoch or head.leader.holder not in {self.me.holder, ""}:
            if self.rolls.step is RollStep.LISTING and self._surely_absent(head, version):
                self._delete_new()
            self._end(EndReason.NOT_LEADER, _taken_over(head))
        else:
            self.cas.found(head, version)
            self._settle()

    def head_written(self, version: int) -> None:
        """The compare-and-swap is done.

        Effects:
            Serve after opening; the next step of a roll or of a close; WriteHead when another change waits.
        """
        if not (LOG.acts["head_written"][self.status] and self.cas.awaits("written")):
            return
        self.cas.written(version)
        if self.status is LogStatus.STORING:
            self._opened()
        else:
            self._settle()

    def head_conflicted(self) -> None:
        """Another client changed the head first; or this handle did, and the response was lost.

        Effects:
            ReadHead: nothing is deleted and no leader is replaced before the list was read again.
        """
        if LOG.acts["head_conflicted"][self.status] and self.cas.awaits("written"):
            self._read()

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
            and self.cas.awaits("learned")
            and mine
            and version > self.cas.version
        ):
            self.cas.learned(head, version)

    def _settle(self) -> None:
        """Go on with every change that the head now has, and try the others (again)."""
        head = self.known
        done = [change for change in self.changes if change.is_in(head)]
        self.changes = [change for change in self.changes if not change.is_in(head)]
        for change in done:
            match change:
                case ListLedger():
                    self._listed()
                case PlaceAdoptions(item=item):
                    self._placed(item)
                case CompleteLedger(ledger_id):
                    self._completed(ledger_id)
                case _:
                    self._end(EndReason.CLOSED, "closed")
                    return
        self._write_changes()

    def _read(self) -> None:
        """Ask for the head."""
        self.cas.read()
        self.out.append(ReadHead())

    def _write(self, head: LogHead) -> None:
        """Ask for the compare-and-swap of the head."""
        head, pages = paged(replace(head, generation=head.generation + 1), self._layout, self._name_page)
        self.cas.write(head)
        self.out.append(WriteHead(head, self.cas.version, pages))

    def _change(self, *changes: Change) -> None:
        """Have the head changed as soon as no other compare-and-swap is in flight."""
        self.changes += changes
        self._write_changes()

    def _write_changes(self) -> None:
        """Write every change that waits, unless a compare-and-swap is in flight."""
        if self.changes and self.cas.awaits("write"):
            head = self.known
            for change in self.changes:
                head = change.applied(head)
            self._write(head)

    # --- rolling -----------------------------------------------------------------------------------------------

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
        self.rolls.to(RollStep.CREATING)
        self.rolls.adopting = bool(self.known.adoptions)
        self.out.append(CreateLedger())

    def _created_in_roll(self, item: LogItem) -> None:
        """Steps 2 and 3: list the next ledger; while adopted ledgers wait, the former one ends before that."""
        self.new = item
        if self.rolls.adopting:
            self.out.append(self._drains())
        else:
            self.rolls.to(RollStep.LISTING)
            self._change(ListLedger(item))

    def _listed(self) -> None:
        """The next ledger is in the list: step 3 is done. It gets nothing before the former's last is confirmed."""
        self.out.append(self._drains())

    def _drains(self) -> DrainLedger:
        """What has the current ledger end."""
        assert self.current is not None
        self.rolls.to(RollStep.DRAINING)
        self.rolls.former = self.current
        return DrainLedger(self.current)

    def drained(self, ledger_id: LedgerId, records: int) -> None:
        """All that the ledger was sent is confirmed: so many records.

        Effects:
            SwitchLedger with the first offset, then CloseLedger for the former: step 4 of rolling.

        Source: docs/decisions/020-next-ledger-waits.md: the next ledger's first offset is fixed before its first
        byte.
        """
        awaited = ROLL.acts["drained"][self.rolls.step] and ledger_id == self.rolls.former
        if LOG.acts["drained"][self.status] and awaited:
            self._drained(records)

    def _drained(self, records: int) -> None:
        """Step 4: the next ledger's first offset is known; the former one is closed."""
        rolls, former = self.rolls, self.rolls.former
        assert self.new is not None
        assert former is not None, "drained without a former ledger"
        if rolls.adopting:
            rolls.to(RollStep.SEALING)
        else:
            offset = None if self.current_offset is None else self.current_offset + records
            self._switch(self.new, offset)
            self.new = None
            rolls.to(RollStep.NONE)
            rolls.sealing += (former,)
        self.out.append(CloseLedger(former))

    def _sealed(self, summary: LedgerSummary) -> None:
        """The former ledger has its end: now adopted ledgers get their places, and the next one is listed."""
        assert self.new is not None
        assert self.rolls.former is not None
        self.rolls.to(RollStep.LISTING)
        self._change(PlaceAdoptions(self.rolls.former, summary, self.new))

    def _placed(self, item: LogItem) -> None:
        """The next ledger is in the list, after what was adopted: its first offset is there."""
        listed_item = self.known.item(item.ledger_id)
        assert listed_item is not None
        self.new = None
        self.rolls.to(RollStep.NONE)
        self._switch(item, listed_item.first_offset)
        self._roll_over(done=True)

    def _switch(self, item: LogItem, first_offset: int | None) -> None:
        """Send what waits to the next ledger."""
        self.current = item.ledger_id
        self.current_offset = first_offset
        self.out.append(SwitchLedger(item.ledger_id, first_offset))

    def _completed(self, ledger_id: LedgerId) -> None:
        """The list calls a former ledger closed."""
        if ledger_id in self.rolls.sealing:
            self.rolls.sealing = tuple(each for each in self.rolls.sealing if each != ledger_id)
            self._roll_over(done=True)

    # --- closing and the end -----------------------------------------------------------------------------------

    def ledger_closed(self, ledger_id: LedgerId, summary: LedgerSummary) -> None:
        """A ledger that this handle asked to close is closed at what it confirmed.

        Effects:
            WriteHead that calls it closed; with the last ledger also gives the lead back.
        """
        if not LOG.acts["ledger_closed"][self.status]:
            return
        if ledger_id in self.rolls.sealing:
            self._change(CompleteLedger(ledger_id, summary))
        elif ROLL.acts["ledger_closed"][self.rolls.step] and ledger_id == self.rolls.former:
            self._sealed(summary)
        elif self.status is LogStatus.CLOSING and ledger_id == self.current:
            assert self.current is not None
            self._change(CompleteLedger(self.current, summary), Resign(self.epoch))

    def ledger_failed(self, ledger_id: LedgerId, detail: str) -> None:
        """A ledger of this handle ended otherwise: fenced, no quorum, closed at another end.

        Effects:
            LeadershipEnded. A next ledger that is listed stays, empty; one that comes later is deleted.
        """
        if LOG.acts["ledger_failed"][self.status]:
            if self.rolls.adopting and self.rolls.step in {RollStep.DRAINING, RollStep.SEALING}:
                self._delete_new()  # no compare-and-swap has named it
            self._end(EndReason.LEDGER_FAILED, f"ledger {ledger_id}: {detail}")

    def close(self) -> None:
        """Close the current ledger and give the lead back; a roll under way is finished first.

        Effects:
            CloseLedger, then WriteHead, then LeadershipEnded.

        Raises:
            NotWritingError: this handle does not lead.
        """
        if self.status not in LOG.rows["close"] or self.closing:
            raise NotWritingError(f"this handle does not lead: it is {self.status.value}")
        self.closing = True
        if not self.rolls.under_way:
            self._close_current()

    def _roll_over(self, *, done: bool) -> None:
        """A roll is over; a close that waited for it begins."""
        self.out.append(Rolled(done))
        if self.closing and not self.rolls.under_way:
            self._close_current()

    def _close_current(self) -> None:
        """Close the current ledger."""
        assert self.current is not None
        self._to(LogStatus.CLOSING)
        self.out.append(CloseLedger(self.current))

    def abandon(self, detail: str = "abandoned") -> None:
        """Stop at once; the next opener recovers what is open."""
        if LOG.acts["abandon"][self.status]:
            if self.status is LogStatus.FENCING:
                self._delete_new()
            self._end(EndReason.ABANDONED, detail)

    def _end(self, reason: EndReason, detail: str) -> None:
        """The handle does nothing any more."""
        self._to(LogStatus.ENDED)
        self.ended = LeadershipEnded(reason, detail)
        self.new = None
        self.changes.clear()
        self.out.append(self.ended)

    def _to(self, status: LogStatus) -> None:
        """Go to another status."""
        self.status = LOG.moved[self.status, status]

    def check(self) -> None:
        """Assert every invariant that one handle can see; tests and the explorer call it after each input.

        Source: docs/counterexamples.md, "What must hold", L1 to L7: each line names the one that it is a part of.
        """
        head = self.cas.value
        if head is None:
            return
        try:
            head.checked()  # L2: dense offsets; L6: at most two open, the last ones
        except CorruptMetadataError as error:
            raise AssertionError(str(error)) from error
        # L4, L5: an item has one index for ever; the list grows at its end and shrinks at its front. Neighbours that
        # were copied into one ledger have the index of the last of them.
        for index, item in enumerate(head.items, head.first_item_index):
            if item.flags & ItemFlags.REWRITTEN:
                self._seen[index] = item.ledger_id
            known = self._seen.setdefault(index, item.ledger_id)
            assert known == item.ledger_id, f"L5: index {index} held ledger {known}, now {item.ledger_id}"
        assert head.start_offset <= head.closed_end or head.open_items, "the log starts beyond its end"
        if self.status in LEADING:
            assert head.leader.epoch == self.epoch, "L3: serving under another epoch"
            assert self.current is not None
            current = head.item(self.current)
            assert current is not None, "L1: serving a ledger that the list does not hold"
            resigned = self.status is LogStatus.CLOSING and not current.is_open
            assert current.is_open or resigned, "L3: serving a ledger that the list calls closed"
            if current.first_offset is not None and self.current_offset is not None:
                assert current.first_offset == self.current_offset, "L2: two first offsets for one ledger"
        if self.rolls.step is RollStep.DRAINING:
            assert self.current == self.rolls.former or self.current_offset is not None, (
                "L7: sent before the former was confirmed"
            )
        if self.ended is not None:
            assert not self.changes, "an ended handle changes nothing"


def _taken_over(head: LogHead) -> str:
    who = head.leader.host or head.leader.holder or "somebody"
    return f"{who} leads it since epoch {head.leader.epoch}"

"""One handle that wants to lead, or leads, a log: opening, rolling, closing.

Inputs are methods, what should happen is appended to `out`. The machine does one compare-and-swap of the head at a
time and treats a lost response like a conflict: it reads the head again and looks whether its change is in. It must not
know records, stores or bookies; the driver is `log/leader.py`.

    IDLE -> READING -> FENCING -> CREATING -> SWAPPING -> SERVING -> CLOSING -> ENDED
                ^                                |
                +------- BACKING_OFF <-----------+   another leader's write came first

While SERVING a roll goes through CREATING, LISTING, DRAINING, and the former ledger is sealed behind it. Appends go on
until DRAINING; then they wait for one round trip, so that the next ledger's first offset is known before its first
byte is sent. No other roll begins before the former ledger is sealed.

A roll while adopted ledgers wait closes the former ledger first: one compare-and-swap then completes it, gives the
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
from quire.core.log_effects import (
    BackOff,
    Change,
    CloseLedger,
    CompleteLedger,
    CreateLedger,
    DeleteLedger,
    DrainLedger,
    Effect,
    Ended,
    EndReason,
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
from quire.core.log_list import (
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
from quire.core.rules import RULES, Rules


class LogStatus(Enum):
    """Where a handle is."""

    IDLE = "idle"
    READING = "reading"
    FENCING = "fencing"
    CREATING = "creating"
    SWAPPING = "swapping"
    BACKING_OFF = "backing_off"
    SERVING = "serving"
    CLOSING = "closing"
    ENDED = "ended"


class RollStep(Enum):
    """Where a roll is."""

    NONE = "none"
    CREATING = "creating"
    LISTING = "listing"
    DRAINING = "draining"
    SEALING = "sealing"


_LEADING: Final = (LogStatus.SERVING, LogStatus.CLOSING)


class LogMachine:
    """One handle on one log. Use a new machine for a new handle.

    Args:
        holder: names this handle and no other, ever.
        host: where it runs, for people.
        name_page: the name of a page, from its content.
        layout: when items move to pages.
        digest: BookKeeper's number of the digest of the ledgers that it makes.
        adopts: whether it places what others commit to the log while it leads; its driver calls `head_seen` then.
        rules: the judgements it works by.
    """

    __slots__ = (
        "_adopting",
        "_adopts",
        "_attempt",
        "_attempted_head",
        "_changes",
        "_closing",
        "_digest",
        "_gone_at",
        "_head",
        "_holder",
        "_host",
        "_layout",
        "_name_page",
        "_new",
        "_opening_base",
        "_recovered",
        "_recovering",
        "_roll",
        "_rolled_from",
        "_rules",
        "_sealing",
        "_seen",
        "_served",
        "_swap_version",
        "_swapping",
        "_switched",
        "_version",
        "current",
        "current_offset",
        "ended",
        "epoch",
        "out",
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
        rules: Rules = RULES,
    ) -> None:
        self._adopts = adopts
        self._holder = holder
        self._host = host
        self._name_page = name_page
        self._layout = layout
        self._digest = digest
        self._rules = rules
        self.status = LogStatus.IDLE
        self.out: list[Effect] = []
        self.ended: Ended | None = None
        self.epoch = 0
        self.current: LedgerId | None = None
        self.current_offset: int | None = None
        self._head: LogHead | None = None
        self._version = -1
        self._attempt = 0
        # Opening
        self._gone_at = -1
        self._recovered: dict[LedgerId, LedgerSummary] = {}
        self._recovering: list[LedgerId] = []
        self._new: LogItem | None = None
        self._opening_base: LogHead | None = None
        self._served = False
        # The one compare-and-swap in flight
        self._swapping = False
        self._swap_version = -1
        self._attempted_head: LogHead | None = None
        self._changes: list[Change] = []
        # Rolling and closing
        self._roll = RollStep.NONE
        self._adopting = False
        self._rolled_from: LedgerId | None = None
        self._sealing: list[LedgerId] = []
        self._switched = False
        self._closing = False
        self._seen: dict[int, int] = {}

    @property
    def head(self) -> LogHead | None:
        """The newest head that this handle has read or written."""
        return self._head

    @property
    def rolling(self) -> bool:
        """Whether a roll is under way."""
        return self._roll is not RollStep.NONE or bool(self._sealing)

    @property
    def adoptions_wait(self) -> bool:
        """Whether closed ledgers were committed to the log and wait for their offsets, as far as is known."""
        return self._head is not None and bool(self._head.adoptions)

    @property
    def is_closing(self) -> bool:
        """Whether a close is under way, or the handle has ended."""
        return self._closing or self.status is LogStatus.ENDED

    # --- opening: the five steps -------------------------------------------------------------------------------

    def open(self) -> None:
        """Start to become the leader.

        Effects:
            ReadHead, step 1: "read the list of ledgers for the log".
        """
        self._require(LogStatus.IDLE)
        self.status = LogStatus.READING
        self.out.append(ReadHead())

    def retry(self) -> None:
        """Go back to step 1 after a `BackOff`: the elector was asked again and names this handle, or no candidate."""
        if self.status is not LogStatus.BACKING_OFF:
            return
        self.status = LogStatus.READING
        self.out.append(ReadHead())

    def head_read(self, head: LogHead | None, version: int) -> None:
        """The head, as the store has it now; None when there is no such log.

        Effects:
            While opening: step 2, RecoverLedger for what the rules name. After a lost compare-and-swap: see `_reread`.
        """
        if self.status is LogStatus.ENDED:
            return
        if head is None or head.is_being_deleted:
            # The deletion of the log deletes its ledgers; one that never got into the list is ours to delete.
            self._delete_new()
            self._end(EndReason.NO_SUCH_LOG, "the log was deleted")
            return
        if self._swapping:
            self._reread(head, version)
        else:
            self._start_from(head, version)

    def _start_from(self, head: LogHead, version: int) -> None:
        """Step 2: "fence the last 2 ledgers in the list", and every one that the list calls open."""
        if len(head.open_items) > OPEN_ITEMS_MAX:
            self._end(EndReason.CORRUPT, f"the list calls {len(head.open_items)} ledgers open")
            return
        self._learn(head, version)
        self._opening_base = head
        self._fence(head)

    def _fence(self, head: LogHead) -> None:
        """Fence what is named and not fenced yet: a fence holds for ever, so no ledger needs it twice."""
        open_ids = [item.ledger_id for item in head.open_items]
        named = self._rules.ledgers_to_fence(head.ledger_ids, open_ids)
        self._recovering = [LedgerId(each) for each in named if each not in self._recovered]
        self.status = LogStatus.FENCING
        for ledger_id in self._recovering:
            item = head.item(ledger_id)
            assert item is not None
            self.out.append(RecoverLedger(item))
        if not self._recovering:
            self._all_fenced()

    def recovered(self, ledger_id: LedgerId, summary: LedgerSummary) -> None:
        """A ledger is closed for good; this is what it holds.

        Effects:
            After the last one CreateLedger, step 3, or WriteHead when only the compare-and-swap has to be done again.
        """
        if self.status is not LogStatus.FENCING or ledger_id not in self._recovering:
            return
        self._recovering.remove(ledger_id)
        self._recovered[ledger_id] = summary
        if not self._recovering:
            self._all_fenced()

    def recovery_failed(self, ledger_id: LedgerId, *, gone: bool, detail: str) -> None:
        """A ledger could not be closed.

        Args:
            ledger_id: which.
            gone: it does not exist; a truncation may have taken it since the list was read.
            detail: for people.

        Effects:
            ReadHead when it is gone and that may be why; else Ended: nothing was confirmed to callers.
        """
        if self.status is not LogStatus.FENCING or ledger_id not in self._recovering:
            return
        self._recovering.clear()
        # No compare-and-swap is in flight here, and an earlier one was for a version that is no more.
        self._delete_new()
        if gone and self._version != self._gone_at:
            self._gone_at = self._version
            self.status = LogStatus.READING
            self.out.append(ReadHead())
            return
        self._end(EndReason.RECOVERY_FAILED, f"ledger {ledger_id}: {detail}")

    def _all_fenced(self) -> None:
        if self._new is None:
            self.status = LogStatus.CREATING
            self.out.append(CreateLedger())
        else:
            self._swap_opening()

    def created(self, ledger_id: LedgerId, token: int) -> None:
        """A new ledger exists, in no list yet.

        Effects:
            WriteHead: steps 4 and 5 of opening, or steps 2 and 3 of rolling. DeleteLedger if this handle has ended.
        """
        item = LogItem(ledger_id, token, digest=self._digest)
        if self.status is LogStatus.CREATING:
            self._new = item
            if self._rules.may_serve(list_written=False):
                self._serve(item, None)
            self._swap_opening()
        elif self.status in _LEADING and self._roll is RollStep.CREATING:
            self._new = item
            if self._adopting:
                self._drain()
            else:
                self._roll = RollStep.LISTING
                self._change(ListLedger(item))
        else:
            self.out.append(DeleteLedger(ledger_id))

    def create_failed(self, detail: str) -> None:
        """No ledger could be made: opening ends, a roll is given up and may be tried again later."""
        if self.status is LogStatus.CREATING:
            self._end(EndReason.CREATE_FAILED, detail)
        elif self.status in _LEADING and self._roll is RollStep.CREATING:
            self._roll = RollStep.NONE
            self._adopting = False
            self._roll_over(done=False)

    def _swap_opening(self) -> None:
        """Steps 4 and 5: complete what was fenced, place adoptions, add the new ledger, take the epoch."""
        base, new = self._opening_base, self._new
        assert base is not None
        assert new is not None
        head = base
        for item in base.open_items:
            if item.ledger_id in self._recovered:
                head = head.with_completed(item.ledger_id, self._recovered[item.ledger_id])
        head = head.with_adoptions_placed().with_item(new)
        head = head.with_leader(Leader(base.leader.epoch + 1, self._holder, self._host, self._adopts))
        self.status = LogStatus.SWAPPING
        self._write(head)

    # --- the one compare-and-swap in flight
    # --------------------------------------------------------------------------------

    def _write(self, head: LogHead) -> None:
        head = replace(head, generation=head.generation + 1)
        head, pages = paged(head, self._layout, self._name_page)
        self._attempted_head = head
        self._swap_version = self._version
        self._swapping = True
        self.out.append(WriteHead(head, self._version, pages))

    def head_written(self, version: int) -> None:
        """The compare-and-swap is done.

        Effects:
            Serve after opening; the next step of a roll or of a close; WriteHead when another change waits.
        """
        if not self._swapping or self.status is LogStatus.ENDED:
            return
        assert self._attempted_head is not None
        self._swapping = False
        self._learn(self._attempted_head, version)
        if self.status is LogStatus.SWAPPING:
            self._opened()
        else:
            self._settle_changes()

    def head_conflicted(self) -> None:
        """Another client changed the head first; or this handle did, and the response was lost.

        Effects:
            ReadHead: nothing is deleted and no leader is replaced before the list was read again.
        """
        if self._swapping and self.status is not LogStatus.ENDED:
            self.out.append(ReadHead())

    def head_unknown(self) -> None:
        """The outcome of the compare-and-swap is unknown. Like a conflict: read again."""
        self.head_conflicted()

    def _reread(self, head: LogHead, version: int) -> None:
        """After a lost compare-and-swap: is it in; is the epoch still the one it was made for?

        Source: docs/decisions/017-leader-epoch.md: another epoch stops the handle, the same one makes it merge and
        retry.
        """
        if self.status is LogStatus.SWAPPING:
            self._reread_opening(head, version)
            return
        if head.leader.epoch != self.epoch or head.leader.holder not in {self._holder, ""}:
            if self._roll is RollStep.LISTING and self._surely_absent(head, version):
                self._delete_new()
            self._end(EndReason.NOT_LEADER, _taken_over(head))
            return
        self._swapping = False
        self._learn(head, version)
        self._settle_changes()

    def _reread_opening(self, head: LogHead, version: int) -> None:
        base, new = self._opening_base, self._new
        assert base is not None
        assert new is not None
        if head.leader.holder == self._holder and head.item(new.ledger_id) is not None:
            self._swapping = False
            self._learn(head, version)
            self._opened()
        elif head.leader.epoch == base.leader.epoch and len(head.open_items) <= OPEN_ITEMS_MAX:
            # Only a sink, a truncation or another client's completion came between: the fences hold.
            self._swapping = False
            self._learn(head, version)
            self._opening_base = head
            self._fence(head)
        else:
            if self._surely_absent(head, version):
                self._delete_new()
            self._new = None
            self._learn(head, version)
            self._swapping = False
            self._attempt += 1
            self.status = LogStatus.BACKING_OFF
            self.out.append(BackOff(self._attempt))

    def _surely_absent(self, head: LogHead, version: int) -> bool:
        """Whether the list does not hold the new ledger and never will.

        A compare-and-swap whose response is missing can still take effect while the version is the one that it names;
        and a list that was cut into pages or truncated since may hold, or have held, the ledger where this handle does
        not look. In doubt the ledger is left to the collector, which looks twice.
        """
        assert self._new is not None
        base = self._head
        known = base is not None and head.pages == base.pages and head.dropped_items == base.dropped_items
        return version != self._swap_version and known and head.item(self._new.ledger_id) is None

    def _delete_new(self) -> None:
        if self._new is not None:
            self.out.append(DeleteLedger(self._new.ledger_id))
            self._new = None

    def _opened(self) -> None:
        """Step 5 is done: "The node must not serve any writes until step 5 completes successfully"."""
        assert self._head is not None
        assert self._new is not None
        item = self._head.item(self._new.ledger_id)
        assert item is not None
        self.epoch = self._head.leader.epoch
        self._new = None
        self._attempt = 0
        self.status = LogStatus.SERVING
        if not self._served and self._rules.may_serve(list_written=True):
            self._serve(item, item.first_offset)

    def _serve(self, item: LogItem, first_offset: int | None) -> None:
        self._served = True
        self.current = item.ledger_id
        self.current_offset = first_offset
        self.out.append(Serve(item.ledger_id, first_offset, self.epoch))

    def _change(self, change: Change) -> None:
        self._changes.append(change)
        self._swap_changes()

    def _swap_changes(self) -> None:
        if self._swapping or not self._changes:
            return
        assert self._head is not None
        head = self._head
        for change in self._changes:
            head = change.applied(head)
        self._write(head)

    def _settle_changes(self) -> None:
        """Go on with every change that the head now has, and try the others (again)."""
        assert self._head is not None
        done = [change for change in self._changes if change.is_in(self._head)]
        self._changes = [change for change in self._changes if not change.is_in(self._head)]
        for change in done:
            if isinstance(change, ListLedger):
                self._listed(change.item)
            elif isinstance(change, PlaceAdoptions):
                self._placed(change.item)
            elif isinstance(change, CompleteLedger):
                self._completed(change.ledger_id)
            else:
                self._end(EndReason.CLOSED, "closed")
                return
        self._swap_changes()

    # --- rolling -----------------------------------------------------------------------------------------------

    @property
    def may_roll(self) -> bool:
        """Whether a roll may start now: the ledger before the current one must be closed in the list."""
        return (
            self.status is LogStatus.SERVING
            and self._roll is RollStep.NONE
            and not self._closing
            and self._head is not None
            and self._rules.may_roll(len(self._head.open_items))
        )

    def roll(self) -> None:
        """Start to go on in a new ledger.

        Effects:
            CreateLedger, step 1 of rolling; appends go on in the current ledger meanwhile.

        Raises:
            MisuseError: `may_roll` says no.
        """
        if not self.may_roll:
            msg = f"cannot roll while {self.status.value}, roll step {self._roll.value}; see may_roll"
            raise MisuseError(msg)
        self._roll = RollStep.CREATING
        self._adopting = self.adoptions_wait
        self.out.append(CreateLedger())

    def head_seen(self, head: LogHead, version: int) -> None:
        """The head, read because another client changed it: a sink may have committed ledgers to the log.

        Known is only what is newer, and nothing while a compare-and-swap is in flight: its response, or a reading after
        it, shows it.
        """
        mine = head.leader.epoch == self.epoch and head.leader.holder == self._holder
        newer = version > self._version
        if self.status is LogStatus.SERVING and not self._swapping and mine and newer:
            self._learn(head, version)

    def _drain(self) -> None:
        """While adopted ledgers wait, the former ledger ends before the next one is listed."""
        assert self.current is not None
        self._roll = RollStep.DRAINING
        self._rolled_from = self.current
        self._switched = False
        self.out.append(DrainLedger(self._rolled_from))

    def _placed(self, item: LogItem) -> None:
        """The next ledger is in the list, behind what was adopted: its first offset is there."""
        assert self._head is not None
        listed = self._head.item(item.ledger_id)
        assert listed is not None
        self._new = None
        self._roll = RollStep.NONE
        self._adopting = False
        self._rolled_from = None
        self._switch(item, listed.first_offset)
        self._roll_over(done=True)

    def _listed(self, item: LogItem) -> None:
        """The next ledger is in the list: step 3 is done. It gets nothing before the former's last is confirmed."""
        assert self.current is not None
        self._roll = RollStep.DRAINING
        self._rolled_from = self.current
        self._switched = False
        if self._rules.may_send_to_next(previous_confirmed=False):
            self._switch(item, None)
        self.out.append(DrainLedger(self._rolled_from))

    def drained(self, ledger_id: LedgerId, records: int) -> None:
        """All that the ledger was sent is confirmed: so many records.

        Effects:
            SwitchLedger with the first offset, then CloseLedger for the former: step 4 of rolling.

        Source: docs/decisions/020-next-ledger-waits.md: the next ledger's first offset is fixed before its first
        byte.
        """
        if (
            self.status not in _LEADING
            or self._roll is not RollStep.DRAINING
            or ledger_id != self._rolled_from
        ):
            return
        assert self._new is not None
        if self._adopting:
            self._roll = RollStep.SEALING
            self.out.append(CloseLedger(ledger_id))
            return
        if not self._switched and self._rules.may_send_to_next(previous_confirmed=True):
            offset = None if self.current_offset is None else self.current_offset + records
            self._switch(self._new, offset)
        self._new = None
        self._roll = RollStep.NONE
        self._rolled_from = None
        self._sealing.append(ledger_id)
        self.out.append(CloseLedger(ledger_id))

    def _switch(self, item: LogItem, first_offset: int | None) -> None:
        self._switched = True
        self.current = item.ledger_id
        self.current_offset = first_offset
        self.out.append(SwitchLedger(item.ledger_id, first_offset))

    def ledger_closed(self, ledger_id: LedgerId, summary: LedgerSummary) -> None:
        """A ledger that this handle asked to close is closed at what it confirmed.

        Effects:
            WriteHead that calls it closed; with the last ledger also gives the lead back.
        """
        if self.status in _LEADING and ledger_id in self._sealing:
            self._change(CompleteLedger(ledger_id, summary))
        elif self.status in _LEADING and self._roll is RollStep.SEALING and ledger_id == self._rolled_from:
            assert self._new is not None
            self._roll = RollStep.LISTING
            self._change(PlaceAdoptions(ledger_id, summary, self._new))
        elif self.status is LogStatus.CLOSING and ledger_id == self.current:
            self._changes.append(CompleteLedger(ledger_id, summary))
            self._change(Resign(self.epoch))

    def ledger_failed(self, ledger_id: LedgerId, detail: str) -> None:
        """A ledger of this handle ended otherwise: fenced, no quorum, closed at another end.

        Effects:
            Ended. A next ledger that is listed stays, empty; one that comes later is deleted.
        """
        if self.status in _LEADING:
            if self._adopting and self._roll in {RollStep.DRAINING, RollStep.SEALING}:
                self._delete_new()  # no compare-and-swap has named it
            self._end(EndReason.LEDGER_FAILED, f"ledger {ledger_id}: {detail}")

    def _completed(self, ledger_id: LedgerId) -> None:
        if ledger_id in self._sealing:
            self._sealing.remove(ledger_id)
            self._roll_over(done=True)

    def _roll_over(self, *, done: bool) -> None:
        self.out.append(Rolled(done))
        if self._closing and not self.rolling:
            self._close_current()

    # --- ending ------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the current ledger and give the lead back; a roll under way is finished first.

        Effects:
            CloseLedger, then WriteHead, then Ended.

        Raises:
            NotWritingError: this handle does not lead.
        """
        if self.status is not LogStatus.SERVING or self._closing:
            msg = f"this handle does not lead: it is {self.status.value}"
            raise NotWritingError(msg)
        self._closing = True
        if not self.rolling:
            self._close_current()

    def _close_current(self) -> None:
        assert self.current is not None
        self.status = LogStatus.CLOSING
        self.out.append(CloseLedger(self.current))

    def abandon(self, detail: str = "abandoned") -> None:
        """Stop at once; the next opener recovers what is open."""
        if self.status is not LogStatus.ENDED:
            if self.status is LogStatus.FENCING:
                self._delete_new()
            self._end(EndReason.ABANDONED, detail)

    def _end(self, reason: EndReason, detail: str) -> None:
        self.status = LogStatus.ENDED
        self.ended = Ended(reason, detail)
        self._new = None
        self._changes.clear()
        self.out.append(self.ended)

    def _learn(self, head: LogHead, version: int) -> None:
        self._head = head
        self._version = version

    def _require(self, status: LogStatus) -> None:
        if self.status is not status:
            msg = f"this handle is {self.status.value}, not {status.value}: use a new one"
            raise MisuseError(msg)

    # --- what must hold ----------------------------------------------------------------------------------------

    def check(self) -> None:
        """Assert every invariant that one handle can see; tests and the checker call it after each input.

        Source: docs/counterexamples.md, "What must hold", L1 to L7: each line names the one that it is a part of.
        """
        head = self._head
        if head is None:
            return
        try:
            head.checked()  # L2: dense offsets; L6: at most two open, the last ones
        except CorruptMetadataError as error:
            raise AssertionError(str(error)) from error
        # L4, L5: an item has one place for ever; the list grows at its end and shrinks at its front. Neighbours that
        # were copied into one ledger have the place of the last of them.
        for place, item in enumerate(head.items, head.first_item_place):
            if item.flags & ItemFlags.REWRITTEN:
                self._seen[place] = item.ledger_id
            known = self._seen.setdefault(place, item.ledger_id)
            assert known == item.ledger_id, f"L5: place {place} held ledger {known}, now {item.ledger_id}"
        assert head.start_offset <= head.closed_end or head.open_items, "the log starts behind its end"
        if self.status in _LEADING:
            assert head.leader.epoch == self.epoch, "L3: serving under another epoch"
            assert self.current is not None
            current = head.item(self.current)
            assert current is not None, "L1: serving a ledger that the list does not hold"
            resigned = self.status is LogStatus.CLOSING and not current.is_open
            assert current.is_open or resigned, "L3: serving a ledger that the list calls closed"
            if current.first_offset is not None and self.current_offset is not None:
                assert current.first_offset == self.current_offset, "L2: two first offsets for one ledger"
        if self._roll is RollStep.DRAINING:
            assert not self._switched or self.current_offset is not None, (
                "L7: sent before the former was confirmed"
            )
        if self.ended is not None:
            assert not self._changes, "an ended handle changes nothing"


def _taken_over(head: LogHead) -> str:
    who = head.leader.host or head.leader.holder or "somebody"
    return f"{who} leads it since epoch {head.leader.epoch}"

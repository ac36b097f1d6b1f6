"""The auditor: which bookies are away and for how long, and which ledgers are to be marked because of that.

    IDLE -> LOOKING -> LISTING <-> MARKING -> IDLE

At each tick the auditor looks which bookies are there, and adds to the counters of those that are away, and of those that
are read-only. The counters are in the metadata store: another auditor goes on with them, and one that finds that somebody
else has counted adds nothing this time. How long a bookie is read-only is counted for repairs only (`RepairMachine`). When other bookies are away than at the last audit, or the delay of one is over, it reads the records of all
ledgers and marks those that lack copies which are due. Marks come from records that were read, and nothing else.

Ledgers with fewer than Qa copies of an entry left are marked with the page on which their record was found; the others
when all records were read, those with the fewest copies first. An audit that is not concluded is done again.

Source: docs/protocol/audit.md; BookKeeper source, `Auditor`, `AuditorBookieCheckTask`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from quire.core.ids import BookieId, LedgerId
from quire.core.ledger.metadata import LedgerMetadata
from quire.core.ledger.quorum import fewest_copies
from quire.core.repair.audit_effects import (
    LIMITS,
    AuditEffect,
    AuditEnded,
    AuditLimits,
    AuditReport,
    AuditStatus,
    ClusterBookies,
    Counted,
    CountedState,
    CountTime,
    EndCount,
    ListLedgers,
    MarkLedgers,
    MissingMark,
    ReadBookies,
)
from quire.core.repair.elapsed_time import ElapsedTime
from quire.core.repair.rules import RULES, RepairRules
from quire.core.settings import doubled
from quire.core.state_table import StateTable

AUDIT_TABLE = StateTable(
    AuditStatus,
    {
        "tick": "idle > looking; looking listing marking > -",
        "bookies_changed": "idle > looking; looking listing marking > =",
        "bookies_read": "looking > = idle listing marking; idle listing marking > -",
        "bookies_unread": "looking > = idle; idle listing marking > -",
        "counted": "idle looking listing marking > =",
        "ledgers_listed": "listing > = marking idle looking; idle looking marking > -",
        "listing_failed": "listing > idle looking; idle looking marking > -",
        "marked": "marking > = listing idle looking; idle looking listing > -",
        "marking_failed": "marking > idle looking; idle looking listing > -",
    },
)
"""What an auditor's inputs do."""
UNREADABLE_MAX = 100


@dataclass(slots=True)
class _AuditRun:
    """One audit, from its beginning to its end.

    Attributes:
        audited: who was away at its beginning, and whose delay was over, without those that were back since.
        after: the last ledger that was listed; None: none was, or all are.
        queue: what is left to be marked.
        named: the bookies that records name.
        listed, marked: how many ledgers were.
        unreadable: ledgers whose records cannot be read.
    """

    audited: tuple[frozenset[BookieId], frozenset[BookieId]] = (frozenset(), frozenset())
    after: int | None = None
    queue: list[MissingMark] = field(default_factory=list)
    named: set[BookieId] = field(default_factory=set)
    listed: int = 0
    marked: int = 0
    unreadable: list[int] = field(default_factory=list)


class AuditMachine:
    """The auditor of a cluster. There should be one at a time; two mark the same, and count no faster.

    Args:
        limits: ticks and pauses.
        rules: the protocol's rules (`core/rules.py`); only tests pass changed ones.

    Attributes:
        status: where it is.
        away: the bookies that are away, each with the seconds since it left.
        due: of those, the ones whose delay is over: their ledgers are marked.
    """

    __slots__ = (
        "_again_s",
        "_changed",
        "_concluded",
        "_counted",
        "_delay_s",
        "_elapsed",
        "_failures",
        "_limits",
        "_named",
        "_pause_s",
        "_rules",
        "_run",
        "_to_add_s",
        "away",
        "due",
        "out",
        "status",
    )

    def __init__(self, limits: AuditLimits = LIMITS, rules: RepairRules = RULES) -> None:
        self._limits, self._rules = limits, rules
        self.status = AuditStatus.IDLE
        self.out: list[AuditEffect] = []
        self.away: dict[BookieId, int] = {}
        self.due: frozenset[BookieId] = frozenset()
        self._delay_s = 0
        # Counting: the versions that this auditor has written or seen.
        self._counted: dict[tuple[CountedState, BookieId], int] = {}
        self._elapsed = ElapsedTime(limits.tick_s, rules)
        self._to_add_s = 0
        # What the last audit that was concluded knew: the bookies that records name, which were away and which of those due.
        self._named: frozenset[BookieId] | None = None
        self._concluded: tuple[frozenset[BookieId], frozenset[BookieId]] | None = None
        self._again_s = self._pause_s = self._failures = 0
        self._changed = False
        self._run = _AuditRun()

    # --- inputs ---------------------------------------------------------------------------------------------------

    def tick(self, now_ms: int) -> None:
        """Time has passed. Effects: ReadBookies.

        Args:
            now_ms: of a clock that does not go back; one that leaps adds no more than a tick.
        """
        if not AUDIT_TABLE.acts["tick"][self.status]:
            return
        self._to_add_s = self._elapsed.add(now_ms)
        self._again_s -= self._to_add_s
        self._pause_s -= self._to_add_s
        self._look()

    def bookies_changed(self) -> None:
        """A bookie registered, or a registration ended. Effects: ReadBookies; nothing is counted."""
        if self.status is AuditStatus.IDLE:
            self._look_again()
        else:
            self._changed = True

    def bookies_read(self, view: ClusterBookies) -> None:
        """Which bookies are there.

        Effects:
            CountTime for each that is away, or read-only, while its delay is not over, EndCount for each that is not any more;
            ListLedgers if ledgers may have to be marked; or MarkLedgers, where bookies came or went in the middle of an audit.
        """
        if not AUDIT_TABLE.acts["bookies_read"][self.status]:
            return
        self._count(view)
        self._delay_s = view.delay_s
        self.due = frozenset(bookie for bookie, away_s in self.away.items() if away_s >= view.delay_s)
        if self._run.queue:
            self._run.queue = [mark for mark in self._run.queue if self.away.keys() & set(mark.bookies)]
            away, due = self._run.audited
            self._run.audited = (
                away & self.away.keys(),
                due & self.due,
            )  # a bookie that was back may be away again
            self._mark_next()
        elif self._audit_is_due(view):
            self._begin()
        else:
            self._rest()

    def bookies_unread(self) -> None:
        """The metadata store did not say it: nothing is counted. Effects: AuditEnded, if there was more to be marked."""
        if not AUDIT_TABLE.acts["bookies_unread"][self.status]:
            return
        self._changed = False
        if self._run.queue:
            self._end("the metadata store did not say which bookies are there")
        else:
            self._rest()

    def counted(self, state: CountedState, bookie: BookieId, version: int) -> None:
        """A CountTime was stored with this version."""
        self._counted[state, bookie] = version

    def ledgers_listed(
        self, after: int | None, records: Sequence[tuple[LedgerId, LedgerMetadata | None]], *, last: bool
    ) -> None:
        """The next records, in the order of their ids.

        Args:
            after: as in the ListLedgers that this answers.
            records: each ledger with its record; None: it cannot be read.
            last: whether there are no more.

        Effects:
            MarkLedgers for what has fewest copies, or ListLedgers for the next page; after the last, MarkLedgers or
            AuditEnded.
        """
        run = self._run
        if not AUDIT_TABLE.acts["ledgers_listed"][self.status] or after != run.after:
            return
        urgent: list[MissingMark] = []
        for ledger_id, record in records:
            if run.after is not None and ledger_id <= run.after:
                self.listing_failed(f"ledger {ledger_id} was listed after ledger {run.after}")
                return
            run.after = ledger_id
            run.listed += 1
            if record is None:
                run.unreadable += [ledger_id] if len(run.unreadable) < UNREADABLE_MAX else []
                continue
            mark, is_urgent = self._judged(ledger_id, record)
            if mark is not None:
                (urgent if is_urgent else run.queue).append(mark)
        if not records and not last:
            self.listing_failed("a page of ledgers was empty, and not the last")
        elif last:
            self._listing_over(urgent, "")
        elif urgent:
            self._mark(urgent)
        else:
            self._list()

    def listing_failed(self, why: str) -> None:
        """The records could not be read to the end. Effects: AuditEnded, without a conclusion."""
        if AUDIT_TABLE.acts["listing_failed"][self.status]:
            self._listing_over([], why)

    def marked(self) -> None:
        """The marks of the last MarkLedgers are stored. Effects: as `ledgers_listed`."""
        if not AUDIT_TABLE.acts["marked"][self.status]:
            return
        if self._run.after is not None:
            self._list()
        else:
            self._mark_next()

    def marking_failed(self, why: str) -> None:
        """Not all of them are stored. Effects: AuditEnded, without a conclusion."""
        if AUDIT_TABLE.acts["marking_failed"][self.status]:
            self._end(why)

    # --- who is away ----------------------------------------------------------------------------------------------

    def _look(self) -> None:
        self.status, self._changed = AuditStatus.LOOKING, False
        self.out.append(ReadBookies())

    def _look_again(self) -> None:
        """Between ticks, which adds nothing."""
        self._to_add_s = 0
        self._look()

    def _count(self, view: ClusterBookies) -> None:
        """Add this tick to the counters of the bookies that are away, and of those that are read-only."""
        known = {*view.cookies, *(self._named or ())}
        registered = frozenset(view.registered)
        away = {
            bookie
            for bookie in sorted(known)
            if self._rules.is_gone(known=True, registered=bookie in registered)
        }
        unknown = {*view.away, *view.read_only_for} - known if self._named is not None else set()
        self.away = self._count_in(
            CountedState.AWAY, away, view.away, view.delay_s, over=registered | unknown
        )
        # A bookie that is full and starts again is as full as before: only one that takes entries begins anew.
        writable = registered - {*view.read_only}
        self._count_in(
            CountedState.READ_ONLY,
            {*view.read_only},
            view.read_only_for,
            view.delay_s,
            over=writable | (unknown - registered),
        )

    def _count_in(
        self,
        state: CountedState,
        bookies: Collection[BookieId],
        counted: Mapping[BookieId, Counted],
        delay_s: int,
        *,
        over: Collection[BookieId],
    ) -> dict[BookieId, int]:
        """Add this tick to the counters of the bookies that are in a state, and end those of the ones that are not any more."""
        found: dict[BookieId, int] = {}
        for bookie in sorted(bookies):
            stored = counted.get(bookie)
            if stored is None:
                found[bookie] = 0
                self.out.append(CountTime(state, bookie, 0, None))
                continue
            found[bookie] = stored.seconds
            if self._counted.get((state, bookie)) != stored.version:
                self._counted[state, bookie] = (
                    stored.version
                )  # another auditor has counted: its tick is this one
            elif stored.seconds < delay_s and self._to_add_s:
                found[bookie] += self._to_add_s
                self.out.append(CountTime(state, bookie, found[bookie], stored.version))
        for bookie, stored in counted.items():
            if bookie in over:
                self.out.append(EndCount(state, bookie, stored.version))
                self._counted.pop((state, bookie), None)
        return found

    # --- which ledgers --------------------------------------------------------------------------------------------

    def _audit_is_due(self, view: ClusterBookies) -> bool:
        """Whether ledgers may have to be marked that are not.

        Where no bookie is registered there is none that could take a copy, and the sessions of all may have ended with
        an outage of the store: no bookie is taken for lost.
        """
        if not view.enabled or not view.registered or self._pause_s > 0:
            return False
        away = frozenset(self.away)
        if self._concluded is None or self._named is None or (away and self._again_s <= 0):
            return True
        away_before, due_before = self._concluded
        self._concluded = away & away_before, self.due & due_before
        return self._concluded != (away, self.due)

    def _begin(self) -> None:
        self._run = _AuditRun((frozenset(self.away), self.due))
        self._list()

    def _list(self) -> None:
        self.status = AuditStatus.LISTING
        self.out.append(ListLedgers(self._run.after))

    def _judged(self, ledger_id: LedgerId, record: LedgerMetadata) -> tuple[MissingMark | None, bool]:
        """The mark of a ledger, if it is to have one, and whether that is urgent."""
        fewest, is_urgent = record.write_quorum, False
        bookies: dict[BookieId, None] = {}
        for fragment in record.fragments:
            ensemble = fragment.ensemble
            self._run.named.update(ensemble)
            here = {slot: bookie for slot, bookie in enumerate(ensemble) if bookie in self.away}
            if not here:
                continue
            absent = sum(1 << slot for slot in here)
            copies = fewest_copies(len(ensemble), record.write_quorum, absent)
            due = [bookie for bookie in here.values() if self._is_due(bookie, copies, record.ack_quorum)]
            bookies |= dict.fromkeys(due)
            if due:
                fewest = min(fewest, copies)
                is_urgent = is_urgent or copies < record.ack_quorum
        if not bookies:
            return None, False
        is_stream = record.terms is not None
        return MissingMark(fewest, ledger_id, tuple(bookies), is_stream), is_urgent

    def _is_due(self, bookie: BookieId, copies_left: int, ack_quorum: int) -> bool:
        return self._rules.copy_is_due(
            away_s=self.away[bookie], delay_s=self._delay_s, copies_left=copies_left, ack_quorum=ack_quorum
        )

    def _listing_over(self, urgent: Sequence[MissingMark], why: str) -> None:
        if why:  # a listing that failed, or is short, says nothing of what it does not show
            self._end(why)
            return
        self._named, self._run.after = frozenset(self._run.named), None
        self._run.queue = sorted([*urgent, *self._run.queue], key=self._priority)
        self._mark_next()

    def _priority(self, mark: MissingMark) -> tuple[int, int]:
        return self._rules.copy_priority(mark.copies, mark.ledger_id)

    def _mark_next(self) -> None:
        """What is left to be marked, some at once; who came back meanwhile is left out."""
        if self._changed and self._run.queue:
            self._look_again()
            return
        size = self._limits.marks_at_once
        now, self._run.queue = self._run.queue[:size], self._run.queue[size:]
        if now:
            self._mark(now)
        else:
            self._end("")

    def _mark(self, marks: Sequence[MissingMark]) -> None:
        self.status = AuditStatus.MARKING
        self._run.marked += len(marks)
        self.out.append(MarkLedgers(tuple(sorted(marks, key=self._priority))))

    # --- the end --------------------------------------------------------------------------------------------------

    def _end(self, why: str) -> None:
        """This audit is over; with a reason it is done again, after a while if it failed."""
        limits = self._limits
        if not why:
            self._concluded = self._run.audited
            self._changed = self._changed or self._run.audited != (frozenset(self.away), self.due)
            self._again_s, self._failures, self._pause_s = limits.again_s, 0, 0
        else:
            self._concluded = None
            self._pause_s = doubled(limits.tick_s, limits.pause_s_max, self._failures)
            self._failures = min(self._failures + 1, 20)
        unreadable = tuple(self._run.unreadable)
        report = AuditReport(not why, why, self._run.listed, self._run.marked, unreadable, dict(self.away))
        self.out.append(AuditEnded(report))
        self._run.queue = []
        self._rest()

    def _rest(self) -> None:
        """Look again at once if a registration came or went meanwhile."""
        self.status = AuditStatus.IDLE
        if self._changed:
            self._look_again()

    def check(self) -> None:
        """Assert what must hold between any two inputs."""
        assert self.due <= self.away.keys(), "a bookie whose delay is over is away"
        assert self.status is not AuditStatus.IDLE or not self._run.queue, (
            "who rests has nothing left to mark"
        )
        assert self._concluded is None or self._concluded[1] <= self._concluded[0]

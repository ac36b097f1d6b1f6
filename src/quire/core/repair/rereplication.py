"""Repair of one ledger: what its record promises is put on the disks of bookies that are there.

Three things are one: a lost bookie is *replaced* in each decided fragment, a bookie that lacks entries or knows
them to be damaged is *filled*, and the limbo of a bookie that was filled is *ended*. One that is to be filled, and refuses
because it is read-only, is replaced too, in that fragment only, when it has been so for long. A decided fragment is one whose end
stands; of any other only its writer, or a recovery, knows what it will hold, and it is left alone.

    IDLE -> READING -> LISTING -> COPYING -> VERIFYING -> STORING -> LISTING ... -> CLEARING -> ENDED

Copies come first, the record after them. A conflict begins again with the record as it is: what was chosen for the old
one is forgotten. One machine for each ledger; the driver is `client/repairing/ledger_repair.py`.

Source: docs/protocol/repair.md; BookKeeper protocol, "Ensembles".
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from quire.core.answers import Answer
from quire.core.errors import MisuseError
from quire.core.ids import BookieId
from quire.core.ledger.holes import without_holes
from quire.core.ledger.metadata import LedgerMetadata
from quire.core.ledger.notes import NO_NOTES, EntryRange, LedgerNotes
from quire.core.ledger.replica import Replica, ReplicaList, period_of
from quire.core.ledger.terms import NO_TERM
from quire.core.repair.effects import (
    LIMITS,
    NONE_READ_ONLY,
    REPAIR_TABLE,
    CopyRange,
    EndLimbo,
    ListReplica,
    Loss,
    ReadOnlyBookies,
    ReadRecord,
    RepairEffect,
    RepairEnded,
    RepairLimits,
    RepairOutcome,
    RepairReport,
    RepairStatus,
    WriteRepaired,
)
from quire.core.repair.missing_copies import MissingCopies
from quire.core.repair.plan import RepairPlan
from quire.core.repair.record import SlotReplacement, with_accepted, with_guarantee_kept, with_replacements
from quire.core.repair.rules import RULES, RepairRules


class RepairMachine:
    """Repairs one ledger, once. Use a new machine for the next repair.

    Args:
        lost_bookies: bookies that are permanently lost; silence alone does not make a bookie lost.
        candidates: bookies that may take a slot, the best first: registered, writable, with enough free space.
        read_only: bookies that take no copies, and for how long.
        accepted: who accepted that entries are lost which only lost bookies have; None: no one did.
        sources: bookies outside the record that may have entries of an accepted loss.

    Attributes:
        rules: the protocol's rules (`core/rules.py`).
    """

    __slots__ = (
        "_accepted",
        "_candidates",
        "_damaged",
        "_failed",
        "_found",
        "_limits",
        "_lost_bookies",
        "_plan",
        "_read_only",
        "_rounds",
        "_sources",
        "out",
        "report",
        "rules",
        "status",
    )

    def __init__(
        self,
        lost_bookies: Collection[BookieId],
        candidates: Sequence[BookieId],
        *,
        read_only: ReadOnlyBookies = NONE_READ_ONLY,
        accepted: Loss | None = None,
        sources: Sequence[BookieId] = (),
        limits: RepairLimits = LIMITS,
        rules: RepairRules = RULES,
    ) -> None:
        self._lost_bookies = frozenset(lost_bookies)
        self._candidates = tuple(candidates)
        self._read_only = read_only
        self._accepted, self._sources = accepted, tuple(sources)
        self._limits, self.rules = limits, rules
        self.status = RepairStatus.IDLE
        self.out: list[RepairEffect] = []
        self.report = RepairReport()
        self._plan: RepairPlan | None = None
        self._found: MissingCopies | None = None
        self._rounds = 0
        self._failed: dict[BookieId, str] = {}
        # What could not be read although it was listed; a later list of the same bookie says nothing else.
        self._damaged: defaultdict[BookieId, list[EntryRange]] = defaultdict(list)

    @property
    def plan(self) -> RepairPlan:
        """What is known and chosen; there is one from the first record on."""
        assert self._plan is not None, "no record was read"
        return self._plan

    @property
    def found(self) -> MissingCopies:
        """What the lists of this plan come to."""
        assert self._found is not None, "no list was compared"
        return self._found

    # --- inputs ---------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin. Effects: ReadRecord."""
        if self.status not in REPAIR_TABLE.acts["start"]:
            msg = f"a repair runs once: it is {self.status.value}, not idle; use a new machine"
            raise MisuseError(msg)
        self._read()

    def bookies_changed(self, lost_bookies: Collection[BookieId], candidates: Sequence[BookieId]) -> None:
        """Other bookies are lost, or may take slots. Nothing new is copied for the old choice."""
        if not self._acts("bookies_changed"):
            return
        if self._plan is not None and frozenset(lost_bookies) != self._lost_bookies:
            self._plan.is_stale = True
            self._plan.queue.clear()
        self._lost_bookies, self._candidates = frozenset(lost_bookies), tuple(candidates)

    def record_read(self, record: LedgerMetadata | None, version: int, notes: LedgerNotes = NO_NOTES) -> None:
        """The record as it is now; None: the ledger was deleted.

        Effects:
            ListReplica for each bookie that is concerned; or EndLimbo or RepairEnded, when the record is the one that was
            filled, or of which entries are lost.
        """
        if not self._acts("record_read"):
            return
        if record is None:
            self.report.lost = self.report.gone_only = self.report.unanswered = self.report.accepted = ()
            self._end(RepairOutcome.DELETED)
            return
        before = self._plan
        if before is not None and not before.is_fresh and (record, notes) == (before.record, before.notes):
            before.is_fresh, before.version = True, version
            self._settle()
            return
        self._plan = RepairPlan(self.rules, record, notes, version)
        self._choose()

    def listed(self, bookie: BookieId, response: ReplicaList) -> None:
        """What a bookie holds, or why it did not say.

        Effects, after the last list: CopyRange, WriteRepaired, EndLimbo or RepairEnded; ListReplica of another target.
        """
        if not self._acts("listed"):
            return
        plan = self.plan
        if bookie not in plan.awaited:
            return
        plan.awaited.discard(bookie)
        plan.filled.discard(bookie)
        replica = Replica.of(response, plan.record, self.rules)
        plan.lists[bookie] = replica.without(self._damaged[bookie])
        if response.answer is Answer.INVALID_TERM:
            plan.is_stale = True  # taken over since the record was read
        elif not self.plan.responded(bookie):
            self._failed[bookie] = f"it did not list its entries: {response.answer.name}"
        if not plan.awaited:
            self._choose()

    def copied(
        self,
        piece: CopyRange,
        answer: Answer,
        damaged: Mapping[BookieId, Sequence[EntryRange]] | None = None,
        count: int = 0,
    ) -> None:
        """How a copy went.

        Args:
            piece: which.
            answer: OK: what its sources could give is on the disk of the bookie; else why that bookie refused, or did
                not respond.
            damaged: entries that a source listed and could not give: damaged, or not there any more.
            count: how many entries were stored; all of them, and damage that was known there is mended.

        Effects, after the last copy: ListReplica for each bookie that was copied to.
        """
        if not self._acts("copied") or piece not in self.plan.under_way:
            return
        plan = self.plan
        plan.under_way.discard(piece)
        plan.filled.add(piece.bookie)
        plan.is_fresh = False
        self.report.copied += count
        if answer is Answer.OK and count == piece.entries.size():
            self._damaged[piece.bookie] = [
                each for each in self._damaged[piece.bookie] if not piece.entries.overlaps(each)
            ]
        for source, ranges in (damaged or {}).items():
            self._damaged[source] += ranges
            if source in plan.lists:
                plan.lists[source] = plan.lists[source].without(ranges)
        if answer is Answer.INVALID_TERM:
            # A stream was taken over since its record was read: a bookie learns of a term after the record has it.
            plan.is_stale = True
            plan.queue.clear()
        elif answer is not Answer.OK:
            self._failed[piece.bookie] = f"it did not take copies: {answer.name}"
            if answer is Answer.READ_ONLY:
                self.report.read_only.setdefault(piece.bookie, False)
            plan.queue = [each for each in plan.queue if each.bookie != piece.bookie]
        self._send_copies()
        if not plan.under_way:
            self.status = RepairStatus.VERIFYING
            self._list(plan.filled)

    def stored(self, version: int) -> None:
        """The record is written. Effects: ListReplica for the bookies that came in: a collector may have been there."""
        if not self._acts("stored"):
            return
        plan, written = self.plan, self.plan.written
        assert written is not None, "a compare-and-swap without what was written"
        came = set()
        for index, changes in plan.targets.items():
            fragment = written.record.fragments[index]
            for old, new in changes.items():
                if new in fragment.ensemble:
                    self.report.replaced.append((int(fragment.first_entry), old, new))
                    came.add(new)
        lists = {bookie: replica for bookie, replica in plan.lists.items() if bookie not in came}
        self._plan = RepairPlan(self.rules, written.record, written.notes, version, lists=lists)
        self._choose()

    def conflicted(self) -> None:
        """Another client changed the record. Effects: ReadRecord; everything is chosen again."""
        if self._acts("conflicted"):
            self._again()

    def unknown(self) -> None:
        """The outcome of the write is not known. Effects: ReadRecord, which shows it."""
        self.conflicted()

    def limbo_cleared(self, bookie: BookieId, answer: Answer) -> None:
        """Whether a bookie ended its limbo. Effects, after the last: RepairEnded."""
        if not self._acts("limbo_cleared") or bookie not in self.plan.awaited:
            return
        self.plan.awaited.discard(bookie)
        if answer is Answer.OK:
            self.report.cleared.append(bookie)
        else:
            self._failed[bookie] = f"it did not end its limbo: {answer.name}"
        if not self.plan.awaited:
            self._finish()

    # --- reading and listing --------------------------------------------------------------------------------------

    def _read(self) -> None:
        self.status = RepairStatus.READING
        self.out.append(ReadRecord())

    def _again(self) -> None:
        """Begin with the record as it is now: whatever was chosen for another one is forgotten."""
        self._plan = None
        if self._one_more_round("the record changed each time"):
            self._read()

    def _one_more_round(self, why: str) -> bool:
        self._rounds += 1
        if self._rounds > self._limits.rounds_max:
            self.report.stopped = why
            self._finish()
            return False
        return True

    def _list(self, bookies: Iterable[BookieId]) -> None:
        self.plan.awaited = set(bookies)
        record = self.plan.record
        # Where terms only fence a bookie takes it before it lists: an old writer would change what it listed.
        term = record.term if record.only_fences else NO_TERM
        self.out += [ListReplica(bookie, term) for bookie in sorted(self.plan.awaited)]

    def _choose(self) -> None:
        """Choose a target for each slot whose bookie is lost, and ask for the lists that are not there."""
        plan = self.plan
        if plan.is_stale:
            self._again()
            return
        record, decided = plan.record, self.plan.decided()
        self.report.undecided = tuple(
            bookie
            for index, fragment in enumerate(record.fragments)
            for bookie in fragment.ensemble
            if index not in decided and bookie in self._lost_bookies
        )
        for index in decided:
            ensemble, chosen = record.fragments[index].ensemble, plan.targets.get(index, {})
            self._replace(index, [each for each in ensemble if each in self._lost_bookies or each in chosen])
        members = {
            bookie
            for index in decided
            for bookie in record.fragments[index].ensemble
            if bookie not in self._lost_bookies and self.plan.bounds(index)[1] >= self.plan.bounds(index)[0]
        }
        wanted = (members | self.plan.new_bookies() | set(self._sources)) - set(plan.lists)
        if wanted:
            self.status = RepairStatus.LISTING
            self._list(wanted)
        else:
            self._judge()

    def _replace(self, index: int, bookies: Iterable[BookieId]) -> None:
        """Choose a target for each of these bookies of a fragment that has none, or one that failed."""
        ensemble = self.plan.record.fragments[index].ensemble
        chosen = self.plan.targets.setdefault(index, {})
        for bookie in bookies:
            if chosen.get(bookie, bookie) not in {bookie, *self._failed}:
                continue
            chosen.pop(bookie, None)
            taken = {*ensemble, *chosen.values(), *self._failed, *self._lost_bookies}
            target = next((each for each in self._candidates if each not in taken), None)
            if target is not None:
                chosen[bookie] = target

    # --- what is missing ------------------------------------------------------------------------------------------

    def _judge(self) -> None:
        """Every list is there: publish what is whole, copy what is not, or settle."""
        plan = self.plan
        self._look()
        if self._replaces_full():
            return
        found = self.found
        ready = [
            SlotReplacement(index, old, new)
            for index, changes in plan.targets.items()
            for old, new in changes.items()
            if self._may_publish(index, old, new)
        ]
        chosen = sum(map(len, plan.targets.values()))
        if (len(ready) < chosen and found.copies) or (found.copies and not ready):
            self._copy()
        elif not self._publish(ready):
            if found.copies:
                self._copy()
            else:
                # Bookies may have dropped the ledger since the record was read: then nothing of it is lost.
                plan.is_fresh = plan.is_fresh and not found.lost
                self._settle()

    def _replaces_full(self) -> bool:
        """Give other bookies the slots of those that lack entries and take none; True: they are asked for their lists first.

        It keeps its other fragments, and is a source of this one too.
        """
        plan, found, full = self.plan, self.found, self._read_only
        before = {index: dict(changes) for index, changes in plan.targets.items() if changes}
        for (index, bookie), copies in found.fewest.items():
            refused = bookie in self.report.read_only and bookie in full.seconds
            if refused and self.rules.copy_is_due(
                away_s=full.seconds[bookie],
                delay_s=full.delay_s,
                copies_left=copies,
                ack_quorum=plan.record.ack_quorum,
            ):
                self.report.read_only[bookie] = True
                self._replace(index, [bookie])
        if before == {index: changes for index, changes in plan.targets.items() if changes}:
            return False
        self._choose()
        return True

    def _look(self) -> None:
        """Find what is missing in every fragment that may be touched."""
        plan, report = self.plan, self.report
        self._found = found = MissingCopies(
            plan.record,
            {bookie: replica for bookie, replica in plan.lists.items() if self.plan.responded(bookie)},
            lost_bookies=self._lost_bookies,
            refusing=self._failed,
            accepted=self._accepted,
            piece_entries=self._limits.piece_entries,
            is_lost=self.rules.is_lost,
        )
        for index in self.plan.decided():
            first, last = self.plan.bounds(index)
            if first <= last:
                found.look(index, first, last, plan.targets.get(index, {}))
        kinds = found.lost, found.gone_only, found.unanswered
        report.lost, report.gone_only, report.unanswered = (tuple(sorted(some)) for some in kinds)
        report.accepted = tuple(filter(plan.notes.accepts, (*report.lost, *report.gone_only)))

    def _may_publish(self, index: int, old: BookieId, target: BookieId) -> bool:
        missing = self.found.missing[index, target]
        if (
            old not in self._lost_bookies
            and self.plan.responded(old)
            and (index, target) not in self.found.fewest
        ):
            missing = 0  # what no bookie that responded has, the one that leaves has not either
        return self.plan.responded(target) and self.rules.may_publish(missing=missing)

    # --- copying --------------------------------------------------------------------------------------------------

    def _copy(self) -> None:
        if not self._one_more_round("what was copied was missing again each time"):
            return
        plan = self.plan
        self.status = RepairStatus.COPYING
        period = period_of(plan.record)
        pieces = [
            (
                copy.copies,
                CopyRange(
                    bookie,
                    EntryRange(first, last, period, copy.stripes),
                    tuple(copy.sources),
                    int(plan.record.origin_of(first)),
                    int(plan.record.term),
                ),
            )
            for (bookie, first, last), copy in self.found.copies.items()
        ]
        pieces.sort(
            key=lambda each: (*self.rules.copy_priority(each[0], each[1].entries.first), each[1].bookie)
        )
        plan.queue = [piece for _, piece in pieces]
        self._send_copies()

    def _send_copies(self) -> None:
        plan = self.plan
        while plan.queue and len(plan.under_way) < self._limits.pieces_max:
            piece = plan.queue.pop(0)
            plan.under_way.add(piece)
            self.out.append(piece)

    # --- the record -----------------------------------------------------------------------------------------------

    def _publish(self, ready: Sequence[SlotReplacement]) -> bool:
        """Write the record with what is whole, and without notes of holes that are filled; False: it says all that."""
        plan, found = self.plan, self.found
        whole = {
            bookie for bookie in plan.lists if self.plan.responded(bookie) and self._is_whole(bookie, ready)
        }
        record = with_replacements(plan.record, ready)
        if not (found.lost or found.gone_only or found.unanswered):
            record = with_guarantee_kept(record, whole)
        notes = without_holes(plan.notes, whole, record)
        if self._accepted is not None:
            lost = [each for each in ready if each.old in self._lost_bookies]
            notes = with_accepted(notes, plan.record, lost, found.gone_only, self._accepted)
        if (record, notes) == (plan.record, plan.notes):
            return False
        plan.written = WriteRepaired(record, notes, plan.version)
        self.status = RepairStatus.STORING
        self.out.append(plan.written)
        return True

    def _is_whole(self, bookie: BookieId, leaving: Collection[SlotReplacement] = ()) -> bool:
        """Whether a bookie lacks nothing, once the record says that it has left these fragments."""
        left = {each.fragment for each in leaving if each.old == bookie}
        stays = any(bookie in changes and index not in left for index, changes in self.plan.targets.items())
        return not stays and self.found.is_whole(bookie)

    # --- limbo and the end ----------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Nothing is left to copy or to publish: end the limbo of bookies that are whole, and say what is lost."""
        plan = self.plan
        whole = [
            bookie
            for bookie, replica in plan.lists.items()
            if replica.response.limbo and self.plan.responded(bookie) and self._is_whole(bookie)
        ]
        ending = [bookie for bookie in whole if self.rules.may_end_limbo(plan.record, plan.record, bookie)]
        if not plan.is_fresh and (ending or self.found.lost):
            self._read()
        elif not ending:
            self._finish()
        else:
            self.status = RepairStatus.CLEARING
            plan.awaited = set(ending)
            self.out += [EndLimbo(bookie, plan.lists[bookie].response.limbo_lsn) for bookie in sorted(ending)]

    def _finish(self) -> None:
        report = self.report
        report.refused = dict(self._failed)
        if self._plan is not None:
            report.left = dict(self._left())
        if report.stopped or report.left or report.unanswered:
            self._end(RepairOutcome.INCOMPLETE)
        else:
            quiet = report.lost or report.gone_only
            self._end(RepairOutcome.QUIET if quiet else RepairOutcome.WHOLE)

    def _left(self) -> Iterator[tuple[BookieId, str]]:
        """What stands in the way of more, by bookie that decided fragments name."""
        plan = self.plan
        for index in self.plan.decided():
            for bookie in plan.record.fragments[index].ensemble:
                replica = plan.lists.get(bookie)
                if bookie in self._lost_bookies:
                    if bookie not in plan.targets.get(index, {}):
                        yield bookie, "it is gone, and no other bookie can take its place"
                elif bookie in self._failed and not (plan.responded(bookie) and self._is_whole(bookie)):
                    yield bookie, self._failed[bookie]
                elif replica is not None and replica.response.limbo and bookie not in self.report.cleared:
                    yield bookie, self._why_in_limbo(bookie)

    def _why_in_limbo(self, bookie: BookieId) -> str:
        if not self._is_whole(bookie):
            return "it stays in limbo: it lacks entries that cannot be copied now"
        if not self.rules.may_end_limbo(self.plan.record, self.plan.record, bookie):
            return "it stays in limbo: a fragment whose end is not decided names it"
        return "it did not end its limbo"

    def check(self) -> None:
        """Assert every invariant of the state (I6 and RR1: docs/counterexamples.md). For tests and the explorer."""
        plan = self._plan
        if plan is None:
            return
        record, decided = plan.record.checked(), plan.decided()
        assert self.status is RepairStatus.COPYING or not plan.under_way, (
            "copies are under way while it copies only"
        )
        asks = {RepairStatus.LISTING, RepairStatus.VERIFYING, RepairStatus.CLEARING}
        assert bool(plan.awaited) == (self.status in asks), "it waits for bookies that it has asked"
        for index, changes in plan.targets.items():
            ensemble = record.fragments[index].ensemble
            targets = [*changes.values()]
            assert index in decided, "RR1: a target for a fragment that is not decided"
            assert not {*targets} & {*ensemble}, "I6: a target is in its fragment already"
            assert len({*targets}) == len(targets), "I6: one target for two slots"

    def _end(self, outcome: RepairOutcome) -> None:
        self.status = RepairStatus.ENDED
        self.out.append(RepairEnded(outcome, self.report))

    def _acts(self, name: str) -> bool:
        return REPAIR_TABLE.acts[name][self.status]

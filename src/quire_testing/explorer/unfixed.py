"""Machines with exactly one fix taken out, for the mutants that no single rule makes.

Source: docs/counterexamples.md, "All of them".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from quire.core.answers import Answer
from quire.core.bookie.ledger import BookieLedgerMachine, BookieReady, Fence, LedgerFacts
from quire.core.ids import NO_ENTRY, BookieId
from quire.core.ledger.effects import Confirmed, SendRun
from quire.core.ledger.ensemble_change import mask_of
from quire.core.ledger.writer import WriterMachine
from quire.core.log.list import LogHead
from quire.core.log.trimming import TrimDeleteLedger, TrimMachine, TrimStatus
from quire.core.recovery.machine import RecoveryMachine
from quire.core.repair.effects import RepairStatus, WriteRepaired
from quire.core.repair.record import SlotReplacement
from quire.core.repair.rereplication import RepairMachine


class UnorderedWriter(WriterMachine):
    """X17: the LAC is the highest confirmed entry, whatever lies below it."""

    __slots__ = ()

    def _acked(self, slots: int, run: int) -> None:
        """Count the acknowledgements; a confirmed run anywhere confirms everything before it."""
        window = self.window
        if run not in window.runs or not slots:
            return
        window._acked = dict(sorted({**window._acked, run: window._acked.get(run, 0) | slots}.items()))
        if window.is_pending(run):
            return
        first, window.lac = window.lac + 1, window.runs[run][1]
        for number in [number for number in window.runs if number <= run]:
            window.confirmed_length += window.runs.pop(number)[3]
            window._acked.pop(number, None)
        window._head = run + 1
        self.out.append(Confirmed(first, window.lac))


class LooksBeforeItFences(BookieLedgerMachine):
    """X27: a fencing request is answered with what is here, and the flag is set when the journal has it."""

    __slots__ = ()

    def set_fence(self, *, key: bytes, token: int, digest_type: int) -> BookieReady:
        """The facts are journaled with the fence; until they are there, adds go on."""
        fenced = self.facts.fenced
        ready = super().set_fence(key=key, token=token, digest_type=digest_type)
        if fenced or ready.answer is not Answer.OK:
            return ready
        self.facts.fenced, self.fence = False, Fence.NONE
        return ready._replace(persisted=False)

    def saved(self, facts: LedgerFacts) -> None:
        """Now it is fenced."""
        if facts.fenced:
            self.facts.fenced, self.fence = True, Fence.DURABLE


class TakesWhatTheRecordTook(BookieLedgerMachine):
    """X28: what a ledger's record said after a loss decides of adds, and a fence that came meanwhile does not."""

    __slots__ = ()

    def add(self, *, recovery: bool, **request: Any) -> BookieReady:
        """Once the record was read, an add passes the fence as a recovery add does."""
        return super().add(recovery=recovery or (self._lost and self.fence_known), **request)


class ChoosesForTheOldRecord(RepairMachine):
    """X38: after a conflict the slots go to the targets that were chosen for the record before."""

    __slots__ = ("_kept",)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._kept: dict[int, dict[BookieId, BookieId]] = {}

    def conflicted(self) -> None:
        """The targets stay."""
        if self.status is RepairStatus.STORING:
            self._kept = self.plan.targets
        super().conflicted()

    def _replace(self, index: int, bookies: Iterable[BookieId]) -> None:
        super()._replace(index, bookies)
        kept, ensemble = self._kept.get(index, {}), self.plan.record.fragments[index].ensemble
        self.plan.targets[index].update((old, new) for old, new in kept.items() if old in ensemble)


class PublishesIntoAnyFragment(RepairMachine):
    """X32: a record with other bookies in its last fragment is written as well, whatever will come there."""

    __slots__ = ()

    def _publish(self, ready: Sequence[SlotReplacement]) -> bool:
        plan = self.plan
        fragments = list(plan.record.fragments)
        for index, old, new in ready:
            names = tuple(new if bookie == old else bookie for bookie in fragments[index].ensemble)
            fragments[index] = replace(fragments[index], ensemble=names)
        if not ready:
            return False
        plan.written = WriteRepaired(
            replace(plan.record, fragments=tuple(fragments), creation_token=0), plan.notes, plan.version
        )
        self.status = RepairStatus.STORING
        self.out.append(plan.written)
        return True


class DeletesFirst(TrimMachine):
    """What is about to leave the list is deleted before that is written."""

    __slots__ = ()

    def _write(self, head: LogHead, status: TrimStatus) -> None:
        """Delete, then compare-and-swap."""
        super()._write(head, status)
        if status is TrimStatus.STORING:
            self.out += [TrimDeleteLedger(item) for item in head.intents[-1].items]


class ConfirmsWithWhoeverIsThere(WriterMachine):
    """Below the ack quorum the bookies that are still there are enough."""

    __slots__ = ()

    def _acked(self, slots: int, run: int) -> None:
        """Count to Qa or to the bookies of the write set that are there, whichever is less."""
        with self._fewer():
            super()._acked(slots, run)

    def _release(self) -> None:
        with self._fewer():
            super()._release()

    @contextmanager
    def _fewer(self) -> Iterator[None]:
        shipped, there = self.rules, ~mask_of(self.change.absent)

        def enough(acked: int, mask: int, ack_quorum: int) -> bool:
            return shipped.confirms(acked, mask, min(ack_quorum, (mask & there).bit_count()))

        if self.below_quorum:
            self.window.rules = shipped.but(confirms=enough)
        yield
        self.window.rules = shipped


class RecoversFromTheLac(RecoveryMachine):
    """A recovery begins after the LAC, though entries up to there may lack copies."""

    __slots__ = ()

    def fence_answered(
        self, slot: int, answer: Answer, last_add_confirmed: int, lafr: int = NO_ENTRY
    ) -> None:
        """The LAC counts as the LAFR."""
        super().fence_answered(slot, answer, last_add_confirmed, max(lafr, last_add_confirmed))


class ReturnsWithoutTheUnconfirmed(WriterMachine):
    """A bookie that returns gets what is appended from then on only."""

    __slots__ = ()

    def _return_slot(self, slot: int) -> None:
        """What is unconfirmed is not sent again."""
        before = len(self.out)
        super()._return_slot(slot)
        self.out[before:] = [effect for effect in self.out[before:] if not isinstance(effect, SendRun)]

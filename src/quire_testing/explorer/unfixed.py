"""Machines and drivers with exactly one fix taken out, for the mutants that no single rule makes.

Source: docs/counterexamples.md, "All of them".
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from quire.core.answers import Answer
from quire.core.bookie_ledger import BookieLedgerMachine
from quire.core.effects import Confirmed, SendRun
from quire.core.ensemble_change import mask_of
from quire.core.ids import BookieId
from quire.core.ledger_metadata import LedgerMetadata
from quire.core.log_list import LogHead
from quire.core.log_trimming import TrimDeleteLedger, TrimMachine, TrimStatus
from quire.core.writer import WriterMachine
from quire_testing.explorer.bookies import BookieDriver, BookieState, Waiting
from quire_testing.explorer.readers import ReaderDriver
from quire_testing.explorer.snapshot import frozen


class UnorderedWriter(WriterMachine):
    """X17: the LAC is the highest confirmed entry, whatever lies below it."""

    __slots__ = ()

    def adds_acked(self, slot: int, bookie: Any, run: int) -> None:
        """Count the acknowledgement; a confirmed run anywhere confirms everything before it."""
        window = self.window
        if run not in window.runs or self.change.ensemble[slot] != bookie:
            return
        window._acked[run] |= 1 << slot
        if window.is_unconfirmed(run):
            return
        first, window.lac = window.lac + 1, window.runs[run].last
        for number in [number for number in window.runs if number <= run]:
            window.confirmed_length += window.runs.pop(number).payload_bytes
            del window._acked[number]
        window._head = run + 1
        self.out.append(Confirmed(first, window.lac))


class LostWithoutLimbo(BookieDriver):
    """D3: a bookie that may have lost entries and fences starts as if nothing had happened."""

    def after_loss(self, state: BookieState) -> BookieState:
        """Nothing is known of it."""
        return state


class FenceWithoutLimbo(BookieDriver):
    """D5: it asks for lost fences, and its responses about what it may have lost are conclusive."""

    def after_loss(self, state: BookieState) -> BookieState:
        """It knows that a fence may be lost, and looks for nothing else."""
        return super().after_loss(state)._replace(looking=False)


class LimboOfOpenLedgersOnly(BookieDriver):
    """The text of the reference: only ledgers whose record is not CLOSED are looked after at an unclean start."""

    def look_for_lost(self, state: BookieState, *, listed: bool, closed: bool) -> BookieState:
        """A closed ledger is taken for settled."""
        if closed:
            return state._replace(looking=False, asked=True)
        return super().look_for_lost(state, listed=listed, closed=closed)


class LooksBeforeItFences(BookieDriver):
    """X27: a fencing read finds its response first and sets the flag in a later step."""

    steps_apart = True

    def deliver(self, state: BookieState, client: int, request: Any, *, waits: bool) -> Any:
        """Look at once; the fence is half done until the next step of this bookie."""
        if request[0] == "read" and request[4] and not (state.facts and frozen(state.facts)[4]):
            waiting = (client, request, waits)
            replies = self.look(state, waiting, Answer.OK)
            journal = (*state.journal, ("half", tuple(replies), waiting))
            return state._replace(journal=journal), [], "looks, and will fence later"
        return super().deliver(state, client, request, waits=waits)

    def sync(self, state: BookieState) -> Any:
        """The half-done fence is carried out, with the response that was found before."""
        kind, replies, waiting = state.journal[0]
        if kind != "half":
            return super().sync(state)
        after, _, _ = super()._fence(state._replace(journal=state.journal[1:]), (*waiting[:2], False))
        return after, replies


class ChecksThenStores(BookieDriver):
    """X28: an add is checked in one step and stored in the next, and a fence may come between."""

    steps_apart = True

    def _store(
        self, state: BookieState, machine: BookieLedgerMachine, waiting: Waiting, *, refuse: bool
    ) -> Any:
        """Admit now, store later."""
        return state._replace(journal=(*state.journal, ("admitted", None, waiting))), [], "admits"

    def sync(self, state: BookieState) -> Any:
        """What was admitted is stored, whatever came between."""
        kind, _, waiting = state.journal[0]
        if kind != "admitted":
            return super().sync(state)
        machine = self.machine(state)
        fenced = machine.facts.fenced
        lac = waiting[1][-1]
        machine.add(key=b"k" * 20, token=0, digest_type=0, lac=lac, recovery=True)
        rest = state._replace(journal=state.journal[1:])
        after, _, _ = BookieDriver._store(
            self, rest, machine, waiting, refuse=fenced and waiting[1][0] == "add"
        )
        return after, []


class DeletesFirst(TrimMachine):
    """F-32: what is about to leave the list is deleted before that is written."""

    __slots__ = ()

    def _write(self, head: LogHead, status: TrimStatus) -> None:
        """Delete, then compare-and-swap."""
        super()._write(head, status)
        if status is TrimStatus.SWAPPING:
            self.out += [TrimDeleteLedger(item) for item in head.intents[-1].items]


class ReaderOfOldRecords(ReaderDriver):
    """What the bookies of the record say that the reader has stands, whatever the newest record says."""

    def trusts_old(self, asked: tuple[BookieId, ...], record: LedgerMetadata, entry_id: int) -> bool:
        """Always."""
        return True


class ConfirmsWithWhoeverIsThere(WriterMachine):
    """Below the ack quorum the bookies that are still there are enough."""

    __slots__ = ()

    def adds_acked(self, slot: int, bookie: Any, run: int) -> None:
        """Count to Qa or to the bookies of the write set that are there, whichever is less."""
        with self._fewer():
            super().adds_acked(slot, bookie, run)

    def _release(self) -> None:
        with self._fewer():
            super()._release()

    @contextmanager
    def _fewer(self) -> Iterator[None]:
        shipped, there = self.rules, ~mask_of(self.change.absent)

        def enough(acked: int, mask: int, ack_quorum: int) -> bool:
            return shipped.confirms(acked, mask, min(ack_quorum, (mask & there).bit_count()))

        if self.below_quorum:
            self.window.rules = replace(shipped, confirms=enough)
        yield
        self.window.rules = shipped


class ReturnsWithoutTheUnconfirmed(WriterMachine):
    """A bookie that returns gets what is appended from then on only."""

    __slots__ = ()

    def _return_slot(self, slot: int) -> None:
        """What is unconfirmed is not sent again."""
        before = len(self.out)
        super()._return_slot(slot)
        self.out[before:] = [effect for effect in self.out[before:] if not isinstance(effect, SendRun)]

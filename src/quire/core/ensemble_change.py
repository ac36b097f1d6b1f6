"""The ensemble change: a failed bookie's slot gets another bookie, or stays absent for a while.

One change at a time, in rounds. Each round takes everything that has failed so far, so several failures known
together are one change. From its start to its end responses are recorded and nothing is confirmed to callers, because
the new fragment starts at LAC + 1: an entry acknowledged meanwhile could end up in a fragment whose ensemble lacks it.

1. Ask for replacements of all failed and absent slots whose bookie is still in the record.
2. Those that get one: store the record with the new fragment by compare-and-swap. Those that get none: the slot is
   *absent*; the writer goes on while every write set can still reach its ack quorum.
3. A lost compare-and-swap: reread; not OPEN ends the writer, else redo where the failed bookie is still named. One with
an unknown outcome may still take effect while the version stands, so another one settles it first. 4. What failed
   meanwhile starts the next round. Else drop the acknowledgements of replaced bookies, send every pending run to the
   new ones with its first headers, and confirm to the callers.

When the slots that stay absent leave some write set without its ack quorum, the writer waits: for at most
`quorum_wait_ms` from then on, or from the first such loss since anything was confirmed. It is a writer with absent slots
like any other meanwhile; what is appended is kept, and nothing is confirmed that is not on Qa bookies.

An absent bookie returns through a change, or in its old place when it answers again: then it gets everything that
is unconfirmed, and what was confirmed without it is a hole for re-replication. A slot may be absent from the ledger's
first entry on: its bookie was away when the ledger was created.

Source: BookKeeper protocol, "Writing to the ledger", last paragraph; docs/decisions/004-absent-slots.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from quire.core.closing import Closing
from quire.core.effects import (
    ChooseReplacements,
    EnsembleChanged,
    LookForBookies,
    Problem,
    QuorumAwaited,
    SendRun,
    SlotAbsent,
    SlotReturned,
)
from quire.core.errors import LedgerClosedError, LedgerFencedError, MisuseError, QuorumLostError
from quire.core.ids import NO_ENTRY, BookieId
from quire.core.ledger_metadata import LedgerState
from quire.core.writer_state import LEGAL, Hole, Legality, Status, StoreRequest

LOOKS_IN_A_WAIT: Final = 10
"""Looks for bookies while the ack quorum is waited for, at least, if the shortest pause allows that."""


class EnsembleChange(Closing):
    """The verbs of an ensemble change."""

    __slots__ = ()

    def began_without(self, slots: Sequence[int], now_ms: int) -> None:
        """The ledger was created while the bookies of these slots were away: they are absent from its first entry on.

        Args:
            slots: at least one; `rules.may_create` allowed it.
            now_ms: the time, for the first look at them.

        Effects:
            SlotAbsent for each, SetTimer.

        Raises:
            MisuseError: something was appended, a slot is absent or has failed already, or the writer has ended.

        Source: docs/decisions/004-absent-slots.md.
        """
        known = self._absent.keys() | self._delayed.keys()
        size = len(self.ensemble)
        if (
            LEGAL["began_without"][self.status] is not Legality.ACTS
            or self.lap != NO_ENTRY
            or any(slot in known or not 0 <= slot < size for slot in slots)
        ):
            ledger_id = self.record.ledger_id
            msg = f"ledger {ledger_id} cannot begin without slots {list(slots)}: it is {self.status.value}, LAP {self.lap}"
            raise MisuseError(msg, ledger_id=ledger_id)
        for slot in slots:
            self._mark_absent(slot, now_ms)

    def replacements_chosen(
        self, chosen: Mapping[int, BookieId], now_ms: int, *, refused: Sequence[int] = ()
    ) -> None:
        """The response to ChooseReplacements: a bookie for each slot that can have one.

        Args:
            chosen: slot to bookie; slots that were asked for and are not in it become absent.
            now_ms: the time, for the next look at absent slots.
            refused: slots whose bookie accepts no connection from this client: they are not waited for.

        Effects:
            SlotAbsent for slots without a bookie; WriteMetadata, or the end of the change if none was found. When a
            write set cannot reach its ack quorum, QuorumAwaited, or Ended if the wait is over.

        Raises:
            MisuseError: a bookie was chosen that is in the ensemble, has failed or was chosen twice.
        """
        if self.status is not Status.CHANGING or self.asked is not StoreRequest.CHOICE:
            return
        wanted = self._wanted()
        self._check_choice(wanted, chosen)
        missing = [slot for slot in wanted if slot not in chosen]
        if self._loses_quorum(sum(1 << slot for slot in missing)):
            hopeless = self._loses_quorum(sum(1 << slot for slot in missing if slot in refused))
            if hopeless or not self._may_wait(now_ms):
                waited = self._quorum_until_ms is not None and not hopeless
                self._end(self._quorum_lost(missing, waited=waited), close=True)
                return
            self._wait_for_quorum(missing, now_ms)
        else:
            for slot in missing:
                self._mark_absent(slot, now_ms)
        unsettled = self._in_doubt is not None and not self.rules.may_go_on_after_unknown(
            self._in_doubt, self.version
        )
        if chosen:
            ensemble = list(self.record.last_fragment.ensemble)
            for slot, bookie in chosen.items():
                ensemble[slot] = bookie
            first = self.rules.new_fragment_start(self.lac, self.lap)
            self._propose(self.record.with_ensemble(first, ensemble))
        elif unsettled:
            self._propose(self.record)
        else:
            self._round_done()

    def bookies_found(self, returned: Sequence[int], now_ms: int, *, spare: bool) -> None:
        """The response to LookForBookies.

        Args:
            returned: absent slots whose own bookie answers again.
            now_ms: the time.
            spare: whether a bookie that is not in the ensemble could take a slot.

        Effects:
            With a spare a change begins. Else SlotReturned, and SendRun of what is unconfirmed, for each that is
            back. SetTimer while slots stay absent.
        """
        self._looking = False
        if self.status is Status.WRITING and self._absent:
            if spare:
                self._start_change()
            else:
                for slot in returned:
                    self._return_slot(slot)
        if self._absent and self.status in (Status.WRITING, Status.CHANGING):
            self._look_later(now_ms)
        self._quorum_is_back()

    # --- the rounds ------------------------------------------------------------------------------------------------

    def _start_change(self) -> None:
        """From here on nothing is confirmed to callers."""
        self.status = Status.CHANGING
        self._next_round()

    def _next_round(self) -> None:
        self._failing, self._delayed = self._failing | self._delayed, {}
        wanted = self._wanted()
        if not wanted:
            self._round_done()
            return
        self.asked = StoreRequest.CHOICE
        mask = sum(1 << slot for slot in wanted)
        failed = tuple(
            dict.fromkeys((*self._failing.values(), *(self.ensemble[slot] for slot in self._absent)))
        )
        ensemble = self.record.last_fragment.ensemble
        self.out.append(ChooseReplacements(tuple(wanted), ensemble, failed, self._loses_quorum(mask)))

    def _wanted(self) -> list[int]:
        """The failed and the absent slots whose bookie is still in the record."""
        named = self.record.last_fragment.ensemble
        return [
            slot
            for slot, bookie in enumerate(self.ensemble)
            if named[slot] == bookie and (slot in self._absent or self._failing.get(slot) == bookie)
        ]

    def _check_choice(self, wanted: Sequence[int], chosen: Mapping[int, BookieId]) -> None:
        taken = {*self.record.last_fragment.ensemble, *self._failing.values(), *self._delayed.values()}
        if not chosen.keys() <= set(wanted) or len({*chosen.values()} - taken) != len(chosen):
            msg = f"ledger {self.record.ledger_id}: {dict(chosen)} cannot replace slots {wanted} of {self.ensemble}"
            raise MisuseError(msg, ledger_id=self.record.ledger_id)

    def _round_done(self) -> None:
        """The record is as this round wanted it: the next round, or the end of the change."""
        if self._delayed:
            self._next_round()
        else:
            self._finish_change()

    def _finish_change(self) -> None:
        before, after = self.ensemble, self.record.last_fragment.ensemble
        changed = tuple(slot for slot in range(len(after)) if before[slot] != after[slot])
        for slot in changed:
            self._close_hole(slot)
        self.ensemble = after
        self._failing = {}
        self._in_doubt = None
        self._attempts = 0
        self._refresh_live()
        self.status = Status.WRITING
        self.asked = StoreRequest.NOTHING
        if changed:
            self._retry_ms = self.limits.retry_ms_min
            self.out.append(EnsembleChanged(self.record.last_fragment.first_entry, after, changed))
            self._resend(changed)
        self._advance()
        if self._quorum_until_ms is not None:
            self._quorum_is_back()
            self._arm()

    def _resend(self, changed: tuple[int, ...]) -> None:
        """Unset success, and every pending run to the new bookies, with the headers of its first sending."""
        kept = ~self.rules.acks_to_unset(sum(1 << slot for slot in changed))
        for number, run in self._runs.items():
            self._acked[number] &= kept
            slots = tuple(slot for slot in self._slots_of(run.masks) if slot in changed)
            if slots:
                self.out.append(SendRun(number, run.first, run.last, run.lac, slots))

    # --- what the store says to a changing writer --------------------------------------------------------------------

    def _change_read(self) -> None:
        """After a conflict or an unknown outcome: may this writer still change, and is there still something to change?

        Source: BookKeeper protocol, "Writing to the ledger": "If the state of the ledger is no longer OPEN, we send
        an error to the client for any outstanding writes. Otherwise, we try to replace the failed node again."
        """
        if self.rules.writer_may_change(self.record):
            self.asked = StoreRequest.NOTHING
            self._next_round()
            return
        ledger_id = self.record.ledger_id
        if self.record.state is LedgerState.IN_RECOVERY:
            msg = (
                f"ledger {ledger_id} is being recovered by another client; unacknowledged entries "
                "may or may not be in it"
            )
            self._end(Problem(LedgerFencedError, msg), close=False)
        else:
            msg = f"ledger {ledger_id} was closed at entry {self.record.last_entry} by another client"
            self._end(Problem(LedgerClosedError, msg), close=False)

    # --- absent slots --------------------------------------------------------------------------------------------------

    def _mark_absent(self, slot: int, now_ms: int) -> None:
        self._failing = {other: bookie for other, bookie in self._failing.items() if other != slot}
        if slot not in self._absent:
            self._absent = {**self._absent, slot: self.lac + 1}
            self.out.append(SlotAbsent(slot, self.ensemble[slot], self.lac + 1))
        self._refresh_live()
        self._look_later(now_ms)

    def _look_later(self, now_ms: int) -> None:
        if self._look_at_ms is None and not self._looking:
            self._look_at_ms = now_ms + self._retry_ms
            self._retry_ms = min(2 * self._retry_ms, self._longest_pause_ms())
            self._arm()

    def _longest_pause_ms(self) -> int:
        """Who waits for the quorum looks several times before the wait is over."""
        limits = self.limits
        if self._quorum_until_ms is None:
            return limits.retry_ms_max
        return min(limits.retry_ms_max, max(limits.retry_ms_min, limits.quorum_wait_ms // LOOKS_IN_A_WAIT))

    def _look(self) -> None:
        self._look_at_ms = None
        if self._absent:
            self._looking = True
            self.out.append(LookForBookies(self.absent, self.ensemble))

    def _return_slot(self, slot: int) -> None:
        """The slot's own bookie is back: it gets what is unconfirmed, so that every pending run is on its way there."""
        if slot not in self._absent:
            return
        self._close_hole(slot)
        self._retry_ms = self.limits.retry_ms_min
        self._refresh_live()
        self.out.append(SlotReturned(slot, self.ensemble[slot], self.lac + 1))
        for number, run in self._runs.items():
            if not self._acked[number] >> slot & 1 and slot in self._slots_of(run.masks):
                self.out.append(SendRun(number, run.first, run.last, run.lac, (slot,)))

    def _close_hole(self, slot: int) -> None:
        first = self._absent.get(slot)
        if first is None:
            return
        self._absent = {other: since for other, since in self._absent.items() if other != slot}
        if first <= self.lac:
            self._holes = (*self._holes, Hole(slot, self.ensemble[slot], first, self.lac))

    # --- below the ack quorum ------------------------------------------------------------------------------------------

    def _may_wait(self, now_ms: int) -> bool:
        """Whether the wait for the ack quorum is not over; it lasts from the loss on until something is confirmed."""
        until = self._quorum_until_ms
        return now_ms < until if until is not None else self.limits.quorum_wait_ms > 0

    def _wait_for_quorum(self, missing: Sequence[int], now_ms: int) -> None:
        """These slots become absent and leave some write set without its ack quorum; the first look at them is soon."""
        begins = self._quorum_until_ms is None
        if begins:
            self._quorum_until_ms = now_ms + self.limits.quorum_wait_ms
            self._retry_ms = self.limits.retry_ms_min
            self._look_at_ms = None
        for slot in missing:
            self._mark_absent(slot, now_ms)
        if begins:
            self.out.append(QuorumAwaited(tuple(missing)))

    def _quorum_is_back(self) -> None:
        """With nothing pending no confirmation will end the wait."""
        if self._quorum_until_ms is not None and not self._runs and not self.below_quorum:
            self._forget_wait()

    def _quorum_lost(self, missing: Sequence[int], *, waited: bool) -> Problem:
        bookies = ", ".join(self.ensemble[slot] for slot in missing)
        late = f", did not come back within {self.limits.quorum_wait_ms} ms," if waited else ""
        msg = (
            f"ledger {self.record.ledger_id} cannot reach its ack quorum of {self.record.ack_quorum}: "
            f"{bookies} failed{late} and no other bookie can replace them; start bookies and create a "
            "new ledger"
        )
        return Problem(QuorumLostError, msg)

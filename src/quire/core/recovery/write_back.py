"""What a recovery writes back: recovered entries to their whole write sets, and the acknowledgements of them.

Writes go to the ensemble of its own change (`ensemble_change.py`), which begins as the record's. The change stays local:
published before the end is, a second recoverer would count bookies that never were asked to store the entries.

It sees ids and lengths; payloads stay with the driver.

Source: BookKeeper protocol, "Closing a ledger as a reader": "replicating all entries it sees to the entire write quorum".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from quire.core.ids import NO_ENTRY, BookieId, EntryId, Slot
from quire.core.ledger.effects import FindReplacements, SendRecoveryAdds
from quire.core.ledger.ensemble_change import ChangeStatus, EnsembleChange, mask_of
from quire.core.ledger.metadata import LedgerMetadata
from quire.core.ledger.quorum import write_set, write_set_masks
from quire.core.recovery.rules import RecoveryRules


@dataclass(slots=True, eq=False)
class WriteBack:
    """Recovered entries on their way back. Others read its fields, and only it changes them.

    Attributes:
        record: the ledger's record.
        change: who is at which slot; it begins with the record's last ensemble.
        rules: the protocol's rules (`core/rules.py`).
        lac: every entry up to here is on its final quorum.
        lengths: the lengths in the headers of the entries after `lac`.
        changes: the ensembles that were used after the record's, by first entry.
        failed: the bookies that replace no other any more.
    """

    record: LedgerMetadata
    change: EnsembleChange
    rules: RecoveryRules
    lac: int = field(default=NO_ENTRY, init=False)
    changes: dict[int, tuple[BookieId, ...]] = field(default_factory=dict, init=False)
    _start: int = field(default=NO_ENTRY, init=False)
    _quorum: int = field(default=0, init=False)
    """How many of its write set must have an entry: Qa, or Qw where that is guaranteed."""
    _masks: tuple[int, ...] = field(default=(), init=False)
    _stripes: list[int] = field(default_factory=list, init=False)
    """The stripes that each slot is written back; by the rule all of its own."""
    _acked: list[int] = field(default_factory=list, init=False)
    """The acknowledgements of each entry after `lac`, as masks of slots."""
    lengths: list[int] = field(default_factory=list, init=False)
    failed: tuple[BookieId, ...] = field(default=(), init=False)

    @property
    def lap(self) -> int:
        """The last entry that was written back."""
        return self.lac + len(self._acked)

    def begin(self, start: int, quorum: int) -> None:
        """Nothing is written back; everything up to `start` is on its final quorum, which is so many."""
        assert self.lap == NO_ENTRY, "it begins once"
        self.lac = self._start = start
        record, size = self.record, self.record.ensemble_size
        self._quorum = quorum
        self._masks, self._stripes = write_set_masks(size, record.write_quorum), [0] * size
        sets = [write_set(stripe, size, record.write_quorum) for stripe in range(size)]
        for stripe, slots in enumerate(sets):
            for slot in slots:  # "to the entire write quorum for that entry"
                self._stripes[slot] |= 1 << stripe

    def add(self, lengths: Sequence[int]) -> list[SendRecoveryAdds]:
        """The next entries, with the lengths in their headers, to every slot that is sent to."""
        first = self.lap + 1
        self._acked += [0] * len(lengths)
        self.lengths += lengths
        return self._sends(self.change.live, first)

    def _sends(self, slots: Iterable[int], first: int) -> list[SendRecoveryAdds]:
        sends: list[SendRecoveryAdds] = []
        # In headers of recovery adds stands the LAC found at the start; it never advances.
        lac = EntryId(self._start)
        last, whole = self.lap, (1 << self.record.ensemble_size) - 1
        for slot in slots:
            period, stripes = self.record.ensemble_size, self._stripes[slot]
            if stripes == whole:
                period, stripes = 1, 1
            elif not any(
                stripes >> each % period & 1 for each in range(first, min(last, first + period) + 1)
            ):
                continue
            bookie, span = self.change.ensemble[slot], (EntryId(first), EntryId(last))
            sends.append(SendRecoveryAdds(Slot(slot), bookie, *span, period, stripes, lac))
        return sends

    def acked(self, slot: int, first: int, last: int) -> bool:
        """A slot has its own of these entries; returns as `confirm`."""
        period, stripes, bit, head = self.record.ensemble_size, self._stripes[slot], 1 << slot, self.lac + 1
        for entry_id in range(max(first, head), min(last, self.lap) + 1):
            if stripes >> entry_id % period & 1:
                self._acked[entry_id - head] |= bit
        return self.confirm()

    def confirm(self) -> bool:
        """Whether entries became confirmed, those up to `lac`."""
        confirms, quorum, masks = self.rules.confirms, self._quorum, self._masks
        head, done = self.lac + 1, 0
        for acked in self._acked:
            if not confirms(acked, masks[(head + done) % len(masks)], quorum):
                break
            done += 1
        del self._acked[:done], self.lengths[:done]
        self.lac += done
        return done > 0

    # --- bookies that fail -------------------------------------------------------------------------------------------

    def find(self) -> FindReplacements | None:
        """Bookies are wanted for the slots that failed; None while others are looked for, and if none did."""
        change = self.change
        if change.status is not ChangeStatus.IDLE or not change.delayed:
            return None
        slots = change.begin(change.ensemble)
        failed = [change.ensemble[slot] for slot in slots]
        self.failed += tuple(bookie for bookie in failed if bookie not in self.failed)
        return FindReplacements(tuple(Slot(slot) for slot in slots), change.ensemble, self.failed)

    def replace(self, chosen: Mapping[Slot, BookieId]) -> tuple[int, ...]:
        """The bookies for the slots of the last `find`; a slot left out becomes absent.

        Returns:
            The slots whose bookie is new: what is unconfirmed is theirs as well (`resend`).
        """
        change, ensemble = self.change, self.change.ensemble
        by_slot = {int(slot): bookie for slot, bookie in chosen.items()}
        for slot in change.missing(ensemble, by_slot):
            change.leave_out(slot, self.lac + 1)
        changed = change.finish(change.filled(ensemble, by_slot), self.lac)
        if changed:
            self.changes[self.first_of_change] = change.ensemble
            unset = mask_of(changed)
            self._acked = [acked & ~unset for acked in self._acked]
        return changed

    @property
    def first_of_change(self) -> int:
        """The first entry of a fragment that begins now."""
        return self.rules.new_fragment_start(self.lac, self.lap, self.lac)

    def resend(self, slots: Iterable[int]) -> list[SendRecoveryAdds]:
        """Everything that is unconfirmed, to these slots."""
        return self._sends(slots if self._acked else (), self.lac + 1)

    def can_still_confirm(self) -> bool:
        """Whether every entry on its way can still reach its final quorum."""
        can, quorum, masks = self.rules.can_still_confirm, self._quorum, self._masks
        absent, head = mask_of(self.change.absent), self.lac + 1
        return all(
            can(absent & ~acked, masks[(head + i) % len(masks)], quorum)
            for i, acked in enumerate(self._acked)
        )

    def come_back(self, *, clears_failures: bool) -> list[int]:
        """The bookies of absent slots are tried again; returns these slots, none while others are looked for.

        Args:
            clears_failures: bookies that have failed may be chosen again, all of them.
        """
        change = self.change
        if change.status is not ChangeStatus.IDLE:
            return []
        if clears_failures:
            self.failed = ()
        return [slot for slot in sorted(change.absent) if change.come_back(slot, NO_ENTRY)]

    def absent(self) -> tuple[BookieId, ...]:
        """The bookies that failed and have no successor."""
        return tuple(self.change.ensemble[slot] for slot in sorted(self.change.absent))

    def check(self) -> None:
        """Assert every invariant of the state. For tests and the explorer; drivers never call it."""
        self.change.check()
        assert len(self._acked) == len(self.lengths), "one mask for each unconfirmed entry"
        firsts = list(self.changes)
        assert firsts == sorted(firsts), "local changes start at ascending entries"
        assert all(self._start < first <= self.lap + 1 for first in firsts), (
            "changes hold what is written back"
        )

"""What ends a take-over where terms only fence: a no-op after the last recovered entry, which truncates.

An entry is named by its id alone there, so nothing that earlier writers left may stay on a bookie of the last fragment: a
reader would take it for what the new writer puts at that id. The *no-op* is an entry without a payload at the first id that is
not recoverable, in the take-over's own term. Every bookie of the ensemble acknowledges a truncation at its id, in that term,
before the record is opened; those of its write set get the no-op with it.

It sees ids and slots; payloads stay with the driver.

Source: Vanlightly's unbounded ledgers, "Terms for fencing only"; docs/protocol/streams.md, "Terms that only fence".
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from quire.core.ids import NO_ENTRY, BookieId, EntryId, Slot
from quire.core.ledger.effects import SendTruncation
from quire.core.ledger.ensemble_change import mask_of
from quire.core.ledger.quorum import write_set_masks
from quire.core.recovery.rules import RecoveryRules


@dataclass(slots=True, eq=False)
class FencingEnd:
    """The last step of a take-over where terms only fence: the no-op and its acknowledgements.

    Others read its fields, and only it changes them.

    Attributes:
        ensemble_size: E, like `write_quorum` Qw and `ack_quorum` Qa.
        rules: the protocol's rules (`core/rules.py`).
        entry_id: the no-op's, `NO_ENTRY` before it is sent.
    """

    ensemble_size: int
    write_quorum: int
    ack_quorum: int
    rules: RecoveryRules
    entry_id: int = field(default=NO_ENTRY, init=False)
    _acked: int = field(default=0, init=False)

    def begin(self, entry_id: int) -> None:
        """Everything below this id is recovered, and on its whole write sets."""
        assert self.entry_id == NO_ENTRY, "it begins once"
        self.entry_id = entry_id

    def sends(
        self, slots: Iterable[int], ensemble: tuple[BookieId, ...], last_add_confirmed: int
    ) -> list[SendTruncation]:
        """The truncation to each of these slots, with the no-op to those of its write set."""
        entry_id, lac, mask = EntryId(self.entry_id), EntryId(last_add_confirmed), self._mask
        return [
            SendTruncation(Slot(slot), ensemble[slot], entry_id, bool(mask >> slot & 1), lac)
            for slot in slots
        ]

    @property
    def under_way(self) -> bool:
        """Whether it is sent, and not acknowledged by all that must."""
        done = self.rules.truncation_is_done(self._acked, self.ensemble_size, self._mask, self.ack_quorum)
        return self.entry_id != NO_ENTRY and not done

    def acked(self, slot: int) -> bool:
        """A bookie has acknowledged it; returns whether all have that must."""
        self._acked |= 1 << slot
        return not self.under_way

    def replaced(self, slots: Iterable[int]) -> None:
        """The bookies of these slots are new, and have acknowledged nothing."""
        self._acked &= ~mask_of(slots)

    @property
    def _mask(self) -> int:
        masks = write_set_masks(self.ensemble_size, self.write_quorum)
        return masks[self.entry_id % len(masks)]

    def check(self) -> None:
        """Assert every invariant of the state. For tests and the explorer; drivers never call it."""
        assert self.entry_id != NO_ENTRY or not self._acked, "what was acknowledged was sent"
        assert not self._acked >> self.ensemble_size, "acknowledgements are of slots"

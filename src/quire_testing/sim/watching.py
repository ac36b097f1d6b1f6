"""What a world sees that no client gets: fences that cover, write sets that are full, records that may change.

The histories are judged by the responses of clients. Three invariants lie deeper and show defects long before a client is
harmed: I7 (a recovery that reads has durable fences that cover), the full write set after a recovery (W), and which changes of
a record are legal (M). A recovery's machine is the shipped one, looked at after each input.

Source: docs/protocol/README.md, "The ledger's record"; docs/counterexamples.md, "What must hold".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, Protocol

from quire.core.ids import BookieId
from quire.core.ledger.effects import SendRecoveryAdds, TakeOverEffect, WriteMetadata
from quire.core.ledger.metadata import LedgerMetadata, LedgerState
from quire.core.ledger.writer import WriterMachine
from quire.core.ledger.writer_state import WriterLimits
from quire.core.recovery.machine import RecoveryMachine, RecoveryStatus
from quire.core.transcript import record_text
from quire.wire.run import ids_in
from quire_testing.explorer.parts import repaired_only
from quire_testing.explorer.switches import Rules


class SituationWatch(Protocol):
    """The listener, which stands above."""

    def fence_covered(self, record: LedgerMetadata, ensemble: Sequence[BookieId]) -> None:
        """A recovery goes on to read: it takes the fence of this ensemble for covered."""

    def broken(self, what: str) -> None:
        """Something is wrong."""

    def saw(self, situation: str) -> None:
        """Something that must be seen now and then."""


WAITS, GOES_ON = "a writer waits for its ack quorum", "a writer has its ack quorum again"


class WatchedWriter(WriterMachine):
    """The shipped machine: does it ever wait for its ack quorum, and get it again?"""

    __slots__ = ("_watch",)

    def __init__(
        self,
        record: LedgerMetadata,
        version: int,
        rules: Rules,
        limits: WriterLimits,
        watch: SituationWatch,
        last: int,
        length: int,
    ) -> None:
        super().__init__(record, version, rules=rules, limits=limits, last=last, length=length)
        self._watch = watch

    def replacements_chosen(
        self, chosen: Mapping[int, BookieId], now_ms: int, *, refused: Sequence[int] = ()
    ) -> None:
        """See `WriterMachine`."""
        waited = self.below_quorum
        super().replacements_chosen(chosen, now_ms, refused=refused)
        if self.below_quorum and not waited:
            self._watch.saw(WAITS)

    def _acked(self, slots: int, run: int) -> None:
        waited = self.waits.quorum_until_ms is not None
        super()._acked(slots, run)
        if waited and self.waits.quorum_until_ms is None:
            self._watch.saw(GOES_ON)


class WatchedRecovery(RecoveryMachine):
    """The shipped machine, looked at after each input."""

    __slots__ = ("_sent", "_watch")

    def __init__(self, record: LedgerMetadata, version: int, rules: Rules, watch: SituationWatch) -> None:
        super().__init__(record, version, rules)
        self._watch = watch
        self._sent: dict[int, int] = {}

    def fence_answered(self, *args: Any) -> None:
        """See `RecoveryMachine`."""
        fencing = self.status is RecoveryStatus.FENCING
        super().fence_answered(*args)
        if fencing and self.status in {
            RecoveryStatus.READING,
            RecoveryStatus.MEASURING,
            RecoveryStatus.CLOSING,
        }:
            self._watch.fence_covered(self.record, self.end.ensemble)
        self._look()

    def read_answered(self, *args: Any) -> None:
        """See `RecoveryMachine`."""
        super().read_answered(*args)
        self._look()

    def waited(self) -> None:
        """See `RecoveryMachine`."""
        super().waited()
        self._look()

    def adds_answered(self, *args: Any) -> None:
        """See `RecoveryMachine`."""
        super().adds_answered(*args)
        self._look()

    def replacements_found(self, replacements: Mapping[Any, BookieId]) -> None:
        """See `RecoveryMachine`."""
        super().replacements_found(replacements)
        self._look()

    def _look(self) -> None:
        for effect in self.out:
            self._see(effect)

    def _see(self, effect: TakeOverEffect) -> None:
        if isinstance(effect, SendRecoveryAdds):
            for entry_id in ids_in(effect.first, effect.last, effect.period, effect.stripes):
                self._sent[entry_id] = self._sent.get(entry_id, 0) | 1 << effect.slot
        elif (
            isinstance(effect, WriteMetadata)
            and effect.record.state is LedgerState.CLOSED
            and not self.back.change.absent
        ):
            needed = self.record.write_quorum
            for entry_id, slots in self._sent.items():
                if slots.bit_count() != needed:
                    self._watch.broken(
                        f"W: ledger {self.record.ledger_id} is being closed, and entry {entry_id} was written back to "
                        f"{slots.bit_count()} of its write quorum of {needed}"
                    )
                    return


def illegal_change(before: LedgerMetadata, after: LedgerMetadata) -> str:
    """Why a record may not follow another; empty if it may."""
    name = f"M: ledger {after.ledger_id}"
    after = replace(after, custom=before.custom)  # notes of holes and of accepted losses, which come and go
    if before.state is LedgerState.CLOSED:
        same = after == before or repaired_only(before, after)
        return "" if same else f"{name} was closed at {before.last_entry} and is {record_text(after)}"
    if before.state is LedgerState.IN_RECOVERY:
        if after.state is LedgerState.OPEN:
            return f"{name} was in recovery and is open again"
        if after.state is LedgerState.IN_RECOVERY and not (after == before or repaired_only(before, after)):
            return f"{name} is in recovery and its fragments change"
    starts = [int(one.first_entry) for one in after.fragments]
    if starts[0] != 0 or any(one >= other for one, other in pairwise(starts)):
        return f"I6: ledger {after.ledger_id} has fragments from {starts}"
    return ""

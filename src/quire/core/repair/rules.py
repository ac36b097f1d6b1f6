"""The rules of repair and of auto-recovery.

Source: docs/protocol/repair.md; docs/protocol/audit.md.
"""

from __future__ import annotations

from quire.core.answers import Answer
from quire.core.ids import BookieId
from quire.core.ledger.metadata import LedgerMetadata, LedgerState
from quire.core.ledger.rules import LedgerRules


class RepairRules(LedgerRules):
    """The rules of repairs and auditors."""

    @staticmethod
    def fragment_is_decided(record: LedgerMetadata, index: int) -> bool:
        """Its end stands: the ledger is closed, or another fragment follows. No LAC is asked, which may be unknown."""
        return record.last_entry_of_fragment(index) is not None

    @staticmethod
    def may_publish(*, missing: int) -> bool:
        """A bookie comes into the record when it holds every one of its entries that there is, and never before."""
        return missing == 0

    @staticmethod
    def counts_as_missing(answer: Answer) -> bool:
        """Only a list that was sent, or a conclusive negative, says what a bookie lacks; silence says nothing."""
        return answer is Answer.OK or LedgerRules.counts_as_negative(answer)

    @staticmethod
    def is_lost(*, holders: int, silent: int) -> bool:
        """Every member of the write set responded, and none has the entry. A list from limbo counts: it is not there now."""
        return holders == 0 and silent == 0

    @staticmethod
    def copy_priority(copies: int, first: int) -> tuple[int, int]:
        """What has the fewest copies left is copied first, and of equals what comes first."""
        return copies, first

    @staticmethod
    def mark_may_end(record: LedgerMetadata, marked_through: int) -> bool:
        """A mark that reaches into an undecided fragment stays: when that is decided, nobody else knows what bookies lack of it."""
        return record.state is LedgerState.CLOSED or marked_through <= record.decided_through

    @staticmethod
    def is_gone(*, known: bool, registered: bool) -> bool:
        """A bookie that a record or a cookie names is away while it is not registered; a read-only one is there."""
        return known and not registered

    @staticmethod
    def seconds_to_add(elapsed_s: int, tick_s: int) -> int:
        """Who counts adds at most one tick a tick, whatever its clock says."""
        return min(max(elapsed_s, 0), tick_s)

    @staticmethod
    def copy_is_due(*, away_s: int, delay_s: int, copies_left: int, ack_quorum: int) -> bool:
        """A copy is due when the delay is over, or at once where fewer than Qa copies of a write set are left."""
        return away_s >= delay_s or copies_left < ack_quorum

    @staticmethod
    def may_recover_open(*, names_gone: bool, spare_s: int, grace_s: int, idle_wait_s: int) -> bool:
        """An open ledger is recovered where a living writer, an idle one too, would have put a spare in the lost bookie's place."""
        return names_gone and spare_s >= max(grace_s, 2 * idle_wait_s)

    @staticmethod
    def may_end_limbo(filled: LedgerMetadata, record: LedgerMetadata, bookie: BookieId) -> bool:
        """Not while a fragment whose end is undecided names the bookie: entries of it may be acknowledged and lost here.

        `record` was read after the filling, and must be the one that the bookie was filled from: what was decided between
        the two has not been copied to it.
        """
        decided = record.state is LedgerState.CLOSED or bookie not in record.last_fragment.ensemble
        same = record.state is filled.state and record.last_entry == filled.last_entry
        return decided and same and record.fragments == filled.fragments


RULES = RepairRules()

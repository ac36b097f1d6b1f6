"""The rules of recoveries and of take-overs.

Source: BookKeeper protocol; Vanlightly's guide; Vanlightly's unbounded ledgers.
"""

from __future__ import annotations

from quire.core.ledger import quorum
from quire.core.ledger.metadata import LedgerMetadata
from quire.core.ledger.rules import LedgerRules


class RecoveryRules(LedgerRules):
    """What recoveries and take-overs go by."""

    @staticmethod
    def negative_votes_needed(write_quorum: int, ack_quorum: int) -> int:
        """The guide: "Uncommitted = Quorum Coverage negative responses"."""
        return quorum.entry_coverage(write_quorum, ack_quorum)

    @staticmethod
    def recovery_start(highest_lac: int, last_fragment_first: int) -> int:
        """Recovery reads forward from here + 1: never below the last fragment."""
        return max(highest_lac, last_fragment_first - 1)

    @staticmethod
    def next_term(term: int) -> int:
        """The term "is incremented each time a client decides it should take over": every take-over has a term of its own."""
        return term + 1

    @staticmethod
    def is_own_take_over(record: LedgerMetadata, term: int, owner: int) -> bool:
        """A record is one's own take-over's only if it names its owner: another client may have asked for the same term."""
        return record.terms is not None and record.term == term and record.terms.owner == owner

    @staticmethod
    def counts_as_positive(origin: int, recovered: int) -> bool:
        """Where terms only fence, origin terms never fall: an entry of a lower one than the last recovered is none."""
        return origin >= recovered

    @staticmethod
    def votes_fall(lowest: int, recovered: int) -> bool:
        """Where terms only fence, votes for later entries are asked for again if the entry before makes some void.

        That is a vote which `counts_as_positive` would not have let pass.
        """
        return lowest < recovered

    @staticmethod
    def truncation_is_done(acked: int, ensemble_size: int, write_set_mask: int, ack_quorum: int) -> bool:
        """It is on every bookie: "this last entry is written to all bookies of the last fragment", so that none is left out.

        Args:
            acked: mask of the slots that have acknowledged it.
            ensemble_size: E.
            write_set_mask: the no-op's; mutants use it, and `ack_quorum`.
            ack_quorum: Qa.
        """
        return acked == (1 << ensemble_size) - 1


RULES = RecoveryRules()

"""The rules of a ledger's writers and readers, and of what it is made of: which the other packages of `core` need.

Source: BookKeeper protocol; Vanlightly's guide.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from enum import Enum

from quire.core.answers import NEGATIVES, Answer
from quire.core.ids import BookieId
from quire.core.ledger import quorum
from quire.core.ledger.guarantee import GUARANTEED
from quire.core.ledger.metadata import LedgerMetadata, LedgerState
from quire.core.ledger.terms import reach_of
from quire.core.rules import RuleSet


class CloseOutcome(Enum):
    """What a writer that lost its closing CAS does with the record that it rereads."""

    RETRY = "retry"
    SUCCESS = "success"
    FENCED = "fenced"
    SUPERSEDED = "superseded"
    CONFLICT = "conflict"


class AddOutcome(Enum):
    """What one bookie's response to an add means to the writer."""

    STORED = "stored"
    FENCED = "fenced"
    SUPERSEDED = "superseded"
    DELETED = "deleted"
    REUSED = "reused"
    REFUSED = "refused"
    RESEND = "resend"
    BOOKIE_FAILED = "bookie failed"


_ADD_OUTCOMES = {
    Answer.OK: AddOutcome.STORED,
    Answer.FENCED: AddOutcome.FENCED,
    Answer.INVALID_TERM: AddOutcome.SUPERSEDED,
    Answer.DELETED: AddOutcome.DELETED,
    Answer.WRONG_TOKEN: AddOutcome.REUSED,
    Answer.UNAUTHORISED: AddOutcome.REFUSED,
    Answer.BAD_REQUEST: AddOutcome.REFUSED,
    Answer.DAMAGED_IN_TRANSIT: AddOutcome.RESEND,
}


class LedgerRules(RuleSet):
    """What writers and readers of a ledger go by."""

    @staticmethod
    def add_outcome(answer: Answer) -> AddOutcome:
        """What ends the writer, what asks for one more try, and what is the failure of a bookie (every other response)."""
        return _ADD_OUTCOMES.get(answer, AddOutcome.BOOKIE_FAILED)

    @staticmethod
    def may_go_on_after_unknown(unknown_version: int, version: int) -> bool:
        """A write without a response may still take effect while the version stands: settle it before confirming."""
        return unknown_version != version

    @staticmethod
    def confirms(acked: int, write_set_mask: int, ack_quorum: int) -> bool:
        """Are there enough in this mask? "Once Qa bookies from the write quorum acknowledge the write"."""
        return (acked & write_set_mask).bit_count() >= ack_quorum

    @staticmethod
    def can_still_confirm(absent: int, write_set_mask: int, ack_quorum: int) -> bool:
        """A write set with these slots absent can still reach its ack quorum."""
        return (write_set_mask & ~absent).bit_count() >= ack_quorum

    @staticmethod
    def may_create(present: int, write_set_masks: Sequence[int], ack_quorum: int, min_present: int) -> bool:
        """A ledger may begin with absent slots while its stated minimum is there, and Qa of every write set.

        Args:
            present: mask of the slots whose bookie takes entries.
            write_set_masks: every write set that the ensemble has.
            ack_quorum: Qa.
            min_present: how many bookies of the ensemble must be there, whatever their slots.
        """
        return present.bit_count() >= min_present and all(
            LedgerRules.can_still_confirm(~present, mask, ack_quorum) for mask in write_set_masks
        )

    @staticmethod
    def new_fragment_start(lac: int, lap: int, lafr: int) -> int:
        """A new fragment begins at "the first message that has not been acknowledged to the client".

        With a guaranteed write quorum it begins at LAFR + 1, so that no other fragment has an entry that lacks copies; in
        other ledgers `lafr` is the LAC.
        """
        return lafr + 1

    @staticmethod
    def final_quorum(record: LedgerMetadata) -> int:
        """With a guaranteed write quorum an entry is final on its whole write set, in other ledgers on its ack quorum."""
        return record.write_quorum if GUARANTEED in record.custom else record.ack_quorum

    @staticmethod
    def may_replace(acked: int, replaced: int, write_set_mask: int, ack_quorum: int) -> bool:
        """An acknowledged entry moves with a change only if it keeps its ack quorum in the new ensemble.

        Args:
            acked: mask of the slots that have the entry.
            replaced: mask of the slots that get another bookie.
            write_set_mask: the entry's write set.
            ack_quorum: Qa.
        """
        return LedgerRules.confirms(acked & ~replaced, write_set_mask, ack_quorum)

    @staticmethod
    def writer_may_change(record: LedgerMetadata, term: int) -> bool:
        """Only OPEN: "if the state of the ledger is no longer OPEN, we send an error to the client"; and in its own term."""
        return record.state is LedgerState.OPEN and record.term == term

    @staticmethod
    def close_outcome(record: LedgerMetadata, last_confirmed: int, term: int) -> CloseOutcome:
        """The table of "Closing a ledger as a writer" for a record reread after a lost CAS."""
        if record.term != term and record.state is not LedgerState.CLOSED:
            return CloseOutcome.SUPERSEDED
        if record.state is LedgerState.OPEN:
            return CloseOutcome.RETRY
        if record.state is LedgerState.IN_RECOVERY:
            return CloseOutcome.FENCED
        return CloseOutcome.SUCCESS if record.last_entry == last_confirmed else CloseOutcome.CONFLICT

    @staticmethod
    def covers(known: int, ensemble_size: int, write_quorum: int, ack_quorum: int) -> bool:
        """Enough is "a response from at least (Qw-Qa)+1 bookies from each write quorum in the ensemble"."""
        return quorum.covers_exactly(known, ensemble_size, write_quorum, ack_quorum)

    @staticmethod
    def counts_as_known(answer: Answer) -> bool:
        """A slot is known to be fenced, and its LAC known, when it responded: with a LAC, or that it has nothing."""
        return answer is Answer.OK or answer in NEGATIVES

    @staticmethod
    def counts_as_negative(answer: Answer) -> bool:
        """Only a conclusive "not here" is a negative; a time-out, an error or "unknown" never is."""
        return answer in NEGATIVES

    @staticmethod
    def failed_read_stands(asked: Collection[BookieId], now: Collection[BookieId]) -> bool:
        """An entry could not be had only if all that were asked are where the newest record has it: it may have moved."""
        return set(asked) <= set(now)

    @staticmethod
    def may_use_lac(lac_term: int, record: LedgerMetadata) -> bool:
        """A LAC is used only with a record whose ranges reach the term of the writer that sent it.

        The record's own term is not enough: between the two compare-and-swaps of a take-over it is ahead of the ranges.
        """
        return lac_term <= reach_of(record.ranges)

    @staticmethod
    def copy_drops_others(origin: int, named: int) -> bool:
        """Where terms only fence, a bookie drops an entry of another origin term than the record's ranges name, and no other."""
        return origin != named

    @staticmethod
    def counts_as_listed(origin_term: int, named: int) -> bool:
        """A listed entry is the one that is meant only if it was written in the term that the record's ranges name at its id."""
        return origin_term == named


RULES = LedgerRules()

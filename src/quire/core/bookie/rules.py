"""The rules of a bookie: of its ledgers, its losses, its identity and what it may drop.

Source: BookKeeper protocol; Vanlightly's unbounded ledgers; docs/protocol/collection.md.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from quire.core.answers import Answer
from quire.core.bookie import boot
from quire.core.bookie.boot import BootState
from quire.core.ids import BookieId
from quire.core.ledger.metadata import LedgerMetadata, LedgerState
from quire.core.ledger.rules import LedgerRules


class DropProof(Enum):
    """What has to be known before a copy goes that the record does not give a bookie."""

    NONE = "none"
    """It stays: nothing proves that it is not the last one."""
    RECORD = "record"
    """That the record does not give it is enough."""
    MEMBERS = "members"
    """Each member of its write set has listed it."""


class RecordedKey(NamedTuple):
    """What the record of an unknown ledger says of its key: the first request for it has to fit.

    `key`: empty where the record holds none. `token`: of the ledger's creation; another ledger under its id has
    another. `term`: 0 for a ledger, a stream's; None where the record cannot be read.
    """

    key: bytes
    token: int
    term: int | None = 0


TERM_JUMP_MAX = 1 << 32
"""A bookie takes no term further above its own: each take-over adds 1."""


class BookieRules(LedgerRules):
    """The rules of a bookie."""

    @staticmethod
    def truncate_takes(origin: int, term: int) -> bool:
        """A truncate takes entries of earlier origin terms only: it may come again, late, when its own writer has moved on."""
        return origin < term

    @staticmethod
    def add_allowed(*, fenced: bool, recovery: bool) -> bool:
        """A fenced ledger takes recovery adds only."""
        return recovery or not fenced

    @staticmethod
    def lac_after_add(known: int, header_lac: int, *, recovery: bool) -> int:
        """A bookie's LAC only rises, and recovery adds do not raise it."""
        return known if recovery else max(known, header_lac)

    @staticmethod
    def term_answer(known: int, term: int, *, named: bool) -> Answer:
        """A bookie refuses a lower term than its own (another writer has taken over), and one that cannot be.

        `named`: the ledger's key or record is known, so without a term it is an ordinary ledger and takes none.
        """
        if term < known:
            return Answer.INVALID_TERM
        possible = term - known <= TERM_JUMP_MAX and not (named and term and not known)
        return Answer.OK if possible else Answer.BAD_REQUEST

    @staticmethod
    def negative_answer(*, limbo: bool, damaged: bool) -> Answer:
        """A bookie that may have lost the entry responds "unknown"."""
        return Answer.UNKNOWN if limbo or damaged else Answer.NO_ENTRY

    @staticmethod
    def judge_unknown(recorded: RecordedKey, key: bytes, token: int, term: int = 0) -> Answer:
        """The first request for a ledger must have its key, or any client could fence it; format 1 has no key to compare.

        A stream's must have a term, not below its record's; a ledger's has none.
        """
        if recorded.key and key != recorded.key:
            return Answer.UNAUTHORISED
        if token and recorded.token not in {0, token}:
            return Answer.WRONG_TOKEN
        if recorded.term is None:  # it is unknown what it is: a ledger goes on, a stream's term must be known
            return Answer.UNKNOWN if term else Answer.OK
        return BookieRules.term_answer(recorded.term, term, named=True)

    @staticmethod
    def without_record(*, trusted: bool) -> Answer:
        """An id without a record was deleted or never assigned: nothing may be kept of it. A store that went back proves neither."""
        return Answer.DELETED if trusted else Answer.UNKNOWN

    @staticmethod
    def start_enters_limbo(*, named: bool, nameless: bool) -> bool:
        """A start puts the ledgers in limbo that a loss names, and every ledger after a loss that names none."""
        return named or nameless

    @staticmethod
    def may_have_held(record: LedgerMetadata, bookie: BookieId) -> bool:
        """A bookie that lost its records may have had entries, and a fence, of every ledger that names it: a closed one as well."""
        return any(bookie in fragment.ensemble for fragment in record.fragments)

    @staticmethod
    def first_add_reads_record(*, in_limbo: bool, lost: bool, known: bool) -> bool:
        """After a loss the record is read before the first normal add to each ledger, however the ledger became known.

        `in_limbo`: the loss is known to concern this ledger; `lost`: some loss cannot be named, and may concern any.
        """
        return in_limbo or lost

    @staticmethod
    def record_settles_fence(record: LedgerMetadata, bookie: BookieId) -> bool:
        """No fence was lost if the record is still OPEN, as a recoverer "first updates the state to IN_RECOVERY".

        The bookie must be in the last fragment besides: no other one is written to. A stream's record has the highest term
        that any bookie can have received, whatever its state.
        """
        return record.term > 0 or (
            record.state is LedgerState.OPEN and bookie in record.last_fragment.ensemble
        )

    @staticmethod
    def ends_limbo(limbo_lsn: int, named: int) -> bool:
        """Only the limbo that was there when a repair began to copy entries back ends by it."""
        return named == limbo_lsn

    @staticmethod
    def fence_of_deleted(*, has_no_record: bool) -> Answer:
        """A fence that a tombstone refuses is not set: NO_LEDGER counts as one, so only what has no record gets it."""
        return Answer.NO_LEDGER if has_no_record else Answer.UNKNOWN

    @staticmethod
    def older_directory(stored: BootState | None, own: BootState) -> str | None:
        """A directory with a lower boot or LSN than the cluster knows of, or another marker, may lack what was acknowledged."""
        return boot.older_directory(stored, own)

    @staticmethod
    def pending_after_pause(apart_ms: int, pause_ms: int) -> bool:
        """A process that did not run for so long may have lost its session, and its identity to a copy of itself."""
        return apart_ms > pause_ms

    @staticmethod
    def store_went_back(*, own_chain: int, own: int, shown_chain: int, shown: int) -> bool:
        """A store with fewer passes than the bookie has made, or as many of another chain, is not that of its last pass.

        More passes are the bookie's own writes whose outcome never came; they begin a chain without evidence.
        """
        return shown < own or (shown == own and shown_chain != own_chain)

    @staticmethod
    def chain_proves(findings: int) -> bool:
        """A missing ledger was deleted if it was found before and after a write of the counter: in two passes."""
        return findings >= 2

    @staticmethod
    def tombstone_counts(*, tombstone_token: int, token: int) -> bool:
        """A tombstone is of the ledger whose token it names; ids that callers choose come again."""
        return tombstone_token == token != 0

    @staticmethod
    def look_allows_drop(*, record_there: bool, counter_is_own: bool) -> bool:
        """Only a look that finds no record, and the counter of this very pass, allows the drop."""
        return counter_is_own and not record_there

    @staticmethod
    def watermark_counts(age_ms: int, late_ms: int) -> bool:
        """A tombstone is needed until a pass so long ago that no add of its ledger comes later has seen it."""
        return age_ms >= late_ms

    @staticmethod
    def drop_covers(through: int, newest: int) -> bool:
        """What was written after the last finding is no part of the proof."""
        return newest <= through

    @staticmethod
    def drop_proof(*, above_end: bool, accepted_loss: bool) -> DropProof:
        """What no record names must be elsewhere first, unless it is above a closed end; an accepted loss stays."""
        if accepted_loss:
            return DropProof.NONE
        return DropProof.RECORD if above_end else DropProof.MEMBERS


RULES = BookieRules()

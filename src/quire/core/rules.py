"""The judgements of the protocol: each a line or two, with the sentence that it implements.

Machines are handed a `Rules` and call its fields; production hands them `RULES`, the one true set. A check run
replaces exactly one field (`dataclasses.replace`) to take exactly one fix out.

Source: BookKeeper protocol; Vanlightly's guide; BookKeeper ledgers to logs; Vanlightly's unbounded ledgers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from quire.core.answers import NEGATIVES, Answer
from quire.core.bookie import boot
from quire.core.bookie.boot import BootState
from quire.core.ids import NO_ENTRY, BookieId
from quire.core.ledger import quorum
from quire.core.ledger.guarantee import GUARANTEED
from quire.core.ledger.metadata import LedgerMetadata, LedgerState
from quire.core.ledger.terms import reach_of


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


class ExtraProof(Enum):
    """What has to be known before a copy goes that the record does not give a bookie."""

    NONE = "none"
    """It stays: nothing proves that it is not the last one."""
    RECORD = "record"
    """That the record does not give it is enough."""
    MEMBERS = "members"
    """Each member of its write set has listed it."""


class Introduction(NamedTuple):
    """What a bookie that does not know a ledger takes from its record.

    `key`: empty where the record holds none. `term`: 0 for a ledger, a stream's; None where the record cannot be read.
    """

    key: bytes
    token: int
    term: int | None = 0


TERM_JUMP_MAX = 1 << 32
"""A bookie takes no term further above its own: each take-over adds 1."""

# --- adds -------------------------------------------------------------------------------------------------------

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


def add_outcome(answer: Answer) -> AddOutcome:
    """What ends the writer, what asks for one more try, and what is the failure of a bookie (every other response)."""
    return _ADD_OUTCOMES.get(answer, AddOutcome.BOOKIE_FAILED)


def may_go_on_after_unknown(unknown_version: int, version: int) -> bool:
    """A write without a response may still take effect while the version stands: settle it before confirming."""
    return unknown_version != version


def confirms(acked: int, write_set_mask: int, ack_quorum: int) -> bool:
    """Are there enough in this mask? "Once Qa bookies from the write quorum acknowledge the write"."""
    return (acked & write_set_mask).bit_count() >= ack_quorum


def can_still_confirm(absent: int, write_set_mask: int, ack_quorum: int) -> bool:
    """A write set with these slots absent can still reach its ack quorum."""
    return (write_set_mask & ~absent).bit_count() >= ack_quorum


def left_counts_as_lost() -> bool:
    """That a registration is gone is advice: such a bookie may answer, and all are gone after an outage of the store."""
    return False


def may_create(present: int, write_set_masks: Sequence[int], ack_quorum: int, min_present: int) -> bool:
    """A ledger may begin with absent slots while its stated minimum is there, and Qa of every write set.

    Args:
        present: mask of the slots whose bookie takes entries.
        write_set_masks: every write set that the ensemble has.
        ack_quorum: Qa.
        min_present: how many bookies of the ensemble must be there, whatever their slots.
    """
    return present.bit_count() >= min_present and all(
        can_still_confirm(~present, mask, ack_quorum) for mask in write_set_masks
    )


def may_acknowledge_while_changing() -> bool:
    """Nothing is confirmed to callers while an ensemble change is in flight: the new fragment starts at LAC + 1."""
    return False


def new_fragment_start(lac: int, lap: int, lafr: int) -> int:  # noqa: ARG001 - mutants use the others
    """A new fragment begins at "the first message that has not been acknowledged to the client".

    With a guaranteed write quorum it begins at LAFR + 1, so that no other fragment has an entry that lacks copies; in
    other ledgers `lafr` is the LAC.
    """
    return lafr + 1


def final_quorum(record: LedgerMetadata) -> int:
    """With a guaranteed write quorum an entry is final on its whole write set, in other ledgers on its ack quorum."""
    return record.write_quorum if GUARANTEED in record.custom else record.ack_quorum


def lafr_advances_from(lafr: int, lac: int) -> int:  # noqa: ARG001 - a mutant uses the other
    """The LAFR is the last entry "fully replicated" in order: what is only acknowledged does not count."""
    return lafr


def may_replace(acked: int, replaced: int, write_set_mask: int, ack_quorum: int) -> bool:
    """An acknowledged entry moves with a change only if it keeps its ack quorum in the new ensemble.

    Args:
        acked: mask of the slots that have the entry.
        replaced: mask of the slots that get another bookie.
        write_set_mask: the entry's write set.
        ack_quorum: Qa.
    """
    return confirms(acked & ~replaced, write_set_mask, ack_quorum)


def acks_to_unset(changed_slots: int) -> int:
    """Acknowledgements of a replaced bookie do not count for its successor: drop them."""
    return changed_slots


def writer_may_change(record: LedgerMetadata, term: int) -> bool:
    """Only OPEN: "if the state of the ledger is no longer OPEN, we send an error to the client"; and in its own term."""
    return record.state is LedgerState.OPEN and record.term == term


def close_outcome(record: LedgerMetadata, last_confirmed: int, term: int) -> CloseOutcome:
    """The table of "Closing a ledger as a writer" for a record reread after a lost CAS."""
    if record.term != term and record.state is not LedgerState.CLOSED:
        return CloseOutcome.SUPERSEDED
    if record.state is LedgerState.OPEN:
        return CloseOutcome.RETRY
    if record.state is LedgerState.IN_RECOVERY:
        return CloseOutcome.FENCED
    return CloseOutcome.SUCCESS if record.last_entry == last_confirmed else CloseOutcome.CONFLICT


# --- recovery -----------------------------------------------------------------------------------------------------


def covers(known: int, ensemble_size: int, write_quorum: int, ack_quorum: int) -> bool:
    """Enough is "a response from at least (Qw-Qa)+1 bookies from each write quorum in the ensemble"."""
    return quorum.covers_exactly(known, ensemble_size, write_quorum, ack_quorum)


def counts_as_known(answer: Answer) -> bool:
    """A slot is known to be fenced, and its LAC known, when it responded: with a LAC, or that it has nothing."""
    return answer is Answer.OK or answer in NEGATIVES


def counts_as_negative(answer: Answer) -> bool:
    """Only a conclusive "not here" is a negative; a time-out, an error or "unknown" never is."""
    return answer in NEGATIVES


def failed_read_stands(asked: Collection[BookieId], now: Collection[BookieId]) -> bool:
    """An entry could not be had only if all that were asked are where the newest record has it: it may have moved."""
    return set(asked) <= set(now)


def negative_votes_needed(write_quorum: int, ack_quorum: int) -> int:
    """The guide: "Uncommitted = Quorum Coverage negative responses"."""
    return quorum.entry_coverage(write_quorum, ack_quorum)


def positive_votes_needed(write_quorum: int, ack_quorum: int) -> int:  # noqa: ARG001
    """One copy is enough: including an unacknowledged entry is harmless, dropping an acknowledged one is not."""
    return 1


def recovery_start(highest_lac: int, last_fragment_first: int) -> int:
    """Recovery reads forward from here + 1: never below the last fragment."""
    return max(highest_lac, last_fragment_first - 1)


def recovery_read_fences() -> bool:
    """A recovery read fences too, so what a bookie lacks it can no longer get."""
    return True


def recovery_header_lac(lac_at_start: int, lac_now: int) -> int:  # noqa: ARG001
    """Recovery adds carry the LAC found at the start; it never advances."""
    return lac_at_start


def recovery_reads_from_original_ensemble() -> bool:
    """Recovery reads go to the ensemble that the record named, not to replacements."""
    return True


def publish_change_during_recovery() -> bool:
    """A recovery's ensemble changes stay local until its close."""
    return False


def recovery_waits_for_its_adds() -> bool:
    """The close waits until every entry written back is confirmed."""
    return True


def write_back_set(write_set: Sequence[int], ack_quorum: int) -> Sequence[int]:  # noqa: ARG001
    """Recovery writes back "to the entire write quorum for that entry"."""
    return write_set


def recovery_end(last_recovered: int, highest_lac: int) -> int:  # noqa: ARG001
    """The end is what was read forward to, not the LAC that was reported."""
    return last_recovered


# --- streams ------------------------------------------------------------------------------------------------------


def next_term(term: int) -> int:
    """The term "is incremented each time a client decides it should take over": every take-over has a term of its own."""
    return term + 1


def is_own_take_over(record: LedgerMetadata, term: int, owner: int) -> bool:
    """A record is one's own take-over's only if it names its owner: another client may have asked for the same term."""
    return record.terms is not None and record.term == term and record.terms.owner == owner


def may_use_lac(lac_term: int, record: LedgerMetadata) -> bool:
    """A LAC is used only with a record whose ranges reach the term of the writer that sent it.

    The record's own term is not enough: between the two compare-and-swaps of a take-over it is ahead of the ranges.
    """
    return lac_term <= reach_of(record.ranges)


def counts_as_positive(origin: int, recovered: int) -> bool:
    """Where terms only fence, origin terms never fall: an entry of a lower one than what was recovered before it is dirty."""
    return origin >= recovered


def votes_fall(lowest: int, recovered: int) -> bool:
    """Where terms only fence, what was said of later entries is asked again if the one before them makes some of it dirty.

    That is a vote which `counts_as_positive` would not have let pass.
    """
    return lowest < recovered


def ends_with_truncation() -> bool:
    """Where terms only fence, a take-over ends with "a final truncate no-op entry as the last entry to be written back"."""
    return True


def joins_after_truncation() -> bool:
    """Where terms only fence, a bookie is named in a fragment once it has truncated there in this term: it may be back."""
    return True


def list_takes_term() -> bool:
    """Where terms only fence, a bookie takes the record's term before it lists: an old writer would change what it listed."""
    return True


def copy_drops_others(origin: int, named: int) -> bool:
    """Where terms only fence, a bookie drops an entry of another origin term than the record's ranges name, and no other."""
    return origin != named


def truncation_is_done(acked: int, ensemble_size: int, write_set_mask: int, ack_quorum: int) -> bool:  # noqa: ARG001
    """It is on every bookie: "this last entry is written to all bookies of the last fragment", so that none is left out.

    Args:
        acked: mask of the slots that have acknowledged it.
        ensemble_size: E.
        write_set_mask: the no-op's; mutants use it, and `ack_quorum`.
        ack_quorum: Qa.
    """
    return acked == (1 << ensemble_size) - 1


# --- bookie -------------------------------------------------------------------------------------------------------


def truncate_takes(origin: int, term: int) -> bool:
    """A truncate takes entries of earlier origin terms only: it may come again, late, when its own writer has gone on."""
    return origin < term


def add_allowed(*, fenced: bool, recovery: bool) -> bool:
    """A fenced ledger takes recovery adds only."""
    return recovery or not fenced


def acknowledges_once_persisted() -> bool:
    """A bookie acknowledges a run once it is durable: an acknowledged entry survives the crash of every bookie."""
    return True


def answer_waits_for_durable_fence() -> bool:
    """Every answer to a fencing request waits for its fence to be durable, a negative as well."""
    return True


def lac_after_add(known: int, header_lac: int, *, recovery: bool) -> int:
    """A bookie's LAC only rises, and recovery adds do not raise it."""
    return known if recovery else max(known, header_lac)


def term_answer(known: int, term: int, *, named: bool) -> Answer:
    """A bookie refuses a lower term than its own (another writer has taken over), and one that cannot be.

    `named`: the bookie knows what has this id, so without a term it is an ordinary ledger and takes none.
    """
    if term < known:
        return Answer.INVALID_TERM
    possible = term - known <= TERM_JUMP_MAX and not (named and term and not known)
    return Answer.OK if possible else Answer.BAD_REQUEST


def read_takes_term() -> bool:
    """A fencing read raises the bookie's term before it is answered; a bookie with a higher one refuses it."""
    return True


def doubt_hides_term() -> bool:
    """After a loss a bookie's term may be too low: it takes the record's before it accepts a request of a stream."""
    return True


def negative_answer(*, limbo: bool, damaged: bool) -> Answer:
    """A bookie that may have lost the entry responds "unknown"."""
    return Answer.UNKNOWN if limbo or damaged else Answer.NO_ENTRY


def first_word(introduction: Introduction, key: bytes, token: int, term: int = 0) -> Answer:
    """The first request for a ledger must have its key, or any client could fence it; format 1 has no key to compare.

    A stream's must have a term, not below its record's; a ledger's has none.
    """
    if introduction.key and key != introduction.key:
        return Answer.UNAUTHORISED
    if token and introduction.token not in {0, token}:
        return Answer.WRONG_TOKEN
    if introduction.term is None:  # it is unknown what it is: a ledger goes on, a stream's term must be known
        return Answer.UNKNOWN if term else Answer.OK
    return term_answer(introduction.term, term, named=True)


def without_record(*, trusted: bool) -> Answer:
    """An id without a record was deleted or never given: nothing may be kept of it. A store that went back proves neither."""
    return Answer.DELETED if trusted else Answer.UNKNOWN


def empty_is_a_loss(*, served: bool) -> bool:
    """A bookie that has served before and finds nothing on its disk has lost everything."""
    return served


def start_doubts(*, named: bool, nameless: bool) -> bool:
    """A start puts the ledgers in limbo that a loss names, and every ledger after a loss that has no name."""
    return named or nameless


def unknown_may_be_lost(*, searching: bool) -> bool:
    """A ledger that a bookie does not know was never there; until it has looked for what it may have lost, it cannot say."""
    return searching


def may_have_held(record: LedgerMetadata, bookie: BookieId) -> bool:
    """A bookie that lost its records may have had entries, and a fence, of every ledger that names it: a closed one as well."""
    return any(bookie in fragment.ensemble for fragment in record.fragments)


def first_add_after_loss(*, in_doubt: bool, lost: bool, known: bool) -> bool:  # noqa: ARG001 - a mutant uses the other
    """After a loss the record is read before the first normal add to each ledger, however the ledger became known.

    `in_doubt`: the loss is known to concern this ledger; `lost`: some loss cannot be named, and may concern any.
    """
    return in_doubt or lost


def record_settles_fence(record: LedgerMetadata, bookie: BookieId) -> bool:
    """No fence was lost if the record is still OPEN, as a recoverer "first updates the state to IN_RECOVERY".

    The bookie must be in the last fragment besides: no other one is written to. A stream's record has the highest term
    that any bookie can have heard of, whatever its state.
    """
    return record.term > 0 or (record.state is LedgerState.OPEN and bookie in record.last_fragment.ensemble)


def leaving_doubt_fences() -> bool:
    """What ends a doubt sets a fence that may have been lost, in the same record of the journal."""
    return True


def ends_doubt(doubt_lsn: int, named: int | None) -> bool:
    """Only the doubt that was there when the filling began ends by it (None: a client that cannot name one)."""
    return named is None or named == doubt_lsn


def may_end_doubt(filled: LedgerMetadata, record: LedgerMetadata, bookie: BookieId) -> bool:
    """Not while a fragment whose end is undecided names the bookie: entries of it may be acknowledged and lost here.

    `record` was read after the filling, and must be the one that the bookie was filled from: what was decided between
    the two has not been put back.
    """
    decided = record.state is LedgerState.CLOSED or bookie not in record.last_fragment.ensemble
    same = record.state is filled.state and record.last_entry == filled.last_entry
    return decided and same and record.fragments == filled.fragments


def deleted_refuses_adds() -> bool:
    """A tombstone keeps refusing adds, so a late add cannot bring a deleted ledger back."""
    return True


def fence_of_deleted(*, has_no_record: bool) -> Answer:
    """A fence that a tombstone refuses is not set: that there is no such ledger counts as one, and is said only of none."""
    return Answer.NO_LEDGER if has_no_record else Answer.UNKNOWN


# --- identity ---------------------------------------------------------------------------------------------------


def older_directory(stored: BootState | None, own: BootState) -> str | None:
    """A directory with a lower boot or LSN than the cluster knows of, or another marker, may lack what was acknowledged."""
    return boot.older_directory(stored, own)


def holds_after_pause(apart_ms: int, pause_ms: int) -> bool:
    """A process that did not run for so long may have lost its session, and its identity to a copy of itself."""
    return apart_ms > pause_ms


# --- collection ---------------------------------------------------------------------------------------------------


def store_went_back(*, own_chain: int, own: int, shown_chain: int, shown: int) -> bool:
    """A store with fewer passes than the bookie has made, or as many of another chain, is not that of its last pass.

    More passes are the bookie's own writes whose outcome never came; they begin a chain without evidence.
    """
    return shown < own or (shown == own and shown_chain != own_chain)


def chain_proves(findings: int) -> bool:
    """A missing ledger was deleted if it was found before and after a write of the counter: in two passes."""
    return findings >= 2


def tombstone_counts(*, tombstone_token: int, token: int) -> bool:
    """A tombstone is of the ledger whose token it names; ids that callers choose come again."""
    return tombstone_token == token != 0


def order_counts(*, was_told: bool) -> bool:
    """An operator's order covers what this bookie had reported before, not what was written since."""
    return was_told


def look_allows_drop(*, record_there: bool, counter_is_own: bool) -> bool:
    """Only a look that finds no record, and the counter of this very pass, allows the drop."""
    return counter_is_own and not record_there


def pass_covers(before: int, after: int) -> int:  # noqa: ARG001 - a mutant uses the other
    """What a pass finds covers what was written before it asked for its counter: a ledger made later may go with a backup."""
    return before


def watermark_counts(age_ms: int, late_ms: int) -> bool:
    """A tombstone is needed until a pass so long ago that no add of its ledger comes later has seen it."""
    return age_ms >= late_ms


def drop_covers(through: int, newest: int) -> bool:
    """What was written after the last finding is no part of the proof."""
    return newest <= through


def extra_proof(*, above_end: bool, accepted_loss: bool) -> ExtraProof:
    """What no record names has to be elsewhere first. Above a closed end nothing is of the ledger; of a loss none may be."""
    if accepted_loss:
        return ExtraProof.NONE
    return ExtraProof.RECORD if above_end else ExtraProof.MEMBERS


def extra_through(bound: int, now: int) -> int:  # noqa: ARG001 - a mutant uses the other
    """What was put since the first look was asked for is no extra, and ends the condemnation."""
    return bound


def condemned_before_last_look() -> bool:
    """Only a look that is asked for once no list has the extras allows the drop: who lists later does not count on them."""
    return True


# --- repair -------------------------------------------------------------------------------------------------------


def fragment_is_decided(record: LedgerMetadata, index: int) -> bool:
    """Its end stands: the ledger is closed, or another fragment follows. No LAC is asked, which may be unknown."""
    return record.last_entry_of_fragment(index) is not None


def may_touch(*, decided: bool) -> bool:
    """Only its writer, or a recovery, knows what an undecided fragment will hold: neither copies nor swaps there."""
    return decided


def may_publish(*, missing: int) -> bool:
    """A bookie comes into the record when it holds every entry of its share that there is, and never before."""
    return missing == 0


def counts_as_missing(answer: Answer) -> bool:
    """Only a list that was given, or a conclusive negative, says what a bookie lacks; silence says nothing."""
    return answer is Answer.OK or counts_as_negative(answer)


def counts_as_listed(origin_term: int, named: int) -> bool:
    """A listed entry is the one that is meant only if it was written in the term that the record's ranges name at its id."""
    return origin_term == named


def is_lost(*, holders: int, silent: int) -> bool:
    """Every member of the write set was heard, and none has the entry. A list from limbo counts: it is not there now."""
    return holders == 0 and silent == 0


def copy_priority(copies: int, first: int) -> tuple[int, int]:
    """What has the fewest copies left is copied first, and of equals what comes first."""
    return copies, first


# --- auto-recovery ------------------------------------------------------------------------------------------------


def is_gone(*, known: bool, registered: bool) -> bool:
    """A bookie that a record or a cookie names is gone while it is in neither list; a read-only one is there."""
    return known and not registered


def seconds_to_add(elapsed_s: int, tick_s: int) -> int:
    """Who counts adds at most one tick a tick, whatever its clock says."""
    return min(max(elapsed_s, 0), tick_s)


def copy_is_due(*, away_s: int, delay_s: int, copies_left: int, ack_quorum: int) -> bool:
    """A copy is due when the delay is over, or at once where fewer than Qa copies of a write set are left."""
    return away_s >= delay_s or copies_left < ack_quorum


def listing_concludes(*, complete: bool) -> bool:
    """A listing that failed, or is short, says nothing of what it does not show."""
    return complete


def may_recover_open(*, names_gone: bool, spare_s: int, grace_s: int, idle_wait_s: int) -> bool:
    """An open ledger is recovered where a living writer, an idle one too, would have put a spare in the place of who is gone."""
    return names_gone and spare_s >= max(grace_s, 2 * idle_wait_s)


# --- log ----------------------------------------------------------------------------------------------------------


def ledgers_to_fence(ledger_ids: Sequence[int], open_ids: Sequence[int]) -> list[int]:
    """The document: "fence the last 2 ledgers in the list"; and every ledger that the list calls open."""
    last_two = ledger_ids[-2:]
    return [ledger_id for ledger_id in ledger_ids if ledger_id in last_two or ledger_id in open_ids]


def may_roll(open_items: int) -> bool:
    """No second roll before the previous ledger is closed: fencing two would no longer be enough."""
    return open_items <= 1


def may_serve(*, list_written: bool) -> bool:
    """The document: "The node must not serve any writes until step 5 completes successfully"."""
    return list_written


def may_send_to_next(*, previous_confirmed: bool) -> bool:
    """The next ledger gets its first entry only after the former's last is confirmed."""
    return previous_confirmed


def unlisted_is_garbage(unlisted_ms: int, grace_ms: int) -> bool:
    """A leader lists what it has created within the grace time, or never."""
    return unlisted_ms >= grace_ms


def staged_is_garbage(*, log_gone: bool, replayed: bool, age_ms: int | None, grace_ms: int) -> bool:
    """What a sink staged is kept as long as its batch may be committed: not after another attempt's commit of it."""
    return log_gone or replayed or (age_ms is not None and age_ms >= grace_ms)


@dataclass(frozen=True, slots=True)
class Rules:
    """The set of judgements that a machine works by."""

    add_outcome: Callable[[Answer], AddOutcome] = add_outcome
    may_go_on_after_unknown: Callable[[int, int], bool] = may_go_on_after_unknown
    confirms: Callable[[int, int, int], bool] = confirms
    can_still_confirm: Callable[[int, int, int], bool] = can_still_confirm
    left_counts_as_lost: Callable[[], bool] = left_counts_as_lost
    may_create: Callable[[int, Sequence[int], int, int], bool] = may_create
    may_acknowledge_while_changing: Callable[[], bool] = may_acknowledge_while_changing
    new_fragment_start: Callable[[int, int, int], int] = new_fragment_start
    final_quorum: Callable[[LedgerMetadata], int] = final_quorum
    lafr_advances_from: Callable[[int, int], int] = lafr_advances_from
    may_replace: Callable[[int, int, int, int], bool] = may_replace
    acks_to_unset: Callable[[int], int] = acks_to_unset
    writer_may_change: Callable[[LedgerMetadata, int], bool] = writer_may_change
    close_outcome: Callable[[LedgerMetadata, int, int], CloseOutcome] = close_outcome
    covers: Callable[[int, int, int, int], bool] = covers
    counts_as_known: Callable[[Answer], bool] = counts_as_known
    counts_as_negative: Callable[[Answer], bool] = counts_as_negative
    negative_votes_needed: Callable[[int, int], int] = negative_votes_needed
    positive_votes_needed: Callable[[int, int], int] = positive_votes_needed
    recovery_start: Callable[[int, int], int] = recovery_start
    recovery_read_fences: Callable[[], bool] = recovery_read_fences
    recovery_header_lac: Callable[[int, int], int] = recovery_header_lac
    recovery_reads_from_original_ensemble: Callable[[], bool] = recovery_reads_from_original_ensemble
    publish_change_during_recovery: Callable[[], bool] = publish_change_during_recovery
    recovery_waits_for_its_adds: Callable[[], bool] = recovery_waits_for_its_adds
    write_back_set: Callable[[Sequence[int], int], Sequence[int]] = write_back_set
    recovery_end: Callable[[int, int], int] = recovery_end
    next_term: Callable[[int], int] = next_term
    is_own_take_over: Callable[[LedgerMetadata, int, int], bool] = is_own_take_over
    may_use_lac: Callable[[int, LedgerMetadata], bool] = may_use_lac
    counts_as_positive: Callable[[int, int], bool] = counts_as_positive
    votes_fall: Callable[[int, int], bool] = votes_fall
    ends_with_truncation: Callable[[], bool] = ends_with_truncation
    joins_after_truncation: Callable[[], bool] = joins_after_truncation
    list_takes_term: Callable[[], bool] = list_takes_term
    copy_drops_others: Callable[[int, int], bool] = copy_drops_others
    truncation_is_done: Callable[[int, int, int, int], bool] = truncation_is_done
    truncate_takes: Callable[[int, int], bool] = truncate_takes
    add_allowed: Callable[..., bool] = add_allowed
    acknowledges_once_persisted: Callable[[], bool] = acknowledges_once_persisted
    answer_waits_for_durable_fence: Callable[[], bool] = answer_waits_for_durable_fence
    lac_after_add: Callable[..., int] = lac_after_add
    term_answer: Callable[..., Answer] = term_answer
    read_takes_term: Callable[[], bool] = read_takes_term
    doubt_hides_term: Callable[[], bool] = doubt_hides_term
    negative_answer: Callable[..., Answer] = negative_answer
    first_word: Callable[..., Answer] = first_word
    without_record: Callable[..., Answer] = without_record
    empty_is_a_loss: Callable[..., bool] = empty_is_a_loss
    start_doubts: Callable[..., bool] = start_doubts
    unknown_may_be_lost: Callable[..., bool] = unknown_may_be_lost
    may_have_held: Callable[[LedgerMetadata, BookieId], bool] = may_have_held
    first_add_after_loss: Callable[..., bool] = first_add_after_loss
    record_settles_fence: Callable[[LedgerMetadata, BookieId], bool] = record_settles_fence
    leaving_doubt_fences: Callable[[], bool] = leaving_doubt_fences
    ends_doubt: Callable[[int, int | None], bool] = ends_doubt
    may_end_doubt: Callable[[LedgerMetadata, LedgerMetadata, BookieId], bool] = may_end_doubt
    deleted_refuses_adds: Callable[[], bool] = deleted_refuses_adds
    fence_of_deleted: Callable[..., Answer] = fence_of_deleted
    older_directory: Callable[[BootState | None, BootState], str | None] = older_directory
    holds_after_pause: Callable[[int, int], bool] = holds_after_pause
    store_went_back: Callable[..., bool] = store_went_back
    chain_proves: Callable[[int], bool] = chain_proves
    tombstone_counts: Callable[..., bool] = tombstone_counts
    order_counts: Callable[..., bool] = order_counts
    look_allows_drop: Callable[..., bool] = look_allows_drop
    pass_covers: Callable[[int, int], int] = pass_covers
    watermark_counts: Callable[[int, int], bool] = watermark_counts
    drop_covers: Callable[[int, int], bool] = drop_covers
    extra_proof: Callable[..., ExtraProof] = extra_proof
    extra_through: Callable[[int, int], int] = extra_through
    condemned_before_last_look: Callable[[], bool] = condemned_before_last_look
    fragment_is_decided: Callable[[LedgerMetadata, int], bool] = fragment_is_decided
    may_touch: Callable[..., bool] = may_touch
    may_publish: Callable[..., bool] = may_publish
    counts_as_missing: Callable[[Answer], bool] = counts_as_missing
    counts_as_listed: Callable[[int, int], bool] = counts_as_listed
    is_lost: Callable[..., bool] = is_lost
    copy_priority: Callable[[int, int], tuple[int, int]] = copy_priority
    is_gone: Callable[..., bool] = is_gone
    seconds_to_add: Callable[[int, int], int] = seconds_to_add
    copy_is_due: Callable[..., bool] = copy_is_due
    listing_concludes: Callable[..., bool] = listing_concludes
    may_recover_open: Callable[..., bool] = may_recover_open
    failed_read_stands: Callable[[Collection[BookieId], Collection[BookieId]], bool] = failed_read_stands
    ledgers_to_fence: Callable[[Sequence[int], Sequence[int]], list[int]] = ledgers_to_fence
    may_roll: Callable[[int], bool] = may_roll
    may_serve: Callable[..., bool] = may_serve
    may_send_to_next: Callable[..., bool] = may_send_to_next
    unlisted_is_garbage: Callable[[int, int], bool] = unlisted_is_garbage
    staged_is_garbage: Callable[..., bool] = staged_is_garbage
    no_entry: int = NO_ENTRY


RULES = Rules()

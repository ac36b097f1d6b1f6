"""The mutants of a ledger's writers, recoverers, readers and bookies.

Source: docs/counterexamples.md, "All of them"; docs/decisions/README.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from quire.core.answers import NEGATIVES, Answer
from quire.core.bookie.ledger import BookieLedgerMachine
from quire.core.bookie.limbo_decisions import LimboDecisions
from quire.core.ledger.metadata import LedgerMetadata, LedgerState
from quire.core.ledger.rules import AddOutcome, CloseOutcome
from quire.core.ledger.writer import RunWindow, WriterMachine
from quire.core.recovery.log_end_search import Votes
from quire.core.recovery.machine import RecoveryMachine
from quire.core.recovery.write_back import WriteBack
from quire_testing.explorer.bookies import BookieDriver
from quire_testing.explorer.configuration import Configuration
from quire_testing.explorer.mutant import Mutant, with_rules
from quire_testing.explorer.patches import Patch
from quire_testing.explorer.switches import RULES, SHIPPED
from quire_testing.explorer.unfixed import (
    LooksBeforeItFences,
    TakesWhatTheRecordTook,
    UnorderedWriter,
)

# --- the table ------------------------------------------------------------------------------------------------------

TWO = Configuration()
TWO_ONE = Configuration(ack_quorum=1)
THREE = Configuration(3, 3, 3, 2)
SPARE = Configuration(3, 2, 2, 2, timeouts=1)
SPARE_ONE = Configuration(3, 2, 2, 1, timeouts=1)

TWO_TWICE = Configuration(entries=2, recoverers=2)
BOTH_ON_ONE = (
    "writer: append 1",
    "b0: takes add 0..0 lac=-1 from writer",
    "writer: append 1",
    "b0: takes add 1..1 lac=-1 from writer",
)
"""Two entries have reached one bookie, and no acknowledgement has arrived."""


LATE_WRITER = Configuration(3, 2, 2, 1, entries=2, window=2, crashes=1, journal=False)
"""A bookie that lost its fence, and was replaced by the recovery, may still get an add of the old writer."""
ANNOUNCED = (
    "writer: append 1",
    "b0: takes add 0..0 lac=-1 from writer",
    "b1: takes add 0..0 lac=-1 from writer",
    "b0: syncs",
    "b0: syncs",
    "b1: syncs",
    "b1: syncs",
    "recoverer: starts with OPEN 0:[b0 b1]",
    "store: takes v0: IN_RECOVERY 0:[b0 b1] from recoverer",
    "recoverer: hears written v1",
)
"""An entry is on both bookies, and a recoverer has announced itself."""


def _timeout_is_negative(answer: Answer) -> bool:
    return answer in NEGATIVES or answer is Answer.TIMED_OUT


def _one_answer_less(known: int, ensemble_size: int, write_quorum: int, ack_quorum: int) -> bool:
    return any(
        RULES.covers(known | 1 << slot, ensemble_size, write_quorum, ack_quorum)
        for slot in range(ensemble_size)
    )


def _raised_by_every_add(known: int, header_lac: int, *, recovery: bool) -> int:
    return max(known, header_lac)


ADVANCING: Final = Patch(WriteBack._sends, "EntryId(self._start)", "EntryId(self.lac)")
"""D8 and recovery-adds-raise-lac are the two halves of one defect: the sender of such headers, and the reader that relies on them."""


def _fenced_is_a_failed_bookie(answer: Answer) -> AddOutcome:
    return AddOutcome.BOOKIE_FAILED if answer is Answer.FENCED else RULES.add_outcome(answer)


def _close_takes_any_end(record: LedgerMetadata, last_confirmed: int, term: int) -> CloseOutcome:
    outcome = RULES.close_outcome(record, last_confirmed, term)
    return CloseOutcome.SUCCESS if outcome is CloseOutcome.CONFLICT else outcome


def _below_the_minimum(present: int, masks: Sequence[int], ack_quorum: int, min_present: int) -> bool:
    return RULES.may_create(present, masks, ack_quorum, ack_quorum)


def _minimum_alone(present: int, masks: Sequence[int], ack_quorum: int, min_present: int) -> bool:
    return present.bit_count() >= min_present


CLOSES_AT_ONCE: Final = Patch(RecoveryMachine._go_on, "back.lac == end.lap", "True")
TO_THE_ACK_QUORUM: Final = Patch(
    WriteBack.begin, "for slot in slots:", "for slot in slots[: record.ack_quorum]:"
)
TELLS_WHILE_CHANGING: Final = Patch(WriterMachine._start_change, "self.window.pause()", "pass")

LEDGER_MUTANTS: Final[tuple[Mutant[Configuration], ...]] = (
    with_rules(
        "D1",
        "recovery reads do not fence",
        Configuration(breaks=1),
        "I1",
        Patch(RecoveryMachine._ask, "fence=True", "fence=False"),
    ),
    with_rules(
        "D2",
        "recovery starts at the LAC only",
        Configuration(3, 2, 2, 1, entries=2, timeouts=2),
        "I6",
        recovery_start=lambda highest_lac, last_fragment_first: highest_lac,
    ),
    with_rules(
        "D3",
        "no journal, and a bookie that lost everything starts as if nothing had happened",
        Configuration(crashes=1, journal=False),
        "I1",
        Patch(
            BookieDriver._start_after_loss,
            "state._replace(unnamed=True, looking=True)",
            "state._replace(unnamed=False, looking=False)",
        ),
    ),
    with_rules(
        "D4",
        "no journal: limbo, and normal adds are taken without asking whether a fence was lost",
        Configuration(crashes=1, journal=False, reruns=1),
        "I1",
        first_add_reads_record=lambda *, in_limbo, lost, known: False,
    ),
    with_rules(
        "D5",
        "no journal: fences are asked for, and what may be lost is denied",
        Configuration(crashes=1, journal=False),
        "I1",
        Patch(LimboDecisions.machine, "Limbo(self._lsn) if searching else None", "None"),
        Patch(LimboDecisions.of_unknown, "failing or searching", "failing"),
    ),
    with_rules(
        "limbo-of-open-only",
        "no journal: a bookie that looks for what it may have lost passes over closed ledgers",
        Configuration(recoverers=0, crashes=1, journal=False, closes=True, clears=1),
        "V",
        may_have_held=lambda record, bookie: (
            record.state is not LedgerState.CLOSED and RULES.may_have_held(record, bookie)
        ),
    ),
    with_rules(
        "limbo-by-record",
        "no journal: what may be lost is judged by the records of today, and only what they name is asked about",
        LATE_WRITER,
        "I1",
        begin=ANNOUNCED,
        first_add_reads_record=lambda *, in_limbo, lost, known: in_limbo,
    ),
    with_rules(
        "fence-by-any-record",
        "no journal: a record in any state shows that no fence was lost",
        Configuration(crashes=1, journal=False),
        "I1",
        record_settles_fence=lambda record, bookie: bookie in record.last_fragment.ensemble,
    ),
    with_rules(
        "limbo-unfenced",
        "limbo is cleared without a fence, and the old writer lives",
        Configuration(crashes=1, journal=False, named=True, clears=1),
        "I1",
        Patch(BookieLedgerMachine.clear_limbo, "not self.fence_known and not facts.fenced", "False"),
    ),
    with_rules(
        "limbo-open",
        "limbo of a ledger is cleared while its last fragment is undecided",
        Configuration(crashes=1, journal=False, clears=1),
        "I1",
        may_end_limbo=lambda filled, record, bookie: True,
    ),
    with_rules(
        "limbo-unfilled",
        "limbo is cleared although more was decided since the bookie was filled",
        Configuration(recoverers=0, crashes=1, journal=False, closes=True, named=True, clears=1),
        "V",
        may_end_limbo=lambda filled, record, bookie: RULES.may_end_limbo(record, record, bookie),
    ),
    with_rules(
        "limbo-stale",
        "a stale CLEAR_LIMBO counts: the limbo of one loss ends with that of the one before",
        Configuration(recoverers=0, crashes=2, journal=False, closes=True, named=True, clears=1),
        "V",
        ends_limbo=lambda limbo_lsn, named: True,
    ),
    with_rules(
        "acknowledges_once_persisted",
        "a bookie acknowledges a run before it is durable",
        Configuration(crashes=1),
        "I2",
        Patch(
            BookieLedgerMachine.add,
            "_STORED._replace(facts=self._to_save()) if self._unsaved else _STORED",
            "_STORED._replace(facts=self._to_save() if self._unsaved else None, persisted=False)",
        ),
    ),
    with_rules(
        "D7",
        "a negative answer to a fencing read leaves before the fence is durable",
        Configuration(crashes=1),
        "I1",
        Patch(BookieLedgerMachine._once_durable, "persisted=True", "persisted=False"),
    ),
    with_rules(
        "D8",
        "recovery adds carry an advancing LAC, and bookies take it",
        TWO_TWICE,
        "I10",
        ADVANCING,
        begin=BOTH_ON_ONE,
        lac_after_add=_raised_by_every_add,
    ),
    with_rules(
        "X1",
        "acknowledged at Qa - 1",
        TWO,
        "I2",
        confirms=lambda acked, mask, ack_quorum: (acked & mask).bit_count() >= ack_quorum - 1,
    ),
    with_rules(
        "X2",
        "Qw - Qa negatives decide",
        TWO_ONE,
        "I1",
        negative_votes_needed=lambda write_quorum, ack_quorum: write_quorum - ack_quorum,
    ),
    with_rules("X3", "the fence is covered with one answer too few", THREE, "I7", covers=_one_answer_less),
    with_rules(
        "X4",
        "the ledger is closed at the LAC that was received",
        TWO_ONE,
        "I1",
        Patch(RecoveryMachine._close, "self.end.lap", "self.end.start"),
    ),
    with_rules(
        "X5",
        "a time-out counts as a negative",
        Configuration(timeouts=1),
        "I1",
        counts_as_negative=_timeout_is_negative,
    ),
    with_rules(
        "X6",
        "a fenced bookie takes normal adds",
        TWO,
        "I1",
        add_allowed=lambda *, fenced, recovery: True,
    ),
    with_rules(
        "X7",
        "recovery closes without waiting for its adds",
        Configuration(window=2),
        "I3",
        CLOSES_AT_ONCE,
    ),
    with_rules(
        "X8",
        "recovery adds go to Qa of the write set only",
        THREE,
        "W",
        TO_THE_ACK_QUORUM,
        names_slots=True,
    ),
    with_rules(
        "X9",
        "a new fragment starts at LAP + 1",
        SPARE,
        "I2",
        new_fragment_start=lambda lac, lap, lafr: lap + 1,
    ),
    with_rules(
        "X10",
        "a new fragment starts at the LAC",
        replace(SPARE, entries=2),
        "I2",
        new_fragment_start=lambda lac, lap, lafr: max(0, lac),
    ),
    with_rules(
        "X11",
        "success is not unset for a replaced bookie",
        SPARE,
        "I2",
        Patch(RunWindow.unset, "kept = ~changed", "kept = ~0"),
        Patch(WriteBack.replace, "unset = mask_of(changed)", "unset = 0"),
    ),
    with_rules(
        "X12",
        "acknowledged while a change is in flight",
        replace(SPARE, entries=2),
        "I2",
        TELLS_WHILE_CHANGING,
    ),
    with_rules(
        "X13",
        "an ensemble change does not look at the state that it rereads",
        SPARE_ONE,
        "M",
        writer_may_change=lambda record, term: True,
    ),
    with_rules(
        "X14",
        "a recovery publishes its ensemble changes at once",
        SPARE_ONE,
        "I2",
        Patch(
            RecoveryMachine.replacements_found,
            "    self.out += back.resend(changed)",
            """    if changed:
        back.changes.clear()
        record = self.record.with_ensemble(back.first_of_change, back.change.ensemble)
        self.out.append(WriteMetadata(record, self._version))
    self.out += back.resend(changed)""",
        ),
    ),
    with_rules(
        "X15",
        "recovery reads from replacements",
        replace(SPARE_ONE, entries=2),
        "I1",
        Patch(RecoveryMachine._ask, "ensemble = end.ensemble", "ensemble = self.back.change.ensemble"),
        begin=BOTH_ON_ONE,
    ),
    Mutant(
        "X16",
        "a writer closes without a compare-and-swap",
        replace(SHIPPED, blind_closes=True),
        Configuration(ack_quorum=1, closes=True),
        "I4",
    ),
    Mutant(
        "X17",
        "acknowledged out of order",
        replace(SHIPPED, writer=UnorderedWriter),
        Configuration(3, 3, 2, 1, entries=2),
        "I2",
    ),
    with_rules(
        "X18",
        "a fenced bookie refuses recovery adds",
        TWO,
        "F1",
        add_allowed=lambda *, fenced, recovery: not fenced,
    ),
    Mutant(
        "X27",
        "a fencing read looks up the entry before it sets the flag",
        replace(SHIPPED, bookie=LooksBeforeItFences),
        Configuration(breaks=1, slow_disks=True),
        "I1",
    ),
    Mutant(
        "X28",
        "add and fence are not serialised: an add that waited for its record passes a fence that came meanwhile",
        replace(SHIPPED, bookie=TakesWhatTheRecordTook),
        Configuration(entries=2, crashes=1, journal=False),
        "I9",
    ),
    with_rules(
        "X29",
        "a corrupt replica answers that it has no such entry",
        Configuration(damages=1),
        "I1",
        negative_answer=lambda *, limbo, damaged: Answer.UNKNOWN if limbo else Answer.NO_ENTRY,
    ),
    with_rules(
        "X30",
        "a late add brings a deleted ledger back",
        Configuration(deletions=1),
        "I9",
        Patch(BookieLedgerMachine._admit, "if facts.deleted_until_ms:", "if False:"),
    ),
    with_rules(
        "recovery-adds-raise-lac",
        "recovery adds raise a bookie's LAC, and a Java recoverer's headers carry an advancing one",
        TWO_TWICE,
        "I10",
        ADVANCING,
        begin=BOTH_ON_ONE,
        lac_after_add=_raised_by_every_add,
    ),
    with_rules(
        "absent-below-quorum",
        "a writer goes on when absent slots leave no ack quorum",
        Configuration(timeouts=1),
        "F1",
        can_still_confirm=lambda absent, mask, ack_quorum: True,
    ),
    with_rules(
        "add_outcome",
        "a refusal for the fence counts as a failure of that bookie only",
        TWO_ONE,
        "F3",
        add_outcome=_fenced_is_a_failed_bookie,
    ),
    with_rules(
        "below-minimum",
        "created below the minimum: a ledger begins with fewer bookies there than were asked for",
        Configuration(3, 3, 3, 2, away=1, min_present=3),
        "C",
        may_create=_below_the_minimum,
    ),
    with_rules(
        "may_create",
        "a ledger begins with enough bookies there, and too few of some write set",
        Configuration(3, 3, 2, 2, away=1),
        "C",
        may_create=_minimum_alone,
    ),
    with_rules(
        "may_go_on_after_unknown",
        "a compare-and-swap of unknown outcome is not settled before callers get the result",
        Configuration(3, 2, 2, 1, entries=1, timeouts=1, lost_swaps=1, absent=True),
        "I2",
        may_go_on_after_unknown=lambda unknown_version, version: True,
    ),
    with_rules(
        "close_outcome",
        "a writer takes any closed end for its own",
        Configuration(ack_quorum=1, closes=True),
        "I12",
        close_outcome=_close_takes_any_end,
    ),
    with_rules(
        "counts_as_known",
        "any answer, a time-out too, counts as fenced",
        Configuration(timeouts=1, ack_quorum=1),
        "I7",
        counts_as_known=lambda answer: True,
    ),
    with_rules(
        "positive_votes_needed",
        "an entry counts as recoverable without a copy",
        TWO,
        "P",
        Patch(Votes.found_after, "positive[i] & masks[(base + i) % len(masks)]", "True"),
    ),
)
"""In the order in which docs/counterexamples.md shows them."""

READER_MUTANTS: Final[tuple[Mutant[Configuration], ...]] = (
    with_rules(
        "reader-record",
        "a reader believes the bookies of a record that it read long ago",
        Configuration(3, 2, 2, 1, timeouts=1, breaks=1, explicit_lac=True, recoverers=0, readers=1),
        "R",
        failed_read_stands=lambda asked, now: True,
    ),
    with_rules(
        "reader-timeout",
        "a reader takes a time-out for a bookie's word that an entry does not exist",
        Configuration(ack_quorum=1, timeouts=1, explicit_lac=True, recoverers=0, readers=1),
        "R",
        counts_as_negative=_timeout_is_negative,
    ),
    with_rules(
        "reader-damage",
        "a reader gets the answer that an entry does not exist where its copy has rotted",
        Configuration(ack_quorum=1, damages=1, explicit_lac=True, recoverers=0, readers=1),
        "R",
        negative_answer=lambda *, limbo, damaged: Answer.UNKNOWN if limbo else Answer.NO_ENTRY,
    ),
)
"""What readers get; neither walks nor whole programs are made with them."""

LOSS_MUTANTS: Final[tuple[Mutant[Configuration], ...]] = (
    with_rules(
        "asked-of-unknown-only",
        "no journal: the record is read before the first add to a ledger that the bookie does not know, not to any",
        replace(LATE_WRITER, explicit_lac=True),
        "I1",
        begin=ANNOUNCED,
        first_add_reads_record=lambda *, in_limbo, lost, known: in_limbo or (lost and not known),
    ),
    with_rules(
        "start-without-limbo",
        "no journal: a start passes over what it knows to be lost",
        Configuration(crashes=1, journal=False, named=True),
        "I1",
        start_enters_limbo=lambda *, named, nameless: False,
    ),
)
"""Not replayed by programs (`quire_testing.replay`): theirs tell a LAC some time after it rose, by a timer, and a test names
what their loss concerns, not a torn group."""

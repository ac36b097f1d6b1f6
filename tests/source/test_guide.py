"""Each test cites the sentence of the guide that it checks.

Source: Vanlightly's guide.
"""

from __future__ import annotations

from itertools import combinations, product

import pytest

from quire.core.answers import NEGATIVES, Answer
from quire.core.ids import LedgerId
from quire.core.ledger.effects import (
    LacFound,
    ReadDone,
    ReadFailed,
    RecoveryInconclusive,
    SendLacRead,
    SendRead,
    SendRecoveryRead,
    WaitForAnswers,
    WriteMetadata,
)
from quire.core.ledger.metadata import DigestType, LedgerState, new_ledger
from quire.core.ledger.quorum import covers_exactly, entry_coverage, write_set
from quire.core.ledger.reader import LacMachine, ReadMachine
from quire.core.recovery.machine import RecoveryMachine

NAMES = ("b1", "b2", "b3")
TRIPLES = [(E, Qw, Qa) for E in range(1, 6) for Qw in range(1, E + 1) for Qa in range(1, Qw + 1)]


def recovery(lacs: dict[int, int]) -> RecoveryMachine:
    record = new_ledger(
        LedgerId(1), NAMES, write_quorum=3, ack_quorum=2, digest_type=DigestType.CRC32C, password=b""
    )
    machine = RecoveryMachine(record.in_recovery(), 1)
    machine.recover()
    for slot, lac in lacs.items():
        machine.fence_answered(slot, Answer.OK, lac)
    return machine


@pytest.mark.parametrize("quorums", TRIPLES)
def test_write_set_coverage_meets_every_ack_quorum(quorums) -> None:
    """ "A given property is satisfied by at least one bookie from every possible ack quorum within the cohort." """
    E, Qw, Qa = quorums
    cohort = write_set(0, E, Qw)
    for having in combinations(cohort, entry_coverage(Qw, Qa)):
        assert all(set(having) & set(ack_quorum) for ack_quorum in combinations(cohort, Qa))


@pytest.mark.parametrize("quorums", TRIPLES)
def test_ensemble_coverage_leaves_no_ack_quorum(quorums) -> None:
    """ "There exists no ack quorum of bookies that do not satisfy the property within the cohort." """
    E, Qw, Qa = quorums
    for known in range(1 << E):
        open_ack_quorum = any(
            sum(not known >> slot & 1 for slot in write_set(start, E, Qw)) >= Qa for start in range(E)
        )
        assert covers_exactly(known, E, Qw, Qa) == (not open_ack_quorum)
        if known.bit_count() >= E - Qa + 1:
            assert covers_exactly(known, E, Qw, Qa), "EC = (E - AQ) + 1 is sufficient"


def test_a_regular_read_asks_one_bookie() -> None:
    """ "Unlike writes, a regular read can be served by a single bookie." """
    machine = ReadMachine(0, 9, NAMES, 3)
    machine.read(0)
    assert machine.out == [SendRead(0, "b1", 0, 9)]
    machine.answered(0, Answer.OK, range(10), 9, [], 0)
    assert machine.out[1:] == [ReadDone()]


@pytest.mark.parametrize("answer", sorted(set(Answer) - {Answer.OK}))
def test_a_failed_read_goes_to_another_bookie(answer) -> None:
    """ "If a read fails then the client can simply send the read to another bookie in the ensemble." """
    machine = ReadMachine(4, 4, NAMES, 3)
    machine.read(0)
    machine.answered(0, answer, [], -1, [], 0)
    assert machine.out[1:] == [SendRead(1, "b2", 4, 4)]


@pytest.mark.parametrize(
    "answers", list(product([Answer.NO_ENTRY, Answer.NO_LEDGER, Answer.TIMED_OUT], repeat=3))
)
def test_an_entry_is_missing_only_when_every_bookie_denies_it(answers) -> None:
    """ "If a read fails then the client can simply send the read to another bookie …": and when none is left, only
    conclusive answers make it certain that there is no such entry."""
    machine = ReadMachine(4, 4, NAMES, 3)
    machine.read(0)
    for slot, answer in enumerate(answers):
        machine.answered(slot, answer, [], -1, [], 0)
    (failed,) = [effect for effect in machine.out if isinstance(effect, ReadFailed)]
    assert failed.conclusive == all(answer in NEGATIVES for answer in answers)


def test_a_quorum_lac_read_is_the_highest_of_a_covering_set() -> None:
    """ "EC is required when we need a guarantee across an entire fragment." """
    machine = LacMachine(NAMES, 3, 2)
    machine.read()
    assert machine.out == [SendLacRead(slot, bookie, fence=False) for slot, bookie in enumerate(NAMES)]
    machine.out.clear()
    machine.answered(2, Answer.OK, 4)
    assert not machine.out
    machine.answered(0, Answer.OK, 7)
    assert machine.out == [LacFound(7)]


def test_fencing_requests_are_lac_reads_with_the_flag() -> None:
    """ "The fencing requests are in fact Ensemble Coverage LAC reads with the fencing flag set." """
    machine = recovery({})
    assert all(isinstance(effect, SendLacRead) and effect.fence for effect in machine.out)
    assert len(machine.out) == 3


def test_recovery_reads_start_behind_the_lac_and_fence() -> None:
    """ "Next the client starts sending recovery reads starting at the entry id of LAC + 1." """
    reads = [effect for effect in recovery({0: 5, 1: 3}).out if isinstance(effect, SendRecoveryRead)]
    assert reads
    assert all(read.first == 6 and read.fence for read in reads)


def test_uncommitted_needs_coverage_of_negatives() -> None:
    """ "Uncommitted = Quorum Coverage negative responses (there exists no ack quorum of bookies that might host the
    entry)." """
    machine = recovery({0: -1, 1: -1})
    machine.out.clear()
    machine.read_answered(0, Answer.NO_ENTRY, {}, -1, [])
    assert not machine.out
    machine.read_answered(1, Answer.NO_ENTRY, {}, -1, [])
    machine.waited()
    wait, write = machine.out
    assert wait == WaitForAnswers(("b3",)), "for a moment, and once"
    assert isinstance(write, WriteMetadata)
    assert (write.record.state, write.record.last_entry) == (LedgerState.CLOSED, -1)


def test_without_a_threshold_the_result_is_inconclusive_and_names_the_silent() -> None:
    """ "If all responses are received and neither threshold is reached then the result is inconclusive and recovery
    stalls." """
    machine = recovery({0: -1, 1: -1})
    machine.out.clear()
    machine.read_answered(0, Answer.NO_ENTRY, {}, -1, [])
    machine.read_answered(1, Answer.UNKNOWN, {}, -1, [])
    machine.read_answered(2, Answer.TIMED_OUT, {}, -1, [])
    assert machine.out == [RecoveryInconclusive(0, ("b2", "b3"))]


def test_recovery_can_be_run_again() -> None:
    """ "Recovery can be run repeatedly until the recovery reads are able to explicitly determine what the final
    committed entry is." """
    first = recovery({0: -1, 2: -1})
    for slot, answer in enumerate((Answer.NO_ENTRY, Answer.UNKNOWN, Answer.UNREACHABLE)):
        first.read_answered(slot, answer, {}, -1, [])
    assert isinstance(first.out[-1], RecoveryInconclusive)
    again = recovery({0: -1, 2: -1})
    again.read_answered(2, Answer.OK, {0: 10}, 9, [])
    again.read_answered(0, Answer.OK, {}, 9, [])
    for slot in (0, 2):
        again.adds_answered(slot, NAMES[slot], 0, 0, Answer.OK)
    again.waited()
    write = again.out[-1]
    assert isinstance(write, WriteMetadata)
    assert write.record.last_entry == 0

"""Unbounded ledgers, as far as Quire has them: fragments, and bookies that know terms. Each test cites a sentence.

Take-overs have tests of their own (`tests/source/test_unbounded_take_over.py`).

Source: Vanlightly's unbounded ledgers.
"""

from __future__ import annotations

import pytest

from quire.core.answers import Answer
from quire.core.bookie.ledger import BookieLedgerMachine, LedgerFacts
from quire.core.ids import LedgerId
from quire.core.ledger.effects import Ended
from quire.core.ledger.metadata import DigestType, new_ledger
from quire.core.ledger.rules import RULES, AddOutcome
from quire.core.ledger.writer import WriterMachine
from quire_testing.explorer.check import check
from quire_testing.explorer.configuration import Configuration

KEY = b"k" * 20


def bookie(term: int) -> BookieLedgerMachine:
    """A bookie that has heard of this term."""
    machine = BookieLedgerMachine(LedgerFacts(LedgerId(1), KEY, term=1), known=True)
    assert add(machine, term) is Answer.OK
    return machine


def add(machine: BookieLedgerMachine, term: int) -> Answer:
    return machine.add(key=KEY, token=0, digest_type=0, lac=-1, recovery=False, term=term).answer


def writer() -> WriterMachine:
    record = new_ledger(
        LedgerId(1), ("b1", "b2"), write_quorum=2, ack_quorum=1, digest_type=DigestType.CRC32C, password=b""
    )
    return WriterMachine(record, 0)


def test_a_failed_write_appends_a_fragment() -> None:
    """ "Each time a write fails an ensemble change occurs where a new fragment is appended to the ledger." """
    machine = writer()
    for _ in range(2):
        machine.append(1, 10)
    first, second = machine.window.next_run - 2, machine.window.next_run - 1
    machine.adds_acked(0, "b1", first)
    machine.add_failed(1, "b2", second, Answer.UNREACHABLE)
    machine.replacements_chosen({1: "b3"}, 0)
    machine.metadata_written(1)
    assert [(part.first_entry, part.ensemble) for part in machine.record.fragments] == [
        (0, ("b1", "b2")),
        (1, ("b1", "b3")),
    ]


@pytest.mark.parametrize("term", [3, 4])
def test_an_equal_or_higher_term_is_accepted_and_kept(term) -> None:
    """ "If a bookie has a ledger term that is lower than or equal to the ledger term of a request, it accepts the request
    and updates its ledger term."
    """
    machine = bookie(3)
    assert add(machine, term) is Answer.OK
    assert machine.facts.term == term


def test_a_lower_term_is_rejected() -> None:
    """ "If a bookie has a higher term, it rejects the request with an InvalidTerm response." """
    machine = bookie(3)
    assert add(machine, 2) is Answer.INVALID_TERM
    assert machine.facts.term == 3
    assert machine.raise_term(key=KEY, token=0, digest_type=0, term=2).answer is Answer.INVALID_TERM
    assert not machine.facts.fenced


def test_normal_reads_do_not_care_about_terms() -> None:
    """ "Normal reads do not care about terms." """
    assert bookie(9).may_read(b"", 0) is Answer.OK


def test_a_writer_that_hears_of_a_newer_term_disengages() -> None:
    """ "When a client receives an InvalidTerm response it should disengage." """
    machine = writer()
    machine.append(1, 10)
    machine.add_failed(0, "b1", machine.window.next_run - 1, Answer.INVALID_TERM)
    assert RULES.add_outcome(Answer.INVALID_TERM) is AddOutcome.SUPERSEDED
    assert isinstance(machine.out[-1], Ended)


def test_one_writer_leaves_no_two_values() -> None:
    """ "We now have log divergence where different bookies have different values for entry 1": not while one client writes
    and recovery sends again what it has read; the world's bookies hold ids, and nothing is recovered that was not
    written.
    """
    done = check(Configuration(entries=2, recoverers=1, reruns=1), invariants=["P", "I3"])
    assert done.result.complete
    assert done.result.violation is None

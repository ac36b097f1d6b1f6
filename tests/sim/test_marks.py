"""Decisions mark in whole programs of simulated worlds: at rest no decided hole is without a mark, and nothing present is called lost.

Source: docs/simulation.md, "The world"; docs/decisions/050-who-decides-marks.md.
"""

from __future__ import annotations

import pytest

from quire_testing.sim.mutants import parts_of
from quire_testing.sim.run import simulate
from support.rounds import FULL
from support.seeds import run_seeds

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
"""A process that is killed, or a world that ends, drops its coroutines in the middle of whatever they wait for."""

SEEN = (
    "a hole is marked at rest",
    "a look finds that copies are missing",
    "a copy is found to be damaged in an undecided fragment",
    "a take-over is done",
    "an ensemble change appends a fragment",
    "auto-recovery repairs a ledger",
    "fault: kill client",
    "fault: disk full",
)

FOUND = {"mark-apart": 170, "recovery-vouches": 11, "change-vouches": 24, "read-once": 64}
"""Mutant -> a seed that finds it; the others of `MARK_MUTANTS` need some hundreds of runs."""


@pytest.mark.timeout(36_000)
def test_at_rest_every_hole_of_a_decided_fragment_is_marked_and_nothing_present_is_called_lost() -> None:
    run_seeds("simulated_marks", 6, 10_000, mixes=("marks",), seen=SEEN if FULL else (), words=("marked",))


def test_a_writer_that_is_suspended_while_it_records_its_holes_records_them_when_it_goes_on() -> None:
    assert not simulate(7193, "marks").violations


@pytest.mark.parametrize("mutant", FOUND)
def test_a_rule_of_marks_that_is_taken_out_is_found(mutant: str) -> None:
    assert any(
        each.startswith("M") for each in simulate(FOUND[mutant], "marks", parts=parts_of(mutant)).violations
    )
    assert not simulate(FOUND[mutant], "marks").violations

"""Whole programs in simulated worlds: fixed seeds hold, a seed replays bit for bit, what must be seen is seen."""

from __future__ import annotations

import os
import subprocess
import sys
import zlib

import pytest

from quire_testing.sim.campaign import SOMETIMES, campaign
from quire_testing.sim.mixes import MIXES
from quire_testing.sim.run import simulate
from support.rounds import FULL, rounds

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
"""A process that is killed, or a world that ends, drops its coroutines in the middle of whatever they wait for."""

FIRST_SEED = 0 if FULL else 255
"""75 seeds from 255 on see everything, some of it twice; from 0 on it takes more than 130."""
PRINT_RUNS = """
import sys, zlib
from quire_testing.sim.mixes import MIXES
from quire_testing.sim.run import simulate
for mix in MIXES:
    outcome = simulate(int(sys.argv[1]), mix)
    print(mix, outcome.digest, zlib.crc32(repr((outcome.history, outcome.lines)).encode()))
"""


@pytest.mark.timeout(7200)
def test_no_seed_breaks_an_invariant_and_everything_is_seen() -> None:
    mixes = tuple(mix for mix in MIXES if mix not in {"streams", "marks"})  # they have tests of their own
    tally = campaign(FIRST_SEED, rounds(75, 1_000_000), mixes=mixes, jobs=2)
    assert not tally.failures, tally.failures[:5]
    assert not [situation for situation in SOMETIMES if not tally.seen[situation]]


@pytest.mark.timeout(7200)
def test_no_cancelled_call_of_a_writer_keeps_the_lead() -> None:
    tally = campaign(FIRST_SEED, rounds(8, 10_000), mixes=("cancelled",), jobs=2)
    assert not tally.failures, tally.failures[:5]
    assert tally.seen["a leader serves"]
    assert tally.seen["a call of a log's writer is cancelled"]


@pytest.mark.parametrize("mix", MIXES)
def test_a_seed_replays_in_the_same_process(mix: str) -> None:
    one, other = simulate(7, mix), simulate(7, mix)
    assert one.digest == other.digest
    assert one.history == other.history
    assert one.lines == other.lines


def test_a_seed_replays_in_another_process_with_another_order_of_sets() -> None:
    here = [
        f"{mix} {outcome.digest} {zlib.crc32(repr((outcome.history, outcome.lines)).encode())}"
        for mix, outcome in ((mix, simulate(11, mix)) for mix in MIXES)
    ]
    environment = {**os.environ, "PYTHONHASHSEED": "4711", "PYTHONPATH": os.pathsep.join(sys.path)}
    there = subprocess.run(
        [sys.executable, "-c", PRINT_RUNS, "11"], env=environment, capture_output=True, text=True, check=True
    )
    assert there.stdout.splitlines() == here


def test_other_seeds_are_other_runs() -> None:
    assert len({simulate(seed, "takeover").digest for seed in range(20)}) == 20


REGRESSIONS = {
    # A reader that began behind a ledger which the list still called open took its own start for the next ledger's.
    ("log", 44),
    ("log", 58),
    # A session was lost with adds under way, and the bookie heard of that outside of its event loop: a defect of the world.
    ("streams", 53061),
}
"""Seeds that once failed, each with its defect."""


@pytest.mark.parametrize(("mix", "seed"), sorted(REGRESSIONS))
def test_what_once_failed_holds(mix: str, seed: int) -> None:
    assert not simulate(seed, mix).violations


def test_an_end_that_too_few_bookies_can_tell_is_no_failure() -> None:
    """Qa = 1 of two bookies, and one lost power with a torn tail: it alone may have acknowledged the next entry."""
    outcome = simulate(1345, "write-quorum")
    assert not outcome.violations
    assert outcome.seen["recovery: recovery_inconclusive"] > 10

"""A simulator that finds nothing may be blind: each fix taken out of the programs once, found by random seeds."""

from __future__ import annotations

import time
from typing import Any

import pytest

from quire_testing.sim.campaign import campaign
from quire_testing.sim.mutants import WANTED, parts_of, simulated
from quire_testing.sim.run import simulate
from support.rounds import rounds

FIRST_SEED = 1_000_000

FOUND = {
    "D2": 978,
    "D7": 16,
    "X1": 4,
    "X2": 30,
    "X3": 0,
    "X4": 4,
    "X6": 23,
    "X8": 1,
    "X9": 5,
    "X13": 20,
    "X14": 9,
    "X16": 1,
    "X17": 21,
}
"""Mutant -> the first of the seeds from `FIRST_SEED` on that breaks something in mix `hunt`."""

HUNTED = "hunt"


@pytest.mark.parametrize("mutant", FOUND)
def test_the_seed_that_found_a_mutant_finds_it_again(mutant: str) -> None:
    seed = FIRST_SEED + FOUND[mutant]
    assert simulate(seed, HUNTED, parts=parts_of(mutant)).violations
    assert not simulate(seed, HUNTED).violations


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_the_mutation_score() -> None:
    """How long random seeds need for each. The bar of 80 % of `WANTED` is not reached yet: this holds what is."""
    limit_seconds = rounds(10, 60)
    rows: dict[str, Any] = {}
    for mutant in simulated():
        began = time.monotonic()
        tally = campaign(
            FIRST_SEED,
            10**9,
            mixes=(HUNTED, "large"),
            jobs=2,
            mutant=mutant,
            seconds=limit_seconds,
            stop=True,
        )
        found = tally.failures[0] if tally.failures else None
        rows[mutant] = {
            "found": found is not None,
            "schedules": tally.schedules,
            "seconds": round(time.monotonic() - began, 1),
            "seed": found.seed if found else None,
        }
    found_now = sum(row["found"] for row in rows.values())
    print(f"{found_now} of {len(WANTED)}: {rows}")
    assert found_now >= len(FOUND)

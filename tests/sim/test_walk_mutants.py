"""Walks that find nothing may be blind: each fix taken out of the machines once, found by random seeds in large worlds."""

from __future__ import annotations

import os
from typing import Any, Final

import pytest

from quire_testing.explorer.configuration import Configuration
from quire_testing.sim.campaign import Tally
from quire_testing.sim.mutants import WANTED
from quire_testing.sim.walk_campaign import some_walks, switches_of
from quire_testing.sim.walk_mixes import HUNTING, WALK_MIXES
from quire_testing.sim.walks import walks_of
from support.rounds import FULL, keep_figures

FIRST_SEED: Final = 1_000_000
SECONDS: Final = 60.0
"""Of one core, for each mutant."""

FOUND: Final = {
    "D2": 186,
    "D3": 237,
    "D4": 1397,
    "D5": 2549,
    "D7": 34,
    "D8": 0,
    "X1": 0,
    "X2": 33,
    "X3": 6,
    "X4": 2,
    "X5": 870,
    "X6": 0,
    "X7": 14,
    "X8": 0,
    "X9": 2,
    "X10": 23,
    "X11": 161,
    "X12": 161,
    "X13": 2,
    "X14": 23,
    "X15": 703,
    "X16": 43,
    "X17": 1,
}
"""Mutant -> the first of the seeds from `FIRST_SEED` on that breaks something; the mixes that hunt are taken in turn."""


def hunt(mutant: str, first: int, seconds: float) -> dict[str, Any]:
    """Take walks without one fix until an invariant breaks, or so many seconds of a core are over."""
    tally = Tally()
    while not tally.failures and tally.cpu_seconds < seconds:
        seed = first + tally.schedules
        tally.take(some_walks(HUNTING, range(seed, seed + 10), mutant))
    row: dict[str, Any] = {
        "found": bool(tally.failures),
        "walks": tally.schedules,
        "cpu_seconds": round(tally.cpu_seconds, 1),
    }
    for failure in tally.failures:
        invariant = failure.violations[0].partition(":")[0]
        row |= {"seed": failure.seed, "mix": failure.mix, "invariant": invariant}
    return row


def test_mutants_are_hunted_in_large_worlds() -> None:
    """Issue 5's: five bookies, E=4, Qw=3, Qa=2, 20 entries, two recoverers."""
    for mix in HUNTING:
        world = WALK_MIXES[mix].world
        assert isinstance(world, Configuration)
        shape = (world.bookies, world.ensemble, world.write_quorum, world.ack_quorum)
        assert (*shape, world.entries, world.recoverers) == (5, 4, 3, 2, 20, 2)


@pytest.mark.parametrize("mutant", FOUND)
def test_the_seed_that_found_a_mutant_finds_it_again(mutant: str) -> None:
    seed = FIRST_SEED + FOUND[mutant]
    mix = HUNTING[seed % len(HUNTING)]
    assert walks_of(mix, switches_of(mutant)).walk(seed).violation is not None
    assert walks_of(mix).walk(seed).violation is None


@pytest.mark.skipif(not FULL, reason="make full: a minute of a core for each mutant")
@pytest.mark.timeout(7200)
def test_the_mutation_score_of_walks() -> None:
    """At least 80 % of the rows that the issue names, within a minute each."""
    first = int(os.environ.get("QUIRE_SEED", FIRST_SEED))
    rows = {mutant: hunt(mutant, first, SECONDS) for mutant in WANTED}
    found = sum(row["found"] for row in rows.values())
    keep_figures(
        "mutation_score_of_walks",
        {"mutants": len(WANTED), "found": found, "seconds_each": SECONDS},
        seed=first,
        rows=rows,
    )
    assert 10 * found >= 8 * len(WANTED), rows

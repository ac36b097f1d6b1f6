"""Walks of ledgers that guarantee their write quorum, in worlds too large to be explored.

Source: docs/protocol/write-quorum.md; docs/simulation.md, "Walks of the machines".
"""

from __future__ import annotations

import pytest

from quire_testing.explorer.mutants import MUTANTS
from quire_testing.sim.walk_campaign import some_walks
from quire_testing.sim.walk_mixes import QUORUM_MIXES
from quire_testing.sim.walks import walks_of
from support.seeds import run_seeds

WALKED = (
    "b0 loss",
    "b0 transit damage",
    "recoverer break",
    "recoverer hears conflict",
    "recoverer hears put",
    "recoverer lost swap",
    "recoverer timeout",
    "recovery ends: closed",
    "recovery ends: inconclusive",
    "writer close",
    "writer ends: closed",
    "writer hears conflict",
    "writer hears written",
    "writer timeout",
    "writer timer",
)


@pytest.mark.timeout(36_000)
def test_no_walk_of_a_guaranteed_ledger_breaks_an_invariant() -> None:
    run_seeds(
        "walks_of_write_quorum",
        200,
        1_000_000,
        mixes=QUORUM_MIXES,
        seen=WALKED,
        runs=some_walks,
        unit="walks",
        steps="steps",
    )


FOUND = {
    "D10": ("write-quorum", 0, "Q3"),
    "X43": ("write-quorum-losses", 62, "Q1"),
    "X44": ("write-quorum", 1, "Q2"),
    "X8-guarantee": ("write-quorum", 1, "W"),
    "guarantee-from-lac": ("write-quorum-losses", 3, "Q2"),
    "may_replace": ("write-quorum-losses", 19, "I2"),
}
"""Of each fix a walk that breaks an invariant without it: that of its own world, or an earlier one of a larger world."""


@pytest.mark.parametrize("name", FOUND)
def test_a_walk_finds_a_fix_of_the_guarantee_that_is_taken_out(name: str) -> None:
    mix, seed, invariant = FOUND[name]
    violation = walks_of(mix, MUTANTS[name].switches).walk(seed).violation
    assert violation is not None
    assert violation.invariant == invariant
    assert walks_of(mix).walk(seed).violation is None

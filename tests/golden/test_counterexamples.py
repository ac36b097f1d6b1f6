"""Each mutant's shortest counterexample as a transcript: the explorer takes its steps and ends in the same violation.

`make golden-rewrite` searches anew and writes the files; commit the difference only if each changed line has a reason.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from quire_testing.explorer.check import check, check_mutant, replay_mutant
from quire_testing.explorer.mutants import MUTANTS
from quire_testing.explorer.story import CannotReplayError, exchanges, replayed, verdict
from quire_testing.explorer.world import LedgerWorld
from support.pinned_mutants import IN_THEIR_RINGS, PINNED

HERE = Path(__file__).parent / "counterexamples"
REWRITE = os.environ.get("QUIRE_GOLDEN_REWRITE") == "1"


@pytest.mark.parametrize("name", IN_THEIR_RINGS)
def test_a_counterexample_ends_in_its_violation(name):
    path = HERE / f"{name}.txt"
    if REWRITE:
        HERE.mkdir(exist_ok=True)
        path.write_text(check_mutant(name).text)
    text = path.read_text()
    done = replay_mutant(name, text)
    assert done.result.violation is not None
    assert done.result.violation.invariant == MUTANTS[name].violated
    assert verdict(done.result.violation) in text.splitlines()
    assert done.text == text


@pytest.mark.parametrize("name", MUTANTS)
def test_it_has_as_many_steps_as_the_shortest_that_the_explorer_finds(name):
    """`tests/check/test_mutants.py` explores for the pinned length: breadth first, so nothing is shorter."""
    assert len(exchanges((HERE / f"{name}.txt").read_text())) == PINNED[name][0]


@pytest.mark.parametrize("name", MUTANTS)
def test_none_of_its_steps_can_be_left_out(name):
    steps = exchanges((HERE / f"{name}.txt").read_text())
    # The way to where the search begins need not be the shortest.
    begun = len(getattr(MUTANTS[name], "begin", ()))
    for missing in range(begun, len(steps)):
        assert ends_well(name, steps[:missing] + steps[missing + 1 :]), (
            f"without step {missing + 1} ({steps[missing][0]}) it breaks the same invariant"
        )


def ends_well(name, steps):
    """Whether a mutant's world refuses these steps, or its invariant holds after them."""
    text = "\n\n".join("\n".join([command, "----", *said]) for command, said in steps)
    try:
        return replay_mutant(name, text).result.violation is None
    except CannotReplayError:
        return True


def test_no_file_is_left_over():
    assert sorted(path.stem for path in HERE.iterdir()) == sorted(MUTANTS)


def test_what_ships_cannot_take_the_steps():
    mutant = MUTANTS["D2"]
    steps = exchanges((HERE / "D2.txt").read_text())
    with pytest.raises(CannotReplayError, match="is not possible"):
        replayed(LedgerWorld(mutant.configuration), steps)
    assert check(mutant.configuration, states_max=1000).result.violation is None

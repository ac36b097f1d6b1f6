"""Failures that were saved: what ships breaks nothing any more, and a mutant that is named in one still breaks the same.

Put here what `quire check --save` or `quire simulate --transcript` wrote: nothing else is needed. It is red until the
defect is mended, and a regression test from then on.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from quire.core.errors import MisuseError
from quire_testing.explorer.continuous import CONTINUOUS, LONG
from quire_testing.explorer.mutants import MUTANTS
from quire_testing.explorer.stream_mutants import STREAM_MUTANTS
from quire_testing.replay.saved import configuration_of, judge_again
from quire_testing.sim.walk_mixes import WALK_MIXES

SAVED = Path(__file__).parent / "saved"


@pytest.mark.parametrize("name", sorted(path.stem for path in SAVED.glob("*.txt")))
def test_a_saved_failure_is_as_it_should_be(name):
    again = judge_again((SAVED / f"{name}.txt").read_text())
    assert again.steps
    assert again.is_as_it_should, again.violations


OF_REPAIR = ("X31", "X32", "X37", "X38", "repair-limbo-open")


@pytest.mark.parametrize(
    "name", ["walk-X2", "programs-X2", "programs-X31", *(f"check-{name}" for name in OF_REPAIR)]
)
def test_what_ships_breaks_nothing_on_the_same_way(name):
    lines = (SAVED / f"{name}.txt").read_text().splitlines()
    again = judge_again("\n".join(line for line in lines if not line.startswith("# mutant")))
    assert not again.violations
    assert again.is_as_it_should


@pytest.mark.parametrize("mutant", STREAM_MUTANTS, ids=lambda each: each.name)
def test_a_failure_of_a_stream_is_judged_by_the_programs_too(mutant):
    text = (SAVED.parent / "counterexamples" / f"{mutant.name}.txt").read_text()
    again = judge_again(text)
    assert again.steps
    assert again.is_as_it_should, again.violations
    shipped = judge_again("\n".join(line for line in text.splitlines() if not line.startswith("# mutant")))
    assert not shipped.violations


def test_a_failure_that_still_fails_is_red():
    """As if the machines that ship had the defect: the judgement is that of the mutant, what is asked that of a mended one."""
    again = judge_again((SAVED / "walk-X2.txt").read_text())
    assert again.violations
    again.mutant = ""
    assert not again.is_as_it_should


def test_a_mutant_that_breaks_something_else_is_red():
    again = judge_again((SAVED / "walk-X2.txt").read_text().replace("VIOLATED I8", "VIOLATED I1"))
    assert again.named == "I1"
    assert not again.is_as_it_should


def test_a_configuration_is_found_by_its_name():
    of_mutants = [mutant.configuration for mutant in MUTANTS.values()]
    of_walks = [mix.world for mix in WALK_MIXES.values()]
    for configuration in (*CONTINUOUS, *LONG, *of_mutants, *of_walks):
        assert configuration_of(configuration.name) == configuration


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# a letter\n",
        "# seed 4, mix nothing: ...\n",
        "# mutant X99: x\n# log 1 clients 2 ledgers 1 writes\n",
    ],
)
def test_what_is_no_saved_failure_is_refused(text):
    with pytest.raises(MisuseError):
        judge_again(text)

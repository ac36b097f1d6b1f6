"""Each fix taken out: its counterexample is walked by the programs that ship, step for step, and breaks the same invariant.

The transcripts in `tests/golden/replay` are the explorer's; `QUIRE_GOLDEN_REWRITE=1` writes them anew.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from quire_testing.explorer.mutants import REPLAYED
from quire_testing.explorer.switches import SHIPPED
from quire_testing.explorer.tables import Label
from quire_testing.replay.check import WALKS, counterexample, from_transcript, random_walk
from quire_testing.replay.passing import ImpossibleStepError
from quire_testing.replay.recording import DriverDiffersError
from quire_testing.replay.replay import replay
from quire_testing.replay.simulated import SimulatorStage
from quire_testing.replay.stage import AsyncioStage
from quire_testing.replay.world import ProgramWorld
from support.rounds import FULL, rounds

GOLDEN = Path(__file__).parents[1] / "golden" / "replay"
STAGES = (AsyncioStage, SimulatorStage)
STAGE_NAMES = ("asyncio", "simulator")
QUICKLY_FOUND = ("D1", "X1", "X12", "X28", "may_go_on_after_unknown")


def saved(name):
    return from_transcript(name, (GOLDEN / f"{name}.txt").read_text())


@pytest.mark.parametrize("stage", STAGES, ids=STAGE_NAMES)
@pytest.mark.parametrize("name", REPLAYED)
def test_a_counterexample_replays(name, stage):
    found = saved(name)
    played = found.replay(stage)
    assert played.violation is not None
    assert played.violation.invariant == found.mutant.violated == found.result.violation.invariant
    assert played.at in (0, played.steps), "not before its last step"
    assert played.compared == len(found.result.path) - 1


@pytest.mark.parametrize("stage", STAGES, ids=STAGE_NAMES)
@pytest.mark.parametrize("name", REPLAYED)
def test_with_what_ships_the_same_schedule_breaks_nothing(name, stage):
    played = saved(name).replay_shipped(stage)
    assert played.violation is None


@pytest.mark.parametrize("name", REPLAYED if FULL else QUICKLY_FOUND)
def test_the_saved_counterexamples_are_the_explorers(name):
    text = counterexample(name).text
    if os.environ.get("QUIRE_GOLDEN_REWRITE") == "1":
        (GOLDEN / f"{name}.txt").write_text(text)
    assert text == (GOLDEN / f"{name}.txt").read_text()


@pytest.mark.parametrize("configuration", WALKS, ids=lambda each: each.name)
def test_programs_go_wherever_the_explorer_goes(configuration):
    """Random schedules of what ships: at each step the drivers say and are what the explorer's clients are."""
    world = ProgramWorld(configuration)
    for seed in range(rounds(4, 400)):
        path = random_walk(world, random.Random(seed))
        played = replay(world, path, SHIPPED, stage=STAGES[seed % 2])
        assert played.violation is None, (seed, played)
        assert played.compared == len(path) - 1


def test_a_step_that_no_program_does_is_noticed():
    found = saved("X1")
    path = [*found.result.path[:2], (Label("writer", "lost b9", (), kind="timeout"), found.result.path[1][1])]
    with pytest.raises((ImpossibleStepError, LookupError)):
        replay(found.world, path, found.mutant.switches)


def test_a_program_that_does_something_else_is_noticed():
    """The steps of a mutant, with the programs that ship: the first difference is named."""
    found = saved("X1")
    with pytest.raises(DriverDiffersError, match=r"writer: hears OK to add 0\.\.0"):
        replay(found.world, found.result.path, SHIPPED)

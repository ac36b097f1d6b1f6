"""Each fix of the log taken out: its counterexample is walked by the log's programs, and breaks the same invariant.

The transcripts in `tests/golden/replay` are the explorer's; `QUIRE_GOLDEN_REWRITE=1` writes them anew.
"""

from __future__ import annotations

import os
import random
from dataclasses import replace
from pathlib import Path

import pytest

from quire_testing.explorer.log_parts import LogConfiguration
from quire_testing.explorer.log_world import LogWorld
from quire_testing.explorer.mutants import OF_LOGS
from quire_testing.explorer.switches import SHIPPED
from quire_testing.explorer.tables import Label
from quire_testing.replay.check import counterexample, from_transcript, random_walk
from quire_testing.replay.log_handles import KeptLog
from quire_testing.replay.log_replay import (
    LOG_WALKS,
    replay_log,
)
from quire_testing.replay.play import ImpossibleStepError
from quire_testing.replay.recording import DriverDiffersError
from quire_testing.replay.simulated import SimulatorStage
from quire_testing.replay.stage import AsyncioStage
from support.rounds import FULL, rounds

GOLDEN = Path(__file__).parents[1] / "golden" / "replay"
STAGES = (AsyncioStage, SimulatorStage)
STAGE_NAMES = ("asyncio", "simulator")
QUICKLY_FOUND = ("X20-fence", "X20-cas", "X21")


def saved(name):
    return from_transcript(name, (GOLDEN / f"{name}.txt").read_text())


@pytest.mark.parametrize("name", OF_LOGS if FULL else QUICKLY_FOUND)
def test_the_saved_counterexamples_are_the_explorers(name):
    text = counterexample(name).text
    if os.environ.get("QUIRE_GOLDEN_REWRITE") == "1":
        (GOLDEN / f"{name}.txt").write_text(text)
    assert text == (GOLDEN / f"{name}.txt").read_text()


@pytest.mark.parametrize("stage", STAGES, ids=STAGE_NAMES)
@pytest.mark.parametrize("name", OF_LOGS)
def test_a_counterexample_replays(name, stage):
    found = saved(name)
    played = found.replay(stage)
    assert played.violation is not None
    assert played.violation.invariant == found.mutant.violated == found.result.violation.invariant
    assert played.at == played.steps == played.compared == len(found.result.path) - 1


@pytest.mark.parametrize("stage", STAGES, ids=STAGE_NAMES)
@pytest.mark.parametrize("name", OF_LOGS)
def test_with_what_ships_the_same_schedule_breaks_nothing(name, stage):
    """Nor does what follows: the schedule is left, everything goes on until nothing is left to do, the log is read."""
    played = saved(name).replay_shipped(stage)
    assert played.violation is None
    assert played.rested
    assert (played.read is None) == (name == "log-fences-last-two"), (
        "only a list that a sink has spoilt is refused"
    )


def test_the_list_of_f_10_is_refused_before_its_rule_is_asked():
    """The mutant needs a second fix out: reading a list asks whether it is a possible one."""
    found = saved("log-fences-last-two")
    with pytest.raises(DriverDiffersError, match="ended: abandoned"):
        replay_log(found.world, found.result.path, found.mutant.switches, kind=KeptLog)


@pytest.mark.parametrize("configuration", LOG_WALKS, ids=lambda each: each.name)
def test_the_logs_programs_go_wherever_the_explorer_goes(configuration):
    """Random schedules of what ships, then on to the end; a reader then gets all that callers were told of."""
    world = LogWorld(configuration)
    for seed in range(rounds(4, 400)):
        path = random_walk(world, random.Random(seed))
        played = replay_log(world, path, SHIPPED, stage=STAGES[seed % 2], to_the_end=True)
        assert played.violation is None, (seed, played)
        assert played.compared == len(path) - 1
        assert played.read is not None


def test_a_step_that_no_program_does_is_noticed():
    found = saved("X21")
    label, state = found.result.path[1]
    path = [*found.result.path[:2], (Label("handle 0", "roll", (), kind="roll"), state)]
    assert label.command == "open"
    with pytest.raises(ImpossibleStepError, match="handle 0 may not roll"):
        replay_log(found.world, path, SHIPPED)


@pytest.mark.parametrize(
    ("name", "difference"),
    [("X20-fence", "handle 1: reads the list: it says"), ("X21", "handle 0: creates ledger 1: it says")],
)
def test_a_program_that_does_something_else_is_noticed(name, difference):
    """The steps of a mutant, with the programs that ship: the first difference is named."""
    found = saved(name)
    with pytest.raises(DriverDiffersError, match=difference):
        replay_log(found.world, found.result.path, SHIPPED)


def test_a_store_that_cas_what_it_should_not_is_noticed():
    found = saved("X22")
    blind_elsewhere = replace(SHIPPED, blind_lists="open")
    with pytest.raises(DriverDiffersError, match="it answers"):
        replay_log(found.world, found.result.path, blind_elsewhere)


def test_the_simulators_and_asyncios_programs_end_alike():
    world = LogWorld(LogConfiguration(2, 6, 4, lost_swaps=2))
    for seed in range(rounds(3, 100)):
        path = random_walk(world, random.Random(1000 + seed))
        plays = [replay_log(world, path, SHIPPED, stage=stage, to_the_end=True) for stage in STAGES]
        assert plays[0] == plays[1]

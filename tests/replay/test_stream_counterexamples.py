"""Each fix of streams taken out: its counterexample is walked by the programs that ship, and breaks the same invariant.

The transcripts are the explorer's, of `tests/golden/counterexamples`: the programs can go every way of theirs.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from quire_testing.explorer.mutants import MUTANTS
from quire_testing.explorer.stream_mutants import FENCING_MUTANTS, LEFT_BEHIND, STREAM_MUTANTS
from quire_testing.explorer.stream_parts import StreamConfiguration
from quire_testing.explorer.stream_world import StreamWorld
from quire_testing.explorer.switches import SHIPPED
from quire_testing.replay.check import from_transcript, random_walk
from quire_testing.replay.recording import DriverDiffersError
from quire_testing.replay.simulated import SimulatorStage
from quire_testing.replay.stage import AsyncioStage
from quire_testing.replay.streams import replay_stream
from support.rounds import rounds

GOLDEN = Path(__file__).parents[1] / "golden" / "counterexamples"
NAMES = [mutant.name for mutant in (*STREAM_MUTANTS, *FENCING_MUTANTS)]
STAGES = (AsyncioStage, SimulatorStage)

WALKS = (
    StreamConfiguration(entries=2),
    StreamConfiguration(3, 3, 3, 2, clients=2, take_overs=2),
    StreamConfiguration(3, 3, 2, 2, entries=3, take_overs=2, clients=2),
    StreamConfiguration(entries=2, clients=2, take_overs=3, readers=1),
    StreamConfiguration(3, 3, 3, 2, clients=2, take_overs=2, fencing=True),
    StreamConfiguration(3, 3, 2, 2, entries=3, take_overs=2, clients=2, fencing=True),
    StreamConfiguration(entries=2, clients=2, take_overs=3, readers=1, explicit_lac=True, fencing=True),
)


def saved(name):
    return from_transcript(name, (GOLDEN / f"{name}.txt").read_text())


def on_stages():
    """Each on both; where terms only fence, on one and the other in turn."""
    both = [(mutant.name, stage) for mutant in STREAM_MUTANTS for stage in STAGES]
    some = [(mutant.name, STAGES[number % 2]) for number, mutant in enumerate(FENCING_MUTANTS)]
    return [pytest.param(name, stage, id=f"{name}-{stage.__name__}") for name, stage in both + some]


@pytest.mark.parametrize(("name", "stage"), on_stages())
def test_a_counterexample_replays(name, stage):
    found = saved(name)
    played = found.replay(stage)
    assert played.violation is not None
    assert played.violation.invariant == found.mutant.violated
    assert played.at == played.steps, "not before its last step"
    assert played.compared == len(found.result.path) - 1


@pytest.mark.parametrize("name", NAMES)
def test_with_what_ships_the_same_schedule_breaks_nothing(name):
    played = saved(name).replay_shipped()
    assert played.violation is None
    assert played.steps


@pytest.mark.parametrize("configuration", WALKS, ids=lambda each: each.name)
def test_programs_go_wherever_the_explorer_goes(configuration):
    """Random schedules of what ships: after each step bookies, record, callers and readers are the explorer's."""
    world = StreamWorld(configuration)
    for seed in range(rounds(2 if configuration.fencing else 4, 400)):
        path = random_walk(world, random.Random(seed))
        played = replay_stream(world, path, SHIPPED, stage=STAGES[seed % 2])
        assert played.violation is None, (seed, played)
        assert played.compared == len(path) - 1


def test_programs_repair_as_the_explorers_repairers_do():
    """From where an ensemble has changed, and a bookie that is no member has an entry of an earlier term."""
    world = StreamWorld(StreamConfiguration(3, entries=2, timeouts=2, repairers=2))
    for seed in range(rounds(8, 400)):
        path = random_walk(world, random.Random(seed), begin=LEFT_BEHIND)
        played = replay_stream(world, path, SHIPPED, stage=STAGES[seed % 2])
        assert played.violation is None, (seed, played)
        assert played.compared == len(path) - 1


def test_programs_repair_where_terms_only_fence_too():
    """From where a bookie that may take a slot has not heard of the term, and a truncation is on its way to it."""
    shown = MUTANTS["X51"]
    world = StreamWorld(shown.configuration)
    for seed in range(rounds(2, 400)):
        path = random_walk(world, random.Random(seed), begin=shown.begin)
        played = replay_stream(world, path, SHIPPED, stage=STAGES[seed % 2])
        assert played.violation is None, (seed, played)
        assert played.compared == len(path) - 1


def test_a_program_that_does_something_else_is_noticed():
    found = saved("X23")
    with pytest.raises(DriverDiffersError, match="expected"):
        replay_stream(found.world, found.result.path, SHIPPED)

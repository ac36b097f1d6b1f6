"""Recovery against a naive world: random contents, answers, orders, time-outs, limbo, a live writer, two recoverers.

What is judged is written down in `recovery_world.World.judge`: no acknowledged entry is lost, all who finish agree,
the closed ledger is complete, a recovery always ends with a result.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from properties.recovery_world import World, explore, violated
from quire.core.answers import NEGATIVES, Answer
from quire.core.ledger.effects import RecoveryInconclusive
from quire.core.ledger.metadata import LedgerState
from quire.core.ledger.quorum import entry_coverage, write_set
from quire.core.recovery.machine import RecoveryMachine, RecoveryStatus
from quire_testing.explorer.mutants import MUTANTS

QUORUMS = [(2, 2, 1), (2, 2, 2), (3, 3, 2), (3, 3, 3), (3, 2, 1), (3, 2, 2), (4, 3, 2), (5, 3, 2), (6, 3, 3)]
seeds = st.integers(0, 2**32)


@settings(max_examples=400, deadline=None)
@given(
    seeds,
    st.sampled_from(QUORUMS),
    st.integers(1, 2),
    st.integers(0, 4),
    st.integers(0, 2),
    st.booleans(),
)
def test_no_acknowledged_entry_is_lost_and_all_agree(
    seed, quorums, recoverers, timeouts, spares, limbo
) -> None:
    explore(seed, quorums, recoverers=recoverers, timeouts=timeouts, spares=spares, limbo=limbo)


@settings(max_examples=100, deadline=None)
@given(seeds, st.sampled_from(QUORUMS), st.integers(1, 2))
def test_when_everybody_answers_recovery_closes_the_ledger(seed, quorums, recoverers) -> None:
    world = explore(seed, quorums, recoverers=recoverers, timeouts=0)
    assert world.record.state is LedgerState.CLOSED


NOTICED = ["D1", "D2", "X2", "X3", "X4", "X5", "X7", "X9", "X11", "X14", "X15"]
KNOBS = {"X11": {"timeouts": 8, "spares": 4, "recoverers": 1}}


@pytest.mark.parametrize("name", NOTICED)
def test_a_broken_rule_is_noticed(name) -> None:
    switches = MUTANTS[name].switches
    for seed in range(3000):
        knobs = {"recoverers": 1 + seed % 2, "spares": 2, "timeouts": 3} | KNOBS.get(name, {})
        for quorums in ((2, 2, 1), (2, 2, 2), (3, 3, 2)):
            with switches.applied():
                if violated(seed, quorums, switches.rules, **knobs):
                    return
    pytest.fail(f"{name}: 9,000 random runs saw no difference")


@settings(max_examples=200, deadline=None)
@given(seeds, st.sampled_from(QUORUMS))
def test_only_conclusive_answers_end_the_ledger(seed, quorums) -> None:
    """Whatever is answered that is not conclusive, reading never ends on it: the result is inconclusive."""
    chance = random.Random(seed)
    world = World(chance, quorums, spares=0)
    machine = RecoveryMachine(world.record, 1)
    machine.recover()
    machine.metadata_written(world.record.in_recovery(), 2)
    for slot in range(world.E):
        machine.fence_answered(slot, Answer.OK, -1)
    unsure = sorted(set(Answer) - NEGATIVES - {Answer.OK, Answer.UNAUTHORISED})
    # In one write set, one bookie short of coverage says no; nobody else can tell.
    head = machine.lap + 1
    slots = list(write_set(head, world.E, world.Qw))
    chance.shuffle(slots)
    sayers = set(slots[: entry_coverage(world.Qw, world.Qa) - 1])
    order = list(range(world.E))
    chance.shuffle(order)
    for slot in order:
        machine.read_answered(slot, Answer.NO_ENTRY if slot in sayers else chance.choice(unsure), {}, -1, [])
        machine.check()
    assert machine.status is RecoveryStatus.ENDED
    (result,) = [effect for effect in machine.out if isinstance(effect, RecoveryInconclusive)]
    assert result.entry_id == head
    assert set(result.silent) == {world.names[slot] for slot in slots if slot not in sayers}


@settings(max_examples=200, deadline=None)
@given(seeds, st.sampled_from(QUORUMS))
def test_late_and_repeated_answers_change_nothing(seed, quorums) -> None:
    world = explore(seed, quorums, timeouts=1)
    for recoverer in world.recoverers:
        machine = recoverer.machine
        before = (machine.status, machine.lac, machine.lap)
        for slot, bookie in enumerate(world.names):
            machine.fence_answered(slot, Answer.OK, 99)
            machine.read_answered(slot, Answer.OK, {machine.lap + 1: 1}, machine.lap + 9, [])
            machine.adds_answered(slot, bookie, 0, 99, Answer.OK)
        assert (machine.status, machine.lac, machine.lap) == before
        assert not machine.out

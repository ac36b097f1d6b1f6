"""The writer among bookies that lose, delay and refuse, and a store whose answers get lost.

The choices of Hypothesis pick, step by step, one of the things that could happen next. After every step the writer's
own invariants hold, and those that need all sides: callers hear in order and once; every entry that a caller heard of
is stored by an ack quorum of its write set in the ensemble that the store records, also when a lost compare-and-swap lands late;
no closed end lies below it. The same world must catch every fix that is taken out of the rules.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.core.ledger.record_cas import StoreRequest
from quire.core.ledger.writer import WriterMachine
from quire.core.ledger.writer_state import Status, WriterLimits
from quire_testing.explorer.mutants import MUTANTS
from quire_testing.explorer.patches import Patch, applied
from quire_testing.explorer.snapshot import clone
from quire_testing.explorer.switches import RULES, Rules
from support.writer_worlds import TRIPLES, WAITS, World


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from([triple for triple in TRIPLES if triple[0] <= 4]),
    st.integers(0, 3),
    st.booleans(),
    st.integers(0, 3),
    st.sampled_from(WAITS),
    st.lists(st.integers(0, 1 << 16), max_size=120),
)
def test_nothing_acknowledged_is_lost_whatever_happens_next(
    triple, spares, recoverer, away, wait_ms, choices
) -> None:
    world = World(triple, RULES, spares=spares, recoverer=recoverer, wait_ms=wait_ms)
    world.begin_without(away)
    world.play(choices)
    world.settle()


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 1 << 32), st.sampled_from(TRIPLES), st.booleans())
def test_long_random_lives_end_well(seed, triple, guarantee) -> None:
    chance = random.Random(seed)
    wait_ms = chance.choice(WAITS)
    world = World(
        triple,
        RULES,
        spares=chance.randrange(4),
        recoverer=chance.randrange(3) == 0,
        wait_ms=wait_ms,
        guarantee=guarantee,
    )
    world.begin_without(0 if guarantee else chance.randrange(4))
    world.play(chance.randrange(1 << 16) for _ in range(300))
    world.settle()
    if world.machine.status is Status.WRITING:
        world.step(world.machine.close)
        world.settle()
        assert world.machine.status in (Status.CLOSED, Status.ENDED)
        if world.machine.status is Status.CLOSED:
            world.check()


@pytest.mark.parametrize("triple", TRIPLES, ids=str)
def test_every_legal_triple_confirms_with_its_ack_quorum(triple) -> None:
    world = World(triple, RULES, spares=0, recoverer=False)
    world.before = world.machine.ensemble
    for _ in range(3):
        world.step(lambda: world.machine.append(2 * world.E + 1, 50))
        world.step(lambda: world.machine.append(1, 5))
    world.settle()
    assert world.confirmed == 3 * (2 * world.E + 2) - 1
    world.step(world.machine.close)
    world.settle()
    assert world.record.last_entry == world.confirmed
    assert world.record.length == 165


LEFT_COUNTS_AS_LOST = Patch(
    WriterMachine.bookie_left,
    "at_ms = now_ms if",
    "return self.bookie_lost(slot, bookie)\n    at_ms = now_ms if",
)
NOTICED = [
    "X1",
    "X9",
    "X10",
    "X11",
    "X12",
    "X13",
    "may_go_on_after_unknown",
    "absent-below-quorum",
    "may_create",
]
"""A bookie that left and counts as lost ends a writer that could go on: `test_bookies_that_leave_...` below."""


@pytest.mark.parametrize("name", NOTICED)
def test_every_fix_that_is_taken_out_is_noticed(name) -> None:
    with MUTANTS[name].switches.applied():
        is_noticed(MUTANTS[name].switches.rules)


def is_noticed(rules: Rules) -> None:
    for seed in range(4000):
        chance = random.Random(seed)
        triple = chance.choice([(2, 2, 2), (3, 3, 2), (2, 2, 1), (3, 2, 2), (3, 3, 3)])
        spares, recoverer, wait_ms = chance.randrange(3), chance.randrange(2) == 0, WAITS[seed % 3]
        world = World(triple, rules, spares=spares, recoverer=recoverer, wait_ms=wait_ms)
        try:
            world.begin_without(chance.randrange(3))
            world.play(chance.randrange(1 << 16) for _ in range(60))
            world.settle()
        except Exception:
            return
    pytest.fail("no run noticed it")


class Leaving(World):
    """Nothing fails: bookies store what they get, the store answers or not, and registrations come and go."""

    def enabled(self) -> list:
        machine = self.machine
        actions: list = [lambda: machine.append(1, 10)]
        for slot, bookie in enumerate(machine.ensemble):
            actions.append(lambda s=slot, b=bookie: machine.bookie_left(s, b, self.now_ms, 20))
        actions += [lambda n=name: self.deliver(n) for name in self.names if self.adds[name]]
        actions += [lambda i=index: self.answer(i) for index in range(min(3, len(self.answers)))]
        if self.request is not None:
            actions += [self.serve, self.serve, self.serve_unknown]
        if self.choice is not None:
            actions += [lambda: self.choose(all_of_them=True), lambda: self.choose(all_of_them=False)]
        if self.left is not None:
            actions += [self.ask, lambda: self.ask(everyone=False)]
        if self.timer is not None:
            actions += [self.fire]
        return actions

    def check(self) -> None:
        super().check()
        assert self.machine.status in (Status.WRITING, Status.CHANGING), "a writer that can go on goes on"
        assert self.machine.absent == (), "a bookie that left never makes its slot absent"
        assert not self.machine.below_quorum


def bookies_leave(triple, rules, spares, choices, *, guarantee=False) -> Leaving:
    world = Leaving(triple, rules, spares=spares, recoverer=False, guarantee=guarantee)
    world.machine.limits = world.machine.waits.limits = WriterLimits(10, 100, 10**6, 0)
    world.play(choices)
    world.settle()
    return world


@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from([triple for triple in TRIPLES if triple[0] <= 4]),
    st.integers(0, 3),
    st.booleans(),
    st.lists(st.integers(0, 1 << 16), max_size=80),
)
def test_bookies_that_leave_end_no_writer_and_make_no_slot_absent(triple, spares, guarantee, choices) -> None:
    world = bookies_leave(triple, RULES, spares, choices, guarantee=guarantee)
    assert world.confirmed == world.machine.lap


def test_where_a_bookie_that_left_counts_as_lost_a_writer_ends_that_could_go_on() -> None:
    chance = random.Random(7)
    with applied([LEFT_COUNTS_AS_LOST]), pytest.raises(AssertionError, match="goes on"):
        for _ in range(200):
            bookies_leave((3, 3, 3), RULES, 0, [chance.randrange(1 << 16) for _ in range(60)])


def test_a_copy_lives_its_own_life() -> None:
    world = World((3, 3, 2), RULES, spares=1, recoverer=False)
    machine = world.machine
    machine.append(3, 30)
    other = clone(machine)
    machine.adds_acked(0, "b1", 0)
    machine.adds_acked(1, "b2", 0)
    machine.append(1, 1)
    assert (machine.lac, machine.lap) == (2, 3)
    assert (other.lac, other.lap, other.cas.asked) == (-1, 2, StoreRequest.NOTHING)
    other.check()


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 7)), max_size=12))
def test_acknowledgements_that_come_together_are_those_that_come_one_by_one(acks) -> None:
    one, together = (World((3, 3, 2), RULES, spares=1, recoverer=False).machine for _ in range(2))
    for machine in (one, together):
        for _ in range(3):
            machine.append(2, 20)
    sent_to = one.ensemble
    for run, slots in acks:
        together.adds_acked_together(slots, sent_to, run)
        for slot, bookie in enumerate(sent_to):
            if slots >> slot & 1:
                one.adds_acked(slot, bookie, run)
        assert together.lac == one.lac


def test_an_acknowledgement_that_comes_late_is_its_bookies_not_its_slots() -> None:
    machine = World((3, 3, 2), RULES, spares=1, recoverer=False).machine
    machine.append(1, 10)
    machine.adds_acked_together(0b110, ("b1", "other", "another"), 0)
    assert machine.lac == -1, "those bookies do not stand at these slots"
    machine.adds_acked_together(0b110, machine.ensemble, 0)
    assert machine.lac == 0

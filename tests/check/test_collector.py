"""The collector's world: its one form for states that are alike, what it lets happen, and what it leaves out."""

from __future__ import annotations

import pytest

from quire_testing.explorer.check import check
from quire_testing.explorer.collector_forms import CollectorForm
from quire_testing.explorer.collector_mutants import COLLECTOR_MUTANTS
from quire_testing.explorer.collector_parts import CollectorConfiguration
from quire_testing.explorer.collector_world import CollectorWorld
from quire_testing.explorer.explorer import explore
from quire_testing.explorer.fingerprints import explore_by_fingerprints
from quire_testing.explorer.mutants import MUTANTS
from quire_testing.explorer.switches import SHIPPED
from support.rounds import rounds

ALL = CollectorConfiguration(
    lives=2, backups=2, restores=2, crashes=1, hands=1, accepts=1, lost=1, full=1, expires=True
)
SHAPES = [
    (ALL, SHIPPED),
    (CollectorConfiguration(ours=True, lives=2, crashes=1, hands=1, expires=True, reuses=True), SHIPPED),
    *((mutant.configuration, mutant.switches) for mutant in COLLECTOR_MUTANTS),
]


@pytest.mark.parametrize("number", range(len(SHAPES)))
def test_states_of_one_form_go_to_states_of_the_same_forms(number):
    """What is renamed must be nothing to any rule, also to one that a mutant replaced."""
    world = CollectorWorld(*SHAPES[number])
    form = CollectorForm(world)
    seen, level, most = {world.initial()}, [world.initial()], rounds(1500, 30_000)
    while level and len(seen) < most:
        following = []
        for state in level:
            formed = form(state)
            moves = world.successors(state)
            assert form(formed) == formed
            assert {form(after) for _, after in moves} == {
                form(after) for _, after in world.successors(formed)
            }
            following += {after for _, after in moves} - seen
            seen.update(following)
        level = following
    assert len(seen) >= most or not level


def test_with_and_without_forms_the_same_is_found():
    configuration = CollectorConfiguration(lives=2, passes=2, hands=1)
    world = CollectorWorld(configuration)
    form = CollectorForm(world)
    reached = set()

    class Watched:
        def initial(self):
            return world.initial()

        def successors(self, state):
            reached.add(form(state))
            return world.successors(state)

    whole = explore_by_fingerprints(Watched(), lambda _: None)
    formed = explore(world, lambda _: None, canonical=form)
    assert whole.complete
    assert formed.complete
    assert len(reached) == formed.states < whole.states


class Way:
    """A way through a world: each step by the beginning of its text."""

    def __init__(self, configuration):
        self.world = CollectorWorld(configuration)
        self.state = self.world.initial()

    def can(self, text):
        return any(
            f"{label.actor}: {label.command}".startswith(text)
            for label, _ in self.world.successors(self.state)
        )

    def goes(self, *texts):
        for text in texts:
            for label, after in self.world.successors(self.state):
                if f"{label.actor}: {label.command}".startswith(text):
                    self.state, self.said = after, label.said
                    break
            else:
                raise AssertionError(text)
        return self.said


PASS = ("bookie: reads the counter", "store: takes", "bookie: looks for the record")


def test_the_last_look_and_the_drop_are_two_steps():
    way = Way(CollectorConfiguration(ours=True))
    way.goes("client: creates", "client: writes to life 1", "store: is copied")
    way.goes("client: deletes", *PASS, "bookie: reads the tombstone: token 1")
    assert way.goes("store: is asked") == ("no record", "the counter is its own")
    assert way.can("bookie: drops the ledger, by tombstone")
    way.goes("store: is put back", "bookie: drops the ledger, by tombstone")


def test_a_copy_that_is_put_back_has_its_versions_back():
    way = Way(CollectorConfiguration(lost=1))
    way.goes("bookie: reads the counter: none", "store: is copied", "store: takes 1 passes")
    assert way.state.store.version == 0
    way.goes("store: is put back")
    assert way.state.store.version == -1
    way.goes("bookie: looks", "bookie: reads the counter: none")
    assert way.can("store: takes 0 passes of chain 0, held at 1")


def test_an_unanswered_cas_lands_later_but_not_in_a_store_that_was_put_back():
    way = Way(CollectorConfiguration(lost=1))
    way.goes(
        "store: is copied", "bookie: reads the counter: none", "client: creates", "bookie: hears nothing"
    )
    assert way.can("store: takes late 1 passes of chain 1")
    way.goes("store: is put back")
    assert not way.can("store: takes late")


def test_what_nothing_tells_apart_is_left_out_because_it_is_lost():
    """Two ledgers of Java under one id, the first lost by a restore: the proof for the second takes both."""
    configuration = CollectorConfiguration(lives=2, passes=4, reuses=True)
    done = check(configuration)
    assert done.result.violation is not None
    assert done.result.violation.invariant == "G1"
    assert "java client: deletes life 2, without a tombstone" in done.text


@pytest.mark.parametrize("violated", ["G1", "G2", "G3", "G4"])
def test_every_invariant_has_a_mutant_that_breaks_it(violated):
    assert violated in {mutant.violated for mutant in MUTANTS.values()}

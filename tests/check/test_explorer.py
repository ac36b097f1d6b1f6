"""The explorer's own parts: the search, renaming, transcripts that replay, diagrams."""

from __future__ import annotations

import random
from xml.etree import ElementTree as ET

import pytest

from quire_testing.explorer.check import check, check_mutant
from quire_testing.explorer.configuration import Configuration
from quire_testing.explorer.diagram import arrows, page, svg
from quire_testing.explorer.explorer import explore
from quire_testing.explorer.fingerprints import explore_by_fingerprints
from quire_testing.explorer.invariants import InvariantWatch, Violation
from quire_testing.explorer.log_parts import LogConfiguration
from quire_testing.explorer.repairers import NOT_SEEN, SEEN
from quire_testing.explorer.snapshot import slots_of
from quire_testing.explorer.story import CannotReplayError, exchanges, replayed
from quire_testing.explorer.symmetry import FIELDS, Symmetry, renamings
from quire_testing.explorer.world import LedgerWorld


class Counter:
    """Adds 1 or 3; 10 is the end."""

    def initial(self):
        return 0

    def successors(self, state):
        return [(f"+{step}", state + step) for step in (1, 3) if state + step <= 10]


def test_the_search_visits_every_state_once():
    result = explore(Counter(), lambda _: None)
    assert (result.states, result.transitions, result.depth, result.complete) == (11, 18, 4, True)


def test_the_search_finds_the_shortest_way():
    result = explore(Counter(), lambda state: Violation("big", "") if state == 7 else None)
    assert [after for _, after in result.path][-1] == 7
    assert len(result.path) == 4


def test_a_state_without_a_next_step_is_asked_for_a_deadlock():
    result = explore(Counter(), lambda _: None, lambda state: Violation("F1", str(state)))
    assert result.violation == Violation("F1", "10")


def test_a_search_can_be_given_up():
    done = check(Configuration(3, 3, 3, 2), states_max=2000)
    assert not done.result.complete
    assert done.result.violation is None


@pytest.mark.parametrize(("machine", "table"), FIELDS.items(), ids=lambda each: getattr(each, "__name__", ""))
def test_a_renaming_knows_every_field(machine, table):
    assert sorted(field for fields in table.values() for field in fields.split()) == sorted(slots_of(machine))


@pytest.mark.parametrize("kind", SEEN, ids=lambda each: each.__name__)
def test_the_state_of_a_repair_has_every_field(kind):
    named = [name for table in (SEEN, NOT_SEEN) for name in table[kind].split()]
    assert sorted(named) == sorted(slots_of(kind))


@pytest.mark.parametrize(
    ("configuration", "count"),
    [
        (Configuration(2, 2, 2, 2), 2),
        (Configuration(3, 3, 3, 2), 6),
        (Configuration(5, 3, 3, 2), 12),
        (Configuration(4, 4, 3, 2), 1),
    ],
)
def test_how_many_renamings_there_are(configuration, count):
    assert len(renamings(LedgerWorld(configuration))) == count


@pytest.mark.parametrize(
    "configuration",
    [
        Configuration(3, 2, 2, 2, timeouts=1, absent=True),
        Configuration(3, 3, 3, 2),
        Configuration(crashes=1),
        Configuration(3, 2, 2, 1, timeouts=1, explicit_lac=True, readers=1),
        Configuration(4, 3, 3, 2, entries=2, recoverers=0, losses=1, repairers=2, closed=True),
        Configuration(3, 2, 2, 2, entries=2, losses=1, repairers=1, changed=True),
    ],
    ids=lambda each: each.name,
)
def test_renamed_states_have_renamed_steps(configuration):
    """A representative has the steps of the state that it stands for, up to names."""
    world = LedgerWorld(configuration)
    canonical = Symmetry(world)
    watch = InvariantWatch(world)
    chance = random.Random(5)
    state = world.initial()
    for _ in range(400):
        moves = world.successors(state)
        if not moves:
            state = world.initial()
            continue
        there = canonical(state)
        assert canonical(there) == there
        assert watch(state) == watch(there) is None
        of_state = {canonical(after) for _, after in moves}
        of_representative = {canonical(after) for _, after in world.successors(there)}
        assert of_state == of_representative
        state = chance.choice(moves)[1]


@pytest.mark.parametrize("configuration", [Configuration(), Configuration(readers=1)], ids=str)
def test_fingerprints_see_the_same_states(configuration):
    world = LedgerWorld(configuration)
    watch = InvariantWatch(world)
    result = explore_by_fingerprints(world, watch, watch.deadlock, canonical=Symmetry(world))
    full = check(configuration).result
    assert (result.states, result.transitions, result.depth) == (full.states, full.transitions, full.depth)
    assert result.complete


def test_fingerprints_find_that_something_is_wrong():
    result = explore_by_fingerprints(Counter(), lambda state: Violation("big", "") if state == 7 else None)
    assert result.violation == Violation("big", "")
    assert not result.complete


def test_renaming_hides_no_state():
    """Every state of a plain search has its representative in the search by representatives, and nothing else."""
    world = LedgerWorld(Configuration(2, 2, 2, 2))
    canonical = Symmetry(world)
    plain, level = {world.initial()}, [world.initial()]
    while level:
        level = [after for state in level for _, after in world.successors(state)]
        level = list(dict.fromkeys(after for after in level if after not in plain))
        plain.update(level)
    assert len({canonical(state) for state in plain}) == check(Configuration(2, 2, 2, 2)).result.states


def test_a_counterexample_replays_only_where_the_fix_is_out():
    done = check_mutant("X5")
    steps = exchanges(done.text)
    assert replayed(done.world, steps)[-1][1] == done.result.path[-1][1]
    with pytest.raises(CannotReplayError, match="is not possible"):
        replayed(LedgerWorld(Configuration(timeouts=1)), steps)


def test_a_diagram_shows_lateness():
    done = check_mutant("D1")
    drawing = ET.fromstring(svg(done.result.path, done.result.violation))
    assert drawing.tag.endswith("svg")
    drawn = arrows(done.result.path)
    assert any(arrow.row is not None and arrow.row - arrow.sent > 5 for arrow in drawn), (
        "the writer's add comes late"
    )
    assert any(arrow.row is None for arrow in drawn), "the fencing read never comes"
    html = page("D1", done.result.path, done.result.violation, done.rows, done.text)
    assert "I1" in html
    assert "<script" not in html


def test_a_log_counterexample_has_a_diagram():
    done = check_mutant("X22")
    ET.fromstring(svg(done.result.path, done.result.violation))
    assert dict(done.rows)["list"].startswith("[1 closed 3 2]")


def test_names_of_configurations_say_the_budgets():
    assert (
        Configuration(3, 3, 3, 2, crashes=1, journal=False).name == "3 bookies 3/3/2 N=1 crashes=1 journal=no"
    )
    assert LogConfiguration(2, 3, 1, lost_swaps=1).name == "log 2 clients 3 ledgers 1 writes lost swaps=1"


def test_an_unknown_invariant_is_refused():
    with pytest.raises(ValueError, match="I99"):
        InvariantWatch(LedgerWorld(Configuration()), ["I99"])

"""Streams in the explorer: every input of a take-over is given in the states that its table names, and moves as it says.

Source: docs/protocol/streams.md.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from check.test_exercised import Seen
from quire.core.ledger import effects
from quire.core.ledger.terms import NO_TERM, confirmed_in, reach_of
from quire.core.recovery.machine import RecoveryStatus
from quire.core.recovery.take_over import TAKE_OVER_TABLE, TakeOverMachine
from quire_testing.explorer.check import check, replay_mutant
from quire_testing.explorer.explorer import explore
from quire_testing.explorer.stream_mutants import FENCING_MUTANTS, STREAM_MUTANTS
from quire_testing.explorer.stream_parts import StreamConfiguration
from quire_testing.explorer.stream_watch import STREAM_INVARIANTS, StreamWatch, stream_rows
from quire_testing.explorer.stream_world import StreamWorld
from quire_testing.explorer.switches import RULES, SHIPPED

COUNTEREXAMPLES = Path(__file__).parents[1] / "golden" / "counterexamples"
WORLDS = (
    StreamConfiguration(ack_quorum=1),
    StreamConfiguration(1, 1, 1, 1, entries=0, clients=2, take_overs=2, lost_swaps=1),
    StreamConfiguration(1, 1, 1, 1, clients=2, take_overs=2),
    StreamConfiguration(losses=1),
    StreamConfiguration(1, 1, 1, 1, readers=1, explicit_lac=True),
    StreamConfiguration(2, 1, 1, 1, timeouts=1),
    StreamConfiguration(2, 2, 2, 1, timeouts=1),
    StreamConfiguration(breaks=1),
    StreamConfiguration(3, entries=0, take_overs=0, losses=1, repairers=1, changed=True),
    StreamConfiguration(entries=0, breaks=1, fencing=True),
    StreamConfiguration(1, 1, 1, 1, entries=0, clients=2, take_overs=2, fencing=True),
    StreamConfiguration(1, 1, 1, 1, explicit_lac=True, fencing=True),
)
NOT_MOVED = {
    ("recover", "new", "ended"),  # no client closes the stream
    *(("length_unavailable", "measuring", status) for status in ("measuring", "ended")),  # somebody has it
    *(("waited", "reading", status) for status in ("reading", "measuring", "ended")),
    *(("fence_answered", "reading", status) for status in ("reading", "measuring", "closing", "ended")),
    *((name, "reading", "measuring") for name in ("adds_answered", "replacements_found")),
    *(
        (name, "reading", "closing") for name in ("adds_answered", "replacements_found")
    ),  # one entry at a time is recovered
}
"""Moves that these worlds do not come to; a recovery's dialogues do (tests/golden/recovery, tests/unit/core)."""
KINDS = {
    "client append", "client takes", "client finds", "client timeout", "client break", "client lost swap",
    "client hears add", "client hears fence", "client hears read", "client hears put", "client hears written",
    "client hears truncate", "client waited", "client hears conflict", "client reads", "store swap written", "store swap conflict",
    "reader opens", "reader hears", "reader reads",
    *(f"repairer {kind}" for kind in ("repair", "reads", "list", "copy", "hears copy", "hears written", "clear")),
    *(f"b0 {kind}" for kind in ("copy",)),
    *(f"b0 {kind}" for kind in ("add", "fence", "read", "put", "lac", "loss", "reads", "truncate")),
}  # fmt: skip


@pytest.fixture(scope="module")
def seen():
    seen = Seen()
    switches = replace(SHIPPED, take_over=seen.machine(TakeOverMachine, TAKE_OVER_TABLE.rows))
    for configuration in WORLDS:
        world = StreamWorld(configuration, switches)
        watch = StreamWatch(world)
        result = explore(world, watch, watch.deadlock, count_kinds=True)
        assert result.complete
        assert result.violation is None
        seen.kinds += result.kinds
    return seen


def test_every_kind_of_step_occurs(seen):
    assert KINDS - set(seen.kinds) == set()


def test_a_take_over_moves_as_its_table_says(seen):
    listed = {
        (name, old.value, new.value)
        for name, row in TAKE_OVER_TABLE.rows.items()
        for old, after in row.items()
        for new in after
    }
    found = {(name, old.value, new.value) for _, name, old, new in seen.moves}
    ignored = {move for move in found - listed if move[1] == move[2]}
    assert found - listed == ignored
    assert listed - found == NOT_MOVED
    assert {status for status in RecoveryStatus if status in seen.statuses} == set(RecoveryStatus)


def test_what_a_take_over_says_is_said(seen):
    said = {effects.TakenOver, effects.TakeOverSuperseded, effects.FindLength, effects.FindReplacements}
    assert said <= seen.said


@pytest.mark.parametrize("fencing", [False, True])
@pytest.mark.parametrize(
    "configuration",
    [
        StreamConfiguration(1, 1, 1, 1, entries=2, take_overs=2, explicit_lac=True),
        StreamConfiguration(entries=2, explicit_lac=True),
        pytest.param(StreamConfiguration(ack_quorum=1, entries=2, explicit_lac=True), marks=pytest.mark.slow),
        pytest.param(StreamConfiguration(3, 3, 3, explicit_lac=True), marks=pytest.mark.slow),
    ],
    ids=lambda each: each.name,
)
def test_a_lac_is_below_the_first_entry_of_every_later_term(configuration, fencing):
    """Unless an operator has LACs ignored: so what is taken off a LAC because of the ranges was never true."""
    world = StreamWorld(replace(configuration, fencing=fencing), SHIPPED)
    watch, later = StreamWatch(world), set()

    def look(state):
        ranges = world.stores.parts[state[world.at.store]].record.ranges
        for bookie in world.bookies_of(state):
            lac, term = bookie.known.lac, bookie.known.lac_term
            assert confirmed_in(term, lac, ranges) == lac
            if NO_TERM < term < reach_of(ranges):
                later.add((lac, term, ranges))
        return watch(state)

    result = explore(world, look, watch.deadlock)
    assert result.complete
    assert result.violation is None
    assert later


def test_a_client_that_waits_for_ever_is_found():
    rules = RULES.but(confirms=lambda acked, mask, quorum: False)
    world = StreamWorld(StreamConfiguration(1, 1, 1, 1, take_overs=0), replace(SHIPPED, rules=rules))
    watch = StreamWatch(world)
    violation = explore(world, watch, watch.deadlock).violation
    assert violation is not None
    assert violation.invariant == "F1"


NAIVE = RULES.but(truncate_takes=lambda origin, term: True)


@pytest.mark.parametrize(
    ("returns", "rules", "steps"), [(True, NAIVE, 9), (True, RULES, None), (False, NAIVE, None)]
)
def test_a_returning_slot_that_truncates_loses_what_was_acknowledged_in_the_term(returns, rules, steps):
    """With one rule alone an entry of the writer's own term stays; with neither it is gone after nine steps."""
    world = StreamConfiguration(3, 3, 3, 2, entries=2 if steps else 1, take_overs=0, timeouts=1, fencing=True)
    done = check(world, replace(SHIPPED, returning_truncates=returns, rules=rules), invariants=("U3",))
    assert (done.result.violation and len(done.result.path) - 1) == steps
    assert done.result.complete == (steps is None)


REPAIRED = StreamConfiguration(3, entries=0, take_overs=0, repairers=1, changed=True)


@pytest.mark.parametrize(
    ("rule", "instead", "invariant"),
    [
        ("may_publish", lambda *, missing: True, "RR2"),
        ("counts_as_listed", lambda origin_term, named: True, "RR2"),
        ("counts_as_listed", lambda origin_term, named: True, "F5"),
        ("fragment_is_decided", lambda record, index: True, "I6"),
    ],
)
def test_a_repair_without_a_rule_is_found(rule, instead, invariant):
    world = StreamWorld(REPAIRED, replace(SHIPPED, rules=RULES.but(**{rule: instead})))
    violation = explore(world, StreamWatch(world, (invariant,))).violation
    assert violation is not None
    assert violation.invariant == invariant


def test_a_repair_meets_a_term_above_its_records():
    world = StreamWorld(replace(REPAIRED, take_overs=1))
    state, heard = world.initial(), False
    ways = [
        "repairer 1: repairs, gone b0", "repairer 1: reads OPEN", "repairer 1: lists b1", "repairer 1: lists b2",
        "repairer 1: reads 0 of term 2 for b2: 0", "client 0: takes over", "store: takes v0", "client 0: hears written",
        "b2: takes fence", "b2: takes copies", "repairer 1: hears INVALID_TERM", "repairer 1: lists b2",
        "repairer 1: reads IN_RECOVERY", "repairer 1: lists b1", "repairer 1: lists b2",
        "repairer 1: reads 0 of term 2 for b2: 0", "b2: takes copies of 0..0: 0 of term 2 in term 3",
        "repairer 1: hears OK", "repairer 1: lists b2", "store: takes v1",
    ]  # fmt: skip
    for way in ways:
        label, state = next(
            each for each in world.successors(state) if f"{each[0].actor}: {each[0].command}".startswith(way)
        )
        heard = heard or "INVALID_TERM" in label.command
    assert heard
    assert StreamWatch(world)(state) is None
    record = world.stores.parts[state[world.at.store]].record
    assert record.fragments[0].ensemble == ("b2", "b1")


AS_THE_SOURCE_TELLS_IT = [
    "client 0 writes entry 0 of term 1",
    "b0 stores entry 0 of term 1",
    "client 1 takes the stream over in term 2 (b1 and b2 take the term); it is open from entry 0 on",
    "client 1 writes entry 0 of term 2",
    "b1 and b2 store entry 0 of term 2: entry 0 of term 2 is acknowledged",
    "bookies differ at entry 0: b0 has that of term 1, b1 and b2 have that of term 2",
]


def saved(name):
    return replay_mutant(name, (COUNTEREXAMPLES / f"{name}.txt").read_text())


def test_the_divergence_is_told_as_its_source_tells_it():
    """ "c1 writes entries"; "only persisted to b1"; "c2 takes over"; "c2 writes the entry"; "acknowledge it"; "divergence"."""
    assert saved("D6").tale == AS_THE_SOURCE_TELLS_IT


@pytest.mark.parametrize("name", [mutant.name for mutant in (*STREAM_MUTANTS, *FENCING_MUTANTS)])
def test_each_counterexample_is_told_in_a_few_sentences(name):
    done = saved(name)
    assert 1 <= len(done.tale) < len(done.result.path)
    assert done.tale[-1].startswith(("bookies differ", done.result.violation.text))


def test_what_is_overwritten_truncated_and_replaced_is_told():
    assert "b0 stores the no-op 0 of term 2 over that of term 1" in " ".join(saved("X25").tale)
    assert "entry 1 of term 2 is lost at b1" in saved("late-truncate").tale
    assert "client 1 goes on with b0, b1 and b2 from entry 1 on" in saved("D9").tale
    assert "b0 loses its disk" in saved("X48").tale


def test_an_invariant_that_does_not_exist_is_refused():
    world = StreamWorld(StreamConfiguration())
    with pytest.raises(ValueError, match="no such invariant: I1"):
        StreamWatch(world, ("I1",))
    assert "U1" in STREAM_INVARIANTS


def test_a_state_is_told_part_by_part():
    world = StreamWorld(StreamConfiguration(readers=1))
    rows = dict(stream_rows(world, world.initial()))
    assert rows["record"] == "OPEN term 1, ranges 1>0; 0:[b0 b1]"
    assert rows["b0"] == "entries none, term 0, LAC -1"
    assert rows["client 0"] == "writing in term 1, acknowledged nothing"
    assert rows["client 1"] == "not started, acknowledged nothing"
    assert rows["reader 1"] == "LAC -1, has read nothing"

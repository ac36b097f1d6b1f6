"""The small configurations, completely: nothing broken, counts as pinned, everything exercised.

A changed count is a changed protocol, or a changed world: pin it again with `tools/pin_counts.py` and say why.
"""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from dataclasses import fields, replace
from pathlib import Path

import pytest

from quire.core.rules import RULES
from quire.proof.calibration import ClassicWorld
from quire.proof.check import check
from quire.proof.configuration import Configuration
from quire.proof.continuous import CALIBRATION, CALIBRATION_COUNTS, CONTINUOUS, LONG, SMALL, line_of, lines
from quire.proof.explorer import explore
from quire.proof.log_parts import LogConfiguration
from quire.proof.reach import recovery_is_done, stranded
from quire.proof.switches import SHIPPED
from quire.proof.symmetry import Symmetry
from quire.proof.world import World
from support.rounds import PROOF, keep_figures

TRANSITIONS_IN_TEST = 1_500_000
PINNED = json.loads((Path(__file__).parent / "pinned_counts.json").read_text())


def holds(configuration):
    line = line_of(configuration)
    assert not line.violation, line.transcript
    assert line.complete
    assert list(line.counts) == PINNED["counts"][line.name]
    return line


@pytest.mark.parametrize("configuration", SMALL, ids=lambda each: each.name)
def test_a_small_world_holds(configuration):
    holds(configuration)


@pytest.mark.explore
@pytest.mark.timeout(1800)
def test_explorer_continuous():
    """Every configuration of the continuous set and the calibration, complete, side by side on two cores.

    `make test` leaves the few largest to `make proof`.
    """
    begun = time.perf_counter()
    wanted = [each for each in CONTINUOUS if PROOF or PINNED["counts"][each.name][1] <= TRANSITIONS_IN_TEST]
    found = list(lines((None, *wanted)))
    seconds = time.perf_counter() - begun
    assert [line.transcript for line in found if line.violation or not line.complete] == []
    expected = {**PINNED["counts"], CALIBRATION: list(CALIBRATION_COUNTS)}
    counts = {line.name: list(line.counts) for line in found}
    assert counts == {name: expected[name] for name in counts}
    cpu = sum(line.cpu_seconds for line in found)
    transitions = sum(line.transitions for line in found)
    large = [line for line in found if line.cpu_seconds > 1 and line.name != CALIBRATION]
    keep_figures(
        "explorer_continuous",
        {
            "configurations": len(found),
            "states": sum(line.states for line in found),
            "transitions": transitions,
            "violations": 0,
            "seconds_on_two_cores": round(seconds),
            "cpu_seconds": round(cpu),
            "transitions_a_cpu_second": round(transitions / cpu),
            "of_the_slowest_world": round(min(line.transitions / line.cpu_seconds for line in large)),
        },
        seed=None,
    )


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("configuration", LONG, ids=lambda each: each.name)
def test_explorer_long(configuration):
    line = holds(configuration)
    kept("explorer_" + re.sub(r"[^a-z0-9]+", "_", line.name.lower()), line.counts, line.cpu_seconds)


def kept(name, counts, cpu_seconds):
    states, transitions, depth = counts
    figures = {"states": states, "transitions": transitions, "depth": depth, "violations": 0}
    rate = round(transitions / cpu_seconds)
    keep_figures(
        name, {**figures, "cpu_seconds": round(cpu_seconds), "transitions_a_cpu_second": rate}, seed=None
    )


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_explorer_calibration():
    """The public classic specification with two acknowledgements: the states and the depth of TLC.

    TLC generates 24,000 successors more (6,965,623) on its way to the same states; why has not been followed up.
    """
    world = ClassicWorld(ack_quorum=2)
    begun = time.process_time()
    result = explore(world, world.violation)
    assert (result.states, result.generated, result.depth + 1) == (1_795_149, 6_941_623, 27)
    assert result.complete
    kept(
        "explorer_calibration",
        (result.states, result.transitions, result.depth + 1),
        time.process_time() - begun,
    )


@pytest.mark.parametrize(
    "configuration",
    [
        Configuration(2, 2, 2, 2),
        Configuration(2, 2, 2, 1, timeouts=1, reruns=1),
        Configuration(2, 2, 2, 2, crashes=1, reruns=1),
        Configuration(3, 2, 2, 2, timeouts=1, reruns=1),
        Configuration(2, 2, 2, 2, entries=2),
    ],
    ids=lambda each: each.name,
)
def test_a_recovery_can_always_still_be_done(configuration):
    world = World(configuration)
    assert stranded(world, recovery_is_done(world), Symmetry(world)) == []


def test_a_recovery_whose_adds_are_refused_is_stranded():
    rules = replace(RULES, add_allowed=lambda *, fenced, recovery: not fenced)
    world = World(Configuration(2, 2, 2, 2), replace(SHIPPED, rules=rules))
    assert stranded(world, recovery_is_done(world), Symmetry(world))


EXERCISED = (
    Configuration(2, 2, 2, 2, crashes=1, closes=True),
    Configuration(2, 2, 2, 2, breaks=1),
    Configuration(3, 2, 2, 2, timeouts=1, absent=True, explicit_lac=True),
    Configuration(2, 2, 2, 1, timeouts=1, lost_swaps=1, closes=True, reruns=1),
    Configuration(2, 2, 2, 2, damages=1),
    Configuration(2, 2, 2, 2, window=2),
    Configuration(3, 2, 2, 1, timeouts=1, lost_swaps=1, absent=True),
    Configuration(2, 2, 2, 2, deletions=1),
    Configuration(2, 2, 2, 1, timeouts=1, recoverers=0, explicit_lac=True, readers=1),
    Configuration(3, 2, 2, 1, timeouts=1, breaks=1, explicit_lac=True, recoverers=0, readers=1),
    LogConfiguration(2, 3, 1),
    LogConfiguration(1, 3, 2, lost_swaps=1, trims=1),
)
KINDS = {
    "writer append", "writer close", "writer timeout", "writer timer", "writer found", "writer hears add",
    "writer hears written", "writer hears conflict", "writer reads", "writer lost swap", "writer break",
    "recoverer starts", "recoverer hears fence", "recoverer hears read", "recoverer hears put",
    "recoverer hears written", "recoverer hears conflict", "recoverer reads", "recoverer timeout", "recoverer finds",
    "store swap written", "store swap conflict", "store swap missing", "owner delete",
    "b0 add", "b0 put", "b0 fence", "b0 read", "b0 lac", "b0 sync", "b0 crash", "b0 damage",
    "reader record", "reader record again", "reader lac", "reader poll", "reader begin", "reader entries",
    "truncation truncate", "truncation reads", "truncation hears", "truncation deletes",
    "handle open", "handle append", "handle roll", "handle closes", "handle retries", "ledger stored", "ledger refused",
}  # fmt: skip


def test_every_rule_message_and_transition_is_exercised():
    calls: Counter[str] = Counter()

    def counted(name):
        rule = getattr(RULES, name)

        def call(*args, **kwargs):
            calls[name] += 1
            return rule(*args, **kwargs)

        return call

    names = [field.name for field in fields(RULES) if field.name != "no_entry"]
    switches = replace(SHIPPED, rules=replace(RULES, **{name: counted(name) for name in names}))
    kinds: Counter[str] = Counter()
    for configuration in EXERCISED:
        result = check(configuration, switches, count_kinds=True).result
        assert result.violation is None
        kinds += result.kinds
    assert [name for name in names if not calls[name]] == []
    assert sorted(KINDS - kinds.keys()) == [], sorted(kinds)

"""The small configurations, completely: nothing broken, counts as pinned, everything exercised.

A changed count is a changed protocol, or a changed world: pin it again with `tools/pin_counts.py` and say why.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import fields, replace
from pathlib import Path

import pytest

from quire.core.rules import RULES
from quire.proof.calibration import ClassicWorld
from quire.proof.check import check
from quire.proof.configuration import Configuration
from quire.proof.continuous import CALIBRATION, CALIBRATION_COUNTS, LARGE, SMALL, line_of
from quire.proof.explorer import explore
from quire.proof.log_world import LogConfiguration
from quire.proof.reach import recovery_is_done, stranded
from quire.proof.switches import SHIPPED
from quire.proof.symmetry import Symmetry
from quire.proof.world import World

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


@pytest.mark.slow
@pytest.mark.parametrize("configuration", LARGE, ids=lambda each: each.name)
def test_a_large_world_holds(configuration):
    holds(configuration)


def test_the_classic_specification_gives_the_counts_of_tlc():
    line = line_of(None)
    assert line.name == CALIBRATION
    assert line.counts == CALIBRATION_COUNTS
    assert not line.violation


@pytest.mark.slow
def test_the_classic_specification_with_two_acknowledgements():
    world = ClassicWorld(ack_quorum=2)
    result = explore(world, world.violation)
    assert (result.states, result.generated, result.depth + 1) == (1_795_149, 6_965_623, 27)


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
    LogConfiguration(2, 3, 1),
)
KINDS = {
    "writer append", "writer close", "writer timeout", "writer timer", "writer found", "writer hears add",
    "writer hears written", "writer hears conflict", "writer reads", "writer lost swap", "writer break",
    "recoverer starts", "recoverer hears fence", "recoverer hears read", "recoverer hears put",
    "recoverer hears written", "recoverer hears conflict", "recoverer reads", "recoverer timeout", "recoverer finds",
    "store swap written", "store swap conflict", "store swap missing", "owner delete",
    "b0 add", "b0 put", "b0 fence", "b0 read", "b0 lac", "b0 sync", "b0 crash", "b0 damage",
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

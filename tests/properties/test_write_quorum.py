"""A ledger's guaranteed write quorum, whatever happens next to its writer; and each of its fixes taken out.

Source: docs/protocol/write-quorum.md.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire_testing.explorer.mutants import MUTANTS
from quire_testing.explorer.switches import RULES, Rules
from support.writer_worlds import TRIPLES, WAITS, World


@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from([triple for triple in TRIPLES if triple[0] <= 4 and triple[1] > triple[2]]),
    st.integers(0, 3),
    st.booleans(),
    st.sampled_from(WAITS),
    st.lists(st.integers(0, 1 << 16), max_size=120),
)
def test_a_guaranteed_write_quorum_is_kept_whatever_happens_next(
    triple, spares, recoverer, wait_ms, choices
) -> None:
    world = World(triple, RULES, spares=spares, recoverer=recoverer, wait_ms=wait_ms, guarantee=True)
    world.play(choices)
    world.settle()


@pytest.mark.parametrize("name", ["D10", "X43", "may_replace"])
def test_every_fix_of_the_guarantee_that_is_taken_out_is_noticed(name) -> None:
    with MUTANTS[name].switches.applied():
        is_noticed(MUTANTS[name].switches.rules)


def is_noticed(rules: Rules) -> None:
    for seed in range(4000):
        chance = random.Random(seed)
        triple, spares = chance.choice([(3, 3, 2), (2, 2, 1), (3, 2, 1)]), chance.randrange(3)
        world = World(triple, rules, spares=spares, recoverer=False, guarantee=True)
        try:
            world.play(chance.randrange(1 << 16) for _ in range(60))
            world.settle()
        except AssertionError:
            return
    pytest.fail("no run noticed it")

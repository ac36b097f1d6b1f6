"""A batch of a sink is in its log once, in every interleaving of deaths, lost answers and deletions of small worlds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from quire.core.log.commit import COMMIT_RULES
from support.commit_world import WITHOUT_POSITIONS, Config, walk

WORLDS = {
    "two batches, a driver that lingers": (Config(deaths=1, gives_up=0, others=0), 2930),
    "two batches, a driver that gives up": (Config(deaths=1, lingers=False, others=0), 1957),
    "two lost answers": (Config(batches=1, lost=2, deaths=0), 876),
    "a collector": (Config(batches=1, gives_up=0, others=0, collects=1), 13_920),
    "a leader": (Config(batches=1, led=True, gives_up=0, others=2), 12_957),
    "without a position": (Config(batches=1, marked=False, deaths=0, gives_up=0, lost=2, others=2), 461),
}


@pytest.mark.parametrize("name", WORLDS)
def test_every_interleaving_keeps_each_batch_once(name):
    config, states = WORLDS[name]
    found = walk(config)
    assert found.broken == "", "\n".join(found.path)
    assert found.ended, "no way leads to the end"
    assert found.states == states


MUTANTS = {
    "no position": (
        Config(batches=1, rules=replace(COMMIT_RULES, positions=WITHOUT_POSITIONS)),
        "batch 0 has 4 of 2 ledgers in the list",
    ),
    "an abort that does not look": (Config(batches=1, looks=False, deaths=0), "is listed and deleted"),
    "a compare-and-swap that does not require its ledgers": (
        Config(batches=1, rules=replace(COMMIT_RULES, requires_ledgers=lambda: False)),
        "is listed and deleted",
    ),
    "batches without a number": (Config(batches=1, marked=False), "batch 0 has 4 of 2 ledgers in the list"),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_with_a_protection_taken_out_the_world_breaks(name):
    config, wrong = MUTANTS[name]
    found = walk(config)
    assert wrong in found.broken
    assert found.path


def test_a_ledger_that_joins_beside_an_open_one_makes_an_impossible_list():
    rules = replace(COMMIT_RULES, may_place_now=lambda _: True)
    with pytest.raises(Exception, match="a closed ledger follows an open one"):
        walk(Config(batches=1, led=True, rules=rules))

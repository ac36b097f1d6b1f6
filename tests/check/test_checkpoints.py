"""A checkpoint that went back or was copied loses no row and writes none twice, in every interleaving of small worlds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from quire.core.log.sink_positions import POSITION_RULES
from support.checkpoint_world import NUMBERS_ALONE, CheckpointWorld, Config
from support.commit_world import search

STATES_MAX = 300_000
WORLDS = {
    "it loses its last batches": (Config(cuts=1, deaths=1), 506),
    "it loses them twice, and some rows are not written": (Config(rows=4, cuts=2, filtered=(1,)), 840),
    "it is copied": (Config(copies=1), 1668),
    "it is copied, and some rows are not written": (Config(rows=4, copies=1, filtered=(1, 2)), 4510),
    "it is copied and cut": (Config(copies=1, cuts=1, filtered=(1,)), 6200),
    "older programs commit some batches": (Config(rows=4, deaths=1, older=2), 1381),
}


@pytest.mark.parametrize("name", WORLDS)
def test_every_row_is_there_once_or_an_error_says_why_not(name):
    config, states = WORLDS[name]
    found = search(CheckpointWorld(config), STATES_MAX)
    assert found.broken == "", "\n".join(found.path)
    assert found.ended, "no way leads to the end"
    assert found.states == states


MUTANTS = {
    "numbers alone, as before": (Config(cuts=1, rules=NUMBERS_ALONE), "noted and not in the log"),
    "numbers alone, a copy": (Config(copies=1, rules=NUMBERS_ALONE), "noted and not in the log"),
    "a number below the sink position is dropped": (
        Config(cuts=1, rules=replace(POSITION_RULES, is_behind=lambda *_: False)),
        "noted and not in the log",
    ),
    "fingerprints are not compared": (
        Config(copies=1, filtered=(1,), rules=replace(POSITION_RULES, is_same_batch=lambda *_: None)),
        "noted and not in the log",
    ),
    "a fingerprint is taken for the sink position's, whatever batch it names": (
        Config(
            older=2,
            rules=replace(
                POSITION_RULES,
                fingerprint_of=lambda position: (
                    position.fingerprint and replace(position.fingerprint, batch_id=position.batch_id)
                ),
            ),
        ),
        "a whole checkpoint is refused",
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_with_a_judgement_taken_out_a_row_is_lost_or_a_whole_checkpoint_refused(name):
    config, wrong = MUTANTS[name]
    found = search(CheckpointWorld(config), STATES_MAX)
    assert wrong in found.broken
    assert found.path

"""Streams in walks and in whole programs: clients that take a stream over from each other, and what becomes of entries.

Source: docs/protocol/streams.md; docs/simulation.md, "The world".
"""

from __future__ import annotations

import pytest

from quire_testing.explorer.mutants import MUTANTS
from quire_testing.sim.mutants import parts_of
from quire_testing.sim.run import simulate
from quire_testing.sim.walk_campaign import some_walks
from quire_testing.sim.walk_mixes import FENCING_MIXES, STREAM_MIXES
from quire_testing.sim.walks import walks_of
from support.rounds import FULL
from support.seeds import run_seeds

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
"""A process that is killed, or a world that ends, drops its coroutines in the middle of whatever they wait for."""

WALKED = (
    "client append",
    "client break",
    "client finds",
    "client hears conflict",
    "client hears put",
    "client lost swap",
    "client takes",
    "client timeout",
    "b0 loss",
    "reader hears",
    "reader reads",
    "store swap conflict",
)


@pytest.mark.timeout(36_000)
def test_no_walk_of_a_stream_breaks_an_invariant() -> None:
    """Worlds that are too large to be explored; each walk ends where nothing more can happen."""
    run_seeds(
        "walks_of_streams",
        60,
        1_000_000,
        mixes=STREAM_MIXES,
        seen=WALKED,
        runs=some_walks,
        unit="walks",
        steps="steps",
    )


@pytest.mark.timeout(36_000)
def test_no_walk_of_a_stream_whose_terms_only_fence_breaks_an_invariant() -> None:
    """The same worlds, with truncations."""
    run_seeds(
        "walks_of_fencing_streams",
        30,
        1_000_000,
        mixes=FENCING_MIXES,
        seen=(*(step for step in WALKED if step != "b0 loss"), "b0 truncate", "client hears truncate"),
        runs=some_walks,
        unit="walks",
        steps="steps",
    )


FOUND = {
    "X23": ("stream", 0),
    "X24": ("stream", 14),
    "X33": ("stream", 0),
    "own-term": ("stream-losses", 0),
    "X46": ("stream-losses", 3),
    "X58": ("stream", 62),
    "X47": ("stream", 13),
    "X49": ("stream-striped", 20),
}
"""Of each fix the first seed of a walk that breaks its invariant; 400 of each mix did not find X48."""


@pytest.mark.parametrize("name", FOUND)
def test_a_walk_finds_a_fix_of_streams_that_is_taken_out(name: str) -> None:
    mix, seed = FOUND[name]
    violation = walks_of(mix, MUTANTS[name].switches).walk(seed).violation
    assert violation is not None
    assert violation.invariant == MUTANTS[name].violated
    assert walks_of(mix).walk(seed).violation is None


SEEN = (
    "a leader serves a stream",
    "a tail follows a stream",
    "a take-over begins",
    "a take-over is done",
    "resolve: kept",
    "resolve: lost",
    "stream: term_superseded",
    "the ensemble of a stream changes",
    "fault: pause",
    "fault: power",
    "fault: clock jump",
    "fault: lost for ever",
    "a repair ends: whole",
    "an answer of the metadata store is lost after the change",
)


@pytest.mark.timeout(36_000)
def test_no_simulated_take_over_breaks_an_invariant() -> None:
    """Two leaders at a time; what `resolve` says of each append is held against what readers saw. RR2 and F5 of what is repaired."""
    run_seeds("simulated_take_overs", 16, 100_000, mixes=("streams",), seen=SEEN, words=("repair",))


SEEN_OF_FENCING = (*(each for each in SEEN if each != "a repair ends: whole"), "a no-op is read")


@pytest.mark.timeout(36_000)
def test_no_simulated_take_over_of_a_stream_whose_terms_only_fence_breaks_an_invariant() -> None:
    """The same judge. A no-op is an entry for it; a tail may pass over no-ops only; U2 of what each bookie has under an id."""
    run_seeds(
        "simulated_fencing_take_overs",
        3,
        100_000,
        mixes=("fencing",),
        seen=SEEN_OF_FENCING if FULL else ("a take-over is done", "a no-op is read"),
        words=("repair",),
    )


FOUND_BY_RUNS = {"X23": 2, "X33": 0, "own-term": 13, "X49": 35}
"""Of each fix the first seed that breaks something without it; 130 did not find X24, 60 not X47 and X48, and readers go by
fixed rules."""


@pytest.mark.parametrize("name", FOUND_BY_RUNS)
def test_a_run_finds_a_fix_of_streams_that_is_taken_out(name: str) -> None:
    seed = FOUND_BY_RUNS[name]
    assert simulate(seed, "streams", parts=parts_of(name)).violations
    assert not simulate(seed, "streams").violations

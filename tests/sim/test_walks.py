"""Random walks of the machines that ship: no invariant breaks, a seed is one walk, a failure becomes short."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import pairwise

import pytest
from typer.testing import CliRunner

from quire.cli.main import app
from quire_testing.explorer.story import exchanges, replayed
from quire_testing.explorer.switches import SHIPPED
from quire_testing.sim.walk_campaign import shortest, some_walks, switches_of, walk_text
from quire_testing.sim.walk_mixes import FENCING_MIXES, QUORUM_MIXES, STREAM_MIXES, WALK_MIXES
from quire_testing.sim.walks import LedgerWalks, walks_of
from support.seeds import run_seeds

SOMETIMES = {
    "b0 crash", "b0 damage", "b0 sync", "handle closes", "handle open", "handle recover", "handle retries", "ledger refused",
    "owner delete", "reader entries", "reader poll", "recoverer break", "recoverer hears conflict",
    "recoverer hears put", "recoverer lost swap", "recoverer timeout", "recovery ends: closed",
    "recovery ends: failed NO_LEDGER", "recovery ends: inconclusive", "store swap conflict", "truncation deletes",
    "writer break", "writer close", "writer ends: closed", "writer ends: ended", "writer found", "writer hears conflict",
    "writer lost swap", "writer reads", "writer timeout",
}  # fmt: skip
"""What the fixed seeds must have seen: otherwise they prove less than they seem to."""

OWN_TESTS = (*STREAM_MIXES, *FENCING_MIXES, *QUORUM_MIXES)
"""tests/sim/test_streams.py and tests/sim/test_write_quorum.py."""

PRINT_WALKS = """
import sys, zlib
from quire_testing.sim.walk_campaign import walk_text
from quire_testing.sim.walk_mixes import WALK_MIXES
from quire_testing.sim.walks import walks_of
for mix in WALK_MIXES:
    print(mix, zlib.crc32(walk_text(walks_of(mix).walk(int(sys.argv[1]))).encode()))
"""


@pytest.mark.timeout(36_000)
def test_no_walk_breaks_an_invariant_and_everything_is_seen() -> None:
    """Few in `make test`, a million in `make full`."""
    run_seeds(
        "walks_of_the_machines",
        600,
        1_000_000,
        mixes=tuple(mix for mix in WALK_MIXES if mix not in OWN_TESTS),
        seen=tuple(sorted(SOMETIMES)),
        runs=some_walks,
        unit="walks",
        steps="steps",
    )


@pytest.mark.parametrize("mix", WALK_MIXES)
def test_a_seed_is_one_walk_whatever_was_walked_before(mix: str) -> None:
    used = walks_of(mix)
    for seed in range(20):
        used.walk(seed)
    fresh = type(used)(mix, WALK_MIXES[mix].world, SHIPPED)
    one, other = used.walk(7), fresh.walk(7)
    assert [label for label, _ in one.path] == [label for label, _ in other.path]
    assert one.seen == other.seen


def test_a_seed_is_the_same_walk_in_another_process_with_another_order_of_sets() -> None:
    said = []
    for hash_seed in ("1", "4711"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)}
        told = subprocess.run(
            [sys.executable, "-c", PRINT_WALKS, "11"],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        said.append(told.stdout)
    assert said[0] == said[1]
    assert len(said[0].splitlines()) == len(WALK_MIXES)


def test_a_walk_takes_steps_of_the_explorers_world_only() -> None:
    for mix in ("network", "crashes", "readers"):
        walks = walks_of(mix)
        assert isinstance(walks, LedgerWalks)
        for (_, before), step in pairwise(walks.walk(3).path):
            assert step in walks.world.successors(before)


@pytest.mark.parametrize(
    "mutant", [*("X3", "X17"), *(pytest.param(each, marks=pytest.mark.slow) for each in ("D8", "X11"))]
)
def test_a_failing_walk_becomes_a_short_transcript_that_replays(mutant: str) -> None:
    seeds = range(1_000_000, 1_010_000)
    failure = some_walks(("duel", "network", "crashes"), seeds, mutant).failures[0]
    walks = walks_of(failure.mix, switches_of(mutant))
    walk = walks.walk(failure.seed)
    smallest = shortest(walk, mutant)
    assert smallest.steps < walk.steps
    assert smallest.violation is not None
    text = walk_text(smallest, mutant)
    assert f"# VIOLATED {smallest.violation.invariant}" in text
    last = replayed(walks.world, exchanges(text))[-1][1]
    assert walks.watch(last) == smallest.violation


def test_the_command_line_walks() -> None:
    many = CliRunner().invoke(app, ["simulate", "--level", "machines", "--schedules", "20", "--json"])
    assert many.exit_code == 0, many.output
    assert '"level": "machines"' in many.stdout
    one = CliRunner().invoke(app, ["simulate", "--level", "machines", "--seed", "5", "--mix", "duel"])
    assert one.exit_code == 0
    assert "writer: append 1\n----\n" in one.stdout
    broken = CliRunner().invoke(
        app, ["simulate", "--level", "machines", "--mix", "duel", "--mutant", "X17", "--schedules", "500"]
    )
    assert broken.exit_code == 1
    assert "# VIOLATED I2" in broken.stdout

"""A stream into a log, exactly once: every process that takes part is killed at every step of the sink.

The seeds of `make test` are few; `make full` runs a thousand, and goes on where it was cut off if `QUIRE_SINK_ROUNDS`
names a file. Each protection taken out turns a round red.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path

import pytest

from support.etcd_server import own_server
from support.shared_server import or_skip
from support.sink_faults import PLANNED, VICTIMS, Fault, Life
from support.sink_rounds import Round, Rounds, round_of

pytestmark = pytest.mark.faults


@pytest.fixture(scope="module")
def etcd(tmp_path_factory):
    """A metadata store that may be killed, or why there is none."""
    return own_server(tmp_path_factory.mktemp("etcd"))


@pytest.fixture(scope="module")
def cluster(etcd, tmp_path_factory):
    server = None if isinstance(etcd, str) else etcd
    with Rounds(tmp_path_factory.mktemp("sink-rounds"), server) as found:
        yield found


def test_the_metadata_store_can_be_killed(etcd, cluster):
    """Where it cannot, everything here runs over a file, whose only faults are answers that are lost."""
    or_skip(etcd)
    assert cluster.victims == VICTIMS


def facts_of(played):
    return {
        "seed": played.seed,
        "planned": played.planned,
        "struck": played.struck,
        "as_planned": played.struck_as_planned,
        "forgets": played.forgets,
        "other": played.other,
        "ended": played.ended,
        "missing": played.missing,
        "duplicates": played.duplicates,
        "disordered": played.disordered,
    }


@pytest.mark.timeout(14400)
def test_each_row_is_there_once_after_any_kill(cluster, chance, rounds, record):
    kept = Path(os.environ.get("QUIRE_SINK_ROUNDS", os.devnull))
    facts = [json.loads(line) for line in kept.read_text().splitlines()] if kept.is_file() else []
    first = facts[0]["seed"] if facts else chance.getrandbits(32)
    done = {each["seed"] for each in facts}
    with kept.open("a") as file:
        for seed in range(first, first + rounds(1000, 3)):
            if seed in done:
                continue
            played = cluster.run(round_of(seed, cluster.victims))
            assert played.good, played
            facts.append(facts_of(played))
            file.write(json.dumps(facts[-1]) + "\n")
            file.flush()
    figures, rows = table(facts, cluster.victims)
    record("spark_exactly_once", figures, rows=rows)


def table(facts, victims):
    """What the rounds come to: sums, and a row for each victim, phase and step."""
    killed = Counter(tuple(kill) for each in facts for kill in each["struck"])
    steps = {(victim, phase, step) for victim, phase, _, step in PLANNED if victim in victims}
    figures = {
        "seeds": len(facts),
        "kills": sum(killed.values()),
        "struck_as_planned": sum(each["as_planned"] for each in facts),
        "last_notes_deleted": sum(each["forgets"] for each in facts),
        "duplicates": sum(each["duplicates"] for each in facts),
        "missing": sum(each["missing"] for each in facts),
        "disordered": sum(each["disordered"] for each in facts),
        "killed": dict(Counter(kill[0] for kill in killed.elements())),
        "steps": len(steps),
        "steps_struck": sum(1 for step in steps if killed[step]),
    }
    rows = [
        {"victim": victim, "phase": phase, "step": step, "kills": killed[victim, phase, step]}
        for victim, phase, step in sorted(steps, key=lambda each: (VICTIMS.index(each[0]), each[1:]))
    ]
    return figures, rows


RED = {
    # The driver dies between the compare-and-swap and the note of it.
    "no position": Fault("driver", "noting", "driver"),
    # The compare-and-swap is done, the commit raises, Spark aborts with the same messages.
    "unsafe abort": Fault("commit", "swapped", "", how="raise"),
    # A worker dies after its rows are written, and the task is tried again.
    "naive": Fault("worker", "staged", "worker"),
}


@pytest.mark.slow
@pytest.mark.parametrize("sink", RED)
def test_without_a_protection_a_row_is_lost_or_there_twice(cluster, sink):
    lives = [Life((RED[sink],))]
    played = cluster.run(Round(len(sink), lives, sink=sink))
    assert played.struck or played.other
    assert not played.good, played
    healthy = cluster.run(Round(len(sink), lives))
    assert healthy.struck or healthy.other
    assert healthy.good, healthy

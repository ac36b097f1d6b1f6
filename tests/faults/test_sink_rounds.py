"""A stream into a log, exactly once: its driver is killed, stopped and failed at any step, its swaps' answers are lost.

The seeds of `make test` are few and fixed; `make proof` runs a thousand. Each protection taken out turns a round red.
"""

from __future__ import annotations

from collections import Counter

import pytest

from support.sink_life import Life
from support.sink_rounds import Round, Rounds, round_of

pytestmark = pytest.mark.faults


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with Rounds(tmp_path_factory.mktemp("sink-rounds")) as found:
        yield found


@pytest.mark.timeout(7200)
def test_each_row_is_there_once_after_any_kill(cluster, chance, rounds, record):
    first = chance.getrandbits(32)
    steps, lives = Counter(), 0
    total = rounds(1000, 3)
    for number in range(total):
        played = cluster.run(round_of(first + number))
        assert played.good, played
        steps.update(played.steps)
        lives += len(played.lives)
    figures = {
        "seeds": total,
        "duplicates": 0,
        "missing": 0,
        "lives_with_a_fault": lives,
        "ended_at": dict(sorted(steps.items())),
    }
    record("stream_into_a_log", figures)


RED = {
    # The driver dies between the swap and the note of it.
    "no mark": (Life(killed_at=18), "noting"),
    # The swap is done, the commit raises, Spark aborts with the same messages.
    "unsafe abort": (Life(fails_at=16), "swapped"),
    # A task fails after its rows are written, and is tried again.
    "naive": (Life(fails_at=2), "staged"),
}


@pytest.mark.parametrize("sink", RED)
def test_without_a_protection_a_row_is_lost_or_there_twice(cluster, sink):
    life, step = RED[sink]
    played = cluster.run(Round(len(sink), [life], sink=sink))
    assert played.steps[0] == step
    assert not played.good, played
    healthy = cluster.run(Round(len(sink), [life]))
    assert healthy.good, healthy

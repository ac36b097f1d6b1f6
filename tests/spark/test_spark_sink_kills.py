"""Real drivers of Spark: the JVM, a worker or a planner is killed at a step of the sink, then the query is run again.

A JVM takes seconds to start, so this is for `make proof`; the mass of seeds is in tests/faults/test_sink_rounds.py.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections import Counter
from itertools import groupby
from pathlib import Path

import pytest

from support.rounds import keep_figures, rounds

pytestmark = [pytest.mark.spark, pytest.mark.slow]

DRIVER = Path(__file__).resolve().parents[1] / "support" / "spark_sink_driver.py"
SEED = int(os.environ.get("QUIRE_SEED", "20261121"))
FILES = 3
STEPS = 50


def drive(uri, folder, log, number=0, victim="none"):
    """Run the query in a driver of its own; whether it came to its end."""
    command = [sys.executable, str(DRIVER), uri, str(folder), log, str(number), victim]
    return subprocess.run(command, check=False, capture_output=True).returncode == 0


@pytest.mark.timeout(7200)
def test_each_line_is_in_the_log_once_after_a_kill(own_cluster, tmp_path):
    chance = random.Random(SEED)
    victims, steps = Counter(), Counter()
    total = rounds(2, 30)
    for number in range(total):
        log, folder = f"killed-{number}", tmp_path / str(number)
        (folder / "input").mkdir(parents=True)
        lines = [[f"{file}/{line}" for line in range(10)] for file in range(FILES)]
        for file, part in enumerate(lines):
            (folder / "input" / f"{file}.txt").write_text("\n".join(part))

        async def create(client, log=log):
            await client.log(log).create()

        own_cluster.run(create)
        victim = chance.choice(["jvm", "self"])
        at = chance.randint(1, STEPS)
        ended = drive(own_cluster.uri, folder, log, at, victim)
        reached = [path.name for path in (folder / "steps").iterdir() if path.name.startswith(f"{at:04}-")]
        steps.update(name.split("-")[1] for name in reached)
        victims[victim if reached else "none"] += 1
        assert ended or drive(own_cluster.uri, folder, log)

        async def read(client, log=log):
            return [record.value.decode() async for record in client.log(log).read()]

        found = own_cluster.run(read)
        assert sorted(found) == sorted(line for part in lines for line in part), (number, at, victim)
        # Spark takes the files in the order of their times; a batch stands together.
        assert len(list(groupby(found, key=lambda line: line.split("/")[0]))) == FILES
    figures = {"seeds": total, "duplicates": 0, "missing": 0, "killed": dict(victims), "at": dict(steps)}
    keep_figures("spark_into_a_log", figures, seed=SEED)

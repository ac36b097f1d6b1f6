"""Random schedules of faults around a stream: every row once, or an error that says why not.

`make test` plays a small one in the session of all tests; `make full` plays two hundred with processes of their own that
are killed and stopped, and goes on where it was cut off if `QUIRE_SPARK_SCHEDULES` names a file.
"""

from __future__ import annotations

import dataclasses
import json
import os
import random
import signal
import threading
from collections import Counter
from pathlib import Path

import pytest
from pyspark import cloudpickle

from support import spark_streams
from support.rounds import FULL, keep_figures, rounds
from support.sink_cluster import SinkCluster
from support.spark_driver_process import SparkDriverProcess
from support.spark_schedules import FAULTS, KINDS, Event, Player, Schedule, schedule_of
from support.spark_streams import Streams

pytestmark = [pytest.mark.spark, pytest.mark.timeout(14400)]

SEED = int(os.environ.get("QUIRE_SEED", "20261122"))
TESTS = Path(__file__).resolve().parents[1]


async def create(client, log):
    await client.log(log).create()


async def append(client, log, rows):
    async with await client.log(log).open_writer() as writer:
        await writer.append_many([row.encode() for row in rows])


async def values(client, log):
    return [record.value.decode() async for record in client.log(log).read()]


class Logs:
    """The logs of a cluster; `run` runs a coroutine function with its client."""

    def __init__(self, run):
        self._client = run

    def create(self, log):
        self._client(create, log)

    def append(self, log, rows):
        self._client(append, log, rows)

    def values(self, log):
        return self._client(values, log)


@pytest.mark.slow
def test_a_small_schedule_ends_with_every_row_once(spark, cluster, tmp_path):
    cloudpickle.register_pickle_by_value(spark_streams)  # the workers of this session do not find the tests
    try:
        player = Player(Logs(cluster.run), Streams(spark, cluster.uri).run, tmp_path)
        played = player.play(Schedule(1, "sink", [Event("executor", nth=4), Event("cut", count=2)]))
        assert played.wrong == []
        assert len(played.refused) == 1
        assert played.struck == 1
    finally:
        cloudpickle.unregister_pickle_by_value(spark_streams)


# --- processes of their own --------------------------------------------------------------------------------------


class Processes(Logs):
    """A cluster of processes that stand still, or come back on damaged disks."""

    def __init__(self, cluster):
        super().__init__(lambda function, *args: cluster.run(function, cluster.client, *args))
        self._bookies = cluster._local
        self.chance = random.Random(SEED)

    def stand_still(self, count, seconds):
        pids = [bookie.pid for bookie in self.chance.sample(self._bookies.bookies, count)]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)

        def go_on():
            for pid in pids:
                os.kill(pid, signal.SIGCONT)

        timer = threading.Timer(seconds, go_on)
        timer.start()
        return timer.join

    def damage(self, row, count):
        """Flip a bit of a row on the disks of bookies that are stopped meanwhile."""
        left = 0
        for number, bookie in enumerate(self._bookies.bookies):
            held = [path for path in bookie.directory.rglob("*") if path.is_file()]
            held = [path for path in held if row.encode() in path.read_bytes()]
            if not held:
                continue
            if not count:
                left += 1
                continue
            count -= 1
            bookie.process.terminate()
            bookie.process.wait()
            self._bookies.kill(number)
            for path in held:
                stored = bytearray(path.read_bytes())
                at = -1
                while (at := stored.find(row.encode(), at + 1)) >= 0:
                    stored[at + 5] ^= 1 << self.chance.randrange(8)
                path.write_bytes(stored)
            self._bookies.restart(number)
        return left


SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.1",
    "spark.speculation.minTaskRuntime": "500ms",
}
ATTEMPTS = {"spark.task.maxFailures": "4", "spark.network.timeout": "3600s"}


def played_before():
    """The schedules that an earlier run kept in the file of QUIRE_SPARK_SCHEDULES, and that file's path."""
    kept = Path(os.environ.get("QUIRE_SPARK_SCHEDULES", os.devnull))
    lines = kept.read_text().splitlines() if kept.is_file() else []
    return kept, [Schedule(**json.loads(line)) for line in lines]


@pytest.mark.slow
@pytest.mark.parametrize("speculates", [False, True])
def test_random_schedules_end_with_every_row_once_or_an_error_that_says_why_not(tmp_path, speculates):
    total = rounds(2, 100)
    faults = tuple(os.environ.get("QUIRE_FAULTS", ",".join(FAULTS)).split(","))
    kept, played = played_before()
    first = SEED + speculates * total
    done = {each.seed for each in played}
    with SinkCluster(tmp_path) as cluster, kept.open("a") as file:
        path = os.pathsep.join([str(TESTS), str(TESTS.parent / "src"), os.environ.get("PYTHONPATH", "")])
        driver = SparkDriverProcess(
            ["-m", "support.spark_streams"],
            tmp_path / "driver.log",
            {"PYTHONPATH": path.rstrip(os.pathsep)},
            cluster=cluster.uri,
            # Spark speculates only where executors are processes; there they are what is killed.
            master="local-cluster[2,1,1024]" if speculates else "local[2,4]",
            settings=ATTEMPTS | (SPECULATION if speculates else {}),
        )
        for seed in sorted(set(range(first, first + total)) - done):
            player = Player(Processes(cluster), lambda fate: driver.ask(**fate), tmp_path)
            this = player.play(schedule_of(seed, faults))
            assert this.wrong == [], this
            played.append(this)
            file.write(json.dumps(dataclasses.asdict(this)) + "\n")
            file.flush()
        driver.end()
    played = [this for this in played if first <= this.seed < first + total]
    happened = Counter(event.fault for each in played for event in each.events)
    figures = {
        "schedules": len(played),
        "speculation": speculates,
        "kinds": {kind: sum(each.kind == kind for each in played) for kind in KINDS},
        "faults": dict(sorted(happened.items())),
        "struck": sum(each.struck for each in played),
        "refused": sum(len(each.refused) for each in played),
        "every copy damaged": sum(bool(each.lost) for each in played),
        "duplicates": 0,
        "missing": 0,
    }
    assert not FULL or all(happened[fault] for fault in FAULTS)
    keep_figures(f"spark_schedules{'_with_speculation' * speculates}", figures, seed=first)

"""Real Spark: a process is killed at a step of the sink, then the query is run again; and the same with Kafka's sink.

A JVM takes seconds to start, so this is for `make full`; the mass of seeds is in tests/faults/test_sink_rounds.py.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from itertools import groupby
from pathlib import Path

import pytest

from support import etcd_server, kafka_server
from support.rounds import keep_figures, rounds
from support.shared_server import or_skip
from support.sink_cluster import SinkCluster
from support.spark_driver_process import SparkDriverProcess

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(7200)]

PROGRAM = [str(Path(__file__).resolve().parents[1] / "support" / "spark_sink_driver.py")]
SEED = int(os.environ.get("QUIRE_SEED", "20261121"))
FILES = 3
LINES = 10
STEPS = 57
"""So many steps a query of three batches and two tasks has that nothing befalls."""
LIVES_MAX = 5


@pytest.fixture
def processes(tmp_path):
    """A cluster whose bookies and metadata store may be killed, if there can be such a store."""
    (tmp_path / "etcd").mkdir()
    store = etcd_server.own_server(tmp_path / "etcd")
    with SinkCluster(tmp_path, None if isinstance(store, str) else store) as cluster:
        yield cluster


def input_of(folder):
    """Files for a query to read; what is in them."""
    (folder / "input").mkdir(parents=True)
    lines = [[f"{file}/{line}" for line in range(LINES)] for file in range(FILES)]
    for file, part in enumerate(lines):
        (folder / "input" / f"{file}.txt").write_text("\n".join(part))
    return [line for part in lines for line in part]


def finish(driver, fate, first):
    """Run a query again until it ends."""
    for life in range(first, first + LIVES_MAX):
        if (driver.ask(**fate | {"victim": "none", "life": life}) or {}).get("ended"):
            return
    raise AssertionError(fate)


async def made(log):
    await log.create()


async def values(log):
    return [record.value.decode() async for record in log.read()]


def test_each_line_is_in_the_log_once_after_a_kill(processes, tmp_path):
    chance = random.Random(SEED)
    killed = Counter()
    total = rounds(2, 30)
    victims = ["jvm", "self", "self", "bookie", *(["store"] if "store" in processes.pids() else [])]
    driver = SparkDriverProcess(PROGRAM, tmp_path / "driver.log", cluster=processes.uri, master="local[2,2]")
    for number in range(total):
        folder = tmp_path / str(number)
        wanted = input_of(folder)
        log = processes.client.log(f"killed-{number}")
        processes.run(made, log)
        fate = {"sink": "log", "folder": str(folder), "target": log.name, "nth": chance.randint(1, STEPS)}
        victim = chance.choice(victims)
        pids = processes.pids(bookie=number if victim == "bookie" else None)
        answer = driver.ask(**fate, life=0, victim=victim, pids=pids)
        processes.mend()
        if not (answer or {}).get("ended"):
            finish(driver, fate, 1)
        struck = folder / "struck"
        killed[struck.read_text() if struck.exists() else "nobody"] += 1
        found = processes.run(values, log)
        assert sorted(found) == sorted(wanted), (number, fate, victim, answer)
        # Spark takes the files in the order of their times; a batch stands together.
        assert len(list(groupby(found, key=lambda line: line.split("/")[0]))) == FILES
    driver.end()
    figures = {
        "seeds": total,
        "duplicates": 0,
        "missing": 0,
        "killed": dict(sorted(Counter(key.split()[0] for key in killed.elements()).items())),
    }
    at = [{"killed": key, "rounds": count} for key, count in sorted(killed.items())]
    keep_figures("spark_into_a_log", figures, seed=SEED, rows=at)


FATES = {
    # The rows of the first task of a batch are written, those of the second are on their way.
    "the JVM is killed in a batch": {"victim": "jvm", "name": "rows", "nth": 2},
    # What a kill between the writes and Spark's own note of them leaves.
    "the last note is deleted": {"victim": "none", "nth": 0},
}


@pytest.fixture
def kafka(tmp_path):
    (tmp_path / "kafka").mkdir()
    server = or_skip(kafka_server.own_server(tmp_path / "kafka"))
    yield server
    server.stop()


def test_the_kafka_sink_writes_twice_what_the_log_has_once(kafka, processes, tmp_path):
    """One task after the other, so that what is written at the kill is known."""
    driver = SparkDriverProcess(
        PROGRAM,
        tmp_path / "driver.log",
        cluster=processes.uri,
        master="local[1,2]",
        kafka=kafka.address,
        jars=kafka.spark_jars,
    )
    rows = []
    for number, (what, fate) in enumerate(FATES.items()):
        for sink in ("log", "topic"):
            target = f"{sink}-{number}"
            folder = tmp_path / target
            wanted = input_of(folder)
            asked = fate | {"sink": sink, "folder": str(folder), "target": target}
            log = processes.client.log(target)
            if sink == "topic":
                driver.ask(create=target)
            else:
                processes.run(made, log)
            driver.ask(**asked, life=0)
            finish(driver, asked, 1)
            if fate["victim"] == "none":
                forget_last_note(folder / "checkpoint" / "commits")
                finish(driver, asked, LIVES_MAX + 1)
            found = driver.ask(read=target)["values"] if sink == "topic" else processes.run(values, log)
            count = Counter(found)
            twice = sum(each - 1 for each in count.values())
            missing = sum(1 for line in wanted if not count[line])
            rows.append({"sink": sink, "what": what, "duplicates": twice, "missing": missing})
    driver.end()
    figures = {
        f"{name} of the {sink}": sum(row[name] for row in rows if row["sink"] == sink)
        for sink in ("log", "topic")
        for name in ("duplicates", "missing")
    }
    keep_figures("sinks_beside_each_other", figures, seed=SEED, rows=rows)
    assert all(row["duplicates"] == row["missing"] == 0 for row in rows if row["sink"] == "log")
    assert all(row["duplicates"] for row in rows if row["sink"] == "topic")


def forget_last_note(notes):
    last = max((path for path in notes.iterdir() if path.name.isdecimal()), key=lambda path: int(path.name))
    last.unlink()
    (notes / f".{last.name}.crc").unlink(missing_ok=True)

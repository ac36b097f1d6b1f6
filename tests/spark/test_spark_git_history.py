"""Git's history through log, Spark, log and table, with the driver killed on the way, against what git says."""

import os
import random
import signal
import subprocess
import sys

import pytest

from quire.spark.examples import git_history
from quire.spark.jobs import replay
from support.rounds import FULL, keep_figures
from support.waiting import until

pytestmark = [pytest.mark.spark, pytest.mark.slow]

COMMITS, PATHS = (2600, 900) if FULL else (120, 60)


def make_repository(folder):
    """A repository whose commits change, add and remove some paths each; the same in every run."""
    chance = random.Random(9)
    lines = []
    there = set()
    for number in range(COMMITS):
        lines.append(
            f"commit refs/heads/main\ncommitter A <a@example.org> {1_700_000_000 + number * 60} +0000\n"
        )
        lines.append("data 1\nx\n")
        for path in chance.sample(range(PATHS), 5):
            name = f"dir {path % 13}/sub{path % 7}/file{path}"
            if path in there and chance.random() < 0.25:
                lines.append(f"D {name}\n")
                there.discard(path)
            else:
                content = f"{number} {path}"
                lines.append(f"M 100{'755' if path % 9 == 0 else '644'} inline {name}\n")
                lines.append(f"data {len(content)}\n{content}\n")
                there.add(path)
    subprocess.run(["git", "init", "-q", "-b", "main", folder], check=True)
    subprocess.run(["git", "-C", folder, "fast-import", "--quiet"], input="".join(lines).encode(), check=True)
    return folder


def start_stream(cluster, checkpoint, log, to):
    command = [sys.executable, "-m", "quire.spark.examples.git_history", "stream", "--cluster", cluster.uri]
    command += ["--log", log, "--to", to, "--checkpoint", str(checkpoint)]
    command += ["--records-per-batch", str(COMMITS)]
    return subprocess.Popen(command, start_new_session=True)


async def end_of(client, name):
    log = client.log(name)
    return (await log.describe()).end_offset if await log.exists() else 0


def test_the_tree_that_git_has_comes_out_of_a_stream_that_was_killed(spark, own_cluster, tmp_path):
    repository = make_repository(tmp_path / "repository")
    ends = git_history.load(own_cluster.uri, "edits", repository)
    edits = max(ends.values())
    assert edits == len(list(git_history.edits(repository)))

    # The driver is killed with everything that it started, somewhere in the middle of its batches.
    running = start_stream(own_cluster, tmp_path / "checkpoint", "edits", "clean")
    until(lambda: own_cluster.run(end_of, "clean") > 0 or running.poll() is not None, "a first batch", 250)
    os.killpg(running.pid, signal.SIGKILL)
    assert running.wait() == -signal.SIGKILL
    assert own_cluster.run(end_of, "clean") < edits
    git_history.stream(spark, own_cluster.uri, "edits", "clean", str(tmp_path / "checkpoint"), COMMITS)
    assert own_cluster.run(end_of, "clean") == edits

    commits = list(ends)
    middle = commits[len(commits) // 2]
    common = {"cluster": own_cluster.uri, "log": "clean"}
    head = replay.run(spark, table=str(tmp_path / "head"), **common)
    assert replay.state(spark, str(tmp_path / "head")) == git_history.tree(repository)
    replay.run(spark, table=str(tmp_path / "middle"), at=ends[middle], **common)
    assert replay.state(spark, str(tmp_path / "middle")) == git_history.tree(repository, middle)
    late = replay.run(spark, table=str(tmp_path / "late"), snapshot=str(tmp_path / "middle"), **common)
    assert replay.state(spark, str(tmp_path / "late")) == git_history.tree(repository)
    assert (late.sha256, late.records_read) == (head.sha256, edits - ends[middle])
    keep_figures(
        "spark_git_history",
        {
            "commits": len(ends),
            "edits": edits,
            "paths": head.keys,
            "drivers_killed": 1,
            "duplicates": 0,
            "missing": 0,
        },
        seed=9,
    )

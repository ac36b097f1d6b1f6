"""The packaged jobs against independent truths: files for the table, a dictionary for the replay."""

import hashlib
import json
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException

import quire
from quire.spark.jobs import replay, to_parquet
from quire.spark.jobs.__main__ import run_lines
from quire.spark.options import SparkUseError

pytestmark = pytest.mark.spark

T0 = 1_795_000_000_000
SOURCES = sorted(Path(quire.__file__).parent.joinpath("core").glob("*.py"))


@pytest.fixture(scope="module")
def lines(cluster):
    """Every line of some files, the files taken in turn, so that each one's lines lie apart in the log."""
    waiting = {file.name: file.read_bytes().splitlines(keepends=True) for file in SOURCES}
    records = []
    while any(waiting.values()):
        for name, left in waiting.items():
            records += [(name.encode(), line, None, T0) for line in left[:3]]
            del left[:3]
    cluster.fill("lines", records, roll_bytes=100_000, batch_bytes_max=10_000)
    return len(records)


@pytest.fixture(scope="module")
def edits(cluster):
    """A name space's edit log, and its state after each record."""
    records, states, state = [], [{}], {}
    for i in range(2000):
        path = b"dir%d/file%d" % (i % 7, (i * i) % 61)
        removed = i % 5 == 3
        value = (b"", None, b"delete 000000")[i % 3] if removed else b"modify %d" % i
        records.append((path, value, None, T0 + i))
        state = {key: kept for key, kept in state.items() if key != path}
        if not removed:
            state[path] = value
        states.append(state)
    cluster.fill("edits", records, roll_bytes=20_000, batch_bytes_max=2_000)
    return states


def test_a_log_becomes_a_table_whose_digests_are_the_files(spark, cluster, lines, tmp_path):
    table = str(tmp_path / "table")
    report = to_parquet.run(spark, cluster=cluster.uri, log="lines", table=table)
    assert report.dense
    assert (report.records, report.first_offset, report.next_offset) == (lines, 0, lines)
    assert report.keys == len([file for file in SOURCES if file.stat().st_size])
    assert report.files == len(list((tmp_path / "table").glob("*.parquet")))
    digests = to_parquet.key_digests(spark, table)
    for file in SOURCES:
        content = file.read_bytes()
        if content:
            assert digests[file.name.encode()].sha256 == hashlib.sha256(content).hexdigest()
    with pytest.raises(AnalysisException, match="PATH_ALREADY_EXISTS"):
        to_parquet.run(spark, cluster=cluster.uri, log="lines", table=table)
    part = to_parquet.run(
        spark, cluster=cluster.uri, log="lines", table=table, start=10, end=25, overwrite=True
    )
    assert (part.records, part.first_offset, part.next_offset) == (15, 10, 25)


@pytest.mark.parametrize("at", [None, 1000, 0])
def test_a_replay_is_the_state_at_its_offset(spark, cluster, edits, tmp_path, at):
    table = str(tmp_path / "state")
    report = replay.run(
        spark, cluster=cluster.uri, log="edits", table=table, at=at, deleted_prefix=b"delete "
    )
    end = len(edits) - 1 if at is None else at
    assert replay.state(spark, table) == edits[end]
    assert (report.keys, report.next_offset, report.records_read) == (len(edits[end]), end, end)
    text = b"".join(b"%b\0%b\n" % pair for pair in sorted(edits[end].items()))
    assert report.sha256 == hashlib.sha256(text).hexdigest()


def test_a_snapshot_and_its_tail_give_what_a_full_replay_gives(spark, cluster, edits, tmp_path):
    early, late = str(tmp_path / "early"), str(tmp_path / "late")
    common = {"cluster": cluster.uri, "log": "edits", "deleted_prefix": b"delete "}
    replay.run(spark, table=early, at=1500, **common)
    report = replay.run(spark, table=late, snapshot=early, **common)
    assert (report.from_snapshot, report.records_read, report.next_offset) == (1500, 500, 2000)
    assert replay.state(spark, late) == edits[2000]
    again = replay.run(spark, table=str(tmp_path / "same"), snapshot=late, **common)
    assert (again.records_read, again.next_offset, again.sha256) == (0, 2000, report.sha256)
    with pytest.raises(SparkUseError, match="holds records up to 2000, later than --at 10"):
        replay.run(spark, table=str(tmp_path / "no"), snapshot=late, at=10, **common)


def test_the_command_prints_one_line_for_each_job(
    spark, cluster, lines, edits, tmp_path, monkeypatch, capsys
):
    monkeypatch.setenv("QUIRE_CLUSTER", cluster.uri)
    steps = [
        [
            "to_parquet",
            "--log",
            "lines",
            "--out",
            str(tmp_path / "t"),
            "--key-digests",
            str(tmp_path / "d.json"),
        ],
        ["to_parquet", "--log", "no-such-log", "--out", str(tmp_path / "n")],
        ["replay", "--log", "edits", "--out", str(tmp_path / "s"), "--state", str(tmp_path / "s.json")],
    ]
    assert run_lines(spark, [json.dumps(step) + "\n" for step in steps], 0.0) == 1
    table, failed, state = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert (table["records"], table["dense"], table["job"]) == (lines, True, "to_parquet")
    digests = json.loads((tmp_path / "d.json").read_text())
    longest = max(SOURCES, key=lambda file: file.stat().st_size)
    assert digests[longest.name]["sha256"] == hashlib.sha256(longest.read_bytes()).hexdigest()
    assert failed["error"].startswith("quire: no log 'no-such-log' at ")
    # Without a prefix for removals, only records without a value remove.
    assert state["next_offset"] == len(edits) - 1
    assert (
        json.loads((tmp_path / "s.json").read_text()).items()
        >= {key.decode(): value.decode() for key, value in edits[-1].items()}.items()
    )

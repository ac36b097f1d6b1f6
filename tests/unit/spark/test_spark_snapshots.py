"""Which snapshots of a state stay, what they are not made of, and what a job takes for no offset and no place."""

import json
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest

from quire.spark.jobs import command, lists, materialise, replay
from quire.spark.jobs.__main__ import run_lines
from quire.spark.jobs.archive_files import ArchiveFiles
from quire.spark.options import SparkUseError


@pytest.mark.parametrize(("end", "left"), [(500, [500]), (100, [100, 500])])
def test_the_snapshot_that_is_asked_for_stays_however_old_it_is(tmp_path, end, left):
    there = (100, 300, 500)
    work = materialise.MaterialisePlan("sqlite:x", "edits", "ab" * 16, str(tmp_path), end, end, there)
    for offset in there:
        (tmp_path / work.table(offset)).mkdir(parents=True)
    report = materialise.run(None, work, keep=1)
    assert report.removed == 3 - len(left)
    assert sorted(tmp_path.glob("*/*")) == [tmp_path / work.table(offset) for offset in left]
    for keep in (0, -1):
        with pytest.raises(SparkUseError, match=f"keep at least one snapshot, not {keep}"):
            materialise.run(None, work, keep=keep)
    assert len(list(tmp_path.glob("*/*"))) == len(left)


def test_a_log_that_is_compacted_before_its_tail_is_planned_gives_no_state(monkeypatch):
    head, frame, spark = SimpleNamespace(compacted_below=0), MagicMock(), MagicMock()
    latest = MagicMock()

    def read_log(*_):
        head.compacted_below = 500
        return frame

    frame.selectExpr().cache().agg().collect.return_value = [(3, 510)]
    monkeypatch.setattr(lists, "head_of", lambda *_: head)
    monkeypatch.setattr(command, "read_log", read_log)
    monkeypatch.setattr(replay, "expr", MagicMock())
    monkeypatch.setattr(replay, "_latest", latest)
    with pytest.raises(
        SparkUseError, match="compacted up to 500: what was removed since the snapshot's offset 100"
    ):
        replay.run(spark, cluster="sqlite:x", log="edits", table="t", snapshot="s", since=100)
    latest.assert_not_called()
    frame.selectExpr().cache().unpersist.assert_called_once()


@pytest.mark.parametrize("span", [(-1, None), (None, -1), (0, -2)])
def test_a_number_below_zero_is_no_offset(span):
    with pytest.raises(SparkUseError, match=r"log 'edits': an offset is a number from 0, not -"):
        command.read_log(None, "sqlite:x", "edits", *span)


@pytest.mark.parametrize("root", ["backup", "s4://bucket/backup", "file://backup/files"])
def test_a_root_that_is_no_place_is_refused_in_a_sentence(root):
    with pytest.raises(SparkUseError, match=f"'{root}' is no place for files: .* like file:///backup"):
        ArchiveFiles(root)


def test_files_that_cannot_be_reached_are_a_line_of_the_job(tmp_path):
    (tmp_path / "file").touch()
    lines = []

    class Archiving(command.SparkJob, name="archive"):
        def step(self, _spark):
            ArchiveFiles(str(tmp_path)).open("file/other")

    job = Archiving(cluster="sqlite:x", out="o", show=lines.append)
    assert command.run_step(None, job, 0.0) == 1
    [line] = lines
    assert line["job"] == "archive"
    assert str(tmp_path / "file" / "other") in line["error"]


def test_lines_that_are_no_step_are_answered_and_the_others_are_done(monkeypatch, capsys):
    monkeypatch.delenv("QUIRE_CLUSTER", raising=False)
    monkeypatch.setattr(replay.ReplayJob, "step", lambda *_: {"keys": 3})
    good = ["replay", "--cluster", "sqlite:x", "--log", "edits", "--out", "t"]
    steps = [
        "{",
        "7",
        '["rplay"]',
        "[[1]]",
        '["replay", "--at", "x"]',
        json.dumps(["replay", *good[3:]]),
        "",
        json.dumps(good),
    ]
    assert run_lines(None, steps, 0.5) == 1
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert ["a step is a JSON array" in line["error"] for line in told[:4]] == [True] * 4
    assert ["replay: these are not its arguments" in line["error"] for line in told[4:6]] == [True] * 2
    assert told[6:] == [{"job": "replay", "keys": 3, "session_seconds": 0.5}]

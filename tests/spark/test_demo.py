"""The demo as a process, on a small input of one's own, and where its directory may not be."""

import fcntl
import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.faults, pytest.mark.timeout(900)]

COMMAND = [sys.executable, "-m", "quire", "demo"]


def test_the_whole_story_on_a_small_input_away_from_the_project(tmp_path: Path) -> None:
    given = tmp_path / "input"
    given.mkdir()
    lines = b"".join(b"record %d\n" % number for number in range(20_000))
    (given / "text").write_bytes(lines)
    (given / "binary").write_bytes(bytes(range(256)) * 500 + b"no line feed at the end")
    command = [*COMMAND, "--input", str(given), "--dir", str(tmp_path / "demo"), "--json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    *steps, summary = [json.loads(line) for line in done.stdout.splitlines()]
    assert [step["step"] for step in steps] == list(range(1, 9))
    records = 20_000 + 501
    assert summary["demo"] == "done"
    assert summary["lost"] == 0
    assert summary["records"] == records
    fourth, fifth, sixth, seventh, eighth = (step["counts"] for step in steps[3:])
    assert fourth["bookies killed"] == fifth["writers killed"] == 1
    assert fifth["found by the successor"] >= fifth["acknowledged to the dead"]
    assert sixth["records read back and right"] == seventh["rows"] == records
    assert sixth["copies missing"] == 0
    assert seventh["digests equal"] == 2
    assert eighth["paths in Spark's state"] == steps[2]["counts"]["paths equal git at head"]
    assert list(Path(summary["table"]).glob("*.parquet"))


def test_a_directory_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("keep me")
    done = subprocess.run([*COMMAND, "--dir", str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "no demo made it" in done.stderr
    assert (tmp_path / "mine").read_text() == "keep me"


def test_two_demos_do_not_share_a_directory(tmp_path: Path) -> None:
    (tmp_path / ".quire-demo").touch()
    with (tmp_path / ".quire-demo").open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        command = [*COMMAND, "--dir", str(tmp_path), "--json"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert json.loads(done.stderr)["error"]["code"] == "directory_in_use"


def test_an_empty_input_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    command = [*COMMAND, "--dir", str(tmp_path / "demo"), "--input", str(tmp_path / "empty")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "missing or empty" in done.stderr

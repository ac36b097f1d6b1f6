"""`quire verify-history` on files and on stdin."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from history.scenes import Spoiled, flipped, hashes, one_of_everything, text_of
from quire.cli.main import app
from quire_testing.history import History


@pytest.fixture
def verify(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    runner = CliRunner(env={"NO_COLOR": "1", "TERM": "dumb"})

    def call(*arguments, code, given=b""):
        result = runner.invoke(app, ["verify-history", *arguments], input=given)
        assert result.exit_code == code, result.output
        return result

    return call


def spoiled():
    history = Spoiled(one_of_everything())
    history.change("read", "ok", ledger=1, process="r2", to={"hashes": flipped(hashes(0, 10), 30)})
    return text_of(history.events)


def test_a_history_that_holds(verify, tmp_path):
    (tmp_path / "h.jsonl").write_bytes(text_of(one_of_everything()))
    said = verify("h.jsonl", code=0).stdout
    assert "append" in said
    assert "12 registers are linearizable" in said
    assert "not looked at" not in said
    assert said.endswith("no violation in 158 events\n")
    assert verify("-", code=0, given=(tmp_path / "h.jsonl").read_bytes()).stdout == said


def test_a_history_that_does_not(verify):
    said = verify("-", code=1, given=spoiled()).stdout
    assert (
        "invariant 1 (acknowledged entries stay readable): ledger 1: entry 3 was acknowledged with hash "
        in said
    )
    assert said.endswith("1 violation in 158 events\n")


def test_as_json(verify):
    lines = [json.loads(line) for line in verify("-", "--json", code=1, given=spoiled()).stdout.splitlines()]
    assert [next(iter(line)) for line in lines] == ["violation", "verdict"]
    assert lines[0]["violation"]["invariant"] == 1
    assert len(lines[0]["violation"]["lines"]) == 2
    assert (lines[1]["verdict"], lines[1]["events"], lines[1]["violations"]) == ("violated", 158, 1)
    assert lines[1]["kinds"]["list_swap"] == {"ok": 3, "fail": 1}


@pytest.mark.parametrize("events", [[], one_of_everything()[:3]])
def test_a_history_of_nothing_is_not_verified(events, verify):
    said = verify("-", code=1, given=text_of(events))
    assert "the history proves nothing" in said.stdout
    assert json.loads(verify("-", "--json", code=1, given=text_of(events)).stdout)["verdict"] == "empty"


def test_a_line_that_is_none(verify, tmp_path):
    (tmp_path / "h.jsonl").write_bytes(text_of(one_of_everything()[:8]) + b"{}\n")
    said = verify("h.jsonl", code=1).output
    assert "line 10: at must be nanoseconds" in said
    error = json.loads(verify("h.jsonl", "--json", code=1).stderr)["error"]
    assert error["code"] == "malformed_history"
    assert error["ids"] == {"line": 10, "file": ""}


def test_a_torn_end_is_said(verify, tmp_path):
    (tmp_path / "h.jsonl").write_bytes(text_of(one_of_everything())[:-5])
    assert "h.jsonl: the last line was cut off and left out" in verify("h.jsonl", code=0).stderr


def test_two_files_of_one_machine(verify, tmp_path):
    now = iter(range(1000)).__next__
    for name in ("w.jsonl", "r.jsonl"):
        (tmp_path / name).touch()
    with (tmp_path / "w.jsonl").open("w") as mine, (tmp_path / "r.jsonl").open("w") as its:
        writer, reader = History(now, mine.write), History(now, its.write)
        writer.invoke("w", "append", ledger=1, first=0, hashes=hashes(0, 3)).ok()
        reader.invoke("r", "read", ledger=1, first=0, last=3).ok(missing=[[0, 3]])
    said = verify("w.jsonl", "r.jsonl", code=1).stdout
    assert (
        'r got "no such entry" for entries 0..3, which had been acknowledged [lines w.jsonl:3, r.jsonl:3]'
        in said
    )


def test_stdin_twice_and_no_file(verify):
    verify("-", "-", code=2)
    assert "nothing.jsonl" in verify("nothing.jsonl", code=1).output

"""`quire check` on small worlds."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from quire.cli.main import app


def check(*arguments, code=0):
    result = CliRunner(env={"NO_COLOR": "1", "TERM": "dumb"}).invoke(app, ["check", *arguments])
    assert result.exit_code == code, result.output
    return result


def test_a_world_that_holds():
    facts = json.loads(check("--json", "--crashes", "1").stdout)
    assert facts["configuration"] == "2 bookies 2/2/2 N=1 crashes=1"
    assert facts["complete"]
    assert facts["violated"] is None
    assert facts["states"] > 1000
    assert facts["rate"] > 0


def test_a_mutant_is_shown_and_saved(tmp_path):
    result = check("--mutant", "X9", "--save", str(tmp_path), code=1)
    assert "VIOLATED I2" in result.stdout
    assert "I2 is: readable" in result.stdout
    saved = sorted(path.name for path in tmp_path.iterdir())
    assert saved == ["counterexample.html", "counterexample.svg", "counterexample.txt"]


def test_a_saved_failure_is_judged_again(tmp_path):
    check("--mutant", "X9", "--save", str(tmp_path), code=1)
    saved = tmp_path / "counterexample.txt"
    facts = json.loads(check("--json", "--replay", str(saved)).stdout)
    assert facts["mutant"] == "X9"
    assert [violation[:3] for violation in facts["violations"]] == ["I2:"]
    saved.write_text(saved.read_text().replace("# mutant X9: a new fragment starts at LAP + 1\n", ""))
    assert "nothing violated" in check("--replay", str(saved)).stdout


def test_a_file_that_is_no_saved_failure_is_refused(tmp_path):
    check("--replay", str(tmp_path / "nothing.txt"), code=2)
    (tmp_path / "other.txt").write_text("# a letter\n\nDear Sir\n")
    check("--replay", str(tmp_path / "other.txt"), code=2)


def test_a_log():
    facts = json.loads(check("--json", "--log", "--clients", "2", "--ledgers", "2", "--entries", "1").stdout)
    assert facts["configuration"] == "log 2 clients 2 ledgers 1 writes"


def test_a_stream_whose_terms_only_fence():
    facts = json.loads(check("--json", "--stream", "--mode", "fencing", "--mutant", "D6", code=1).stdout)
    assert facts["violated"] == "U2"
    assert facts["tale"][0] == "client 0 writes entry 0 of term 1"
    assert facts["tale"][-1].startswith("bookies differ at entry 0")
    text = check("--stream", "--mode", "fencing", "--mutant", "D6", code=1).stdout
    assert "In short:\n1. client 0 writes entry 0 of term 1\n2. b0 stores" in text
    small = ("--bookies", "1", "--ensemble", "1", "--write-quorum", "1", "--ack-quorum", "1", "--json")
    for mode, name in (("fencing", " fencing=yes"), ("identifiers", "")):
        facts = json.loads(check("--stream", "--mode", mode, *small).stdout)
        assert facts["configuration"] == f"stream 1 bookies 1/1/1 N=1 clients=1 take overs=1{name}"
        assert facts["complete"]
        assert facts["tale"] is None
    assert "use identifiers or fencing" in check("--stream", "--mode", "fence", code=2).output


def test_a_collector():
    facts = json.loads(check("--json", "--collector", "--ours", "--mixed", "--passes", "2").stdout)
    assert facts["configuration"] == "collector ours mixed 1 lives 1 writes 2 passes"
    assert facts["complete"]


def test_two_ledgers_in_bundles(tmp_path):
    facts = json.loads(check("--json", "--bundles", "--turns", "X", "--fences", "1").stdout)
    assert facts["configuration"] == "bundles 2 bookies 2/2/2 turns=X recoverers=1 fences=1"
    assert facts["complete"]
    check("--bundles", "--turns", "YX", code=2)
    assert "O is: no run" in check("--mutant", "bundle-overtaken", "--save", str(tmp_path), code=1).stdout
    facts = json.loads(check("--json", "--replay", str(tmp_path / "counterexample.txt")).stdout)
    assert [violation[:2] for violation in facts["violations"]] == ["O:"]


def test_what_breaks_in_a_collectors_world_is_saved_and_judged_again(tmp_path):
    result = check("--mutant", "collector-zxid", "--save", str(tmp_path), code=1)
    assert "G1 is: nothing is dropped of a ledger that no client deleted" in result.stdout
    facts = json.loads(check("--json", "--replay", str(tmp_path / "counterexample.txt")).stdout)
    assert [violation[:3] for violation in facts["violations"]] == ["G1:"]


def test_one_invariant_only():
    assert json.loads(check("--json", "--invariant", "I1").stdout)["complete"]


def test_a_search_that_is_given_up():
    facts = json.loads(
        check(
            "--json", "--states", "1500", "--ensemble", "3", "--bookies", "3", "--write-quorum", "3", code=1
        ).stdout
    )
    assert not facts["complete"]


@pytest.mark.parametrize("arguments", [("--mutant", "X99"), ("--invariant", "I99"), ("--ensemble", "1")])
def test_what_does_not_exist_is_refused(arguments):
    check(*arguments, code=2)


def test_every_mutant_is_listed():
    names = [json.loads(line)["name"] for line in check("--json", "--list-mutants").stdout.splitlines()]
    assert {"D1", "X34", "log-sends-early"} <= set(names)


@pytest.mark.parametrize(("suffix", "begin"), [("svg", "<svg"), ("html", "<!doctype html>")])
def test_a_counterexample_is_drawn(tmp_path, suffix, begin):
    picture = tmp_path / f"x.{suffix}"
    check("--mutant", "X9", "--diagram", str(picture), code=1)
    assert picture.read_text().startswith(begin)


def test_a_diagram_of_another_kind_is_refused_before_the_search(tmp_path):
    result = check("--diagram", str(tmp_path / "x.png"), code=2)
    assert "draws .svg and .html, not 'x.png'" in result.output


def test_readers_runs_and_truncations():
    facts = json.loads(check("--json", "--readers", "1", "--run", "2").stdout)
    assert facts["configuration"] == "2 bookies 2/2/2 N=1 readers=1 run=2"
    facts = json.loads(check("--json", "--log", "--clients", "1", "--entries", "1", "--trims", "1").stdout)
    assert facts["configuration"] == "log 1 clients 3 ledgers 1 writes trims=1"


def test_a_world_whose_ledger_begins_with_an_absent_slot():
    facts = json.loads(check("--json", "--away", "1", "--ack-quorum", "1").stdout)
    assert facts["configuration"] == "2 bookies 2/2/1 N=1 away=1"
    assert facts["complete"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--away", "3"], "has no more that could be away"),
        (["--away", "1"], "no ledger is created with so few bookies there"),
        (
            ["--away", "1", "--ack-quorum", "1", "--min-present", "3"],
            "--min-present (3), the bookies that must be writable",
        ),
    ],
)
def test_a_ledger_that_is_never_created_is_refused(arguments, says):
    assert says in " ".join(check(*arguments, code=2).output.split())

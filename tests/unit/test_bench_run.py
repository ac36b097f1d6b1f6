"""All benchmarks together: the table, the worst status, and that no script is forgotten."""

from pathlib import Path

import pytest

import run

BENCH = Path(run.__file__).parent


def claim(name, *, holds=True):
    return {
        "claim": name,
        "bar": 2.0,
        "ratio": 2.5 if holds else 1.5,
        "worst": 1.4,
        "ours": 250.0,
        "peer": 100.0,
        "unit": "us",
        "holds": holds,
    }


def test_every_script_is_run_and_described():
    scripts = {path.stem for path in BENCH.glob("*.py") if "harness.main(" in path.read_text()}
    assert set(run.SCRIPTS) == scripts
    text = (BENCH / "README.md").read_text()
    assert [name for name in run.SCRIPTS if f"| `{name}.py` |" not in text] == []


def test_the_table_names_what_is_missed_and_what_was_not_measured():
    text = run.summary([claim("P1"), claim("P2", holds=False)], {"append": 1, "tail": 2, "read": run.FAILED})
    rows = text.splitlines()
    assert rows[1].endswith("holds")
    assert rows[2].endswith("MISSED")
    assert "tail.py: SKIPPED" in text
    assert "read.py: FAILED" in text
    assert "append.py" not in text


@pytest.mark.parametrize(
    ("code", "said", "status"),
    [
        ("print('{}')", 1, 0),
        ("print('{}'); raise SystemExit(1)", 1, 1),
        ("raise SystemExit(2)", 0, 2),
        ("raise ValueError", 0, run.FAILED),
        ("import os; os.kill(os.getpid(), 9)", 0, run.FAILED),
    ],
)
def test_the_status_of_a_script(tmp_path, monkeypatch, code, said, status):
    """A traceback and a missed bar end with the same status; only one of them has claims."""
    (tmp_path / "some.py").write_text(code)
    monkeypatch.setattr(run, "__file__", str(tmp_path / "run.py"))
    found, claims = run.run("some", [])
    assert (found, len(claims)) == (status, said)


def test_the_worst_status_counts_and_the_others_go_on(monkeypatch):
    results = {"append": (1, [claim("P1", holds=False)]), "latency": (2, []), "tail": (0, [claim("P11")])}
    monkeypatch.setattr(run, "run", lambda name, _: results[name])
    statuses, claims = run.run_all(["append", "latency", "tail"], [])
    assert max(statuses.values()) == 2
    assert [found["claim"] for found in claims] == ["P1", "P11"]

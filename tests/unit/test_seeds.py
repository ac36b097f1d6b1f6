"""Figures of seeds that several runs make together add up in one file."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from quire_testing.sim.campaign import Tally
from support import rounds, seeds


def cheap_runs(mixes: Sequence[str], seeds: Sequence[int], mutant: str) -> Tally:
    """Runs that cost nothing."""
    counted = Counter({mix: sum(1 for seed in seeds if mixes[seed % len(mixes)] == mix) for mix in mixes})
    return Tally(counted, 3 * len(seeds), seen=Counter({"all": len(seeds), "one fault": 1}), cpu_seconds=1.0)


class FullRun:
    """Full runs whose proofs go to a folder of the test."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self.file = folder / "proof.json"
        for module in (rounds, seeds):
            monkeypatch.setattr(module, "FULL", True)
            monkeypatch.setattr(module, "RESULTS", folder)
        self.commit("aaaa")

    def commit(self, name: str) -> None:
        for module in (rounds, seeds):
            self._monkeypatch.setattr(module, "COMMIT", name)

    def run(self, named: str | None, reduced: int = 10, full: int = 1200) -> dict[str, Any]:
        if named is None:
            self._monkeypatch.delenv("QUIRE_SEEDS", raising=False)
        else:
            self._monkeypatch.setenv("QUIRE_SEEDS", named)
        seeds.run_seeds(
            "proof", reduced, full, mixes=("one", "two"), seen=("all",), runs=cheap_runs, words=("fault",)
        )
        found: dict[str, Any] = json.loads(self.file.read_text())
        return found


@pytest.fixture
def full_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FullRun:
    return FullRun(tmp_path, monkeypatch)


def ranges(proof: dict[str, Any]) -> list[tuple[str, str]]:
    return [(row["seeds"], row["commit"]) for row in proof["rows"]]


def test_a_second_run_adds_its_range_and_its_figures(full_run: FullRun) -> None:
    first = full_run.run("0-1199")
    assert ranges(first) == [("0 to 1199", "aaaa")]  # three slices of one commit
    assert first["figures"]["mixes"] == {"one": 600, "two": 600}
    full_run.commit("bbbb")
    second = full_run.run("1200-1299")
    assert ranges(second) == [("0 to 1199", "aaaa"), ("1200 to 1299", "bbbb")]
    assert second["seed"] == "0 to 1199, 1200 to 1299"
    assert second["figures"]["runs"] == 1300
    assert second["figures"]["seen"]["all"] == 1300
    assert second["figures"]["mixes"] == {"one": 650, "two": 650}


def test_seeds_are_not_counted_twice(full_run: FullRun) -> None:
    full_run.run("100-199")
    for again in ("0-100", "150-150", "199-300"):
        with pytest.raises(ValueError, match="has seeds 100 to 199 of commit aaaa"):
            full_run.run(again)
    assert full_run.run("0-99")["figures"]["runs"] == 200


def test_a_file_that_was_made_at_once_is_added_to(full_run: FullRun) -> None:
    old = {"proof": "proof", "seed": "0 to 8", "figures": {"runs": 9, "seen": {"all": 9}}, "made": "then"}
    full_run.file.write_text(json.dumps({**old, "commit": "0000"}))
    found = full_run.run("9-19")
    assert ranges(found) == [("0 to 8", "0000"), ("9 to 19", "aaaa")]
    assert found["figures"]["runs"] == 20
    assert found["figures"]["seen"]["all"] == 20


def test_a_run_that_names_no_seeds_begins_anew(full_run: FullRun) -> None:
    full_run.run("0-499")
    found = full_run.run(None)
    assert ranges(found) == [("0 to 1199", "aaaa")]
    assert found["figures"]["runs"] == 1200


def test_a_range_that_is_none_is_refused(full_run: FullRun) -> None:
    for wrong in ("7", "9-3", "a-b", "-5"):
        with pytest.raises(ValueError, match="9000-19999"):
            full_run.run(wrong)

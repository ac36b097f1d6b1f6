"""The arithmetic of a comparison; a benchmark that lies is worse than none."""

import json
import os
import subprocess

import pytest

from accounting import Machine, cpu_seconds, resident_mib
from harness import Claim, Comparison, save, table
from jobs.samples import QUANTILES_MAX, Timeline, quantiles_us

FAST = Claim("T", "throughput", "entries/s", bar=2.0)
QUICK = Claim("L", "latency", "us", bar=2.0, higher_is_better=False)


def comparison(claim, *pairs):
    made = Comparison(claim, {})
    for ours, peers in pairs:
        made.add(ours, peers, load=1.0)
    return made


def test_the_better_peer_counts():
    pair = comparison(FAST, (600.0, {"Java V2": 100.0, "Java V3": 200.0})).pairs[0]
    assert (pair.peer_kind, pair.ratio) == ("Java V3", 3.0)
    pair = comparison(QUICK, (100.0, {"default": 3000.0, "tuned": 500.0})).pairs[0]
    assert (pair.peer_kind, pair.ratio) == ("tuned", 5.0)


def test_the_ratio_is_the_median_of_the_pairs_not_the_ratio_of_the_medians():
    made = comparison(FAST, (100.0, {"J": 10.0}), (30.0, {"J": 15.0}), (60.0, {"J": 20.0}))
    assert made.ratio == 3.0


@pytest.mark.parametrize(
    ("ours", "holds"),
    [((200.0, 200.0, 200.0), True), ((199.0, 199.0, 300.0), False), ((300.0, 300.0, 139.0), False)],
)
def test_a_bar_needs_the_median_and_no_pair_far_below(ours, holds):
    assert comparison(FAST, *((rate, {"J": 100.0}) for rate in ours)).holds is holds


def test_the_json_line_has_both_sides():
    line = json.loads(json.dumps(comparison(FAST, (200.0, {"J": 100.0})).summary()))
    assert line["claim"] == "T"
    assert (line["ours"], line["peer"], line["ratio"]) == (200.0, 100.0, 2.0)
    assert line["pairs"] == [{"ours": 200.0, "peer": 100.0, "peer_kind": "J", "ratio": 2.0, "load": 1.0}]


def test_the_table_shows_every_pair():
    text = table(comparison(QUICK, (100.0, {"J": 300.0}), (100.0, {"J": 100.0})))
    assert text.count("J\n") + text.endswith("J") >= 2
    assert "worst pair 1.00" in text


def test_the_pair_in_the_middle():
    made = comparison(FAST, (300.0, {"J": 100.0}), (100.0, {"J": 100.0}), (200.0, {"J": 100.0}))
    assert made.middle == 2


def test_a_claim_not_measured_this_time_keeps_its_figures(tmp_path):
    path = tmp_path / "results" / "x.json"
    slow, fast = comparison(QUICK, (100.0, {"J": 300.0})), comparison(FAST, (200.0, {"J": 100.0}))
    fast.plots = {"timeline": {"seconds": [0.1, 0.2], "series": {"Quire": [1, 2]}}}
    save(path, {"date": "2026-01-01"}, [slow, fast])
    save(path, {"date": "2026-01-02"}, [slow])
    claims = {claim["claim"]: claim for claim in json.loads(path.read_text())["claims"]}
    assert [(name, claim["date"]) for name, claim in claims.items()] == [
        ("L", "2026-01-02"),
        ("T", "2026-01-01"),
    ]
    assert claims["T"]["plots"] == fast.plots
    assert '"seconds": [ 0.1, 0.2 ]' in path.read_text()


def test_quantiles_keep_the_ends():
    sample = quantiles_us(list(range(10_000, 0, -1)))
    assert (len(sample), sample[0], sample[-1]) == (QUANTILES_MAX, 0.0, 10.0)
    assert sample == sorted(sample)
    assert quantiles_us([5_000]) == [5.0]
    assert quantiles_us([]) == []


def test_a_timeline_counts_tenths_of_a_second():
    timeline = Timeline(start=100.0)
    timeline.add(100.05, 500)
    timeline.add(100.09, 500)
    timeline.add(100.31, 500)
    assert timeline.counts == [1000, 0, 0, 500]


def test_accounts_of_this_process(tmp_path):
    before = cpu_seconds(os.getpid())
    while cpu_seconds(os.getpid()) - before < 0.02:
        sum(range(10_000))
    assert resident_mib(os.getpid()) > 5
    machine = Machine.here(tmp_path, cpus=2)
    assert machine.cpus == 2
    assert machine.memory_gib > 0


def test_new_results_do_not_make_a_revision_dirty(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for words in (
        ("init", "--quiet"),
        ("-c", "user.name=a", "-c", "user.email=a@b", "commit", "--quiet", "--allow-empty", "-m", "a"),
    ):
        subprocess.run(["git", *words], check=True)
    (tmp_path / "bench/results").mkdir(parents=True)
    (tmp_path / "bench/results/append.json").write_text("{}")
    assert not Machine.here(tmp_path, cpus=2).revision.endswith("-dirty")
    (tmp_path / "bench/append.py").write_text("")
    assert Machine.here(tmp_path, cpus=2).revision.endswith("-dirty")

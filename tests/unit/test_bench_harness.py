"""The arithmetic of a comparison; a benchmark that lies is worse than none."""

import json
import os

import pytest

from accounting import Machine, cpu_seconds, resident_mib
from harness import Claim, Comparison, table

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


def test_accounts_of_this_process(tmp_path):
    before = cpu_seconds(os.getpid())
    while cpu_seconds(os.getpid()) - before < 0.02:
        sum(range(10_000))
    assert resident_mib(os.getpid()) > 5
    machine = Machine.here(tmp_path, cpus=2)
    assert machine.cpus == 2
    assert machine.memory_gib > 0

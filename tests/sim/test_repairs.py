"""RepairPrograms of whole programs in simulated worlds: a bookie is lost for ever, and afterwards nothing lacks a copy.

Source: docs/protocol/repair.md; docs/simulation.md, "The world".
"""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import pytest

from quire.core.rules import RULES, Rules
from quire_testing.explorer.mutants import MUTANTS
from quire_testing.sim.campaign import campaign
from quire_testing.sim.programs import Parts
from quire_testing.sim.repairs import RepairPrograms
from quire_testing.sim.run import simulate
from quire_testing.sim.walk_campaign import some_walks
from quire_testing.sim.walks import walks_of
from support.rounds import FULL, keep_figures, rounds

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
"""A process that is killed, or a world that ends, drops its coroutines in the middle of whatever they wait for."""

SEEN = (
    "a repair replaces a bookie",
    "a repair fills holes",
    "a repair ends: whole",
    "an ensemble change appends a fragment",
    "a bookie starts again",
    "fault: power",
    "fault: pause",
)

WALKED = (
    "repairer repair",
    "repairer copy",
    "repairer gone",
    "repairer hears copy",
    "repairer hears written",
    "repairer hears conflict",
    "repairer timeout",
    "repairer lost swap",
)


BUILD = Path(__file__).resolve().parents[2] / "build"
KEPT_RUNS, KEPT_WALKS = BUILD / "repair-runs.jsonl", BUILD / "repair-walks.jsonl"
"""Where `make full` notes the ranges that are finished: cut and begun again, it goes on behind them."""


@pytest.mark.timeout(36_000)
def test_after_a_loss_every_decided_entry_is_on_its_whole_write_set() -> None:
    seeds = rounds(20, 10_000)
    tally = campaign(0, seeds, mixes=("repair",), jobs=2, keep=KEPT_RUNS if FULL else None)
    assert not tally.failures, tally.failures[:5]
    assert not [situation for situation in SEEN if not tally.seen[situation]]
    keep_figures(
        "simulated_repairs",
        {
            "runs": tally.schedules,
            "violations": 0,
            "seen": {name: tally.seen[name] for name in sorted(tally.seen) if "repair" in name},
            "cpu_seconds": round(tally.cpu_seconds),
        },
        seed=f"0 to {seeds - 1}",
    )


BY_ITSELF = (
    "auto-recovery recovers an open ledger",
    "auto-recovery repairs a ledger",
    "a hole is marked",
    "a marked hole is filled",
    "fault: session_lost",
    "fault: clock_jump",
)


@pytest.mark.timeout(7200)
def test_daemons_put_back_what_is_lost_by_themselves() -> None:
    """AR1: no open ledger is recovered while no bookie could take a slot. AR2: a marked hole is filled, or has a mark. F5: what
    is marked because a bookie is gone is repaired in the end."""
    seeds = rounds(30, 10_000)
    tally = campaign(0, seeds, mixes=("autorecovery",), jobs=2)
    assert not tally.failures, tally.failures[:5]
    if FULL:
        assert not [situation for situation in BY_ITSELF if not tally.seen[situation]]
    keep_figures(
        "simulated_autorecovery",
        {
            "runs": tally.schedules,
            "violations": 0,
            "seen": {
                name: tally.seen[name] for name in sorted(tally.seen) if "auto" in name or "marked" in name
            },
            "cpu_seconds": round(tally.cpu_seconds),
        },
        seed=f"0 to {seeds - 1}",
    )


NEVER = replace(RULES, copy_is_due=lambda **_: False)
AT_ONCE = replace(RULES, may_recover_open=lambda *, names_gone, **_: names_gone)


@pytest.mark.parametrize(
    ("rules", "violated"),
    [(NEVER, "lack copies"), (AT_ONCE, "AR1")],
    ids=["no copy is ever due", "X39, grace without a spare"],
)
def test_a_daemon_with_a_rule_taken_out_is_found(rules: Rules, violated: str) -> None:
    seeds = range(40)
    parts = Parts(rules=rules)
    found = (simulate(seed, "autorecovery", parts=parts, judging=False).violations for seed in seeds)
    assert any(violated in violation for violations in found for violation in violations)


def test_without_a_repair_copies_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(*_: object) -> str:
        return ""

    monkeypatch.setattr(RepairPrograms, "run", nothing)
    found = [violation for seed in range(12) for violation in simulate(seed, "repair").violations]
    assert any(violation.startswith("F5") for violation in found)
    assert any(violation.startswith("invariant 9") for violation in found)


@pytest.mark.timeout(36_000)
def test_no_walk_of_repairers_breaks_an_invariant() -> None:
    """The machines alone, a hundred times as many: a loss, crashes, time-outs, two repairers, a recoverer, a writer."""
    walks = rounds(150, 1_000_000)
    tally = campaign(0, walks, mixes=("repair",), jobs=2, runs=some_walks, keep=KEPT_WALKS if FULL else None)
    assert tally.schedules == walks
    assert not tally.failures, [asdict(failure) for failure in tally.failures[:5]]
    assert not [step for step in WALKED if not tally.seen[step]]
    keep_figures(
        "walks_of_repairs",
        {
            "walks": walks,
            "steps": tally.events,
            "violations": 0,
            "seen": {step: tally.seen[step] for step in WALKED},
            "cpu_seconds": round(tally.cpu_seconds),
        },
        seed=f"0 to {walks - 1}",
    )


@pytest.mark.parametrize("name", ["X31", "X32"])
def test_walks_find_a_fix_of_repair_that_is_taken_out(name: str) -> None:
    walks = walks_of("repair", MUTANTS[name].switches)
    assert any(walks.walk(seed).violation for seed in range(20))

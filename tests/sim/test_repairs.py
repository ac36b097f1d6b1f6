"""RepairPrograms of whole programs in simulated worlds: a bookie is lost for ever, and afterwards nothing lacks a copy.

Source: docs/protocol/repair.md; docs/simulation.md, "The world".
"""

from __future__ import annotations

import pytest

from quire_testing.explorer.mutants import MUTANTS
from quire_testing.explorer.switches import RULES, Rules
from quire_testing.sim.programs import Parts
from quire_testing.sim.repairs import RepairPrograms
from quire_testing.sim.run import simulate
from quire_testing.sim.walk_campaign import some_walks
from quire_testing.sim.walks import walks_of
from support.rounds import FULL
from support.seeds import run_seeds

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


@pytest.mark.timeout(36_000)
def test_after_a_loss_every_decided_entry_is_on_its_whole_write_set() -> None:
    run_seeds("simulated_repairs", 20, 10_000, mixes=("repair",), seen=SEEN, words=("repair",))


BY_ITSELF = (
    "auto-recovery recovers an open ledger",
    "auto-recovery repairs a ledger",
    "a hole is marked",
    "a marked hole is filled",
    "fault: session lost",
    "fault: clock jump",
)


@pytest.mark.timeout(7200)
def test_daemons_put_back_what_is_lost_by_themselves() -> None:
    """AR1: no open ledger is recovered while no bookie could take a slot. AR2: a marked hole is filled, or has a mark. F5: what
    is marked because a bookie is gone is repaired in the end."""
    run_seeds(
        "simulated_autorecovery",
        30,
        10_000,
        mixes=("autorecovery",),
        seen=BY_ITSELF if FULL else (),
        words=("auto", "marked"),
    )


NEVER = RULES.but(copy_is_due=lambda **_: False)
AT_ONCE = RULES.but(may_recover_open=lambda *, names_gone, **_: names_gone)


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
    run_seeds(
        "walks_of_repairs",
        150,
        1_000_000,
        mixes=("repair",),
        seen=WALKED,
        runs=some_walks,
        unit="walks",
        steps="steps",
    )


@pytest.mark.parametrize("name", ["X31", "X32"])
def test_walks_find_a_fix_of_repair_that_is_taken_out(name: str) -> None:
    walks = walks_of("repair", MUTANTS[name].switches)
    assert any(walks.walk(seed).violation for seed in range(20))

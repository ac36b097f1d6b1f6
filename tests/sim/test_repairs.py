"""RepairPrograms of whole programs in simulated worlds: a bookie is lost for ever, and afterwards nothing lacks a copy.

Source: docs/protocol/repair.md; docs/simulation.md, "The world".
"""

from __future__ import annotations

import pytest

from quire_testing.sim.campaign import campaign
from quire_testing.sim.repairs import RepairPrograms
from quire_testing.sim.run import simulate
from support.rounds import keep_figures, rounds

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


@pytest.mark.timeout(7200)
def test_after_a_loss_every_decided_entry_is_on_its_whole_write_set() -> None:
    seeds = rounds(20, 10_000)
    tally = campaign(0, seeds, mixes=("repair",), jobs=2)
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


def test_without_a_repair_copies_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(*_: object) -> str:
        return ""

    monkeypatch.setattr(RepairPrograms, "run", nothing)
    found = [violation for seed in range(12) for violation in simulate(seed, "repair").violations]
    assert any(violation.startswith("F5") for violation in found)
    assert any(violation.startswith("invariant 9") for violation in found)

"""Claim P13: create, add, close and open a ledger, one at a time, with embedded metadata, against Java with ZooKeeper.

P13 is against Java as it ships; P13-tuned holds the same bar against Java tuned for latency. The same with one ZooKeeper
for both is in `zookeeper.py`.

Three clusters run all the time (Java default, Java tuned, Quire); the rounds alternate between them.
"""

from __future__ import annotations

import sys

import harness
from accounting import load_average
from cycles import Cycles, add_options
from harness import Claim, Comparison, say
from peers import three_sides

WHAT = "create + add + close + open, one at a time, embedded metadata"
CLAIMS = {
    "Java default": Claim("P13", f"{WHAT}, against Java's defaults with ZooKeeper", "cycles/s", 3.0),
    "Java tuned": Claim("P13-tuned", f"{WHAT}, against Java tuned with ZooKeeper", "cycles/s", 3.0),
}


def measure(pairs: int, count: int, creates: int) -> list[Comparison]:
    """Run the pairs."""
    with three_sides("quire-lifecycle") as (clients, peer):
        cycles = Cycles(clients, count, creates)
        parameters = {
            "cycles": count,
            "entry": "100 B",
            "quorum": "E=3 Qw=3 Qa=2",
            "sync": "bookies and metadata stores sync before they answer",
            "metadata": "SQLite (ours), ZooKeeper, one server (Java)",
            "peer": peer,
        }
        comparisons = {name: Comparison(claim, parameters) for name, claim in CLAIMS.items()}
        for _ in range(pairs):
            load = load_average()
            rates = cycles.round()
            mine = rates.pop("Quire")
            ratios = [one.add(mine, {name: rates[name]}, load).ratio for name, one in comparisons.items()]
            say(f"  ours {mine:,.0f}/s, {rates} -> {ratios}")
        cycles.note(comparisons["Java default"])
    return list(comparisons.values())


def main() -> int:
    """Parse the options and run."""
    options = harness.parser(__doc__ or "")
    add_options(options)
    given = options.parse_args()
    return harness.main("lifecycle", given, lambda: measure(given.pairs, given.count, given.creates))


if __name__ == "__main__":
    sys.exit(main())

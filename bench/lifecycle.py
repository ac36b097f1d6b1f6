"""Claim P13: create, add, close and open a ledger, one at a time, with embedded metadata, against Java with ZooKeeper.

P13 is against Java as it ships; P13-tuned holds the same bar against Java tuned for latency. The same with one ZooKeeper
for both is in `zookeeper.py`.

Three clusters run all the time (Java default, Java tuned, Quire); the rounds alternate between them.
"""

from __future__ import annotations

import statistics
import sys
from typing import Any

import harness
from accounting import load_average
from harness import Claim, Comparison, say
from peers import LoadClient, three_sides

WHAT = "create + add + close + open, one at a time, embedded metadata"
CLAIMS = {
    "Java default": Claim("P13", f"{WHAT}, against Java with ZooKeeper", "cycles/s", 3.0),
    "Java tuned": Claim("P13-tuned", f"{WHAT}, against Java tuned with ZooKeeper", "cycles/s", 3.0),
}
WARM_UP_ADDS = 100_000
WARM_UP_CYCLES = 300
STEPS = ("create_ms", "add_ms", "close_ms", "open_ms")


def warm_up(client: LoadClient) -> None:
    """Let the JIT see adds, creations and whole cycles."""
    client.warm_up(WARM_UP_ADDS)
    client.run("create", WARM_UP_CYCLES)
    client.run("cycle", WARM_UP_CYCLES)
    say(f"  {client.name} is warm")


def measure(pairs: int, count: int, creates: int) -> list[Comparison]:
    """Run the pairs."""
    with three_sides("quire-lifecycle") as (clients, peer):
        for client in clients.values():
            warm_up(client)
        parameters = {
            "cycles": count,
            "entry": "100 B",
            "quorum": "E=3 Qw=3 Qa=2",
            "sync": "bookies and metadata stores sync before they answer",
            "metadata": "SQLite (ours), ZooKeeper, one server (Java)",
            "peer": peer,
        }
        comparisons = {name: Comparison(claim, parameters) for name, claim in CLAIMS.items()}
        cycles: dict[str, list[dict[str, Any]]] = {name: [] for name in clients}
        at_once: dict[str, list[float]] = {name: [] for name in clients}
        for _ in range(pairs):
            load = load_average()
            for name, client in clients.items():
                cycles[name].append(client.run("cycle", count))
                at_once[name].append(client.run("create", creates)["creates_per_s"])
            rates = {name: float(rounds[-1]["cycles_per_s"]) for name, rounds in cycles.items()}
            mine = rates.pop("Quire")
            ratios = [one.add(mine, {name: rates[name]}, load).ratio for name, one in comparisons.items()]
            say(f"  ours {mine:,.0f}/s, {rates} -> {ratios}")
        extra = comparisons["Java default"].extra
        for name, rounds in cycles.items():
            extra[f"ms of each step, {name}"] = {
                step.removesuffix("_ms"): round(statistics.median(one[step] for one in rounds), 2)
                for step in STEPS
            }
        extra["creates_per_s_64_in_flight"] = {
            name: round(statistics.median(rates)) for name, rates in at_once.items()
        }
        extra["cpu_us_per_cycle"] = {
            name: round(statistics.median(one["client_cpu_us"] + one["bookies_cpu_us"] for one in rounds))
            for name, rounds in cycles.items()
        }
    return list(comparisons.values())


def main() -> int:
    """Parse the options and run."""
    options = harness.parser(__doc__ or "")
    options.add_argument("--count", type=int, default=1000, help="cycles per round (default %(default)s)")
    options.add_argument(
        "--creates", type=int, default=2000, help="creations per round, 64 in flight (default %(default)s)"
    )
    given = options.parse_args()
    return harness.main("lifecycle", given, lambda: measure(given.pairs, given.count, given.creates))


if __name__ == "__main__":
    sys.exit(main())

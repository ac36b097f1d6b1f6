"""Claim P12: create, add, close and open a ledger, one at a time, with the metadata of both sides in one ZooKeeper.

Against Java as it ships and, as P12-tuned, against Java tuned for latency. Of each, one ZooKeeper keeps the cluster of
its Java bookies and, under another root, that of ours; both run all the time, and the rounds alternate.
"""

from __future__ import annotations

import statistics
import sys
from typing import Any

import harness
from accounting import load_average
from harness import Claim, Comparison, say
from lifecycle import STEPS, warm_up
from peers import JavaPeer, QuireCluster

WHAT = "create + add + close + open, one at a time, same ZooKeeper"
CLAIMS = {
    False: Claim("P12", f"{WHAT}, against Java (aim 1.5)", "cycles/s", 1.0),
    True: Claim("P12-tuned", f"{WHAT}, against Java tuned (aim 1.5)", "cycles/s", 1.0),
}


def measure(pairs: int, count: int, creates: int, *, tuned: bool) -> Comparison:
    """Run the pairs against one kind of Java."""
    with (
        JavaPeer("java-tuned" if tuned else "java-default", tuned=tuned) as java,
        QuireCluster("quire-zookeeper", metadata=java.uri("quire")) as ours,
        java.client(v2=False) as java_client,
        ours.client() as our_client,
    ):
        clients = {"Java tuned" if tuned else "Java default": java_client, "Quire": our_client}
        for client in clients.values():
            warm_up(client)
        parameters = {
            "cycles": count,
            "entry": "100 B",
            "quorum": "E=3 Qw=3 Qa=2",
            "sync": "bookies and ZooKeeper sync before they answer",
            "metadata": "ZooKeeper, one server for both",
            "peer": f"{java.version()}{', tuned' if tuned else ''}",
        }
        comparison = Comparison(CLAIMS[tuned], parameters)
        cycles: dict[str, list[dict[str, Any]]] = {name: [] for name in clients}
        at_once: dict[str, list[float]] = {name: [] for name in clients}
        for _ in range(pairs):
            load = load_average()
            for name, client in clients.items():
                cycles[name].append(client.run("cycle", count))
                at_once[name].append(client.run("create", creates)["creates_per_s"])
            rates = {name: float(rounds[-1]["cycles_per_s"]) for name, rounds in cycles.items()}
            pair = comparison.add(rates.pop("Quire"), rates, load)
            say(f"  ours {pair.ours:,.0f}/s, {rates} -> {pair.ratio}")
    for name, rounds in cycles.items():
        comparison.extra[f"ms of each step, {name}"] = {
            step.removesuffix("_ms"): round(statistics.median(one[step] for one in rounds), 2)
            for step in STEPS
        }
    comparison.extra["creates_per_s_64_in_flight"] = {
        name: round(statistics.median(rates)) for name, rates in at_once.items()
    }
    comparison.extra["cpu_us_per_cycle"] = {
        name: round(statistics.median(one["client_cpu_us"] + one["bookies_cpu_us"] for one in rounds))
        for name, rounds in cycles.items()
    }
    return comparison


def main() -> int:
    """Parse the options and run."""
    options = harness.parser(__doc__ or "")
    options.add_argument("--count", type=int, default=1000, help="cycles per round (default %(default)s)")
    options.add_argument(
        "--creates", type=int, default=2000, help="creations per round, 64 in flight (default %(default)s)"
    )
    options.add_argument(
        "--java", choices=("default", "tuned"), action="append", help="only against this one; again for both"
    )
    given = options.parse_args()
    kinds = [kind == "tuned" for kind in given.java or ("default", "tuned")]
    return harness.main(
        "zookeeper",
        given,
        lambda: [measure(given.pairs, given.count, given.creates, tuned=tuned) for tuned in kinds],
    )


if __name__ == "__main__":
    sys.exit(main())

"""Claim P12: create, add, close and open a ledger, one at a time, with the metadata of both sides in one ZooKeeper.

Against Java as it ships and, as P12-tuned, against Java tuned for latency. Of each, one ZooKeeper keeps the cluster of
its Java bookies and, under another root, that of ours; both run all the time, and the rounds alternate.
"""

from __future__ import annotations

import sys

import harness
from accounting import load_average
from cycles import Cycles, add_options
from harness import Claim, Comparison, say
from peers import JavaPeer, QuireCluster

WHAT = "create + add + close + open, one at a time, same ZooKeeper"
CLAIMS = {
    False: Claim("P12", f"{WHAT}, against Java's defaults (aim 1.5)", "cycles/s", 1.0),
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
        cycles = Cycles(clients, count, creates)
        parameters = {
            "cycles": count,
            "entry": "100 B",
            "quorum": "E=3 Qw=3 Qa=2",
            "sync": "bookies and ZooKeeper sync before they answer",
            "metadata": "ZooKeeper, one server for both",
            "peer": f"{java.version()}{', tuned' if tuned else ''}",
        }
        comparison = Comparison(CLAIMS[tuned], parameters)
        for _ in range(pairs):
            load = load_average()
            rates = cycles.round()
            pair = comparison.add(rates.pop("Quire"), rates, load)
            say(f"  ours {pair.ours:,.0f}/s, {rates} -> {pair.ratio}")
        cycles.note(comparison)
    return comparison


def main() -> int:
    """Parse the options and run."""
    options = harness.parser(__doc__ or "")
    add_options(options)
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

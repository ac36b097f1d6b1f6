"""Claim P19: what an entry costs does not grow with its ledger.

CPU per add, and per read of one of the newest entries, in a ledger with 1,000,000 entries against the same ledger at
10,000; time to open a closed ledger and to read one of its entries with 1,000 fragments in its record against one.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack

import harness
from accounting import load_average
from harness import Claim, Comparison, say
from peers import QuireCluster

SIZE = 100
WINDOW = 5000
CHUNK = 200_000
"""Adds that are accounted at each length."""
SHORT, LONG = 10_000, 1_000_000
ENTRIES = 2000
FRAGMENTS = 1000
ADDS = Claim("P19-adds", "CPU per 100 B add at 1,000,000 entries against 10,000", "us CPU", 1 / 1.1, False)
READS = Claim(
    "P19-reads", "CPU per read of one entry at 1,000,000 entries against 10,000", "us CPU", 1 / 1.1, False
)
LOOKUP = Claim("P19-lookup", "reading one entry, p50: 1,000 fragments against one", "us", 1 / 1.5, False)
OPEN = Claim("P19-open", "opening a closed ledger, p50: 1,000 fragments against one", "us", 1 / 1.5, False)


def measure(pairs: int) -> list[Comparison]:
    """Run the pairs; each job has both sides."""
    with ExitStack() as stack:
        ours = stack.enter_context(QuireCluster("quire-flat"))
        client = stack.enter_context(ours.client())
        lengths = {"size": SIZE, "window": WINDOW, "adds": CHUNK, "quorum": "E=3 Qw=3 Qa=2"}
        records = {"size": SIZE, "entries": ENTRIES, "quorum": "E=3 Qw=3 Qa=2"}
        adds, reads = Comparison(ADDS, lengths), Comparison(READS, lengths)
        lookup, opening = Comparison(LOOKUP, records), Comparison(OPEN, records)
        client.run("append", SIZE, 3, WINDOW)
        for _ in range(pairs):
            load = load_average()
            result = client.run("length", SIZE, WINDOW, CHUNK, SHORT, LONG)
            for comparison, costs in ((adds, result["add_cpu_us"]), (reads, result["read_cpu_us"])):
                comparison.add(costs[str(LONG)], {f"{SHORT:,} entries": costs[str(SHORT)]}, load)
            result = client.run("fragments", SIZE, ENTRIES, 1, FRAGMENTS)
            for comparison, times in ((lookup, result["read_p50_us"]), (opening, result["open_p50_us"])):
                comparison.add(times[str(FRAGMENTS)], {"one fragment": times["1"]}, load)
            opening.extra["opening and reading one entry"] = result["open_and_read_p50_us"]
            comparisons = [adds, reads, lookup, opening]
            say("  " + ", ".join(f"{one.claim.name} {1 / one.pairs[-1].ratio:.2f}" for one in comparisons))
    for comparison in comparisons:
        comparison.extra["times"] = round(1 / comparison.ratio, 2)
    return comparisons


def main() -> int:
    """Parse the options and run."""
    given = harness.parser(__doc__ or "").parse_args()
    return harness.main("flat", given, lambda: measure(given.pairs))


if __name__ == "__main__":
    sys.exit(main())

"""Claim P20: CPU per entry with E=6 Qw=3 against E=3 Qw=3, six bookies in both cases.

With E > Qw the entries of a run go to different bookies, so each bookie gets a run of its own, with its stripes.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack

import harness
from accounting import load_average
from harness import Claim, Comparison, say
from peers import QuireCluster

BOOKIES = 6
WINDOW = 5000
CLAIMS = {
    size: Claim(
        f"P20-{size}", f"{size} B adds: CPU per entry with E=6 Qw=3 against E=3 Qw=3", "us CPU", 0.5, False
    )
    for size in (100, 1024)
}


def measure(pairs: int, seconds: float) -> list[Comparison]:
    """Run the pairs of both sizes."""
    comparisons = []
    with ExitStack() as stack:
        ours = stack.enter_context(QuireCluster("quire-wide", bookies=BOOKIES))
        client = stack.enter_context(ours.client())
        for size, claim in CLAIMS.items():
            parameters = {
                "size": size,
                "window": WINDOW,
                "seconds": seconds,
                "quorum": "Qw=3 Qa=2",
                "bookies": BOOKIES,
            }
            comparison = Comparison(claim, parameters)
            client.run("append", size, 1, WINDOW)
            rates: dict[str, list[int]] = {"E=6": [], "E=3": []}
            for _ in range(pairs):
                load = load_average()
                cpu = {}
                for name, ensemble in (("E=6", 6), ("E=3", 3)):
                    result = client.run("append", size, seconds, WINDOW, f"e={ensemble}", "qw=3", "qa=2")
                    cpu[name] = result["client_cpu_us"] + result["bookies_cpu_us"]
                    rates[name].append(result["entries_per_s"])
                pair = comparison.add(cpu["E=6"], {"E=3": cpu["E=3"]}, load)
                say(
                    f"  {size} B: E=6 {pair.ours:.2f} us, E=3 {pair.peer:.2f} us -> {pair.ours / pair.peer:.2f} times"
                )
            comparison.extra["times_the_cpu"] = round(1 / comparison.ratio, 2)
            comparison.extra["entries_per_s"] = {
                name: sorted(found)[len(found) // 2] for name, found in rates.items()
            }
            comparisons.append(comparison)
    return comparisons


def main() -> int:
    """Parse the options and run."""
    options = harness.parser(__doc__ or "")
    options.add_argument("--seconds", type=float, default=4.0, help="length of a round (default %(default)s)")
    given = options.parse_args()
    return harness.main("wide", given, lambda: measure(given.pairs, given.seconds))


if __name__ == "__main__":
    sys.exit(main())

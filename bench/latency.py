"""Claims P6 and P7: one outstanding 1 KB add, against Java as it ships and Java tuned for latency.

Three clusters run all the time (Java default, Java tuned, Quire); the rounds alternate between them. Reported beside
them is P8: the median of ours over what the machine needs at least, a synced write and a loopback round trip.
"""

from __future__ import annotations

import statistics
import sys
from typing import Any

import floor
import harness
from accounting import load_average
from harness import Claim, Comparison, say
from jobs.samples import QUANTILES_MAX, evenly
from peers import OUT, LoadClient, three_sides

SIZE = 1024
WARM_UP_ADDS = 200_000
WINDOW = 5000
P6_DEFAULT = Claim("P6-default", "one 1 KB add, p50, against Java's defaults", "us", 4.0, False)
P6_TUNED = Claim("P6-tuned", "one 1 KB add, p50, against Java tuned", "us", 1.111, False)
P7 = Claim("P7", "one 1 KB add, p99, against Java tuned", "us", 1.0, False)
CLAIMS = (
    (P6_DEFAULT, "Java default", "p50_us"),
    (P6_TUNED, "Java tuned", "p50_us"),
    (P7, "Java tuned", "p99_us"),
)

Result = dict[str, Any]


def warm_up(client: LoadClient, count: int) -> None:
    """Discard enough adds for the JIT, with a full window and one at a time."""
    client.warm_up(WARM_UP_ADDS)
    client.run("latency", SIZE, min(count, 1000))
    say(f"  {client.name} is warm")


def histogram(count: int, rounds: list[dict[str, Result]]) -> dict[str, Any]:
    """The times of all rounds of each side together."""
    series = {}
    for name in rounds[0]:
        together = sorted(time for results in rounds for time in results[name]["sample_us"])
        series[name] = evenly(together, QUANTILES_MAX)
    return {
        "title": f"one 1 KB add at a time, {len(rounds)} rounds of {count:,}",
        "unit": "us",
        "series": series,
    }


def run_pairs(clients: dict[str, LoadClient], pairs: int, count: int, peer: str) -> list[Comparison]:
    """Run the pairs; every claim is made from the same rounds."""
    parameters = {
        "size": SIZE,
        "adds": count,
        "quorum": "E=3 Qw=3 Qa=2",
        "digest": "CRC32C",
        "sync": "all sides sync before they answer",
        "peer": peer,
    }
    comparisons = [Comparison(claim, parameters) for claim, _, _ in CLAIMS]
    rounds: list[dict[str, Result]] = []
    floors = []
    for _ in range(pairs):
        before = load_average()
        floors.append(floor.measure(OUT))
        results = {name: client.run("latency", SIZE, count) for name, client in clients.items()}
        rounds.append(results)
        for comparison, (_, other, figure) in zip(comparisons, CLAIMS, strict=True):
            comparison.add(results["Quire"][figure], {other: results[other][figure]}, before)
        say("  " + ", ".join(f"{name} p50 {r['p50_us']} p99 {r['p99_us']} us" for name, r in results.items()))
    over = [
        results["Quire"]["p50_us"] / least.total_us for results, least in zip(rounds, floors, strict=True)
    ]
    first = comparisons[0]
    first.extra["cpu_us_per_add"] = {
        name: round(
            statistics.median(r[name]["client_cpu_us"] + r[name]["bookies_cpu_us"] for r in rounds), 1
        )
        for name in clients
    }
    first.extra["P8: p50 over a synced write and a round trip"] = round(statistics.median(over), 2)
    first.extra["the machine's least, us"] = {
        "synced write": round(statistics.median(least.write_us for least in floors), 1),
        "loopback round trip": round(statistics.median(least.round_trip_us for least in floors), 1),
    }
    first.plots["histogram"] = histogram(count, rounds)
    return comparisons


def measure(pairs: int, count: int) -> list[Comparison]:
    """Start the three clusters, warm them up, run the pairs."""
    with three_sides("quire-latency") as (clients, peer):
        for client in clients.values():
            warm_up(client, count)
        return run_pairs(clients, pairs, count, peer)


def main() -> int:
    """Parse the options and run."""
    options = harness.parser(__doc__ or "")
    options.add_argument("--count", type=int, default=5000, help="adds per round (default %(default)s)")
    given = options.parse_args()
    return harness.main("latency", given, lambda: measure(given.pairs, given.count))


if __name__ == "__main__":
    sys.exit(main())

"""Claims P6 and P7: one outstanding 1 KB add, against Java as it ships and Java tuned for latency.

Three clusters run all the time (Java default, Java tuned, Quire); the rounds alternate between them.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack

import harness
from accounting import load_average
from harness import Claim, Comparison, say
from peers import JavaPeer, QuireCluster

SIZE = 1024
WARM_UP_ADDS = 200_000
WINDOW = 5000
CLAIMS = {
    ("Java default", "p50_us"): Claim(
        "P6-default", "one 1 KB add, p50, against Java's defaults", "us", 1.0, False
    ),
    ("Java tuned", "p50_us"): Claim("P6", "one 1 KB add, p50, against Java tuned", "us", 1.0, False),
    ("Java tuned", "p99_us"): Claim("P7", "one 1 KB add, p99, against Java tuned", "us", 1.0, False),
}


def measure(pairs: int, count: int) -> list[Comparison]:
    """Run the pairs; every claim is made from the same rounds."""
    with ExitStack() as stack:
        default = stack.enter_context(JavaPeer("java-default"))
        tuned = stack.enter_context(JavaPeer("java-tuned", tuned=True))
        ours = stack.enter_context(QuireCluster("quire-latency"))
        clients = {
            "Java default": stack.enter_context(default.client(v2=False)),
            "Java tuned": stack.enter_context(tuned.client(v2=False)),
            "Quire": stack.enter_context(ours.client()),
        }
        for client in clients.values():
            adds = 0
            while adds < WARM_UP_ADDS:
                adds += client.run("append", 100, 3, WINDOW)["entries"]
            client.run("latency", SIZE, min(count, 1000))
            say(f"  {client.name} is warm")
        parameters = {
            "size": SIZE,
            "adds": count,
            "quorum": "E=3 Qw=3 Qa=2",
            "digest": "CRC32C",
            "sync": "all sides sync before they answer",
            "peer": default.version(),
        }
        comparisons = {key: Comparison(claim, parameters) for key, claim in CLAIMS.items()}
        cpu: dict[str, list[float]] = {name: [] for name in clients}
        for _ in range(pairs):
            load = load_average()
            results = {name: client.run("latency", SIZE, count) for name, client in clients.items()}
            for (peer, figure), comparison in comparisons.items():
                comparison.add(results["Quire"][figure], {peer: results[peer][figure]}, load)
            for name, result in results.items():
                cpu[name].append(result["client_cpu_us"] + result["bookies_cpu_us"])
            say(
                "  "
                + ", ".join(f"{name} p50 {r['p50_us']} p99 {r['p99_us']} us" for name, r in results.items())
            )
        for comparison in comparisons.values():
            comparison.extra["cpu_us_per_add"] = {
                name: sorted(used)[len(used) // 2] for name, used in cpu.items()
            }
    return list(comparisons.values())


def main() -> int:
    """Parse the options and run."""
    options = harness.parser(__doc__ or "")
    options.add_argument("--count", type=int, default=2000, help="adds per round (default %(default)s)")
    given = options.parse_args()
    return harness.main("latency", given, lambda: measure(given.pairs, given.count))


if __name__ == "__main__":
    sys.exit(main())

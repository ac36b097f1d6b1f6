"""Claim P11: a reader that follows a writer of 500 entries a second, from the append to the delivery.

The bar is half of Java's default. Beside it: Java tuned, the tuned Java with a writer that sends its LAC by itself
every millisecond, and our own single adds. Each round also says how long the last entry took, behind which nothing is
written: Java's reader does not get it before the ledger is closed.
"""

from __future__ import annotations

import statistics
import sys
from typing import Any

import harness
from accounting import load_average
from harness import Claim, Comparison, say
from peers import LoadClient, three_sides

SIZE = 1024
RATE = 500
WARM_UP_ADDS = 200_000
WINDOW = 5000
SINGLE_ADDS = 1000
P11 = Claim(
    "P11", "tailing read at 500/s, append to delivery, p50, against Java's defaults", "us", 2.0, False
)
P11_TUNED = Claim(
    "P11-tuned", "tailing read at 500/s, append to delivery, p50, against Java tuned", "us", 1.0, False
)
P11_LAST = Claim("P11-last", "delivery of an entry that none follows", "us", 1.0, False)
PROMPT_US = 20_000.0
NEVER_US = 1e9
EXPLICIT = "Java tuned, LAC sent every ms"
STALLED_US = 100_000.0
"""Java's reader sometimes waits out one long poll of a second after another. Such a round says nothing about tailing."""
TRIES = 3

Result = dict[str, Any]


def warm_up(client: LoadClient) -> None:
    """Discard enough adds for the JIT, and one round."""
    client.warm_up(WARM_UP_ADDS)
    tail(client, 1000)
    say(f"  {client.name} is warm")


def tail(client: LoadClient, count: int, *options: str) -> Result:
    """A round; one that stalled is run again, so that the peer is not blamed for it."""
    result: Result = {}
    for _ in range(TRIES):
        result = client.run("tail", SIZE, count, RATE, *options)
        if result["p50_us"] < STALLED_US:
            break
    return result


def one_pair(clients: dict[str, LoadClient], count: int) -> dict[str, Result]:
    """A round of each."""
    results = {name: tail(client, count) for name, client in clients.items()}
    results[EXPLICIT] = tail(clients["Java tuned"], count, "explicit=1")
    results["Quire"]["single_p50_us"] = clients["Quire"].run("latency", SIZE, SINGLE_ADDS)["p50_us"]
    say("  " + ", ".join(f"{name} p50 {r['p50_us']} last {r['last_us']} us" for name, r in results.items()))
    return results


def figures(rounds: list[dict[str, Result]]) -> dict[str, Any]:
    """What has no bar: medians over the rounds."""

    def medians(figure: str) -> dict[str, float]:
        return {name: round(statistics.median(r[name][figure] for r in rounds), 1) for name in rounds[0]}

    own = [results["Quire"]["p50_us"] / results["Quire"]["single_p50_us"] for results in rounds]
    return {
        "p50_us": medians("p50_us"),
        "p99_us": medians("p99_us"),
        "acknowledged_p50_us": medians("ack_p50_us"),
        "last_entry_us (-1: not before the close)": medians("last_us"),
        "p50_over_own_single_add": round(statistics.median(own), 2),
        "client_cpu_us": medians("client_cpu_us"),
        "bookies_cpu_us": medians("bookies_cpu_us"),
    }


def measure(pairs: int, count: int) -> list[Comparison]:
    """Start the three clusters, warm them up, run the pairs."""
    with three_sides("quire-tail") as (clients, peer):
        for client in clients.values():
            warm_up(client)
        parameters = {
            "size": SIZE,
            "entries": count,
            "rate": RATE,
            "quorum": "E=3 Qw=3 Qa=2",
            "reader": "in the writer's process, by long poll",
            "peer": peer,
        }
        against = {
            name: Comparison(claim, parameters)
            for name, claim in (("Java default", P11), ("Java tuned", P11_TUNED))
        }
        last = Comparison(P11_LAST, parameters)
        rounds = []
        for _ in range(pairs):
            load = load_average()
            rounds.append(one_pair(clients, count))
            results = rounds[-1]
            for name, comparison in against.items():
                comparison.add(results["Quire"]["p50_us"], {name: results[name]["p50_us"]}, load)
            late = results["Quire"]["last_us"]
            last.add(late if late > 0 else NEVER_US, {"20 ms": PROMPT_US}, load)
        against["Java default"].extra.update(figures(rounds))
        return [*against.values(), last]


def main() -> int:
    """Parse the options and run."""
    options = harness.parser(__doc__ or "")
    options.add_argument("--count", type=int, default=2500, help="entries per round (default %(default)s)")
    given = options.parse_args()
    return harness.main("tail", given, lambda: measure(given.pairs, given.count))


if __name__ == "__main__":
    sys.exit(main())

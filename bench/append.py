"""Claims P1 and P2: add throughput with a window of 5,000, against the better of Java's two wire protocols.

Both clusters run all the time; the rounds alternate Java V2, Java V3, Quire.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack

import harness
from accounting import load_average
from harness import Claim, Comparison, say
from peers import JavaPeer, LoadClient, QuireCluster

WINDOW = 5000
WARM_UP_ADDS = 200_000
CLAIMS = {
    100: Claim(
        "P1", "100 B adds, window 5,000, one ledger, against the better of Java V2 and V3", "entries/s", 3.0
    ),
    1024: Claim(
        "P2", "1 KB adds, window 5,000, one ledger, against the better of Java V2 and V3", "entries/s", 2.5
    ),
}


def warm_up(client: LoadClient) -> None:
    """Discard rounds until the JIT has seen enough adds; the first rounds are two to three times slower."""
    adds = 0
    while adds < WARM_UP_ADDS:
        adds += client.run("append", 100, 3, WINDOW)["entries"]
    say(f"  {client.name} is warm after {adds:,} adds")


def measure(sizes: list[int], pairs: int, seconds: float) -> list[Comparison]:
    """Run the pairs of every size."""
    comparisons = []
    with ExitStack() as stack:
        java = stack.enter_context(JavaPeer("java-default"))
        ours = stack.enter_context(QuireCluster("quire-append"))
        clients = {
            "Java V2": stack.enter_context(java.client(v2=True)),
            "Java V3": stack.enter_context(java.client(v2=False)),
            "Quire": stack.enter_context(ours.client()),
        }
        for client in clients.values():
            warm_up(client)
        for size in sizes:
            parameters = {
                "size": size,
                "window": WINDOW,
                "seconds": seconds,
                "quorum": "E=3 Qw=3 Qa=2",
                "digest": "CRC32C",
                "sync": "both sides sync before they answer",
                "peer": java.version(),
            }
            comparison = Comparison(CLAIMS[size], parameters)
            cpu: dict[str, list[float]] = {name: [] for name in clients}
            for _ in range(pairs):
                load = load_average()
                rates = {}
                for name, client in clients.items():
                    result = client.run("append", size, seconds, WINDOW)
                    rates[name] = float(result["entries_per_s"])
                    cpu[name].append(result["client_cpu_us"] + result["bookies_cpu_us"])
                mine = rates.pop("Quire")
                pair = comparison.add(mine, rates, load)
                say(f"  {size} B: ours {mine:,.0f}/s, {rates} -> {pair.ratio:.2f}")
            comparison.extra["cpu_us_per_entry"] = {
                name: round(sorted(used)[len(used) // 2], 2) for name, used in cpu.items()
            }
            comparisons.append(comparison)
    return comparisons


def main() -> int:
    """Parse the options and run."""
    options = harness.parser(__doc__ or "")
    options.add_argument("--seconds", type=float, default=5.0, help="length of a round (default %(default)s)")
    options.add_argument("--size", type=int, choices=sorted(CLAIMS), action="append", help="only this size")
    given = options.parse_args()
    sizes = given.size or sorted(CLAIMS)
    return harness.main("append", given, lambda: measure(sizes, given.pairs, given.seconds))


if __name__ == "__main__":
    sys.exit(main())

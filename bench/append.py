"""Claims P1, P2, P4 and P5: adds to one ledger with a full window, and what CPU time they take.

P1 and P2, entries per second at 100 B and 1 KB, and P5, the CPU time of a 1 KB entry over all processes, are against
the better of Java V2 and V3 as it ships; P4, MB/s at 10 KB and 64 KB, against the better of V2 and V3 tuned. Java's
cluster and ours run all the time; the rounds alternate Java V2, Java V3, Quire.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import harness
from accounting import load_average
from harness import Claim, Comparison, say, wait_for_space
from peers import JavaPeer, LoadClient, QuireCluster

WARM_UP_ADDS = 200_000
BUCKET_SECONDS = 0.1

Result = dict[str, Any]


def entries_per_s(result: Result) -> float:
    """Completed adds per second."""
    return float(result["entries_per_s"])


def mb_per_s(result: Result) -> float:
    """Payload bytes per second, in millions."""
    return float(result["mb_per_s"])


def cpu_us(result: Result) -> float:
    """CPU time per entry of the client and all bookies together."""
    return float(result["client_cpu_us"] + result["bookies_cpu_us"])


@dataclass(frozen=True)
class Load:
    """One kind of rounds, and the claims that are made from them.

    Args:
        size: of a payload, in bytes.
        window: adds outstanding at most.
        tuned: which Java: tuned, or as it ships.
        claims: each with the figure that it takes from a round.
    """

    size: int
    window: int
    tuned: bool
    claims: tuple[tuple[Claim, Callable[[Result], float]], ...]


P1 = Claim(
    "P1",
    "100 B adds, window 5,000, against the better of Java V2 and V3 as it ships (aim 15)",
    "entries/s",
    5.0,
)
P2 = Claim(
    "P2",
    "1 KB adds, window 5,000, against the better of Java V2 and V3 as it ships (aim 8)",
    "entries/s",
    4.0,
)
P5 = Claim(
    "P5",
    "CPU of a 1 KB add, window 5,000, client and bookies, against the better of Java V2 and V3 as it ships (aim 12)",
    "us",
    5.0,
    False,
)
P4_10 = Claim(
    "P4-10KB", "10 KB adds, window 1,000, against the better of Java V2 and V3 tuned (aim 3.5)", "MB/s", 2.0
)
P4_64 = Claim(
    "P4-64KB", "64 KB adds, window 300, against the better of Java V2 and V3 tuned (aim 3.5)", "MB/s", 2.0
)
LOADS = (
    Load(100, 5000, False, ((P1, entries_per_s),)),
    Load(1024, 5000, False, ((P2, entries_per_s), (P5, cpu_us))),
    Load(10 * 1024, 1000, True, ((P4_10, mb_per_s),)),
    Load(64 * 1024, 300, True, ((P4_64, mb_per_s),)),
)


def timeline(load: Load, results: dict[str, Result]) -> dict[str, Any]:
    """Throughput over time in one pair, without the last tenth of a second, which is cut."""
    counts = {name: result["timeline"][:-1] for name, result in results.items()}
    length = min(map(len, counts.values()))
    in_mb = load.claims[0][1] is mb_per_s
    each = (load.size / 1e6 if in_mb else 1) / BUCKET_SECONDS
    return {
        "title": f"{load.size:,} B adds, window {load.window:,}",
        "unit": "MB/s" if in_mb else "entries/s",
        "seconds": [round((number + 1) * BUCKET_SECONDS, 1) for number in range(length)],
        "series": {name: [round(count * each) for count in of[:length]] for name, of in counts.items()},
    }


def run_pairs(
    load: Load, clients: dict[str, LoadClient], pairs: int, seconds: float, peer: str
) -> list[Comparison]:
    """Run the rounds of one load; every claim of it is made from the same rounds."""
    parameters = {
        "size": load.size,
        "window": load.window,
        "seconds": seconds,
        "quorum": "E=3 Qw=3 Qa=2",
        "digest": "CRC32C",
        "sync": "both sides sync before they answer",
        "peer": f"{peer}{', tuned' if load.tuned else ''}",
    }
    comparisons = [Comparison(claim, parameters) for claim, _ in load.claims]
    rounds: list[dict[str, Result]] = []
    for _ in range(pairs):
        wait_for_space()
        before = load_average()
        results = {
            name: client.run("append", load.size, seconds, load.window) for name, client in clients.items()
        }
        rounds.append(results)
        for comparison, (_, figure) in zip(comparisons, load.claims, strict=True):
            figures = {name: figure(result) for name, result in results.items()}
            pair = comparison.add(figures.pop("Quire"), figures, before)
            say(f"  {comparison.claim.name}: ours {pair.ours:,.1f}, {figures} -> {pair.ratio:.2f}")
    cpu = {name: statistics.median(cpu_us(results[name]) for results in rounds) for name in clients}
    client = {name: statistics.median(r[name]["client_cpu_us"] for r in rounds) for name in clients}
    first = comparisons[0]
    first.extra["cpu_us_per_entry"] = {name: round(used, 2) for name, used in cpu.items()}
    first.extra["of_it_the_client"] = {name: round(used, 2) for name, used in client.items()}
    first.plots["timeline"] = timeline(load, rounds[first.middle])
    return comparisons


def measure(loads: Sequence[Load], pairs: int, seconds: float) -> list[Comparison]:
    """Run the loads, those against the same Java one after another."""
    comparisons = []
    for tuned in sorted({load.tuned for load in loads}):
        with ExitStack() as stack:
            java = stack.enter_context(JavaPeer("java-tuned" if tuned else "java-default", tuned=tuned))
            ours = stack.enter_context(QuireCluster("quire-append"))
            clients = {
                "Java V2": stack.enter_context(java.client(v2=True)),
                "Java V3": stack.enter_context(java.client(v2=False)),
                "Quire": stack.enter_context(ours.client()),
            }
            for client in clients.values():
                client.warm_up(WARM_UP_ADDS)
                say(f"  {client.name} is warm")
            for load in loads:
                if load.tuned == tuned:
                    comparisons += run_pairs(load, clients, pairs, seconds, java.version())
    return comparisons


def main() -> int:
    """Parse the options and run."""
    sizes = [load.size for load in LOADS]
    options = harness.parser(__doc__ or "")
    options.add_argument("--seconds", type=float, default=5.0, help="length of a round (default %(default)s)")
    options.add_argument("--size", type=int, choices=sizes, action="append", help="only this size, in bytes")
    given = options.parse_args()
    loads = [load for load in LOADS if load.size in (given.size or sizes)]
    return harness.main("append", given, lambda: measure(loads, given.pairs, given.seconds))


if __name__ == "__main__":
    sys.exit(main())

"""Claim P22: what is gained by either side of ours when the other side is Java, with BookKeeper's V2 and V3.

P22a, a Java client's adds per second on our bookies, over the same client's on Java bookies; P22b, our client's on Java
bookies, over the Java client's on the same ones. One ZooKeeper keeps both clusters, which run all the time; a pair is
a round of each of the three: Java on Java, Java on ours, ours on Java. With `--tuned` the Java bookies are tuned.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import harness
from accounting import load_average
from harness import Claim, Comparison, say, wait_for_space
from peers import JavaPeer, LoadClient, QuireCluster

WARM_UP_ADDS = 200_000
WINDOW = 5000
SIZES = {100: "100 B", 1024: "1 KB"}
WIRES = ("V2", "V3")
JAVA, OUR_BOOKIES, OUR_CLIENT = "Java", "Java client, our bookies", "our client, Java bookies"

Result = dict[str, Any]


@dataclass(frozen=True)
class Load:
    """Rounds of one entry size over one protocol.

    Args:
        wire: V2 or V3.
        size: of a payload, in bytes.
        tuned: whether the Java bookies are.
    """

    wire: str
    size: int
    tuned: bool

    def claims(self) -> dict[str, Claim]:
        """The two claims of these rounds, by the side that each is about."""
        part = f"{self.wire}-{SIZES[self.size].replace(' ', '')}{'-tuned' if self.tuned else ''}"
        bookies = "tuned Java bookies" if self.tuned else "Java bookies"
        entries = f"{SIZES[self.size]} adds over {self.wire}"
        return {
            OUR_BOOKIES: Claim(
                f"P22a-{part}", f"{entries}: a Java client on our bookies, against {bookies} (aim 2)", "entries/s", 1.0
            ),
            OUR_CLIENT: Claim(
                f"P22b-{part}", f"{entries}: our client on {bookies}, against the Java client (aim 1.3)", "entries/s", 1.0
            ),
        }  # fmt: skip


def run_pairs(
    load: Load, clients: dict[str, LoadClient], pairs: int, seconds: float, peer: str
) -> list[Comparison]:
    """Run the rounds of one load."""
    parameters = {
        "size": load.size,
        "window": WINDOW,
        "seconds": seconds,
        "quorum": "E=3 Qw=3 Qa=2",
        "digest": "CRC32C",
        "sync": "both sides sync before they answer",
        "metadata": "one ZooKeeper for both",
        "peer": f"{peer}{', tuned' if load.tuned else ''}",
    }
    comparisons = {side: Comparison(claim, parameters) for side, claim in load.claims().items()}
    rounds: list[dict[str, Result]] = []
    for _ in range(pairs):
        wait_for_space()
        before = load_average()
        results = {side: client.run("append", load.size, seconds, WINDOW) for side, client in clients.items()}
        rounds.append(results)
        rates = {side: float(result["entries_per_s"]) for side, result in results.items()}
        for side, comparison in comparisons.items():
            comparison.add(rates[side], {f"{JAVA} {load.wire}": rates[JAVA]}, before)
        say(
            f"  {load.wire} {load.size} B: {rates}, CPU us "
            f"{ {side: (one['client_cpu_us'], one['bookies_cpu_us']) for side, one in results.items()} }"
        )
    first = comparisons[OUR_BOOKIES]
    for what in ("client", "bookies"):
        first.extra[f"{what}_cpu_us_per_entry"] = {
            side: round(statistics.median(results[side][f"{what}_cpu_us"] for results in rounds), 2)
            for side in clients
        }
    return list(comparisons.values())


def measure(loads: Sequence[Load], pairs: int, seconds: float) -> list[Comparison]:
    """Run the loads, those against the same Java one after another."""
    comparisons = []
    for tuned in sorted({load.tuned for load in loads}):
        with ExitStack() as stack:
            java = stack.enter_context(JavaPeer("java-tuned" if tuned else "java-default", tuned=tuned))
            ours = stack.enter_context(QuireCluster("quire-java-wire", metadata=java.uri("quire")))
            for wire in WIRES:
                mine = [load for load in loads if load.tuned == tuned and load.wire == wire]
                if not mine:
                    continue
                v2 = wire == "V2"
                with ExitStack() as of_wire:
                    clients = {
                        JAVA: of_wire.enter_context(java.client(v2=v2)),
                        OUR_BOOKIES: of_wire.enter_context(java.client(v2=v2, on=ours)),
                        OUR_CLIENT: of_wire.enter_context(java.our_client(v2=v2)),
                    }
                    for client in clients.values():
                        client.warm_up(WARM_UP_ADDS)
                        say(f"  {client.name} is warm")
                    for load in mine:
                        comparisons += run_pairs(load, clients, pairs, seconds, java.version())
    return comparisons


def main() -> int:
    """Parse the options and run."""
    options = harness.parser(__doc__ or "")
    options.add_argument("--seconds", type=float, default=5.0, help="length of a round (default %(default)s)")
    options.add_argument(
        "--size", type=int, choices=SIZES, action="append", help="only this size, in bytes; again for more"
    )
    options.add_argument("--wire", choices=WIRES, action="append", help="only this protocol; again for more")
    options.add_argument(
        "--tuned", action="store_true", help="against tuned Java bookies instead of default ones"
    )
    given = options.parse_args()
    loads = [Load(wire, size, given.tuned) for wire in given.wire or WIRES for size in given.size or SIZES]
    return harness.main("java_wire", given, lambda: measure(loads, given.pairs, given.seconds))


if __name__ == "__main__":
    sys.exit(main())

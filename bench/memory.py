"""Claims P16 and P17: memory per open idle ledger, and of bookies idle and after much was written.

Resident memory from the operating system: what it grows by while ledgers are opened, one entry in each, over their
number; of each bookie as it starts; of each bookie after `--gigabytes` were written to each. As many ledgers are opened
before, and large runs are written before and after, so that neither counts a bookie's bounded caches and its newest
segment, which an idle ledger is no longer in; what the first ledgers take with these is reported. Ledgers are deleted on the way so that the disk stays bounded. Every bar is absolute;
Java's own figures are reported beside them.
"""

from __future__ import annotations

import shutil
import sys
from contextlib import ExitStack
from typing import Any

import harness
from accounting import load_average, resident_mib
from harness import Claim, Comparison, say
from peers import OUT, JavaPeer, LoadClient, PeerMissingError, QuireCluster

LEDGERS = 15_000
SIZE = 100
BIG = 65536
WINDOW = 300
SECONDS = 4
FREE_GB_MIN = 15
FILL_BYTES = 256 * 2**20
PER_BOOKIE = Claim("P16-bookie", "memory of a bookie per open idle ledger", "bytes", 1.0, False)
PER_HANDLE = Claim("P16-client", "memory of the client per open idle ledger", "bytes", 1.0, False)
IDLE = Claim("P17-idle", "resident memory of an idle bookie, the largest", "MiB", 1.0, False)
AFTER = Claim(
    "P17-written", "resident memory of a bookie after much was written, the largest", "MiB", 1.0, False
)
BARS = {PER_BOOKIE.name: 1024.0, PER_HANDLE.name: 2048.0, IDLE.name: 100.0, AFTER.name: 300.0}


def largest(pids: list[int]) -> float:
    """Resident MiB of the largest process."""
    return round(max(map(resident_mib, pids)), 1)


def large_runs(client: LoadClient) -> None:
    """Push everything small out of the bookies' caches and out of the segment that is being filled."""
    written = 0
    while written < FILL_BYTES:
        written += client.run("append", BIG, 1, WINDOW)["entries"] * BIG


def ours(comparisons: dict[str, Comparison], gigabytes: float) -> None:
    """One round of ours on a new cluster."""

    def add(claim: Claim, figure: float) -> None:
        comparisons[claim.name].add(figure, {"bar": BARS[claim.name]}, load_average())
        say(f"  {claim.text}: {figure:,.1f} {claim.unit}")

    with ExitStack() as stack:
        cluster = stack.enter_context(QuireCluster("quire-memory"))
        client = stack.enter_context(cluster.client())
        add(IDLE, largest(cluster.pids))
        first = client.run("open-many", LEDGERS, SIZE)
        large_runs(client)
        before = list(map(resident_mib, cluster.pids))
        result = client.run("open-many", LEDGERS, SIZE)
        large_runs(client)
        grown = [resident_mib(pid) - was for pid, was in zip(cluster.pids, before, strict=True)]
        add(PER_BOOKIE, round(max(grown) * 2**20 / LEDGERS))
        comparisons[PER_BOOKIE.name].extra["first_ledgers_bytes"] = max(first["bookie_bytes"])
        add(PER_HANDLE, result["client_bytes"])
        client.run("close-many", SIZE)
    with ExitStack() as stack:
        cluster = stack.enter_context(QuireCluster("quire-memory"))
        client = stack.enter_context(cluster.client())
        written, peak = 0.0, 0.0
        while written < gigabytes * 1e9:
            written += client.run("append", BIG, SECONDS, WINDOW)["entries"] * BIG
            peak = max(peak, largest(cluster.pids))
            if shutil.disk_usage(OUT).free < FREE_GB_MIN * 1e9:
                raise RuntimeError(
                    f"less than {FREE_GB_MIN} GB of disk are free after {written / 1e9:.1f} GB"
                )
        add(AFTER, peak)


def java() -> dict[str, Any]:
    """Java's resident sizes: idle, with open ledgers, after a load."""
    with ExitStack() as stack:
        peer = stack.enter_context(JavaPeer("java-default"))
        client = stack.enter_context(peer.client(v2=False))
        idle = largest(peer.pids)
        many = client.run("many", 1000, SIZE, 2, 5000)
        client.run("append", BIG, SECONDS, WINDOW)
        return {
            "peer": peer.version(),
            "idle_mib": idle,
            "after_a_load_mib": largest(peer.pids),
            "client_bytes_per_handle": many["client_bytes"],
        }


def measure(pairs: int, gigabytes: float) -> list[Comparison]:
    """Run the rounds, then Java once."""
    parameters = {"ledgers": LEDGERS, "size": SIZE, "quorum": "E=3 Qw=3 Qa=2"}
    written = {"gigabytes": gigabytes, "size": BIG, "quorum": "E=3 Qw=3 Qa=2"}
    comparisons = {
        claim.name: Comparison(claim, written if claim is AFTER else parameters)
        for claim in (PER_BOOKIE, PER_HANDLE, IDLE, AFTER)
    }
    for _ in range(pairs):
        ours(comparisons, gigabytes)
    try:
        comparisons[IDLE.name].extra["java"] = java()
    except PeerMissingError as missing:
        comparisons[IDLE.name].extra["java"] = f"skipped: {missing}"
    return list(comparisons.values())


def main() -> int:
    """Parse the options and run."""
    options = harness.parser(__doc__ or "")
    options.add_argument(
        "--gigabytes", type=float, default=2.0, help="written to each bookie (default %(default)s)"
    )
    given = options.parse_args()
    return harness.main("memory", given, lambda: measure(given.pairs, given.gigabytes))


if __name__ == "__main__":
    sys.exit(main())

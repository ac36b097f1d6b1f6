"""Claim P23: bytes written to disk per byte acknowledged and replica, with 64 KB entries.

The bytes that each bookie process caused to be written, from the kernel's account, over the payload bytes it
acknowledged, until the bookies have nothing more to do: while ledgers are deleted before their segments are reclaimed,
and while they are kept.
"""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack
from pathlib import Path

import harness
from accounting import load_average
from harness import Claim, Comparison, say
from peers import LoadClient, QuireCluster

SIZE = 65536
WINDOW = 300
ROUNDS = 2
QUIET_SECONDS = 2.0
DELETED = Claim("P23-deleted", "bytes written per byte acknowledged, ledgers deleted", "times", 1.0, False)
KEPT = Claim("P23-kept", "bytes written per byte acknowledged, ledgers kept", "times", 1.0, False)
BARS = {DELETED.name: 1.1, KEPT.name: 2.1}


def written_bytes(pids: list[int]) -> int:
    """What the processes caused to be written to disk."""
    lines = [line for pid in pids for line in Path(f"/proc/{pid}/io").read_text().splitlines()]
    return sum(int(line.split()[1]) for line in lines if line.startswith("write_bytes:"))


def settled(pids: list[int]) -> int:
    """The same, once nothing is written any more."""
    before, now = -1, written_bytes(pids)
    while now != before:
        time.sleep(QUIET_SECONDS)
        before, now = now, written_bytes(pids)
    return now


def amplification(client: LoadClient, pids: list[int], seconds: float, job: str) -> float:
    """Bytes written per byte of payload and replica over some ledgers."""
    before, acknowledged = settled(pids), 0
    for _ in range(ROUNDS):
        result = client.run(job, SIZE, seconds, WINDOW)
        acknowledged += result["entries"] * SIZE * len(pids)
    return (settled(pids) - before) / acknowledged


def measure(pairs: int, seconds: float) -> list[Comparison]:
    """Run the rounds on one cluster, so that segments are taken anew and recycled ones are taken again."""
    parameters = {"size": SIZE, "window": WINDOW, "ledgers": ROUNDS, "quorum": "E=3 Qw=3 Qa=2"}
    comparisons = [Comparison(DELETED, parameters), Comparison(KEPT, parameters)]
    with ExitStack() as stack:
        cluster = stack.enter_context(QuireCluster("quire-written"))
        client = stack.enter_context(cluster.client())
        for _ in range(pairs):
            for comparison, job in zip(comparisons, ("append", "keep"), strict=True):
                load = load_average()
                times = amplification(client, cluster.pids, seconds, job)
                comparison.add(times, {"bar": BARS[comparison.claim.name]}, load)
                say(f"  {comparison.claim.text}: {times:.4f}")
    for comparison in comparisons:
        comparison.extra["times"] = [round(pair.ours, 4) for pair in comparison.pairs]
    return comparisons


def main() -> int:
    """Parse the options and run."""
    options = harness.parser(__doc__ or "")
    options.add_argument("--seconds", type=float, default=0.5, help="length of a round (default %(default)s)")
    given = options.parse_args()
    return harness.main("written", given, lambda: measure(given.pairs, given.seconds))


if __name__ == "__main__":
    sys.exit(main())

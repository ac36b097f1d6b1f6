"""Claims P9 and P10: catch-up reads.

P9: one reader reads a closed ledger whole, warm, against the best of Java's ways to read: range reads four at a time
over V2 and over V3, and batch reads four at a time and one at a time over V2. Each pair fills a ledger on each side.
Java's tuned bookies never read faster than its default ones, so they are measured only with `--tuned`.

P10: one ledger out of 1,000 that were written in turn, read after a restart with nothing of it in memory, against the
same read of a ledger of the same size that was written alone. Both were written with the same window per ledger, so
that their runs are equally long and all that differs is where they lie. A ledger that was written alone with the whole
window, whose runs are the longest, is read as well and reported.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import harness
from accounting import load_average
from harness import Claim, Comparison, say
from peers import JavaPeer, LoadClient, QuireCluster

WARM_UP_ADDS = 200_000
TIMES = 3
LEDGERS = 1000
ENTRIES = 1000
SAMPLE = 8
"""How many of the ledgers are read after each restart, and how many are written alone."""
COLD_SIZE = 1024
COLD_WINDOW = 50
"""Outstanding entries per ledger: a tenth of them makes a run."""
COLD_PARAMETERS = {
    "size": COLD_SIZE,
    "ledgers": LEDGERS,
    "entries": f"{ENTRIES} in each ledger, one to each in turn, window {COLD_WINDOW} per ledger",
    "cold": "bookies restarted, segments dropped from the page cache; connections are up",
    "reads": f"median of {SAMPLE} ledgers of each kind, each read once, each entry compared",
    "quorum": "E=3 Qw=3 Qa=2",
}


@dataclass(frozen=True)
class Scan:
    """One ledger to read whole: `count` entries of `size` bytes, written with `window`."""

    claim: Claim
    size: int
    count: int
    window: int

    def figure(self, result: dict[str, Any]) -> float:
        """What the claim is about."""
        return float(result["mb_per_s" if self.claim.unit == "MB/s" else "entries_per_s"])


P9_1 = Claim(
    "P9-1KB",
    "catch-up read, one reader, 1 KB, against the best way of Java as it ships (aim 6)",
    "entries/s",
    3.0,
)
P9_64 = Claim(
    "P9-64KB",
    "catch-up read, one reader, 64 KB, against the best way of Java as it ships (aim 2)",
    "MB/s",
    1.3,
)
P10 = Claim(
    "P10",
    "cold read of one ledger out of 1,000 written in turn, over one written alone (aim 0.8)",
    "entries/s",
    0.5,
)
SCANS = (Scan(P9_1, 1024, 100_000, 5000), Scan(P9_64, 64 * 1024, 4000, 300))
WAYS: dict[str, tuple[str, tuple[str, ...]]] = {
    "V2 ranges": ("V2", ("mode=range",)),
    "V3 ranges": ("V3", ("mode=range",)),
    "V2 batches": ("V2", ("mode=batch",)),
    "V2 batches one by one": ("V2", ("mode=batch", "depth=1")),
}
"""Java's ways to read: the client that has them, and the options of the job."""


def java_reads(clients: dict[str, LoadClient], scan: Scan, setting: str) -> dict[str, dict[str, Any]]:
    """Fill a ledger and read it in every way."""
    ledger = clients["V2"].run("fill-ledgers", 1, scan.count, scan.size, scan.window)["ledgers"][0]
    results = {}
    for name, (version, options) in WAYS.items():
        job = ("read-ledger", ledger, scan.count, scan.size)
        results[f"Java {name}{setting}"] = clients[version].run(*job, TIMES, *options)
    clients["V2"].run("delete-ledgers", ledger)
    return results


def our_reads(client: LoadClient, scan: Scan) -> dict[str, Any]:
    """Fill a ledger and read it; the first read brings it into memory."""
    ledger = client.run("fill-ledgers", 1, scan.count, scan.size, scan.window)["ledgers"][0]
    client.run("read-ledger", ledger, scan.count, scan.size, 1)
    result = client.run("read-ledger", ledger, scan.count, scan.size, TIMES)
    client.run("delete-ledgers", ledger)
    return result


def measure_warm(scans: Sequence[Scan], pairs: int, *, tuned: bool) -> list[Comparison]:
    """P9."""
    comparisons = []
    with ExitStack() as stack:
        settings = {"": JavaPeer("java-default")}
        if tuned:
            settings[", tuned"] = JavaPeer("java-tuned", tuned=True)
        javas = {name: stack.enter_context(java) for name, java in settings.items()}
        clients = {
            name: {version: stack.enter_context(java.client(v2=version == "V2")) for version in ("V2", "V3")}
            for name, java in javas.items()
        }
        ours = stack.enter_context(stack.enter_context(QuireCluster("quire-read")).client())
        for client in (*(one for both in clients.values() for one in both.values()), ours):
            client.warm_up(WARM_UP_ADDS)  # the reads before the first pair warm the rest
        for scan in scans:
            parameters = {
                "size": scan.size,
                "entries": scan.count,
                "reads": f"median of {TIMES}, warm, each entry compared",
                "quorum": "E=3 Qw=3 Qa=2",
                "digest": "CRC32C",
                "peer": settings[""].version(),
            }
            comparison = Comparison(scan.claim, parameters)
            for setting, both in clients.items():
                java_reads(both, scan, setting)
            cpu: dict[str, list[float]] = {}
            for _ in range(pairs):
                load = load_average()
                results = {"Quire": our_reads(ours, scan)}
                for setting, both in clients.items():
                    results |= java_reads(both, scan, setting)
                figures = {name: scan.figure(result) for name, result in results.items()}
                pair = comparison.add(figures.pop("Quire"), figures, load)
                say(f"  {scan.claim.name}: ours {pair.ours:,.0f}, {figures} -> {pair.ratio:.2f}")
                for name, result in results.items():
                    used = result["client_cpu_us"] + result["bookies_cpu_us"]
                    cpu.setdefault(name, []).append(used)
            comparison.extra["cpu_us_per_entry"] = {
                name: round(statistics.median(used), 2) for name, used in cpu.items()
            }
            comparisons.append(comparison)
    return comparisons


def measure_cold(pairs: int) -> list[Comparison]:
    """P10: both kinds of ledgers lie on the same bookies and are read after the same restarts, in turn."""
    comparison = Comparison(P10, COLD_PARAMETERS)
    long_runs: list[float] = []
    with QuireCluster("quire-read-cold") as cluster:
        with cluster.client() as client:
            together = fill(client, LEDGERS, COLD_WINDOW)
            samples = {
                "in turn": together[LEDGERS // (2 * SAMPLE) :: LEDGERS // SAMPLE],
                "alone": [fill(client, 1, COLD_WINDOW)[0] for _ in range(SAMPLE)],
                "alone, longest runs": [fill(client, 1, COLD_WINDOW * LEDGERS)[0] for _ in range(SAMPLE)],
            }
            connecting = fill(client, 1, COLD_WINDOW)[0]
        cpu: dict[str, list[float]] = {kind: [] for kind in samples}
        for _ in range(pairs):
            load = load_average()
            cluster.restart_cold()
            with cluster.client() as client:
                client.run("read-ledger", connecting, ENTRIES, COLD_SIZE, 6)
                ours, peer, longest = cold_rates(client, samples, cpu).values()
            long_runs.append(longest)
            pair = comparison.add(ours, {"one ledger alone": peer}, load)
            say(f"  P10: {ours:,.0f} entries/s of one in {LEDGERS:,}, {peer:,.0f} alone -> {pair.ratio:.2f}")
    comparison.extra["cpu_us_per_entry"] = {name: round(statistics.mean(of), 1) for name, of in cpu.items()}
    comparison.extra["entries_per_s_with_the_longest_runs"] = round(statistics.median(long_runs))
    return [comparison]


def cold_rates(
    client: LoadClient, samples: Mapping[str, Sequence[int]], cpu: Mapping[str, list[float]]
) -> dict[str, float]:
    """Read each ledger once, one of each kind in turn; the median of entries per second by kind.

    `cpu` gets the CPU of an entry in each read, by kind.
    """
    rates: dict[str, list[float]] = {kind: [] for kind in samples}
    for ledgers in zip(*samples.values(), strict=True):
        for kind, ledger in zip(samples, ledgers, strict=True):
            result = client.run("read-ledger", ledger, ENTRIES, COLD_SIZE, 1)
            rates[kind].append(result["entries_per_s"])
            cpu[kind].append(result["client_cpu_us"] + result["bookies_cpu_us"])
    return {kind: statistics.median(found) for kind, found in rates.items()}


def fill(client: LoadClient, ledgers: int, window: int) -> list[int]:
    """Ledgers for cold reads; `window` is that of each ledger."""
    result = client.run("fill-ledgers", ledgers, ENTRIES, COLD_SIZE, window * ledgers)
    found: list[int] = result["ledgers"]
    return found


def main() -> int:
    """Parse the options and run."""
    names = [scan.claim.name for scan in SCANS]
    options = harness.parser(__doc__ or "")
    options.add_argument("--claim", choices=[*names, P10.name], action="append", help="only this claim")
    options.add_argument("--tuned", action="store_true", help="tuned Java bookies beside the default ones")
    given = options.parse_args()
    wanted = given.claim or [*names, P10.name]

    def measure() -> list[Comparison]:
        scans = [scan for scan in SCANS if scan.claim.name in wanted]
        comparisons = measure_warm(scans, given.pairs, tuned=given.tuned) if scans else []
        return comparisons + (measure_cold(given.pairs) if P10.name in wanted else [])

    return harness.main("read", given, measure)


if __name__ == "__main__":
    sys.exit(main())

"""Claim P18: 100 B adds in turn to 1,000 and to 50,000 open ledgers, against one ledger in the same round.

Both sides send a frame for each entry, because with one small entry per ledger and turn there is nothing to put into
a run; the one ledger is made to do the same (`run_bytes_max=1`). Without that setting, reported beside it: 1,000
ledgers as they come against one ledger with full runs, and Java with 1,000 ledgers. All entries of all ledgers are
read back at the end.
"""

from __future__ import annotations

import statistics
import sys
from contextlib import ExitStack
from typing import Any

import harness
from accounting import load_average
from harness import Claim, Comparison, say
from peers import JavaPeer, LoadClient, PeerMissingError, QuireCluster

SIZE = 100
WINDOW = 5000
THOUSAND = 1000
CLAIMS = {
    1_000: Claim("P18-1,000", "100 B adds in turn to 1,000 ledgers against one ledger", "entries/s", 0.8),
    50_000: Claim("P18-50,000", "100 B adds in turn to 50,000 ledgers against one ledger", "entries/s", 0.6),
}
OPEN_AT_ONCE_MAX = 10_000
"""Ledgers that one job opens: more would outlast a job's time."""
JAVA_WARM_UP_ADDS = 200_000

Result = dict[str, Any]


def cpu_us(results: list[Result]) -> float:
    """The median CPU microseconds per entry, all processes together."""
    used = [float(one["client_cpu_us"] + one["bookies_cpu_us"]) for one in results]
    return round(statistics.median(used), 1)


def rates(results: list[Result]) -> list[float]:
    """Entries per second of some rounds."""
    return [float(one["entries_per_s"]) for one in results]


def pairs_of(client: LoadClient, ledgers: int, pairs: int, seconds: float) -> Comparison:
    """Open what is missing of so many ledgers, and run the pairs."""
    opened = 0
    while opened < ledgers:
        size = min(OPEN_AT_ONCE_MAX, ledgers - opened)
        opened = client.run("open-many", size, SIZE, "frames=1")["open"]
    say(f"  {opened:,} ledgers are open")
    parameters = {
        "size": SIZE,
        "window": WINDOW,
        "seconds": seconds,
        "quorum": "E=3 Qw=3 Qa=2",
        "frames": "one entry each on both sides",
    }
    comparison = Comparison(CLAIMS[ledgers], parameters)
    many: list[Result] = []
    one: list[Result] = []
    # Each ledger's first entries are slower, its state is written with them.
    client.run("round-robin", ledgers, seconds, WINDOW, SIZE, "frames=1")
    for _ in range(pairs):
        load = load_average()
        many.append(client.run("round-robin", ledgers, seconds, WINDOW, SIZE, "frames=1"))
        one.append(client.run("round-robin", 1, seconds, WINDOW, SIZE, "frames=1"))
        pair = comparison.add(rates(many)[-1], {"one ledger": rates(one)[-1]}, load)
        say(f"  {ledgers:,} ledgers {pair.ours:,.0f}/s, one {pair.peer:,.0f}/s -> {pair.ratio:.2f}")
    comparison.extra["cpu_us_per_entry"] = {"many": cpu_us(many), "one": cpu_us(one)}
    return comparison


def as_they_come(client: LoadClient, pairs: int, seconds: float) -> dict[str, Any]:
    """The same with runs as they come: 1,000 ledgers, and one."""
    client.run("open-many", THOUSAND, SIZE)
    many = [client.run("round-robin", THOUSAND, seconds, WINDOW, SIZE) for _ in range(pairs)]
    one = [client.run("append", SIZE, seconds, WINDOW) for _ in range(pairs)]
    return {
        "1,000 ledgers, entries/s": statistics.median(rates(many)),
        "one ledger, entries/s": statistics.median(rates(one)),
        "ratio": round(statistics.median(rates(many)) / statistics.median(rates(one)), 3),
        "cpu_us_per_entry": {"many": cpu_us(many), "one": cpu_us(one)},
    }


def java(seconds: float) -> dict[str, Any]:
    """Java's figures with 1,000 ledgers."""
    with ExitStack() as stack:
        peer = stack.enter_context(JavaPeer("java-default"))
        client = stack.enter_context(peer.client(v2=False))
        client.warm_up(JAVA_WARM_UP_ADDS, SIZE)
        result = client.run("many", THOUSAND, SIZE, seconds, WINDOW)
        return {
            "peer": peer.version(),
            "entries/s": result["entries_per_s"],
            "cpu_us_per_entry": cpu_us([result]),
        }


def measure(ledgers: list[int], pairs: int, seconds: float) -> list[Comparison]:
    """Run everything; the number of open ledgers only grows."""
    with ExitStack() as stack:
        ours = stack.enter_context(QuireCluster("quire-many"))
        client = stack.enter_context(ours.client())
        client.run("append", SIZE, 2, WINDOW)
        comparisons = [pairs_of(client, count, pairs, seconds) for count in ledgers]
        comparisons[0].extra["runs_as_they_come"] = as_they_come(client, min(pairs, 3), seconds)
        verified = client.run("close-many", SIZE)["verified"]
        say(f"  {verified:,} entries verified")
    try:
        comparisons[0].extra["java_1,000_ledgers"] = java(seconds)
    except PeerMissingError as missing:
        comparisons[0].extra["java_1,000_ledgers"] = f"skipped: {missing}"
    return comparisons


def main() -> int:
    """Parse the options and run."""
    options = harness.parser(__doc__ or "")
    options.add_argument("--seconds", type=float, default=3.0, help="length of a round (default %(default)s)")
    options.add_argument(
        "--ledgers", type=int, choices=sorted(CLAIMS), action="append", help="only so many ledgers"
    )
    given = options.parse_args()
    ledgers = sorted(given.ledgers or CLAIMS)
    return harness.main("many_ledgers", given, lambda: measure(ledgers, given.pairs, given.seconds))


if __name__ == "__main__":
    sys.exit(main())

"""Claims P24 and P25: a bookie of four is killed under load, and one of three is stopped for some seconds.

P24: the writer's longest time without an acknowledgement, against Java's and against one second. P25: the throughput
while one replica hangs (SIGSTOP) over the healthy rate of the same round, with Qa=2; Java's own ratio is beside it.
Everything that was acknowledged is read back afterwards, while the killed bookie is still dead.
"""

from __future__ import annotations

import os
import signal
import statistics
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, Protocol

import harness
from accounting import load_average
from harness import Claim, Comparison, say
from peers import JavaPeer, LoadClient, QuireCluster

SIZE = 1024
WINDOW = 5000
WARM_UP_ADDS = 200_000
KILL_SECONDS = 4.0
KILL_AT = 1.5
STOP_SECONDS = 7.0
STOP_FROM, STOP_TO = 2.5, 6.0
HEALTHY_FROM = 1.0
SECOND_MS = 1000.0

P24_JAVA = Claim("P24-java", "a bookie of four is killed: the longest gap, against Java", "ms", 1.0, False)
P24_SECOND = Claim("P24", "a bookie of four is killed: the longest gap, against a second", "ms", 1.0, False)
P25 = Claim("P25", "one of three bookies hangs: throughput over the healthy rate", "entries/s", 0.8)

Result = dict[str, Any]


class Side(Protocol):
    """One side's cluster, whose bookies can be named by what `begin` says of the ensemble."""

    def pid_of(self, bookie: str) -> int:
        """The process of a bookie of the ensemble."""

    def revive(self, bookie: str) -> None:
        """Start a bookie again that was killed."""


def strike(after_seconds: float, work: Callable[[], None]) -> threading.Timer:
    """Do something to a bookie in so many seconds."""
    timer = threading.Timer(after_seconds, work)
    timer.start()
    return timer


def kill_round(side: Side, client: LoadClient) -> Result:
    """Write, kill a bookie of the ensemble meanwhile, verify without it, start it again."""
    begun = client.run("begin")
    victim = begun["ensemble"][1]
    strike(KILL_AT, lambda: os.kill(side.pid_of(victim), signal.SIGKILL))
    result = client.run("write", begun["ledger"], SIZE, KILL_SECONDS, WINDOW)
    client.run("verify", begun["ledger"], SIZE, result["entries"])
    side.revive(victim)
    return result


def stop_round(side: Side, client: LoadClient) -> Result:
    """Write, let a bookie of the ensemble hang meanwhile, verify; adds the rates before and during."""
    begun = client.run("begin")
    pid = side.pid_of(begun["ensemble"][1])
    marks: dict[str, float] = {}

    def send(number: signal.Signals) -> None:
        os.kill(pid, number)
        marks[number.name] = time.perf_counter()

    strike(STOP_FROM, lambda: send(signal.SIGSTOP))
    going_on = strike(STOP_TO, lambda: send(signal.SIGCONT))
    result = client.run("write", begun["ledger"], SIZE, STOP_SECONDS, WINDOW)
    going_on.join()
    client.run("verify", begun["ledger"], SIZE, result["entries"])
    start = result["start_ns"] / 1e9
    stopped, went_on = (marks[name] - start for name in ("SIGSTOP", "SIGCONT"))
    result["healthy"] = rate(result["timeline"], HEALTHY_FROM, stopped)
    result["stopped"] = rate(result["timeline"], stopped, went_on)
    return result


def rate(timeline: list[int], first: float, last: float) -> float:
    """Entries per second between two times of a count per tenth of a second; whole tenths inside only."""
    begin, end = int(first * 10) + 1, int(last * 10)
    return sum(timeline[begin:end]) / (end - begin) * 10


class Java:
    """The Java side: `begin` says addresses, a port names the bookie's number and with it the process."""

    def __init__(self, peer: JavaPeer) -> None:
        self._peer = peer

    def _number(self, bookie: str) -> int:
        port = bookie.rpartition(":")[2]
        lines = (self._peer.directory / "ports").read_text().splitlines()
        return next(
            int(line.split("=")[0].removeprefix("bookie")) for line in lines if line.endswith(f"={port}")
        )

    def pid_of(self, bookie: str) -> int:
        return int((self._peer.directory / "pids" / f"bookie{self._number(bookie)}.pid").read_text())

    def revive(self, bookie: str) -> None:
        self._peer.start_bookie(self._number(bookie))


class Ours:
    """Our side: a fresh cluster each round, so that its disk stays small."""

    def __init__(self, cluster: QuireCluster) -> None:
        self._cluster = cluster

    def pid_of(self, bookie: str) -> int:
        return self._cluster.pid_of(bookie)

    def revive(self, bookie: str) -> None:
        """Not needed: the next round has a cluster of its own."""


def our_round(bookies: int, work: Callable[[Side, LoadClient], Result]) -> Result:
    """A round on a new cluster."""
    with QuireCluster("quire-failures", bookies=bookies) as cluster, cluster.client(account=False) as client:
        client.run("append", SIZE, 1, WINDOW)
        return work(Ours(cluster), client)


def timeline(title: str, rounds: list[dict[str, Result]], number: int) -> Result:
    """The acknowledgements of one pair over time."""
    series = {name: [10 * count for count in result["timeline"]] for name, result in rounds[number].items()}
    longest = max(map(len, series.values()))
    return {
        "title": title,
        "unit": "entries/s",
        "seconds": [bucket / 10 for bucket in range(longest)],
        "series": {name: values + [0] * (longest - len(values)) for name, values in series.items()},
    }


def run_pairs(
    bookies: int, pairs: int, work: Callable[[Side, LoadClient], Result], note: Callable[[Result], str]
) -> tuple[list[dict[str, Result]], list[float], str]:
    """Both sides' rounds, alternating; Java's cluster stays, warm, ours is new each time."""
    rounds: list[dict[str, Result]] = []
    loads = []
    with ExitStack() as stack:
        peer = stack.enter_context(JavaPeer("java-failures", bookies=bookies))
        client = stack.enter_context(peer.client(v2=False))
        client.warm_up(WARM_UP_ADDS)
        for _ in range(pairs):
            loads.append(load_average())
            rounds.append({"Quire": our_round(bookies, work), "Java": work(Java(peer), client)})
            say("  " + "; ".join(f"{name} {note(result)}" for name, result in rounds[-1].items()))
        return rounds, loads, peer.version()


def killed(pairs: int) -> list[Comparison]:
    """P24."""
    rounds, loads, version = run_pairs(
        4, pairs, kill_round, lambda r: f"longest gap {r['longest_gap_ms']} ms"
    )
    parameters = {
        "size": SIZE,
        "window": WINDOW,
        "quorum": "four bookies, E=3 Qw=3 Qa=2, SIGKILL to one of the ensemble",
        "peer": version,
    }
    against_java, against_second = Comparison(P24_JAVA, parameters), Comparison(P24_SECOND, parameters)
    for results, load in zip(rounds, loads, strict=True):
        ours, java = (results[name]["longest_gap_ms"] for name in ("Quire", "Java"))
        against_java.add(ours, {"Java default": java}, load)
        against_second.add(ours, {"a second": SECOND_MS}, load)
    against_java.extra["acknowledged_and_read_back"] = {
        name: sum(results[name]["entries"] for results in rounds) for name in rounds[0]
    }
    against_java.plots["timeline"] = timeline(
        f"one bookie of four is killed at {KILL_AT} s", rounds, against_java.middle
    )
    return [against_java, against_second]


def stopped(pairs: int) -> list[Comparison]:
    """P25."""
    rounds, loads, version = run_pairs(
        3,
        pairs,
        stop_round,
        lambda r: f"{r['stopped']:,.0f} of {r['healthy']:,.0f}/s, grew {r['growth_mib']} MiB",
    )
    parameters = {
        "size": SIZE,
        "window": WINDOW,
        "quorum": "three bookies, E=3 Qw=3 Qa=2, one of them stopped by SIGSTOP",
        "stopped_seconds": STOP_TO - STOP_FROM,
        "peer": version,
    }
    comparison = Comparison(P25, parameters)
    for results, load in zip(rounds, loads, strict=True):
        comparison.add(results["Quire"]["stopped"], {"its healthy rate": results["Quire"]["healthy"]}, load)
    comparison.extra["java_stopped_over_healthy"] = round(
        statistics.median(results["Java"]["stopped"] / results["Java"]["healthy"] for results in rounds), 3
    )
    comparison.extra["client_grew_mib"] = {
        name: max(results[name]["growth_mib"] for results in rounds) for name in rounds[0]
    }
    comparison.extra["window_held_mib_of_64"] = max(results["Quire"]["held_mib"] for results in rounds)
    comparison.extra["longest_gap_ms"] = {
        name: statistics.median(results[name]["longest_gap_ms"] for results in rounds) for name in rounds[0]
    }
    comparison.plots["timeline"] = timeline(
        f"one bookie of three stopped from {STOP_FROM} to {STOP_TO} s", rounds, comparison.middle
    )
    return [comparison]


def main() -> int:
    """Parse the options and run."""
    options = harness.parser(__doc__ or "")
    options.add_argument("--only", choices=("killed", "stopped"), help="one of the two")
    given = options.parse_args()
    parts = [part for part in (killed, stopped) if given.only in (None, part.__name__)]
    return harness.main(
        "failures", given, lambda: [comparison for part in parts for comparison in part(given.pairs)]
    )


if __name__ == "__main__":
    sys.exit(main())

"""Claims P14 and P15: how long it takes to open a ledger whose writer is gone.

P14 is a claim against ourselves: a ledger of 100,000 entries takes as long as one of 100 with the same unconfirmed
tail. P15 is against Java, the better of as it ships and tuned: 1,000 entries above the last LAC that any bookie heard
of. `extra` has Java's figures for P14 too, and for P15 those of a Java client that reads ahead in a recovery, which is
not its default.

Both sides send the tail as one window, before the first of its acknowledgements is taken, check with a reader that does
not recover that the LAC stands where it should, and read back what was recovered.
"""

from __future__ import annotations

import statistics
import sys
from contextlib import ExitStack
from typing import Any

import harness
from accounting import load_average
from harness import Claim, Comparison, say
from peers import JavaPeer, LoadClient, QuireCluster

SIZE = 1024
SHORT, LONG = 100, 100_000
TAIL = 1000
TAIL_OF_LENGTHS = 100
WARM_UP_ADDS = 100_000
CLAIMS = {
    "P14": Claim(
        "P14",
        f"recovery of {LONG:,} entries over recovery of {SHORT}, {TAIL_OF_LENGTHS} of them above the LAC",
        "ms",
        round(1 / 1.2, 3),
        False,
    ),
    "P15": Claim(
        "P15",
        f"recovery with {TAIL:,} 1 KB entries above the last LAC, against the better of Java's "
        "defaults and tuned, parallel recovery reads off",
        "ms",
        5.0,
        False,
    ),
}


def warm_up(client: LoadClient) -> None:
    """Let the JIT see adds and recoveries."""
    client.warm_up(WARM_UP_ADDS)
    client.run("recover", SIZE, 3, TAIL, SHORT)
    client.run("recover", SIZE, 20, 10, SHORT)
    say(f"  {client.name} is warm")


def tails(clients: dict[str, LoadClient], pairs: int, ledgers: int, parameters: dict[str, Any]) -> Comparison:
    """P15."""
    comparison = Comparison(CLAIMS["P15"], {**parameters, "ledgers_per_round": ledgers, "above_lac": TAIL})
    ahead: list[float] = []
    cpu: dict[str, list[float]] = {name: [] for name in clients}
    for _ in range(pairs):
        load = load_average()
        results = {
            name: client.run("recover", SIZE, ledgers, TAIL, SHORT) for name, client in clients.items()
        }
        millis = {name: float(result["ms"][str(SHORT)]) for name, result in results.items()}
        for name, result in results.items():
            cpu[name].append((result["client_cpu_us"] + result["bookies_cpu_us"]) / 1e3)
        ahead.append(
            clients["Java tuned"].run("recover", SIZE, ledgers, TAIL, SHORT, "parallel=1")["ms"][str(SHORT)]
        )
        pair = comparison.add(millis.pop("Quire"), millis, load)
        say(f"  ours {pair.ours:.1f} ms, {millis}, reading ahead {ahead[-1]:.0f} -> {pair.ratio:.1f}")
    comparison.extra["ms, Java tuned, client with enableParallelRecoveryRead"] = round(
        statistics.median(ahead), 1
    )
    comparison.extra["cpu_ms_per_recovery"] = {
        name: round(statistics.median(used), 1) for name, used in cpu.items()
    }
    return comparison


def lengths(
    clients: dict[str, LoadClient], pairs: int, ledgers: int, parameters: dict[str, Any]
) -> Comparison:
    """P14; one round of Java's for `extra`."""
    comparison = Comparison(
        CLAIMS["P14"], {**parameters, "ledgers_per_round": 2 * ledgers, "above_lac": TAIL_OF_LENGTHS}
    )
    job = ("recover", SIZE, ledgers, TAIL_OF_LENGTHS, SHORT, LONG)
    for _ in range(pairs):
        load = load_average()
        millis = clients["Quire"].run(*job)["ms"]
        pair = comparison.add(millis[str(LONG)], {f"{SHORT} entries": millis[str(SHORT)]}, load)
        say(f"  {LONG:,} entries {pair.ours:.2f} ms, {SHORT} entries {pair.peer:.2f} ms -> {pair.ratio:.2f}")
    comparison.extra["ms, Java tuned"] = clients["Java tuned"].run(
        "recover", SIZE, 2, TAIL_OF_LENGTHS, SHORT, LONG
    )["ms"]
    return comparison


def measure(given: Any) -> list[Comparison]:
    """Run the pairs of the claims that are wanted."""
    with ExitStack() as stack:
        peers = {"Java default": JavaPeer("java-default"), "Java tuned": JavaPeer("java-tuned", tuned=True)}
        clients = {
            name: stack.enter_context(stack.enter_context(java).client(v2=False))
            for name, java in peers.items()
        }
        clients["Quire"] = stack.enter_context(stack.enter_context(QuireCluster("quire-recovery")).client())
        for client in clients.values():
            warm_up(client)
        parameters = {
            "size": SIZE,
            "quorum": "E=3 Qw=3 Qa=2",
            "digest": "CRC32C",
            "sync": "both sides sync before they answer",
            "peer": peers["Java default"].version(),
        }
        found = []
        if "P14" in given.claim:
            found.append(lengths(clients, given.pairs, given.long_ledgers, parameters))
        if "P15" in given.claim:
            found.append(tails(clients, given.pairs, given.ledgers, parameters))
    return found


def main() -> int:
    """Parse the options and run."""
    options = harness.parser(__doc__ or "")
    options.add_argument(
        "--ledgers", type=int, default=5, help="recoveries per round and side (default %(default)s)"
    )
    options.add_argument(
        "--long-ledgers", type=int, default=5, help="of each length, per round (default %(default)s)"
    )
    options.add_argument("--claim", choices=sorted(CLAIMS), action="append", help="only this claim")
    given = options.parse_args()
    given.claim = given.claim or sorted(CLAIMS)
    return harness.main("recovery", given, lambda: measure(given))


if __name__ == "__main__":
    sys.exit(main())

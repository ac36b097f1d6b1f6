"""Claims P27 and P28: a bookie of four is gone for good, and its copies are put on the others.

Ours is `quire cluster repair`, Java's the auto-recovery daemon with `rereplicationEntryBatchSize=5000`, on its better
storage. Both have the same ledgers, written by our client, E=3 Qw=3 Qa=2. Java's time is that from the first to the
last record that it replaces. Ours copies many ledgers side by side, so that its time begins with the first copy; neither
the plan of ours nor the audit of Java's counts. P27: bytes a second of ledgers with 2,000 entries of 1 KB. P28: ledgers
a second of those with ten entries. After each round every copy of every ledger is read and compared.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import harness
import quire
from accounting import load_average
from harness import Claim, Comparison, say
from peers import JavaPeer, QuireCluster
from quire.client.client import Client

SIZE: Final = 1024
BOOKIES: Final = 4
REPAIR_SECONDS: Final = 900
SETTINGS: Final = "rereplicationEntryBatchSize=5000\nlostBookieRecoveryDelay=0\n"
ZOOKEEPER: Final = "?session_timeout_ms=60000&patience_ms=120000"


@dataclass(frozen=True)
class Shape:
    """Ledgers of one kind.

    Attributes:
        entries: of each.
        ledgers: how many, by default.
        figure: what is claimed of a round: (ledgers, payload bytes) that were replaced, and seconds.
    """

    claim: Claim
    entries: int
    ledgers: int
    figure: Callable[[int, int, float], float]


SHAPES = {
    "large": Shape(
        Claim("P27", "repair of ledgers with 2,000 entries of 1 KB, against Java's daemon", "MB/s", 4.0),
        2000,
        60,
        lambda _, size, seconds: size / 1e6 / seconds,
    ),
    "small": Shape(
        Claim("P28", "repair of ledgers with ten entries, against Java's daemon", "ledgers/s", 8.0),
        10,
        600,
        lambda count, _, seconds: count / seconds,
    ),
}


async def written(uri: str, count: int, entries: int) -> list[int]:
    """Ledgers of random payloads."""
    made: list[int] = []
    async with quire.connect(uri) as client:
        for _ in range(count):
            async with await client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=2) as writer:
                for _ in range(entries):
                    writer.append_nowait(os.urandom(SIZE))
            made.append(int(writer.ledger_id))
    return made


async def naming(client: Client, ledgers: list[int], bookie: str) -> list[int]:
    """The ledgers whose records name a bookie."""
    records = await asyncio.gather(*(client.ledger_metadata(ledger) for ledger in ledgers))
    return [
        ledger
        for ledger, record in zip(ledgers, records, strict=True)
        if any(bookie in fragment.ensemble for fragment in record.fragments)
    ]


async def complete(uri: str, ledgers: list[int]) -> None:
    """Read every copy."""
    async with quire.connect(uri) as client:
        for ledger in ledgers:
            report = await client.verify_ledger(ledger)
            assert report.complete, f"ledger {ledger} was not repaired: {report}"


async def watched(uri: str, ledgers: list[int], bookie: str) -> tuple[int, float]:
    """Wait until no record names a bookie; how many did, and the seconds from the first to the last that changed."""
    async with quire.connect(uri) as client:
        left = await naming(client, ledgers, bookie)
        count, first, last = len(left), 0.0, 0.0
        deadline = time.monotonic() + REPAIR_SECONDS
        while left and time.monotonic() < deadline:
            await asyncio.sleep(0.02)
            now = time.monotonic()
            rest = await naming(client, left, bookie)
            if len(rest) < len(left):
                first, last = first or now, now
            left = rest
        assert not left, f"{len(left)} ledgers name the bookie after {REPAIR_SECONDS} s"
        return count, last - first


def ours(shape: Shape, ledgers: int) -> tuple[int, float]:
    """A round of ours: how many ledgers were repaired, and the seconds."""
    with QuireCluster("quire-repair", bookies=BOOKIES) as cluster:
        made = asyncio.run(written(cluster.uri, ledgers, shape.entries))
        gone = cluster.kill_bookie(0)
        command = [sys.executable, "-m", "quire", "cluster", "repair", "--bookie", gone, "--json"]
        done = subprocess.run(
            [*command, "--cluster", cluster.uri], capture_output=True, text=True, check=True
        )
        _, end = map(json.loads, done.stdout.splitlines())
        asyncio.run(complete(cluster.uri, made))
        return int(end["ledgers"]), float(end["seconds"])


def javas(shape: Shape, ledgers: int, *, tuned: bool) -> tuple[int, float]:
    """A round of Java's."""
    name = f"java-repair-{'tuned' if tuned else 'default'}"
    with JavaPeer(name, tuned=tuned, bookies=BOOKIES, configuration=SETTINGS) as peer:
        uri = peer.uri() + ZOOKEEPER
        made = asyncio.run(written(uri, ledgers, shape.entries))
        gone = peer.kill_bookie(0)
        peer.auto_recovery("start")
        try:
            found = asyncio.run(watched(uri, made, gone))
        finally:
            peer.auto_recovery("stop")
        asyncio.run(complete(uri, made))
        return found


def measured(shape: Shape, pairs: int, ledgers: int) -> Comparison:
    """The pairs of one claim; each side begins every other one."""
    parameters: dict[str, Any] = {
        "size": SIZE,
        "entries": shape.entries,
        "ledgers": ledgers,
        "quorum": "E=3 Qw=3 Qa=2 on four bookies, one of them killed for good",
        "java": SETTINGS.split(),
    }
    comparison = Comparison(shape.claim, parameters)
    sides: dict[str, Callable[[], tuple[int, float]]] = {
        "Quire": lambda: ours(shape, ledgers),
        "Java default": lambda: javas(shape, ledgers, tuned=False),
        "Java tuned": lambda: javas(shape, ledgers, tuned=True),
    }
    for number in range(pairs):
        load = load_average()
        figures: dict[str, float] = {}
        for name in list(sides)[:: -1 if number % 2 else 1]:
            count, seconds = sides[name]()
            figures[name] = shape.figure(count, count * shape.entries * SIZE, max(seconds, 1e-9))
            say(f"  {name}: {count} ledgers in {seconds:.2f} s, {figures[name]:.1f} {shape.claim.unit}")
        comparison.add(figures.pop("Quire"), figures, load)
    return comparison


def main() -> int:
    """Parse the options and run."""
    options = harness.parser(__doc__ or "")
    options.add_argument("--only", choices=tuple(SHAPES), help="one of the two")
    options.add_argument("--ledgers", type=int, help="of each round (default: 60 large ones, 600 small ones)")
    given = options.parse_args()
    wanted = [shape for name, shape in SHAPES.items() if given.only in (None, name)]
    return harness.main(
        "repair",
        given,
        lambda: [measured(shape, given.pairs, given.ledgers or shape.ledgers) for shape in wanted],
    )


if __name__ == "__main__":
    sys.exit(main())

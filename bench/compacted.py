"""Compaction: cold reads of what it moved, restarts after it, and Spark's reads while it moves segments.

P10-compacted: of 1,000 ledgers that were written in turn every other one is deleted, and what lives is compacted. One of
those that live, read after a restart with nothing of it in memory, against the same read of a ledger of the same size
that was written alone and was not moved. The restarts before and after are timed as well: until a client can read.

S3-moving and S5-moving: a Spark job reads a log of 100 B records, one of 1 KB records, and one that is striped over five
bookies, while the bookies compact segments of which an eighth lives, and give them back to be written again; against the
same read with quiet bookies, in turn. What is compacted is written and deleted before each read.

compacting-rate and compacting-p99: adds with a full window, and one after another, while all bookies compact as fast as they
can, over the same adds to quiet bookies. Java's bookies, which compact by themselves as fast as they do by default, go through
the same and are reported.
"""

from __future__ import annotations

import asyncio
import math
import shutil
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial

import harness
import quire
from accounting import load_average
from harness import CPUS, Claim, Comparison, in_background, say
from peers import OUT, JavaPeer, LoadClient, QuireCluster
from quire.log.client import QuireClient
from quire.spark.local import session
from quire.wire.native_info import SpaceTask
from read import (
    COLD_PARAMETERS,
    COLD_SIZE,
    COLD_WINDOW,
    ENTRIES,
    LEDGERS,
    SAMPLE,
    WARM_UP_ADDS,
    cold_rates,
    fill,
)
from spark_sides import content, must_be_equal, noop, table

COLD = Claim(
    "P10-compacted",
    "cold read of one ledger of 1,000 written in turn, half deleted and compacted, over one alone",
    "entries/s",
    0.9,
)
RESTART = Claim(
    "P10-restart",
    "a restart after the compaction, over one before: no slower than noise",
    "s",
    round(1 / 1.1, 3),
    higher_is_better=False,
)
MOVING = {
    "S3-moving-100B": (100, 3, "Spark reads 100 B records while segments move, over quiet bookies"),
    "S3-moving-1KB": (1024, 3, "Spark reads 1 KB records while segments move, over quiet bookies"),
    "S5-moving-E5": (
        1024,
        5,
        "Spark reads 1 KB records striped over five bookies while segments move, over quiet bookies",
    ),
}
RATE = Claim("compacting-rate", "1 KB adds beside compaction, over quiet bookies", "entries/s", 0.85)
P99 = Claim(
    "compacting-p99",
    "p99 of one 1 KB add at a time beside compaction, over quiet bookies",
    "us",
    round(1 / 1.5, 3),
    higher_is_better=False,
)
RECORDS = 1_000_000
PARTS = 8
GARBAGE_MIB = 512
HALF, HALF_MIB = 2, 128
"""Every other ledger goes of so much: there is much to copy, and compaction lasts as long as the adds beside it."""
ADD_SIZE, SECONDS, WINDOW, ADDS = 1024, 3, 5000, 2000
COMPACTS_SOON = """
logSizeLimit=67108864
gcWaitTime=1000
minorCompactionInterval=2
minorCompactionThreshold=0.8
majorCompactionInterval=0
"""
"""Java's bookies look for what to compact each second; how fast they compact stays as it ships."""


async def compact(client: QuireClient) -> dict[str, int]:
    """Let all bookies compact now; how many segments they compacted and gave back."""
    bookies = await client.bookies.bookies()
    asked = (client.bookies.space(one, SpaceTask.COMPACT, timeout_ms=600_000) for one in bookies)
    came_back = [info["came_back"] for _, info in await asyncio.gather(*asked)]
    return {what: sum(one[what] for one in came_back) for what in ("compacted", "retired")}


async def compact_once(uri: str) -> dict[str, int]:
    """The same, of a cluster that nothing else is asked of."""
    async with quire.connect(uri) as client:
        return await compact(client)


def restarted(cluster: QuireCluster, ledger: int) -> tuple[float, LoadClient]:
    """Restart the bookies with cold files; seconds until a client has read a ledger, and that client."""
    begun = time.perf_counter()
    cluster.restart_cold()
    client = cluster.client()
    client.run("read-ledger", ledger, ENTRIES, COLD_SIZE, 1)
    return time.perf_counter() - begun, client


def measure_cold(pairs: int) -> list[Comparison]:
    """P10-compacted and P10-restart."""
    parameters = COLD_PARAMETERS | {"ledgers": f"{LEDGERS}, every other one deleted"}
    cold, restart = Comparison(COLD, parameters), Comparison(RESTART, parameters)
    with QuireCluster("quire-compacted") as cluster:
        with cluster.client() as client:
            together = fill(client, LEDGERS, COLD_WINDOW)
            alone = [fill(client, 1, COLD_WINDOW)[0] for _ in range(SAMPLE)]
            connecting = fill(client, 1, COLD_WINDOW)[0]
            client.run("delete-ledgers", *together[1::2])
        living = together[::2][LEDGERS // (4 * SAMPLE) :: LEDGERS // (2 * SAMPLE)][:SAMPLE]
        before: list[float] = []
        for _ in range(pairs):
            seconds, client = restarted(cluster, connecting)
            before.append(seconds)
            client.close()
        moved = asyncio.run(compact_once(cluster.uri))
        say(f"  compacted: {moved}")
        if not moved["compacted"]:
            raise RuntimeError("nothing was compacted, so the rounds are void")
        samples = {"compacted": living, "alone": alone}
        cpu: dict[str, list[float]] = {kind: [] for kind in samples}
        for earlier in before:
            load = load_average()
            seconds, client = restarted(cluster, connecting)
            restart.add(seconds, {"before": earlier}, load)
            with client:
                client.run("read-ledger", connecting, ENTRIES, COLD_SIZE, 5)
                rates = cold_rates(client, samples, cpu)
            pair = cold.add(rates["compacted"], {"alone": rates["alone"]}, load)
            say(f"  {pair.ours:,.0f} entries/s of one compacted -> {pair.ratio:.2f}; restart {seconds:.2f} s")
    cold.extra["cpu us per entry"] = {kind: round(statistics.mean(used), 1) for kind, used in cpu.items()}
    cold.extra["segments that were compacted and given back"] = moved
    return [cold, restart]


@contextmanager
def moving(cluster: QuireCluster, found: list[int]) -> Iterator[None]:
    """Let all bookies compact, again and again; how many segments that were each time is in `found` at the end."""

    async def compact_until(ended: threading.Event) -> None:
        async with quire.connect(cluster.uri) as client:
            while not found or not ended.is_set():
                found.append((await compact(client))["compacted"])
                if not found[-1]:
                    await asyncio.sleep(0.1)

    with in_background(lambda ended: asyncio.run(compact_until(ended))):
        yield


def leave_sparse(
    client: LoadClient, quorums: Sequence[str] = (), mib: int = GARBAGE_MIB, parts: int = PARTS
) -> list[int]:
    """Write ledgers in turn and delete all but one of so many; those that are left."""
    count = mib // PARTS
    ledgers = client.run("fill-ledgers", count, PARTS * 16, 64_000, 400, *quorums)["ledgers"]
    client.run("delete-ledgers", *[one for number, one in enumerate(ledgers) if number % parts])
    return list(ledgers[::parts])


def rounds_of(
    comparison: Comparison, cluster: QuireCluster, read: Callable[[], float], quorums: list[str], pairs: int
) -> None:
    """Read quietly and beside compaction, in turn; the first round warms the JVM and Spark's workers."""
    records, moved = comparison.parameters["records"], []
    with cluster.client() as client:
        for number in range(pairs + 1):
            load, left = load_average(), leave_sparse(client, quorums)
            quiet, segments = read(), list[int]()
            with moving(cluster, segments):
                beside = read()
            if not segments[0]:
                raise RuntimeError("nothing was compacted, so the round is void")
            client.run("delete-ledgers", *left)
            if number:
                pair = comparison.add(records / beside, {"quiet": records / quiet}, load)
                moved.append(sum(segments))
                say(f"  {comparison.claim.name}: {pair.ours:,.0f} records/s -> {pair.ratio:.2f}, {segments}")
    comparison.extra["segments compacted beside a read"] = round(statistics.median(moved))


def measure_spark(pairs: int, names: list[str]) -> list[Comparison]:
    """S3-moving and S5-moving."""
    comparisons = []
    with ExitStack() as stack:
        spark = session(master=f"local[{CPUS}]", app_name="bench", **{"spark.log.level": "ERROR"})
        stack.callback(spark.stop)
        for name in names:
            size, bookies, what = MOVING[name]
            claim = Claim(name, what, "records/s", 0.9)
            quorum = {"ensemble": bookies, "writeQuorum": 3, "ackQuorum": 2}
            comparison = Comparison(
                claim, {"records": RECORDS, "value": size, "tasks": CPUS, "quorum": str(quorum)}
            )
            plain = spark.read.parquet(str(table(OUT / "spark-moving-table", RECORDS, size)))
            # A directory of its own for each claim: Spark's workers keep clients by URI.
            with QuireCluster(f"quire-{name}", bookies=bookies) as cluster:
                rows = plain.select("key", "value", "timestamp").write.format("quire").mode("append")
                rows.options(cluster=cluster.uri, create="true", **quorum).save("records")
                frame = spark.read.format("quire").options(cluster=cluster.uri).load("records")
                must_be_equal({"Parquet": content(plain), "log": content(frame)})
                rounds_of(comparison, cluster, partial(noop, frame), [f"e={bookies}"], pairs)
                must_be_equal({"Parquet": content(plain), "log": content(frame)})
            comparisons.append(comparison)
            shutil.rmtree(OUT / "spark-moving-table", ignore_errors=True)
    return comparisons


Compacts = Callable[[list[int]], AbstractContextManager[None]]


@contextmanager
def java_compacts(java: JavaPeer, found: list[int]) -> Iterator[None]:
    """Java's bookies compact by themselves; how many of their logs went meanwhile is in `found` at the end."""
    before = set(java.directory.rglob("*.log"))
    yield
    found.append(len(before - set(java.directory.rglob("*.log"))))


def adds_beside(
    client: LoadClient, compacts: Compacts, *, quiet_first: bool = True
) -> dict[str, tuple[float, float, int]]:
    """Adds a second and the p99 of single adds, each on quiet bookies and beside compaction; and of how many segments that was."""
    jobs = {
        "entries_per_s": ("append", ADD_SIZE, SECONDS, WINDOW),
        "p99_us": ("latency", ADD_SIZE, ADDS),
    }
    both = {}
    for figure, job in jobs.items():
        left, found = leave_sparse(client, mib=HALF_MIB, parts=HALF), list[int]()
        quiet = client.run(*job)[figure] if quiet_first else math.nan
        with compacts(found):
            beside = client.run(*job)[figure]
        if not quiet_first:
            quiet = client.run(*job)[figure]
        client.run("delete-ledgers", *left)
        both[figure] = quiet, beside, sum(found)
    return both


def measure_pace(pairs: int) -> list[Comparison]:
    """compacting-rate and compacting-p99. First ours, then Java's: its bookies, which compact when they like, are not up before."""
    claims = {"entries_per_s": RATE, "p99_us": P99}
    parameters = {"size": ADD_SIZE, "window": WINDOW, "quorum": "E=3 Qw=3 Qa=2"}
    comparisons = {figure: Comparison(claim, dict(parameters)) for figure, claim in claims.items()}
    with QuireCluster("quire-compacting") as ours, ours.client() as client:
        client.warm_up(WARM_UP_ADDS, ADD_SIZE)
        for number in range(pairs):
            load, compacts = load_average(), partial(moving, ours)
            measured = adds_beside(client, compacts, quiet_first=number % 2 == 0)
            for figure, (quiet, beside, compacted) in measured.items():
                if not compacted:
                    raise RuntimeError("nothing was compacted beside our adds, so the round is void")
                pair = comparisons[figure].add(beside, {"quiet": quiet}, load)
                say(f"  {comparisons[figure].claim.name}: {pair.ratio:.2f}")
    theirs: dict[str, list[float]] = {figure: [] for figure in claims}
    with JavaPeer("java-compacting", configuration=COMPACTS_SOON) as java, java.client(v2=True) as client:
        client.warm_up(WARM_UP_ADDS, ADD_SIZE)
        for _ in range(pairs):
            for figure, (quiet, beside, compacted) in adds_beside(
                client, partial(java_compacts, java)
            ).items():
                if compacted:  # Java's bookies begin when they do
                    theirs[figure].append(claims[figure].ratio(beside, quiet))
            say(f"  Java: {theirs}")
        for figure, comparison in comparisons.items():
            comparison.parameters["peer"] = java.version()
            comparison.extra["Java V2 beside its compaction, over its quiet bookies"] = round(
                statistics.median(theirs[figure] or [math.nan]), 3
            )
    return list(comparisons.values())


def main() -> int:
    """Parse the options and run."""
    options = harness.parser(__doc__ or "", pairs=5)
    options.add_argument("--claim", choices=["P10", "pace", *MOVING], action="append", help="only this claim")
    given = options.parse_args()
    wanted = given.claim or ["P10", "pace", *MOVING]

    def measure() -> list[Comparison]:
        found = measure_cold(given.pairs) if "P10" in wanted else []
        found += measure_pace(given.pairs) if "pace" in wanted else []
        spark = [name for name in MOVING if name in wanted]
        return found + (measure_spark(given.pairs, spark) if spark else [])

    return harness.main("compacted", given, measure)


if __name__ == "__main__":
    sys.exit(main())

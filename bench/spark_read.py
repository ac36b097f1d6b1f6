"""Claims S1 to S6: a Spark job reads a million records from Quire, from Kafka and from Parquet.

All sides hold the same records, which are compared before the first round: 100 B or 1 KB of random bytes, a key and a
time. A round makes every row of every column that a side has by itself, and throws it away. Kafka's topic has a partition
for each CPU, and so many tasks; Parquet is without compression, a file for each CPU.

S4 reads ledgers with one record per entry, as any BookKeeper client writes them. S5 reads a log that is replicated (three
bookies, and striped over five) and, as its peer, the same entries out of local files, cut into tasks and decoded alike.
S6 reads the last hundredth: both jobs are told by `startingOffsets` where to begin, and both load a new frame each time, since
Spark keeps the plan of ours with its frame.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

import harness
import quire
import spark_file
from accounting import cpu_of_programs, load_average
from harness import CPUS, Claim, Comparison, say
from peers import OUT, QuireCluster
from spark_sides import KEY, Sides, content, must_be_equal, noop, spark_sides, table

RECORDS = 1_000_000
SIZES = (100, 1024)
LAST_SHARE = 0.01
LITTLE = 0.03
"""Less CPU than so many seconds is not worth a line."""
PROGRAMS = {
    "JVM": "org.apache.spark.deploy",
    "Python workers": "pyspark.daemon",
    "bookies": "quire.cli.local.serve",
    "broker": "kafka.Kafka",
}
"""What runs while a side is read, by what its command line says."""
LAST = Claim(
    "S6",
    "Spark reads the last 1 % by startingOffsets, against Kafka with startingOffsets (aim 4)",
    "s",
    round(1 / 0.6, 3),
    higher_is_better=False,
)
CLAIMS = {
    100: (
        (
            Claim("S1", "Spark reads 100 B records, against spark-sql-kafka (aim 4)", "records/s", 2),
            "log",
            "Kafka",
        ),
        (
            Claim("S3-100B", "Spark reads 100 B records, against plain Parquet (aim 0.9)", "records/s", 0.5),
            "log",
            "Parquet",
        ),
        (
            Claim(
                "S4-100B", "Spark reads 100 B entries, a record each, against Kafka (aim 2)", "records/s", 0.8
            ),
            "entries",
            "Kafka",
        ),
    ),
    1024: (
        (
            Claim("S2", "Spark reads 1 KB records, against spark-sql-kafka (aim 2.5)", "records/s", 1.2),
            "log",
            "Kafka",
        ),
        (
            Claim("S3-1KB", "Spark reads 1 KB records, against plain Parquet (aim 0.9)", "records/s", 0.5),
            "log",
            "Parquet",
        ),
        (
            Claim(
                "S4-1KB", "Spark reads 1 KB entries, a record each, against Kafka (aim 2)", "records/s", 0.8
            ),
            "entries",
            "Kafka",
        ),
        (
            Claim(
                "S5-E3",
                "Spark reads 1 KB records on three bookies, against local files (aim 1.5)",
                "records/s",
                0.7,
            ),
            "log",
            "files",
        ),
        (
            Claim(
                "S5-E5",
                "Spark reads 1 KB records striped over five bookies, against local files (aim 1.5)",
                "records/s",
                0.7,
            ),
            "wide",
            "files",
        ),
        (LAST, "last of the log", "last of Kafka"),
    ),
}
"""By size of a record: what is claimed, which side is ours and which is the peer's."""


async def write_entries(uri: str, files: list[Path]) -> int:
    """A ledger with the records' values, each an entry; its id."""
    async with await quire.connect(uri) as client, await client.create_ledger() as ledger:
        for file in files:
            for batch in pq.ParquetFile(file).iter_batches(10_000, columns=["value"]):
                await ledger.append_many(batch.column(0).to_pylist())
        return int(ledger.ledger_id)


def fill(sides: Sides, records: int, size: int) -> dict[str, Any]:
    """The same records on every side; each as a frame."""
    files = table(OUT / "spark-read-table", records, size)
    plain = sides.spark.read.parquet(str(files))
    rows = plain.select("key", "value", "timestamp")
    name = f"records-{size}"
    sides.create_topic(name)
    timed("Kafka", lambda: sides.to_topic(rows, name))
    timed("the log", lambda: sides.to_log(rows, name))
    ledger_id = asyncio.run(write_entries(sides.quire.uri, sorted(files.glob("*.parquet"))))
    frames = {
        "Kafka": sides.topic(name),
        "log": sides.log(name),
        "Parquet": plain,
        "entries": sides.log(f"ledger:{ledger_id}"),
    }
    must_be_equal({side: content(frame) for side, frame in frames.items()})
    return frames


def fill_replicated(sides: Sides, stack: ExitStack, records: int) -> dict[str, Any]:
    """The log of 1 KB records once more: striped over five bookies, and in local files."""
    rows = sides.spark.read.parquet(str(OUT / "spark-read-table")).select("key", "value", "timestamp")
    wide = replace(sides, quire=stack.enter_context(QuireCluster("quire-spark-wide", bookies=5)))
    timed(
        "the striped log", lambda: wide.to_log(rows, "records-1024", ensemble=5, writeQuorum=3, ackQuorum=2)
    )
    directory = OUT / "spark-read-files"
    shutil.rmtree(directory, ignore_errors=True)
    asyncio.run(_export(sides.quire.uri, "records-1024", directory))
    sides.spark.dataSource.register(spark_file.QuireFileSource)
    frames = {
        "wide": wide.log("records-1024"),
        "files": sides.spark.read.format(spark_file.FORMAT).load(str(directory)),
    }
    must_be_equal(
        {side: content(frame) for side, frame in {**frames, "log": sides.log("records-1024")}.items()}
    )
    start = records - int(records * LAST_SHARE)
    ours = json.dumps({"records-1024": start})
    frames["last of the log"] = lambda: sides.log("records-1024", startingOffsets=ours)
    ends = sides.topic("records-1024").groupBy("partition").agg({"offset": "max"}).collect()
    starts = {str(row[0]): row[1] + 1 - int((row[1] + 1) * LAST_SHARE) for row in ends}
    theirs = json.dumps({"records-1024": starts})
    frames["last of Kafka"] = lambda: sides.topic("records-1024", startingOffsets=theirs)
    counts = [frames[side]().count() for side in ("last of the log", "last of Kafka")]
    if abs(counts[0] - counts[1]) > CPUS:
        raise RuntimeError(f"the last records are {counts[0]} and {counts[1]}, so the round is void")
    return frames


async def _export(uri: str, name: str, directory: Path) -> None:
    async with await quire.connect(uri) as client:
        await spark_file.export(client, name, directory)


def timed(where: str, write: Callable[[], None]) -> None:
    """Write, and say how long it took: no claim, but who waits wants to know."""
    begun = time.perf_counter()
    write()
    say(f"  written to {where} in {time.perf_counter() - begun:.1f} s")


def rounds(
    frames: dict[str, Any], comparisons: list[tuple[Comparison, str, str]], pairs: int, records: int
) -> None:
    """Read every side once a round, one after another; the first round warms the JVM and Spark's workers."""
    used: dict[str, list[dict[str, float]]] = {side: [] for side in frames}
    for number in range(pairs + 1):
        load = load_average()
        took: dict[str, float] = {}
        for side, frame in frames.items():
            before = cpu_of_programs(PROGRAMS)
            took[side] = noop(frame)
            after = cpu_of_programs(PROGRAMS)
            used[side].append({name: after[name] - before[name] for name in PROGRAMS})
        say("  " + ", ".join(f"{side} {seconds:.2f} s" for side, seconds in took.items()))
        if not number:
            continue
        for comparison, ours, peer in comparisons:
            figures = [
                records / took[side] if comparison.claim.higher_is_better else took[side]
                for side in (ours, peer)
            ]
            comparison.add(figures[0], {peer: figures[1]}, load)
    for comparison, *both in comparisons:
        for side in both:
            each = {name: statistics.median(one[name] for one in used[side][1:]) for name in PROGRAMS}
            comparison.extra[f"cpu s of a read, {side}"] = {
                name: round(seconds, 2) for name, seconds in each.items() if seconds > LITTLE
            }


def measure_size(given: argparse.Namespace, size: int) -> list[Comparison]:
    """The claims of one size of records."""
    with ExitStack() as stack:
        sides = stack.enter_context(spark_sides("quire-spark-read"))
        parameters = {
            "records": given.records,
            "value": size,
            "key": KEY,
            "quorum": "E=3 Qw=3 Qa=2",
            "tasks": CPUS,
            "peer": sides.kafka.version(),
        }
        comparisons = [(Comparison(claim, parameters), ours, peer) for claim, ours, peer in CLAIMS[size]]
        frames = fill(sides, given.records, size)
        if size == SIZES[-1]:
            frames |= fill_replicated(sides, stack, given.records)
        rounds(frames, comparisons, given.pairs, given.records)
    for name in ("spark-read-table", "spark-read-files"):
        shutil.rmtree(OUT / name, ignore_errors=True)
    return [comparison for comparison, _, _ in comparisons]


def measure(given: argparse.Namespace) -> list[Comparison]:
    """The claims of the sizes that are asked for."""
    return [comparison for size in given.size or SIZES for comparison in measure_size(given, size)]


def main() -> int:
    """Parse the options and run."""
    options = harness.parser(__doc__ or "", pairs=5)
    options.add_argument("--records", type=int, default=RECORDS, help="on each side (default %(default)s)")
    options.add_argument(
        "--size", type=int, action="append", choices=SIZES, help="only records of such a size"
    )
    given = options.parse_args()
    return harness.main("spark_read", given, lambda: measure(given))


if __name__ == "__main__":
    sys.exit(main())

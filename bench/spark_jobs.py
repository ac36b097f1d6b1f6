"""Claims S11 and S12: scrubbing reads at 0.4 of a plain file read with checksums, and a rolled-up log reads 8 times faster.

S12: two logs of 20,000 small ledgers each, as a streaming sink leaves them; one is rewritten by `quire spark run rewrite`
into 20. A round reads the whole of each with Spark, offsets and values, one right after the other. Before the first round
the rows of both are compared: same offsets, same values.

S11: closed ledgers of 1 KB entries on three bookies, dropped from the page cache before each round. Scrubbing reads every
copy through its bookie, checks every entry's digest and compares the copies; the peer is a process for each CPU; together
they read as many bytes from the bookies' files and make a CRC-32C of each KB. Both sides: payload bytes per second and core,
with all cores at work.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from crc32c import crc32c

import harness
import quire
from accounting import load_average
from harness import CPUS, Claim, Comparison, say
from peers import OUT, PeerMissingError, QuireCluster, forget_cached
from quire.core.log.commit import CommitBatch, Part
from quire.core.log.list import LogSettings
from quire.log.client import QuireClient
from quire.log.committing import LogCommitter
from quire.log.staging import StagedBy, stage
from quire.spark.jobs import rewrite, scrub
from quire.spark.local import session
from quire.wire.batch import encode_batch

ROLL_UP = Claim(
    "S12", "a log of 20,000 small ledgers, read before and after the roll-up", "s", 8, higher_is_better=False
)
SCRUB = Claim("S11", "scrub of 1 KB entries, per core, against a plain file read with CRC-32C", "MB/s", 0.4)
LEDGERS = 20_000
MADE = 20
RECORDS = 50
VALUE = 100
TOGETHER = 100
SCRUB_LEDGERS = 96
SCRUB_ENTRIES = 8192
ENTRY = 1024
SLICE = 1 << 20


async def stream(client: QuireClient, name: str, ledgers: int) -> None:
    """What a streaming sink leaves: a small ledger for each batch."""
    log = client.log(name)
    await log.create()
    log_id = bytes.fromhex((await log.describe()).log_id)

    async def one(number: int) -> Any:
        data = os.urandom(VALUE * RECORDS)
        values: list[bytes | None] = [data[n * VALUE : (n + 1) * VALUE] for n in range(RECORDS)]
        ledger = await stage(client, log_id, LogSettings(), StagedBy("bench", number))
        await ledger.append(encode_batch(values, base_ms=1_795_000_000_000 + number))
        return await ledger.close(RECORDS, 1_795_000_000_000 + number, 1_795_000_000_000 + number)

    for start in range(0, ledgers, TOGETHER):
        items = await asyncio.gather(*map(one, range(start, start + TOGETHER)))
        await LogCommitter(client, [name], CommitBatch((Part(log_id, tuple(items)),))).commit()


async def fill(uri: str, names: tuple[str, ...], ledgers: int) -> None:
    """The logs of S12."""
    async with await quire.connect(uri) as client:
        for name in names:
            begun = time.perf_counter()
            await stream(client, name, ledgers)
            say(f"  {ledgers:,} ledgers of log {name} in {time.perf_counter() - begun:.0f} s")


async def write(uri: str) -> None:
    """The ledgers of S11."""
    payload = [os.urandom(ENTRY) for _ in range(1024)]
    async with await quire.connect(uri) as client:
        for _ in range(SCRUB_LEDGERS):
            async with await client.create_ledger() as ledger:
                for _ in range(SCRUB_ENTRIES // len(payload)):
                    await ledger.append_many(payload)


def log(spark: Any, uri: str, name: str) -> Any:
    """The offsets and values of a log."""
    return spark.read.format("quire").option("cluster", uri).schema("offset bigint, value binary").load(name)


def read(spark: Any, uri: str, name: str) -> float:
    """The seconds that reading a log takes."""
    begun = time.perf_counter()
    log(spark, uri, name).selectExpr("count(*)", "sum(offset)", "sum(crc32(value))").collect()
    return time.perf_counter() - begun


def content(spark: Any, uri: str, name: str) -> tuple[Any, ...]:
    """What a log holds: how many records, the least and the largest offset, and a sum over which value has which offset."""
    each = "sum(cast(xxhash64(offset, value) AS decimal(38, 0)))"
    return tuple(
        log(spark, uri, name).selectExpr("count(*)", "min(offset)", "max(offset)", each).collect()[0]
    )


def plain_read(files: list[Path], size: int) -> float:
    """Payload-sized bytes per second and core that a process for each CPU reads and makes checksums of, in MB/s."""
    with ProcessPoolExecutor(CPUS) as readers:
        list(readers.map(_read_and_check, [[]] * CPUS, [0] * CPUS))  # they are there
        begun = time.perf_counter()
        read = sum(readers.map(_read_and_check, [files[n::CPUS] for n in range(CPUS)], [size // CPUS] * CPUS))
        return read / 1e6 / (time.perf_counter() - begun) / CPUS


def _read_and_check(files: list[Path], size: int) -> int:
    """How many bytes were read, each KB with its checksum."""
    left = size
    for file in files:
        with file.open("rb", buffering=0) as source:
            while left > 0 and (data := source.read(SLICE)):
                view = memoryview(data)
                for at in range(0, len(view), ENTRY):
                    crc32c(view[at : at + ENTRY])
                left -= len(data)
    return size - left


def roll_up(pairs: int, ledgers: int) -> Comparison:
    """S12."""
    comparison = Comparison(
        ROLL_UP,
        {"ledgers": ledgers, "records": RECORDS, "value": VALUE, "made": MADE, "quorum": "E=3 Qw=3 Qa=2"},
    )
    table = OUT / "rewrite-table"
    shutil.rmtree(table, ignore_errors=True)
    with ExitStack() as stack:
        cluster = stack.enter_context(QuireCluster("quire-spark-jobs"))
        asyncio.run(fill(cluster.uri, ("small", "large"), ledgers))
        spark = session(master=f"local[{CPUS}]", app_name="bench", **{"spark.log.level": "ERROR"})
        stack.callback(spark.stop)
        before = content(spark, cluster.uri, "large")
        size = ledgers * RECORDS * (VALUE + 12)
        work = rewrite.plan(cluster.uri, "large", target_bytes=size // (MADE - 1))
        report = rewrite.run(spark, work, str(table))
        after = content(spark, cluster.uri, "large")
        if before != after:
            raise RuntimeError(
                f"the roll-up changed the log: {before} before, {after} after: the round is void"
            )
        say(f"  {report.replaced:,} ledgers became {report.made} in {report.seconds:.0f} s")
        for _ in range(pairs):
            load = load_average()
            small = read(spark, cluster.uri, "small")
            large = read(spark, cluster.uri, "large")
            pair = comparison.add(large, {"small ledgers": small}, load)
            say(f"  {small:.1f} s before, {large:.1f} s after: {pair.ratio}")
        comparison.extra["records compared before and after, each with its offset"] = before[0]
        comparison.extra["rewrite_seconds"] = report.seconds
        comparison.extra["ledgers_after"] = report.ledgers_after
    shutil.rmtree(table, ignore_errors=True)
    return comparison


def scrubbing(pairs: int) -> Comparison:
    """S11."""
    size = SCRUB_LEDGERS * SCRUB_ENTRIES * ENTRY
    comparison = Comparison(
        SCRUB, {"entry": ENTRY, "ledgers": SCRUB_LEDGERS, "bytes": size * 3, "tasks": CPUS}
    )
    table = OUT / "scrub-table"
    with ExitStack() as stack:
        cluster = stack.enter_context(QuireCluster("quire-spark-scrub"))
        asyncio.run(write(cluster.uri))
        spark = session(master=f"local[{CPUS}]", app_name="bench", **{"spark.log.level": "ERROR"})
        stack.callback(spark.stop)
        for number in range(pairs + 1):
            cluster.restart_cold()
            files = sorted(cluster.directory.rglob("*.seg"))
            few = scrub.plan(cluster.uri, ledgers=[1])
            shutil.rmtree(table, ignore_errors=True)
            scrub.run(spark, few, str(table))  # Spark's workers notice that the bookies were restarted
            shutil.rmtree(table)
            for file in files:
                forget_cached(file)
            load = load_average()
            report = scrub.run(spark, scrub.plan(cluster.uri), str(table))
            if not report.ok or report.bytes != size * 3:
                raise RuntimeError(
                    f"the scrub found {report.found} and read {report.bytes} bytes: the round is void"
                )
            ours = report.bytes / 1e6 / report.seconds / CPUS
            for file in files:
                forget_cached(file)
            peer = plain_read(files, size * 3)
            if number:  # the first round warms the JVM and Spark's workers
                pair = comparison.add(ours, {"plain file read": peer}, load)
                say(f"  scrub {ours:.0f} MB/s a core, plain read {peer:.0f}: {pair.ratio}")
    shutil.rmtree(table, ignore_errors=True)
    return comparison


def measure(given: argparse.Namespace) -> list[Comparison]:
    """Both claims."""
    if shutil.which("java") is None:
        raise PeerMissingError("Spark needs Java")
    measures = {"S12": lambda: roll_up(given.pairs, given.ledgers), "S11": lambda: scrubbing(given.pairs)}
    return [measures[name]() for name in given.claim or measures]


def main() -> int:
    """Parse the options and run."""
    options = harness.parser(__doc__ or "", pairs=5)
    options.add_argument("--ledgers", type=int, default=LEDGERS, help="of each log (default %(default)s)")
    options.add_argument("--claim", choices=("S11", "S12"), action="append", help="only this claim")
    given = options.parse_args()
    return harness.main("spark_jobs", given, lambda: measure(given))


if __name__ == "__main__":
    sys.exit(main())

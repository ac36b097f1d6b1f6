"""Claim S15: a Spark job that reads a ledger does not slow its writer more than one that reads something else.

A writer appends 1 KB entries with a full window, three times in a round: while a Spark job reads that very ledger again
and again, as far as it is confirmed; while the same session reads Parquet files on the same disk again and again; and
with nothing beside it. The machine has two cores and Spark takes both, so the Parquet job is what any reader costs; what
is left is what our read costs the bookies. The writer is never fenced: it goes on with the same ledger, closes it, and
everything is read back and compared.
"""

from __future__ import annotations

import shutil
import statistics
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import harness
from accounting import load_average
from harness import CPUS, Claim, Comparison, in_background, say
from jobs.world import PASSWORD
from peers import OUT, LoadClient, QuireCluster
from quire.spark.local import session
from spark_sides import noop, table

SIZE = 1024
WINDOW = 5000
SECONDS = 2.5
RECORDS = 300_000
WARM_UP_ADDS = 200_000
BESIDE = Claim(
    "S15",
    "a writer's 1 KB appends beside a Spark job that reads its ledger, over one that reads Parquet",
    "entries/s",
    0.8,
)


@contextmanager
def reading(frame: Any, found: list[float]) -> Iterator[None]:
    """Read a frame again and again, and once at least; the seconds of each time are in `found` at the end."""

    def work(ended: threading.Event) -> None:
        while not found or not ended.is_set():
            found.append(noop(frame()))

    with in_background(work):
        yield


def round_of(client: LoadClient, frame_of: Any) -> tuple[float, list[float]]:
    """A writer's entries per second beside a job, and the seconds of each of the job's reads."""
    begun = client.run("begin")
    reads: list[float] = []
    with ExitStack() as stack:
        if frame_of is not None:
            stack.enter_context(reading(lambda: frame_of(begun["ledger"]), reads))
        wrote = client.run("write", begun["ledger"], SIZE, SECONDS, WINDOW)
    client.run("verify", begun["ledger"], SIZE, wrote["entries"])
    return wrote["entries"] / SECONDS, reads


def measure(pairs: int) -> list[Comparison]:
    """The claim."""
    comparison = Comparison(
        BESIDE,
        {"entry": SIZE, "window": WINDOW, "quorum": "E=3 Qw=3 Qa=2", "tasks": CPUS, "seconds": SECONDS},
    )
    alone: list[float] = []
    reads: list[float] = []
    with ExitStack() as stack:
        cluster = stack.enter_context(QuireCluster("quire-spark-beside"))
        client = stack.enter_context(cluster.client())
        client.warm_up(WARM_UP_ADDS, SIZE)
        spark = session(master=f"local[{CPUS}]", app_name="bench", **{"spark.log.level": "ERROR"})
        stack.callback(spark.stop)
        plain = spark.read.parquet(str(table(OUT / "spark-beside-table", RECORDS, SIZE)))
        secret = OUT / "spark-beside-password"
        secret.write_bytes(PASSWORD)

        def of_ledger(ledger_id: int) -> Any:
            reader = spark.read.format("quire").options(cluster=cluster.uri, passwordFile=str(secret))
            return reader.load(f"ledger:{ledger_id}")

        for number in range(pairs + 1):
            load = load_average()
            ours, times = round_of(client, of_ledger)
            peer, _ = round_of(client, lambda _: plain)
            nobody, _ = round_of(client, None)
            say(f"  beside our read {ours:,.0f}, beside Parquet {peer:,.0f}, alone {nobody:,.0f} entries/s")
            if number:  # the first round warms the JVM and Spark's workers
                comparison.add(ours, {"beside Parquet": peer}, load)
                alone.append(nobody)
                reads += times
    comparison.extra["entries per s with nothing beside"] = round(statistics.median(alone))
    comparison.extra["s of one read of the ledger"] = round(statistics.median(reads), 2)
    shutil.rmtree(OUT / "spark-beside-table", ignore_errors=True)
    secret.unlink()
    return [comparison]


def main() -> int:
    """Parse the options and run."""
    given = harness.parser(__doc__ or "", pairs=5).parse_args()
    return harness.main("spark_beside", given, lambda: measure(given.pairs))


if __name__ == "__main__":
    sys.exit(main())

"""Claim S9: a Spark job writes a million 100 B records: into a log on three bookies, and into Kafka's topic.

Ours: three copies of every record, two of them synced before the job ends, all of the job or nothing of it. Kafka's: one
broker, as it ships: a record is acknowledged in its page cache, and a job that fails leaves half. Both write the same
frame, which is in Spark's memory, from a task for each CPU. Every round's log and topic are read back and compared.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from collections.abc import Callable

import harness
from accounting import load_average
from harness import CPUS, Claim, Comparison, say
from peers import OUT
from spark_sides import KEY, Sides, content, must_be_equal, spark_sides, table

RECORDS = 1_000_000
VALUE = 100
WRITE = Claim(
    "S9",
    "Spark writes 100 B records in three copies with a sync, against Kafka's one without (aim 1.5)",
    "records/s",
    0.6,
)


def measure(given: argparse.Namespace) -> list[Comparison]:
    """The claim."""
    with spark_sides("quire-spark-write") as sides:
        parameters = {
            "records": given.records,
            "value": VALUE,
            "key": KEY,
            "quorum": "E=3 Qw=3 Qa=2",
            "tasks": CPUS,
            "peer": sides.kafka.version(),
        }
        comparison = Comparison(WRITE, parameters)
        files = table(OUT / "spark-write-table", given.records, VALUE)
        rows = sides.spark.read.parquet(str(files)).select("key", "value").cache()
        written = content(rows)
        for number in range(given.pairs + 1):
            load = load_average()
            ours, peer = round_of(sides, rows, written, f"round-{number}")
            say(f"  Quire {ours:.2f} s, Kafka {peer:.2f} s")
            if number:  # the first round warms the JVM and Spark's workers
                comparison.add(given.records / ours, {"Kafka": given.records / peer}, load)
    shutil.rmtree(files, ignore_errors=True)
    return [comparison]


def round_of(sides: Sides, rows: object, written: tuple[object, ...], name: str) -> tuple[float, float]:
    """The seconds that each side takes; what they wrote is compared and forgotten."""
    sides.create_topic(name)
    ours = _seconds(lambda: sides.to_log(rows, name))
    peer = _seconds(lambda: sides.to_topic(rows, name))
    must_be_equal({"frame": written, "log": content(sides.log(name)), "topic": content(sides.topic(name))})
    sides.forget(name)
    return ours, peer


def _seconds(write: Callable[[], None]) -> float:
    begun = time.perf_counter()
    write()
    return time.perf_counter() - begun


def main() -> int:
    """Parse the options and run."""
    options = harness.parser(__doc__ or "", pairs=5)
    options.add_argument("--records", type=int, default=RECORDS, help="in a round (default %(default)s)")
    given = options.parse_args()
    return harness.main("spark_write", given, lambda: measure(given))


if __name__ == "__main__":
    sys.exit(main())

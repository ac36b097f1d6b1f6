"""Claims S7 and S8: what a micro-batch of 50,000 records takes, from its trigger to its commit.

S7: from the source to nowhere. S8: from a log to a log, each record once, against Kafka to Kafka, where a batch that is
repeated is there twice. A round is a query over all records that ends by itself, 50,000 at a time; its figure is the
median of its batches' `triggerExecution`, without the first ones. Checkpoints lie on the same disk. After each round of S8
what was copied is read back and compared.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
from typing import Any

import harness
from accounting import load_average
from harness import Claim, Comparison, say
from peers import OUT
from spark_sides import KEY, Sides, content, must_be_equal, spark_sides, table

BATCH = 50_000
BATCHES = 20
FIRST = 3
"""So many batches of a query do not count: the first ones make the checkpoint and start workers."""
VALUE = 100
TO_NOWHERE = Claim(
    "S7",
    "Spark reads a micro-batch of 50,000 records to nowhere, against Kafka's source (aim 2)",
    "ms",
    1,
    higher_is_better=False,
)
COPY = Claim(
    "S8",
    "Spark copies log to log exactly once, against Kafka to Kafka at least once, 50,000 records (aim 1.667)",
    "ms",
    1,
    higher_is_better=False,
)


class Streams:
    """The queries of both sides.

    Args:
        sides: where they run.
        batch: records of a micro-batch.
    """

    def __init__(self, sides: Sides, batch: int) -> None:
        self._sides, self._batch = sides, batch
        self._checkpoints = OUT / "spark-stream-checkpoints"
        shutil.rmtree(self._checkpoints, ignore_errors=True)

    def from_log(self, name: str) -> Any:
        """A log as a stream."""
        reader = self._sides.spark.readStream.format("quire").option("cluster", self._sides.quire.uri)
        return reader.option("maxRecordsPerTrigger", self._batch).load(name)

    def from_topic(self, name: str) -> Any:
        """A topic as a stream."""
        reader = self._sides.spark.readStream.format("kafka")
        reader = reader.option("kafka.bootstrap.servers", self._sides.kafka.servers).option("subscribe", name)
        return reader.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", self._batch).load()

    def to_nowhere(self, frame: Any, name: str) -> list[int]:
        """Run a query to its end; see `_run`."""
        return self._run(frame.writeStream.format("noop"), name)

    def to_log(self, frame: Any, name: str) -> list[int]:
        """Copy into a log."""
        writer = frame.select("key", "value").writeStream.format("quire")
        writer = writer.option("cluster", self._sides.quire.uri).option("create", "true").option("log", name)
        return self._run(writer, name)

    def to_topic(self, frame: Any, name: str) -> list[int]:
        """Copy into a topic."""
        writer = frame.select("key", "value").writeStream.format("kafka")
        writer = writer.option("kafka.bootstrap.servers", self._sides.kafka.servers).option("topic", name)
        return self._run(writer, name)

    def _run(self, writer: Any, name: str) -> list[int]:
        """The milliseconds that full batches took, without the first ones, ascending."""
        place = self._checkpoints / name
        query = writer.option("checkpointLocation", str(place)).trigger(availableNow=True).start()
        query.awaitTermination()
        found = [
            progress["durationMs"]["triggerExecution"]
            for progress in query.recentProgress
            if progress["numInputRows"] >= 0.9 * self._batch
        ]
        shutil.rmtree(place, ignore_errors=True)
        return sorted(found[FIRST:])


Took = dict[str, list[int]]
"""By side: the milliseconds of batches."""


def round_of(sides: Sides, streams: Streams, rows: Any, number: int) -> dict[str, Took]:
    """Both claims once; what was copied is compared and forgotten."""
    log, topic, copy = streams.from_log("records"), streams.from_topic("records"), f"copy-{number}"
    nowhere = {
        "Kafka": streams.to_nowhere(topic, f"topic-{number}"),
        "Quire": streams.to_nowhere(log, f"log-{number}"),
    }
    sides.create_topic(copy)
    copied = {"Kafka": streams.to_topic(topic, copy), "Quire": streams.to_log(log, copy)}
    must_be_equal(
        {"frame": content(rows), "log": content(sides.log(copy)), "topic": content(sides.topic(copy))}
    )
    sides.forget(copy)
    return {TO_NOWHERE.name: nowhere, COPY.name: copied}


def measure(given: argparse.Namespace) -> list[Comparison]:
    """Both claims."""
    rounds: list[dict[str, Took]] = []
    with spark_sides("quire-spark-stream") as sides:
        parameters = {
            "batch": given.batch,
            "batches": given.batches,
            "value": VALUE,
            "key": KEY,
            "quorum": "E=3 Qw=3 Qa=2",
            "peer": sides.kafka.version(),
        }
        comparisons = [Comparison(claim, parameters) for claim in (TO_NOWHERE, COPY)]
        files = table(OUT / "spark-stream-table", given.batch * given.batches, VALUE)
        rows = sides.spark.read.parquet(str(files)).select("key", "value")
        sides.create_topic("records")
        sides.to_topic(rows, "records")
        sides.to_log(rows, "records")
        streams = Streams(sides, given.batch)
        for number in range(given.pairs + 1):
            load = load_average()
            found = round_of(sides, streams, rows, number)
            medians = {
                claim: {side: statistics.median(batches) for side, batches in took.items()}
                for claim, took in found.items()
            }
            say(f"  {medians}")
            if not number:
                continue  # it warms the JVM and Spark's workers
            rounds.append(found)
            for comparison in comparisons:
                median = medians[comparison.claim.name]
                comparison.add(median["Quire"], {"Kafka": median["Kafka"]}, load)
    shutil.rmtree(files, ignore_errors=True)
    for comparison in comparisons:
        comparison.plots["histogram"] = {
            "title": f"{comparison.claim.text}: the batches of one query",
            "unit": "ms",
            "series": rounds[comparison.middle][comparison.claim.name],
        }
    return comparisons


def main() -> int:
    """Parse the options and run."""
    options = harness.parser(__doc__ or "", pairs=5)
    options.add_argument(
        "--batch", type=int, default=BATCH, help="records of a micro-batch (default %(default)s)"
    )
    options.add_argument("--batches", type=int, default=BATCHES, help="of a query (default %(default)s)")
    given = options.parse_args()
    return harness.main("spark_stream", given, lambda: measure(given))


if __name__ == "__main__":
    sys.exit(main())

"""Figures for docs/spark-guide.md: what is written to a log and what a stream has copied of it, second by second.

The log is written at a steady rate and streamed into another; the stream is stopped for a while and goes on.

    python tools/stream_figures.py --out docs/plots/spark-guide.json

It is an illustration, measured once, with no bar and no peer: those are in bench/.
"""

from __future__ import annotations

import argparse
import json
import platform
import signal
import subprocess
import sys
import tempfile
import threading
import time
from bisect import bisect_right
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import quire.blocking
from quire.spark.local import session

RATE, CHUNK, VALUE = 20_000, 2_000, b"x" * 100
Counts = list[tuple[float, int]]


def main() -> None:
    """Measure, and write the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=int, default=45, help="how long is written")
    parser.add_argument(
        "--stopped", type=int, default=10, help="how long the stream is stopped in the middle"
    )
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "quire", "up", "--dir", f"{folder}/cluster", "--json"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as up:  # noqa: S603 - our own command
            assert up.stdout is not None
            uri = json.loads(up.stdout.readline())["cluster"]
            try:
                written, committed = measure(uri, folder, given.seconds, given.stopped)
            finally:
                up.send_signal(signal.SIGINT)
                up.wait(30)
    given.out.write_text(json.dumps(figures(written, committed, given), indent=1) + "\n")


def measure(uri: str, folder: str, seconds: int, stopped: int) -> tuple[Counts, Counts]:
    """Write and stream beside each other; both as (seconds since the beginning, records so far)."""
    settings: dict[str, Any] = {"spark.log.level": "ERROR", "spark.sql.shuffle.partitions": 2}
    spark = session(master="local[2]", **settings)
    written: Counts = []
    committed: Counts = []
    with quire.blocking.connect(uri) as client:
        client.log("events").create()
        query = start(spark, uri, folder)
        began = time.monotonic()
        writing = threading.Thread(target=write, args=(client, began, seconds, written))
        writing.start()
        watch(query, client, began, committed, lambda at: at >= seconds / 3)
        query.stop()
        watch(query, client, began, committed, lambda at: at >= seconds / 3 + stopped)
        query = start(spark, uri, folder)
        watch(
            query,
            client,
            began,
            committed,
            lambda _: not writing.is_alive() and committed[-1][1] >= written[-1][1],
        )
        query.stop()
        writing.join()
    spark.stop()
    return written, committed


def start(spark: SparkSession, uri: str, folder: str) -> StreamingQuery:
    """The stream, from where its checkpoint is."""
    events = spark.readStream.format("quire").option("cluster", uri).load("events")
    sink = events.select("key", "value").writeStream.format("quire").option("cluster", uri)
    sink = sink.option("create", value=True).option("checkpointLocation", f"{folder}/checkpoint")
    return sink.start("events-copy")


def write(client: Any, began: float, seconds: int, written: Counts) -> None:
    """Append at the rate."""
    count = 0
    with client.log("events").open_writer() as writer:
        while (now := time.monotonic() - began) < seconds:
            ahead = count / RATE - now
            if ahead > 0:
                time.sleep(ahead)
            writer.append_many([VALUE] * CHUNK)
            count += CHUNK
            written.append((time.monotonic() - began, count))


def watch(query: StreamingQuery, client: Any, began: float, committed: Counts, until: Any) -> None:
    """Look at the end of the copy some times a second; Spark's own progress comes later."""
    while True:
        at = time.monotonic() - began
        log = client.log("events-copy")
        committed.append((at, log.describe().end_offset if log.exists() else 0))
        if until(at):
            return
        if query.exception() is not None:
            raise RuntimeError(str(query.exception()))
        time.sleep(0.2)


def figures(written: Counts, committed: Counts, given: argparse.Namespace) -> dict[str, Any]:
    """Both counts second by second, as tools/plots.py draws them."""
    last = int(max(written[-1][0], committed[-1][0]))
    seconds = list(range(1, last + 1))
    totals = {name: [at(counts, second) for second in range(last + 1)] for name, counts in (
        ("written", written), ("in the copy", committed))}  # fmt: skip
    rates = {name: [after - before for before, after in pairwise(total)] for name, total in totals.items()}
    behind = [a - b for a, b in zip(totals["written"], totals["in the copy"], strict=True)][1:]
    return {
        "script": "tools/stream_figures.py",
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": f"{platform.machine()}, {platform.system()}",
        "parameters": {"records a second": RATE, "value bytes": len(VALUE), "stopped for": given.stopped},
        "throughput": {
            "title": "records a second: written, and committed by the stream",
            "unit": "records/s",
            "seconds": seconds,
            "series": rates,
        },
        "lag": {
            "title": "records that are written and not yet in the copy",
            "unit": "records",
            "seconds": seconds,
            "series": {"behind": behind},
        },
    }


def at(counts: Counts, second: float) -> int:
    """How many there were at a time."""
    place = bisect_right(counts, (second, sys.maxsize))
    return counts[place - 1][1] if place else 0


if __name__ == "__main__":
    main()

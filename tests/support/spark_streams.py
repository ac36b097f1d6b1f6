"""Streams of a Spark driver whose processes may be struck at a step: from a log, into a log, and through `foreachBatch`.

As a program it is a driver of its own: the argument is JSON (cluster, master, settings), every line of input a fate, and a
line of output says how it went; the driver may be gone before it can. In a test's own session `Streams` does the same.

A fate: `folder` of the schedule, `checkpoint` (its name there), `kind` ("source", "sink" or "foreachBatch"), `source` and
`target` (logs), `life` (a number of its own for each run), `victim` ("none", "driver", "executor", "straggler"), and `nth`,
the step at which it is struck.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.errors import PySparkException

import quire.spark
from quire.spark.options import SparkOptions
from quire.spark.read_options import READ_OPTIONS
from quire.spark.sink import BatchSink, StreamSink
from quire.spark.source import QuireDataSource
from quire.spark.staged import Failpoints
from quire.spark.write_options import WRITE_OPTIONS

FATE = "fate"
"""The option that carries a fate to the sink."""
ROWS_A_BATCH = 10
STANDS_STILL_S = 3
"""So long a straggler stands still: another attempt of its task is done meanwhile."""


def parent_of(pid: int) -> int:
    """The process that started one."""
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])


def executor_of(driver: int) -> int:
    """The process to kill for this task's executor: its JVM, or this worker itself where that is the driver's."""
    pid = os.getpid()
    while pid > 1 and Path(f"/proc/{pid}/comm").read_text().strip() != "java":
        pid = parent_of(pid)
    return os.getpid() if pid in {driver, 1} else pid


def steps_of(fate: dict[str, Any]) -> Callable[[str], None]:
    """What counts the steps of all processes of a run by files, and strikes at one of them, once."""
    folder = Path(fate["folder"]) / f"steps-{fate['life']}"

    def at(step: str) -> None:
        taken = len(list(folder.iterdir())) + 1
        (folder / f"{taken:04}-{step}-{os.getpid()}").touch()
        if fate["victim"] != "none" and taken >= fate["nth"]:
            strike(step)

    def strike(step: str) -> None:
        in_task = TaskContext.get() is not None
        if fate["victim"] != "driver" and not in_task:
            return
        try:
            (folder.with_name(f"struck-{fate['life']}")).touch(exist_ok=False)
        except FileExistsError:
            return
        if fate["victim"] == "driver":
            os.kill(fate["jvm"], signal.SIGKILL)
        elif fate["victim"] == "executor":
            os.kill(executor_of(fate["jvm"]), signal.SIGKILL)
        else:
            # Somebody has to wake it, and stops of its own are none of a test's business.
            wake = f"sleep {STANDS_STILL_S}; kill -CONT {os.getpid()}"
            subprocess.Popen(["sh", "-c", wake], start_new_session=True)
            os.kill(os.getpid(), signal.SIGSTOP)

    return at


class Striking(QuireDataSource):
    """The format, with the sink's steps counted."""

    def __init__(self, options: dict[str, str]) -> None:
        plain = {name: value for name, value in options.items() if name != FATE}
        super().__init__(plain)
        self._mine = SparkOptions(plain, (*READ_OPTIONS, *WRITE_OPTIONS))
        self._failpoints = Failpoints(steps_of(json.loads(options[FATE])))

    @classmethod
    def name(cls) -> str:
        return "quire_striking"

    def writer(self, schema, overwrite):
        return BatchSink(self._mine, schema, overwrite=overwrite, failpoints=self._failpoints)

    def streamWriter(self, schema, overwrite):
        return StreamSink(self._mine, schema, overwrite=overwrite, failpoints=self._failpoints)


class Streams:
    """What a session is asked to run.

    Args:
        spark: the session.
        cluster: its URI.
    """

    def __init__(self, spark: Any, cluster: str) -> None:
        self._spark, self._cluster = spark, cluster
        spark.dataSource.register(Striking)
        self._jvm = int(spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid())

    def run(self, fate: dict[str, Any]) -> dict[str, Any]:
        """Run a query until all its input is taken."""
        fate = fate | {"jvm": self._jvm}
        (Path(fate["folder"]) / f"steps-{fate['life']}").mkdir()
        at = steps_of(fate)

        def hand_over(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                at("rows")
                yield batch
            at("handed")

        source = self._spark.readStream.format("quire").option("cluster", self._cluster)
        rows = source.option("maxRecordsPerTrigger", ROWS_A_BATCH).load(fate["source"])
        rows = rows.selectExpr("offset", "cast(value AS string) AS value").repartition(2)
        rows = rows.mapInArrow(hand_over, "offset bigint, value string")
        try:
            self._started(fate, rows).awaitTermination()
        except PySparkException as error:
            return {"ended": False, "error": str(error)}
        return {"ended": True, "error": ""}

    def _started(self, fate: dict[str, Any], rows: Any) -> Any:
        if fate["kind"] == "sink":
            writer = self._into(fate, rows.select("value").writeStream)
        elif fate["kind"] == "foreachBatch":
            writer = rows.writeStream.foreachBatch(lambda frame, batch: self._parts(fate, frame, batch))
        else:
            writer = rows.writeStream.foreachBatch(lambda frame, batch: _keep(fate, frame, batch))
        checkpoint = str(Path(fate["folder"]) / fate["checkpoint"])
        writer = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True)
        return writer.start(fate["target"]) if fate["kind"] == "sink" else writer.start()

    def _into(self, fate: dict[str, Any], writer: Any) -> Any:
        writer = writer.format("quire_striking").option("cluster", self._cluster)
        return writer.option("inlineBytes", "0").option(FATE, json.dumps(fate))

    def _parts(self, fate: dict[str, Any], frame: Any, batch: int) -> None:
        """Two writes of one batch into one log."""
        for part in (0, 1):
            rows = frame.where(f"offset % 2 = {part}").select("value")
            writer = self._into(fate, rows.write).mode("append").option("txnPart", str(part))
            writer.option("txnAppId", fate["target"]).option("txnVersion", batch).save(fate["target"])


def _keep(fate: dict[str, Any], frame: Any, batch: int) -> None:
    """What a source delivered, a file a batch; one that comes again takes the place of the former."""
    found = sorted([row.offset, row.value] for row in frame.collect())
    steps_of(fate)("collected")
    kept = Path(fate["folder"]) / f"rows-{fate['checkpoint']}"
    kept.mkdir(exist_ok=True)
    new = kept / f"{batch}.new"
    new.write_text(json.dumps(found))
    new.replace(kept / f"{batch}")


def main() -> None:
    """A driver of its own."""
    facts = json.loads(sys.argv[1])
    spark = quire.spark.session(
        master=facts["master"],
        **{
            "spark.log.level": "OFF",
            "spark.driver.memory": "1g",
            "spark.executor.memory": "512m",
            "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
            "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
            "spark.sql.codegen.wholeStage": "false",
            "spark.sql.shuffle.partitions": "2",
            **facts["settings"],
        },
    )
    streams = Streams(spark, facts["cluster"])
    for line in sys.stdin:
        answer: dict[str, Any] = {}
        with contextlib.suppress(json.JSONDecodeError):
            answer = streams.run(json.loads(line))
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()

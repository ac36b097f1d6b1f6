"""A Spark driver that streams text files into a log or a topic, with a process killed at a step. Run as a program.

The argument is JSON: the cluster, Spark's master, and for topics the connector's jars and Kafka's address. Then every
line of input is a `Fate` as JSON, and a line of output says how it went. The driver may be gone before it can.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.errors import StreamingQueryException

import quire.spark
from quire.spark.options import SparkOptions
from quire.spark.read_options import READ_OPTIONS
from quire.spark.sink import StreamSink
from quire.spark.source import QuireDataSource
from quire.spark.staged import Failpoints
from quire.spark.write_options import WRITE_OPTIONS

FATE = "fate"
"""The option that carries a round's fate to the sink."""


def steps_of(fate: dict[str, Any]) -> Callable[[str], None]:
    """What counts the steps of all processes of a life by files, and kills the victim at one of them.

    Args:
        fate: `folder` (input, checkpoint), `life`, `victim` ("jvm", "self": who does the step, another with its process
            in `pids`, or "none"), `nth`, and `name` if only steps of this name count.
    """
    steps = Path(fate["folder"]) / f"steps-{fate['life']}"

    def at(step: str) -> None:
        if step == fate.get("name", step):
            taken = len(list(steps.iterdir())) + 1
            (steps / f"{taken:04}-{step}-{os.getpid()}").touch()
            if taken == fate["nth"] and fate["victim"] != "none":
                strike(step)

    def strike(step: str) -> None:
        mine = "worker" if TaskContext.get() is not None else "planner"
        victim = mine if fate["victim"] == "self" else fate["victim"]
        (Path(fate["folder"]) / "struck").write_text(f"{victim} {step}")
        if victim != mine:
            os.kill(fate["pids"][victim], signal.SIGKILL)
        if victim in {mine, "jvm"}:
            os.kill(os.getpid(), signal.SIGKILL)

    return at


class Killing(QuireDataSource):
    """The format, with the sink's steps counted."""

    def __init__(self, options: dict[str, str]) -> None:
        plain = {name: value for name, value in options.items() if name != FATE}
        super().__init__(plain)
        self._plain, self._fate = plain, json.loads(options[FATE])

    @classmethod
    def name(cls) -> str:
        return "quire_killing"

    def streamWriter(self, schema, overwrite):
        given = SparkOptions(self._plain, (*READ_OPTIONS, *WRITE_OPTIONS))
        return StreamSink(given, schema, overwrite=overwrite, failpoints=Failpoints(steps_of(self._fate)))


class Driver:
    """One session, and what is asked of it."""

    def __init__(self, facts: dict[str, Any]) -> None:
        self._facts = facts
        jars = {"spark.jars": facts["jars"]} if facts.get("jars") else {}
        self._spark = quire.spark.session(
            master=facts["master"],
            **{
                "spark.log.level": "OFF",
                "spark.driver.memory": "1g",
                "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
                "spark.sql.codegen.wholeStage": "false",
                "spark.network.timeout": "3600s",
                **jars,
            },
        )
        self._spark.dataSource.register(Killing)
        self._jvm = self._spark.sparkContext._jvm
        self._pid = int(self._jvm.java.lang.ProcessHandle.current().pid())

    def stream(self, fate: dict[str, Any]) -> dict[str, Any]:
        """Run the query of a folder until all its input is written."""
        folder = fate["folder"]
        (Path(folder) / f"steps-{fate['life']}").mkdir()
        fate["pids"] = {**fate.get("pids", {}), "jvm": self._pid}

        def hand_over(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            yield from batches
            steps_of(fate)("rows")

        lines = self._spark.readStream.option("maxFilesPerTrigger", 1).text(f"{folder}/input")
        rows = lines.repartition(2).mapInArrow(hand_over, "value string")
        writer = rows.writeStream.option("checkpointLocation", f"{folder}/checkpoint")
        writer = writer.trigger(availableNow=True)
        if fate["sink"] == "topic":
            kafka = writer.format("kafka").option("kafka.bootstrap.servers", self._facts["kafka"])
            query = kafka.option("topic", fate["target"]).start()
        else:
            log = writer.format("quire_killing").option("cluster", self._facts["cluster"])
            query = log.option("inlineBytes", "0").option(FATE, json.dumps(fate)).start(fate["target"])
        try:
            query.awaitTermination()
        except StreamingQueryException as error:
            return {"ended": False, "error": str(error)[:2000]}
        return {"ended": True}

    def create(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Make a topic with one partition."""
        settings = self._jvm.java.util.Properties()
        settings.put("bootstrap.servers", self._facts["kafka"])
        client = self._jvm.org.apache.kafka.clients.admin.Admin.create(settings)
        topic = self._jvm.org.apache.kafka.clients.admin.NewTopic(asked["create"], 1, 1)
        try:
            client.createTopics(self._jvm.java.util.List.of(topic)).all().get()
        finally:
            client.close()
        return {}

    def read(self, asked: dict[str, Any]) -> dict[str, Any]:
        """What a topic holds, in order."""
        reader = self._spark.read.format("kafka").option("kafka.bootstrap.servers", self._facts["kafka"])
        found = reader.option("subscribe", asked["read"]).load().orderBy("offset").collect()
        return {"values": [bytes(row.value).decode() for row in found]}


def main() -> None:
    driver = Driver(json.loads(sys.argv[1]))
    for line in sys.stdin:
        asked = json.loads(line)
        answer = driver.create if "create" in asked else driver.read if "read" in asked else driver.stream
        print(json.dumps(answer(asked)), flush=True)


if __name__ == "__main__":
    main()

"""A real Kafka for tests: one node from its Maven artefacts, on loopback; and the jars with which Spark reaches it."""

import os
import shutil
from pathlib import Path

import pyspark

from support.shared_server import run_tool

KAFKA_PEER = Path(__file__).resolve().parents[2] / "tools" / "kafka-peer"
START_S = 600
"""The first start on a machine fetches the jars."""


class KafkaServer:
    """One node; `folder` is what `tools/kafka-peer` works in.

    Attributes:
        address: its bootstrap server.
        spark_jars: the connector, as `spark.jars` takes it.
    """

    def __init__(self, folder):
        self.folder = Path(folder)
        try:
            self.address = self._run("start")
            self.spark_jars = self._run("spark-jars")
        except BaseException:
            self.stop()
            raise

    def _run(self, command, *, check=True):
        environment = {**os.environ, "SPARK_HOME": str(Path(pyspark.__file__).parent)}
        made = run_tool(
            KAFKA_PEER, command, self.folder, seconds=START_S, check=check, environment=environment
        )
        return made.strip()

    def stop(self):
        self._run("stop", check=False)


def why_not():
    """Why no node can be started here; None if one can."""
    for program in ("java", "javac", "mvn"):
        if shutil.which(program) is None:
            return f"no {program} on the PATH: nothing was tested against a real Kafka"
    return None


def own_server(folder):
    """A node of the test's own; a message instead if it cannot be."""
    reason = why_not()
    if reason is not None:
        return reason
    try:
        return KafkaServer(folder)
    except RuntimeError as error:
        return f"Kafka did not start, nothing was tested against it: {error}"

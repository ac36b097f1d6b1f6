"""A Spark driver that streams text files into a log and kills a process at a step of the sink. Run as a program.

Arguments: cluster URI, folder (input and checkpoint are in it), log, number of the step, victim (`jvm`, `self` or `none`).
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import quire.spark
from quire.spark.given import Given
from quire.spark.options import READ_OPTIONS
from quire.spark.sink import stream_sink
from quire.spark.source import QuireDataSource
from quire.spark.staged import Seams
from quire.spark.write_options import WRITE_OPTIONS


def main() -> None:
    uri, folder, log, number, victim = sys.argv[1:]
    steps = Path(folder) / "steps"
    steps.mkdir(exist_ok=True)

    def at(step: str) -> None:
        """Count the steps of all processes by files; the one with the number kills."""
        taken = len(list(steps.iterdir())) + 1
        (steps / f"{taken:04}-{step}-{os.getpid()}").touch()
        if victim == "none" or taken != int(number):
            return
        if victim == "jvm":
            daemon = int(Path(f"/proc/{os.getppid()}/stat").read_text().rsplit(")", 1)[1].split()[1])
            os.kill(daemon, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)

    class Killing(QuireDataSource):
        """The format, with the sink's steps counted."""

        def __init__(self, options: dict[str, str]) -> None:
            super().__init__(options)
            self._mine = Given(options, (*READ_OPTIONS, *WRITE_OPTIONS))

        @classmethod
        def name(cls) -> str:
            return "quire_killing"

        def streamWriter(self, schema, overwrite):
            return stream_sink(self._mine, schema, overwrite=overwrite, seams=Seams(at))

    spark = quire.spark.session(
        master="local[2,2]",
        **{
            "spark.log.level": "OFF",
            "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        },
    )
    spark.dataSource.register(Killing)
    query = (
        spark.readStream.option("maxFilesPerTrigger", 1)
        .text(f"{folder}/input")
        .repartition(2)
        .writeStream.format("quire_killing")
        .option("cluster", uri)
        .option("inlineBytes", "0")
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(availableNow=True)
        .start(log)
    )
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()

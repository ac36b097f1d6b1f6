"""Several jobs in one session, because a JVM takes seconds to start.

    python -m quire.spark.jobs [--cores N] < STEPS

STEPS has one JSON array of arguments on each line, the job's name first:
`["to_parquet", "--cluster", "sqlite:…", "--log", "orders", "--out", "/tmp/t"]`. Each prints its line when it is done,
so a caller may write a step, read its line and then decide on the next one.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterable

from pyspark.sql import SparkSession

from quire.core.errors import MisuseError
from quire.spark.jobs import (
    archive,
    command,
    compact,
    materialise,
    replay,
    rewrite,
    scrub,
    soak,
    to_parquet,
)
from quire.spark.local import session
from quire.spark.options import use_error

JOBS: dict[str, type[command.SparkJob]] = {
    "to_parquet": to_parquet.ToParquetJob,
    "replay": replay.ReplayJob,
    "materialise": materialise.MaterialiseJob,
    "scrub": scrub.ScrubJob,
    "rewrite": rewrite.RewriteJob,
    "compact": compact.CompactJob,
    "archive": archive.ArchiveJob,
    "soak": soak.SoakJob,
}


def main() -> int:
    """Run the steps that stdin names.

    Returns:
        The exit status: 0 when every step succeeded.
    """
    parser = argparse.ArgumentParser(prog="python -m quire.spark.jobs", description=__doc__)
    parser.add_argument("--cores", default="*", help="local cores to use; default all")
    args = parser.parse_args()
    began = time.monotonic()
    spark = session(master=f"local[{args.cores}]", app_name="quire jobs", **{"spark.log.level": "ERROR"})
    started = round(time.monotonic() - began, 3)
    try:
        return run_lines(spark, sys.stdin, started)
    finally:
        spark.stop()


def run_lines(spark: SparkSession, lines: Iterable[str], session_seconds: float) -> int:
    """Run the steps of some lines; each prints its own line, also one that names no step.

    Returns:
        0 when every step succeeded, else 1.
    """
    status = 0
    for line in lines:
        if not line.strip():
            continue
        try:
            job = parsed(line)
        except MisuseError as error:
            command.write({"error": error.message})
            status = 1
        else:
            status |= command.run_step(spark, job, session_seconds)
    return status


def parsed(line: str) -> command.SparkJob:
    """The job of a step, with its arguments.

    Raises:
        SparkUseError: the line names none; what is wrong with arguments stands on stderr.
        MissingExtraError: the step needs an extra that is not installed.
    """
    try:
        name, *arguments = json.loads(line)
        kind = JOBS[name]
    except (ValueError, TypeError, KeyError) as error:
        raise use_error(
            f"a step is a JSON array of a job's name and its arguments, not {line.strip()} (jobs: {', '.join(JOBS)})."
        ) from error
    try:
        return command.job_of(kind, [str(one) for one in arguments], name)
    except SystemExit as error:
        raise use_error(f"job {name}: these are not its arguments: {line.strip()}.") from error


if __name__ == "__main__":
    raise SystemExit(main())

"""What the jobs' commands share: arguments, the session, one JSON line at the end."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from quire.core.errors import QuireError
from quire.env.numbers import number_of
from quire.spark.local import session
from quire.spark.options import SparkUseError, size_of

Line = dict[str, Any]
"""The result of a run of a job, as in JSON."""
Step = Callable[[SparkSession, argparse.Namespace], Line]


class Report:
    """What a run of a job came to: a dataclass, for JSON."""

    __slots__ = ()

    def as_dict(self) -> Line:
        """Its fields; and `ok`, where a job may refuse a part of its work."""
        line: Line = asdict(self)  # type: ignore[call-overload]
        return line | {"ok": not line["refused"]} if "refused" in line else line


def text(data: bytes | None) -> str | None:
    """Bytes as JSON can hold them: UTF-8, what is not keeps its bytes as surrogate escapes."""
    return None if data is None else bytes(data).decode("utf-8", "surrogateescape")


def slots(spark: SparkSession) -> int:
    """How many tasks run at once, about."""
    try:
        return spark.sparkContext.defaultParallelism
    except PySparkException:
        # Over Spark Connect there is no context; its server's settings say as much as is to be had.
        return int(spark.conf.get("spark.sql.shuffle.partitions") or 1)


def read_log(
    spark: SparkSession, cluster: str, log: str, start: int | None, end: int | None, schema: str | None = None
) -> DataFrame:
    """A log's records from `start` up to, not including, `end`; None is the log's own start or end.

    Args:
        spark: a session in which the format `quire` is known.
        cluster: the cluster's URI.
        log: the log's name.
        start: the first offset; `end` is after the last one.
        schema: the columns that are needed, as DDL; None is all.

    Raises:
        SparkUseError: an offset below 0, which the source would take for a word like `latest`.
    """
    for offset in (start, end):
        if offset is not None and offset < 0:
            raise SparkUseError(f"quire: log '{log}': an offset is a number from 0, not {offset}.", log=log)
    # A job has the session to itself: no core of it should stand idle because the log is small.
    reader = spark.read.format("quire").option("cluster", cluster).option("minPartitions", slots(spark))
    if start is not None:
        reader = reader.option("startingOffsets", json.dumps({log: start}))
    if end is not None:
        reader = reader.option("endingOffsets", json.dumps({log: end}))
    return (reader if schema is None else reader.schema(schema)).load(log)


def parser(job: str, what: str, *, one_log: bool = True, in_units: bool = True) -> argparse.ArgumentParser:
    """The arguments that every job has.

    Args:
        job: its name.
        what: one line for people.
        one_log: it is about one log.
        in_units: it has a plan, and a table of results that a later run goes on from; the others make a table of
            their own.
    """
    parser = argparse.ArgumentParser(prog=f"python -m quire.spark.jobs.{job}", description=what)
    parser.register("type", int, whole_number)
    parser.set_defaults(job=job, show=write, check=lambda _given: None)
    parser.add_argument(
        "--cluster", default=os.environ.get("QUIRE_CLUSTER"), help="URI; default QUIRE_CLUSTER"
    )
    parser.add_argument("--out", required=True, metavar="DIR", help="directory of the table")
    if one_log:
        parser.add_argument("--log", required=True, help="the log's name")
    if in_units:
        parser.add_argument("--dry-run", action="store_true", help="only show the plan")
        parser.set_defaults(show_plan=_plan_line, progress=_progress_line)
    else:
        parser.add_argument("--overwrite", action="store_true", help="replace a table that is there")
    parser.add_argument("--cores", default="*", help="local cores to use; default all")
    parser.add_argument(
        "--remote", metavar="URL", help="a Spark Connect server to use instead, sc://host:port"
    )
    return parser


def planned(args: argparse.Namespace, rows: list[Line], facts: Line, run: Callable[[], Line]) -> Line:
    """A step of a job that works in units: show the plan, and do it unless that is all that was asked for.

    Args:
        args: the command's arguments.
        rows: the plan, for people.
        facts: what a dry run says of the plan.
        run: does it and returns the job's line.
    """
    args.show_plan(rows)
    return {"dry_run": True, **facts} if args.dry_run else run()


def whole_number(text: str) -> int:
    """An argument that is a whole number, as offsets and ids are."""
    found = number_of(text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number (write digits, as 1180 or 1,180)")
    return found


def byte_size(text: str) -> int:
    """An argument that is a size."""
    found = size_of(text)
    if found is None:
        raise argparse.ArgumentTypeError(f"a size like 128m, 512k or 1g, not {text!r}")
    return found


def arguments_of(parser: argparse.ArgumentParser, arguments: Sequence[str] | None) -> argparse.Namespace:
    """A job's arguments, those of the process without others; what is wrong with them ends it with status 2.

    Raises:
        MissingExtraError: what they ask for needs an extra that is not installed.
    """
    args = parser.parse_args(arguments)
    if not args.cluster:
        parser.error("name the cluster with --cluster or QUIRE_CLUSTER; `quire up` prints it")
    args.check(args)
    return args


def main(parser: argparse.ArgumentParser, step: Step, arguments: Sequence[str] | None = None) -> int:
    """Run one job in a session of its own and print its line.

    Returns:
        The exit status: 0, or 1 with a line `{"job", "error"}`.
    """
    args = arguments_of(parser, arguments)
    began = time.monotonic()
    where = {"remote": args.remote} if args.remote else {"master": f"local[{args.cores}]"}
    spark = session(**where, app_name=f"quire {args.job}", **{"spark.log.level": "ERROR"})
    try:
        return run_step(spark, args, step, round(time.monotonic() - began, 3))
    finally:
        spark.stop()


def run_step(spark: SparkSession, args: argparse.Namespace, step: Step, session_seconds: float) -> int:
    """Run one job and print its line; see `main`."""
    try:
        line = {"job": args.job, **step(spark, args), "session_seconds": session_seconds}
        status = 0 if line.get("ok", True) else 1
    except (QuireError, PySparkException, OSError) as error:
        line, status = {"job": args.job, "error": last_line(error)}, 1
    args.show(line)
    return status


def _plan_line(rows: list[Line]) -> None:
    write({"plan": rows})


def _progress_line(done: int, total: int) -> None:
    sys.stderr.write(f"{done:,} of {total:,} units\n")


def write(line: Line) -> None:
    """Print a line of JSON."""
    # ASCII: surrogate escapes survive as JSON escapes whatever the terminal's encoding.
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def last_line(error: BaseException) -> str:
    """Our own sentence out of an error that Spark has wrapped in tracebacks, or the whole first line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    ours = [line for line in lines if "quire: " in line]
    if ours:
        return "quire: " + ours[-1].split("quire: ", 1)[1]
    return lines[0] if lines else type(error).__name__

"""What the jobs' commands share: arguments, the session, one JSON line at the end."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any, ClassVar, TypeVar

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from typer import BadParameter, Option, Typer
from typer.exceptions import TyperException
from typer.main import get_click_type, get_command
from typer.models import ParameterInfo

from quire.core.errors import QuireError
from quire.env.numbers import number_of
from quire.env.typed_options import grouped, options_of, take_options
from quire.spark.local import session
from quire.spark.options import SparkUseError, size_of

Line = dict[str, Any]
"""The result of a run of a job, as in JSON."""


class Report:
    """What a run of a job came to: a dataclass, for JSON."""

    __slots__ = ()

    def as_dict(self) -> Line:
        """Its fields and properties; and `ok`, where a job may refuse a part of its work."""
        line: Line = asdict(self)  # type: ignore[call-overload]
        for name, each in vars(type(self)).items():
            if isinstance(each, property):
                line[name] = getattr(self, name)
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


def _plan_line(rows: list[Line]) -> None:
    write({"plan": rows})


def _progress_line(done: int, total: int) -> None:
    sys.stderr.write(f"{done:,} of {total:,} units\n")


def write(line: Line) -> None:
    """Print a line of JSON."""
    # ASCII: surrogate escapes survive as JSON escapes whatever the terminal's encoding.
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


@dataclass(frozen=True, kw_only=True)
class SparkJob:
    """A job: its options, and its one step.

    Attributes:
        name: as it is called.
        show: prints its line; `show_plan` a plan of units, and `progress` how many are done.
    """

    cluster: Annotated[str, Option(envvar="QUIRE_CLUSTER", help="the cluster's URI", show_default=False)] = ""
    out: Annotated[str, Option(metavar="DIR", help="directory of the table")]
    cores: Annotated[str, Option(help="local cores to use")] = "*"
    remote: Annotated[
        str | None, Option(metavar="URL", help="a Spark Connect server to use instead, sc://host:port")
    ] = None
    show: Callable[[Line], None] = write
    show_plan: Callable[[list[Line]], None] = _plan_line
    progress: Callable[[int, int], None] = _progress_line

    name: ClassVar[str] = ""

    def __init_subclass__(cls, name: str = "") -> None:
        cls.name = name

    def __post_init__(self) -> None:
        if not self.cluster:
            raise BadParameter("name the cluster with --cluster or QUIRE_CLUSTER; `quire up` prints it")

    def step(self, spark: SparkSession) -> Line:
        """Run it once; the line that it prints."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class UnitsJob(SparkJob):
    """A job that has a plan, and a table of results that a later run goes on from."""

    dry_run: Annotated[bool, Option("--dry-run", help="only show the plan")] = False

    def planned(self, rows: list[Line], facts: Line, run: Callable[[], Line]) -> Line:
        """Show the plan, and do it unless that is all that was asked for.

        Args:
            rows: the plan, for people.
            facts: what a dry run says of the plan.
            run: does it and returns the job's line.
        """
        self.show_plan(rows)
        return {"dry_run": True, **facts} if self.dry_run else run()


LogOption = Annotated[str, Option(help="the log's name")]
OverwriteOption = Annotated[bool, Option("--overwrite", help="replace a table that is there")]
J = TypeVar("J", bound=SparkJob)


def whole_number(text: object) -> int:
    """An argument that is a whole number, as offsets and ids are."""
    found = number_of(str(text))
    if found is None:
        raise BadParameter(f"{text!r} is no whole number (write digits, as 1180 or 1,180)")
    return found


def byte_size(text: object) -> int:
    """An argument that is a size."""
    found = size_of(str(text))
    if found is None:
        raise BadParameter(f"a size like 128m, 512k or 1g, not {text!r}")
    return found


def job_of(kind: type[J], arguments: Sequence[str], program: str) -> J:
    """A job with its arguments; `--help` ends the process, and what is wrong with them, which stands on stderr, with status 2.

    Raises:
        MissingExtraError: what they ask for needs an extra that is not installed.
    """
    options, groups = options_of(kind)

    def made(**given: Any) -> J:
        return kind(**grouped(given, groups))

    take_options(made, options, kind)
    names = {"help_option_names": ["-h", "--help"]}
    app = Typer(add_completion=False, rich_markup_mode=None, context_settings=names)
    app.command()(made)
    found = get_command(app)
    for param in found.params:
        if param.type.name == "int":
            param.type = get_click_type(annotation=int, parameter_info=ParameterInfo(parser=whole_number))
    try:
        job = found.main(list(arguments), prog_name=program, standalone_mode=False)
    except TyperException as error:
        error.show()  # type: ignore[attr-defined]
        raise SystemExit(2) from error
    if not isinstance(job, kind):
        raise SystemExit(job)
    return job


def main(kind: type[SparkJob]) -> int:
    """Run one job as a process of its own; see `run`."""
    return run(job_of(kind, sys.argv[1:], f"python -m quire.spark.jobs.{kind.name}"))


def run(job: SparkJob) -> int:
    """Run one job in a session of its own and print its line.

    Returns:
        The exit status: 0, or 1 with a line `{"job", "error"}`.
    """
    began = time.monotonic()
    where = {"remote": job.remote} if job.remote else {"master": f"local[{job.cores}]"}
    spark = session(**where, app_name=f"quire {job.name}", **{"spark.log.level": "ERROR"})
    try:
        return run_step(spark, job, round(time.monotonic() - began, 3))
    finally:
        spark.stop()


def run_step(spark: SparkSession, job: SparkJob, session_seconds: float) -> int:
    """Run one job and print its line; see `run`."""
    try:
        line = {"job": job.name, **job.step(spark), "session_seconds": session_seconds}
        status = 0 if line.get("ok", True) else 1
    except (QuireError, PySparkException, OSError) as error:
        line, status = {"job": job.name, "error": last_line(error)}, 1
    job.show(line)
    return status


def last_line(error: BaseException) -> str:
    """Our own sentence out of an error that Spark has wrapped in tracebacks, or the whole first line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    ours = [line for line in lines if "quire: " in line]
    if ours:
        return "quire: " + ours[-1].split("quire: ", 1)[1]
    return lines[0] if lines else type(error).__name__

"""`quire spark …`: jobs over logs and ledgers that Spark spreads over machines, and what keeps Spark from working."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import typer

from quire.cli.console.options import ClusterOption, JsonOption, named_cluster
from quire.cli.console.output import Output, human_bytes
from quire.cli.group import wants_json
from quire.core.errors import MisuseError
from quire.distribution import Extra, require

app = typer.Typer(help="Spark: jobs that need many machines, and a doctor for its set-up.")

PASSED_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


@app.callback()
def spark() -> None:
    """Spark: jobs that need many machines, and a doctor for its set-up."""


@app.command(context_settings=PASSED_ON)
def run(context: typer.Context) -> None:
    """Run a job; `quire spark run` alone lists them, `quire spark run JOB --help` says what one takes.

    A job that works in units shows its plan first (`--dry-run`: only that) and goes on where an earlier run stopped.

    Exit code 0: done. 1: it failed, or found something wrong.
    """
    require(Extra.SPARK, "`quire spark run`")
    from quire.spark.jobs import command
    from quire.spark.jobs.__main__ import JOBS

    as_json = wants_json(context.args)
    job, *arguments = [one for one in context.args if one != "--json"] or [""]
    out = Output(as_json=as_json)
    if job in {"", "--help", "-h"}:
        rows = [{"job": name, "what": kind.__doc__} for name, kind in JOBS.items()]
        out.rows(("job", "what"), rows, title="Jobs")
        return
    if job not in JOBS:
        raise MisuseError(f"There is no job {job!r}: {', '.join(JOBS)}.")
    if not any(one == "--cluster" or one.startswith("--cluster=") for one in arguments):
        # A job knows only its own option and QUIRE_CLUSTER.
        named = named_cluster(None)
        arguments += ["--cluster", named] if named else []
    found = command.job_of(JOBS[job], arguments, f"quire spark run {job}")
    if not as_json:
        found = replace(
            found,
            show=lambda line: _show(out, line),
            show_plan=lambda rows: _show_plan(out, rows),
            progress=_Units(out),
        )
    raise typer.Exit(command.run(found))


@app.command()
def doctor(cluster: ClusterOption = None, as_json: JsonOption = False) -> None:
    """Look at what commonly keeps Spark from working here, and say what to do about it.

    Exit code 1: something would make Spark fail.
    """
    require(Extra.SPARK, "`quire spark doctor`")
    from quire.spark.doctor import Health, examine

    out = Output(as_json=as_json)
    checks = list(examine(named_cluster(cluster)))
    columns = ("what", "health", "found", "remedy")
    out.rows(columns, [check.as_dict() for check in checks], least=("found",))
    if any(check.health is Health.BAD for check in checks):
        raise typer.Exit(1)


def _show(out: Output, line: dict[str, Any]) -> None:
    """A job's result for people: nested rows as a table below the facts."""
    tables = {
        key: value
        for key, value in line.items()
        if isinstance(value, list) and value and isinstance(value[0], dict)
    }
    width = max(map(len, line))
    for key, value in line.items():
        if key not in tables and value is not None:
            shown = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else value
            out.result({}, f"{key.replace('_', ' '):{width}}  {shown}")
    for key, rows in tables.items():
        out.rows(list(rows[0]), rows, title=key.replace("_", " "))


def _show_plan(out: Output, rows: list[dict[str, Any]]) -> None:
    shown = [{**row, "bytes": human_bytes(row["bytes"])} if "bytes" in row else row for row in rows]
    out.rows(list(rows[0]) if rows else (), shown, title="Plan")


class _Units:
    """Progress of a job's units on stderr."""

    def __init__(self, out: Output) -> None:
        self._out = out
        self._bar: Any = None

    def __call__(self, done: int, total: int) -> None:
        if self._bar is None:
            self._bar = self._out.progress("units done", total, "units").__enter__()
        self._bar.advance(done - self._bar.count)
        if done == total:
            self._bar.__exit__(None, None, None)

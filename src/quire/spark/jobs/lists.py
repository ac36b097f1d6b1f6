"""What jobs do with a log's list: find the log, and list what they have copied by compare-and-swap.

Source: docs/spark-jobs.md; `log/rewriting.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

from quire.core.errors import ListChangedError, StagedLedgerGoneError
from quire.core.log.rewriting import Replacement
from quire.log.rewriting import REPLACED_AT_ONCE, LogRewriter
from quire.spark import cluster
from quire.spark.jobs import units
from quire.spark.jobs.units import Progress, Row, U, batched

if TYPE_CHECKING:
    from quire.core.log.list import LogHead
    from quire.log.client import QuireClient


@dataclass(frozen=True, slots=True)
class ListPlan:
    """What a job has to do that changes a log's list.

    Attributes:
        uri: the cluster.
        log_id: the log; `password`: of its ledgers.
    """

    uri: str
    log: str
    log_id: bytes
    password: bytes


def head_of(uri: str, log: str) -> LogHead:
    """A log's own record.

    Raises:
        NoSuchLogError: there is no such log.
    """
    return cluster.call(uri, lambda client: client.log(log).identify())


def _listed(
    work: ListPlan, made: Sequence[tuple[Row, Replacement]], archive: str, compacted_below: int
) -> tuple[list[tuple[Row, Replacement]], list[str]]:
    """List all replacements of a round in one compare-and-swap, or, where one of them is refused, each by itself.

    Those of a compaction are listed together or not at all: none may come before one that is refused.

    Args:
        work: the plan.
        made: in the list's order, each with the row of the task that made it.
        archive: the directory with the files of items that move there.
        compacted_below: see `LogRewriter.replace`.

    Returns:
        Those that are in the list now, and why the others are not.
    """
    try:
        replace_all(work, [each for _, each in made], archive, compacted_below)
    except (ListChangedError, StagedLedgerGoneError) as error:
        if len(made) == 1 or compacted_below:
            return [], [str(error)]
    else:
        return list(made), []
    listed: list[tuple[Row, Replacement]] = []
    refused: list[str] = []
    for one in made:
        done, why = _listed(work, [one], archive, compacted_below)
        listed += done
        refused += why
    return listed, refused


def replace_in_rounds(
    spark: SparkSession,
    work: ListPlan,
    rounds: Iterable[Sequence[U]],
    task: Callable[[U], Iterable[Row]],
    made: Callable[[U, Row], Replacement],
    schema: str,
    table: str,
    *,
    archive: str = "",
    compacted_below: int = 0,
    after: Callable[[Replacement], None] = lambda _: None,
    progress: Progress | None = None,
) -> tuple[list[Row], list[str]]:
    """Work at units round by round, and list what each round made by compare-and-swap.

    Args:
        spark: a session; its executors do the work.
        work: the plan.
        rounds: the units of each round.
        task: does one unit and gives its row; a row with `refused` is not listed.
        made: the replacement for a row.
        schema: the rows' columns besides `unit`.
        table: directory of the results (Parquet), a row for each unit that is listed.
        archive: the directory with the files of items that move there.
        compacted_below: if it is not 0, the units go from the front, and the first that is refused is the last.
        after: called for each replacement that is in the list.
        progress: called with how many units are done.

    Returns:
        The rows of what is in the list now, and why the rest is not.
    """
    done: list[Row] = []
    refused: list[str] = []
    for by_name, rows in units.worked(spark, rounds, task, schema, progress):
        refused += [row["refused"] for row in rows if row["refused"]]
        by_unit = {row["unit"]: row for row in rows}
        choose = takewhile if compacted_below else filter
        good = choose(_is_made, (by_unit[name] for name in by_name))
        pairs = [(row, made(by_name[row["unit"]], row)) for row in good]
        replaced, left = _listed(work, pairs, archive, compacted_below)
        refused += left
        for _, each in replaced:
            after(each)
        listed = [row for row, _ in replaced]
        if listed:
            units.append(spark, table, listed, schema)
        done += listed
        if compacted_below and refused:
            break
    return done, refused


def _is_made(row: Row) -> bool:
    return not row["refused"]


def replace_all(
    work: ListPlan, made: Sequence[Replacement], archive: str = "", compacted_below: int = 0
) -> None:
    """List replacements by compare-and-swap; see `LogRewriter.replace`.

    Raises:
        ListChangedError, StagedLedgerGoneError: one of them cannot be listed; it and those after it are not.
    """
    for some in batched(made, REPLACED_AT_ONCE):
        cluster.call(work.uri, _replace, work, some, archive, compacted_below)


async def _replace(
    client: QuireClient, work: ListPlan, made: Sequence[Replacement], archive: str, compacted_below: int
) -> None:
    rewriter = LogRewriter(client, work.log_id, work.password)
    await rewriter.replace(made, archive=archive, compacted_below=compacted_below)

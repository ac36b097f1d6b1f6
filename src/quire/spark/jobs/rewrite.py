"""Many small ledgers of a log as few large ones: the same records under the same offsets, read with fewer tasks.

    quire spark run rewrite --cluster URI --log orders --out DIR [--target-bytes 1g] [--dry-run]

A streaming sink makes a ledger or two for each batch. This job copies neighbours that are small into one, in tasks, and
changes the log's list by compare-and-swap when a round of copies is done: exactly the copied ledgers go, refused if any
was changed meanwhile. What left the list stays readable until the collector's grace time is over, so that no reader is
interrupted. It can run while a leader and sinks do; a copy that was never listed is collected.

Source: docs/spark-jobs.md, "Rewrite".
"""

from __future__ import annotations

import platform
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from pyspark.sql import SparkSession
from typer import Option

from quire.core.errors import NoSuchLedgerError
from quire.core.log.list import LogItem
from quire.core.log.rewriting import Replacement
from quire.log.rewriting import LogRewriter
from quire.log.staging import StagedBy
from quire.spark import cluster
from quire.spark.jobs import command, copied, lists, units
from quire.spark.jobs.copied import CopyUnit
from quire.spark.jobs.lists import ListPlan
from quire.spark.jobs.units import Row as Fields

if TYPE_CHECKING:
    from quire.log.client import QuireClient

TARGET_BYTES = 1 << 30
SMALL_PART = 2
"""A ledger below the target's half is worth copying."""


@dataclass(frozen=True, slots=True)
class RewritePlan(ListPlan):
    """The ledgers that a rewrite copies.

    Attributes:
        units: the copies.
        items: ledgers of the log now; `items_after`: when all is done.
    """

    units: tuple[CopyUnit, ...]
    items: int

    @property
    def items_after(self) -> int:
        """Ledgers of the log when all is done."""
        return self.items - sum(len(unit.items) - 1 for unit in self.units)


@dataclass(frozen=True, slots=True)
class RewriteReport(command.Report):
    """What a rewrite did.

    Attributes:
        ledgers_before: ledgers of the log when the job was planned; `ledgers_after`: when it was done.
        replaced: ledgers that were copied and are no longer in the list.
        made: ledgers in their place.
        refused: copies that were not listed, since the list had changed; run the job again.
    """

    log: str
    table: str
    ledgers_before: int
    ledgers_after: int
    replaced: int
    made: int
    records: int
    bytes: int
    refused: list[str]
    seconds: float


def plan(
    uri: str, log: str, *, target_bytes: int = TARGET_BYTES, password: bytes = b"", fewest: int = 2
) -> RewritePlan:
    """Which neighbours become one: small closed ledgers with batch entries, up to `target_bytes` together.

    Args:
        uri: the cluster.
        log: the log's name.
        target_bytes: a new ledger's size, about.
        password: of the log's ledgers.
        fewest: neighbours that are fewer are left alone.

    Raises:
        NoSuchLogError: there is no such log.
    """
    head = lists.head_of(uri, log)
    items = cluster.call(uri, _candidates, head.log_id, password)
    small = (item for item in items if item.payload_bytes * SMALL_PART <= target_bytes)
    made = tuple(
        CopyUnit(uri, head.log_id, password, head.settings, tuple(group), "rewrite")
        for group in copied.neighbours(small, target_bytes)
        if len(group) >= fewest
    )
    return RewritePlan(uri, log, head.log_id, password, made, head.item_count)


def run(
    spark: SparkSession, work: RewritePlan, table: str, *, progress: units.Progress | None = None
) -> RewriteReport:
    """Copy and list, round by round.

    Args:
        spark: a session; its executors copy.
        work: what to do.
        table: directory of the results (Parquet), a row for each new ledger.
        progress: called with how many copies are listed.
    """
    began = time.monotonic()
    rounds = units.rounds(work.units, copied.per_round(spark))
    rows, refused = lists.replace_in_rounds(
        spark, work, rounds, _copy, copied.replacement, copied.SCHEMA, table, progress=progress
    )
    return RewriteReport(
        log=work.log,
        table=table,
        ledgers_before=work.items,
        ledgers_after=lists.head_of(work.uri, work.log).item_count,
        replaced=sum(row["replaced"] for row in rows),
        made=len(rows),
        records=sum(row["records"] for row in rows),
        bytes=sum(row["bytes"] for row in rows),
        refused=refused,
        seconds=round(time.monotonic() - began, 3),
    )


def _copy(unit: CopyUnit) -> Iterator[Fields]:
    """One copy, in a task."""
    began = time.monotonic()
    try:
        made = cluster.call(unit.uri, _copied, unit)
    except NoSuchLedgerError as error:
        yield {"refused": f"{unit.name}: {error.message}; the log was truncated meanwhile, plan again"}
        return
    yield copied.row_of(made.old, made.new) | {"seconds": time.monotonic() - began}


async def _copied(client: QuireClient, unit: CopyUnit) -> Replacement:
    by = StagedBy(incarnation="rewrite", host=platform.node())
    return await LogRewriter(client, unit.log_id, unit.password).copy(unit.items, unit.settings, by)


async def _candidates(client: QuireClient, log_id: bytes, password: bytes) -> list[LogItem]:
    _, items = await LogRewriter(client, log_id, password).candidates()
    return [item for item in items if copied.may_be_copied(item)]


@dataclass(frozen=True, kw_only=True)
class RewriteJob(command.UnitsJob, name="rewrite"):
    """Copy many small ledgers of a log into few large ones."""

    log: command.LogOption
    target_bytes: Annotated[
        int, Option(parser=command.byte_size, metavar="SIZE", help="size of a new ledger")
    ] = TARGET_BYTES
    fewest: Annotated[int, Option(help="leave fewer neighbours alone")] = 2

    def step(self, spark: SparkSession) -> command.Line:
        """One run of the command; the line that it prints."""
        work = plan(self.cluster, self.log, target_bytes=self.target_bytes, fewest=self.fewest)
        facts = {
            "ledgers_before": work.items,
            "ledgers_after": work.items_after,
            "bytes": sum(unit.size for unit in work.units),
        }
        rows = [copied.plan_row(unit) for unit in work.units]
        return self.planned(rows, facts, lambda: run(spark, work, self.out, progress=self.progress).as_dict())


if __name__ == "__main__":
    raise SystemExit(command.main(RewriteJob))

"""The state that a log of changes leads to: the latest value of each key, at any offset.

    python -m quire.spark.jobs.replay --cluster URI --log edits --out DIR [--at OFFSET] [--snapshot DIR]

A state table has the columns key, value, offset (of the key's last change) and as_of (records below it are in the
state). It is the snapshot that a later replay starts from: then only the tail of the log is read.
"""

from __future__ import annotations

import hashlib
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, expr, length, lit, substring
from typer import Option

from quire.spark.jobs import command, lists
from quire.spark.options import SparkUseError


@dataclass(frozen=True, slots=True)
class StateReport(command.Report):
    """The result of replaying a log into the newest value of each key.

    Attributes:
        log: the log's name.
        table: where the state lies.
        keys: keys that are there at this point.
        next_offset: records below this offset are in the state.
        from_snapshot: the `next_offset` of the snapshot that it started from, or None.
        records_read: records of the log that were read.
        sha256: over `key NUL value LF` of all keys in byte order, in hexadecimal digits.
        seconds: time it took.
    """

    log: str
    table: str
    keys: int
    next_offset: int
    from_snapshot: int | None
    records_read: int
    sha256: str
    seconds: float


def run(
    spark: SparkSession,
    *,
    cluster: str,
    log: str,
    table: str,
    at: int | None = None,
    snapshot: str | None = None,
    since: int | None = None,
    key: str = "key",
    deleted_prefix: bytes | None = None,
    overwrite: bool = False,
) -> StateReport:
    """Replay a log up to an offset and write the state as a Parquet table.

    A record without a value, or with an empty one, removes its key; with `deleted_prefix` so does every record whose
    value starts with it. Records without a key belong to no state.

    Args:
        spark: a session in which the format `quire` is known.
        cluster: the cluster's URI.
        log: the log's name.
        table: directory of the state table; it must not exist unless `overwrite`.
        at: records below this offset are replayed; None is where the log is confirmed now.
        snapshot: a state table of the same log at an earlier offset to start from.
        since: that offset, where it is known; without it the table's rows say it.
        key: Spark SQL over `key`, `value` and `offset` that gives a record's key, binary or string.
        deleted_prefix: how the value of a removal starts.
        overwrite: replace a table that is there.

    Raises:
        SparkUseError: the snapshot is later than `at`, or the log was compacted beyond one of them.
    """
    began = time.monotonic()
    before = None if snapshot is None else spark.read.parquet(snapshot)
    start = since if before is None or since is not None else _as_of(before)
    if start is not None and at is not None and start > at:
        raise SparkUseError(
            f"quire: the snapshot {snapshot} holds records up to {start}, later than --at {at}. "
            "Start from an earlier one, or replay without."
        )
    _check_kept(cluster, log, start, at)
    columns = (f"CAST({key} AS BINARY) AS key", "value", "offset")
    tail = command.read_log(spark, cluster, log, start, at).selectExpr(*columns).cache()
    try:
        read, last = tail.agg(expr("count(*)"), expr("max(offset)")).collect()[0]
        _check_kept(cluster, log, start, at)
        end = at if at is not None else last + 1 if last is not None else start or 0
        changes = tail if before is None else tail.unionByName(before.select("key", "value", "offset"))
        latest = _latest(changes, deleted_prefix).withColumn("as_of", lit(end).cast("bigint"))
        latest.write.mode("overwrite" if overwrite else "error").parquet(table)
    finally:
        tail.unpersist()
    digest, keys = hashlib.sha256(), 0
    for name, value in _sorted_rows(spark, table):
        digest.update(b"%b\0%b\n" % (name, value))
        keys += 1
    seconds = round(time.monotonic() - began, 3)
    return StateReport(log, table, keys, end, start, read, digest.hexdigest(), seconds)


def _check_kept(cluster: str, log: str, start: int | None, at: int | None) -> None:
    """Refuse a state that the log does not hold any more.

    Raises:
        SparkUseError: changes that belong to it gave way to later ones.
    """
    below = lists.head_of(cluster, log).compacted_below
    if start is not None and start == at:
        return
    if at is not None and at < below:
        raise SparkUseError(
            f"quire: log '{log}' is compacted up to {below}: its state at {at} is not in it any more. "
            f"Ask for {below} or later."
        )
    if start is not None and start < below:
        raise SparkUseError(
            f"quire: log '{log}' is compacted up to {below}: what was removed since the snapshot's offset {start} may not "
            "be in it any more. Replay without the snapshot; the log holds the whole state."
        )


def _latest(changes: DataFrame, deleted_prefix: bytes | None) -> DataFrame:
    latest = (
        changes.where("key IS NOT NULL")
        .groupBy("key")
        .agg(expr("max_by(value, offset) AS value"), expr("max(offset) AS offset"))
        .where("value IS NOT NULL AND length(value) > 0")
    )
    if deleted_prefix:
        starts = substring(col("value"), 1, len(deleted_prefix))
        latest = latest.where((length(col("value")) < len(deleted_prefix)) | (starts != lit(deleted_prefix)))
    return latest


def _as_of(snapshot: DataFrame) -> int | None:
    """Up to where a state table goes; None for one without keys, which says no more than an empty log."""
    found: int | None = snapshot.agg(expr("max(as_of)")).collect()[0][0]
    return found


def _sorted_rows(spark: SparkSession, table: str) -> Any:
    for row in spark.read.parquet(table).orderBy("key").toLocalIterator():
        yield bytes(row["key"]), bytes(row["value"])


def state(spark: SparkSession, table: str) -> dict[bytes, bytes]:
    """A state table as a dictionary, for states that fit into memory."""
    return dict(_sorted_rows(spark, table))


@dataclass(frozen=True, kw_only=True)
class ReplayJob(command.SparkJob, name="replay"):
    """Replay a log of changes into a table of the latest value of each key."""

    log: command.LogOption
    overwrite: command.OverwriteOption = False
    at: Annotated[int | None, Option(help="replay records below this offset; default: all")] = None
    snapshot: Annotated[str | None, Option(metavar="DIR", help="an earlier state table to start from")] = None
    deleted_prefix: Annotated[str | None, Option(help="values that start so remove their key")] = None
    state: Annotated[str | None, Option(metavar="FILE", help="write the state as JSON to FILE")] = None

    def step(self, spark: SparkSession) -> command.Line:
        """One run of the command; the line that it prints."""
        report = run(
            spark,
            cluster=self.cluster,
            log=self.log,
            table=self.out,
            at=self.at,
            snapshot=self.snapshot,
            deleted_prefix=self.deleted_prefix.encode() if self.deleted_prefix else None,
            overwrite=self.overwrite,
        )
        line = report.as_dict()
        if self.state:
            found = {command.text(key): command.text(value) for key, value in state(spark, self.out).items()}
            Path(self.state).write_text(json.dumps(found))
            line["state_file"] = self.state
        return line


if __name__ == "__main__":
    raise SystemExit(command.main(ReplayJob))

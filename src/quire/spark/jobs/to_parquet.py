"""A log as a Parquet table, and the proof that the table holds the log: counts, dense offsets, a digest for each key.

    python -m quire.spark.jobs.to_parquet --cluster URI --log orders --out DIR

The table is read back for every check, so what is compared with the truth went through the log, Spark and the
files.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.functions import expr
from typer import Option

from quire.spark.jobs import command, lists
from quire.spark.options import SparkUseError

SAMPLE_ROWS = 5


@dataclass(frozen=True, slots=True)
class TableReport(command.Report):
    """What the table holds, read back from its files.

    Attributes:
        log: the log's name.
        table: where the table lies.
        records: rows of the table.
        bytes: bytes of all keys and values.
        keys: distinct keys.
        first_offset: smallest offset, None for an empty table.
        next_offset: one more than the greatest offset, None for an empty table.
        missing: offsets between them that no row has, where the log is not compacted.
        duplicates: rows whose offset another row has too.
        files: files of the table, one for each task that read the log.
        table_bytes: their size; None where the table is not on a local path.
        write_seconds: reading the log and writing the table.
        check_seconds: reading the table and checking it.
        sample: the first rows.
    """

    log: str
    table: str
    records: int
    bytes: int
    keys: int
    first_offset: int | None
    next_offset: int | None
    missing: int
    duplicates: int
    files: int | None
    table_bytes: int | None
    write_seconds: float
    check_seconds: float
    sample: list[dict[str, Any]]

    @property
    def dense(self) -> bool:
        """Whether each offset between the first and the last is there exactly once."""
        return self.missing == 0 and self.duplicates == 0


@dataclass(frozen=True, slots=True)
class KeyDigest:
    """All values of one key, in offset order.

    Attributes:
        records: how many.
        bytes: how long together.
        sha256: of the values one after another with nothing between, in hexadecimal digits.
    """

    records: int
    bytes: int
    sha256: str


def run(
    spark: SparkSession,
    *,
    cluster: str,
    log: str,
    table: str,
    start: int | None = None,
    end: int | None = None,
    overwrite: bool = False,
) -> TableReport:
    """Write a log's records from `start` up to, not including, `end` as a Parquet table and check it.

    Args:
        spark: a session in which the format `quire` is known.
        cluster: the cluster's URI.
        log: the log's name.
        table: directory of the table; it must not exist unless `overwrite`.
        start: first offset; None is where the log begins.
        end: offset to stop before; None is where the log is confirmed when the read is planned.
        overwrite: replace a table that is there.
    """
    began = time.monotonic()
    frame = command.read_log(spark, cluster, log, start, end)
    frame.write.mode("overwrite" if overwrite else "error").parquet(table)
    written = time.monotonic()
    return _check(spark, log, table, lists.head_of(cluster, log).compacted_below, began, written)


def _check(
    spark: SparkSession, log: str, table: str, compacted_below: int, began: float, written: float
) -> TableReport:
    frame = spark.read.parquet(table)
    totals = _totals(frame, compacted_below)
    keys = frame.select("key").where("key IS NOT NULL").distinct().count()
    sample = frame.where(f"offset < {(totals['first'] or 0) + SAMPLE_ROWS}").orderBy("offset").collect()
    files, table_bytes = _files(table)
    span = 0
    if totals["first"] is not None:
        span = totals["last"] + 1 - max(totals["first"], min(compacted_below, totals["last"] + 1))
    return TableReport(
        log=log,
        table=table,
        records=totals["records"],
        bytes=totals["bytes"],
        keys=keys,
        first_offset=totals["first"],
        next_offset=None if totals["last"] is None else totals["last"] + 1,
        missing=span - (totals["offsets"] - totals["sparse"]),
        duplicates=totals["records"] - totals["offsets"],
        files=files,
        table_bytes=table_bytes,
        write_seconds=round(written - began, 3),
        check_seconds=round(time.monotonic() - written, 3),
        sample=[
            {
                "offset": row["offset"],
                "key": command.text(row["key"]),
                "value": command.text(row["value"]),
                "timestamp": row["timestamp"].isoformat(),
            }
            for row in sample[:SAMPLE_ROWS]
        ],
    )


def _totals(frame: DataFrame, compacted_below: int) -> Row:
    """Figures over all rows; `sparse` counts those where offsets may be missing."""
    # A bitmap for each 32,768 offsets counts distinct ones exactly without a shuffle of every offset.
    buckets = frame.selectExpr(
        "bitmap_bucket_number(offset) AS bucket",
        "bitmap_bit_position(offset) AS position",
        "offset",
        "key",
        "value",
    )
    found: Row = (
        buckets.groupBy("bucket")
        .agg(
            expr("count(*) AS records"),
            expr("bitmap_count(bitmap_construct_agg(position)) AS offsets"),
            expr(f"count(*) FILTER (WHERE offset < {compacted_below}) AS sparse"),
            expr("min(offset) AS first"),
            expr("max(offset) AS last"),
            expr("sum(coalesce(length(key), 0) + coalesce(length(value), 0)) AS bytes"),
        )
        .agg(
            *(
                expr(f"coalesce(sum({name}), 0) AS {name}")
                for name in ("records", "offsets", "sparse", "bytes")
            ),
            expr("min(first) AS first"),
            expr("max(last) AS last"),
        )
        .collect()[0]
    )
    return found


def _files(table: str) -> tuple[int | None, int | None]:
    """The number and size of the table's files where they are on this machine."""
    path = Path(table.removeprefix("file:"))
    if not path.is_dir():
        return None, None
    sizes = [file.stat().st_size for file in path.glob("*.parquet")]
    return len(sizes), sum(sizes)


def key_digests(spark: SparkSession, table: str) -> dict[bytes, KeyDigest]:
    """One digest for each key of a table, computed by Spark from the files.

    Where each record is one line of a file with its line end and the key names the file, the digest is the file's.
    """
    grouped = spark.read.parquet(table).where("key IS NOT NULL").groupBy("key")
    rows = grouped.agg(
        expr("count(*) AS records"),
        expr("coalesce(sum(length(value)), 0) AS bytes"),
        expr("sha2(coalesce(listagg(value) WITHIN GROUP (ORDER BY offset), X''), 256) AS sha256"),
    ).collect()
    return {bytes(row["key"]): KeyDigest(row["records"], row["bytes"], row["sha256"]) for row in rows}


def write_digests(digests: dict[bytes, KeyDigest], path: str) -> None:
    """Save digests as one JSON object; keys are UTF-8 with surrogate escapes."""
    Path(path).write_text(json.dumps({command.text(key): asdict(digest) for key, digest in digests.items()}))


@dataclass(frozen=True, kw_only=True)
class ToParquetJob(command.SparkJob, name="to_parquet"):
    """Write a log as a Parquet table and check it."""

    log: command.LogOption
    overwrite: command.OverwriteOption = False
    starting_offset: Annotated[int | None, Option(help="first offset; default: the log's start")] = None
    ending_offset: Annotated[int | None, Option(help="offset to stop before; default: the end")] = None
    key_digests: Annotated[str | None, Option(metavar="FILE", help="write a digest for each key to FILE")] = (
        None
    )

    def step(self, spark: SparkSession) -> command.Line:
        """One run of the command; the line that it prints."""
        report = run(
            spark,
            cluster=self.cluster,
            log=self.log,
            table=self.out,
            start=self.starting_offset,
            end=self.ending_offset,
            overwrite=self.overwrite,
        )
        line = report.as_dict()
        if self.key_digests:
            began = time.monotonic()
            write_digests(key_digests(spark, self.out), self.key_digests)
            line |= {"digests_file": self.key_digests, "digest_seconds": round(time.monotonic() - began, 3)}
        if not report.dense:
            raise SparkUseError(
                f"quire: the table {self.out} is not the log: {report.missing} offsets are missing, "
                f"{report.duplicates} come twice."
            )
        return line


if __name__ == "__main__":
    raise SystemExit(command.main(ToParquetJob))

"""A repository's history as a log of edits, streamed through Spark, replayed to the tree at any commit.

    python -m quire.spark.examples.git_history load   --repository . --log edits
    python -m quire.spark.examples.git_history stream --log edits --to edits-clean --checkpoint DIR
    python -m quire.spark.examples.git_history tree   --log edits-clean --out DIR [--commit NAME --repository .]

Git says which paths each commit changed, and what the tree is at any commit: the same edit log that a file system's name
server keeps, with an independent truth to compare with. `load` writes one record for each changed path; `stream` reads
them as a stream, turns them into keys and values, and writes another log, each record once however often it is killed;
`tree` makes the table of paths that the log leads to.

Source: docs/spark-guide.md, "A history as a log".
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, expr

import quire.blocking
from quire.spark.jobs import replay
from quire.spark.local import session

_COMMIT = b"\x01"


class Edit(NamedTuple):
    """One path that one commit changed.

    Attributes:
        commit: the commit's name, 40 hex digits.
        time_s: when it was made, seconds since 1970.
        line: as `git log --raw` prints it: modes, blobs, status, then the path after a tab.
    """

    commit: bytes
    time_s: int
    line: bytes


def _git(repository: Path, command: str, *arguments: str) -> list[bytes]:
    """What a command of Git says of a repository, in the parts that NUL ends."""
    asked = ["git", "-C", str(repository), *command.split(), *arguments]
    return subprocess.run(asked, check=True, stdout=subprocess.PIPE).stdout.split(b"\0")  # noqa: S603 - on a path the caller names


def edits(repository: Path, tip: str = "HEAD") -> Iterator[Edit]:
    """Every edit of a repository's first-parent history, oldest first."""
    log = "log --first-parent --reverse -m --raw --no-renames --no-abbrev -z"
    fields = iter(_git(repository, log, "--format=%x01%H %ct", tip, "--"))
    commit, time_s = b"", 0
    for field in fields:
        text = field.strip(b"\n")
        if text.startswith(_COMMIT):
            commit, _, when = text[1:].partition(b" ")
            when, _, text = when.partition(b"\n")
            time_s = int(when)
        if text.startswith(b":"):
            yield Edit(commit, time_s, text + b"\t" + next(fields))


def tree(repository: Path, commit: str = "HEAD") -> dict[bytes, bytes]:
    """What git says: mode and blob of every path at a commit."""
    lines = _git(repository, "ls-tree -r -z", "--format=%(objectmode) %(objectname)%x09%(path)", commit)
    return {path: entry for entry, _, path in (line.partition(b"\t") for line in lines if line)}


def load(cluster: str, log: str, repository: Path, tip: str = "HEAD") -> dict[str, int]:
    """Write a repository's edits to a new log.

    Returns:
        For each commit the offset after its last edit.
    """
    ends: dict[str, int] = {}
    with quire.blocking.connect(cluster) as client:
        client.log(log).create()
        with client.log(log).open_writer() as writer:
            for commit, group in groupby(edits(repository, tip), key=lambda edit: edit.commit):
                some = list(group)
                headers = [(("commit", commit),)] * len(some)
                times = [edit.time_s * 1000 for edit in some]
                offsets = writer.append_many(
                    [edit.line for edit in some], headers=headers, timestamps_ms=times
                )
                ends[commit.decode()] = offsets[-1] + 1
    return ends


def parsed(raw: DataFrame) -> DataFrame:
    """Git's lines as keys and values: path, and mode and blob, or nothing for a path that was removed."""
    line = raw.select("timestamp", "headers", expr("split(cast(value AS string), '\\t', 2) AS parts"))
    return line.select(
        expr("cast(parts[1] AS binary) AS key"),
        expr(
            "CASE WHEN parts[0] LIKE '% D' THEN NULL "
            "ELSE cast(concat_ws(' ', split(parts[0], ' ')[1], split(parts[0], ' ')[3]) AS binary) END AS value"
        ),
        col("headers"),
        col("timestamp"),
    )


def stream(
    spark: SparkSession, cluster: str, log: str, to: str, checkpoint: str, records_per_batch: int = 1000
) -> int:
    """Copy what is there, parsed, exactly once; killed anywhere, it goes on where it was.

    Returns:
        The number of the last batch, -1 when there was nothing to do.
    """
    raw = (
        spark.readStream.format("quire")
        .option("cluster", cluster)
        .option("includeHeaders", value=True)
        .option("maxRecordsPerTrigger", records_per_batch)
        .load(log)
    )
    query = (
        parsed(raw)
        .writeStream.format("quire")
        .option("cluster", cluster)
        .option("create", value=True)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start(to)
    )
    query.awaitTermination()
    progress = query.lastProgress
    return -1 if progress is None else int(progress["batchId"])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one step; it prints one JSON line."""
    parser = argparse.ArgumentParser(prog="python -m quire.spark.examples.git_history", description=__doc__)
    steps = parser.add_subparsers(dest="step", required=True)
    for name in ("load", "stream", "tree"):
        step = steps.add_parser(name)
        step.add_argument("--cluster", required=True)
        step.add_argument("--log", default="edits-clean" if name == "tree" else "edits")
        step.add_argument("--repository", type=Path, default=Path())
        if name == "stream":
            step.add_argument("--to", default="edits-clean")
            step.add_argument("--checkpoint", required=True)
            step.add_argument("--records-per-batch", type=int, default=1000)
        if name == "tree":
            step.add_argument("--out", required=True)
            step.add_argument("--at", type=int)
            step.add_argument("--snapshot")
    args = parser.parse_args(arguments)
    line: dict[str, Any]
    if args.step == "load":
        ends = load(args.cluster, args.log, args.repository)
        line = {"commits": len(ends), "edits": max(ends.values(), default=0)}
    else:
        spark = session(app_name=f"git history: {args.step}", **{"spark.log.level": "ERROR"})
        try:
            line = _run_in_spark(spark, args)
        finally:
            spark.stop()
    sys.stdout.write(json.dumps({"step": args.step, **line}) + "\n")
    return 0


def _run_in_spark(spark: SparkSession, args: argparse.Namespace) -> dict[str, Any]:
    if args.step == "stream":
        arguments = (args.cluster, args.log, args.to, args.checkpoint, args.records_per_batch)
        return {"last_batch": stream(spark, *arguments)}
    report = replay.run(
        spark, cluster=args.cluster, log=args.log, table=args.out, at=args.at, snapshot=args.snapshot
    )
    return report.as_dict()


if __name__ == "__main__":
    raise SystemExit(main())

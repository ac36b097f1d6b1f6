"""One life of a streaming query's driver, in a process of its own that may be killed at any step; for sink_rounds.py.

It does what Spark does with a sink, and nothing else: stages each partition of each batch, tries a failed task again,
commits, aborts with the same messages when that raised, and notes a committed batch in its checkpoint; a life begins
behind the last batch that is noted there. The sink, the client, the bookies and the metadata file are real.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StringType, StructField, StructType

from quire.core.errors import MetadataUnknownError, QuireError
from quire.core.log_commit import COMMIT_RULES
from quire.metadata.store import Put, StoreAwayError
from quire.spark import cluster
from quire.spark.given import Given
from quire.spark.options import READ_OPTIONS
from quire.spark.sink import BATCH_ID, QUERY_ID, Message, StreamSink, stream_sink
from quire.spark.staged import Seams
from quire.spark.write_options import WRITE_OPTIONS

SCHEMA = StructType([StructField("value", StringType())])
ARROW = to_arrow_schema(SCHEMA, timezone="UTC")
PARTITIONS = 2
ROWS = 5


@dataclass(frozen=True)
class Life:
    """What befalls one life of a driver.

    Attributes:
        killed_at: the process is killed when it reaches so many steps; 0: never.
        fails_at: a step that raises instead.
        lost: swaps, counted from 0, whose answer is lost: "after" they are done or "before".
        away: so many calls of the store in a row, from the first swap on, find it away.
        stopped_at: the process is stopped at this step, and goes on when the next life is over: taken for dead.
    """

    killed_at: int = 0
    fails_at: int = 0
    lost: tuple[tuple[int, str], ...] = ()
    away: int = 0
    stopped_at: int = 0


@dataclass(frozen=True)
class Query:
    """A query: what a life is about.

    Attributes:
        sink: "shipped", or the protection that is taken out.
    """

    uri: str
    folder: str
    log: str
    batches: int
    inline: str = "0"
    takeover: bool = False
    sink: str = "shipped"


def value(batch: int, partition: int, row: int) -> str:
    """The same rows for the same batch, whoever asks."""
    return f"{batch}/{partition}/{row}"


@dataclass
class Steps:
    """Counts the steps of a life, and ends it at one."""

    life: Life
    note: Path
    taken: int = 0
    names: list[str] = field(default_factory=list)

    def __call__(self, step: str) -> None:
        self.taken += 1
        self.names.append(step)
        if self.taken == self.life.killed_at:
            self.note.write_text(step)
            os.kill(os.getpid(), signal.SIGKILL)
        if self.taken == self.life.stopped_at:
            self.note.write_text(step)
            os.kill(os.getpid(), signal.SIGSTOP)
        if self.taken == self.life.fails_at:
            self.note.write_text(step)
            raise RuntimeError(f"a fault at {step}")


def live(query: Query, life: Life) -> None:
    """Run batches until all are noted, or the life ends. Exit code 0: all are."""
    try:
        _live(query, life)
    except (QuireError, RuntimeError):
        sys.exit(1)  # as a query that ended with an error


def _live(query: Query, life: Life) -> None:
    steps = Steps(life, Path(query.folder) / "step")
    _lose_answers(query.uri, life)
    sink = _naive if query.sink == "naive" else _shipped
    notes = Path(query.folder) / "commits"
    notes.mkdir(exist_ok=True)
    begin = 1 + max((int(path.name) for path in notes.iterdir()), default=-1)
    for batch in range(begin, query.batches):
        sink(query, batch, steps)
        steps("noting")
        (notes / str(batch)).touch()
        steps("noted")


def _shipped(query: Query, batch: int, steps: Steps) -> None:
    messages: list[Message | None] = []
    try:
        for partition in range(PARTITIONS):
            messages.append(_task(query, batch, partition, steps))
        _writer(query, batch, 0, 0, steps).commit([*messages], batch)
    except Exception:
        messages += [None] * (PARTITIONS - len(messages))
        _writer(query, batch, 0, 0, steps).abort([*messages], batch)
        raise


def _writer(query: Query, batch: int, partition: int, attempt: int, at: Callable[[str], None]) -> StreamSink:
    """A writer as Spark makes one: anew for each task and each commit."""
    options = {
        "cluster": query.uri,
        "log": query.log,
        "inlineBytes": query.inline,
        "takeover": str(query.takeover).lower(),
    }
    TaskContext._setTaskContext(None)
    TaskContext(
        partitionId=partition,
        taskAttemptId=attempt,
        localProperties={QUERY_ID: f"query of {query.log}", BATCH_ID: str(batch)},
    )
    seams = Seams(at)
    if query.sink == "no mark":
        seams = replace(seams, rules=replace(COMMIT_RULES, is_replay=lambda *_: False))
    elif query.sink == "unsafe abort":
        seams = replace(seams, looks=False)
    given = Given(options, (*READ_OPTIONS, *WRITE_OPTIONS))
    return stream_sink(given, SCHEMA, overwrite=False, seams=seams)


def _rows(batch: int, partition: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [pa.array([value(batch, partition, row) for row in range(ROWS)])], schema=ARROW
    )


def _task(query: Query, batch: int, partition: int, steps: Steps) -> Message:
    """One task; Spark tries it again."""
    for attempt in range(2):
        try:
            return _writer(query, batch, partition, attempt, steps).write(iter([_rows(batch, partition)]))
        except RuntimeError:
            if attempt:
                raise
    raise AssertionError


def _naive(query: Query, batch: int, steps: Steps) -> None:
    """What a sink without a commit does: each task appends by itself."""
    for partition in range(PARTITIONS):

        async def append(client: Any, partition: int = partition) -> None:
            async with await client.log(query.log).open_writer() as writer:
                await writer.append_many([value(batch, partition, row).encode() for row in range(ROWS)])

        for attempt in range(2):
            try:
                steps("open")
                cluster.call(query.uri, append)
                steps("staged")
                break
            except RuntimeError:
                if attempt:
                    raise


def _lose_answers(uri: str, life: Life) -> None:
    """This process's metadata store does not answer some of its swaps of heads."""
    if not life.lost and not life.away:
        return
    store: Any = cluster.client_of(uri).store
    asked, lost = store.multi, dict(life.lost)
    counted = {"swaps": 0, "away": life.away}

    async def multi(ops: Sequence[Any]) -> Any:
        if not any(isinstance(op, Put) and op.key.startswith("logs/") for op in ops):
            return await asked(ops)
        if counted["away"]:
            counted["away"] -= 1
            raise StoreAwayError("away")
        number, counted["swaps"] = counted["swaps"], counted["swaps"] + 1
        how = lost.get(number)
        if how != "before":
            done = await asked(ops)
            if how is None:
                return done
        raise MetadataUnknownError("the answer is lost")

    store.multi = multi

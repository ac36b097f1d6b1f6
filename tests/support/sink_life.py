"""One life of a streaming query, in processes of its own that may be killed at any step; for sink_rounds.py.

The driver does what Spark's does with a sink, and nothing else: it has a worker stage each partition of each batch and
tries a failed task again, has a planner commit, or abort with the same messages when that raised, and notes a committed
batch in its checkpoint; a life begins behind the last batch that is noted there. Worker and planner are processes that
it forks, and forks again when they have died. The sink, the client, the bookies and the metadata store are real.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StringType, StructField, StructType

from quire.core.errors import MetadataUnknownError, QuireError
from quire.core.log.commit import COMMIT_RULES
from quire.metadata.store import Put, StoreAwayError
from quire.spark import cluster, staged
from quire.spark.options import SparkOptions
from quire.spark.read_options import READ_OPTIONS
from quire.spark.sink import BATCH_ID, QUERY_ID, StreamSink, TaskMessage
from quire.spark.staged import Failpoints
from quire.spark.write_options import WRITE_OPTIONS
from support.commit_world import WITHOUT_POSITIONS
from support.sink_faults import OUTSIDE, Fault, Life, process_of

SCHEMA = StructType([StructField("value", StringType())])
ARROW = to_arrow_schema(SCHEMA, timezone="UTC")
PARTITIONS = 2
ROWS = 5
ATTEMPTS = 2

# A leader that was killed places nothing: nobody should wait for it as long as for one that is slow.
staged.PLACED_WITHIN_MS = 300


class FailedError(Exception):
    """What was asked of a process of the query's failed, or the process is gone."""


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

    @property
    def id(self) -> str:
        """As its checkpoint has it."""
        return f"query of {self.log}"


def value(batch: int, partition: int, row: int) -> str:
    """The same rows for the same batch, whoever asks."""
    return f"{batch}/{partition}/{row}"


# --- faults -------------------------------------------------------------------------------------------------------


class Steps:
    """Counts the steps of one process, and lets a fault strike at one.

    Args:
        driver: the driver's process.
    """

    def __init__(self, query: Query, life: Life, driver: int) -> None:
        self._life, self._driver = life, driver
        self._struck = Path(query.folder) / "struck"
        self._reached: Counter[tuple[str, str, int]] = Counter()
        self.role = "driver"
        self.batch = 0

    def __call__(self, step: str) -> None:
        """A step is reached."""
        at = (self.role, step, self.batch)
        self._reached[at] += 1
        for number, fault in enumerate(self._life.faults):
            if (fault.role, fault.step, fault.batch) == at and self._reached[at] == fault.nth:
                self._strike(number, fault)

    def _strike(self, number: int, fault: Fault) -> None:
        """Once in a life, however often its processes are started again; a leader may have ended before."""
        outside = dict(self._life.pids)
        if fault.victim in OUTSIDE and fault.victim not in outside:
            return
        note = self._struck / f"{self._life.number}-{number}"
        try:
            note.touch(exist_ok=False)
        except FileExistsError:
            return
        if fault.how == "raise":
            raise RuntimeError(f"a fault at {fault.step}")
        if fault.how == "stop":
            os.kill(self._driver, signal.SIGSTOP)
            os.kill(os.getpid(), signal.SIGSTOP)
            return
        if fault.victim in OUTSIDE:
            os.kill(outside[fault.victim], signal.SIGKILL)
            return
        if fault.victim == "driver":
            os.kill(self._driver, signal.SIGKILL)
        if fault.victim == process_of(self.role) or not fault.lingers:
            os.kill(os.getpid(), signal.SIGKILL)


def _lose_answers(uri: str, life: Life) -> None:
    """This process's metadata store does not answer some of its compare-and-swaps of heads."""
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


# --- worker and planner -------------------------------------------------------------------------------------------


class Helper:
    """A process that works for the driver, forked when it is needed."""

    def __init__(self, query: Query, life: Life) -> None:
        self._query, self._life = query, life
        self._process: Any = None
        self._line: Any = None

    def ask(self, role: str, batch: int, *facts: Any) -> Any:
        """What the process answers.

        Raises:
            FailedError: it raised, or died.
        """
        if self._process is None:
            self._fork()
        try:
            self._line.send((role, batch, facts))
            answer = self._line.recv()
        except (EOFError, OSError):
            self._line.close()
            self._process.join()
            self._process = None
            raise FailedError from None
        if isinstance(answer, FailedError):
            raise answer
        return answer

    def _fork(self) -> None:
        processes = multiprocessing.get_context("fork")
        self._line, theirs = processes.Pipe()
        self._process = processes.Process(target=_help, args=(self._query, self._life, theirs, self._line))
        self._process.start()
        (Path(self._query.folder) / "helpers" / str(self._process.pid)).touch()
        theirs.close()

    def end(self) -> None:
        """Nothing more will be asked."""
        if self._process is not None:
            with contextlib.suppress(OSError):
                self._line.send(None)  # the other helper may hold this line open as well
            self._process.join()


def _help(query: Query, life: Life, line: Any, drivers: Any) -> None:
    """Answer what the driver asks, until it asks for nothing more or is gone."""
    drivers.close()
    steps = Steps(query, life, os.getppid())
    _lose_answers(query.uri, life)
    work = _NAIVE if query.sink == "naive" else _SHIPPED
    with contextlib.suppress(EOFError, OSError):
        while (asked := line.recv()) is not None:
            steps.role, steps.batch, facts = asked
            try:
                answer = work[steps.role](query, steps, *facts)
            except (QuireError, RuntimeError) as error:
                answer = FailedError(f"{steps.role}: {type(error).__name__}: {error}")
            line.send(answer)
    os._exit(0)


def _stage(query: Query, steps: Steps, partition: int, attempt: int) -> TaskMessage:
    rows = pa.array([value(steps.batch, partition, row) for row in range(ROWS)])
    batch = pa.RecordBatch.from_arrays([rows], schema=ARROW)
    return _writer(query, steps, partition, attempt).write(iter([batch]))


def _commit(query: Query, steps: Steps, messages: list[TaskMessage | None]) -> None:
    _writer(query, steps).commit([*messages], steps.batch)


def _abort(query: Query, steps: Steps, messages: list[TaskMessage | None]) -> None:
    _writer(query, steps).abort([*messages], steps.batch)


def _writer(query: Query, steps: Steps, partition: int = 0, attempt: int = 0) -> StreamSink:
    """A writer as Spark makes one: anew for each task and each commit."""
    options = {
        "cluster": query.uri,
        "log": query.log,
        "inlineBytes": query.inline,
        "takeover": str(query.takeover).lower(),
        "checkpointLocation": query.folder,
    }
    TaskContext._setTaskContext(None)
    TaskContext(
        partitionId=partition,
        taskAttemptId=attempt,
        localProperties={QUERY_ID: query.id, BATCH_ID: str(steps.batch)},
    )
    failpoints = Failpoints(steps)
    if query.sink == "no position":
        failpoints = replace(failpoints, rules=replace(COMMIT_RULES, positions=WITHOUT_POSITIONS))
    elif query.sink == "unsafe abort":
        failpoints = replace(failpoints, looks=False)
    given = SparkOptions(options, (*READ_OPTIONS, *WRITE_OPTIONS))
    return StreamSink(given, SCHEMA, overwrite=False, failpoints=failpoints)


def _append(query: Query, steps: Steps, partition: int, attempt: int) -> None:
    """What a sink without a commit does: each task appends by itself."""
    del attempt

    async def append(client: Any) -> None:
        async with await client.log(query.log).open_writer() as writer:
            await writer.append_many([value(steps.batch, partition, row).encode() for row in range(ROWS)])

    steps("open")
    cluster.call(query.uri, append)
    steps("staged")


def _nothing(query: Query, steps: Steps, messages: object) -> None:
    del query, steps, messages


_SHIPPED: dict[str, Any] = {"worker": _stage, "commit": _commit, "abort": _abort}
_NAIVE: dict[str, Any] = {"worker": _append, "commit": _nothing, "abort": _nothing}


# --- the driver ---------------------------------------------------------------------------------------------------


def live(query: Query, life: Life) -> None:
    """Run batches until all are noted, or the life ends. Exit code 0: all are."""
    worker, planner = Helper(query, life), Helper(query, life)
    steps = Steps(query, life, os.getpid())
    notes = Path(query.folder) / "commits"
    _write(Path(query.folder) / "metadata", json.dumps({"id": query.id}))
    try:
        begin = 1 + max((int(path.name) for path in notes.iterdir()), default=-1)
        for steps.batch in range(begin, query.batches):
            # Spark notes the end of a batch's input before it runs the batch, and does not change it at a replay.
            _write(notes.with_name("offsets") / f"{steps.batch}", f"v1\n{{}}\n{steps.batch + 1}")
            _batch(steps.batch, worker, planner)
            steps("noting")
            (notes / str(steps.batch)).touch()
            steps("noted")
    except (FailedError, RuntimeError) as error:
        (Path(query.folder) / f"failed-{life.number}").write_text(str(error))
        sys.exit(1)  # as a query that ended with an error
    finally:
        worker.end()
        planner.end()


def _write(path: Path, text: str) -> None:
    """Write a file of the checkpoint as Spark does: it is whole or not there."""
    if not path.exists():
        path.with_suffix(".new").write_text(text)
        path.with_suffix(".new").replace(path)


def _batch(batch: int, worker: Helper, planner: Helper) -> None:
    messages: list[TaskMessage | None] = []
    try:
        for partition in range(PARTITIONS):
            messages.append(_task(worker, batch, partition))
        planner.ask("commit", batch, messages)
    except FailedError:
        messages += [None] * (PARTITIONS - len(messages))
        with contextlib.suppress(FailedError):
            planner.ask("abort", batch, messages)
        raise


def _task(worker: Helper, batch: int, partition: int) -> Any:
    """One task; Spark tries it again."""
    for attempt in range(ATTEMPTS):
        try:
            return worker.ask("worker", batch, partition, attempt)
        except FailedError:
            if attempt == ATTEMPTS - 1:
                raise
    raise AssertionError

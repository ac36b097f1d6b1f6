"""Writers and verifiers in Spark's executors, from one seed: what was acknowledged is there, once, in order, as it was.

    quire spark run soak --cluster URI --out DIR [--writers 4] [--records 100000] [--rounds 5] [--seed 1]

Each writer has a log of its own, and record n of a writer is made of the seed, the writer and n, so any verifier can
make it again. A round is: all writers append their next records; when these are acknowledged, verifiers, elsewhere, read
them back from the bookies and compare. After the last round everything is read once more. A writer that is stopped, or
whose bookies are, begins again where its log ends. So the job may run while machines are killed, and finds what that broke.

Source: docs/spark-jobs.md, "Soak".
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from pyspark.sql import SparkSession
from typer import Option

from quire.core.errors import AlreadyExistsError, QuireError
from quire.spark import cluster
from quire.spark.jobs import command, units
from quire.spark.jobs.units import Row as Fields
from quire.spark.options import SparkUseError

if TYPE_CHECKING:
    from quire.log.client import QuireClient
    from quire.log.log import Log
    from quire.log.records import Record

WRITE, VERIFY, AGAIN = "write", "verify", "verify again"
CHUNK_BYTES = 256 << 10
ATTEMPTS_MAX = 40
"""How often a writer begins again before its task fails: some ten seconds of a cluster that takes no writer."""
_PAUSE_S = 0.25
SCHEMA = (
    "step string, writer int, round int, first_offset bigint, next_offset bigint, records bigint, bytes bigint, "
    "seconds double, slowest_ms double, reopened int, missing bigint, duplicates bigint, mismatched bigint, "
    "misplaced bigint, error string"
)
VERDICTS = ("missing", "duplicates", "mismatched", "misplaced")


@dataclass(frozen=True, slots=True)
class SoakWriter:
    """Who writes what: enough to make each record again.

    Attributes:
        seed: of the whole soak.
        number: which writer.
        value_bytes: size of a value, on average.
    """

    seed: int
    number: int
    value_bytes: int

    def key(self, n: int) -> bytes:
        """The key of record n: it names the record."""
        return b"%d/%d" % (self.number, n)

    def value(self, n: int) -> bytes:
        """The value of record n: half to one and a half times the size that is asked for."""
        stream = hashlib.shake_128(b"%d/%d/%d" % (self.seed, self.number, n))
        size = self.value_bytes // 2 + int.from_bytes(stream.digest(4)) % (self.value_bytes + 1)
        return stream.digest(size)

    def number_of(self, key: bytes | None) -> int | None:
        """Which record a key names; None for a key of another writer, or of none."""
        writer, _, n = (key or b"").partition(b"/")
        return int(n) if writer == b"%d" % self.number and n.isdigit() else None


@dataclass(frozen=True, slots=True)
class SoakUnit:
    """A stretch of one writer's records, to be written or to be read back."""

    uri: str
    log: str
    writer: SoakWriter
    step: str
    round: int
    first: int
    stop: int

    @property
    def stretch(self) -> tuple[int, int]:
        """The writer's number and the first record: of all units about the same records."""
        return self.writer.number, self.first

    @property
    def lane(self) -> str:
        """All of them run at once."""
        return self.step

    @property
    def name(self) -> str:
        """Seed, writer, step and stretch."""
        return f"soak {self.writer.seed} writer {self.writer.number} {self.step} {self.first} to {self.stop}"

    @property
    def size(self) -> int:
        """Bytes of values, about."""
        return (self.stop - self.first) * self.writer.value_bytes


@dataclass(frozen=True, slots=True)
class SoakPlan:
    """What a soak writes and reads.

    Attributes:
        rounds: units that run at once, in the order of time.
        records: of each writer, all rounds together.
    """

    uri: str
    seed: int
    logs: tuple[str, ...]
    rounds: tuple[tuple[SoakUnit, ...], ...]
    records: int


@dataclass(frozen=True, slots=True)
class SoakReport(command.Report):
    """What a soak found.

    Attributes:
        written: records that were written, earlier runs with this table included; `read`: read back and compared.
        write_rate: records a second, all writers together, while they wrote; `read_rate` likewise.
        slowest_ms: the longest that a chunk of records waited for its acknowledgement.
        reopened: how often a writer had to begin again.
        missing: records that were acknowledged and are not there; `duplicates`: there more than once; `mismatched`: with
            another value; `misplaced`: at another offset than their number.
        failed: units that ended with an error.
        per_writer: the same figures by writer.
    """

    seed: int
    table: str
    written: int
    read: int
    bytes: int
    write_rate: float
    read_rate: float
    slowest_ms: float
    reopened: int
    missing: int
    duplicates: int
    mismatched: int
    misplaced: int
    failed: list[str]
    seconds: float
    per_writer: list[dict[str, Any]]

    @property
    def ok(self) -> bool:
        """Whether everything that was acknowledged is there, once, in its place."""
        return not (self.missing or self.duplicates or self.mismatched or self.misplaced or self.failed)


def plan(
    uri: str,
    *,
    seed: int = 1,
    writers: int = 4,
    records: int = 100_000,
    rounds: int = 5,
    value_bytes: int = 100,
    prefix: str = "soak",
) -> SoakPlan:
    """The units of a soak.

    Args:
        uri: the cluster.
        seed: what all records are made of.
        writers: how many; each has a log `PREFIX/SEED-NUMBER`.
        records: of each writer in each round.
        rounds: how many.
        value_bytes: size of a value, on average.
        prefix: of the logs' names.

    Raises:
        SparkUseError: a figure below 1.
    """
    if min(writers, records, rounds, value_bytes) < 1:
        raise SparkUseError("quire: a soak needs at least one writer, record, round and byte.")
    who = [SoakWriter(seed, number, value_bytes) for number in range(writers)]

    def units_of(step: str, number: int) -> tuple[SoakUnit, ...]:
        first = number * records
        return tuple(
            SoakUnit(uri, f"{prefix}/{seed}-{each.number}", each, step, number, first, first + records)
            for each in who
        )

    made = [units_of(step, number) for number in range(rounds) for step in (WRITE, VERIFY)]
    made += [units_of(AGAIN, number) for number in range(rounds)] if rounds > 1 else []
    logs = tuple(f"{prefix}/{seed}-{each.number}" for each in who)
    return SoakPlan(uri, seed, logs, tuple(made), records * rounds)


def run(
    spark: SparkSession,
    work: SoakPlan,
    table: str,
    *,
    delete: bool = False,
    progress: units.Progress | None = None,
) -> SoakReport:
    """Write and verify, round by round; units that the table has are not done again.

    Args:
        spark: a session; its executors write and verify.
        work: what to do.
        table: directory of the results (Parquet), a row for each unit.
        delete: delete the logs when nothing was found.
        progress: called with how many units are done.
    """
    began = time.monotonic()
    before = units.done(spark, table)
    failed: list[Fields] = []
    finished, total = 0, sum(map(len, work.rounds))
    for group in work.rounds:
        # Of a stretch whose writer failed it is unknown what was acknowledged.
        unwritten = {(row["writer"], row["first_offset"]) for row in failed if row["step"] == WRITE}
        left = [
            unit
            for unit in group
            if unit.name not in before and (unit.step == WRITE or unit.stretch not in unwritten)
        ]
        if left:
            found = [row.asDict() for row in units.run_round(spark, left, _work, SCHEMA).collect()]
            # What ended with an error is done again by the next run.
            failed += [row for row in found if row["error"]]
            good = [row for row in found if not row["error"]]
            units.append(spark, table, good, SCHEMA)
        finished += len(group)
        if progress is not None:
            progress(finished, total)
    names = {unit.name for group in work.rounds for unit in group}
    rows = [row.asDict() for row in units.results(spark, table, SCHEMA).collect() if row["unit"] in names]
    report = _report(work, table, rows + failed, began)
    if delete and report.ok:
        for log in work.logs:
            cluster.call(work.uri, lambda client, log: client.log(log).delete(), log)
    return report


def _report(work: SoakPlan, table: str, rows: list[Fields], began: float) -> SoakReport:
    written = [row for row in rows if row["step"] == WRITE]
    read = [row for row in rows if row["step"] != WRITE]
    return SoakReport(
        seed=work.seed,
        table=table,
        written=_sum(written, "records"),
        read=_sum(read, "records"),
        bytes=_sum(written, "bytes"),
        write_rate=_rate(written),
        read_rate=_rate(read),
        slowest_ms=max((row["slowest_ms"] or 0.0 for row in written), default=0.0),
        reopened=_sum(written, "reopened"),
        **{verdict: _sum(read, verdict) for verdict in VERDICTS},
        failed=[row["error"] for row in rows if row["error"]],
        seconds=round(time.monotonic() - began, 3),
        per_writer=[_of_writer(number, rows) for number in range(len(work.logs))],
    )


def _rate(rows: list[Fields]) -> float:
    """Records a second of tasks that ran at once, round by round: a round takes as long as its longest task."""
    longest: dict[tuple[str, int], float] = defaultdict(float)
    for row in rows:
        group = row["step"], row["round"]
        longest[group] = max(longest[group], row["seconds"])
    records: int = _sum(rows, "records")
    return round(records / max(sum(longest.values()), 1e-9), 1)


def _of_writer(number: int, rows: list[Fields]) -> dict[str, Any]:
    mine = [row for row in rows if row["writer"] == number]
    written = [row for row in mine if row["step"] == WRITE]
    read = [row for row in mine if row["step"] != WRITE]
    return {
        "writer": number,
        "written": _sum(written, "records"),
        "written_per_s": round(_sum(written, "records") / max(_sum(written, "seconds"), 1e-9), 1),
        "read": _sum(read, "records"),
        "read_per_s": round(_sum(read, "records") / max(_sum(read, "seconds"), 1e-9), 1),
        **{verdict: _sum(read, verdict) for verdict in VERDICTS},
    }


def _sum(rows: list[Fields], name: str) -> Any:
    return sum(row[name] or 0 for row in rows)


# --- in the tasks ----------------------------------------------------------------------------------------------------


def _work(unit: SoakUnit) -> Iterator[Fields]:
    began = time.monotonic()
    facts: Fields = {
        "step": unit.step,
        "writer": unit.writer.number,
        "round": unit.round,
        "first_offset": unit.first,
        "next_offset": unit.stop,
    }
    try:
        facts |= cluster.call(unit.uri, _write if unit.step == WRITE else verify, unit)
    except QuireError as error:
        facts["error"] = f"{unit.name}: {error}"  # not "missing": without a read that is unknown
    yield facts | {"seconds": time.monotonic() - began}


async def _write(client: QuireClient, unit: SoakUnit) -> Fields:
    """Append what is not in the log yet, up to the unit's end."""
    log = client.log(unit.log)
    with contextlib.suppress(AlreadyExistsError):
        if not await log.exists():
            await log.create()
    facts: Fields = {"records": 0, "bytes": 0, "slowest_ms": 0.0, "reopened": 0}
    while True:
        try:
            await _append(log, unit, facts)
        except QuireError:
            # The next opening of the log settles the records under way.
            facts["reopened"] += 1
            if facts["reopened"] > ATTEMPTS_MAX:
                raise
            await asyncio.sleep(_PAUSE_S)
        else:
            return facts


async def _append(log: Log, unit: SoakUnit, facts: Fields) -> None:
    writer = unit.writer
    step = max(1, CHUNK_BYTES // writer.value_bytes)
    async with await log.open_writer() as sink:
        for first in range(sink.end_offset, unit.stop, step):
            numbers = range(first, min(first + step, unit.stop))
            values = [writer.value(n) for n in numbers]
            began = time.monotonic()
            await sink.append_many(values, keys=[writer.key(n) for n in numbers])
            facts["slowest_ms"] = max(facts["slowest_ms"], (time.monotonic() - began) * 1000)
            facts["records"] += len(numbers)
            facts["bytes"] += sum(map(len, values))


async def verify(client: QuireClient, unit: SoakUnit) -> Fields:
    """Read a stretch back and compare it with what must have been written.

    Raises:
        QuireError: it cannot be read.
    """
    found = SoakVerdict(unit.writer)
    async for record in client.log(unit.log).read(unit.first, unit.stop):
        found.take(record)
    return found.facts(unit.first, unit.stop)


class SoakVerdict:
    """Records as they are read, against those that must be there."""

    def __init__(self, writer: SoakWriter) -> None:
        self._writer = writer
        self._seen: Counter[int] = Counter()
        self._records = self._bytes = self._mismatched = self._misplaced = 0

    def take(self, record: Record) -> None:
        """One more record."""
        self._records += 1
        self._bytes += len(record.value or b"")
        n = self._writer.number_of(record.key)
        if n is None:
            self._mismatched += 1
            return
        self._seen[n] += 1
        self._mismatched += record.value != self._writer.value(n)
        self._misplaced += n != record.offset

    def facts(self, first: int, stop: int) -> Fields:
        """What is wrong with the records from `first` up to, not including, `stop`."""
        return {
            "records": self._records,
            "bytes": self._bytes,
            "missing": sum(n not in self._seen for n in range(first, stop)),
            "duplicates": self._seen.total() - len(self._seen),
            "mismatched": self._mismatched,
            "misplaced": self._misplaced,
        }


# --- the command -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class SoakJob(command.UnitsJob, name="soak"):
    """Write from one seed, read everything back, and say what is missing."""

    seed: Annotated[int, Option(help="what the records are made of")] = 1
    writers: Annotated[int, Option(help="writers, each with its own log")] = 4
    records: Annotated[int, Option(help="of each writer in each round")] = 100_000
    rounds: Annotated[int, Option(help="how often all of them write")] = 5
    value_bytes: Annotated[int, Option(help="size of a value, about")] = 100
    prefix: Annotated[str, Option(help="of the logs' names")] = "soak"
    delete: Annotated[bool, Option("--delete", help="delete the logs when nothing was found")] = False

    def step(self, spark: SparkSession) -> command.Line:
        """One run of the command; the line that it prints."""
        work = plan(
            self.cluster,
            seed=self.seed,
            writers=self.writers,
            records=self.records,
            rounds=self.rounds,
            value_bytes=self.value_bytes,
            prefix=self.prefix,
        )
        rows = [
            {
                "step": group[0].step,
                "writers": len(group),
                "first_record": group[0].first,
                "next_record": group[0].stop,
                "bytes": sum(unit.size for unit in group),
            }
            for group in work.rounds
        ]
        facts = {"logs": list(work.logs), "records": work.records * len(work.logs)}
        return self.planned(
            rows,
            facts,
            lambda: run(spark, work, self.out, delete=self.delete, progress=self.progress).as_dict(),
        )


if __name__ == "__main__":
    raise SystemExit(command.main(SoakJob))

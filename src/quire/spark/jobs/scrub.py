"""Every stored copy looked at, by many machines: which are missing, damaged, over-replicated, or unlike the others.

    quire spark run scrub --cluster URI --out DIR [--log NAME | --ledger ID | --stream NAME] [--audit] [--mark] [--dry-run]

`--audit` compares only the bookies' own lists with the ledgers' records and reads no entry. No copy is changed; `--mark`
marks what is missing, damaged or in limbo, so that auto-recovery repairs it. An open ledger is looked at up to its last
decided fragment, and so is a stream. Copies are counted of all that is stored, a stream's no-ops too. What a bookie that does
not answer should hold is "unknown", never "missing". The table has a row for each window (a range of ids that is checked
at once) and stripe of a bookie, and one for each thing that is wrong; a run that was stopped goes on where it stopped.

Source: docs/spark-jobs.md, "Scrub and audit"; docs/decisions/026-torn-or-damaged.md.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, starmap
from math import ceil
from typing import TYPE_CHECKING, Annotated, Any

from pyspark.sql import Row, SparkSession
from pyspark.sql.functions import col, collect_set, count_distinct
from pyspark.sql.functions import sum as total
from typer import Option

from quire.autorecovery.marking import mark_findings
from quire.client.repairing.scrubbing import (
    IN_LIMBO,
    CopyVerdict,
    Finding,
    ReplicaCheck,
    WindowCheck,
    majority,
    windows,
)
from quire.core.errors import CorruptMetadataError, NoSuchLedgerError
from quire.core.ids import BookieId
from quire.core.ledger.metadata import LedgerMetadata, LedgerState
from quire.core.ledger.stripes import BookieStripes, bookie_stripes
from quire.core.log.list import ItemLocation
from quire.spark import cluster
from quire.spark.jobs import command, units
from quire.spark.jobs.scrub_rows import SCHEMA, row_of, still_true
from quire.spark.jobs.units import Row as Fields
from quire.spark.jobs.units import batched

if TYPE_CHECKING:
    from quire.log.client import QuireClient

UNIT_BYTES = 256 << 20
TASKS_PER_BOOKIE = 2
_WINDOWS_AT_ONCE = 4
_SHOWN = 20
_IS_MARKED = f"verdict IN ('missing', 'corrupt') OR detail = '{IN_LIMBO}'"
BAD = (CopyVerdict.MISSING, CopyVerdict.CORRUPT, CopyVerdict.UNLIKE)


@dataclass(frozen=True, slots=True)
class ScrubUnit:
    """Stripes of one bookie, for one task.

    Attributes:
        bookie: whose.
        pieces: (ledger's record, stripes) by ascending ledger and entry.
        audit: compare lists only.
        timeout_ms: how long a bookie may take for a response.
        size: payload bytes, about.
        mark: mark what is wrong for repair.
    """

    uri: str
    bookie: str
    pieces: tuple[tuple[LedgerMetadata, BookieStripes], ...]
    audit: bool
    timeout_ms: int
    size: int
    mark: bool = False

    @property
    def lane(self) -> str:
        """The bookie: it serves others besides."""
        return self.bookie

    @property
    def name(self) -> str:
        """Whose stripes, and from where to where."""
        (one, first), (other, last) = self.pieces[0], self.pieces[-1]
        what = ("audit" if self.audit else "scrub") + (" and mark" if self.mark else "")
        return f"{what} {self.bookie} {one.ledger_id}:{first.first} to {other.ledger_id}:{last.last}"


@dataclass(frozen=True, slots=True)
class ScrubPlan:
    """The entries that a scrub reads.

    Attributes:
        units: the work.
        ledgers: closed ledgers and streams that it covers.
        open_ledgers: ledgers and streams that are not closed, which it covers up to their last decided fragment.
        unread: those whose copies cannot be looked at, since their records cannot be read: the ledger, and why.
    """

    units: tuple[ScrubUnit, ...]
    ledgers: int
    open_ledgers: int
    unread: tuple[Fields, ...] = ()


@dataclass(frozen=True, slots=True)
class ScrubReport(command.Report):
    """What a scrub found on all copies.

    Attributes:
        ok: no copy is missing, corrupt or unlike the others, and every record could be read.
        unread: the ledgers whose records could not: no copy of them was looked at.
        copies: good copies of entries that were read; an audit reads none.
        bytes: their payload.
        found: entries by verdict; an entry counts for each bookie.
        worst: the first things that are wrong.
        marked: ledgers that were marked for repair.
        units: units of this run; `units_before` were done by an earlier one.
        seconds: of this run.
    """

    mode: str
    table: str
    ok: bool
    ledgers: int
    open_ledgers: int
    unread: list[Fields]
    copies: int
    bytes: int
    found: dict[str, int]
    worst: list[Fields]
    marked: int
    units: int
    units_before: int
    seconds: float


def plan(
    uri: str,
    *,
    logs: Sequence[str] = (),
    ledgers: Sequence[int] = (),
    streams: Sequence[str] = (),
    audit: bool = False,
    mark: bool = False,
    timeout_ms: int = 10_000,
    unit_bytes: int = UNIT_BYTES,
) -> ScrubPlan:
    """What there is to look at: stripes of what is decided of ledgers, by bookie, in units of about `unit_bytes`.

    Args:
        uri: the cluster.
        logs: only the ledgers of these logs.
        ledgers: only these ledgers (besides those of `logs`).
        streams: only these streams. Without any of the three, all ledgers and streams.
        audit: compare lists only.
        mark: mark what is wrong for repair.
        timeout_ms: how long a bookie may take for a response.
        unit_bytes: payload that a task reads.

    Raises:
        NoSuchLogError, NoSuchLedgerError, NoSuchStreamError: one that was named is not there.
    """
    records, unread = cluster.call(uri, _records, tuple(logs), tuple(ledgers), tuple(streams))
    closed = sum(record.state is LedgerState.CLOSED for record in records)
    found: list[ScrubUnit] = []
    by_bookie: dict[str, list[tuple[LedgerMetadata, BookieStripes]]] = {}
    for record in records:
        for part in bookie_stripes(record):
            by_bookie.setdefault(part.bookie, []).extend(
                (record, piece) for piece in _cut(record, part, unit_bytes)
            )
    for bookie, pieces in sorted(by_bookie.items()):
        group: list[tuple[LedgerMetadata, BookieStripes]] = []
        size = 0
        whole = sum(starmap(_size, pieces))
        # Units of one size: the last one of a bookie would be short, and a round is as long as its longest task.
        each = whole / ceil(whole / unit_bytes)
        for piece in pieces:
            more = _size(*piece)
            # An audit asks a bookie for a ledger's list once: all its stripes of the ledger belong to one unit.
            whole_ledgers = audit and group and group[-1][0].ledger_id == piece[0].ledger_id
            if group and size + more / 2 > each and not whole_ledgers:
                found.append(ScrubUnit(uri, bookie, tuple(group), audit, timeout_ms, size, mark))
                group, size = [], 0
            group.append(piece)
            size += more
        found.append(ScrubUnit(uri, bookie, tuple(group), audit, timeout_ms, size, mark))
    return ScrubPlan(tuple(found), closed, len(records) - closed, tuple(unread))


def run(
    spark: SparkSession, work: ScrubPlan, table: str, *, progress: units.Progress | None = None
) -> ScrubReport:
    """Look at everything that a plan names and is not in the table yet.

    Args:
        spark: a session; its executors read from the bookies.
        work: what to look at.
        table: directory of the results (Parquet); rows are appended.
        progress: called with how many units are done.
    """
    began = time.monotonic()
    before = units.done(spark, table)
    left = [unit for unit in work.units if unit.name not in before]
    finished = len(work.units) - len(left)
    for group in units.rounds(left, TASKS_PER_BOOKIE):
        units.run_round(spark, group, _check, SCHEMA).write.mode("append").parquet(table)
        finished += len(group)
        if progress is not None:
            progress(finished, len(work.units))
    names = [unit.name for unit in work.units]
    if work.units and not work.units[0].audit:
        names += _compare(spark, work, table, before)
    found: dict[str, int] = {}
    copies = size = marked = 0
    worst: list[Row] = []
    if work.units:
        rows = units.results(spark, table, SCHEMA).where(col("unit").isin(names))
        sums = (
            rows.groupBy("verdict")
            .agg(total("entries").alias("entries"), total("bytes").alias("bytes"))
            .collect()
        )
        found = {row["verdict"]: row["entries"] for row in sums}
        size = sum(row["bytes"] or 0 for row in sums)
        copies = found.pop(CopyVerdict.OK, 0)
        if found and work.units[0].mark:
            marked = rows.where(_IS_MARKED).select("ledger").distinct().count()
        if found:
            worst = (
                rows.where(col("verdict") != "ok")
                .select("ledger", "bookie", "first_entry", "last_entry", "verdict", "detail")
                .orderBy(col("verdict") == "extra", "ledger", "first_entry", "bookie")
                .limit(_SHOWN)
                .collect()
            )
    return ScrubReport(
        mode="audit" if work.units and work.units[0].audit else "scrub",
        table=table,
        ok=not work.unread and not any(found.get(verdict) for verdict in BAD),
        ledgers=work.ledgers,
        open_ledgers=work.open_ledgers,
        unread=list(work.unread),
        copies=copies,
        bytes=size,
        found=found,
        worst=[row.asDict() for row in worst],
        marked=marked,
        units=len(left),
        units_before=len(work.units) - len(left),
        seconds=round(time.monotonic() - began, 3),
    )


# --- in the tasks ----------------------------------------------------------------------------------------------------


def _check(unit: ScrubUnit) -> list[Fields]:
    return cluster.call(unit.uri, _check_unit, unit)


async def _check_unit(client: QuireClient, unit: ScrubUnit) -> list[Fields]:
    rows: list[Fields] = []
    for _, group in groupby(unit.pieces, key=lambda piece: piece[0].ledger_id):
        pieces = list(group)
        record, mine = pieces[0][0], [part for _, part in pieces]
        check = ReplicaCheck(client.bookies, record, unit.timeout_ms)
        found = await (_audit(check, mine) if unit.audit else _scrub(check, record, mine))
        if any(row["verdict"] != CopyVerdict.OK for row in found):
            found = await still_true(client, record, found)
            if unit.mark:
                await mark_findings(client, record.ledger_id, unit.bookie, _findings(found), "scrub")
        rows += [{"ledger": record.ledger_id, "bookie": unit.bookie, **row} for row in found]
    return rows


def _findings(rows: list[Fields]) -> list[Finding]:
    return [
        Finding(row["first_entry"], row["last_entry"], row["verdict"], row["detail"] or "")
        for row in rows
        if row["verdict"] != CopyVerdict.OK
    ]


async def _audit(check: ReplicaCheck, mine: list[BookieStripes]) -> list[Fields]:
    found = await check.audit(mine[0].bookie, mine)
    counted = {
        "first_entry": mine[0].first,
        "last_entry": mine[-1].last,
        "verdict": CopyVerdict.OK,
        "entries": 0,
    }
    return [counted, *(row_of(each, mine) for each in found)]


async def _scrub(check: ReplicaCheck, record: LedgerMetadata, mine: list[BookieStripes]) -> list[Fields]:
    under_way = asyncio.Semaphore(_WINDOWS_AT_ONCE)

    async def look(window: BookieStripes) -> WindowCheck:
        async with under_way:
            return await check.scrub(window)

    every = [window for part in mine for window in windows(record, part)]
    rows: list[Fields] = []
    for window, result in zip(every, await asyncio.gather(*map(look, every)), strict=True):
        rows += _rows(result)
        rows += [row_of(each, [window]) for each in result.findings]
    return rows


def _rows(result: WindowCheck) -> Iterator[Fields]:
    """A window's good copies: the counts once, a fingerprint for each stripe."""
    base = {"first_entry": result.first, "last_entry": result.last, "verdict": CopyVerdict.OK}
    yield base | {"entries": result.entries, "bytes": result.payload_bytes}
    for stripe, fingerprint in result.fingerprints.items():
        yield base | {"entries": 0, "bytes": 0, "class": stripe, "fingerprint": fingerprint}


# --- on the driver ---------------------------------------------------------------------------------------------------


async def _records(
    client: QuireClient, logs: tuple[str, ...], ledgers: tuple[int, ...], streams: tuple[str, ...]
) -> tuple[list[LedgerMetadata], list[Fields]]:
    """The records of what is to be looked at, and the ledgers whose records are damaged, by ascending id."""
    named = [*ledgers, *[int(await client.records.streams.find(name)) for name in streams]]
    wanted = list(named)
    for name in logs:
        items = (await client.log(name).describe()).items
        wanted += [item.ledger_id for item in items if item.location is not ItemLocation.ARCHIVE]
    if not logs and not named:
        wanted = [ledger_id async for ledger_id in client.records.ids()]
    found: list[LedgerMetadata] = []
    unread: list[Fields] = []
    for some in batched(dict.fromkeys(wanted), 64):
        answers = await asyncio.gather(*map(client.records.read, some), return_exceptions=True)
        for ledger_id, answer in zip(some, answers, strict=True):
            if isinstance(answer, NoSuchLedgerError) and ledger_id not in named:
                continue  # deleted between the list and now
            if isinstance(answer, CorruptMetadataError):
                unread.append({"ledger": int(ledger_id), "detail": answer.message})
            elif isinstance(answer, BaseException):
                raise answer
            else:
                found.append(answer[0])
    found.sort(key=lambda record: record.ledger_id)
    return found, sorted(unread, key=lambda each: int(each["ledger"]))


def _cut(record: LedgerMetadata, part: BookieStripes, unit_bytes: int) -> Iterator[BookieStripes]:
    """What a bookie should hold, in parts that a task reads, each of whole windows."""
    parts = list(windows(record, part))
    each = max(1, unit_bytes * len(parts) // max(1, _size(record, part)))
    for some in batched(parts, each):
        yield part.cut(some[0].first, some[-1].last)


def _size(record: LedgerMetadata, part: BookieStripes) -> int:
    """Payload bytes of a bookie's stripes, about."""
    count = (part.last - part.first + 1) * part.stripes.bit_count() / part.period
    return int(count * record.entry_bytes) + 1


def _compare(spark: SparkSession, work: ScrubPlan, table: str, before: set[str]) -> list[str]:
    """Where fingerprints of one window and stripe differ: which bookies' entries are unlike the others'.

    Returns:
        The names of the rows that say so, those of earlier runs included.
    """
    frame = units.results(spark, table, SCHEMA).where(col("fingerprint").isNotNull())
    differing: list[Row] = (
        frame.groupBy("ledger", "first_entry", "last_entry", "class")
        .agg(count_distinct("fingerprint").alias("different"), collect_set("bookie").alias("bookies"))
        .where("different > 1")
        .collect()
    )
    records = {record.ledger_id: record for unit in work.units for record, _ in unit.pieces}
    names: list[str] = []
    rows: list[Fields] = []
    for row in differing:
        record = records.get(row["ledger"])
        if record is None:
            continue
        first, last, stripe = row["first_entry"], row["last_entry"], row["class"]
        name = f"compare {record.ledger_id}:{first} to {last} stripe {stripe}"
        if name not in before:
            unit = work.units[0]
            found, whole = cluster.call(unit.uri, _unlike, record, first, last, stripe, unit.timeout_ms)
            name += "" if whole else ", cut off"  # a later run compares again
            rows += [{"unit": name, **each} for each in found]
        names.append(name)
    if rows:
        units.append(spark, table, rows, SCHEMA)
    return names


async def _unlike(
    client: QuireClient, record: LedgerMetadata, first: int, last: int, stripe: int, timeout_ms: int
) -> tuple[list[Fields], bool]:
    """The entries of a window that are unlike others, and whether all copies could be read for it."""
    check = ReplicaCheck(client.bookies, record, timeout_ms)
    by_entry: dict[int, dict[Any, int]] = {}
    short: list[BookieId] = []
    for part in bookie_stripes(record):
        if part.first <= first and part.last >= last and part.stripes >> stripe & 1:
            window = part.cut(first, last)
            contents = await check.contents(window)
            if len(contents) < window.count:
                short.append(part.bookie)
            for entry_id, content in contents.items():
                by_entry.setdefault(entry_id, {})[part.bookie] = content
    found = [
        (bookie, Finding(entry_id, entry_id, CopyVerdict.UNLIKE, f"of {len(contents)} copies"))
        for entry_id, contents in sorted(by_entry.items())
        for bookie in majority(contents)
    ]
    if not found:
        text = "its copies could not be read again to see which"
        found = [(bookie, Finding(first, last, CopyVerdict.UNLIKE, text)) for bookie in short]
    rows = [
        {"ledger": record.ledger_id, "bookie": bookie, **row_of(finding, ()), "entries": 1}
        for bookie, finding in found
    ]
    return await still_true(client, record, rows), not short


# --- the command -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ScrubJob(command.UnitsJob, name="scrub"):
    """Look at every stored copy and say what is wrong."""

    log: Annotated[list[str] | None, Option(metavar="NAME", help="only this log's ledgers, or those")] = None
    ledger: Annotated[list[int] | None, Option(metavar="ID", help="the same of a ledger")] = None
    stream: Annotated[list[str] | None, Option(metavar="NAME", help="the same of a stream")] = None
    audit: Annotated[bool, Option("--audit", help="compare the bookies' lists only; reads no entry")] = False
    mark: Annotated[bool, Option("--mark", help="mark what is wrong, for auto-recovery to repair")] = False
    timeout_ms: Annotated[int, Option(help="how long a bookie may take for an answer")] = 10_000

    def step(self, spark: SparkSession) -> command.Line:
        """One run of the command; the line that it prints."""
        work = plan(
            self.cluster,
            logs=self.log or (),
            ledgers=self.ledger or (),
            streams=self.stream or (),
            audit=self.audit,
            mark=self.mark,
            timeout_ms=self.timeout_ms,
        )
        facts = {
            "ledgers": work.ledgers,
            "open_ledgers": work.open_ledgers,
            "unread": list(work.unread),
            "units": len(work.units),
            "bytes": sum(unit.size for unit in work.units),
        }
        rows = units.table_of(work.units, lambda unit: unit.size)
        return self.planned(rows, facts, lambda: run(spark, work, self.out, progress=self.progress).as_dict())


if __name__ == "__main__":
    raise SystemExit(command.main(ScrubJob))

"""The ledgers that are marked for repair, as `quire cluster repairs` shows them."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Final

from quire.cli.console.output import counted, human_bytes, human_duration
from quire.cli.ledger.ledger_show import id_text
from quire.cli.ledger.repair_show import about, sum_known
from quire.core.errors import CorruptMetadataError, NoSuchLedgerError
from quire.core.repair.rate import seconds_left
from quire.core.repair.under_replicated_marks import WaitsFor
from quire.core.repair.work_queue import LIMITS, queued_mark

if TYPE_CHECKING:
    from quire.core.ledger.metadata import LedgerMetadata
    from quire.core.repair.under_replicated_marks import LedgerRepairs
    from quire.log.client import QuireClient
    from quire.metadata.records import AllRecords
    from quire.metadata.repairs import RepairStore, Stored
    from quire.wire.underreplication import MissingBookies

READS_MAX: Final = 64
WAITS: Final = {
    WaitsFor.ATTEMPT: "another attempt, after a pause",
    WaitsFor.WRITER: "its writer, or a bookie that could take the place: it is open",
    WaitsFor.GONE_BOOKIE: "a lost bookie, or `quire ledger repair --accept-loss`",
    WaitsFor.NOTHING: "nothing can be copied; a bookie that has the entries would end it",
    WaitsFor.BOOKIE: (
        f"a bookie that comes, or the next attempt within an hour: {LIMITS.attempts_max} attempts left something"
    ),
}
"""What a ledger waits for, after an attempt that left something."""


async def marked_ledgers(
    records: AllRecords, marks: RepairStore
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """A row for each marked ledger or stream, those with the fewest copies left first, and the totals."""
    from quire.autorecovery.marked_ledgers import every_mark

    missing = {ledger_id: stored async for ledger_id, stored in every_mark(marks.missing_page)}
    own = {ledger_id: stored async for ledger_id, stored in every_mark(marks.marks_page)}
    enabled, locks, workers = await marks.is_enabled(), await marks.locks(), await marks.workers()
    waiting = "its turn" if workers else "a worker: start `quire autorecovery`"
    if not enabled:
        waiting = "auto-recovery is switched off: `quire cluster autorecovery on`"
    # Nothing is attempted while auto-recovery is off or has no worker, whatever a ledger waited for before.
    waits = WAITS if enabled and workers else {**WAITS, WaitsFor.ATTEMPT: waiting}
    rows: list[dict[str, Any]] = []
    perhaps_streams: dict[int, tuple[dict[str, Any], bool]] = {}
    left, left_bytes = 0, 0
    ids = sorted({*missing, *own})
    for start in range(0, len(ids), READS_MAX):
        some = ids[start : start + READS_MAX]
        found = await asyncio.gather(*(_record(records, ledger_id) for ledger_id in some))
        for ledger_id, record in zip(some, found, strict=True):
            row, by_worker = _row(
                ledger_id, record, missing.get(ledger_id), own.get(ledger_id), locks, waiting, waits
            )
            rows.append(row)
            if record is None or record.terms is not None:  # one that cannot be read may be a stream's
                perhaps_streams[ledger_id] = row, record is not None
            left, left_bytes = left + by_worker, left_bytes + by_worker * (row["bytes"] or 0)
    for stream_id, name in (await records.streams.names_of(perhaps_streams)).items():
        row, is_stream = perhaps_streams[stream_id]
        if is_stream or name is not None:
            row["stream"] = name
    rows.sort(key=lambda row: (row["copies_left"], row["bytes"] or 0, row["ledger_id"]))
    rate, ledger_rate = sum(one.bytes_per_s for one in workers), sum(one.ledgers_per_hour for one in workers)
    size = sum_known(row["bytes"] for row in rows)
    estimate_s = seconds_left(left, left_bytes, ledger_rate, 0 if size is None else rate)
    facts = {
        "ledgers": len(rows),
        "bytes": size,
        "bytes_per_s": rate,
        "ledgers_per_hour": ledger_rate,
        "estimate_s": round(estimate_s, 1) if estimate_s is not None and enabled else None,
        "enabled": enabled,
        "workers": [one.name for one in workers],
    }
    return rows, facts


async def _record(records: AllRecords, ledger_id: int) -> LedgerMetadata | None:
    try:
        return (await records.read(ledger_id))[0]
    except (NoSuchLedgerError, CorruptMetadataError):
        return None


def _row(
    ledger_id: int,
    record: LedgerMetadata | None,
    missing: Stored[MissingBookies] | None,
    own: Stored[LedgerRepairs] | None,
    locks: dict[Any, str],
    waiting: str,
    waits: dict[WaitsFor, str],
) -> tuple[dict[str, Any], bool]:
    """A ledger's line, and whether a worker goes on with it by itself."""
    reasons, bookies, times = dict[str, None](), dict[Any, None](), list[int]()
    if missing is not None and missing.mark is not None:
        reasons["gone"] = None
        bookies |= dict.fromkeys(missing.mark.bookies)
        times += [missing.mark.marked_ms] if missing.mark.marked_ms else []
    attempts = None
    if own is not None and own.mark is not None:
        attempts = own.mark.attempts
        for mark in own.mark.marks:
            reasons[mark.reason.name.lower()] = bookies[mark.bookie] = None
            times.append(mark.seen_ms)
        times += [attempts.tried_ms] if attempts is not None else []
    flaws = [str(each.flaw) for each in (missing, own) if each is not None and each.flaw is not None]
    seen = queued_mark(0, record, [bookie for bookie in bookies if bookie])
    why = attempts.why if attempts is not None else ""
    by_worker = attempts is None or attempts.waits is WaitsFor.ATTEMPT
    if ledger_id in locks:
        waiting = f"{locks[ledger_id] or 'a worker'}, which repairs it now"
    elif flaws and not reasons:
        reasons["unreadable"], why = None, "; ".join(flaws)
        waiting, by_worker = "the program that wrote the mark: it cannot be read, and is kept", False
    elif record is None and attempts is None:
        why = "its record is not there, or cannot be read"
    elif attempts is not None:
        waiting = waits[attempts.waits]
    row = {
        "ledger_id": ledger_id,
        "reasons": list(reasons),
        "bookies": sorted(filter(None, bookies)),
        "age_s": max(0, int(time.time()) - min(times) // 1000) if times else None,
        "copies_left": seen.copies,
        "attempts": attempts.count if attempts is not None else 0,
        "bytes": seen.size if record is not None and record.length else None,
        "waits_for": waiting,
        "why": why,
    }
    return row, by_worker


def shown(row: dict[str, Any]) -> dict[str, Any]:
    """A row as people read it."""
    named = f" ({', '.join(row['bookies'])})" if row["bookies"] else ""
    streams = {row["ledger_id"]: row["stream"]} if "stream" in row else {}
    return row | {
        "ledger_id": id_text(row["ledger_id"], streams),
        "reasons": ", ".join(row["reasons"]) + named,
        "age": None if row["age_s"] is None else human_duration(row["age_s"]),
        "size": about(row["bytes"]).removeprefix("of "),
        "waits_for": f"{row['waits_for']}{f' ({why})' if (why := row['why']) else ''}",
    }


async def away_bookies(client: QuireClient, marks: RepairStore) -> dict[str, int | None]:
    """The bookies that are not registered, with the seconds that an auditor has seen them away; None: none has yet."""
    from quire.core.repair.audit_effects import CountedState

    away, counted_s = await client.bookies.away(), await marks.times(CountedState.AWAY)
    return {
        str(bookie): found.mark.seconds
        if (found := counted_s.get(bookie)) is not None and found.mark is not None
        else None
        for bookie in sorted(away)
    }


def away_lines(away: dict[str, int | None], delay_s: int) -> list[str]:
    """What is not looked at because a bookie is away, in sentences."""
    until = f"its ledgers are marked after {human_duration(delay_s)} (`quire cluster lost-delay`)"
    return [
        f"Not looked at: {bookie}, which is down{'' if seconds is None else f' for {human_duration(seconds)}'}; {until}."
        for bookie, seconds in away.items()
    ]


def totals(facts: dict[str, Any]) -> str:
    """The last line."""
    text = f"{counted(facts['ledgers'], 'ledger')} marked, {about(facts['bytes'])} to copy"
    if facts["estimate_s"] is not None:
        text += f", {human_duration(facts['estimate_s'])} at {facts['ledgers_per_hour']:,} ledgers an hour"
        text += f" and {human_bytes(facts['bytes_per_s'])}/s"
    return text + "."

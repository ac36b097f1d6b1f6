"""What is shown of missing copies and of repairs: plans, ends, and what each kind of under-replication needs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from quire.cli.console.failures import EXIT_ATTENTION, EXIT_FAILED
from quire.cli.console.output import Output, attributes, counted, human_bytes, human_duration
from quire.cli.ledger.ledger_show import id_text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from quire.autorecovery.repair import RepairTotals, UnderReplication
    from quire.core.ledger.notes import EntryRange
    from quire.core.repair.effects import RepairEnded
    from quire.core.repair.under_replication import MissingReason, UnderReplicatedLedger

MB: Final = 1_000_000
RATE_MAX: Final = 1_000_000
"""The highest limit in MB a second; no limit is none."""
LISTED_MAX: Final = 20
"""Most ledgers that cannot be repaired that are shown, with their reasons; JSON has all."""


def under_replication_rows(found: UnderReplication) -> list[dict[str, Any]]:
    """A row for each reason and number of copies left, the fewest copies first."""
    rows: dict[tuple[int, MissingReason], dict[str, Any]] = {}
    for ledger_id, one in found.ledgers.items():
        for kind, entries in one.entries.items():
            row = rows.setdefault(
                (kind.copies_left, kind.reason),
                {"entries": 0, "bytes": 0, "of": set(), "bookies": set()},
            )
            row["entries"] += entries
            row["bytes"] += entries * one.entry_bytes
            row["of"].add(ledger_id)
            row["bookies"] |= {kind.bookie} - {""}
    return [
        {
            "reason": reason.value,
            "copies_left": copies,
            "entries": row["entries"],
            "bytes": row["bytes"],
            "ledgers": len(row["of"]),
            "streams": {str(one): found.streams[one] for one in sorted(row["of"] & found.streams.keys())},
            "bookies": sorted(row["bookies"]),
            "needs": _needs(reason, sorted(row["bookies"])),
        }
        for (copies, reason), row in sorted(rows.items())
    ]


def _needs(reason: MissingReason, bookies: list[str]) -> str:
    from quire.core.repair.under_replication import MissingReason

    match reason:
        case MissingReason.GONE:
            named = " ".join(f"--bookie {bookie}" for bookie in bookies[:3])
            return f"start {', '.join(bookies[:3])} again, or `quire cluster repair {named}`"
        case MissingReason.LOST:
            return "nothing can be copied: every bookie says that it has none, or has it damaged"
        case MissingReason.GONE_ONLY:
            return "start the bookies again; `quire ledger repair --accept-loss` goes on without the entries"
        case MissingReason.NO_RESPONSE:
            return "bookies that did not respond: `quire cluster bookies`"
    return "`quire cluster repair`"


def shown(row: dict[str, Any]) -> dict[str, Any]:
    """A row of under-replication as people read it."""
    return row | {"entries": f"{row['entries']:,}", "size": f"about {human_bytes(row['bytes'])}"}


# --- plans ----------------------------------------------------------------------------------------------------------


def show_plan(out: Output, found: UnderReplication, rate: float | None) -> None:
    """Print what is to be repaired."""
    ledgers = len(found.to_repair)
    text = (
        f"Plan: {counted(ledgers, 'ledger')} of {found.looked_at:,} to repair, {counted(found.entries, 'entry')} to copy, "
        f"about {human_bytes(found.bytes)}"
    )
    if rate is not None and found.bytes:
        text += f", {human_duration(found.bytes / (rate * MB))} at {rate:g} MB/s"
    facts = {
        "plan": True,
        "looked_at": found.looked_at,
        "ledgers": ledgers,
        **attributes(found, "entries bytes"),
        "debt": under_replication_rows(found),
        "blocked": {str(ledger): error.message for ledger, error in found.blocked.items()},
    }
    out.result(facts, text + ".")
    note_named(out, found)


def note_named(out: Output, found: UnderReplication) -> None:
    """Name the streams among the ledgers that lack copies, and the ledgers that could not be looked at."""
    named = [id_text(one, found.streams) for one in sorted(found.streams.keys() & found.ledgers.keys())]
    if named and not out.as_json:
        more = f" and {len(named) - LISTED_MAX:,} more: --json lists all" * (len(named) > LISTED_MAX)
        out.note(f"Streams among these ledgers: {', '.join(named[:LISTED_MAX])}{more}.")
    for ledger_id, error in list(found.blocked.items())[:LISTED_MAX]:
        which = f"{id_text(ledger_id, found.streams)}: " if ledger_id in found.streams else ""
        out.note(f"not looked at: {which}{error.message}")
    if len(found.blocked) > LISTED_MAX:
        out.note(f"{len(found.blocked) - LISTED_MAX:,} more could not be looked at: --json lists all")


def show_plan_of_one(out: Output, ledger_id: int, lacking: UnderReplicatedLedger | None) -> int:
    """Print what one ledger lacks; returns the exit code."""
    if lacking is None:
        out.result(
            {"ledger_id": ledger_id, "outcome": "whole", "entries": 0},
            f"Ledger {ledger_id}: no copy is missing.",
        )
        return 0
    facts: dict[str, Any] = {
        "ledger_id": ledger_id,
        "plan": True,
        "entries": lacking.copyable,
        "bytes": lacking.copyable * lacking.entry_bytes,
        "debt": [
            {
                "reason": kind.reason.value,
                "copies_left": kind.copies_left,
                "bookie": kind.bookie,
                "entries": count,
            }
            for kind, count in lacking.entries.items()
        ],
        "gone": lacking.lost_bookies,
        "limbo": lacking.limbo,
        "undecided": lacking.undecided,
        "silent": {bookie: answer.name.lower() for bookie, answer in lacking.silent.items()},
        **_ranges_of(lacking),
    }
    size = human_bytes(lacking.copyable * lacking.entry_bytes)
    lines = [f"Ledger {ledger_id}: {counted(lacking.copyable, 'entry')} to copy, about {size}."]
    lines += [
        f"  {kind.bookie} ({kind.reason.value}): {counted(count, 'entry')}, {counted(kind.copies_left, 'copy', 'copies')} left"
        for kind, count in lacking.entries.items()
        if kind.bookie
    ]
    lines += [
        f"  {bookie} did not list its entries: {answer.name}" for bookie, answer in lacking.silent.items()
    ]
    lines += [f"  {bookie} is in limbo" for bookie in lacking.limbo]
    lines += [*_loss_lines(ledger_id, lacking), *_undecided_lines(ledger_id, lacking.undecided)]
    out.result(facts, *lines)
    return 0


# --- ends -----------------------------------------------------------------------------------------------------------


def show_end(out: Output, ledger_id: int, totals: RepairTotals) -> int:
    """Print how the repair of one ledger ended; returns the exit code."""
    ended = totals.ended.get(ledger_id)
    if ended is None:
        out.result({"ledger_id": ledger_id, "outcome": "deleted"}, f"Ledger {ledger_id} was deleted.")
        return 0
    report = ended.report
    facts = {
        "ledger_id": ledger_id,
        "outcome": ended.outcome.value,
        **attributes(totals, "entries bytes"),
        "replaced": [list(each) for each in report.replaced],
        **attributes(report, "cleared left refused undecided stopped"),
        **_ranges_of(report),
    }
    out.result(facts, *_end_lines(ledger_id, ended, totals))
    return _code_of(ended)


def _end_lines(ledger_id: int, ended: RepairEnded, totals: RepairTotals) -> list[str]:
    """How a repair ended, in sentences."""
    report = ended.report
    lines = [
        f"Ledger {ledger_id} is {ended.outcome.value}: {counted(totals.entries, 'entry')} copied, {human_bytes(totals.bytes)}."
    ]
    lines += [
        f"  {new} took the place of {old} from entry {first:,} on" for first, old, new in report.replaced
    ]
    lines += [f"  {bookie} is no longer in limbo" for bookie in report.cleared]
    lines += [f"  {bookie}: {why}" for bookie, why in report.left.items()]
    if report.stopped:
        lines.append(f"  it stopped early: {report.stopped}")
    return [*lines, *_loss_lines(ledger_id, report), *_undecided_lines(ledger_id, report.undecided)]


def _undecided_lines(ledger_id: int, bookies: Iterable[str]) -> list[str]:
    return [
        f"  {bookie} is lost and may still be written to: the ledger's writer, or `quire ledger recover {ledger_id}`, takes it out"
        for bookie in bookies
    ]


def _loss_lines(ledger_id: int, what: Any) -> list[str]:
    """What cannot be copied, in sentences; the lines of `--accept-loss` are written as its file takes them."""
    lines = [f"  {_entries_in(each)} lost" for each in what.lost]
    lines += [f"  {_entries_in(each)} not found yet: a bookie did not respond" for each in what.unanswered]
    if what.gone_only:
        lines.append("  only lost bookies may have these (--accept-loss takes a file with these lines):")
        lines += [f"{ledger_id} {each.first}..{each.last}" for each in what.gone_only]
    return lines


def _entries_in(entries: EntryRange) -> str:
    """A range with its verb; of some stripes of a striped ledger, with how many entries that are."""
    size = entries.size()
    of = "" if size == entries.last - entries.first + 1 else f" ({counted(size, 'entry')} of these)"
    return f"entries {entries.first:,}..{entries.last:,}{of} are"


def _ranges_of(what: Any) -> dict[str, list[dict[str, int]]]:
    return {
        name: [{"first": each.first, "last": each.last, "entries": each.size()} for each in ranges]
        for name, ranges in (("lost", what.lost), ("gone_only", what.gone_only), ("unheard", what.unanswered))
    }


def show_totals(out: Output, found: UnderReplication, totals: RepairTotals) -> int:
    """Print how the repair of a cluster ended; returns the exit code."""
    outcomes = sorted(end.outcome.value for end in totals.ended.values())
    counts = {name: outcomes.count(name) for name in dict.fromkeys(outcomes)}
    left = {str(ledger): "; ".join(_why_left(totals, ledger)) for ledger in totals.left}
    left |= {str(ledger): error.message for ledger, error in found.blocked.items()}
    facts = {
        "ledgers": len(totals.ended),
        **attributes(totals, "entries bytes"),
        "outcomes": counts,
        "left": left,
        "lost": _entries_of(end.report.lost for end in totals.ended.values()),
        "gone_only": _entries_of(end.report.gone_only for end in totals.ended.values()),
        "seconds": round(totals.seconds, 3),
    }
    ends = ", ".join(f"{number:,} {name}" for name, number in counts.items()) or "none to repair"
    lines = [f"Ledgers: {ends}. {counted(totals.entries, 'entry')} copied, {human_bytes(totals.bytes)}."]
    lines += [
        f"  ledger {id_text(int(ledger), found.streams)}: {why}"
        for ledger, why in list(left.items())[:LISTED_MAX]
    ]
    if len(left) > LISTED_MAX:
        lines.append(f"  {len(left) - LISTED_MAX:,} more: --json lists all")
    for name, what in (("lost", "are lost"), ("gone_only", "may be on lost bookies only")):
        if facts[name]:
            lines.append(
                f"  {counted(int(str(facts[name])), 'entry')} {what}: `quire cluster under-replication`"
            )
    out.result(facts, *lines)
    if left:
        return EXIT_FAILED
    return max((_code_of(end) for end in totals.ended.values()), default=0)


def _why_left(totals: RepairTotals, ledger_id: int) -> list[str]:
    if ledger_id in totals.failed:
        return [totals.failed[ledger_id].message]
    report = totals.ended[ledger_id].report
    said = [f"{bookie}: {why}" for bookie, why in (report.left or report.refused).items()]
    if report.stopped:
        said.append(report.stopped)
    return said or ["a bookie did not respond"]


def _entries_of(ranges: Iterable[tuple[EntryRange, ...]]) -> int:
    return sum(each.size() for some in ranges for each in some)


def _code_of(ended: RepairEnded) -> int:
    from quire.core.repair.effects import RepairOutcome

    return {RepairOutcome.INCOMPLETE: EXIT_FAILED, RepairOutcome.QUIET: EXIT_ATTENTION}.get(ended.outcome, 0)

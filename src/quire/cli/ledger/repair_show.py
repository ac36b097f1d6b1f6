"""What is shown of missing copies and of repairs: plans, ends, and what each kind of under-replication needs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from quire.cli.console.failures import EXIT_ATTENTION, code_of_copies, worst
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
NOT_LOOKED_AT: Final = "not looked at"
LISTED_MAX: Final = 20
"""Most ledgers that cannot be repaired that are shown, with their reasons; JSON has all."""


def under_replication_rows(found: UnderReplication) -> list[dict[str, Any]]:
    """A row for each reason and number of copies left, the fewest copies first; then what was not looked at.

    `bytes` is null where it is not known of some ledger.
    """
    rows: dict[tuple[int, MissingReason], dict[str, Any]] = {}
    for ledger_id, one in found.ledgers.items():
        for kind, entries in one.entries.items():
            row = rows.setdefault(
                (kind.copies_left, kind.reason),
                {"entries": 0, "bytes": 0, "of": set(), "bookies": set()},
            )
            row["entries"] += entries
            row["bytes"] = sum_known((row["bytes"], bytes_of(one, entries)))
            row["of"].add(ledger_id)
            row["bookies"] |= {kind.bookie} - {""}
    missing = [
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
    return [*missing, *_not_looked_at(found)]


def _not_looked_at(found: UnderReplication) -> list[dict[str, Any]]:
    """A row for each bookie that did not list what it holds, and one for the records that cannot be read."""
    unseen: dict[tuple[str, str], dict[int, int]] = {}
    for ledger_id, one in found.ledgers.items():
        for bookie, answer in one.silent.items():
            said = answer.name.lower().replace("_", " ")
            unseen.setdefault((bookie, said), {})[ledger_id] = one.unseen.get(bookie, 0)
    some: list[tuple[list[str], dict[int, int], int | None, str]] = [
        (
            [bookie],
            ledgers,
            sum(ledgers.values()),
            f"a response from {bookie} ({said}): `quire cluster bookies`",
        )
        for (bookie, said), ledgers in sorted(unseen.items())
    ]
    if found.blocked:
        some.append(([], dict.fromkeys(found.blocked, 0), None, "what each is named with"))
    return [
        {
            "reason": NOT_LOOKED_AT,
            "copies_left": None,
            "entries": entries,
            "bytes": None,
            "ledgers": len(ledgers),
            "streams": {
                str(one): found.streams[one] for one in sorted(ledgers.keys() & found.streams.keys())
            },
            "bookies": bookies,
            "needs": needs,
        }
        for bookies, ledgers, entries, needs in some
    ]


def bytes_of(lacking: UnderReplicatedLedger, entries: int) -> int | None:
    """About how many bytes some entries of a ledger have; None: its record does not say that."""
    return int(entries * lacking.entry_bytes) if lacking.entry_bytes or not entries else None


def sum_known(sizes: Iterable[int | None]) -> int | None:
    """The sum; None if one of them is not known."""
    total = 0
    for size in sizes:
        if size is None:
            return None
        total += size
    return total


def about(size: int | None) -> str:
    """A size in words."""
    return "of unknown size" if size is None else f"about {human_bytes(size)}"


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
        case MissingReason.OPEN:
            return "the writer: they are filled when it moves on, or after `quire ledger recover`"
    return "`quire cluster repair`"


def shown(row: dict[str, Any]) -> dict[str, Any]:
    """A row of under-replication as people read it."""
    entries = None if row["entries"] is None else f"{row['entries']:,}"
    return row | {"entries": entries, "size": about(row["bytes"]).removeprefix("of ")}


# --- plans ----------------------------------------------------------------------------------------------------------


def show_plan(out: Output, found: UnderReplication, rate: float | None) -> None:
    """Print what is to be repaired, and what is left alone."""
    from quire.core.repair.under_replication import MissingReason

    ledgers = len(found.to_repair)
    size = sum_known(bytes_of(lacking, lacking.copyable) for lacking in found.to_repair)
    text = f"Plan: {counted(ledgers, 'ledger')} of {found.looked_at:,} to repair"
    if found.entries:
        text += f", {counted(found.entries, 'entry')} to copy, {about(size)}"
    if rate is not None and size:
        text += f", {human_duration(size / (rate * MB))} at {rate:g} MB/s"
    facts = {
        "plan": True,
        "looked_at": found.looked_at,
        "ledgers": ledgers,
        "entries": found.entries,
        "bytes": size,
        "debt": under_replication_rows(found),
        "blocked": {str(ledger): error.message for ledger, error in found.blocked.items()},
    }
    out.result(facts, text + ".")
    for row in under_replication_rows(found):
        if row["reason"] in {NOT_LOOKED_AT, MissingReason.OPEN.value} and row["entries"] is not None:
            what = f"{counted(row['entries'], 'entry')} of {counted(row['ledgers'], 'ledger')}"
            out.note(f"left alone: {what}, {row['reason']}; needs {row['needs']}")
    for line in _read_only_lines(found.ledgers.values()):
        out.note(line)
    note_named(out, found)


def note_named(out: Output, found: UnderReplication) -> None:
    """Name the streams among the ledgers that lack copies, and what could not be looked at."""
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
        "bytes": bytes_of(lacking, lacking.copyable),
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
        "read_only": {
            bookie: "replaced" if due else "waited for" for bookie, due in lacking.read_only.items()
        },
        "undecided": lacking.undecided,
        "silent": {bookie: answer.name.lower() for bookie, answer in lacking.silent.items()},
        **_ranges_of(lacking),
    }
    size = about(bytes_of(lacking, lacking.copyable))
    lines = [f"Ledger {ledger_id}: {counted(lacking.copyable, 'entry')} to copy, {size}."]
    lines += [
        f"  {kind.bookie} ({kind.reason.value}): {counted(count, 'entry')}, {counted(kind.copies_left, 'copy', 'copies')} left"
        for kind, count in lacking.entries.items()
        if kind.bookie
    ]
    lines += _open_lines(lacking)
    lines += [
        f"  {bookie} did not list its entries ({answer.name}): {counted(lacking.unseen.get(bookie, 0), 'entry')} "
        "not looked at"
        for bookie, answer in lacking.silent.items()
    ]
    lines += [f"  {bookie} is in limbo" for bookie in lacking.limbo]
    lines += [f"  {line}" for line in _read_only_lines([lacking])]
    lines += [*_loss_lines(ledger_id, lacking), *_undecided_lines(ledger_id, lacking.undecided)]
    out.result(facts, *lines)
    return code_of_look(lacking)


# --- ends -----------------------------------------------------------------------------------------------------------


def show_end(out: Output, lacking: UnderReplicatedLedger, totals: RepairTotals) -> int:
    """Print how the repair ended of one ledger that lacked this before; returns the exit code."""
    ledger_id = lacking.ledger_id
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
    out.result(
        facts | {"of_open": lacking.of_open}, *_end_lines(ledger_id, ended, totals), *_open_lines(lacking)
    )
    return code_of_end(lacking, ended)


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


def _open_lines(lacking: UnderReplicatedLedger) -> list[str]:
    if not lacking.of_open:
        return []
    are = "copy is" if lacking.of_open == 1 else "copies are"
    until = f"filled when it moves on, or after `quire ledger recover {lacking.ledger_id}`"
    return [f"  {lacking.of_open:,} {are} missing in a fragment that the writer may still change: {until}"]


def _read_only_lines(some: Iterable[UnderReplicatedLedger]) -> list[str]:
    """Which bookies lack entries and take none, and what becomes of that."""
    due: dict[str, bool] = {}
    for lacking in some:
        for bookie, now in lacking.read_only.items():
            due[bookie] = due.get(bookie, False) or now
    return [
        f"{bookie} is read-only: "
        + (
            "another bookie takes its place in the fragments of which it lacks entries"
            if now
            else "what it lacks is copied to it when it is writable, or to others after `quire cluster lost-delay`"
        )
        for bookie, now in due.items()
    ]


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
    codes = {code_of_end(found.ledgers[ledger], end) for ledger, end in totals.ended.items()}
    codes |= {code_of_look(one) for ledger, one in found.ledgers.items() if ledger not in totals.ended}
    return worst({*codes, EXIT_ATTENTION if left else 0})


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


# --- exit codes -----------------------------------------------------------------------------------------------------


def code_of_look(lacking: UnderReplicatedLedger) -> int:
    """The exit code of a look at one ledger."""
    return code_of_copies(complete=lacking.is_complete, losses=lacking.has_losses)


def code_of(found: UnderReplication) -> int:
    """The exit code of a look at ledgers."""
    return worst({*map(code_of_look, found.ledgers.values()), EXIT_ATTENTION if found.blocked else 0})


def code_of_end(lacking: UnderReplicatedLedger, ended: RepairEnded) -> int:
    """The exit code of the repair of a ledger that lacked this before."""
    from quire.core.repair.effects import RepairOutcome

    report = ended.report
    losses = not {*report.lost, *report.gone_only} <= {*report.accepted}
    complete = ended.outcome is not RepairOutcome.INCOMPLETE and not lacking.of_open
    return code_of_copies(complete=complete, losses=losses)

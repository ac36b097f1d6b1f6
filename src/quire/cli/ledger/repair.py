"""`quire ledger repair`, `quire cluster repair` and `quire cluster under-replication`: what copies are missing, and putting them back."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from quire.cli.console.opening import with_client
from quire.cli.console.options import option, password_of
from quire.cli.console.output import Output, counted
from quire.cli.ledger.ledger_show import LedgerArgument
from quire.cli.ledger.repair_show import (
    MB,
    NOT_LOOKED_AT,
    RATE_MAX,
    code_of,
    note_named,
    show_end,
    show_plan,
    show_plan_of_one,
    show_totals,
    shown,
    under_replication_rows,
)
from quire.core.errors import MisuseError, RefusedError
from quire.env.numbers import number_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from quire.autorecovery.repair import ClusterRepair, RepairTotals
    from quire.core.repair.effects import Loss
    from quire.core.repair.under_replication import UnderReplicatedLedger
    from quire.log.client import QuireClient

_TICK_S: Final = 0.2

BookieOption = Annotated[
    list[str] | None,
    option(
        "--bookie BOOKIE",
        "This bookie is permanently lost: others take its place. It may be repeated. A bookie that is only "
        "down is not replaced without it.",
    ),
]
DryRunOption = Annotated[bool, option("--dry-run", "Show the plan, and change nothing.")]
RateOption = Annotated[
    float | None,
    option(
        "--rate MB/S",
        "Copy at most this many million bytes a second, all ledgers together [default: as fast as bookies accept them].",
        min=0.001,
        max=RATE_MAX,
    ),
]


AcceptLossOption = Annotated[
    Path | None,
    option(
        "--accept-loss FILE",
        "Go on without the entries that this file names, one `LEDGER FIRST..LAST` in each line, as the command "
        "shows them: only lost bookies may have them. The loss stands in the ledger's record.",
    ),
]


def _password(file: str | None) -> str | None:
    """The password, or None where there is none: an empty one is one."""
    return None if file is None and "QUIRE_PASSWORD" not in os.environ else password_of(file or "")


RepairPasswordOption = Annotated[
    str | None,
    option(
        "--password-file FILE",
        "The password of ledgers whose record stores none (format 1): a file with this one line, readable by you "
        "alone; - asks for it. Without it QUIRE_PASSWORD counts.",
        callback=_password,
    ),
]


@dataclass(frozen=True)
class RepairOptions:
    """How one ledger or stream is repaired."""

    bookie: BookieOption = None
    dry_run: DryRunOption = False
    accept_loss: AcceptLossOption = None


@with_client()
async def repair_ledger(
    client: QuireClient,
    out: Output,
    ledger_id: LedgerArgument,
    how: RepairOptions,
    password: RepairPasswordOption = None,
) -> int:
    """Put the missing copies of one ledger back: replace lost bookies, fill holes, end limbo.

    A fragment that its writer may still change is left alone. Exit code 5: copies are missing still, or were not looked
    at. 1: entries are lost, or only lost bookies have them.
    """
    return await repair_one(client, out, ledger_id, how, password)


async def repair_one(
    client: QuireClient, out: Output, ledger_id: int, how: RepairOptions, password: str | None = None
) -> int:
    """Repair one ledger or stream; returns the exit code.

    Args:
        client: the cluster.
        out: prints.
        ledger_id: its id.
        how: the options.
        password: of a ledger whose record stores none.
    """
    from quire.autorecovery.repair import ClusterRepair, checked_lost

    accepted = None if how.accept_loss is None else _accepted_ranges(how.accept_loss)
    lost = await checked_lost(client, how.bookie or ())
    key = None if password is None else password.encode()
    lacking = await ClusterRepair(client, lost=lost, password=key).look_at(ledger_id)
    if how.dry_run or lacking is None:
        return show_plan_of_one(out, ledger_id, lacking)
    word = None if accepted is None else _word_of(client, lacking, accepted)
    repair = ClusterRepair(client, lost=lost, password=key, accepted=word)
    with out.progress(f"repairing ledger {ledger_id}", None, "bytes") as progress:
        totals = await _watched(repair, [lacking], progress)
    for error in totals.failed.values():
        raise error
    return show_end(out, lacking, totals)


@with_client()
async def repair_cluster(
    client: QuireClient,
    out: Output,
    bookie: BookieOption = None,
    dry_run: DryRunOption = False,
    rate: RateOption = None,
    password: RepairPasswordOption = None,
) -> int:
    """Put the missing copies of all ledgers back, after a plan of what is to be copied.

    A ledger that cannot be repaired does not hold up the others; each is named with its reason. Exit code 5: copies are
    missing still, or were not looked at. 1: entries are lost, or only lost bookies have them.
    """
    from quire.autorecovery.repair import ClusterRepair, checked_lost

    repair = ClusterRepair(
        client,
        lost=await checked_lost(client, bookie or ()),
        bytes_per_s=None if rate is None else int(rate * MB),
        password=None if password is None else password.encode(),
    )
    with out.progress("looking at ledgers", None, "ledgers") as progress:
        found = await repair.look(seen=lambda _: progress.advance(1))
    show_plan(out, found, rate)
    if dry_run:
        return code_of(found)
    with out.progress("copying", found.bytes or None, "bytes") as progress:
        totals = await _watched(repair, found.to_repair, progress)
    return show_totals(out, found, totals)


@with_client()
async def under_replication(client: QuireClient, out: Output, password: RepairPasswordOption = None) -> int:
    """Count the copies that are missing in the cluster, by reason and by how many copies are left, and what each needs.

    What a bookie may hold that is down or does not respond is not looked at, and so is a ledger whose record cannot be read.
    Exit code 5: copies are missing, or were not looked at. 1: entries are lost.
    """
    from quire.autorecovery.repair import ClusterRepair

    key = None if password is None else password.encode()
    looking = ClusterRepair(client, password=key)
    with out.progress("looking at ledgers", None, "ledgers") as progress:
        found = await looking.look(seen=lambda _: progress.advance(1))
    rows = under_replication_rows(found)
    columns = ("reason", "copies_left", "entries", "size", "ledgers", "needs")
    none = f"No copy is missing: {counted(found.looked_at, 'ledger')} looked at."
    out.rows(columns, rows, shown=shown, none=none)
    note_named(out, found)
    if rows and all(row["reason"] == NOT_LOOKED_AT for row in rows):
        out.note("No copy is missing of what was looked at.")
    return code_of(found)


async def _watched(
    repair: ClusterRepair, ledgers: Iterable[UnderReplicatedLedger], progress: Any
) -> RepairTotals:
    """Repair, and show how far the copies are while it lasts."""

    async def show() -> None:
        shown = 0
        while True:
            await asyncio.sleep(_TICK_S)
            progress.advance(repair.bytes_copied - shown)
            shown = repair.bytes_copied

    showing = asyncio.create_task(show())
    try:
        return await repair.run(ledgers)
    finally:
        showing.cancel()


# --- accepted losses --------------------------------------------------------------------------------------------------


def _accepted_ranges(file: Path) -> dict[int, list[tuple[int, int]]]:
    """The ranges that a person accepts as lost, by ledger.

    Raises:
        MisuseError: the file cannot be read, or a line of it is none.
    """
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise MisuseError(f"--accept-loss: {file} cannot be read: {error}") from error
    found: dict[int, list[tuple[int, int]]] = {}
    for number, line in enumerate(lines, 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        try:
            ledger, entries = words
            ledger_id, first, last = map(number_of, (ledger, *entries.split("..")))
            if ledger_id is None or first is None or last is None:
                raise ValueError(line)
            found.setdefault(ledger_id, []).append((first, last))
        except ValueError as error:
            raise MisuseError(
                f"--accept-loss: {file} line {number} is no `LEDGER FIRST..LAST`: {line!r}"
            ) from error
    return found


def _word_of(
    client: QuireClient, lacking: UnderReplicatedLedger, accepted: dict[int, list[tuple[int, int]]]
) -> Loss:
    """The acceptance of a ledger's loss.

    Raises:
        RefusedError: entries would be lost that the file does not name.
    """
    from quire.core.ledger.notes import EntryRange
    from quire.core.repair.effects import Loss

    ranges = accepted.get(lacking.ledger_id, [])
    for each in lacking.gone_only:
        if not any(first <= each.first and each.last <= last for first, last in ranges):
            raise RefusedError(
                f"ledger {lacking.ledger_id}: entries {each.first}..{each.last} may be lost too, and the file does not name "
                "them: look at `--dry-run` again",
                ledger_id=lacking.ledger_id,
            )
    named = tuple(EntryRange(first, last) for first, last in ranges)
    return Loss(client.clock.wall_ms(), who(), named)


def who() -> str:
    """The user that runs the command; a container's user may have a number only."""
    import getpass

    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"user {os.getuid()}"

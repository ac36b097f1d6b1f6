"""`quire ledger repair`, `quire cluster repair` and `quire cluster under-replication`: what copies are missing, and putting them back."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from quire.cli.console.failures import EXIT_ATTENTION, EXIT_FAILED
from quire.cli.console.options import ClusterOption, JsonOption, cluster_uri, password_of, run
from quire.cli.console.output import Output, counted
from quire.cli.ledger.repair_show import (
    MB,
    RATE_MAX,
    note_blocked,
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
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from quire.autorecovery.repair import ClusterRepair, RepairTotals
    from quire.client.client import Client
    from quire.core.repair.effects import Loss
    from quire.core.repair.under_replication import UnderReplicatedLedger

_TICK_S: Final = 0.2

LedgerArgument = Annotated[int, typer.Argument(metavar="LEDGER", help="The ledger's id.", min=0)]
BookieOption = Annotated[
    list[str] | None,
    typer.Option(
        "--bookie",
        metavar="BOOKIE",
        help="This bookie is permanently lost: others take its place. It may be repeated. A bookie that is only "
        "down is not replaced without it.",
        show_default=False,
    ),
]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Show the plan, and change nothing.")]
RateOption = Annotated[
    float | None,
    typer.Option(
        "--rate",
        metavar="MB/S",
        min=0.001,
        max=RATE_MAX,
        help="Copy at most this many million bytes a second, all ledgers together [default: as fast as bookies accept them].",
        show_default=False,
    ),
]


AcceptLossOption = Annotated[
    Path | None,
    typer.Option(
        "--accept-loss",
        metavar="FILE",
        help="Go on without the entries that this file names, one `LEDGER FIRST..LAST` in each line, as the command "
        "shows them: only lost bookies may have them. The loss stands in the ledger's record.",
        show_default=False,
    ),
]


def _password(file: str | None) -> str | None:
    """The password, or None where there is none: an empty one is one."""
    return None if file is None and "QUIRE_PASSWORD" not in os.environ else password_of(file or "")


RepairPasswordOption = Annotated[
    str | None,
    typer.Option(
        "--password-file",
        metavar="FILE",
        callback=_password,
        help="The password of ledgers whose record stores none (format 1): a file with this one line, readable by you "
        "alone; - asks for it. Without it QUIRE_PASSWORD counts.",
        show_default=False,
    ),
]


def repair_ledger(
    ledger_id: LedgerArgument,
    bookie: BookieOption = None,
    dry_run: DryRunOption = False,
    accept_loss: AcceptLossOption = None,
    cluster: ClusterOption = None,
    password: RepairPasswordOption = None,
    as_json: JsonOption = False,
) -> None:
    """Put the missing copies of one ledger back: replace lost bookies, fill holes, end limbo.

    A fragment that its writer may still change is left alone. Exit code 1: something is left that another repair may
    restore. 5: all is done that can be, and entries are lost or only lost bookies have them.
    """

    async def found(_: Client) -> int:
        return ledger_id

    uri, out = cluster_uri(cluster), Output(as_json=as_json)
    repair_one(uri, out, found, bookie or (), dry_run=dry_run, accept_loss=accept_loss, password=password)


def repair_one(
    uri: str | None,
    out: Output,
    find: Callable[[Client], Awaitable[int]],
    bookie: Sequence[str],
    *,
    dry_run: bool,
    accept_loss: Path | None,
    password: str | None,
) -> None:
    """Repair one ledger or stream, and end with the exit code of that.

    Args:
        uri: the cluster.
        out: prints.
        find: finds its id.
        bookie: those that are permanently lost.
        dry_run: only show the plan.
        accept_loss: the file that names entries whose loss is accepted.
        password: of a ledger whose record stores none.
    """
    accepted = None if accept_loss is None else _accepted_ranges(accept_loss)

    async def work() -> int:
        import quire
        from quire.autorecovery.repair import ClusterRepair, checked_lost

        async with quire.connect(uri) as client:
            ledger_id = await find(client)
            lost = await checked_lost(client, bookie)
            key = None if password is None else password.encode()
            looking = ClusterRepair(client, lost=lost, password=key)
            found = await looking.look([ledger_id])
            for error in found.blocked.values():
                raise error
            lacking = found.ledgers.get(ledger_id)
            if dry_run or lacking is None:
                return show_plan_of_one(out, ledger_id, lacking)
            word = None if accepted is None else _word_of(client, lacking, accepted)
            repair = ClusterRepair(client, lost=lost, password=key, accepted=word)
            with out.progress(f"repairing ledger {ledger_id}", None, "bytes") as progress:
                totals = await _watched(repair, [lacking], progress)
        for error in totals.failed.values():
            raise error
        return show_end(out, ledger_id, totals)

    _end(run(work()))


def repair_cluster(
    bookie: BookieOption = None,
    dry_run: DryRunOption = False,
    rate: RateOption = None,
    cluster: ClusterOption = None,
    password: RepairPasswordOption = None,
    as_json: JsonOption = False,
) -> None:
    """Put the missing copies of all ledgers back, after a plan of what is to be copied.

    A ledger that cannot be repaired does not hold up the others; each is named with its reason. Exit code 1: something is
    left that another repair may restore. 5: all is done that can be, and entries are lost or only lost bookies
    have them.
    """
    uri, out = cluster_uri(cluster), Output(as_json=as_json)

    async def work() -> int:
        import quire
        from quire.autorecovery.repair import ClusterRepair, checked_lost

        async with quire.connect(uri) as client:
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
                return EXIT_FAILED if found.blocked else 0
            with out.progress("copying", found.bytes or None, "bytes") as progress:
                totals = await _watched(repair, found.to_repair, progress)
        return show_totals(out, found, totals)

    _end(run(work()))


def under_replication(
    cluster: ClusterOption = None, password: RepairPasswordOption = None, as_json: JsonOption = False
) -> None:
    """Count the copies that are missing in the cluster, by reason and by how many copies are left, and what each needs.

    Bookies that are not registered count as lost. Exit code 5: copies are missing. 1: a ledger cannot be looked at.
    """
    uri, out = cluster_uri(cluster), Output(as_json=as_json)

    async def work() -> int:
        import quire
        from quire.autorecovery.repair import ClusterRepair

        async with quire.connect(uri) as client:
            away = await client.bookies.away()
            looking = ClusterRepair(
                client, lost=away, password=None if password is None else password.encode()
            )
            with out.progress("looking at ledgers", None, "ledgers") as progress:
                found = await looking.look(seen=lambda _: progress.advance(1))
        rows = under_replication_rows(found)
        columns = ("reason", "copies_left", "entries", "size", "ledgers", "needs")
        if rows or as_json:
            out.rows("", columns, rows if as_json else [shown(row) for row in rows])
        else:
            out.note(f"No copy is missing: {counted(found.looked_at, 'ledger')} looked at.")
        note_blocked(out, found)
        return EXIT_FAILED if found.blocked else EXIT_ATTENTION if rows else 0

    _end(run(work()))


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


def _end(code: int) -> None:
    if code:
        raise typer.Exit(code)


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
    client: Client, lacking: UnderReplicatedLedger, accepted: dict[int, list[tuple[int, int]]]
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

"""`quire cluster orphans` and `accept-store`: what bookies keep although the metadata store knows nothing of it."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from typing import TYPE_CHECKING, Annotated, Any

from quire.cli.cluster.bookie_rows import collector_of
from quire.cli.console.asking import YesOption, confirm
from quire.cli.console.opening import with_client
from quire.cli.console.options import MEANT, argument, option
from quire.cli.console.output import Output, counted
from quire.core.errors import MisuseError
from quire.env.numbers import number_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from quire.log.client import QuireClient

SHOWN_MAX = 1000
"""Most rows of a table; JSON has all."""
WAIT_SECONDS_MAX = 180.0
_UNKNOWN, _DUE = "unknown", "due"


@with_client(frames=False)
async def orphans(
    client: QuireClient,
    out: Output,
    ids: Annotated[
        list[str] | None,
        argument("[ID…]", "With --delete: the ledgers to delete: 17, or 17-29."),
    ] = None,
    delete: Annotated[bool, option("--delete", "Let the bookies drop these ledgers.")] = False,
    yes: YesOption = False,
) -> None:
    """List the ledgers that bookies keep although they have no record.

    A bookie drops a ledger only on a proof that it was deleted; these have none. They may be what a restored metadata
    store has forgotten: put the newer store back, and they are ledgers again. With --delete, a person decides.
    """
    wanted = _parse(ids or [])
    if bool(wanted) != delete:
        raise MisuseError(
            "name the ledgers and give --delete to delete them, as in `quire cluster orphans --delete 17 20-25`;"
            " give neither to list them"
        )

    found, silent = await kept_without_record(client, out)
    if delete:
        await _delete(client, out, wanted, found, silent, yes=yes)
    else:
        _show(out, found, silent)


@with_client(frames=False)
async def accept_store(
    client: QuireClient,
    out: Output,
    yes: YesOption = False,
    wait: Annotated[bool, option("--wait/--no-wait", "Wait until the bookies collect again.")] = True,
) -> None:
    """Accept the metadata store as it is, so that bookies whose collectors have stopped delete again.

    They stop when the store is an older state or another one. First put the newest store back if there is one. What
    the accepted store has no record of stays on the bookies: see `quire cluster orphans`.
    """
    from quire.metadata import accepting as library

    stopped = await library.stopped_collections(client.store)
    if any(not one.accepted for one in stopped):
        found, silent = await kept_without_record(client, out)
        _lists(out, stopped, found, silent)
        _ask("Accept this metadata store?", "accept-store changes what bookies may delete", yes=yes)
    accepted = await library.accept_store(client.store)
    names = [str(one.bookie) for one in accepted]
    going = await _collecting_again(client, out, names) if wait else []
    facts = {"accepted": MEANT.get(), "bookies": names, "gone_on": going}
    text = f"The metadata store is accepted: {', '.join(names)} collect deleted ledgers again"
    behind = sorted(set(names) - set(going))
    text += f" ({', '.join(behind)} with the next pass)." if behind else "."
    out.result(facts, text)


async def kept_without_record(
    client: QuireClient, out: Output
) -> tuple[dict[int, dict[str, list[str]]], list[str]]:
    """Ask every bookie which ledgers it keeps without a record.

    Returns:
        By ledger, for `unknown` and `due`, the bookies that hold it; and the bookies that did not respond.
    """
    from quire.core.answers import Answer
    from quire.core.ids import ID_MAX

    bookies = sorted(
        {*await client.bookies.registry.list_cookies(), *await client.bookies.registry.available()}
    )
    found: dict[int, dict[str, list[str]]] = {}
    silent: list[str] = []
    with out.progress("asking bookies", len(bookies), "bookies") as progress:
        for bookie in bookies:
            after = -1
            while after < ID_MAX:
                answer, page = await client.bookies.orphans(bookie, after, timeout_ms=5000)
                if answer is not Answer.OK or page is None:
                    silent.append(str(bookie))
                    break
                for kind, ledgers in ((_UNKNOWN, page.unknown), (_DUE, page.due)):
                    for ledger_id in ledgers:
                        found.setdefault(ledger_id, {}).setdefault(kind, []).append(str(bookie))
                after = page.through
            progress.advance(1)
    return found, silent


def _show(out: Output, found: dict[int, dict[str, list[str]]], silent: list[str]) -> None:
    rows = [
        {"ledger_id": ledger_id, "kept_as": kind, "bookies": bookies}
        for ledger_id, kinds in sorted(found.items())
        for kind, bookies in sorted(kinds.items())
    ]
    none = "No bookie keeps a ledger without a record."
    out.rows(("ledger_id", "kept_as", "bookies"), rows, most=SHOWN_MAX, none=none)
    _note_silent(out, silent)


def _note_silent(out: Output, silent: list[str]) -> None:
    if silent:
        out.note(
            "these bookies are down or of an older version, and the ledgers that they keep are not "
            f"listed: {', '.join(silent)}"
        )


async def _delete(
    client: QuireClient,
    out: Output,
    wanted: list[range],
    found: dict[int, dict[str, list[str]]],
    silent: list[str],
    *,
    yes: bool,
) -> None:
    chosen = [ledger_id for ledger_id in sorted(found) if any(ledger_id in part for part in wanted)]
    singles = [part.start for part in wanted if part.stop == part.start + 1]
    unknown = [ledger_id for ledger_id in singles if ledger_id not in found]
    _note_silent(out, silent)
    if unknown or not chosen:
        named = ", ".join(map(str, unknown[:20])) or "none of these"
        raise MisuseError(
            f"{named}: no bookie that responds keeps such a ledger without a record; `quire cluster "
            "orphans` lists the orphans; nothing was deleted",
            ledgers=unknown,
        )
    many = counted(len(chosen), "ledger")
    _ask(f"Delete {many} for ever: {_some(chosen)}?", f"Deleting {many} cannot be undone", yes=yes)
    deleted = 0
    try:
        with out.progress("deleting", len(chosen), "ledgers") as progress:
            for ledger_id in chosen:
                await client.records.delete_orphan(ledger_id)
                deleted += 1
                progress.advance(1)
    except BaseException:
        if deleted:
            out.note(f"Before that {deleted:,} of {many} were deleted, up to {chosen[deleted - 1]}.")
        raise
    out.result(
        {"deleted": chosen},
        f"{many} {'is' if len(chosen) == 1 else 'are'} deleted; bookies drop the entries with their next pass.",
    )


def _lists(
    out: Output, holding: Iterable[Any], found: dict[int, dict[str, list[str]]], silent: list[str]
) -> None:
    """Say what accepting would mean, before the question."""
    for one in holding:
        out.note(f"{one.bookie} deletes no ledgers: {one.why}")
    due = sorted(ledger_id for ledger_id, kinds in found.items() if _DUE in kinds)
    unknown = sum(_UNKNOWN in kinds for kinds in found.values())
    if due:
        out.note(
            f"would be deleted, because this store has a tombstone of each: {counted(len(due), 'ledger')}: {_some(due)}"
        )
    else:
        out.note("would be deleted: nothing")
    out.note(f"stays on the bookies without a record: {counted(unknown, 'ledger')} (`quire cluster orphans`)")
    _note_silent(out, silent)


def _some(ids: list[int]) -> str:
    return ", ".join(map(str, ids[:50])) + (", …" if len(ids) > 50 else "")


def _ask(question: str, why: str, *, yes: bool) -> None:
    """Ask in the middle of a coroutine: Ctrl-C must end the question, not wait until it is answered."""
    if threading.current_thread() is not threading.main_thread():
        confirm(question, why, yes=yes)
        return
    former = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        confirm(question, why, yes=yes)
    finally:
        signal.signal(signal.SIGINT, former)


async def _collecting_again(client: QuireClient, out: Output, names: list[str]) -> list[str]:
    """Wait for the next pass of these bookies. Those that collect again in time."""
    from quire.core.answers import Answer
    from quire.core.ids import BookieId

    waiting, going = list(names), []
    give_up = time.monotonic() + WAIT_SECONDS_MAX
    with out.progress("waiting for the next pass", len(names), "bookies") as progress:
        while waiting and time.monotonic() < give_up:
            for name in list(waiting):
                answer, says = await client.bookies.info(BookieId(name), timeout_ms=2000)
                collector = collector_of(says)
                if answer is not Answer.OK or not collector["makes_passes"]:
                    waiting.remove(name)  # it is down, or makes no passes
                elif not collector["holding"]:
                    waiting.remove(name)
                    going.append(name)
                    progress.advance(1)
            if waiting:
                await asyncio.sleep(0.5)
    return going


def _parse(ids: list[str]) -> list[range]:
    """Ids and ranges as people write them."""
    parts: list[range] = []
    for text in ids:
        first, dash, last = text.partition("-")
        start, end = number_of(first), number_of(last if dash else first)
        part = range(0) if start is None or end is None else range(start, end + 1)
        if not part:
            raise MisuseError(f"{text!r} is neither a ledger id nor a range: write 17, or 17-29")
        parts.append(part)
    return parts

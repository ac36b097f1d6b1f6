"""`quire log …`: logs, each a list of ledgers that reads as one endless sequence of records."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from quire.cli.console.asking import YesOption, confirm
from quire.cli.console.opening import connected, with_client
from quire.cli.console.options import ACK, ENSEMBLE, WRITE, PasswordOption, Quorums, option, run
from quire.cli.console.output import Output, attributes, human_bytes
from quire.cli.log import append as log_append
from quire.cli.log import log_show
from quire.cli.log import move as log_move
from quire.cli.log import read as log_read
from quire.cli.log.log_show import quorums_of, records_in, shown_facts
from quire.cli.log.parameters import NameArgument
from quire.cli.log.ranges import Until, iso, parse_until
from quire.cli.log.whose_writer import Agreement, ending_writer, standing_of
from quire.core.errors import NotEnoughBookiesError, QuireError

if TYPE_CHECKING:
    from quire.core.log.list import LogSettings
    from quire.log.client import QuireClient

app = typer.Typer(
    help="Logs: create, append, read, tail, list, show, alter, copy, export, import, roll, truncate, delete, cursors, "
    "place, collect."
)


@app.command()
@with_client()
async def create(client: QuireClient, out: Output, name: NameArgument, quorums: Quorums) -> None:
    """Create an empty log; the quorums are those of its ledgers."""
    log = client.log(name)
    await log.create(**asdict(quorums))
    out.result({"log": name, "created": True}, f"Log {name} is created.")
    await warn_of_room(out, client, name, (await log.identify()).settings)


app.command("append")(log_append.append)
app.command("read")(log_read.read)
app.command("tail")(log_read.tail)
app.command("list")(log_show.list_logs)
app.command("show")(log_show.show)
app.command("copy")(log_move.copy)
app.command("export")(log_move.export)
app.command("import")(log_move.import_)


@app.command()
@with_client()
async def alter(
    client: QuireClient,
    out: Output,
    name: NameArgument,
    ensemble_size: Annotated[int | None, ENSEMBLE] = None,
    write_quorum: Annotated[int | None, WRITE] = None,
    ack_quorum: Annotated[int | None, ACK] = None,
    min_present: Annotated[
        int | None,
        option("--min-present N", "Bookies of a new ledger that must be there, Qa to E; 0: Qa.", min=0),
    ] = None,
) -> None:
    """Change the settings of the ledgers that a log will have; what is not named stays.

    Ledgers that exist keep theirs. A writer that is there uses the new settings for its next ledger, and `log roll`
    begins one.
    """
    from quire.log.altering import alter_log

    old, new = await alter_log(
        client,
        name,
        ensemble_size=ensemble_size,
        write_quorum=write_quorum,
        ack_quorum=ack_quorum,
        min_present=min_present,
    )
    await warn_of_room(out, client, name, new)
    facts = {
        "log": name,
        "quorums": quorums_of(new),
        "min_present": new.min_present or new.ack_quorum,
        "former_quorums": quorums_of(old),
        "former_min_present": old.min_present or old.ack_quorum,
    }
    if new == old:
        text = f"Log {name} has these settings already: E/Qw/Qa {quorums_of(new)}."
    else:
        text = f"Log {name}: E/Qw/Qa {quorums_of(new)}, until now {quorums_of(old)}, for its next ledgers."
    out.result(facts, text)


def _ask_to_delete(uri: str, *, name: str, password: str, yes: YesOption = False, **_: object) -> None:
    async def look() -> str:
        from quire.log.heads import LogHeads

        async with connected(uri) as client:
            try:
                about = await client.log(name, password.encode()).describe()
                standing = await standing_of(client, name)
            except QuireError:
                if await LogHeads(client.store).find(name) is None:
                    raise
                return f"Delete log {name} for ever, or what is left of it?"  # it cannot be read, or is half deleted
        size = human_bytes(sum(item.bytes or 0 for item in about.items))
        writer = f", and end the writer at {standing.writer_host}" if standing.writer else ""
        return f"Delete log {name} for ever, {records_in(about):,} records, {size}{writer}?"

    if not yes:
        confirm(run(look()), f"Deleting log {name} cannot be undone", yes=False)


@app.command()
@with_client(_ask_to_delete)
async def delete(client: QuireClient, out: Output, name: NameArgument, password: PasswordOption = "") -> None:
    """Delete a log with all its ledgers for ever, and end its writer; bookies free the space a little later."""
    await client.delete_log(name, password.encode())
    out.result({"log": name, "deleted": True}, f"Log {name} is deleted.")


@app.command()
@with_client(ending_writer("Rolling log {name}"))
async def roll(
    client: QuireClient,
    out: Output,
    agreed: Agreement,
    name: NameArgument,
    password: PasswordOption = "",
) -> None:
    """Take the log over, which closes its last ledger for good and begins a new one, and step down.

    A writer rolls by itself (by size and time); this is for a log without a writer, or to end its writer.
    """
    await agreed.check(client, name, out)
    log = client.log(name, password.encode())
    async with await log.open_writer():
        pass  # opening is what recovers and closes the former ledger
    about = await log.describe()
    count = len(about.items)
    text = f"Log {name} has {count} ledger{'' if count == 1 else 's'}, next offset {about.end_offset:,}."
    out.result(shown_facts(about), text)


def _ask_to_truncate(_uri: str, *, name: str, before: Until, yes: YesOption = False, **_: object) -> None:
    offset, time_ms = before
    where = f"offset {offset:,}" if time_ms is None else f"the first one as late as {iso(time_ms)}"
    confirm(
        f"Delete the records of log {name} before {where} for ever?",
        f"Truncating log {name} cannot be undone",
        yes=yes,
    )


@app.command()
@with_client(_ask_to_truncate)
async def truncate(
    client: QuireClient,
    out: Output,
    name: NameArgument,
    before: Annotated[
        Until,
        option(
            "--before OFFSET|TIME",
            "Records below this offset are deleted, or below the first one as late as this time.",
            parser=lambda text: parse_until(text, "--before"),
        ),
    ],
    password: PasswordOption = "",
) -> None:
    """Truncate a log's beginning; ledgers that are wholly before the offset are deleted."""
    log = client.log(name, password.encode())
    from quire.log.seeking import offset_since

    offset, time_ms = before
    if offset is None:
        assert time_ms is not None, "`--before` is an offset or a time"
        offset = await offset_since(log, await log.describe(), time_ms)
    await log.truncate(before=offset)
    about = await log.describe()
    out.result(shown_facts(about), f"Log {name} starts at offset {about.start_offset:,}.")


def _ask_to_remove(_uri: str, *, name: str, remove: str | None, yes: YesOption = False, **_: object) -> None:
    if remove is not None:
        confirm(
            f"Remove cursor {remove} of log {name}? Its reader begins anew.",
            f"Removing cursor {remove} of log {name} cannot be undone",
            yes=yes,
        )


@app.command()
@with_client(_ask_to_remove)
async def cursors(
    client: QuireClient,
    out: Output,
    name: NameArgument,
    remove: Annotated[
        str | None, option("--remove CURSOR", "Delete this cursor; a reader that uses it creates it again.")
    ] = None,
    password: PasswordOption = "",
) -> None:
    """List a log's cursors, the named positions of its readers, and how far behind each is."""
    log = client.log(name, password.encode())
    if remove is not None:
        removed = await log.remove_cursor(remove)
        text = f"Cursor {remove} of log {name} is removed." if removed else f"No cursor {remove}."
        out.result({"log": name, "cursor": remove, "removed": removed}, text)
        return
    end = (await log.describe()).end_offset
    rows = [
        {
            "log": name,
            "cursor": cursor.name,
            **attributes(cursor, "first_offset offset"),
            "lag": max(end - cursor.offset, 0),
            **attributes(cursor, "hold moved_ms"),
        }
        for cursor in await log.cursors()
    ]
    out.rows(("cursor", "first_offset", "offset", "lag", "hold"), rows, none="No cursors.")


@app.command()
@with_client(ending_writer("Placing what waits for log {name}"))
async def place(
    client: QuireClient,
    out: Output,
    agreed: Agreement,
    name: NameArgument,
    password: PasswordOption = "",
) -> None:
    """Give offsets to batches that a sink committed and that the log's leader did not place before it died.

    What that leader left open is recovered; one that lives is ended.
    """
    await agreed.check(client, name, out)
    log = client.log(name, password.encode())
    waiting = sum(len(adoption.items) for adoption in (await log.identify()).adoptions)
    await log.place()
    text = (
        f"Log {name}: {waiting} ledger{' has its' if waiting == 1 else 's have their'} offsets."
        if waiting
        else "Nothing waits."
    )
    out.result({"log": name, "placed": waiting}, text)


@app.command()
@with_client()
async def collect(
    client: QuireClient,
    out: Output,
    grace: Annotated[
        float, option("--grace HOURS", "How old garbage must be that only its age proves.", min=0)
    ] = 24.0,
    every: Annotated[
        float | None, option("--every SECONDS", "Go on, and repeat after this time.", min=0.01)
    ] = None,
) -> None:
    """Delete what crashed writers and jobs left: staged ledgers that can join no log any more, pages, half truncations.

    One look deletes the ledgers of sinks. What leaders left is deleted when it was seen twice, the grace time apart:
    that takes --every.
    """
    import asyncio

    from quire.log.collecting import LogCollector

    collector = LogCollector(client, round(grace * 3_600_000))
    while True:
        try:
            done = await collector.collect()
            text = (
                f"Deleted {len(done.ledgers)} ledgers and {len(done.pages)} pages, finished {len(done.intents)} "
                f"truncations; {done.suspected} things are watched."
            )
            out.result(attributes(done, "ledgers pages intents suspected"), text)
        except QuireError as error:
            if every is None or not error.retriable:
                raise
            out.note(f"This look ended early, the next one comes in {every:g} s: {error.message}")
        if every is None:
            return
        await asyncio.sleep(every)


async def warn_of_room(out: Output, client: QuireClient, name: str, settings: LogSettings) -> None:
    """Say on stderr if the cluster has no room for a ledger of these settings now: the first append would be refused."""
    from quire.cli.console.wording import for_command_line
    from quire.client.writing.creating import place, shape_of

    shape = shape_of(
        settings.ensemble_size, settings.write_quorum, settings.ack_quorum, settings.min_present or None
    )
    try:
        await place(shape, client.bookies, client.chance, ())
    except NotEnoughBookiesError as error:
        out.note(
            f"Log {name} takes no records yet: {for_command_line(error.message, error.ids)} "
            f"(`quire log alter {name}` changes the log's)."
        )

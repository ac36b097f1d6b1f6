"""`quire log …`: logs, each a list of ledgers that reads as one endless sequence of records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from quire.cli.console.asking import YesOption, confirm
from quire.cli.console.options import (
    ClusterOption,
    FrameOption,
    JsonOption,
    MinPresentOption,
    cluster_uri,
    run,
)
from quire.cli.console.output import Output, human_bytes
from quire.cli.log import append as log_append
from quire.cli.log import log_show
from quire.cli.log import move as log_move
from quire.cli.log import read as log_read
from quire.cli.log.log_show import quorums_of, records_in, shown_facts
from quire.cli.log.parameters import LogPasswordOption, NameArgument
from quire.cli.log.whose_writer import EndsWriterOption, agree, check_agreed, standing_of
from quire.core.errors import NotEnoughBookiesError, QuireError

if TYPE_CHECKING:
    from quire.core.log.list import LogSettings
    from quire.log.client import QuireClient
    from quire.log.collecting import Collected

app = typer.Typer(
    help="Logs: create, append, read, tail, list, show, alter, copy, export, import, roll, truncate, delete, cursors, "
    "place, collect."
)


@app.command()
def create(
    name: NameArgument,
    cluster: ClusterOption = None,
    ensemble_size: Annotated[
        int, typer.Option("--ensemble-size", "-E", help="Bookies that share the entries.")
    ] = 3,
    write_quorum: Annotated[
        int, typer.Option("--write-quorum", "-w", help="Bookies that get each entry.")
    ] = 3,
    ack_quorum: Annotated[int, typer.Option("--ack-quorum", "-a", help="How many make it durable.")] = 2,
    min_present: MinPresentOption = None,
    as_json: JsonOption = False,
) -> None:
    """Create an empty log; the quorums are those of its ledgers."""
    uri, out = cluster_uri(cluster), Output(as_json=as_json)

    async def work() -> None:
        import quire

        async with quire.connect(uri) as client:
            log = client.log(name)
            await log.create(
                ensemble_size=ensemble_size,
                write_quorum=write_quorum,
                ack_quorum=ack_quorum,
                min_present=min_present,
            )
            out.result({"log": name, "created": True}, f"Log {name} is created.")
            await warn_of_room(out, client, name, (await log.identify()).settings)

    run(work())


app.command("append")(log_append.append)
app.command("read")(log_read.read)
app.command("tail")(log_read.tail)
app.command("list")(log_show.list_logs)
app.command("show")(log_show.show)
app.command("copy")(log_move.copy)
app.command("export")(log_move.export)
app.command("import")(log_move.import_)


@app.command()
def alter(
    name: NameArgument,
    ensemble_size: Annotated[
        int | None,
        typer.Option("--ensemble-size", "-E", help="Bookies that share the entries.", show_default=False),
    ] = None,
    write_quorum: Annotated[
        int | None,
        typer.Option("--write-quorum", "-w", help="Bookies that get each entry.", show_default=False),
    ] = None,
    ack_quorum: Annotated[
        int | None,
        typer.Option("--ack-quorum", "-a", help="How many make it durable.", show_default=False),
    ] = None,
    min_present: Annotated[
        int | None,
        typer.Option(
            "--min-present",
            metavar="N",
            min=0,
            help="Bookies of a new ledger that must be there, Qa to E; 0: Qa.",
            show_default=False,
        ),
    ] = None,
    cluster: ClusterOption = None,
    as_json: JsonOption = False,
) -> None:
    """Change the settings of the ledgers that a log will have; what is not named stays.

    Ledgers that exist keep theirs. A writer that is there uses the new settings for its next ledger, and `log roll`
    begins one.
    """
    uri, out = cluster_uri(cluster), Output(as_json=as_json)

    async def work() -> None:
        import quire
        from quire.log.altering import alter_log

        async with quire.connect(uri) as client:
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
            text = (
                f"Log {name}: E/Qw/Qa {quorums_of(new)}, until now {quorums_of(old)}, for its next ledgers."
            )
        out.result(facts, text)

    run(work())


@app.command()
def delete(
    name: NameArgument,
    yes: YesOption = False,
    cluster: ClusterOption = None,
    password: LogPasswordOption = "",
    as_json: JsonOption = False,
) -> None:
    """Delete a log with all its ledgers for ever, and end its writer; bookies free the space a little later."""
    uri, out = cluster_uri(cluster), Output(as_json=as_json)

    async def look() -> str:
        import quire
        from quire.log.heads import LogHeads

        async with quire.connect(uri) as client:
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

    async def work() -> None:
        import quire

        async with quire.connect(uri) as client:
            await client.delete_log(name, password.encode())
        out.result({"log": name, "deleted": True}, f"Log {name} is deleted.")

    run(work())


@app.command()
def roll(
    name: NameArgument,
    yes: EndsWriterOption = False,
    cluster: ClusterOption = None,
    frame_bytes_max: FrameOption = None,
    password: LogPasswordOption = "",
    as_json: JsonOption = False,
) -> None:
    """Take the log over, which closes its last ledger for good and begins a new one, and step down.

    A writer rolls by itself (by size and time); this is for a log without a writer, or to end its writer.
    """
    uri, out = cluster_uri(cluster), Output(as_json=as_json)
    does = f"Rolling log {name}"
    agreed = agree(uri, name, does, yes=yes)

    async def work() -> None:
        import quire

        async with quire.connect(uri, frame_bytes_max=frame_bytes_max) as client:
            await check_agreed(client, name, does, agreed, out)
            log = client.log(name, password.encode())
            async with await log.open_writer():
                pass  # opening is what recovers and closes the former ledger
            about = await log.describe()
        count = len(about.items)
        text = f"Log {name} has {count} ledger{'' if count == 1 else 's'}, next offset {about.end_offset:,}."
        out.result(shown_facts(about), text)

    run(work())


@app.command()
def truncate(
    name: NameArgument,
    before: Annotated[int, typer.Option(help="Records below this offset are deleted.", min=0)],
    yes: YesOption = False,
    cluster: ClusterOption = None,
    password: LogPasswordOption = "",
    as_json: JsonOption = False,
) -> None:
    """Truncate a log's beginning; ledgers that are wholly before the offset are deleted."""
    uri, out = cluster_uri(cluster), Output(as_json=as_json)
    confirm(
        f"Delete the records of log {name} before offset {before:,} for ever?",
        f"Truncating log {name} cannot be undone",
        yes=yes,
    )

    async def work() -> None:
        import quire

        async with quire.connect(uri) as client:
            log = client.log(name, password.encode())
            await log.truncate(before=before)
            about = await log.describe()
        out.result(shown_facts(about), f"Log {name} starts at offset {about.start_offset:,}.")

    run(work())


@app.command()
def cursors(
    name: NameArgument,
    remove: Annotated[
        str | None,
        typer.Option(metavar="CURSOR", help="Delete this cursor; a reader that uses it creates it again."),
    ] = None,
    yes: YesOption = False,
    cluster: ClusterOption = None,
    password: LogPasswordOption = "",
    as_json: JsonOption = False,
) -> None:
    """List a log's cursors, the named positions of its readers, and how far behind each is."""
    uri, out = cluster_uri(cluster), Output(as_json=as_json)
    if remove is not None:
        confirm(
            f"Remove cursor {remove} of log {name}? Its reader begins anew.",
            f"Removing cursor {remove} of log {name} cannot be undone",
            yes=yes,
        )

    async def work() -> None:
        import quire

        async with quire.connect(uri) as client:
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
                    "first_offset": cursor.first_offset,
                    "offset": cursor.offset,
                    "lag": max(end - cursor.offset, 0),
                    "hold": cursor.hold,
                    "moved_ms": cursor.moved_ms,
                }
                for cursor in await log.cursors()
            ]
        if not out.rows("", ("cursor", "first_offset", "offset", "lag", "hold"), rows):
            out.note("No cursors.")

    run(work())


@app.command()
def place(
    name: NameArgument,
    yes: EndsWriterOption = False,
    cluster: ClusterOption = None,
    password: LogPasswordOption = "",
    as_json: JsonOption = False,
) -> None:
    """Give offsets to batches that a sink committed and that the log's leader did not place before it died.

    What that leader left open is recovered; one that lives is ended.
    """
    uri, out = cluster_uri(cluster), Output(as_json=as_json)
    does = f"Placing what waits for log {name}"
    agreed = agree(uri, name, does, yes=yes)

    async def work() -> None:
        import quire

        async with quire.connect(uri) as client:
            await check_agreed(client, name, does, agreed, out)
            log = client.log(name, password.encode())
            waiting = sum(len(adoption.items) for adoption in (await log.identify()).adoptions)
            await log.place()
        text = (
            f"Log {name}: {waiting} ledger{' has its' if waiting == 1 else 's have their'} offsets."
            if waiting
            else "Nothing waits."
        )
        out.result({"log": name, "placed": waiting}, text)

    run(work())


@app.command()
def collect(
    grace: Annotated[
        float,
        typer.Option(metavar="HOURS", help="How old garbage must be that only its age proves.", min=0),
    ] = 24.0,
    every: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Go on, and repeat after this time.", min=0.01)
    ] = None,
    cluster: ClusterOption = None,
    as_json: JsonOption = False,
) -> None:
    """Delete what crashed writers and jobs left: staged ledgers that can join no log any more, pages, half truncations.

    One look deletes the ledgers of sinks. What leaders left is deleted when it was seen twice, the grace time apart:
    that takes --every.
    """
    uri, out = cluster_uri(cluster), Output(as_json=as_json)

    async def work() -> None:
        import asyncio

        import quire
        from quire.log.collecting import LogCollector

        async with quire.connect(uri) as client:
            collector = LogCollector(client, round(grace * 3_600_000))
            while True:
                try:
                    _say_collected(out, await collector.collect())
                except QuireError as error:
                    if every is None or not error.retriable:
                        raise
                    out.note(f"This look ended early, the next one comes in {every:g} s: {error.message}")
                if every is None:
                    return
                await asyncio.sleep(every)

    run(work())


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


def _say_collected(out: Output, done: Collected) -> None:
    facts = {
        "ledgers": list(done.ledgers),
        "pages": list(done.pages),
        "intents": list(done.intents),
        "suspected": done.suspected,
    }
    text = (
        f"Deleted {len(done.ledgers)} ledgers and {len(done.pages)} pages, finished {len(done.intents)} "
        f"truncations; {done.suspected} things are watched."
    )
    out.result(facts, text)

"""`quire log …`: logs, each a list of ledgers that reads as one endless sequence of records."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from quire.cli.log_records import (
    Form,
    LogAppender,
    form_of,
    print_records,
    read_log_records,
)
from quire.cli.options import ClusterOption, FrameOption, JsonOption, MinPresentOption, cluster_uri, run
from quire.cli.output import Output, human_bytes
from quire.core.errors import MisuseError

app = typer.Typer(
    help="Logs: create, append, read, tail, list, show, roll, truncate, cursors, place, collect."
)

NameArgument = Annotated[str, typer.Argument(metavar="LOG", help="The log's name.")]
FormOption = Annotated[
    Form | None,
    typer.Option(
        "--format",
        help="How records are written: lines (values alone), or delimited or json, which have keys, headers and tombstones "
        "too [default: lines].",
        show_default=False,
    ),
]
DelimitedOption = Annotated[
    bool,
    typer.Option(
        "--delimited", help="A 4-byte big-endian length before each record, as --format delimited has it."
    ),
]


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
            await client.log(name).create(
                ensemble_size=ensemble_size,
                write_quorum=write_quorum,
                ack_quorum=ack_quorum,
                min_present=min_present,
            )
        out.result({"log": name, "created": True}, f"Log {name} is created.")

    run(work())


@app.command()
def append(
    name: NameArgument,
    files: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[FILE]...", help="What to append; standard input without any."),
    ] = None,
    cluster: ClusterOption = None,
    frame_bytes_max: FrameOption = None,
    form: FormOption = None,
    delimited: DelimitedOption = False,
    as_json: JsonOption = False,
) -> None:
    """Become the log's writer, append each record of the input, step down.

    A writer that was there is fenced: it can confirm nothing more. What `log read` prints can be appended to another log
    in the same --format; keys, headers and tombstones need delimited or json.
    """
    from quire.cli.feed import append_all

    uri, out = cluster_uri(cluster), Output(as_json=as_json)
    wanted = form_of(form, delimited=delimited)
    records = read_log_records(files or [], wanted, frame_bytes_max=frame_bytes_max)

    async def work() -> None:
        import quire

        async with (
            quire.connect(uri, frame_bytes_max=frame_bytes_max) as client,
            await client.log(name).open_writer() as writer,
        ):
            with out.progress(f"log {name}", unit="records") as progress:
                count, size, last = await append_all(LogAppender(writer), records, progress)
                rate = count / max(progress.seconds, 1e-9)
        first = last - count + 1 if count else None
        facts = {
            "log": name,
            "records": count,
            "bytes": size,
            "first_offset": first,
            "last_offset": last if count else None,
            "records_per_s": round(rate),
        }
        where = f" at offsets {first:,}..{last:,}" if count else ""
        out.result(
            facts, f"Log {name}: {count:,} records, {human_bytes(size)},{where} ({rate:,.0f} records/s)."
        )

    run(work())


@app.command()
def read(
    name: NameArgument,
    start: Annotated[
        int | None, typer.Option(help="The first offset [default: the log's start].", min=0)
    ] = None,
    end: Annotated[
        int | None, typer.Option(help="Stop before this offset [default: the log's end].", min=0)
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with what is appended later.")
    ] = False,
    recover: Annotated[
        bool,
        typer.Option(
            "--recover",
            help="First close what is open, so that everything a writer that is gone had acknowledged is read. "
            "It ends a writer that lives.",
        ),
    ] = False,
    cluster: ClusterOption = None,
    frame_bytes_max: FrameOption = None,
    form: FormOption = None,
    delimited: DelimitedOption = False,
    as_json: JsonOption = False,
) -> None:
    """Print records: each value and a line feed, or length-delimited, or one JSON object per line.

    Lines have values alone; the other forms have keys, headers and tombstones, and `log append --format` takes them.
    """
    wanted = form_of(form, delimited=delimited, as_json=as_json)
    if follow and end is not None:
        raise MisuseError("--follow has no end: leave --end out.")
    if follow and recover:
        raise MisuseError("--follow goes on beside a writer, --recover ends it: leave one of them out.")
    uri, out = cluster_uri(cluster), Output(as_json=as_json)

    async def work() -> None:
        import quire

        async with quire.connect(uri, frame_bytes_max=frame_bytes_max) as client:
            log = client.log(name)
            begin = start if start is not None else (await log.describe()).start_offset
            records = log.tail(start=begin) if follow else log.read(start=begin, end=end, recover=recover)
            await print_records(out, records, wanted, at_once=follow)

    run(work())


@app.command()
def tail(
    name: NameArgument,
    count: Annotated[
        int, typer.Option("--lines", "-n", help="Begin with so many of the last records.", min=0)
    ] = 10,
    cluster: ClusterOption = None,
    frame_bytes_max: FrameOption = None,
    form: FormOption = None,
    delimited: DelimitedOption = False,
    as_json: JsonOption = False,
) -> None:
    """Print the last records and then each new one, until Ctrl-C."""
    wanted = form_of(form, delimited=delimited, as_json=as_json)
    uri, out = cluster_uri(cluster), Output(as_json=as_json)

    async def work() -> None:
        import quire

        async with quire.connect(uri, frame_bytes_max=frame_bytes_max) as client:
            log = client.log(name)
            about = await log.describe()
            begin = max(about.start_offset, about.end_offset - count)
            await print_records(out, log.tail(start=begin), wanted, at_once=True)

    run(work())


@app.command("list")
def list_logs(cluster: ClusterOption = None, as_json: JsonOption = False) -> None:
    """List the logs with their offsets and sizes."""
    uri, out = cluster_uri(cluster), Output(as_json=as_json)

    async def work() -> None:
        import quire

        async with quire.connect(uri) as client:
            rows = []
            for name in await client.logs():
                about = await client.log(name).describe()
                rows.append(
                    {
                        "log": about.name,
                        "start_offset": about.start_offset,
                        "end_offset": about.end_offset,
                        "records": min(
                            about.end_offset - about.start_offset, sum(item.count for item in about.items)
                        ),
                        "ledgers": len(about.items),
                        "epoch": about.epoch,
                    }
                )
        if not out.rows("", ("log", "start_offset", "end_offset", "records", "ledgers", "epoch"), rows):
            out.note("No logs.")

    run(work())


@app.command()
def show(name: NameArgument, cluster: ClusterOption = None, as_json: JsonOption = False) -> None:
    """Draw a log: its ledgers in order, their offsets, sizes and states."""
    uri, out = cluster_uri(cluster), Output(as_json=as_json)

    async def work() -> None:
        import quire

        async with quire.connect(uri) as client:
            about = await client.log(name).describe()
        out.result(_shown(about), "\n".join(_drawing(about)))

    run(work())


@app.command()
def roll(
    name: NameArgument,
    cluster: ClusterOption = None,
    frame_bytes_max: FrameOption = None,
    as_json: JsonOption = False,
) -> None:
    """Take the log over, which closes its last ledger for good and begins a new one, and step down.

    A writer rolls by itself (by size and time); this is for a log without a writer, or to end its writer.
    """
    uri, out = cluster_uri(cluster), Output(as_json=as_json)

    async def work() -> None:
        import quire

        async with quire.connect(uri, frame_bytes_max=frame_bytes_max) as client:
            async with await client.log(name).open_writer():
                pass  # opening is what recovers and closes the former ledger
            about = await client.log(name).describe()
        out.result(
            _shown(about), f"Log {name} has {len(about.items)} ledgers, next offset {about.end_offset:,}."
        )

    run(work())


@app.command()
def truncate(
    name: NameArgument,
    before: Annotated[int, typer.Option(help="Records below this offset go.", min=0)],
    cluster: ClusterOption = None,
    as_json: JsonOption = False,
) -> None:
    """Forget a log's beginning; ledgers that are wholly before the offset are deleted."""
    uri, out = cluster_uri(cluster), Output(as_json=as_json)

    async def work() -> None:
        import quire

        async with quire.connect(uri) as client:
            log = client.log(name)
            await log.truncate(before=before)
            about = await log.describe()
        out.result(_shown(about), f"Log {name} starts at offset {about.start_offset:,}.")

    run(work())


@app.command()
def cursors(
    name: NameArgument,
    remove: Annotated[
        str | None,
        typer.Option(metavar="CURSOR", help="Forget this one; a reader that uses it makes it anew."),
    ] = None,
    cluster: ClusterOption = None,
    as_json: JsonOption = False,
) -> None:
    """List a log's cursors, the named positions of its readers, and how far behind each is."""
    uri, out = cluster_uri(cluster), Output(as_json=as_json)

    async def work() -> None:
        import quire

        async with quire.connect(uri) as client:
            log = client.log(name)
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
def place(name: NameArgument, cluster: ClusterOption = None, as_json: JsonOption = False) -> None:
    """Give offsets to batches that a sink committed and that the log's leader did not place before it died.

    What that leader left open is recovered; one that lives is ended.
    """
    uri, out = cluster_uri(cluster), Output(as_json=as_json)

    async def work() -> None:
        import quire

        async with quire.connect(uri) as client:
            log = client.log(name)
            waiting = sum(len(adoption.items) for adoption in (await log.identify()).adoptions)
            await log.place()
        text = f"Log {name}: {waiting} ledgers have their offsets." if waiting else "Nothing waits."
        out.result({"log": name, "placed": waiting}, text)

    run(work())


@app.command()
def collect(
    grace: Annotated[
        float,
        typer.Option(
            metavar="HOURS", help="How old a thing must be that no fact proves to be garbage.", min=0
        ),
    ] = 24.0,
    every: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Go on, and look again so often.", min=0.01)
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
                done = await collector.collect()
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
                if every is None:
                    return
                await asyncio.sleep(every)

    run(work())


def _shown(about: Any) -> dict[str, object]:
    """A log's description as a JSON line."""
    names = (
        "ledger_id",
        "first_offset",
        "next_offset",
        "count",
        "bytes",
        "min_time_ms",
        "max_time_ms",
        "state",
    )
    return {
        "log": about.name,
        "log_id": about.log_id,
        "epoch": about.epoch,
        "start_offset": about.start_offset,
        "end_offset": about.end_offset,
        "compacted_below": about.compacted_below,
        "items": [{name: _plain(getattr(item, name)) for name in names} for item in about.items],
    }


def _plain(value: Any) -> object:
    return value.name.lower() if hasattr(value, "name") else value


def _drawing(about: Any) -> list[str]:
    """The picture of a log."""
    from quire.cli.picture import ItemFacts, draw_items

    items = [
        ItemFacts(
            item.ledger_id, item.first_offset, item.next_offset, item.bytes or 0, str(_plain(item.state))
        )
        for item in about.items
    ]
    size = human_bytes(sum(item.size for item in items))
    head = (
        f"Log {about.name} (id {about.log_id}, epoch {about.epoch}): offsets {about.start_offset:,} to "
        f"{about.end_offset - 1:,}, {len(items)} ledgers, {size}"
    )
    return [head, *draw_items(items, about.start_offset)]

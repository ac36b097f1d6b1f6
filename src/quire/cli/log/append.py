"""`quire log append`: records of files and pipes, with keys, headers and times, into a log."""

from __future__ import annotations

import contextlib
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from quire.cli.console.feed import (
    AppendTally,
    TerminalInputProgress,
    append_all,
    is_typed_by_hand,
    telling_how_far,
)
from quire.cli.console.options import (
    GUARANTEE,
    ClusterOption,
    FrameOption,
    GuaranteeOption,
    JsonOption,
    cluster_uri,
    run,
)
from quire.cli.console.output import Output, human_bytes, rate_of, rate_text
from quire.cli.log.formats import escaped
from quire.cli.log.parameters import (
    CreateOption,
    DelimitedOption,
    InFormOption,
    KeyDelimiterOption,
    LogPasswordOption,
    NameArgument,
)
from quire.cli.log.ranges import time_of
from quire.cli.log.record_lines import Added, Form, LogAppender, form_of, read_log_records
from quire.cli.log.whose_writer import Agreement, EndsWriterOption, agree, check_agreed, standing_of
from quire.core.errors import AlreadyExistsError, MisuseError, NoSuchLogError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from quire.cli.console.output import ProgressLine
    from quire.cli.console.record_streams import InputRecord
    from quire.log.client import QuireClient
    from quire.log.config import LogConfig
    from quire.log.writer import LogWriter

WaitOption = Annotated[
    bool, typer.Option("--wait", help="Wait until the log's writer has ended, instead of ending it.")
]


def added_of(
    form: Form,
    key: str | None,
    key_delimiter: str | None,
    headers: list[str],
    timestamp: str | None,
    *,
    empty_is_tombstone: bool,
) -> Added:
    """What options give to records.

    Raises:
        MisuseError: a header has no `=`, a delimiter is for lines only, or the time is none.
    """
    if key_delimiter is not None and form is not Form.LINES:
        raise MisuseError(f"--key-delimiter is for lines; {form} records have their keys anyway.")
    named: list[tuple[str, bytes | None]] = []
    for header in headers:
        name, equals, value = header.partition("=")
        if not equals:
            raise MisuseError(f"--header takes NAME=VALUE, not {header!r}.")
        named.append((name, value.encode()))
    return Added(
        None if key is None else key.encode(),
        tuple(named),
        None if timestamp is None else time_of(timestamp, "--timestamp takes"),
        None if key_delimiter is None else escaped(key_delimiter, "--key-delimiter"),
        empty_is_tombstone,
    )


def append(
    name: NameArgument,
    files: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[FILE]...", help="What to append; standard input without any."),
    ] = None,
    key: Annotated[
        str | None, typer.Option("--key", "-k", help="The key of records without one.", show_default=False)
    ] = None,
    key_delimiter: KeyDelimiterOption = None,
    headers: Annotated[
        list[str] | None,
        typer.Option(
            "--header",
            "-H",
            metavar="NAME=VALUE",
            help="A header of every record; may be repeated.",
        ),
    ] = None,
    timestamp: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="The time of records without one: ISO 8601 (UTC without a zone), milliseconds since 1970, or -1h before "
            "now [default: now].",
            show_default=False,
        ),
    ] = None,
    empty_is_tombstone: Annotated[
        bool, typer.Option("--empty-is-tombstone", "-Z", help="An empty value becomes a tombstone.")
    ] = False,
    form: InFormOption = None,
    delimited: DelimitedOption = False,
    create: CreateOption = False,
    wait: WaitOption = False,
    guarantee: GuaranteeOption = None,
    yes: EndsWriterOption = False,
    cluster: ClusterOption = None,
    frame_bytes_max: FrameOption = None,
    password: LogPasswordOption = "",
    as_json: JsonOption = False,
) -> None:
    """Append each record of the input to a log.

    With the first record this command becomes the log's writer; at the end it steps down. A log has one writer at a time:
    one that is there is ended only after a question, or with --yes. What `log read` prints can be appended in the same
    --format; keys, headers and tombstones need delimited or json, or lines with -K.

    When it ends early, it says how many records are confirmed, the offset of the last one, and why. Exit code 3: it is
    unknown whether later records are in the log. Exit code 1: they are not.
    """
    if wait and yes:
        raise MisuseError("--wait waits for the log's writer, --yes ends it: leave one of them out.")
    wanted = form_of(form, delimited=delimited)
    added = added_of(
        wanted, key, key_delimiter, headers or [], timestamp, empty_is_tombstone=empty_is_tombstone
    )
    command = f"quire log append {quote(name)}"
    records = read_log_records(
        files or [], wanted, frame_bytes_max=frame_bytes_max, added=added, command=command
    )
    config = config_of(guarantee)
    out = Output(as_json=as_json)
    uri = cluster_uri(cluster)
    if create:
        run(be_there(uri, name, create=True))
    agreed = Agreement() if wait else agree(uri, name, f"Appending to log {name}", yes=yes)
    typed = is_typed_by_hand(files)
    tally = AppendTally()
    progress = (
        TerminalInputProgress(name, None, "records") if typed else out.progress(f"log {name}", unit="records")
    )

    async def work() -> None:
        import quire

        async with quire.connect(uri, frame_bytes_max=frame_bytes_max) as client:
            await client.log(name).identify()  # without the log nothing is read
            await append_records(
                client,
                name,
                password,
                records,
                tally,
                progress,
                agreed=agreed,
                wait=wait,
                out=out,
                config=config,
            )

    with telling_how_far(tally, out, "records", "offset", log=name):
        run(work())
    say_result(out, name, tally, progress.seconds)


async def be_there(uri: str, name: str, *, create: bool) -> None:
    """Raise NoSuchLogError if there is no such log; with `create` it is made."""
    import quire

    async with quire.connect(uri) as client:
        try:
            await client.log(name).identify()
        except NoSuchLogError:
            if not create:
                raise
            with contextlib.suppress(AlreadyExistsError):  # another command was faster
                await client.log(name).create()


def config_of(guarantee: str | None) -> LogConfig:
    """The writer's, with what `--guarantee` names.

    Raises:
        MisuseError: there is no such guarantee.
    """
    from quire.log.config import LogConfig, LogGuarantee

    if guarantee is not None and guarantee != GUARANTEE:
        raise MisuseError(f"--guarantee takes {GUARANTEE}, not {guarantee!r}.")
    return LogConfig(guarantee=LogGuarantee() if guarantee else None)


def say_result(out: Output, name: str, tally: AppendTally, seconds: float) -> None:
    """Print what was appended to a log."""
    facts = {
        "log": name,
        "records": tally.confirmed,
        "bytes": tally.bytes,
        "first_offset": tally.first,
        "last_offset": tally.last,
        "records_per_s": rate_of(tally.confirmed, seconds),
    }
    where = "" if tally.last is None else f", at offsets {tally.first:,}..{tally.last:,}"
    counted = f"{tally.confirmed:,} record{'' if tally.confirmed == 1 else 's'}"
    rate = rate_text(tally.confirmed, seconds, "records")
    out.result(facts, f"Log {name}: {counted}, {human_bytes(tally.bytes)}{where}{rate}.")


async def append_records(
    client: QuireClient,
    name: str,
    password: str,
    records: Iterator[bytes | InputRecord],
    tally: AppendTally,
    progress: ProgressLine,
    *,
    agreed: Agreement,
    wait: bool,
    out: Output,
    config: LogConfig | None = None,
) -> None:
    """Append records to a log, as its writer from the first one on.

    Args:
        client: the cluster.
        name: the log.
        password: of its ledgers.
        records: read on another thread.
        tally: counts what is confirmed.
        progress: shows it.
        agreed: which writers may be ended.
        wait: wait for the writer that is there.
        out: says what is waited for.
        config: of the writer.

    Raises:
        LogLedError: a writer is there that may not be ended.
        QuireError: as `append_all`.
    """
    async with contextlib.AsyncExitStack() as stack:

        async def open_writer() -> LogAppender:
            does = f"Appending to log {name}"
            if not wait:
                await check_agreed(client, name, does, agreed, out, or_wait=True)
            elif (standing := await standing_of(client, name)).writer and not out.as_json:
                out.note(f"{does} waits until the writer at {standing.writer_host} has ended.")
            log = client.log(name, password.encode(), config)
            writer: LogWriter = await stack.enter_async_context(
                await log.open_writer(wait_for_leadership=wait)
            )
            return LogAppender(writer)

        stack.enter_context(progress)
        await append_all(open_writer, records, progress, tally)

"""`quire log append`: records of files and pipes, with keys, headers and times, into a log."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

from quire.cli.console.awaited import telling_who_is_awaited
from quire.cli.console.feed import AppendTally, in_groups, is_typed_by_hand
from quire.cli.console.opening import with_client
from quire.cli.console.options import GUARANTEE, GuaranteeOption, PasswordOption, argument, option
from quire.cli.console.output import Output, counted, human_bytes, rate_of, rate_text
from quire.cli.log.formats import escaped
from quire.cli.log.parameters import (
    CreateOption,
    DelimitedOption,
    InFormOption,
    KeyDelimiterOption,
    NameArgument,
)
from quire.cli.log.ranges import time_of
from quire.cli.log.record_lines import Added, Form, form_of, read_log_records
from quire.cli.log.whose_writer import Agreement, ending_writer, standing_of
from quire.core.errors import MisuseError, NoSuchLogError

if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncIterator, Callable

    from quire.cli.console.record_streams import InputRecord
    from quire.log.client import QuireClient
    from quire.log.config import LogConfig
    from quire.log.log import Log
    from quire.log.writer import LogWriter

WaitOption = Annotated[bool, option("--wait", "Wait until the log's writer has ended, instead of ending it.")]


@dataclass(frozen=True)
class RecordOptions:
    """How records are written, and what they get that they do not have."""

    key: Annotated[str | None, option("--key -k", "The key of records without one.")] = None
    key_delimiter: KeyDelimiterOption = None
    headers: Annotated[
        list[str] | None,
        option("--header -H NAME=VALUE", "A header of every record; may be repeated."),
    ] = None
    timestamp: Annotated[
        str | None,
        option(
            "--timestamp TIME",
            "The time of records without one: ISO 8601 (UTC without a zone), milliseconds since 1970, or -1h before "
            "now [default: now].",
        ),
    ] = None
    empty_is_tombstone: Annotated[
        bool, option("--empty-is-tombstone -Z", "An empty value becomes a tombstone.")
    ] = False
    form: InFormOption = None
    delimited: DelimitedOption = False
    guarantee: GuaranteeOption = None

    def __post_init__(self) -> None:
        _ = self.written, self.added, self.config

    @property
    def written(self) -> Form:
        """How they are written."""
        return form_of(self.form, delimited=self.delimited)

    @property
    def added(self) -> Added:
        """What they get.

        Raises:
            MisuseError: a header has no `=`, a delimiter is for lines only, or the time is none.
        """
        if self.key_delimiter is not None and self.written is not Form.LINES:
            raise MisuseError(f"--key-delimiter is for lines; {self.written} records have their keys anyway.")
        named: list[tuple[str, bytes | None]] = []
        for header in self.headers or ():
            name, equals, value = header.partition("=")
            if not equals:
                raise MisuseError(f"--header takes NAME=VALUE, not {header!r}.")
            named.append((name, value.encode()))
        return Added(
            None if self.key is None else self.key.encode(),
            tuple(named),
            None if self.timestamp is None else time_of(self.timestamp, "--timestamp takes"),
            None if self.key_delimiter is None else escaped(self.key_delimiter, "--key-delimiter"),
            self.empty_is_tombstone,
        )

    @property
    def config(self) -> LogConfig:
        """The writer's settings.

        Raises:
            MisuseError: there is no such guarantee.
        """
        from quire.log.config import LogConfig, LogGuarantee

        if self.guarantee not in {None, GUARANTEE}:
            raise MisuseError(f"--guarantee takes {GUARANTEE}, not {self.guarantee!r}.")
        return LogConfig(guarantee=LogGuarantee() if self.guarantee else None)


@with_client(ending_writer("Appending to log {name}"))
async def append(
    client: QuireClient,
    out: Output,
    agreed: Agreement,
    name: NameArgument,
    how: RecordOptions,
    files: Annotated[
        list[Path] | None,
        argument("[FILE]...", "What to append; standard input without any."),
    ] = None,
    create: CreateOption = False,
    wait: WaitOption = False,
    password: PasswordOption = "",
) -> None:
    """Append each record of the input to a log.

    With the first record this command becomes the log's writer; at the end it steps down. A log has one writer at a time:
    one that is there is ended only after a question, or with --yes. What `log read` prints can be appended in the same
    --format; keys, headers and tombstones need delimited or json, or lines with -K.

    When it ends early, it says how many records are confirmed, the offset of the last one, and why. Exit code 3: it is
    unknown whether later records are in the log. Exit code 1: they are not.
    """
    command = f"quire log append {quote(name)}"
    records = read_log_records(files or [], how.written, added=how.added, command=command)
    log = client.log(name, password.encode(), how.config)
    groups, typed = partial(in_groups, records), is_typed_by_hand(files)
    await append_records(client, log, groups, agreed, out, create=create, wait=wait, typed=typed)


async def append_records(
    client: QuireClient,
    log: Log,
    groups: Callable[[asyncio.Future[BaseException]], AsyncIterator[list[bytes | InputRecord]]],
    agreed: Agreement,
    out: Output,
    *,
    create: bool,
    wait: bool,
    typed: bool = False,
    total: int | None = None,
) -> None:
    """Append records to a log, as its writer from the first one on, and print what was appended.

    Args:
        client: the cluster.
        log: the log.
        groups: the records, as of `append_groups`.
        agreed: which writers may be ended.
        out: where it is printed.
        create: make the log if it is not there.
        wait: wait for the writer that is there.
        typed: a person types them.
        total: how many there are, if that is known.

    Raises:
        NoSuchLogError: there is no such log; nothing is read then.
        LogLedError: a writer is there that may not be ended.
        QuireError: as `append_groups`.
    """
    try:
        await log.identify()
    except NoSuchLogError:
        if not create:
            raise
        await log.create(exist_ok=True)  # another command may be faster
    name = log.name
    tally = AppendTally("records", "offset", log=name)

    async def open_writer(stack: contextlib.AsyncExitStack) -> LogWriter:
        if not wait:
            await agreed.check(client, name, out, or_wait=True)
        elif (standing := await standing_of(client, name)).writer and not out.as_json:
            out.note(f"{agreed.does} waits until the writer at {standing.writer_host} has ended.")
        writer = await log.open_writer(wait_for_leadership=wait)
        telling = telling_who_is_awaited(
            out, f"log {name}", lambda: tally.confirmed, lambda: writer.waits_for
        )
        await stack.enter_async_context(telling)
        return await stack.enter_async_context(writer)

    seconds = await tally.append(out, open_writer, groups, typed=typed, total=total)
    facts = {
        "log": name,
        "records": tally.confirmed,
        "bytes": tally.bytes,
        "first_offset": tally.first,
        "last_offset": tally.last,
        "records_per_s": rate_of(tally.confirmed, seconds),
    }
    where = "" if tally.last is None else f", at offsets {tally.first:,}..{tally.last:,}"
    rate = rate_text(tally.confirmed, seconds, "records")
    out.result(
        facts, f"Log {name}: {counted(tally.confirmed, 'record')}, {human_bytes(tally.bytes)}{where}{rate}."
    )

"""`quire log copy`, `export` and `import`: all that records have, from log to log, and into and out of files."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from quire.cli.console.asking import YesOption, confirm
from quire.cli.console.feed import in_groups
from quire.cli.console.named_clusters import uri_of
from quire.cli.console.opening import connected, with_client
from quire.cli.console.options import MEANT, PasswordOption, argument, option
from quire.cli.console.output import Output, attributes, counted, human_bytes
from quire.cli.console.record_streams import InputRecord, size_of
from quire.cli.log.append import WaitOption, append_records
from quire.cli.log.files import FileForm, export_records, file_form_of, read_files
from quire.cli.log.log_show import digest_of
from quire.cli.log.parameters import CreateOption, NameArgument, SpanOptions
from quire.cli.log.ranges import RecordSpan, records_of
from quire.cli.log.whose_writer import Agreement, EndsWriterOption, agree, ending_writer
from quire.core.errors import AlreadyExistsError, MisuseError

if TYPE_CHECKING:
    from quire.log.client import QuireClient
    from quire.log.log import Log
    from quire.log.records import Record

_GROUP_RECORDS: Final = 1024
_GROUP_BYTES: Final = 4 * 1024 * 1024

FileFormOption = Annotated[
    str | None,
    option(
        "--format -f FORM",
        "json, delimited or parquet; import takes lines too [default: by the file's name: .json, .jsonl, .ndjson, "
        ".delimited, .parquet].",
    ),
]


def _ask_about_target(
    uri: str,
    *,
    target: str,
    onto: bool,
    wait: bool,
    to: Annotated[
        str | None,
        option("--to CLUSTER", "The target's cluster [default: the source's]."),
    ] = None,
    yes: EndsWriterOption = False,
    **_: object,
) -> dict[str, Any]:
    does, target_uri = f"Appending to log {target}", uri_of(to) if to else uri
    # Where it may not exist yet it is either made or refused.
    asks = onto and not wait
    agreed = agree(target_uri, target, does, yes=yes) if asks else Agreement(does, every=yes)
    return {"agreed": agreed, "target_uri": target_uri}


@with_client(_ask_about_target)
async def copy(
    client: QuireClient,
    out: Output,
    agreed: Agreement,
    target_uri: str,
    source: Annotated[str, argument("SOURCE", "The log to copy.")],
    target: Annotated[str, argument("TARGET", "The log that gets the records.")],
    part: SpanOptions,
    onto: Annotated[bool, option("--append", "The target may exist: append to it.")] = False,
    wait: WaitOption = False,
    password: PasswordOption = "",
) -> None:
    """Copy records, with keys, headers, timestamps and tombstones, to another log.

    A target that is not there is made with the source's settings. Records get new offsets, without the gaps of
    compaction. The password is that of both logs.
    """
    span = part.span()
    if source == target and target_uri == MEANT.get():
        raise MisuseError(f"log {source} cannot be copied to itself: name another target.")
    async with connected(target_uri) as other:
        log, copied = client.log(source, password.encode()), other.log(target, password.encode())
        await _make_target(log, copied, onto=onto)
        groups, total = partial(_groups, records_of(log, span)), await _count(log, span)
        await append_records(other, copied, groups, agreed, out, create=False, wait=wait, total=total)


async def _make_target(source: Log, target: Log, *, onto: bool) -> None:
    """Make the target of a copy, as its source, if it is not there.

    Raises:
        NoSuchLogError: there is no source.
        AlreadyExistsError: it is there, and `onto` does not allow it.
    """
    settings = (await source.identify()).settings
    if not await target.exists():
        await target.create(
            **attributes(settings, "ensemble_size write_quorum ack_quorum"),
            min_present=settings.min_present or None,
            digest=digest_of(settings),
        )
    elif not onto:
        text = f"log {target.name} already exists: give --append to append to it, or name another target."
        raise AlreadyExistsError(text, log=target.name)


async def _count(log: Log, span: RecordSpan) -> int | None:
    """How many records are to come, about; None where times or the end leave that open."""
    if span.from_ms is not None or span.until.time_ms is not None:
        return None
    about = await log.describe(span.start or 0)
    first = about.start_offset if span.start is None else span.start
    if span.last is not None:
        first = max(first, about.end_offset - span.last)
    end = about.end_offset if span.until.offset is None else min(span.until.offset, about.end_offset)
    return max(end - first, 0)


async def _groups(
    records: AsyncIterator[Record], failed: asyncio.Future[BaseException]
) -> AsyncIterator[list[bytes | InputRecord]]:
    """Records of a log as records to append, in lists."""
    group: list[bytes | InputRecord] = []
    size = 0
    async for record in records:
        item = InputRecord(record.value, record.key, record.headers, record.timestamp_ms)
        group.append(item)
        size += size_of(item)
        if len(group) >= _GROUP_RECORDS or size >= _GROUP_BYTES:
            if failed.done():
                raise failed.result()
            yield group
            group, size = [], 0
    if group:
        yield group


def _ask_to_replace(
    _uri: str, *, file: Path, form: FileFormOption = None, yes: YesOption = False, **_: object
) -> dict[str, Any]:
    wanted = file_form_of(form, file, lines=False)
    if file.exists():
        confirm(f"Replace {file}?", f"{file} exists and would be replaced", yes=yes)
    return {"wanted": wanted}


@with_client(_ask_to_replace)
async def export(
    client: QuireClient,
    out: Output,
    wanted: FileForm,
    name: NameArgument,
    file: Annotated[Path, argument("FILE", "The file to write.")],
    part: SpanOptions,
    password: PasswordOption = "",
) -> None:
    """Write records with all that they have to a file, which is there when it is whole.

    Parquet has the columns offset, timestamp, key, value, headers, ledger, entry and index. `log import` reads what this
    writes; offsets are assigned anew then.
    """
    span = part.span()
    log = client.log(name, password.encode())
    with out.progress(f"log {name}", await _count(log, span), "records") as progress:
        await export_records(records_of(log, span), file, wanted, progress)
    count, size = progress.count, file.stat().st_size
    facts = {"log": name, "file": str(file), "format": str(wanted), "records": count, "bytes": size}
    out.result(facts, f"Log {name}: {counted(count, 'record')} in {file}, {wanted}, {human_bytes(size)}.")


@with_client(ending_writer("Appending to log {name}"))
async def import_(
    client: QuireClient,
    out: Output,
    agreed: Agreement,
    name: NameArgument,
    files: Annotated[list[Path], argument("FILE...", "What to append.")],
    form: FileFormOption = None,
    create: CreateOption = False,
    wait: WaitOption = False,
    password: PasswordOption = "",
) -> None:
    """Append the records of files, with keys, headers and timestamps, to a log.

    A Parquet file needs a column value (binary or text, null: a tombstone); key, timestamp and headers are taken where
    they are, other columns are passed over. If a file is not whole, what lies before is appended.
    """
    records = read_files({file: file_form_of(form, file, lines=True) for file in files})
    log = client.log(name, password.encode())
    groups = partial(in_groups, records)
    await append_records(client, log, groups, agreed, out, create=create, wait=wait)

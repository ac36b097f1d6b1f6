"""`quire log copy`, `export` and `import`: all that records have, from log to log, and into and out of files."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from quire.cli.console.asking import YesOption, confirm
from quire.cli.console.feed import AppendTally, append_groups, telling_how_far
from quire.cli.console.named_clusters import uri_of
from quire.cli.console.options import ClusterOption, FrameOption, JsonOption, cluster_uri, run
from quire.cli.console.output import Output, human_bytes
from quire.cli.console.record_streams import InputRecord, size_of
from quire.cli.log.append import WaitOption, append_records, be_there, say_result
from quire.cli.log.files import FileForm, export_records, file_form_of, read_files
from quire.cli.log.log_show import digest_of
from quire.cli.log.parameters import (
    CreateOption,
    EndOption,
    FromTimeOption,
    LastOption,
    LogPasswordOption,
    NameArgument,
    StartOption,
    UntilOption,
)
from quire.cli.log.ranges import RecordSpan, records_of, span_of
from quire.cli.log.record_lines import LogAppender
from quire.cli.log.whose_writer import Agreement, EndsWriterOption, agree, check_agreed
from quire.core.errors import AlreadyExistsError, MisuseError

if TYPE_CHECKING:
    from quire.log.log import Log
    from quire.log.records import Record

_GROUP_RECORDS: Final = 1024
_GROUP_BYTES: Final = 4 * 1024 * 1024

FileFormOption = Annotated[
    str | None,
    typer.Option(
        "--format",
        "-f",
        metavar="FORM",
        help="json, delimited or parquet; import takes lines too [default: by the file's name: .json, .jsonl, .ndjson, "
        ".delimited, .parquet].",
        show_default=False,
    ),
]


def copy(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="The log to copy.")],
    target: Annotated[str, typer.Argument(metavar="TARGET", help="The log that gets the records.")],
    to: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="CLUSTER",
            help="The target's cluster [default: the source's].",
            show_default=False,
        ),
    ] = None,
    onto: Annotated[bool, typer.Option("--append", help="The target may exist: append to it.")] = False,
    start: StartOption = None,
    from_time: FromTimeOption = None,
    last: LastOption = None,
    end: EndOption = None,
    until: UntilOption = None,
    wait: WaitOption = False,
    yes: EndsWriterOption = False,
    cluster: ClusterOption = None,
    frame_bytes_max: FrameOption = None,
    password: LogPasswordOption = "",
    as_json: JsonOption = False,
) -> None:
    """Copy records, with keys, headers, timestamps and tombstones, to another log.

    A target that is not there is made with the source's settings. Records get new offsets, without the gaps of
    compaction. The password is that of both logs.
    """
    span = span_of(start=start, end=end, from_time=from_time, last=last, until=until)
    uri, out = cluster_uri(cluster), Output(as_json=as_json)
    target_uri = uri_of(to) if to else uri
    if source == target and target_uri == uri:
        raise MisuseError(f"log {source} cannot be copied to itself: name another target.")
    does = f"Appending to log {target}"
    tally = AppendTally()

    there = run(_target_there(uri, source, target_uri, target, onto=onto))
    agreed = agree(target_uri, target, does, yes=yes) if there and not wait else Agreement(every=yes)

    async def work() -> float:
        import quire

        async with (
            quire.connect(uri, frame_bytes_max=frame_bytes_max) as client,
            quire.connect(target_uri, frame_bytes_max=frame_bytes_max) as other,
            contextlib.AsyncExitStack() as stack,
        ):
            log = client.log(source, password.encode())

            async def open_writer() -> LogAppender:
                if not wait:
                    await check_agreed(other, target, does, agreed, out, or_wait=True)
                writer = await other.log(target, password.encode()).open_writer(wait_for_leadership=wait)
                return LogAppender(await stack.enter_async_context(writer))

            progress = out.progress(f"log {target}", await _count(log, span), "records")
            stack.enter_context(progress)
            await append_groups(open_writer, partial(_groups, records_of(log, span)), progress, tally)
            return progress.seconds

    with telling_how_far(tally, out, "records", "offset", log=target):
        seconds = run(work())
    say_result(out, target, tally, seconds)


async def _target_there(uri: str, source: str, target_uri: str, target: str, *, onto: bool) -> bool:
    """Whether the target of a copy was there; it is made, as its source, if it was not.

    Raises:
        NoSuchLogError: there is no source.
        AlreadyExistsError: it was there, and `onto` does not allow it.
    """
    import quire

    async with quire.connect(uri) as client, quire.connect(target_uri) as other:
        settings = (await client.log(source).identify()).settings
        if await other.log(target).exists():
            if not onto:
                text = f"log {target} already exists: give --append to append to it, or name another target."
                raise AlreadyExistsError(text, log=target)
            return True
        await other.log(target).create(
            ensemble_size=settings.ensemble_size,
            write_quorum=settings.write_quorum,
            ack_quorum=settings.ack_quorum,
            min_present=settings.min_present or None,
            digest=digest_of(settings),
        )
        return False


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


def export(
    name: NameArgument,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file to write.")],
    form: FileFormOption = None,
    start: StartOption = None,
    from_time: FromTimeOption = None,
    last: LastOption = None,
    end: EndOption = None,
    until: UntilOption = None,
    yes: YesOption = False,
    cluster: ClusterOption = None,
    frame_bytes_max: FrameOption = None,
    password: LogPasswordOption = "",
    as_json: JsonOption = False,
) -> None:
    """Write records with all that they have to a file, which is there when it is whole.

    Parquet has the columns offset, timestamp, key, value, headers, ledger, entry and index. `log import` reads what this
    writes; offsets are assigned anew then.
    """
    wanted = file_form_of(form, file, lines=False)
    span = span_of(start=start, end=end, from_time=from_time, last=last, until=until)
    uri, out = cluster_uri(cluster), Output(as_json=as_json)
    if file.exists():
        confirm(f"Replace {file}?", f"{file} exists and would be replaced", yes=yes)

    async def work() -> tuple[int, int]:
        import quire

        async with quire.connect(uri, frame_bytes_max=frame_bytes_max) as client:
            log = client.log(name, password.encode())
            with out.progress(f"log {name}", await _count(log, span), "records") as progress:
                await export_records(records_of(log, span), file, wanted, progress)
        return progress.count, file.stat().st_size

    count, size = run(work())
    facts = {"log": name, "file": str(file), "format": str(wanted), "records": count, "bytes": size}
    counted = f"{count:,} record{'' if count == 1 else 's'}"
    out.result(facts, f"Log {name}: {counted} in {file}, {wanted}, {human_bytes(size)}.")


def import_(
    name: NameArgument,
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="What to append.")],
    form: FileFormOption = None,
    create: CreateOption = False,
    wait: WaitOption = False,
    yes: EndsWriterOption = False,
    cluster: ClusterOption = None,
    frame_bytes_max: FrameOption = None,
    password: LogPasswordOption = "",
    as_json: JsonOption = False,
) -> None:
    """Append the records of files, with keys, headers and timestamps, to a log.

    A Parquet file needs a column value (binary or text, null: a tombstone); key, timestamp and headers are taken where
    they are, other columns are passed over. If a file is not whole, what lies before is appended.
    """
    forms: dict[Path, FileForm] = {file: file_form_of(form, file, lines=True) for file in files}
    records = read_files(forms, frame_bytes_max)
    uri, out = cluster_uri(cluster), Output(as_json=as_json)

    run(be_there(uri, name, create=create))
    agreed = Agreement() if wait else agree(uri, name, f"Appending to log {name}", yes=yes)
    tally = AppendTally()
    progress = out.progress(f"log {name}", unit="records")

    async def work() -> None:
        import quire

        async with quire.connect(uri, frame_bytes_max=frame_bytes_max) as client:
            await append_records(
                client, name, password, records, tally, progress, agreed=agreed, wait=wait, out=out
            )

    with telling_how_far(tally, out, "records", "offset", log=name):
        run(work())
    say_result(out, name, tally, progress.seconds)

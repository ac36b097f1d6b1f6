"""`quire stream …`: unbounded ledgers, which clients write in turn."""

from __future__ import annotations

import contextlib
from functools import partial
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from quire.cli.console.opening import sure, with_client
from quire.cli.console.options import ACK, ENSEMBLE, WRITE, ForceOption, PasswordOption, argument, option
from quire.cli.console.output import Output, counted, human_bytes, rate_text
from quire.cli.ledger.ledger import (
    DelimitedOption,
    DigestOption,
    EntryOptions,
    FilesArgument,
    FirstOption,
    IgnoreLacOption,
    print_range,
    print_tail,
)
from quire.cli.ledger.ledger_show import DAMAGED, show_stream, stream_facts
from quire.cli.ledger.repair import RepairOptions, repair_one
from quire.cli.ledger.verify import print_report

if TYPE_CHECKING:
    import asyncio

    from quire.client.writing.writer import LedgerWriter
    from quire.log.client import QuireClient

app = typer.Typer(
    help="Unbounded ledgers (streams): create, append, read, tail, list, show, verify, repair, close, delete, take-over."
)

NameArgument = Annotated[str, argument("STREAM", "The stream's name.")]


@app.command()
@with_client()
async def create(
    client: QuireClient,
    out: Output,
    name: NameArgument,
    ensemble_size: Annotated[int, ENSEMBLE] = 3,
    write_quorum: Annotated[int, WRITE] = 3,
    ack_quorum: Annotated[int, ACK] = 2,
    digest: DigestOption = "crc32c",
    mode: Annotated[
        str,
        option(
            "--mode",
            "What keeps an earlier writer's entries apart, for ever: identifiers (each entry is named by its term), or "
            "fencing (a take-over takes them away, and needs every bookie of the last ensemble, or a spare).",
        ),
    ] = "identifiers",
    password: PasswordOption = "",
) -> None:
    """Create an empty stream, which has no writer yet."""
    record = await client.unbounded_ledger(name, password.encode(), mode=mode).create(
        ensemble_size=ensemble_size, write_quorum=write_quorum, ack_quorum=ack_quorum, digest=digest
    )
    facts = {"stream": name, "ledger_id": record.ledger_id, "mode": mode, "created": True}
    out.result(facts, f"Stream {name} is created (ledger {record.ledger_id}).")


class AcknowledgedEntries:
    """A stream's writer that prints a line for each entry that is acknowledged, if JSON is wanted.

    Args:
        name: the stream's.
        writer: appends.
        out: prints.
    """

    def __init__(self, name: str, writer: LedgerWriter, out: Output) -> None:
        self._writer, self._out = writer, out
        self._name, self._term = name, writer.term
        self._unprinted: OSError | None = None

    def append_nowait(self, payload: bytes) -> asyncio.Future[int]:
        """Start one append; the future gives its id.

        Raises:
            OSError: nothing more can be printed.
        """
        if self._unprinted is not None:
            raise self._unprinted
        future = self._writer.append_nowait(payload)
        if self._out.as_json:
            future.add_done_callback(self._print)
        return future

    async def drain(self) -> None:
        """Wait until everything that was started is acknowledged."""
        await self._writer.drain()

    def _print(self, future: asyncio.Future[int]) -> None:
        if self._unprinted is None and not future.cancelled() and future.exception() is None:
            facts = {"stream": self._name, "entry_id": future.result(), "term": self._term}
            try:
                self._out.result(facts)
            except OSError as error:
                self._unprinted = error


@app.command()
@with_client()
async def append(
    client: QuireClient,
    out: Output,
    name: NameArgument,
    files: FilesArgument = None,
    delimited: DelimitedOption = False,
    elect: Annotated[
        bool, option("--elect", "First wait until the stream's election says that this command writes.")
    ] = False,
    password: PasswordOption = "",
) -> None:
    """Append each line (or length-delimited record) of the input to a stream as an entry.

    With the first one this command takes the stream over, from any other writer; at the end it leaves the stream open.
    With --json it prints a line for each entry when that is acknowledged. When another client takes the stream over
    meanwhile, it ends with exit code 3: it is unknown whether the entries after the last confirmed one are kept.
    """
    from quire.cli.console.feed import AppendTally, in_groups, is_typed_by_hand
    from quire.cli.console.record_streams import read_records
    from quire.metadata.election import Election

    records = read_records(files or [], delimited=delimited, command=f"quire stream append {quote(name)}")
    tally, stream = (
        AppendTally("entries", "entry", stream=name),
        client.unbounded_ledger(name, password.encode()),
    )
    election = Election(client.store, f"streams/{name}", "quire stream append") if elect else None

    async def open_writer(stack: contextlib.AsyncExitStack) -> AcknowledgedEntries:
        if election is not None:
            stack.push_async_callback(election.resign)
        writer = await stack.enter_async_context(await stream.open_writer(election))
        return AcknowledgedEntries(name, writer, out)

    with tally.telling(out):
        await stream.show()  # without the stream nothing is read
    seconds = await tally.append(out, open_writer, partial(in_groups, records), typed=is_typed_by_hand(files))
    rate = rate_text(tally.confirmed, seconds, "entries")
    where = "" if tally.last is None else f", at entries {tally.first:,}..{tally.last:,}"
    out.lines(
        [f"Stream {name}: {counted(tally.confirmed, 'entry')}, {human_bytes(tally.bytes)}{where}{rate}."]
    )


@app.command()
@with_client()
async def read(
    client: QuireClient,
    out: Output,
    name: NameArgument,
    entries: EntryOptions,
    password: PasswordOption = "",
    delimited: DelimitedOption = False,
) -> None:
    """Print entries: each payload and a line feed, or length-delimited, or one JSON object per line.

    A first entry beyond the end is refused (exit code 1); a last entry that is not there is where the entries end. Where
    terms only fence, --json also says which ids are no-ops: there a take-over ended.
    """
    reader = await client.unbounded_ledger(name, password.encode()).open_reader()
    await print_range(out, reader, entries, delimited=delimited)


@app.command()
@with_client()
async def tail(
    client: QuireClient,
    out: Output,
    name: NameArgument,
    first: FirstOption = 0,
    password: PasswordOption = "",
    delimited: DelimitedOption = False,
) -> None:
    """Print entries of all writers as they are confirmed, until the stream is closed for good or Ctrl-C.

    A first entry beyond the end is refused (exit code 1).
    """
    reader = await client.unbounded_ledger(name, password.encode()).open_reader()
    await print_tail(out, reader, first, delimited=delimited)


@app.command("list")
@with_client()
async def list_streams(client: QuireClient, out: Output) -> None:
    """List streams in the order of their names."""
    from quire.core.errors import CorruptMetadataError, NoSuchStreamError

    rows: list[dict[str, object]] = []
    store = client.records.streams
    async for name in client.unbounded_ledgers():
        try:
            record, _ = await store.read(await store.find(name))
            rows.append(stream_facts(name, record))
        except NoSuchStreamError:
            continue  # deleted since it was listed
        except CorruptMetadataError as error:
            out.note(error.message)
            rows.append({"stream": name, "state": DAMAGED})
    columns = ("stream", "ledger_id", "state", "mode", "term", "terms", "quorums", "fragments", "digest")
    out.rows(columns, rows, none="No streams.")


@app.command()
@with_client()
async def show(client: QuireClient, out: Output, name: NameArgument, password: PasswordOption = "") -> int:
    """Show a stream: its state, its last confirmed entry, which entries each term wrote, and what its bookies hold.

    Of a stream whose terms only fence, also for which bookies a take-over that does not end waits. Exit code 5: copies are
    missing, or were not looked at.
    """
    return await show_stream(client, out, name, password.encode())


@app.command()
@with_client()
async def verify(client: QuireClient, out: Output, name: NameArgument, password: PasswordOption = "") -> int:
    """Read every copy of every confirmed entry of a stream from every bookie, check the digests, compare the copies.

    Lists what is missing. Entries that an earlier term left on a bookie, and that readers do not see, do not count. Exit codes
    as of `quire ledger verify`.
    """
    report = await client.unbounded_ledger(name, password.encode()).verify()
    return print_report(out, report, name)


@app.command()
@with_client()
async def repair(client: QuireClient, out: Output, name: NameArgument, how: RepairOptions) -> int:
    """Put the missing copies of a stream back: replace lost bookies, fill holes, end limbo.

    The fragment that its writer may still change is left alone: its next append takes out a bookie that is
    lost. Exit codes as of `quire ledger repair`.
    """
    return await repair_one(client, out, await client.records.streams.find(name), how)


@app.command("take-over")
@with_client()
async def take_over(
    client: QuireClient,
    out: Output,
    name: NameArgument,
    ignore_lac: IgnoreLacOption = None,
    password: PasswordOption = "",
) -> None:
    """Take a stream over and leave it open: its writer, if there is one, can confirm nothing more.

    Afterwards it is known what became of the entries that its last writer did not see confirmed.
    """
    stream = client.unbounded_ledger(name, password.encode())
    writer = await stream.open_writer(ignored_lacs=ignore_lac or ())
    await writer.release()
    last = writer.last_add_confirmed
    facts = {"stream": name, "term": writer.term, "last_entry": last, "length": writer.length}
    out.result(facts, f"Stream {name} is taken over in term {writer.term}; its last entry is {last:,}.")


@app.command()
@with_client(sure("Close stream {name} for good?", "Closing stream {name} cannot be undone"))
async def close(client: QuireClient, out: Output, name: NameArgument, password: PasswordOption = "") -> None:
    """Take a stream over and close it for good: it takes no entry any more, and its tails end."""
    record = await client.unbounded_ledger(name, password.encode()).close()
    facts = {"stream": name, "last_entry": record.last_entry, "length": record.length}
    size = human_bytes(record.length)
    out.result(facts, f"Stream {name} is closed for good at entry {record.last_entry:,}, {size}.")


@app.command()
@with_client(sure("Delete stream {name} for ever?", "Deleting stream {name} cannot be undone"))
async def delete(
    client: QuireClient,
    out: Output,
    name: NameArgument,
    force: ForceOption = False,
    password: PasswordOption = "",
) -> None:
    """Stop a stream's writer and delete it for ever; its bookies free the space a little later."""
    await client.unbounded_ledger(name, password.encode()).delete(fence=not force)
    out.result({"stream": name, "deleted": True}, f"Stream {name} is deleted.")

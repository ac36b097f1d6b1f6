"""`quire ledger …`: make, write, read, look at, recover and delete single ledgers."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from quire.cli.console.asking import can_ask, confirm
from quire.cli.console.awaited import telling_who_is_awaited
from quire.cli.console.failures import EXIT_ATTENTION
from quire.cli.console.opening import connected, sure, with_client
from quire.cli.console.options import (
    ForceOption,
    GuaranteeOption,
    PasswordOption,
    Quorums,
    argument,
    option,
    run,
)
from quire.cli.console.output import (
    Output,
    attributes,
    counted,
    human_bytes,
    payload_facts,
    rate_of,
    rate_text,
)
from quire.cli.ledger import ledger_show
from quire.cli.ledger.repair import repair_ledger
from quire.cli.ledger.verify import verify
from quire.core.errors import MisuseError, PastEndError

if TYPE_CHECKING:
    from contextlib import AsyncExitStack

    from quire.cli.console.feed import AppendTally
    from quire.client.client import RecoveryReport
    from quire.client.reading.reader import LedgerReader
    from quire.client.writing.writer import LedgerWriter
    from quire.log.client import QuireClient
    from quire.wire.entry import Entry

app = typer.Typer(
    help="Single ledgers: create, append, read, tail, list, show, recover, repair, delete, verify."
)

app.command("list")(ledger_show.list_ledgers)
app.command("show")(ledger_show.show)
app.command("verify")(verify)
app.command("repair")(repair_ledger)

LedgerArgument = ledger_show.LedgerArgument
DigestOption = Annotated[str, option("--digest", "crc32c, crc32, mac or dummy.")]
DelimitedOption = Annotated[
    bool, option("--delimited", "Records with a 4-byte big-endian length before each, not lines.")
]
FilesArgument = Annotated[
    list[Path] | None, argument("[FILE]...", "What to append; standard input without any.")
]
FirstOption = Annotated[int, option("--first", "The first entry.", min=0)]


@dataclass(frozen=True)
class EntryOptions:
    """Which entries are read."""

    first: FirstOption = 0
    last: Annotated[int | None, option("--last", "The last entry [default: the last confirmed one].")] = None

    def __post_init__(self) -> None:
        if self.last is not None and self.last < self.first:
            raise MisuseError(f"--last {self.last} lies before --first {self.first}.")


IgnoreLacOption = Annotated[
    list[str] | None,
    option(
        "--ignore-lac BOOKIE",
        "Do not believe this bookie's last add confirmed, where recovery or a take-over says that it contradicts the "
        "entries; may be repeated. Entries that no bookie holds are lost.",
    ),
]
YesAtTerminalOption = Annotated[bool, option("--yes -y", "Do not ask at a terminal.")]


@dataclass(frozen=True)
class NewLedger(Quorums):
    """What a new ledger is like."""

    guarantee: GuaranteeOption = None
    digest: DigestOption = "crc32c"
    password: PasswordOption = ""
    leave_open: Annotated[bool, option("--leave-open", "Leave it open, as if its writer had died.")] = False


def ask_about_writer(
    uri: str, *, ledger_id: int, yes: YesAtTerminalOption = False, recover: bool = True, **_: object
) -> None:
    """At a terminal, ask before an open ledger is recovered: its writer may still run.

    Raises:
        DeclinedError: the answer is no.
    """
    if yes or not recover or not can_ask():
        return

    async def is_open() -> bool:
        from quire.core.ledger.metadata import LedgerState

        async with connected(uri) as client:
            return (await client.ledger_metadata(ledger_id)).state is not LedgerState.CLOSED

    if run(is_open()):
        question = f"Ledger {ledger_id} is open. Recovering it ends its writer, if there is one. Go on?"
        confirm(question, "", yes=False)


@app.command()
@with_client()
async def create(client: QuireClient, out: Output, like: NewLedger) -> None:
    """Create an empty ledger and close it.

    A ledger has one writer, the process that created it: `append` makes its own.
    """
    await append_to_new(client, out, iter(()), like)


@app.command()
@with_client()
async def append(
    client: QuireClient,
    out: Output,
    like: NewLedger,
    files: FilesArgument = None,
    delimited: DelimitedOption = False,
) -> None:
    """Create a ledger, append each line (or length-delimited record) of the input as an entry, close it.

    Ends when every bookie has all entries, or is not waited for any longer: what one lacks is a hole in the ledger's record. When it ends
    early, it says how many entries are confirmed, the last one of them, and why.
    """
    from quire.cli.console.feed import is_typed_by_hand
    from quire.cli.console.record_streams import read_records

    records = read_records(files or [], delimited=delimited, command="quire ledger append")
    await append_to_new(client, out, records, like, typed=is_typed_by_hand(files))


@app.command()
@with_client(ask_about_writer)
async def read(
    client: QuireClient,
    out: Output,
    ledger_id: LedgerArgument,
    entries: EntryOptions,
    password: PasswordOption = "",
    recover: Annotated[
        bool, option("--recover", "Fence and close it first if it is open, so that the end is final.")
    ] = False,
    delimited: DelimitedOption = False,
) -> None:
    """Print entries: each payload and a line feed, or length-delimited, or one JSON object per line.

    A first entry beyond the end is refused (exit code 1); a last entry that is not there is where the entries end.
    """
    reader = await client.open_ledger(ledger_id, password=password.encode(), recover=recover)
    await print_range(out, reader, entries, delimited=delimited)


@app.command()
@with_client()
async def tail(
    client: QuireClient,
    out: Output,
    ledger_id: LedgerArgument,
    first: FirstOption = 0,
    password: PasswordOption = "",
    delimited: DelimitedOption = False,
) -> None:
    """Print entries as they are confirmed, until the ledger is closed or Ctrl-C.

    A first entry beyond the end is refused (exit code 1).
    """
    reader = await client.open_ledger(ledger_id, password=password.encode(), recover=False)
    await print_tail(out, reader, first, delimited=delimited)


@app.command()
@with_client(ask_about_writer)
async def recover(
    client: QuireClient,
    out: Output,
    ledger_id: LedgerArgument,
    password: PasswordOption = "",
    ignore_lac: IgnoreLacOption = None,
    at: Annotated[
        str,
        option(
            "--at write-quorum|ack-quorum",
            "ack-quorum waives a guarantee of the write quorum, where a bookie is lost and no other is there.",
        ),
    ] = "write-quorum",
) -> int:
    """Fence a ledger, find its end, close it there, and end its limbo on bookies.

    Its writer, if one is still alive, can confirm nothing more. Exit code 5: it is closed, and entries have no copy left.
    """
    done = await client.recover_ledger(
        ledger_id, password.encode(), ignored_lacs=ignore_lac or (), at=at.replace("-", "_")
    )
    record, limbo = done.record, done.limbo
    facts = {
        "ledger_id": ledger_id,
        "already_closed": done.already_closed,
        **attributes(record, "last_entry length"),
        "recovered_entries": done.recovered,
        "stragglers": [attributes(hole, "bookie first last") for hole in done.stragglers],
        "limbo_cleared": limbo.cleared,
        "refilled": limbo.refilled,
        "limbo_left": limbo.left,
        "lost": [{"first": each.first, "last": each.last, "entries": each.size()} for each in limbo.lost],
    }
    out.result(facts, recovered_text(done))
    return EXIT_ATTENTION if limbo.lost else 0


def recovered_text(done: RecoveryReport) -> str:
    """What a recovery did, in sentences."""
    record, limbo, ledger_id = done.record, done.limbo, done.record.ledger_id
    text = f"Ledger {ledger_id} is closed at entry {record.last_entry}, {human_bytes(record.length)}."
    if done.recovered:
        text += f" {done.recovered:,} entries above the last confirmed one were found and kept."
    if limbo.cleared:
        text += f" Bookies that left limbo: {', '.join(limbo.cleared)}."
    if limbo.refilled:
        text += f" What was damaged was copied anew to {', '.join(limbo.refilled)}."
    for hole in done.stragglers:
        text += f"\n{hole.bookie} may lack entries {hole.first:,}..{hole.last:,}: `quire ledger repair {ledger_id}`"
    for bookie, why in limbo.left.items():
        text += f"\n{bookie} stays as it is: {why}"
    if limbo.lost:
        ranges = ", ".join(f"{each.first:,}..{each.last:,}" for each in limbo.lost)
        text += f"\n{counted(sum(each.size() for each in limbo.lost), 'entry')} have no copy left: {ranges}"
    return text


@app.command()
@with_client(sure("Delete ledger {ledger_id} for ever?", "Deleting ledger {ledger_id} cannot be undone"))
async def delete(
    client: QuireClient, out: Output, ledger_id: LedgerArgument, force: ForceOption = False
) -> None:
    """Stop a ledger's writer and delete it for ever; its bookies free the space a little later."""
    await client.delete_ledger(ledger_id, fence=not force)
    out.result({"ledger_id": ledger_id, "deleted": True}, f"Ledger {ledger_id} is deleted.")


async def print_range(out: Output, reader: LedgerReader, entries: EntryOptions, *, delimited: bool) -> None:
    """Print entries, as far as they are there; without a last one, up to the last confirmed one.

    Raises:
        PastEndError: the first one lies beyond the end.
    """
    end = _check_first(reader, entries.first)
    end = end if entries.last is None else min(entries.last, end)
    if end >= entries.first:
        found = reader.read(entries.first, end, no_ops=out.as_json)
        await _print_entries(out, found, delimited=delimited)


async def print_tail(out: Output, reader: LedgerReader, first: int, *, delimited: bool) -> None:
    """Print entries as they are confirmed.

    Raises:
        PastEndError: the first one lies beyond the end.
    """
    _check_first(reader, first)
    await _print_entries(out, reader.tail(first), delimited=delimited, at_once=True)


def _check_first(reader: LedgerReader, first: int) -> int:
    """The last entry that can be read now; the one next to it is a beginning."""
    ledger_id, last_confirmed = reader.ledger_id, reader.last_add_confirmed
    if first > last_confirmed + 1:
        text = f"ledger {ledger_id}: requested entry {first}, the last confirmed one is {last_confirmed}"
        raise PastEndError(text, ledger_id=ledger_id, entry_id=first)
    return last_confirmed


async def append_to_new(
    client: QuireClient, out: Output, records: Iterator[bytes], like: NewLedger, *, typed: bool = False
) -> None:
    """Create a ledger, append the records, close or abandon it, print what became of it; `typed`: by a person."""
    from quire.cli.console.feed import AppendTally, in_groups

    writer = await client.create_ledger(
        **attributes(like, "ensemble_size write_quorum ack_quorum min_present digest"),
        password=like.password.encode(),
        guarantee=like.guarantee and like.guarantee.replace("-", "_"),
    )
    tally, what = AppendTally("entries", "entry", ledger_id=writer.ledger_id), f"ledger {writer.ledger_id}"

    async def made(_: AsyncExitStack) -> LedgerWriter:
        return writer

    async with telling_who_is_awaited(out, what, lambda: tally.confirmed, lambda: writer.waits_for):
        try:
            seconds = await tally.append(out, made, partial(in_groups, records), typed=typed)
        except BaseException:
            await writer.abandon()
            out.note(
                f"Ledger {writer.ledger_id} is left open: `quire ledger recover {writer.ledger_id}` closes it."
            )
            raise
        await (writer.abandon() if like.leave_open else writer.close())
    await client.close()  # only then it is known what bookies lack
    _say_appended(writer, tally, "open" if like.leave_open else "closed", seconds, out)


def _say_appended(writer: LedgerWriter, tally: AppendTally, state: str, seconds: float, out: Output) -> None:
    facts = {
        "ledger_id": writer.ledger_id,
        "state": state,
        "entries": tally.confirmed,
        "bytes": tally.bytes,
        "last_entry": -1 if tally.last is None else tally.last,
        "entries_per_s": rate_of(tally.confirmed, seconds),
        "holes": [attributes(hole, "bookie first last") for hole in writer.holes],
    }
    rate = rate_text(tally.confirmed, seconds, "entries")
    text = f"Ledger {writer.ledger_id}: {counted(tally.confirmed, 'entry')}, {human_bytes(tally.bytes)}, {state}{rate}."
    for hole in writer.holes:
        text += f"\n{hole.bookie} may lack entries {hole.first:,}..{hole.last:,}; others have them."
    out.result(facts, text)


async def _print_entries(
    out: Output, entries: AsyncIterator[Entry], *, delimited: bool, at_once: bool = False
) -> None:
    """Print what an iterator of entries gives; `at_once` flushes after each."""
    from quire.cli.console.record_streams import write_record
    from quire.wire.entry import NoOp

    stdout = sys.stdout.buffer
    async for entry in entries:
        if out.as_json:
            what = {"no_op": True} if isinstance(entry, NoOp) else payload_facts("payload", entry.payload)
            out.result({"ledger_id": entry.ledger_id, "entry_id": entry.entry_id, **what})
            continue
        write_record(stdout, entry.payload, delimited=delimited)
        if at_once:
            stdout.flush()
    stdout.flush()

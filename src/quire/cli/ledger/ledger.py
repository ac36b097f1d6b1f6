"""`quire ledger …`: make, write, read, look at, recover and delete single ledgers."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from quire.cli.console.asking import YesOption, can_ask, confirm
from quire.cli.console.failures import EXIT_ATTENTION
from quire.cli.console.options import (
    ClusterOption,
    FrameOption,
    GuaranteeOption,
    JsonOption,
    MinPresentOption,
    PasswordOption,
    cluster_uri,
    run,
)
from quire.cli.console.output import Output, counted, human_bytes, payload_facts, rate_of, rate_text
from quire.cli.ledger import ledger_show
from quire.cli.ledger.repair import repair_ledger
from quire.cli.ledger.verify import verify
from quire.core.errors import MisuseError, PastEndError

if TYPE_CHECKING:
    from quire.cli.console.feed import AppendTally
    from quire.client.client import RecoveryReport
    from quire.client.reading.reader import LedgerReader
    from quire.client.writing.writer import LedgerWriter
    from quire.wire.entry import Entry

app = typer.Typer(
    help="Single ledgers: create, append, read, tail, list, show, recover, repair, delete, verify."
)

app.command("list")(ledger_show.list_ledgers)
app.command("show")(ledger_show.show)
app.command("verify")(verify)
app.command("repair")(repair_ledger)

LedgerArgument = ledger_show.LedgerArgument
EnsembleOption = Annotated[
    int, typer.Option("--ensemble-size", "-E", help="How many bookies share the entries.")
]
WriteOption = Annotated[int, typer.Option("--write-quorum", "-w", help="How many bookies get each entry.")]
AckOption = Annotated[int, typer.Option("--ack-quorum", "-a", help="How many must have it before it counts.")]
DigestOption = Annotated[str, typer.Option(help="crc32c, crc32, mac or dummy.")]
DelimitedOption = Annotated[
    bool, typer.Option("--delimited", help="Records with a 4-byte big-endian length before each, not lines.")
]
FilesArgument = Annotated[
    list[Path] | None, typer.Argument(metavar="[FILE]...", help="What to append; standard input without any.")
]
FirstOption = Annotated[int, typer.Option(help="The first entry.", min=0)]
LastOption = Annotated[int | None, typer.Option(help="The last entry [default: the last confirmed one].")]


@app.command()
def create(
    cluster: ClusterOption = None,
    ensemble_size: EnsembleOption = 3,
    write_quorum: WriteOption = 3,
    ack_quorum: AckOption = 2,
    min_present: MinPresentOption = None,
    guarantee: GuaranteeOption = None,
    digest: DigestOption = "crc32c",
    password: PasswordOption = "",
    leave_open: Annotated[
        bool, typer.Option("--leave-open", help="Leave it open, as if its writer had died.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Create an empty ledger and close it.

    A ledger has one writer, the process that created it: `append` makes its own.
    """
    append_to_new(
        iter(()),
        cluster,
        (ensemble_size, write_quorum, ack_quorum, min_present),
        digest,
        password,
        leave_open,
        Output(as_json=as_json),
        guarantee=guarantee,
    )


@app.command()
def append(
    files: FilesArgument = None,
    cluster: ClusterOption = None,
    frame_bytes_max: FrameOption = None,
    ensemble_size: EnsembleOption = 3,
    write_quorum: WriteOption = 3,
    ack_quorum: AckOption = 2,
    min_present: MinPresentOption = None,
    guarantee: GuaranteeOption = None,
    digest: DigestOption = "crc32c",
    password: PasswordOption = "",
    delimited: DelimitedOption = False,
    leave_open: Annotated[
        bool, typer.Option("--leave-open", help="Leave it open, as if its writer had died.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Create a ledger, append each line (or length-delimited record) of the input as an entry, close it.

    Ends when every bookie has all entries, or is not waited for any longer: what one lacks is a hole in the ledger's record. When it ends
    early, it says how many entries are confirmed, the last one of them, and why.
    """
    from quire.cli.console.feed import is_typed_by_hand
    from quire.cli.console.record_streams import read_records

    records = read_records(
        files or [], delimited=delimited, frame_bytes_max=frame_bytes_max, command="quire ledger append"
    )
    quorums = (ensemble_size, write_quorum, ack_quorum, min_present)
    out = Output(as_json=as_json)
    typed = is_typed_by_hand(files)
    append_to_new(
        records,
        cluster,
        quorums,
        digest,
        password,
        leave_open,
        out,
        frame_bytes_max,
        guarantee=guarantee,
        typed=typed,
    )


@app.command()
def read(
    ledger_id: LedgerArgument,
    first: FirstOption = 0,
    last: LastOption = None,
    cluster: ClusterOption = None,
    frame_bytes_max: FrameOption = None,
    password: PasswordOption = "",
    recover: Annotated[
        bool,
        typer.Option("--recover", help="Fence and close it first if it is open, so that the end is final."),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask at a terminal.")] = False,
    delimited: DelimitedOption = False,
    as_json: JsonOption = False,
) -> None:
    """Print entries: each payload and a line feed, or length-delimited, or one JSON object per line.

    A first entry beyond the end is refused (exit code 1); a last entry that is not there is where the entries end.
    """
    check_range(first, last)
    uri, out = cluster_uri(cluster), Output(as_json=as_json)
    if recover:
        ask_about_writer(uri, ledger_id, yes=yes)

    async def work() -> None:
        import quire

        async with quire.connect(uri, frame_bytes_max=frame_bytes_max) as client:
            reader = await client.open_ledger(ledger_id, password=password.encode(), recover=recover)
            await print_range(out, reader, first, last, delimited=delimited)

    run(work())


@app.command()
def tail(
    ledger_id: LedgerArgument,
    first: FirstOption = 0,
    cluster: ClusterOption = None,
    frame_bytes_max: FrameOption = None,
    password: PasswordOption = "",
    delimited: DelimitedOption = False,
    as_json: JsonOption = False,
) -> None:
    """Print entries as they are confirmed, until the ledger is closed or Ctrl-C.

    A first entry beyond the end is refused (exit code 1).
    """
    uri, out = cluster_uri(cluster), Output(as_json=as_json)

    async def work() -> None:
        import quire

        async with quire.connect(uri, frame_bytes_max=frame_bytes_max) as client:
            reader = await client.open_ledger(ledger_id, password=password.encode(), recover=False)
            await print_tail(out, reader, first, delimited=delimited)

    run(work())


@app.command()
def recover(
    ledger_id: LedgerArgument,
    cluster: ClusterOption = None,
    frame_bytes_max: FrameOption = None,
    password: PasswordOption = "",
    ignore_lac: Annotated[
        list[str] | None,
        typer.Option(
            "--ignore-lac",
            metavar="BOOKIE",
            help="Do not believe this bookie's last add confirmed, where recovery says that it contradicts the "
            "entries; may be repeated. Entries that no bookie holds are lost.",
        ),
    ] = None,
    at: Annotated[
        str,
        typer.Option(
            "--at",
            metavar="write-quorum|ack-quorum",
            help="ack-quorum waives a guarantee of the write quorum, where a bookie is lost and no other is there.",
        ),
    ] = "write-quorum",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask at a terminal.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Fence a ledger, find its end, close it there, and end its limbo on bookies.

    Its writer, if one is still alive, can confirm nothing more. Exit code 5: it is closed, and entries have no copy left.
    """
    uri, out = cluster_uri(cluster), Output(as_json=as_json)
    ask_about_writer(uri, ledger_id, yes=yes)

    async def work() -> int:
        import quire

        async with quire.connect(uri, frame_bytes_max=frame_bytes_max) as client:
            done = await client.recover_ledger(
                ledger_id,
                password.encode(),
                ignored_lacs=ignore_lac or (),
                at=at.replace("-", "_"),
            )
        record, limbo = done.record, done.limbo
        facts = {
            "ledger_id": ledger_id,
            "already_closed": done.already_closed,
            "last_entry": record.last_entry,
            "length": record.length,
            "recovered_entries": done.recovered,
            "stragglers": [
                {"bookie": hole.bookie, "first": hole.first, "last": hole.last} for hole in done.stragglers
            ],
            "limbo_cleared": limbo.cleared,
            "refilled": limbo.refilled,
            "limbo_left": limbo.left,
            "lost": [{"first": each.first, "last": each.last, "entries": each.size()} for each in limbo.lost],
        }
        out.result(facts, recovered_text(done))
        return EXIT_ATTENTION if limbo.lost else 0

    if code := run(work()):
        raise typer.Exit(code)


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
def delete(
    ledger_id: LedgerArgument,
    cluster: ClusterOption = None,
    frame_bytes_max: FrameOption = None,
    yes: YesOption = False,
    force: Annotated[
        bool, typer.Option("--force", help="Even if its bookies are lost and a writer cannot be stopped.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Stop a ledger's writer and delete it for ever; its bookies free the space a little later."""
    uri, out = cluster_uri(cluster), Output(as_json=as_json)
    confirm(f"Delete ledger {ledger_id} for ever?", f"Deleting ledger {ledger_id} cannot be undone", yes=yes)

    async def work() -> None:
        import quire

        async with quire.connect(uri, frame_bytes_max=frame_bytes_max) as client:
            await client.delete_ledger(ledger_id, fence=not force)
        out.result({"ledger_id": ledger_id, "deleted": True}, f"Ledger {ledger_id} is deleted.")

    run(work())


def ask_about_writer(uri: str, ledger_id: int, *, yes: bool) -> None:
    """At a terminal, ask before an open ledger is recovered: its writer may still run.

    Raises:
        DeclinedError: the answer is no.
    """
    if yes or not can_ask():
        return

    async def is_open() -> bool:
        import quire
        from quire.core.ledger.metadata import LedgerState

        async with quire.connect(uri) as client:
            return (await client.ledger_metadata(ledger_id)).state is not LedgerState.CLOSED

    if run(is_open()):
        question = f"Ledger {ledger_id} is open. Recovering it ends its writer, if there is one. Go on?"
        confirm(question, "", yes=False)


def check_range(first: int, last: int | None) -> None:
    """Whether a range goes up.

    Raises:
        MisuseError: it does not.
    """
    if last is not None and last < first:
        raise MisuseError(f"--last {last} lies before --first {first}.")


async def print_range(
    out: Output, reader: LedgerReader, first: int, last: int | None, *, delimited: bool
) -> None:
    """Print the entries first..last, as far as they are there; without a last one, up to the last confirmed one.

    Raises:
        PastEndError: the first one lies beyond the end.
    """
    end = _check_first(reader, first)
    end = end if last is None else min(last, end)
    if end >= first:
        entries = reader.read(first, end, no_ops=out.as_json)
        await _print_entries(out, entries, delimited=delimited)


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


def append_to_new(
    records: Iterator[bytes],
    cluster: str | None,
    quorums: tuple[int, int, int, int | None],
    digest: str,
    password: str,
    leave_open: bool,
    out: Output,
    frame_bytes_max: int | None = None,
    *,
    guarantee: str | None = None,
    typed: bool = False,
) -> None:
    """Create a ledger, append the records, close or abandon it, print what became of it; `typed`: by a person."""
    uri = cluster_uri(cluster)

    async def work() -> None:
        import quire
        from quire.cli.console.feed import AppendTally, TerminalInputProgress, append_all, telling_how_far

        ensemble_size, write_quorum, ack_quorum, min_present = quorums
        async with quire.connect(uri, frame_bytes_max=frame_bytes_max) as client:
            writer = await client.create_ledger(
                ensemble_size=ensemble_size,
                write_quorum=write_quorum,
                ack_quorum=ack_quorum,
                password=password.encode(),
                digest=digest,
                min_present=min_present,
                guarantee=guarantee and guarantee.replace("-", "_"),
            )
            tally = AppendTally()
            what = f"ledger {writer.ledger_id}"
            shown = TerminalInputProgress(what, None, "entries") if typed else out.progress(what)

            async def made() -> LedgerWriter:
                return writer

            try:
                with (
                    telling_how_far(tally, out, "entries", "entry", ledger_id=writer.ledger_id),
                    shown as progress,
                ):
                    await append_all(made, records, progress, tally)
                    seconds = progress.seconds
            except BaseException:
                await writer.abandon()
                out.note(
                    f"Ledger {writer.ledger_id} is left open: `quire ledger recover {writer.ledger_id}` closes it."
                )
                raise
            if leave_open:
                await writer.abandon()
            else:
                await writer.close()
        # Only when the client is closed is it known what bookies lack.
        _say_appended(writer, tally, "open" if leave_open else "closed", seconds, out)

    run(work())


def _say_appended(writer: LedgerWriter, tally: AppendTally, state: str, seconds: float, out: Output) -> None:
    facts = {
        "ledger_id": writer.ledger_id,
        "state": state,
        "entries": tally.confirmed,
        "bytes": tally.bytes,
        "last_entry": -1 if tally.last is None else tally.last,
        "entries_per_s": rate_of(tally.confirmed, seconds),
        "holes": [{"bookie": hole.bookie, "first": hole.first, "last": hole.last} for hole in writer.holes],
    }
    counted = f"{tally.confirmed:,} {'entry' if tally.confirmed == 1 else 'entries'}"
    rate = rate_text(tally.confirmed, seconds, "entries")
    text = f"Ledger {writer.ledger_id}: {counted}, {human_bytes(tally.bytes)}, {state}{rate}."
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
        if out.as_json and isinstance(entry, NoOp):
            out.result({"ledger_id": entry.ledger_id, "entry_id": entry.entry_id, "no_op": True}, "")
            continue
        if out.as_json:
            out.result(
                {
                    "ledger_id": entry.ledger_id,
                    "entry_id": entry.entry_id,
                    **payload_facts("payload", entry.payload),
                },
                "",
            )
            continue
        write_record(stdout, entry.payload, delimited=delimited)
        if at_once:
            stdout.flush()
    stdout.flush()

"""`quire ledger verify`: every copy of a ledger's entries is read and compared, of one ledger or of all."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any, Final

from quire.cli.console.failures import EXIT_ATTENTION, code_of_copies, worst
from quire.cli.console.opening import with_client
from quire.cli.console.options import PasswordOption, argument, option
from quire.cli.console.output import Output, attributes, counted
from quire.cli.ledger.ledger_show import name_of
from quire.core.errors import MisuseError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Coroutine

    from quire.client.repairing.copies import LedgerReport
    from quire.log.client import QuireClient

AT_ONCE: Final = 8
"""Most ledgers that are read at the same time."""
_KINDS: Final = {"ledger_id": "Ledger", "stream": "Stream"}


@with_client()
async def verify(
    client: QuireClient,
    out: Output,
    ledger_id: Annotated[int | None, argument("[LEDGER]", "The ledger's id.", min=0)] = None,
    every: Annotated[bool, option("--all", "Verify all ledgers and streams of the cluster.")] = False,
    password: PasswordOption = "",
) -> int:
    """Read every copy of every entry from every bookie, check the digests, compare the copies.

    Lists what is missing, and holes that the ledger's record has, filled or not. With --all it lists the ledgers that are not
    complete, and those that cannot be read; streams are among them. A stream's id verifies the stream. Exit code 5: copies are
    missing, or were not looked at. 1: entries are lost, or copies differ.
    """
    if every == (ledger_id is not None):
        raise MisuseError("name one ledger, or give --all to verify every ledger of the cluster")
    if ledger_id is None:
        return await verify_all(client, out)
    name = ""
    if await client.records.streams.if_any(ledger_id):
        name = await name_of(client, ledger_id)
        report = await client.unbounded_ledger(name, password.encode()).verify()
    else:
        report = await client.verify_ledger(ledger_id, password.encode())
    return print_report(out, report, name)


async def verify_all(client: QuireClient, out: Output) -> int:
    """Verify every ledger and stream and print those that are not complete; returns the exit code."""
    from quire.core.errors import CorruptMetadataError, NoSuchLedgerError, NoSuchStreamError, QuireError

    count = {"ledgers": 0, "complete": 0, "open": 0, "incomplete": 0, "failed": 0}
    codes = set[int]()

    async def of_ledger(ledger_id: int) -> LedgerReport:
        record = await client.ledger_metadata(ledger_id)
        return await client.verify_ledger(ledger_id, record.password)

    async def of_stream(name: str) -> LedgerReport:
        record, _ = await client.records.streams.read(await client.records.streams.find(name))
        return await client.unbounded_ledger(name, record.password).verify()

    async def unnamed(stream_id: int) -> LedgerReport:
        await client.records.streams.read(stream_id)  # an error where it was deleted meanwhile
        raise CorruptMetadataError(
            "it has a record and no name that can be read: its copies are not looked at"
        )

    async def one(kind: str, which: int | str, verified: Coroutine[Any, Any, LedgerReport]) -> None:
        try:
            report = await verified
        except (NoSuchLedgerError, NoSuchStreamError):
            return  # deleted since it was listed
        except QuireError as error:
            count["failed"] += 1
            codes.add(EXIT_ATTENTION)
            out.result({kind: which, "error": error.code}, f"{_KINDS[kind]} {which}: {error.message}")
        else:
            count["complete" if report.complete else "incomplete" if report.closed else "open"] += 1
            if not report.complete:
                codes.add(print_report(out, report, str(which) if kind == "stream" else ""))
        count["ledgers"] += 1

    waiting: set[asyncio.Task[None]] = set()

    async def everything() -> AsyncGenerator[Coroutine[Any, Any, None], None]:
        async for ledger_id in client.ledgers():
            yield one("ledger_id", ledger_id, of_ledger(ledger_id))
        async for name in client.unbounded_ledgers():
            yield one("stream", name, of_stream(name))
        for stream_id in await _unnamed(client):
            yield one("stream", stream_id, unnamed(stream_id))

    with out.progress("verifying", None, "ledgers") as progress:
        async for work in everything():
            waiting.add(asyncio.create_task(work))
            if len(waiting) == AT_ONCE:
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                progress.advance(len(done))
                for task in done:
                    task.result()
        await asyncio.gather(*waiting)
    out.result(count, _total_of(count))
    return worst(codes)


def _total_of(count: dict[str, int]) -> str:
    """The last line of a verification of everything."""
    text = f"{counted(count['ledgers'], 'ledger')}: {count['complete']:,} complete"
    for kind, what in (
        ("incomplete", "closed and not complete"),
        ("open", "open and not complete"),
        ("failed", "cannot be read"),
    ):
        if count[kind]:
            text += f", {count[kind]:,} {what}"
    return text + "."


async def _unnamed(client: QuireClient) -> list[int]:
    """The ids of streams to which no name leads."""
    streams = client.records.streams
    ids: list[int] = []
    while page := await streams.list(ids[-1] if ids else None):
        ids += page
    return [stream_id for stream_id, name in (await streams.names_of(ids)).items() if name is None]


def print_report(out: Output, report: LedgerReport, stream: str = "") -> int:
    """Print a verification of a ledger, or of the stream with a name; returns the exit code."""
    named = {"stream": stream} if stream else {}
    out.result(named | facts_of(report), *findings(report, stream))
    return code_of_copies(complete=report.complete, losses=report.has_losses)


def facts_of(report: LedgerReport) -> dict[str, Any]:
    """What programs read of a verification."""
    names = "ledger_id good complete entries copies copies_wanted below_ack_quorum"
    return attributes(report, names) | {
        "below_write_quorum": [[each.bookie, each.first, each.last] for each in report.below_write_quorum],
        "lost": report.lost,
        "not_looked_at": report.unseen,
        "different": report.different,
        "holes": [attributes(hole, "bookie first last answer") for hole in report.holes],
        "recorded_holes": [
            {"bookie": bookie, "first": first, "last": last, "filled": is_filled(report, bookie, first, last)}
            for bookie, first, last in report.recorded
        ],
    }


def findings(report: LedgerReport, stream: str = "") -> list[str]:
    """What a verification found, in sentences."""
    from quire.client.repairing.copies import NOT_THERE

    what = f"Stream {stream} (ledger {report.ledger_id})" if stream else f"Ledger {report.ledger_id}"
    verdict = "good" if report.complete else "good, but has holes" if report.good else "NOT good"
    if (
        not report.good
        and not report.has_losses
        and any(hole.answer not in NOT_THERE for hole in report.holes)
    ):
        verdict = "not looked at as a whole"
    text = (
        f"{what} is {verdict}: {report.entries:,} entries, {report.copies:,} of "
        f"{report.copies_wanted:,} copies there and right"
    )
    lines = [text + ("." if report.complete else ":")]
    lines += [f"  entries {first:,}..{last:,} have no copy at all" for first, last in report.lost]
    lines += [
        f"  entries {first:,}..{last:,}: no copy was found, and a bookie did not say what it has"
        for first, last in report.unseen
    ]
    lines += [
        f"  entries {first:,}..{last:,} were found on fewer bookies than the ack quorum"
        for first, last in report.below_ack_quorum
    ]
    lines += [f"  entry {entry_id:,} differs on {bookie}" for entry_id, bookie in report.different]
    if report.below_write_quorum:
        lines.append("  its write quorum is guaranteed, and some entries are not on all of it")
    lines += [
        f"  {hole.bookie} lacks entries {hole.first:,}..{hole.last:,} ({hole.answer.name})"
        if hole.answer in NOT_THERE
        else f"  {hole.bookie} did not say what it has of entries {hole.first:,}..{hole.last:,} ({hole.answer.name})"
        for hole in report.holes
    ]
    lines += [
        f"  the record has a hole there, which is filled: {bookie}, entries {first:,}..{last:,}"
        for bookie, first, last in report.recorded
        if is_filled(report, bookie, first, last)
    ]
    return lines


def is_filled(report: LedgerReport, bookie: str, first: int, last: int) -> bool:
    """Whether a bookie holds by now what the ledger's record calls a hole."""
    return not any(
        hole.bookie == bookie and hole.first <= last and hole.last >= first for hole in report.holes
    )

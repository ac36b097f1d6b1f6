"""The commands that look at ledgers without changing them: `list`, `show`, `verify`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from quire.cli.options import ClusterOption, JsonOption, PasswordOption, cluster_uri, run
from quire.cli.output import Output, human_bytes

if TYPE_CHECKING:
    from quire.cli.toolbox import Toolbox
    from quire.core.ledger_metadata import LedgerMetadata

LedgerArgument = Annotated[int, typer.Argument(metavar="LEDGER", help="The ledger's id.", min=0)]


def list_ledgers(
    after: Annotated[int | None, typer.Option(help="Only ledgers with greater ids.")] = None,
    limit: Annotated[int, typer.Option(help="At most so many.", min=1)] = 1000,
    cluster: ClusterOption = None,
    as_json: JsonOption = False,
) -> None:
    """List ledgers in the order of their ids."""
    uri, out = cluster_uri(cluster), Output(as_json=as_json)

    async def work() -> None:
        from quire.cli.toolbox import open_toolbox
        from quire.core.errors import NoSuchLedgerError

        async with open_toolbox(uri) as tools:
            rows = []
            for ledger_id in await tools.ledgers.list(after, limit):
                try:
                    record, _ = await tools.ledgers.read(ledger_id)
                except NoSuchLedgerError:
                    continue  # deleted since it was listed
                rows.append(facts_of(record))
        columns = ("ledger_id", "state", "quorums", "fragments", "last_entry", "length", "digest")
        count = out.rows("", columns, rows)
        if not count:
            out.note("No ledgers.")
        elif count == limit:
            out.note(f"More may follow: --after {rows[-1]['ledger_id']}.")

    run(work())


def show(ledger_id: LedgerArgument, cluster: ClusterOption = None, as_json: JsonOption = False) -> None:
    """Draw a ledger: its fragments, which bookies hold them, its quorums and its state."""
    uri, out = cluster_uri(cluster), Output(as_json=as_json)

    async def work() -> None:
        from quire.cli.toolbox import open_toolbox

        async with open_toolbox(uri) as tools:
            record, version = await tools.ledgers.read(ledger_id)
            standing = await standing_of(tools)
        out.result(facts_of(record) | shown_facts(record, version, standing), "\n".join(drawing(record, standing)))

    run(work())


def verify(
    ledger_id: LedgerArgument,
    cluster: ClusterOption = None,
    password: PasswordOption = "",
    as_json: JsonOption = False,
) -> None:
    """Read every copy of every entry from every bookie, check the digests, compare the copies.

    Fails when an entry is on fewer bookies than its ack quorum, or copies differ; lists what is missing.
    """
    uri, out = cluster_uri(cluster), Output(as_json=as_json)

    async def work() -> bool:
        from quire.cli.toolbox import open_toolbox
        from quire.cli.verify import verify_ledger

        async with open_toolbox(uri) as tools:
            record, _ = await tools.ledgers.read(ledger_id)
            last = await last_confirmed(tools, record, password)
            with out.progress(f"verify ledger {ledger_id}", total=last + 1) as progress:
                result = await verify_ledger(tools.bookies, record, last, progress.advance)
        facts = {
            "ledger_id": ledger_id,
            "sound": result.sound,
            "entries": result.entries,
            "copies": result.copies,
            "copies_expected": result.expected,
            "below_ack_quorum": result.short,
            "lost": result.lost,
            "differing": result.differing,
            "findings": result.findings,
        }
        verdict = "sound" if result.sound else "NOT sound"
        text = (
            f"Ledger {ledger_id} is {verdict}: {result.entries:,} entries, {result.copies:,} of {result.expected:,} "
            f"copies good, {result.short:,} entries below the ack quorum, {result.lost:,} without a copy, "
            f"{result.differing:,} with differing copies."
        )
        out.result(facts, "\n".join([text, *(f"  {finding}" for finding in result.findings)]))
        return result.sound

    if not run(work()):
        raise typer.Exit(1)


async def last_confirmed(tools: Toolbox, record: LedgerMetadata, password: str) -> int:
    """The last entry of a closed ledger; of another one, how far readers may go now."""
    from quire.client.config import ClientConfig
    from quire.client.reader import LedgerReader
    from quire.core.ledger_metadata import LedgerState
    from quire.env.real import RealClock

    if record.state is LedgerState.CLOSED:
        return record.last_entry
    from quire.client.access import LedgerAccess
    from quire.core.errors import WrongPasswordError

    if record.password != password.encode():
        text = f"The password of ledger {record.ledger_id} is another one; give it with --password or QUIRE_PASSWORD."
        raise WrongPasswordError(text, ledger_id=record.ledger_id)
    reader = LedgerReader(
        record, 0, LedgerAccess.of(record), tools.bookies, tools.ledgers, RealClock(), ClientConfig()
    )
    return await reader.refresh()


def facts_of(record: LedgerMetadata) -> dict[str, object]:
    """A ledger in one line."""
    from quire.core.ledger_metadata import LedgerState

    closed = record.state is LedgerState.CLOSED
    return {
        "ledger_id": record.ledger_id,
        "state": record.state.name.lower(),
        "ensemble_size": record.ensemble_size,
        "write_quorum": record.write_quorum,
        "ack_quorum": record.ack_quorum,
        "quorums": f"{record.ensemble_size}/{record.write_quorum}/{record.ack_quorum}",
        "fragments": len(record.fragments),
        "last_entry": record.last_entry if closed else None,
        "length": record.length if closed else None,
        "digest": record.digest_type.name.lower(),
    }


def shown_facts(record: LedgerMetadata, version: int, standing: dict[str, str]) -> dict[str, object]:
    """What `show --json` adds."""
    return {
        "version": version,
        "created_ms": record.created_ms,
        "custom": {key: value.decode("utf-8", "backslashreplace") for key, value in record.custom},
        "ensembles": [
            {
                "first_entry": fragment.first_entry,
                "last_entry": record.last_entry_of_fragment(index),
                "bookies": [{"id": str(bookie), "standing": standing.get(bookie, "gone")} for bookie in fragment.ensemble],
            }
            for index, fragment in enumerate(record.fragments)
        ],
    }


def drawing(record: LedgerMetadata, standing: dict[str, str]) -> list[str]:
    """The picture of a ledger."""
    from quire.cli.picture import FragmentFacts, draw_fragments, draw_write_sets
    from quire.core.ledger_metadata import LedgerState

    closed = record.state is LedgerState.CLOSED
    end = f"at entry {record.last_entry:,}, {human_bytes(record.length)}" if closed else "the end is not known yet"
    head = (
        f"Ledger {record.ledger_id}: {record.state.name}, {end}; E={record.ensemble_size} Qw={record.write_quorum} "
        f"Qa={record.ack_quorum}, digest {record.digest_type.name.lower()}"
    )
    fragments = [
        FragmentFacts(fragment.first_entry, record.last_entry_of_fragment(index), tuple(map(str, fragment.ensemble)))
        for index, fragment in enumerate(record.fragments)
    ]
    write_sets = draw_write_sets(record.ensemble_size, record.write_quorum, record.ack_quorum)
    return [head, "", *draw_fragments(fragments, standing), "", *write_sets]


async def standing_of(tools: Toolbox) -> dict[str, str]:
    """What each registered bookie takes: `up` or `read-only`."""
    found = await tools.registry.available()
    return {str(bookie): "up" if info.writable else "read-only" for bookie, info in found.items()}

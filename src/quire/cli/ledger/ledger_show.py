"""The commands that look at ledgers without changing them: `list`, `show`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from quire.cli.console.failures import code_of_copies
from quire.cli.console.opening import with_client
from quire.cli.console.options import argument, option
from quire.cli.console.output import Output, attributes, human_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from quire.cli.console.picture import FragmentFacts
    from quire.client.repairing.inspection import HeldStripes, LedgerLook
    from quire.core.ledger.metadata import LedgerMetadata
    from quire.core.ledger.terms import TermRange
    from quire.log.client import QuireClient

ANSWER_MS = 3_000
"""How long a bookie may take to say what it holds."""
DAMAGED = "damaged"
"""The state of a ledger whose record cannot be read."""
LISTED_MAX = 100
"""Most ranges that are listed of what a bookie lacks of one fragment."""

TERMS_SHOWN = 40
"""Most terms that are drawn, the last ones; JSON has all."""
SHOWN_MAX = 1000
"""Most ledgers in a table, where no other number is wanted; JSON has all."""

LedgerArgument = Annotated[int, argument("LEDGER", "The ledger's id.", min=0)]


@with_client(frames=False)
async def list_ledgers(
    client: QuireClient,
    out: Output,
    after: Annotated[int | None, option("--after", "Only ledgers with greater ids.")] = None,
    limit: Annotated[
        int | None,
        option("--limit", f"Most ledgers to list [default: {SHOWN_MAX:,}; all with --json].", min=1),
    ] = None,
) -> None:
    """List ledgers in the order of their ids."""
    from quire.core.errors import CorruptMetadataError
    from quire.core.ids import ID_MAX

    rows: list[dict[str, object]] = []
    left = limit or (ID_MAX if out.as_json else SHOWN_MAX)
    async for ledger_id, record in client.records.ledgers.parsed(after, left):
        after, left = ledger_id, left - 1
        if isinstance(record, CorruptMetadataError):
            out.note(record.message)
            row: dict[str, object] = {"ledger_id": ledger_id, "state": DAMAGED}
        else:
            row = facts_of(record)
        if out.as_json:
            out.result(row)  # at once: there may be more than memory takes
        else:
            rows.append(row)
    columns = ("ledger_id", "state", "quorums", "fragments", "last_entry", "length", "digest")
    out.rows(columns, rows, none="No ledgers.")
    if not left:
        out.note(f"More may follow: --after {after}.")


@with_client(frames=False)
async def show(client: QuireClient, out: Output, ledger_id: LedgerArgument) -> int:
    """Draw a ledger: its fragments, its quorums and its state, and what each bookie says that it holds.

    Bookies list the entries that they hold; what one lacks is shown, and whether the record calls it a hole. A stream's id
    draws the stream, as `quire stream show` does. Exit code 5: copies are missing, or were not looked at.
    """
    from quire.client.repairing.inspection import held_stripes, look_at

    record = (await client.records.read(ledger_id))[0]
    if record.terms is not None:
        return await show_stream(client, out, await name_of(client, ledger_id), record.password)
    look = await look_at(ledger_id, client.records, client.bookies, password=b"", timeout_ms=ANSWER_MS)
    standing = await standing_of(client, look)
    held, record = held_stripes(look), look.record
    facts = facts_of(record) | shown_facts(record, look.version, standing, held)
    out.result(facts, *drawing(record, standing), "", *holdings(held))
    return code_of_copies(complete=is_complete(held))


def is_complete(held: Sequence[HeldStripes]) -> bool:
    """Whether every copy was looked at and is there."""
    return all(each.is_known and not each.missing for each in held)


async def name_of(client: QuireClient, ledger_id: int) -> str:
    """The name of the stream that has an id.

    Raises:
        NoSuchStreamError: it has none, or one that cannot be read.
    """
    from quire.core.errors import NoSuchStreamError

    name = (await client.records.streams.names_of([ledger_id]))[ledger_id]
    if name is None:
        msg = f"stream {ledger_id} has no name in the metadata store, or one that cannot be read"
        raise NoSuchStreamError(msg, ledger_id=ledger_id)
    return name


def id_text(ledger_id: int, streams: Mapping[int, str | None]) -> str:
    """An id, with its name if it is one of these streams'; None: there is no name that can be read."""
    if ledger_id not in streams:
        return f"{ledger_id}"
    name = streams[ledger_id]
    return (
        f"{ledger_id} (stream {name})"
        if name is not None
        else f"{ledger_id} (a stream without a readable name)"
    )


def facts_of(record: LedgerMetadata) -> dict[str, object]:
    """A ledger in one line."""
    from quire.core.ledger.metadata import LedgerState

    closed = record.state is LedgerState.CLOSED
    return attributes(record, "ledger_id state ensemble_size write_quorum ack_quorum") | {
        "quorums": f"{record.ensemble_size}/{record.write_quorum}/{record.ack_quorum}",
        "fragments": len(record.fragments),
        "last_entry": record.last_entry if closed else None,
        "length": record.length if closed else None,
        "digest": record.digest_type.name.lower(),
    }


def shown_facts(
    record: LedgerMetadata, version: int, standing: dict[str, str], held: Sequence[HeldStripes]
) -> dict[str, object]:
    """What `show --json` adds."""
    stripes = {(int(each.part.first), each.bookie): each for each in held}
    return {
        "complete": is_complete(held),
        "version": version,
        "created_ms": record.created_ms,
        "custom": {key: value.decode("utf-8", "backslashreplace") for key, value in record.custom},
        "ensembles": [
            {
                "first_entry": fragment.first_entry,
                "last_entry": record.last_entry_of_fragment(index),
                "bookies": [
                    {"id": str(bookie), "standing": standing.get(bookie, "gone")}
                    | held_facts(stripes.get((int(fragment.first_entry), bookie)))
                    for bookie in fragment.ensemble
                ],
            }
            for index, fragment in enumerate(record.fragments)
        ],
    }


def held_facts(held: HeldStripes | None) -> dict[str, object]:
    """What one bookie holds of one fragment; `held` is null where its response is inconclusive."""
    if held is None:
        return {}
    return {
        "wanted": held.part.count,
        "held": held.part.count - held.missing_count if held.is_known else None,
        "answer": held.answer.name.lower(),
        "missing": [[part.first, part.last] for part in held.missing[:LISTED_MAX]],
        "recorded_holes": [[first, last] for first, last in held.holes[:LISTED_MAX]],
    }


def holdings(held: Sequence[HeldStripes]) -> list[str]:
    """What bookies lack of what the record says, in sentences."""
    lines = []
    silent = dict.fromkeys(f"{each.bookie} ({each.answer.name})" for each in held if not each.is_known)
    for each in held:
        for part in each.missing[:LISTED_MAX]:
            known = any(first <= part.last and last >= part.first for first, last in each.holes)
            what = "a hole that the record lists" if known else "the record does not list it"
            lines.append(
                f"  {each.bookie} lacks entries {part.first:,}..{part.last:,} ({part.count:,}): {what}"
            )
        if len(each.missing) > LISTED_MAX:
            lines.append(f"  {each.bookie} lacks {len(each.missing) - LISTED_MAX:,} more ranges")
        if each.is_known and not each.missing:
            lines += [
                f"  {each.bookie}: the hole {first:,}..{last:,} that the record lists is filled"
                for first, last in each.holes[:LISTED_MAX]
            ]
    if silent:
        lines.append(f"  these bookies did not respond, so what they hold is unknown: {', '.join(silent)}")
    return lines or ["  every bookie holds what the record says"]


def fragments_of(record: LedgerMetadata) -> list[FragmentFacts]:
    """A record's fragments, to be drawn."""
    from quire.cli.console.picture import FragmentFacts

    return [
        FragmentFacts(
            fragment.first_entry, record.last_entry_of_fragment(index), tuple(map(str, fragment.ensemble))
        )
        for index, fragment in enumerate(record.fragments)
    ]


def drawing(record: LedgerMetadata, standing: dict[str, str]) -> list[str]:
    """The picture of a ledger."""
    from quire.cli.console.picture import draw_fragments, draw_write_sets
    from quire.core.ledger.metadata import LedgerState

    closed = record.state is LedgerState.CLOSED
    end = (
        f"at entry {record.last_entry:,}, {human_bytes(record.length)}"
        if closed
        else "the end is not known yet"
    )
    head = (
        f"Ledger {record.ledger_id}: {record.state.name}, {end}; E={record.ensemble_size} Qw={record.write_quorum} "
        f"Qa={record.ack_quorum}, digest {record.digest_type.name.lower()}{guarantee_text(record, standing)}"
    )
    write_sets = draw_write_sets(record.ensemble_size, record.write_quorum, record.ack_quorum)
    return [head, "", *draw_fragments(fragments_of(record), standing), "", *write_sets]


async def show_stream(client: QuireClient, out: Output, name: str, password: bytes) -> int:
    """Draw a stream: its terms, its fragments, what each bookie says that it holds, and for whom a take-over waits."""
    from quire.client.repairing.inspection import held_stripes, look_at

    stream = client.unbounded_ledger(name, password)
    reader, awaited = await stream.open_reader(), await stream.waits_for()
    record, last = reader.metadata, reader.last_add_confirmed
    look = await look_at(
        record.ledger_id, client.records, client.bookies, password=password, timeout_ms=ANSWER_MS
    )
    held = held_stripes(look)
    facts = stream_facts(name, record) | {
        "complete": is_complete(held),
        "last_add_confirmed": last,
        "silent": list(reader.silent),
        "waits_for": dict(awaited),
        "ranges": [
            {"term": each.term, "first_entry": each.first_entry, "last_entry": end}
            for each, end in terms_of(record, last)
        ],
        "ensembles": [
            {"first_entry": each.first, "last_entry": each.last, "bookies": list(each.ensemble)}
            for each in fragments_of(record)
        ],
    }
    lines = picture(name, record, last, await standing_of(client, look))
    lines += ["", *holdings(held)]
    lines += [f"Its take-over waits for {bookie}: {why}." for bookie, why in awaited.items()]
    out.result(facts, *lines)
    return code_of_copies(complete=is_complete(held))


def stream_facts(name: str, record: LedgerMetadata) -> dict[str, object]:
    """A stream in one line."""
    mode = record.terms.mode.word if record.terms is not None else ""
    return {
        "stream": name,
        **facts_of(record),
        "term": record.term,
        "terms": len(record.ranges),
        "mode": mode,
    }


def terms_of(record: LedgerMetadata, last: int) -> list[tuple[TermRange, int]]:
    """Each range of a stream, with its last entry; `last`: the last confirmed entry."""
    ends = [each.first_entry - 1 for each in record.ranges[1:]] + [last]
    return list(zip(record.ranges, ends, strict=True))


def picture(name: str, record: LedgerMetadata, last: int, standing: dict[str, str]) -> list[str]:
    """A stream in lines of text; `standing`: what each registered bookie takes."""
    from quire.cli.console.picture import draw_fragments

    head = (
        f"Stream {name} (ledger {record.ledger_id}): {record.state.name} in term {record.term}, last confirmed entry "
        f"{last:,}; E={record.ensemble_size} Qw={record.write_quorum} Qa={record.ack_quorum}, digest "
        f"{record.digest_type.name.lower()}{', its terms only fence' if record.only_fences else ''}"
    )
    lines = [head, ""]
    terms = terms_of(record, last)
    if len(terms) > TERMS_SHOWN:
        lines.append(f"  {len(terms) - TERMS_SHOWN:,} earlier terms")
    for each, end in terms[-TERMS_SHOWN:]:
        wrote = "nothing" if end < each.first_entry else f"entries {each.first_entry:,}..{end:,}"
        lines.append(f"  term {each.term}: {wrote}")
    return [*lines, "", *draw_fragments(fragments_of(record), standing)]


def guarantee_text(record: LedgerMetadata, standing: dict[str, str]) -> str:
    """What became of the guarantee of a ledger's write quorum, if it has or had one, and which bookies it waits for."""
    from quire.core.ledger.guarantee import GIVEN_UP
    from quire.core.ledger.metadata import LedgerState

    away = [str(bookie) for bookie in record.last_fragment.ensemble if bookie not in standing]
    if record.guaranteed and away and record.state is not LedgerState.CLOSED:
        return (
            f", its write quorum is guaranteed, and {', '.join(away)} is not there: start it, or waive the guarantee, "
            "`quire ledger recover --at ack-quorum`"
        )
    if record.guaranteed and record.has_pending_replication:
        return ", its write quorum is guaranteed, and the client that closed it did not know that: run `quire ledger repair`"
    if record.guaranteed:
        return ", its write quorum is guaranteed"
    return ", its guaranteed write quorum was waived" if GIVEN_UP in record.custom else ""


async def standing_of(client: QuireClient, look: LedgerLook) -> dict[str, str]:
    """What each registered bookie can be counted on for; one that did not list what it has is silent."""
    from quire.core.answers import Answer
    from quire.core.cluster_state import standing

    found = await client.bookies.registry.available()
    silent = {
        bookie
        for bookie, response in look.lists.items()
        if response.answer in {Answer.TIMED_OUT, Answer.UNREACHABLE}
    }
    return {
        str(bookie): standing(writable=info.writable, responds=bookie not in silent).value
        for bookie, info in found.items()
    }

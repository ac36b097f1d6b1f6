"""The commands that look at logs without changing them: `quire log list` and `quire log show`."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any, Final

from quire.cli.console.opening import with_client
from quire.cli.console.options import PasswordOption, option
from quire.cli.console.output import Output, attributes, human_bytes
from quire.cli.log.parameters import NameArgument
from quire.cli.log.ranges import iso
from quire.cli.log.whose_writer import LeaderStanding, standing_of
from quire.core.errors import NoSuchLogError, QuireError

if TYPE_CHECKING:
    from quire.core.log.list import LogSettings
    from quire.log.client import QuireClient
    from quire.log.records import LogDescription

LISTED_AT_ONCE: Final = 8
LEDGERS_SHOWN: Final = 20


@with_client()
async def list_logs(client: QuireClient, out: Output, password: PasswordOption = "") -> None:
    """List the logs with their offsets and sizes."""
    at_once = asyncio.Semaphore(LISTED_AT_ONCE)

    async def row_of(name: str) -> dict[str, Any] | None:
        async with at_once:
            return await _row(client, name, password, out)

    found = await asyncio.gather(*(row_of(name) for name in await client.logs()))
    rows = [row for row in found if row is not None]
    columns = ("log", "start_offset", "end_offset", "records", "size", "ledgers", "epoch")
    out.rows(
        columns,
        rows,
        shown=lambda row: row | {"size": None if row["bytes"] is None else human_bytes(row["bytes"])},
        none="No logs.",
    )


async def _row(client: QuireClient, name: str, password: str, out: Output) -> dict[str, Any] | None:
    """One log's row; of one whose open ledgers cannot be read now what the list says; None for a deleted one."""
    log = client.log(name, password.encode())
    try:
        about = await log.describe()
    except NoSuchLogError:
        return None
    except QuireError as error:
        out.note(f"{name}: {error.message}")
        try:
            head = await log.identify()
        except NoSuchLogError:
            return None
        unknown = dict.fromkeys(("end_offset", "records", "bytes"))
        return {
            "log": name,
            "start_offset": head.start_offset,
            **unknown,
            "ledgers": head.item_count,
            "epoch": head.leader.epoch,
        }
    return {
        "log": about.name,
        **attributes(about, "start_offset end_offset"),
        "records": records_in(about),
        "bytes": sum(item.bytes or 0 for item in about.items),
        "ledgers": len(about.items),
        "epoch": about.epoch,
    }


def records_in(about: LogDescription) -> int:
    """How many records can be read; a ledger that is partly truncated counts from the log's start."""
    return min(about.end_offset - about.start_offset, sum(item.count for item in about.items))


@with_client()
async def show(
    client: QuireClient,
    out: Output,
    name: NameArgument,
    limit: Annotated[
        int | None,
        option("N", "Only the newest N ledgers [default: 20, and all with --json].", min=1),
    ] = None,
    password: PasswordOption = "",
) -> None:
    """Draw a log: quorums, leader, times, and its ledgers in order with their offsets and states."""
    about = await client.log(name, password.encode()).describe()
    standing = await standing_of(client, name)
    shown = len(about.items) if limit is None else limit
    facts = shown_facts(about, shown) | _more_facts(about, standing)
    out.result(facts, *_drawing(about, standing, limit or LEDGERS_SHOWN))


def shown_facts(about: LogDescription, limit: int | None = None) -> dict[str, object]:
    """A log's description as a JSON line, with its newest `limit` ledgers."""
    names = "ledger_id first_offset next_offset count bytes min_time_ms max_time_ms state"
    items = about.items[max(len(about.items) - limit, 0) :] if limit is not None else about.items
    return {
        "log": about.name,
        **attributes(about, "log_id epoch start_offset end_offset compacted_below"),
        "items": [attributes(item, names) for item in items],
    }


def _more_facts(about: LogDescription, standing: LeaderStanding) -> dict[str, object]:
    first_ms, last_ms = _times(about)
    settings = about.settings
    return {
        "created_ms": about.created_ms,
        "quorums": quorums_of(settings),
        "min_present": settings.min_present or settings.ack_quorum,
        "digest": digest_of(settings),
        "leader": standing.facts,
        "records": records_in(about),
        "bytes": sum(item.bytes or 0 for item in about.items),
        "ledgers": len(about.items),
        "min_time_ms": first_ms,
        "max_time_ms": last_ms,
        "silent": list(about.silent),
    }


def quorums_of(settings: LogSettings) -> str:
    """E/Qw/Qa."""
    return f"{settings.ensemble_size}/{settings.write_quorum}/{settings.ack_quorum}"


def digest_of(settings: LogSettings) -> str:
    """The name of the digest that new ledgers of a log have."""
    from quire.core.ledger.metadata import DigestType

    return DigestType(settings.digest).name.lower()


def _times(about: LogDescription) -> tuple[int | None, int | None]:
    lows = [item.min_time_ms for item in about.items if item.min_time_ms is not None]
    highs = [item.max_time_ms for item in about.items if item.max_time_ms is not None]
    return min(lows, default=None), max(highs, default=None)


def _drawing(about: LogDescription, standing: LeaderStanding, limit: int) -> list[str]:
    """The picture of a log."""
    from quire.cli.console.picture import draw_items

    newest = about.items[-limit:]
    size = human_bytes(sum(item.bytes or 0 for item in about.items))
    count = len(about.items)
    records = records_in(about)
    first_ms, last_ms = _times(about)
    offsets = (
        f"offsets {about.start_offset:,} to {about.end_offset - 1:,}"
        if records
        else f"next offset {about.end_offset:,}"
    )
    lines = [
        f"Log {about.name} (id {about.log_id}, created {iso(about.created_ms)})",
        f"  {offsets}: {records:,} record{'' if records == 1 else 's'} in {count:,} ledger{'' if count == 1 else 's'}, {size}",
        f"  E/Qw/Qa {quorums_of(about.settings)}, digest {digest_of(about.settings)}",
        f"  {_leader(about, standing)}",
    ]
    if first_ms is not None:
        lines.append(f"  times of records: {iso(first_ms)} to {iso(last_ms)}")
    if about.silent:
        lines.append(f"  bookies that did not respond may have more records: {', '.join(about.silent)}")
    if len(newest) < count:
        lines.append(f"  the newest {len(newest):,} of {count:,} ledgers; --limit shows more")
    return [*lines, *draw_items(newest, about.start_offset, shown=max(limit, 2))]


def _leader(about: LogDescription, standing: LeaderStanding) -> str:
    if standing.writer:
        return f"leader: the writer at {standing.writer_host} (epoch {standing.epoch})"
    if about.epoch == 0:
        return "leader: none yet"
    if standing.host:
        return (
            f"leader: none; the last one, at {standing.host} (epoch {standing.epoch}), ended without closing"
        )
    return f"leader: none; the last one (epoch {standing.epoch}) closed the log"

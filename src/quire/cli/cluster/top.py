"""`quire top`: bookies, logs and their writers, drawn anew every few seconds."""

from __future__ import annotations

import asyncio
import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

from quire.cli.cluster.alerts import kinds_of
from quire.cli.cluster.bookie_rows import shown
from quire.cli.console.opening import with_client
from quire.cli.console.options import MEANT, option
from quire.cli.console.output import Output, counted, human_bytes, terminal_width
from quire.cli.console.tables import draw_table

if TYPE_CHECKING:
    from collections.abc import Callable

    from quire.cli.cluster.snapshot import Snapshot, Snapshots
    from quire.log.client import QuireClient


@with_client()
async def top(
    client: QuireClient,
    out: Output,
    interval: Annotated[float, option("--interval SECONDS", "How often to look.", min=0.1)] = 2.0,
    logs_max: Annotated[int, option("--logs N", "Show this many logs, the busiest first.", min=0)] = 20,
    once: Annotated[bool, option("--once", "Look once, print, and end.")] = False,
) -> None:
    """Watch bookies, logs and writers; Ctrl-C ends it.

    Rates are those since the last look; with --once there is none yet. Without a terminal the tables are printed one
    below the other, and --json prints one object per look.
    """
    from quire.cli.cluster.snapshot import Snapshots

    snapshots = Snapshots(client, MEANT.get(), logs_max)
    if once or out.as_json or not sys.stdout.isatty():
        await _print(out, snapshots, None if once else interval)
    else:
        await _draw(snapshots, interval)


async def _print(out: Output, snapshots: Snapshots, interval: float | None) -> None:
    while True:
        seen = await snapshots.take()
        lines, left_out = tables(seen, terminal_width())
        out.result(seen.facts(), *heading(seen), *lines)
        if left_out and not out.as_json:
            out.note(f"Without {', '.join(left_out)}: a wider terminal shows them, and --json has all.")
        if interval is None:
            return
        await asyncio.sleep(interval)


async def _draw(snapshots: Snapshots, interval: float) -> None:
    """Keep the screen as it is between looks: what is typed there is not ours."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console = Console()
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            seen = await snapshots.take()
            lines, _ = tables(seen, console.width)
            live.update(Text("\n".join([*heading(seen), *lines]), no_wrap=True), refresh=True)
            await asyncio.sleep(interval)


def heading(seen: Snapshot) -> list[str]:
    """The lines above the tables."""
    clock = time.strftime("%H:%M:%S", time.localtime(seen.at_ms / 1000))
    up = sum(row["standing"] == "up" for row in seen.bookies)
    left_out = seen.logs_looked_at and seen.logs_count - seen.logs_looked_at
    part = f" (only the first {seen.logs_looked_at:,} by name are looked at)" if left_out else ""
    return [
        f"{clock}  {seen.cluster}",
        f"{counted(len(seen.bookies), 'bookie')}, {up} up; {counted(seen.logs_count, 'log')}{part}; Ctrl-C ends this",
        *([seen.health] if seen.health else []),
    ]


def tables(seen: Snapshot, width: int | None) -> tuple[list[str], list[str]]:
    """Both tables as lines, and the columns that a terminal of this width loses."""
    bookies = draw_table(
        ("bookie", "standing", "entries/s", "bytes/s", "stored", "free", "uptime", "needs"),
        [_texts(row) for row in seen.bookies],
        width,
        ("uptime", "stored", "free", "bytes/s"),
    )
    logs = draw_table(
        ("log", "end offset", "records/s", "writer"),
        [
            [row["log"], f"{row['end_offset']:,}", _rate(row["records_per_s"]), row["writer"] or "-"]
            for row in seen.logs
        ],
        width,
    )
    lines = ["", bookies.head, *bookies.lines, "", logs.head, *logs.lines]
    return lines, [*bookies.left_out, *logs.left_out]


def _texts(row: dict[str, Any]) -> list[str]:
    """What a bookie's row shows, in order."""
    rates = [_rate(row["entries_per_s"]), _rate(row["bytes_per_s"], human_bytes)]
    figures = [value or "-" for value in shown(row).values()]
    return [row["id"], row["standing"], *rates, *figures, kinds_of(row) or ""]


def _rate(rate: float | None, text: Callable[[float], str] = "{:,.0f}".format) -> str:
    return "-" if rate is None else text(rate)

"""`quire bookie space`, `collect` and `compact`: what uses a bookie's space, and a pass that frees some at once."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Annotated, Any, Final

from quire.cli.cluster.bookie_rows import count_in, object_in
from quire.cli.console.failures import EXIT_FAILED
from quire.cli.console.opening import with_client
from quire.cli.console.options import TIMEOUT_MAX, option
from quire.cli.console.output import Output, counted, human_bytes
from quire.core.errors import MisuseError, RefusedError

if TYPE_CHECKING:
    from quire.core.ids import BookieId
    from quire.log.client import QuireClient
    from quire.wire.native_info import SpaceTask

BAR_WIDTH: Final = 24
TEXT_MAX: Final = 300
REASONS_MAX: Final = 50

BookieOption = Annotated[
    str | None,
    option("--bookie BOOKIE", "Only this bookie [default: each that is registered]."),
]
NowOption = Annotated[bool, option("--now", "At once, not with the next pass.")]
TimeoutOption = Annotated[
    float,
    option("--timeout SECONDS", "How long a bookie may take to respond.", min=0.1, max=TIMEOUT_MAX),
]


@with_client(frames=False)
async def space(
    client: QuireClient, out: Output, bookie: BookieOption = None, timeout: TimeoutOption = 60.0
) -> int:
    """Show what uses the bytes of a bookie's segment files, when they are freed, and what frees them sooner."""
    from quire.wire.native_info import SpaceTask

    return await _ask(client, out, SpaceTask.MEASURE, bookie, timeout)


@with_client(frames=False)
async def collect(
    client: QuireClient,
    out: Output,
    now: NowOption = False,
    bookie: BookieOption = None,
    timeout: TimeoutOption = 600.0,
) -> int:
    """Let bookies make a pass of their collectors at once, and say what it freed.

    A pass drops deleted ledgers and over-replicated copies, and frees segments in which nothing lives.
    """
    from quire.wire.native_info import SpaceTask

    _need(now, "collect")
    return await _ask(client, out, SpaceTask.COLLECT, bookie, timeout)


@with_client(frames=False)
async def compact(
    client: QuireClient,
    out: Output,
    now: NowOption = False,
    bookie: BookieOption = None,
    timeout: TimeoutOption = 600.0,
) -> int:
    """Let bookies make a pass and compact segments of which up to four fifths live, and say what it freed.

    By themselves bookies compact only when less than 30 % of the disk is free: what lives is written again.
    """
    from quire.wire.native_info import SpaceTask

    _need(now, "compact")
    return await _ask(client, out, SpaceTask.COMPACT, bookie, timeout)


def _need(now: bool, command: str) -> None:
    if not now:
        raise MisuseError(
            f"bookies {command} by themselves; `quire bookie {command} --now` does it at once, and `quire bookie space` "
            "says when they do"
        )


async def _ask(client: QuireClient, out: Output, task: SpaceTask, bookie: str | None, timeout: float) -> int:
    wanted = await _wanted(client, bookie)
    rows = await asyncio.gather(*(_row(client, one, task, int(timeout * 1000)) for one in wanted))
    for row in rows:
        out.result(row, *_lines(row))
    return EXIT_FAILED if any(row["failure"] for row in rows) else 0


async def _wanted(client: QuireClient, bookie: str | None) -> list[BookieId]:
    from quire.core.ids import BookieId

    up = sorted(await client.bookies.registry.available())
    if bookie is None:
        if not up:
            raise RefusedError("no bookie is registered: start bookies (`quire up`, `quire bookie`)")
        return up
    if bookie not in up:
        known = await client.bookies.registry.read_cookie(BookieId(bookie)) is not None
        why = "is not registered: start it first" if known else "is unknown"
        raise RefusedError(f"bookie {bookie} {why}; `quire cluster bookies` lists the bookies", bookie=bookie)
    return [BookieId(bookie)]


async def _row(client: QuireClient, bookie: BookieId, task: SpaceTask, timeout_ms: int) -> dict[str, Any]:
    """What a bookie reports; a value of another type is left out."""
    from quire.core.answers import Answer

    answer, says = await client.bookies.space(bookie, task, timeout_ms=timeout_ms)
    report, back = object_in(says.get("space")), object_in(says.get("came_back"))
    reasons = report.get("reasons")
    failure = says.get("failure")
    if answer is Answer.BAD_REQUEST:
        failure = "the bookie's program does not report it: it is an older one, or BookKeeper's"
    elif answer is Answer.TIMED_OUT:
        failure = f"no response in {timeout_ms / 1000:g} s; the bookie finishes what it has begun"
    elif answer is not Answer.OK:
        failure = f"the bookie did not respond: {answer.name.lower()}"
    return {
        "bookie": str(bookie),
        "failure": None if failure is None else _text(failure),
        "at": _text(report["at"]) if "at" in report else None,
        "bytes": count_in(report.get("bytes")) or 0,
        "came_back": {
            name: count_in(back[name]) or 0 for name in ("dropped", "retired", "compacted") if name in back
        },
        "reasons": [_reason(one) for one in (reasons if isinstance(reasons, list) else [])[:REASONS_MAX]],
    }


def _reason(one: object) -> dict[str, Any]:
    reason = object_in(one)
    row: dict[str, Any] = {"reason": _text(reason.get("reason")), "bytes": count_in(reason.get("bytes")) or 0}
    row |= {name: _text(reason.get(name)) for name in ("what", "returns")}
    return row | {"sooner": None if reason.get("sooner") is None else _text(reason["sooner"])}


def _lines(row: dict[str, Any]) -> list[str]:
    """A chart of one bookie's reasons, each with what ends it."""
    lines = [f"{row['bookie']}  {human_bytes(row['bytes'])} in segment files"]
    if row["failure"]:
        lines = [f"{row['bookie']}  {row['failure']}"]
    back = row["came_back"]
    if back:
        dropped, retired, compacted = (back.get(name, 0) for name in ("dropped", "retired", "compacted"))
        lines.append(
            f"  {counted(dropped, 'ledger')} dropped, {counted(compacted, 'segment')} compacted, "
            f"{counted(retired, 'segment')} freed"
        )
    largest = max((one["bytes"] for one in row["reasons"]), default=0)
    for one in row["reasons"]:
        bar = "█" * (math.ceil(one["bytes"] / largest * BAR_WIDTH) if largest else 0)
        lines.append(
            f"  {one['reason']:<10}  {human_bytes(one['bytes']):>10}  {bar:<{BAR_WIDTH}}  {one['what']}"
        )
        ends = one["returns"] + (f"; sooner: {one['sooner']}" if one["sooner"] else "")
        lines.append(f"  {'':<10}  {'':>10}  freed: {ends}")
    return lines


def _text(value: object) -> str:
    text = str(value)[:TEXT_MAX]
    return text if text.isprintable() else repr(text)

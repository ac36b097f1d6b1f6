"""`quire autorecovery`, and what `quire cluster` says of it: what is marked, the switch, the delay."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quire.cli.console.failures import EXIT_ATTENTION
from quire.cli.console.opening import with_client, with_cluster
from quire.cli.console.options import argument, option, run
from quire.cli.console.output import Output, attributes, counted, human_bytes, human_duration
from quire.cli.ledger.repair_show import MB, RATE_MAX

if TYPE_CHECKING:
    from quire.log.client import QuireClient

app = typer.Typer(help="Auto-recovery as a whole: on, off, status.")

WorkerRateOption = Annotated[
    float | None,
    option(
        "--rate MB/S",
        "Copy at most this many million bytes a second in this process [default: as fast as bookies accept them].",
        min=0.001,
        max=RATE_MAX,
    ),
]
DelayOption = Annotated[
    int | None,
    option(
        "--lost-delay SECONDS",
        "Set first, for the whole cluster, how long a bookie may be away before its copies are replaced.",
        min=0,
        max=2**31 - 1,
    ),
]


@with_cluster
def autorecovery(
    uri: str,
    out: Output,
    rate: WorkerRateOption = None,
    lost_delay: DelayOption = None,
) -> None:
    """Audit and repair the cluster by itself, in the foreground. Ctrl-C stops it cleanly.

    Several may run: one of them audits, and all repair, each ledger by one. `quire up` runs one.
    """
    from quire.cli.local.recovering import recover
    from quire.cli.local.serve import set_up_logging

    set_up_logging()

    def ready(name: str) -> None:
        out.result(
            {"name": name, "pid": os.getpid(), "cluster": uri},
            f"Auto-recovery of {uri} runs as {name}. Ctrl-C stops it.",
        )

    rate_bytes = None if rate is None else int(rate * MB)
    run(recover(uri, rate_bytes=rate_bytes, lost_delay_s=lost_delay, until_eof=False, on_ready=ready))
    out.note("Stopped cleanly.")


@with_client(frames=False)
async def repairs(client: QuireClient, out: Output) -> int:
    """List the ledgers that are marked for repair: why, since when, what was tried, and what each waits for.

    With --json the last object has the totals. The estimate is how long workers take for what they can repair by themselves,
    at the rate of their last minute. Exit code 5: ledgers are marked, or a bookie is away and not all are marked yet.
    """
    from quire.cli.cluster.marked import away_bookies, away_lines, marked_ledgers, shown, totals

    marks = client.records.repairs("quire cluster")
    rows, facts = await marked_ledgers(client.records, marks)
    facts["away"] = away = await away_bookies(client, marks)
    columns = ("ledger_id", "reasons", "age", "copies_left", "attempts", "size", "waits_for")
    least = ("attempts", "age", "size")
    out.rows(columns, rows, shown=shown, most=LISTED_MAX, none="No ledger is marked.", least=least)
    if out.as_json:
        out.result(facts)
    elif rows:
        out.note(totals(facts))
    for line in away_lines(away, await marks.lost_delay_s()):
        out.note(line)
    return EXIT_ATTENTION if rows or away else 0


LISTED_MAX = 100


@app.command()
@with_client(frames=False)
async def on(client: QuireClient, out: Output) -> None:
    """Switch auto-recovery on in the whole cluster, for Java's programs too."""
    await _switch(client, out, enabled=True)


@app.command()
@with_client(frames=False)
async def off(client: QuireClient, out: Output) -> None:
    """Switch auto-recovery off in the whole cluster, for Java's programs too: nothing is marked, and repairs stop."""
    await _switch(client, out, enabled=False)


async def _switch(client: QuireClient, out: Output, *, enabled: bool) -> None:
    await client.records.repairs("quire cluster").set_enabled(enabled)
    out.result({"enabled": enabled}, f"Auto-recovery is switched {'on' if enabled else 'off'}.")


@app.command()
@with_client(frames=False)
async def status(client: QuireClient, out: Output) -> None:
    """Say whether it is on, who audits, which workers there are, and which bookies have been away for how long."""
    from quire.autorecovery.auditor import ELECTION
    from quire.core.repair.audit_effects import CountedState
    from quire.metadata.election import Election

    marks = client.records.repairs("quire cluster")
    enabled, delay_s = await marks.is_enabled(), await marks.lost_delay_s()
    auditor = await Election(client.store, ELECTION, "").leader()
    workers = await marks.workers()
    times = {state: await marks.times(state) for state in CountedState}
    facts: dict[str, Any] = {
        "enabled": enabled,
        "lost_delay_s": delay_s,
        "auditor": auditor,
        "workers": [attributes(one, "name ledgers bytes bytes_per_s") for one in workers],
    }
    facts |= {
        state.value.replace("-", "_"): {
            bookie: None if one.mark is None else one.mark.seconds for bookie, one in counted.items()
        }
        for state, counted in times.items()
    }
    lines = [
        f"Auto-recovery is {'on' if enabled else 'switched off: `quire cluster autorecovery on`'}.",
        f"Lost delay  {human_duration(delay_s)}",
        f"Auditor     {auditor or 'none: start `quire autorecovery`'}",
    ]
    lines += [
        f"Worker      {one.name}: {counted(one.ledgers, 'ledger')} repaired, {human_bytes(one.bytes)} copied"
        + (f", {human_bytes(one.bytes_per_s)}/s" if one.bytes_per_s else "")
        for one in workers
    ] or ["Worker      none: start `quire autorecovery`"]
    lines += [
        f"{label:11} {bookie}: {'-' if seconds is None else human_duration(seconds)}"
        for label, name in (("Away", "away"), ("Read-only", "read_only"))
        for bookie, seconds in facts[name].items()
    ]
    out.result(facts, *lines)


@with_client(frames=False)
async def lost_delay(
    client: QuireClient,
    out: Output,
    seconds: Annotated[
        int | None, argument("[SECONDS]", "The delay; without it, it is shown.", min=0, max=2**31 - 1)
    ] = None,
) -> None:
    """Show or set how long a bookie may be away before its copies are made anew, for Java's programs too.

    Where fewer than Qa copies of an entry are left nothing is waited for.
    """
    marks = client.records.repairs("quire cluster")
    if seconds is not None:
        await marks.set_lost_delay_s(seconds)
    now = await marks.lost_delay_s()
    out.result({"lost_delay_s": now}, f"A bookie may be away for {human_duration(now)} ({now} s).")

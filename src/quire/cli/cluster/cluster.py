"""`quire cluster …`: what a cluster consists of right now."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quire.cli.cluster import autorecovery
from quire.cli.cluster.alerts import kinds_of, lines_of
from quire.cli.cluster.bookie_rows import bookie_rows, collector_of, listed, rows_within, shown
from quire.cli.cluster.orphans import accept_store, orphans
from quire.cli.console.failures import EXIT_ATTENTION, EXIT_FAILED
from quire.cli.console.opening import with_cluster, with_tools
from quire.cli.console.options import MEANT, TIMEOUT_MAX, option, run
from quire.cli.console.output import Output, counted
from quire.cli.ledger.ledger_show import DAMAGED, every_ledger
from quire.cli.ledger.repair import repair_cluster, under_replication
from quire.core.errors import AlreadyExistsError, NoClusterError, QuireError

if TYPE_CHECKING:
    from quire.cli.console.toolbox import Toolbox
    from quire.metadata.store import MetadataStore

app = typer.Typer(
    help="The cluster as a whole: status, health, bookies, under-replication, repair, repairs, autorecovery, lost-delay, orphans, "
    "accept-store."
)
app.command("under-replication")(under_replication)
app.command("debt", hidden=True)(under_replication)
app.command("repair")(repair_cluster)
app.command("repairs")(autorecovery.repairs)
app.add_typer(autorecovery.app, name="autorecovery")
app.command("lost-delay")(autorecovery.lost_delay)
app.command("orphans")(orphans)
app.command("accept-store")(accept_store)

LEDGERS_COUNTED_MAX = 100_000
QUORUM_DEFAULT = 3


@app.command()
@with_tools
async def bookies(tools: Toolbox, out: Output) -> int:
    """List the bookies with version, uptime, bytes and free space; those that are down too.

    A bookie of Java reports only its disk. Alerts are shown with what ends them; the exit code is 5 then.
    """
    rows = await bookie_rows(tools)
    least = ("protocol", "version", "uptime", "holds", "stored", "free")
    columns = (
        "id",
        "address",
        "standing",
        "version",
        "uptime",
        "holds",
        "stored",
        "free",
        "protocol",
        "needs",
    )
    texts = rows if out.as_json else [row | shown(row) | {"needs": kinds_of(row)} for row in rows]
    out.rows("", columns, texts, least=least)
    out.lines(lines_of(rows))
    return EXIT_ATTENTION if _needy(rows) else 0


@app.command()
@with_tools
async def status(tools: Toolbox, out: Output) -> int:
    """Say how the cluster is: bookies, ledgers by state, logs.

    Alerts are shown with what ends them; the exit code is 5 then.
    """
    rows: list[dict[str, Any]]
    rows, states, logs = await asyncio.gather(
        bookie_rows(tools), ledger_states(tools), _count_keys(tools, "log-names")
    )
    count = {
        standing: sum(row["standing"] == standing for row in rows) for standing in ("up", "read-only", "down")
    }
    collection = collection_of(rows)
    all_counted = sum(states.values()) < LEDGERS_COUNTED_MAX
    facts = {
        "cluster": (uri := MEANT.get()),
        "instance": (instance := tools.store.instance_id),
        "bookies": count,
        "ledgers": states,
        "all_counted": all_counted,
        "logs": logs,
        **collection,
        "conditions": {row["id"]: row["conditions"] for row in rows if row["conditions"]},
    }
    ledgers = ", ".join(f"{number:,} {state.replace('_', ' ')}" for state, number in states.items()) or "none"
    if not all_counted:
        ledgers += f" (of the first {LEDGERS_COUNTED_MAX:,}; more are not counted)"
    if DAMAGED in states:
        ledgers += ": `quire ledger list` names the damaged records"
    standing = ", ".join(f"{number} {name}" for name, number in count.items() if number) or "none"
    lines = [f"Cluster  {uri}  (instance {instance})", f"Bookies  {standing}", f"Ledgers  {ledgers}"]
    lines.append(f"Logs     {logs:,}")
    if collection["orphans"]:
        have = "has" if collection["orphans"] == 1 else "have"
        kept = f"{counted(collection['orphans'], 'ledger')} on bookies {have} no record"
        lines.append(f"Orphans  {kept}: `quire cluster orphans`")
    lines += lines_of(rows)
    if not count["up"]:
        lines.append("No bookie is writable: start bookies (`quire up`, `quire bookie`).")
    out.result(facts, "\n".join(lines))
    return EXIT_ATTENTION if DAMAGED in states or _needy(rows) else 0


@app.command()
@with_cluster
def health(
    uri: str,
    out: Output,
    timeout: Annotated[
        float,
        option("--timeout SECONDS", "How long the store and the bookies may take.", min=0.1, max=TIMEOUT_MAX),
    ] = 5.0,
) -> int:
    """Say in one line whether the cluster can be written to and all is well; for scripts and probes.

    Makes one small change in the metadata store, of a key of its own, to see whether it takes changes. Exit code 0: healthy.
    5: some bookie needs attention, but logs can be written. 1: the metadata store does not respond in time or refuses the
    change, or fewer bookies take entries than the 3 that a log has by default.
    """
    facts, text = run(examine(uri, timeout))
    out.result(facts, text)
    return {"healthy": 0, "attention": EXIT_ATTENTION}.get(str(facts["health"]), EXIT_FAILED)


async def examine(uri: str, timeout_s: float) -> tuple[dict[str, Any], str]:
    """How healthy a cluster is.

    Returns:
        What programs read, and the line for people.
    """
    from quire.cli.console.toolbox import open_toolbox

    began = time.monotonic()
    async with AsyncExitStack() as opened:
        try:
            async with asyncio.timeout(timeout_s):
                tools = await opened.enter_async_context(open_toolbox(uri))
                found = await listed(tools)
                refusal = await refusal_of(tools.store)
        except TimeoutError as error:
            raise NoClusterError(
                f"The metadata store of {uri} did not respond in {timeout_s:g} s: check that it runs and can be reached."
            ) from error
        rows = await rows_within(tools, found, int((began + timeout_s - time.monotonic()) * 1000))
    writable = sum(row["standing"] == "up" and row["answers"] == "ok" for row in rows)
    needy = [row["id"] for row in rows if row["conditions"]]
    of = f"{writable} of {counted(len(rows), 'bookie')} can be written to"
    if refusal:
        state, text = (
            "unhealthy",
            f"unhealthy: the metadata store takes no change, so nothing is created or replaced: {refusal}",
        )
    elif writable < QUORUM_DEFAULT:
        state, text = "unhealthy", f"unhealthy: {of}, and a log needs {QUORUM_DEFAULT} by default"
    elif needy:
        need = "needs" if len(needy) == 1 else "need"
        state, text = "attention", f"attention: {of}; {', '.join(needy)} {need} it (`quire cluster bookies`)"
    else:
        state, text = "healthy", f"healthy: {of}"
    facts: dict[str, Any] = {"health": state, "cluster": uri, "writable": writable, "bookies": len(rows)}
    facts |= {"store": refusal or None, "attention": needy, "seconds": round(time.monotonic() - began, 3)}
    return facts, text


async def refusal_of(store: MetadataStore) -> str:
    """Make one small change, of a key that nothing depends on; what the store says against it, empty if it takes it."""
    from quire.metadata.keys import HEALTH
    from quire.metadata.store import VersionConflictError

    try:
        found = await store.get(HEALTH)
        now = str(time.time_ns() // 1_000_000).encode()
        with suppress(AlreadyExistsError, VersionConflictError):  # another probe's change was taken just now
            if found is None:
                await store.create(HEALTH, now)
            else:
                await store.put(HEALTH, now, found.version)
    except QuireError as error:
        return error.message
    return ""


def _needy(rows: list[dict[str, Any]]) -> bool:
    return any(row["conditions"] for row in rows)


def collection_of(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """How the collection of deleted ledgers stands, from the rows of all bookies.

    Returns:
        `holding`: why, by bookie that deletes nothing; `orphans`: the most ledgers without a record that one bookie keeps;
        `collector_failures`: the last error, by bookie whose last pass failed.
    """
    says = {row["id"]: collector_of(row.get("info")) for row in rows}
    return {
        "holding": {bookie: one["holding"] for bookie, one in says.items() if one["holding"]},
        "orphans": max((one["unknown"] for one in says.values()), default=0),
        "collector_failures": {bookie: one["failure"] for bookie, one in says.items() if one["failure"]},
    }


async def ledger_states(tools: Toolbox) -> dict[str, int]:
    """How many ledgers there are in each state (of the first `LEDGERS_COUNTED_MAX`)."""
    from quire.core.errors import CorruptMetadataError

    states: dict[str, int] = {}
    async for _, record in every_ledger(tools, None, LEDGERS_COUNTED_MAX):
        state = DAMAGED if isinstance(record, CorruptMetadataError) else record.state.name.lower()
        states[state] = states.get(state, 0) + 1
    return states


async def _count_keys(tools: Toolbox, prefix: str) -> int:
    from quire.metadata.paging import every_key

    count = 0
    async for _ in every_key(tools.store, prefix):
        count += 1
    return count

"""`quire cluster …`: what a cluster consists of right now."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import typer

from quire.cli.cluster import autorecovery
from quire.cli.cluster.alerts import kinds_of, lines_of
from quire.cli.cluster.bookie_rows import bookie_rows, collector_of, shown
from quire.cli.cluster.health import (
    health,
    judged_of,
    line_of,
    quorums_of,
)
from quire.cli.cluster.orphans import accept_store, orphans
from quire.cli.console.failures import EXIT_ATTENTION
from quire.cli.console.opening import with_client
from quire.cli.console.options import MEANT
from quire.cli.console.output import Output, counted
from quire.cli.ledger.ledger_show import DAMAGED
from quire.cli.ledger.repair import repair_cluster, under_replication
from quire.core.cluster_state import BookieStanding, ClusterHealth

if TYPE_CHECKING:
    from quire.log.client import QuireClient
    from quire.metadata.records import RecordStore

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

RECORDS_COUNTED_MAX = 100_000


@app.command()
@with_client(frames=False)
async def bookies(client: QuireClient, out: Output) -> int:
    """List the bookies with version, uptime, bytes and free space; those that are down too.

    A bookie of Java reports only its disk. Alerts are shown with what ends them; the exit code is 5 then.
    """
    rows = await bookie_rows(client)
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
    out.rows(columns, rows, shown=lambda row: row | shown(row) | {"needs": kinds_of(row)}, least=least)
    out.lines(lines_of(rows))
    return EXIT_ATTENTION if any(row["conditions"] for row in rows) else 0


@app.command()
@with_client(frames=False)
async def status(client: QuireClient, out: Output) -> int:
    """Say how the cluster is: bookies, what can be created on them, ledgers and streams by state, logs.

    Alerts are shown with what ends them; the exit code is 5 then, and where no ledger can be created.
    """
    from quire.log.heads import LogHeads

    rows: list[dict[str, Any]]
    rows, ledgers, streams, logs = await asyncio.gather(
        bookie_rows(client),
        records_by_state(client.records.ledgers),
        records_by_state(client.records.streams),
        LogHeads(client.store).names(),
    )
    judged, marked = await judged_of(client, rows)
    count = {one.value: sum(row["standing"] == one.value for row in rows) for one in BookieStanding}
    collection = collection_of(rows)
    most_counted = max(sum(ledgers.values()), sum(streams.values()))
    facts = {
        "cluster": (uri := MEANT.get()),
        "instance": (instance := client.store.instance_id),
        "bookies": count,
        "health": judged.health.value,
        "marked": marked,
        "refused": {quorums_of(one.shape): one.refusal for one in judged.shapes if one.refusal},
        "ledgers": ledgers,
        "streams": streams,
        "all_counted": most_counted < RECORDS_COUNTED_MAX,
        "logs": len(logs),
        **collection,
        "conditions": {row["id"]: row["conditions"] for row in rows if row["conditions"]},
    }
    standing = ", ".join(f"{number} {name}" for name, number in count.items() if number) or "none"
    lines = [f"Cluster  {uri}  (instance {instance})", f"Bookies  {standing}"]
    lines.append(f"Health   {line_of(judged, len(rows), marked=marked)}")
    lines += [f"Ledgers  {states_text(ledgers, 'ledger')}", f"Streams  {states_text(streams, 'stream')}"]
    lines.append(f"Logs     {len(logs):,}")
    if collection["orphans"]:
        have = "has" if collection["orphans"] == 1 else "have"
        kept = f"{counted(collection['orphans'], 'ledger')} on bookies {have} no record"
        lines.append(f"Orphans  {kept}: `quire cluster orphans`")
    lines += lines_of(rows)
    if not count["up"]:
        lines.append("No bookie is writable: start bookies (`quire up`, `quire bookie`).")
    out.result(facts, *lines)
    well = judged.health is ClusterHealth.HEALTHY and DAMAGED not in ledgers | streams
    return 0 if well else EXIT_ATTENTION


app.command()(health)


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


async def records_by_state(records: RecordStore) -> dict[str, int]:
    """How many ledgers, or streams, there are in each state (of the first `RECORDS_COUNTED_MAX`)."""
    from quire.core.errors import CorruptMetadataError

    states: dict[str, int] = {}
    async for _, record in records.parsed(limit=RECORDS_COUNTED_MAX):
        state = DAMAGED if isinstance(record, CorruptMetadataError) else record.state.name.lower()
        states[state] = states.get(state, 0) + 1
    return states


def states_text(states: dict[str, int], what: str) -> str:
    """How many there are in each state, in words; `what`: the group of commands for them."""
    text = ", ".join(f"{number:,} {state.replace('_', ' ')}" for state, number in states.items()) or "none"
    if sum(states.values()) == RECORDS_COUNTED_MAX:
        text += f" (of the first {RECORDS_COUNTED_MAX:,}; more are not counted)"
    return text + (f": `quire {what} list` names the damaged records" if DAMAGED in states else "")

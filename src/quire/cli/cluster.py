"""`quire cluster …`: what a cluster consists of right now."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from quire.cli.attention import conditions_of, kinds_of, lines_of, silent, unregistered
from quire.cli.failures import EXIT_ATTENTION
from quire.cli.options import ClusterOption, JsonOption, cluster_uri, run
from quire.cli.orphans import accept_store, orphans
from quire.cli.output import Output, human_bytes
from quire.cli.upgrade import upgrade

if TYPE_CHECKING:
    from quire.cli.toolbox import Toolbox
    from quire.metadata.bookies import BookieInfo

app = typer.Typer(help="The cluster as a whole: status, bookies, orphans, accept-store, upgrade.")
app.command("upgrade")(upgrade)
app.command("orphans")(orphans)
app.command("accept-store")(accept_store)

LEDGERS_COUNTED_MAX = 100_000


@app.command()
def bookies(cluster: ClusterOption = None, as_json: JsonOption = False) -> None:
    """List the bookies: registered ones, and those whose cookie says that they ought to be there.

    What needs attention is shown with what ends it; the exit code is 5 then.
    """
    uri, out = cluster_uri(cluster), Output(as_json=as_json)

    async def work() -> list[dict[str, Any]]:
        from quire.cli.toolbox import open_toolbox

        async with open_toolbox(uri) as tools:
            rows = await bookie_rows(tools)
        columns = ("id", "address", "standing", "answers", "protocol", "features", "holds", "needs")
        out.rows("", columns, rows if as_json else [row | {"needs": kinds_of(row)} for row in rows])
        if not as_json:
            out.lines(lines_of(rows))
        return rows

    _end(run(work()))


@app.command()
def status(cluster: ClusterOption = None, as_json: JsonOption = False) -> None:
    """Say how the cluster is: bookies, ledgers by state, logs.

    What needs attention is shown with what ends it; the exit code is 5 then.
    """
    uri, out = cluster_uri(cluster), Output(as_json=as_json)

    async def work() -> list[dict[str, Any]]:
        from quire.cli.toolbox import open_toolbox

        async with open_toolbox(uri) as tools:
            rows = await bookie_rows(tools)
            states = await ledger_states(tools)
            logs = await _count_keys(tools, "log-names")
            instance = tools.store.instance_id
        count = {
            standing: sum(row["standing"] == standing for row in rows)
            for standing in ("up", "read-only", "down")
        }
        collection = collection_of(rows)
        facts = {
            "cluster": uri,
            "instance": instance,
            "bookies": count,
            "ledgers": states,
            "logs": logs,
            **collection,
            "conditions": {row["id"]: row["conditions"] for row in rows if row["conditions"]},
        }
        ledgers = (
            ", ".join(f"{number:,} {state.replace('_', ' ')}" for state, number in states.items()) or "none"
        )
        standing = ", ".join(f"{number} {name}" for name, number in count.items() if number) or "none"
        lines = [f"Cluster  {uri}  (instance {instance})", f"Bookies  {standing}", f"Ledgers  {ledgers}"]
        lines.append(f"Logs     {logs:,}")
        if collection["orphans"]:
            kept = f"{collection['orphans']:,} ledgers on bookies have no record"
            lines.append(f"Orphans  {kept}: `quire cluster orphans`")
        lines += lines_of(rows)
        if not count["up"]:
            lines.append("No bookie is writable: start bookies (`quire up`, `quire bookie`).")
        out.result(facts, "\n".join(lines))
        return rows

    _end(run(work()))


def _end(rows: list[dict[str, Any]]) -> None:
    """End the command with the exit code that scripts look at."""
    if any(row["conditions"] for row in rows):
        raise typer.Exit(EXIT_ATTENTION)


def collection_of(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """How the collection of deleted ledgers stands, from the rows of all bookies.

    Returns:
        `holding`: why, by bookie that deletes nothing; `orphans`: the most ledgers without a record that one bookie keeps;
        `collector_failures`: the last error, by bookie whose last pass failed.
    """
    says = {row["id"]: (row.get("info") or {}).get("collector") or {} for row in rows}
    return {
        "holding": {bookie: one["holding"] for bookie, one in says.items() if one.get("holding")},
        "orphans": max((one.get("unknown", 0) for one in says.values()), default=0),
        "collector_failures": {bookie: one["failure"] for bookie, one in says.items() if one.get("failure")},
    }


async def bookie_rows(tools: Toolbox) -> list[dict[str, Any]]:
    """What is known of every bookie: its registration, and what it says itself."""
    from quire.core.answers import Answer

    found = await tools.registry.available()
    rows: list[dict[str, Any]] = []
    for bookie, info in sorted(found.items()):
        answer, says = await tools.bookies.info(bookie, timeout_ms=2000)
        rows.append(
            {
                "id": str(bookie),
                "address": f"{info.host}:{info.port}",
                "standing": "up" if info.writable else "read-only",
                "answers": answer.name.lower(),
                **_speaks(info),
                "holds": _held(says),
                "info": says if answer is Answer.OK else None,
                "conditions": conditions_of(says, writable=info.writable)
                if answer is Answer.OK
                else silent(answer.name.lower()),
            }
        )
    for bookie in sorted(set(await tools.registry.list_cookies()) - set(found)):
        nothing = dict.fromkeys(("answers", "protocol", "features", "holds"))
        down = {"id": str(bookie), "address": None, "standing": "down", "conditions": unregistered()}
        rows.append(down | nothing)
    return rows


def _speaks(info: BookieInfo) -> dict[str, str | None]:
    """What a bookie has registered: the protocol that it is spoken to in, and what its program can do beyond version 1."""
    from quire.wire.bookie_service_info import FEATURES_PROPERTY

    protocol = "bookkeeper" if info.native is None else f"native {info.native[1]}"
    return {"protocol": protocol, "features": info.properties.get(FEATURES_PROPERTY)}


def _held(says: dict[str, Any]) -> str | None:
    """What a bookie reports of its disk; Java's report less."""
    storage = says.get("storage", {})
    if "segments" in storage:
        return f"{storage['ledgers']} ledgers in {storage['segments']} segments"
    if disk := says.get("disk"):
        return f"{human_bytes(disk['free_bytes'])} of {human_bytes(disk['bytes'])} free"
    return None


async def ledger_states(tools: Toolbox) -> dict[str, int]:
    """How many ledgers there are in each state (of the first `LEDGERS_COUNTED_MAX`)."""
    from quire.core.errors import NoSuchLedgerError

    states: dict[str, int] = {}
    after: int | None = None
    for _ in range(LEDGERS_COUNTED_MAX // 1000):
        ids = await tools.ledgers.list(after, 1000)
        for ledger_id in ids:
            try:
                record, _version = await tools.ledgers.read(ledger_id)
            except NoSuchLedgerError:
                continue
            state = record.state.name.lower()
            states[state] = states.get(state, 0) + 1
        if len(ids) < 1000:
            break
        after = ids[-1]
    return states


async def _count_keys(tools: Toolbox, prefix: str) -> int:
    from quire.metadata.paging import every_key

    count = 0
    async for _ in every_key(tools.store, prefix):
        count += 1
    return count

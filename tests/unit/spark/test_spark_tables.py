"""The tables that `describe` reads, as rows, without Spark."""

from __future__ import annotations

from dataclasses import replace

from quire.core.log.list import SinkPosition
from quire.log.cursors import CursorUse, LogCursors
from quire.log.heads import LogHeads
from quire.spark.options import SparkOptions, Use
from quire.spark.read_options import READ_OPTIONS, Describe, parse
from quire.spark.schema import DESCRIPTIONS
from quire.spark.tables import _rows
from support.log_cluster import numbers


async def rows(at, table, path=""):
    given = {"cluster": "sqlite:/c.db", "describe": table, **({"path": path} if path else {})}
    found = [row async for row in _rows(at.client, parse(SparkOptions(given, READ_OPTIONS), Use.BATCH))]
    columns = [part.split()[0] for part in DESCRIPTIONS[Describe(table)].split(", ")]
    assert all(list(row) == columns for row in found)
    return found


async def test_what_is_in_a_log_and_who_uses_it(at):
    log = await at.made("shop/a")
    async with await log.open_writer() as writer:
        await writer.append_many(numbers(0, 20), timestamps_ms=list(range(20)))
        await writer.roll()
        await writer.append_many(numbers(20, 30))
    await at.made("shop/b")
    heads = LogHeads(at.store)
    log_id = await heads.find("shop/a")
    head, version = await heads.read(log_id)
    await heads.write(replace(head, sink_positions=(SinkPosition("query", 7, 1000, "run"),)), version)
    cursors = LogCursors(at.store, lambda: 2000)
    await cursors.begin(log_id.hex(), CursorUse("copy", "h", hold=True), 12)
    assert [(row["log"], row["end_offset"]) for row in await rows(at, "logs")] == [
        ("shop/a", 30),
        ("shop/b", 0),
    ]
    assert [row["first_offset"] for row in await rows(at, "segments", "shop/*")][:2] == [0, 20]
    entries = await rows(at, "entries", "shop/a")
    assert sum(row["records"] for row in entries) == 30
    first = entries[0]
    assert (first["entry"], first["first_offset"], first["codec"]) == (0, 0, "rows")
    assert first["min_time"].timestamp() == 0
    assert entries[-1]["first_offset"] + entries[-1]["records"] == 30
    [cursor] = await rows(at, "cursors")
    assert (cursor["log"], cursor["cursor"], cursor["offset"], cursor["lag"]) == (
        "shop/a",
        "copy",
        12,
        18,
    )
    assert (cursor["hold"], cursor["moved"].timestamp()) == (True, 2)
    [position] = await rows(at, "marks", "shop/a")
    assert (position["query"], position["batch"], position["incarnation"]) == ("query", 7, "run")
    # A raw ledger has the tables that are about ledgers, and no other.
    ledger = entries[0]["ledger"]
    assert {row["first_offset"] for row in await rows(at, "entries", f"ledger:{ledger}")} == {0}
    assert len(await rows(at, "fragments", f"ledger:{ledger}")) == 1
    assert await rows(at, "cursors", f"ledger:{ledger}") == []
    async with await at.client.create_ledger() as raw:
        await raw.append_many([b"abc"] * 3)
    opaque = await rows(at, "entries", f"ledger:{raw.ledger_id}")
    assert [(row["first_offset"], row["bytes"], row["codec"], row["min_time"]) for row in opaque] == [
        (entry, 3, "opaque", None) for entry in range(3)
    ]
    assert await rows(at, "logs", "nothing/*") == []

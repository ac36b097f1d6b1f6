"""A small cluster that was used and stopped: metadata, bookies, and what is in them: run with the code of 9e5fe3a.

    python tests/upgrade/makers/cluster.py FOLDER

`tools/golden_files.py` does so, in an empty folder: cookies name directories. Ids and times are other ones each time.
Nothing here knows later code.
"""

from __future__ import annotations

import asyncio
import json
import random
import shutil
import sqlite3
import sys
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from quire.bookie.config import BookieConfig
from quire.bookie.server import BookieServer
from quire.client.bookies import BookieClient
from quire.env.real import RealClock
from quire.log.client import QuireClient
from quire.log.config import LogConfig
from quire.log.cursors import CursorUse, LogCursors
from quire.metadata.bookies import BookieRegistry
from quire.metadata.connect import open_store
from quire.storage.config import StorageConfig
from support.golden import digest, pack

BOOKIES = 4
SMALL = StorageConfig(segment_bytes=128 * 1024, group_bytes_max=16 * 1024, spares_max=3)
PAGED = LogConfig(page_items=2, fan_out=2, host="golden")
PASSWORD = b"secret"


def golden_payload(ledger: int, number: int) -> bytes:
    return (b"ledger %d, entry %d. " % (ledger, number) * 9)[: 60 + number % 97]


async def written(client: Any, count: int, *, close: bool = True, **shape: Any) -> dict[str, Any]:
    """One ledger; what must be read back."""
    writer = await client.create_ledger(password=PASSWORD, **shape)
    payloads = [golden_payload(writer.ledger_id, number) for number in range(count)]
    await writer.append_many(payloads)
    await (writer.close() if close else writer.abandon())
    return {
        "ledger_id": int(writer.ledger_id),
        "closed": close,
        "payloads": [digest(payload) for payload in payloads],
        "shape": [shape.get("ensemble_size", 3), shape.get("write_quorum", 3), shape.get("ack_quorum", 2)],
    }


async def changed_ensemble(client: Any, bookies: list[BookieServer]) -> dict[str, Any]:
    """One whose ensemble changes because a bookie dies as a killed one does; that one stays away."""
    writer = await client.create_ledger(password=PASSWORD, ensemble_size=3)
    first = [golden_payload(writer.ledger_id, number) for number in range(30)]
    await writer.append_many(first)
    victim = next(bookie for bookie in bookies if bookie.bookie_id in writer.metadata.fragments[0].ensemble)
    bookies.remove(victim)
    await victim.stop(clean=False)
    second = [golden_payload(writer.ledger_id, number) for number in range(30, 60)]
    await writer.append_many(second)
    await writer.close()
    assert len(writer.metadata.fragments) == 2
    payloads = [digest(payload) for payload in first + second]
    return {"ledger_id": int(writer.ledger_id), "closed": True, "payloads": payloads, "shape": [3, 3, 2]}


async def used_log(client: Any, store: Any) -> dict[str, Any]:
    """A log with several pages, a truncation, a cursor that holds."""
    log = client.log("orders", PASSWORD, PAGED)
    await log.create()
    values = [b"record %d" % number for number in range(130)]
    async with await log.open_writer() as writer:
        for first in range(0, 130, 10):
            await writer.append_many(values[first : first + 10])
            await writer.roll()
    described = await log.describe()
    cursors = LogCursors(store, lambda: 1_700_000_000_000)
    use = CursorUse("copy", "reader one", hold=True)
    await cursors.begin(described.log_id, use, 40)
    await cursors.move(described.log_id, use, 57, take=False)
    await log.truncate(before=35)
    first = (await log.describe()).start_offset
    found = {record.offset: digest(record.value) async for record in log.read(first)}
    assert list(found) == list(range(first, 130))
    return {"name": "orders", "log_id": described.log_id, "records": found}


async def all_keys(store: Any) -> dict[str, list[Any]]:
    """Every key with its value in hex and its version."""
    found: dict[str, list[Any]] = {}
    after = None
    while page := await store.list("", after=after, limit=500):
        found.update({key: [value.value.hex(), value.version] for key, value in page})
        after = page[-1][0]
    return found


@asynccontextmanager
async def started(uri: str) -> Any:
    """The bookies and a client."""
    store = await open_store(uri, create=True)
    bookies = []
    for number in range(BOOKIES):
        name = f"b{number}"
        config = BookieConfig(
            directory=Path("cluster", name), name=name, storage=SMALL, garbage_seconds=0, host="127.0.0.1"
        )
        bookies.append(BookieServer(config, await open_store(uri)))
        await bookies[-1].start()
    connections = BookieClient(BookieRegistry(store), store.instance_id)
    await connections.start()
    client = QuireClient(store, connections, RealClock(), random.Random(7))
    servers = list(bookies)
    try:
        yield store, bookies, client
    finally:
        await client.close()
        for bookie in servers:
            await bookie.stop()
            await bookie.store.close()


async def made() -> dict[str, Any]:
    uri = f"sqlite:{Path('cluster', 'metadata.db').absolute()}"
    async with started(uri) as (store, bookies, client):
        ledgers = [
            await written(client, 40),
            await written(client, 40, custom={"owner": b"golden", "note": b"\0\xff"}),
            await written(client, 40, ensemble_size=4, write_quorum=2, ack_quorum=2),
            await written(client, 40, digest="mac"),
            await written(client, 40, digest="crc32"),
            await written(client, 40, digest="dummy"),
            await written(client, 0),
            await written(client, 25, close=False),
        ]
        deleted = await written(client, 10)
        log = await used_log(client, store)
        await client.delete_ledger(deleted["ledger_id"])
        running = await all_keys(store)
        ledgers.append(await changed_ensemble(client, bookies))
    again = await open_store(uri)
    keys = await all_keys(again)
    next_ledger = int(await again.next_ledger_id())
    instance = again.instance_id
    await again.close()
    registered = {key: value[0] for key, value in running.items() if key.startswith("bookies/")}
    return {
        "instance": instance,
        "next_ledger": next_ledger,
        "bookies": [f"b{number}" for number in range(BOOKIES)],
        "ledgers": ledgers,
        "deleted": deleted["ledger_id"],
        "log": log,
        "registrations": registered,
        "keys": keys,
    }


if __name__ == "__main__":
    facts = asyncio.run(made())
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(value)}" for name, value in facts.items())
    Path(sys.argv[1], "cluster.json").write_text("{\n" + lines + "\n}\n")
    shutil.rmtree("cluster/metadata.db-sessions", ignore_errors=True)
    # What its pages still held of sessions that ended names the machine.
    with closing(sqlite3.connect("cluster/metadata.db")) as database:
        database.execute("VACUUM")
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    pack(Path("cluster"), Path(sys.argv[1], "cluster.tar.xz"))

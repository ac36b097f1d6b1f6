"""Changes a metadata file, one transaction after the other, and prints what was acknowledged, until it is killed.

Called with the file and the number of the last change: prints lines of a change's number and a ledger id.
"""

from __future__ import annotations

import asyncio
import sys

from quire.metadata.sqlite import SqliteStore
from quire.metadata.store import Create, Delete, Put


async def change(store, number):
    """Two keys get this number in one transaction, while a third one comes and goes."""
    text = b"%d " % number * 500
    ops = []
    for key in ("a", "b"):
        found = await store.get(key)
        ops.append(Put(key, text, found.version) if found else Create(key, text))
    third = await store.get("c")
    ops.append(Delete("c", third.version) if third else Create("c", text))
    await store.multi(ops)


async def main(path, number):
    store = await SqliteStore.open(path)
    while True:
        number += 1
        await change(store, number)
        print(number, await store.next_ledger_id(), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))

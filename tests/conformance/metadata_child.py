"""Another process with the same metadata store, driven by lines of JSON: [command, argument, ...] -> result."""

import asyncio
import json
import sys

from quire.core.errors import QuireError
from quire.metadata.sqlite.file import SqliteOptions
from quire.metadata.sqlite.store import SqliteStore


async def serve(path, timeout_ms):
    store = await SqliteStore.open(path, options=SqliteOptions(session_timeout_ms=timeout_ms))
    held = {}
    loop = asyncio.get_running_loop()
    print(json.dumps(store.instance_id), flush=True)
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        command, *args = json.loads(line)
        try:
            result = await answer(store, held, command, args)
        except QuireError as error:
            result = {"error": error.code}
        print(json.dumps(result), flush=True)
    await store.close()


async def answer(store, held, command, args):
    match command:
        case "register":
            held[args[0]] = await store.register(args[0], args[1].encode())
            return held[args[0]].key
        case "create":
            return await store.create(args[0], args[1].encode())
        case "renewed":
            return held[args[0]].renewed
        case "ids":
            return [await store.next_ledger_id() for _ in range(args[0])]
        case "count":
            return await count(store, args[0], args[1])
        case "keys":
            return [key for key, _ in await store.list(args[0])]


async def count(store, key, times):
    """Add one, so many times, by compare-and-swap; how often another was faster."""
    lost = 0
    for _ in range(times):
        while True:
            found = await store.get(key)
            try:
                await store.put(key, str(int(found.value) + 1).encode(), found.version)
                break
            except QuireError:
                lost += 1
    return lost


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], int(sys.argv[2])))

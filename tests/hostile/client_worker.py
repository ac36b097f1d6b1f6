"""A client in a process of its own that asks hostile bookies for everything, again and again, and says how it fared.

Reads one JSON object: the cluster, the bookies by protocol, a good ledger, and how many rounds. Prints one.
"""

import asyncio
import json
import logging
import os
import sys

import quire
from quire.cli.local.serve import run_loop
from quire.client.bookies.bookies import BookieClient
from quire.core.ids import BookieId
from quire.metadata.bookies import BookieRegistry
from quire.metadata.connect import open_store
from support.hostile_worlds import add_something, everything
from support.process import descriptors, highest, resident

NAMES = {"native": "auto", "v2": "v2", "v3": "v3"}
TIMEOUT_MS = 5000
HANGS_SECONDS = 60
WARM_UP_ROUNDS = 20


async def read_good(task):
    async with quire.connect(task["cluster"]) as client, await client.open_ledger(task["good"]) as ledger:
        return [bytes(entry.payload).decode() async for entry in ledger.read(0, 99)]


async def one_round(clients, bookies, told):
    for protocol, client in clients.items():
        bookie = BookieId(bookies[protocol])
        async with asyncio.timeout(HANGS_SECONDS):
            asked = [asyncio.ensure_future(work) for work in everything(client, bookie, TIMEOUT_MS)]
            sink = add_something(client, bookie, TIMEOUT_MS)
            replies = await asyncio.gather(*asked)
            while not sink.told:
                await asyncio.sleep(0)
        assert len(sink.told) == 1
        for reply in replies:
            answer = reply[0] if isinstance(reply, tuple) else getattr(reply, "answer", reply)
            told[answer.name] = told.get(answer.name, 0) + 1
        # The bookie is tried again at once, not after the pause that a lost connection asks for.
        for peer in client._peers.values():
            if peer.channel is not None:
                peer.channel.close()
        await asyncio.sleep(0)
        client._peers.clear()


async def main():
    task = json.loads(sys.stdin.readline())
    store = await open_store(task["cluster"])
    clients = {}
    for protocol in task["bookies"]:
        clients[protocol] = BookieClient(BookieRegistry(store), store.instance_id, protocol=NAMES[protocol])
        await clients[protocol].start()
    told = {}
    good = await read_good(task)
    for _ in range(WARM_UP_ROUNDS):
        await one_round(clients, task["bookies"], told)
    before, open_before = resident(os.getpid()), descriptors(os.getpid())
    for _ in range(task["rounds"]):
        await one_round(clients, task["bookies"], told)
    grown = highest(os.getpid()) - before
    opened = descriptors(os.getpid())
    for client in clients.values():
        await client.close()
    await store.close()
    facts = {
        "told": told,
        "grown": grown,
        "descriptors": [open_before, opened],
        "good": good == await read_good(task),
    }
    print(json.dumps(facts), flush=True)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s %(message)s", stream=sys.stderr)
    run_loop(main)

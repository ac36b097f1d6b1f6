"""A writer as a process of its own, which appends until it is killed.

python rolling_writer.py URI log NAME | stream NAME MODE | ledgers
"""

from __future__ import annotations

import asyncio
import itertools
import sys

import quire
from quire.log.client import QuireClient

PAUSE_S = 0.01
ENTRIES = 50
"""Of each ledger; every fourth one is left open, and the next process recovers what it finds so."""


async def to_log(client: QuireClient, name: str) -> None:
    writer = await client.log(name).open_writer(wait_for_leadership=True)
    for number in itertools.count():
        await writer.append(b"%d" % number)
        if number % 1000 == 999:
            await writer.roll()
        await asyncio.sleep(PAUSE_S)


async def to_stream(client: QuireClient, name: str, mode: str) -> None:
    writer = await client.unbounded_ledger(name, mode=mode).open_writer()
    for number in itertools.count():
        await writer.append(b"%d" % number)
        await asyncio.sleep(PAUSE_S)


async def to_ledgers(client: QuireClient) -> None:
    for number in itertools.count():
        writer = await client.create_ledger()
        for entry in range(ENTRIES):
            await writer.append(b"%d" % entry)
            await asyncio.sleep(PAUSE_S)
        if number % 4:
            await writer.close()


async def main(uri: str, what: str, *names: str) -> None:
    async with quire.connect(uri) as client:
        print("begins", flush=True)
        while True:
            try:
                await {"log": to_log, "stream": to_stream, "ledgers": to_ledgers}[what](client, *names)
            except quire.QuireError as error:
                print(error, file=sys.stderr, flush=True)
                await asyncio.sleep(1)


asyncio.run(main(*sys.argv[1:]))

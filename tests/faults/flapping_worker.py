"""A process that writes many ledgers beside a bookie that flaps, until a line on stdin has it close them, or it is killed.

    python tests/faults/flapping_worker.py URI LEDGERS GUARANTEE    GUARANTEE: write_quorum or none

It prints a JSON object a line: which ledger, and how many of its entries are acknowledged.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from itertools import count
from typing import Any

import quire

SHAPES = ((3, 3, 2), (5, 3, 2))
"""Of five bookies: with spares, and without."""
GROUP = 5
PAUSE_S = 0.2
SIZE = 32 * 1024
"""Of an entry: all together are more in a second than a bookie's kernel takes for it."""
SEND_BUFFER = 16 * 1024


class ShortSocket(socket.socket):
    """What a bookie does not take waits in this process, and is lost with it; the kernel would still deliver it."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)


def say(ledger: int, acknowledged: int, **facts: Any) -> None:
    sys.stdout.write(json.dumps({"ledger": ledger, "acknowledged": acknowledged, **facts}) + "\n")
    sys.stdout.flush()


async def one_ledger(client: Any, number: int, guarantee: str | None, over: asyncio.Event) -> None:
    ensemble, write, ack = SHAPES[number % len(SHAPES)]
    writer = await client.create_ledger(
        ensemble_size=ensemble, write_quorum=write, ack_quorum=ack, guarantee=guarantee
    )
    ledger = int(writer.ledger_id)
    for group in count():
        waiting = []
        for entry in range(GROUP):
            while True:
                try:
                    waiting.append(writer.append_nowait((b"%d/%d/%d" % (ledger, group, entry)).ljust(SIZE)))
                    break
                except quire.WindowFullError:
                    await writer.drain()
        await asyncio.gather(*waiting)
        say(ledger, (group + 1) * GROUP)
        if over.is_set():
            break
        await asyncio.sleep(PAUSE_S)
    await writer.close()
    say(ledger, (group + 1) * GROUP, closed=True)


async def main(uri: str, ledgers: int, guarantee: str | None) -> None:
    over = asyncio.Event()
    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), over.set)
    async with quire.connect(uri) as client:
        await asyncio.gather(*(one_ledger(client, number, guarantee, over) for number in range(ledgers)))


if __name__ == "__main__":
    socket.socket = ShortSocket  # type: ignore[misc]
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), None if sys.argv[3] == "none" else sys.argv[3]))

"""A process that appends to a log until it is killed, and says on stdout what was acknowledged.

    python tests/faults/log_worker.py URI LOG WRITER [duel]

One line per acknowledgement: `NUMBER OFFSET`, flushed at once, so that what the parent has read was acknowledged.
With `duel` it takes the log over again and again when another writer took it, until its stdin ends.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import quire
from faults.harness import payload, run

BATCH = 50


async def append_until_killed(uri: str, name: str, writer: int) -> None:
    """Open the log once and append for ever."""
    async with quire.connect(uri) as client, await client.log(name).open_writer() as log:
        number = 0
        sys.stdout.write("open\n")
        sys.stdout.flush()
        while True:
            values = [payload(writer, number + i) for i in range(BATCH)]
            offsets = await asyncio.gather(*(log.append(value) for value in values))
            sys.stdout.write("".join(f"{number + i} {offset}\n" for i, offset in enumerate(offsets)))
            sys.stdout.flush()
            number += BATCH


async def duel(uri: str, name: str, writer: int) -> None:
    """Take the log over, append until another takes it, again; until stdin ends."""
    loop = asyncio.get_running_loop()
    over = asyncio.Event()
    loop.add_reader(sys.stdin.fileno(), over.set)
    number = takeovers = 0
    async with quire.connect(uri) as client:
        while not over.is_set():
            try:
                log = await client.log(name).open_writer(wait_for_leadership=False)
            except quire.QuireError:
                continue
            takeovers += 1
            try:
                while not over.is_set():
                    values = [payload(writer, number + i) for i in range(10)]
                    number += 10
                    offsets = await asyncio.gather(
                        *(log.append(value) for value in values), return_exceptions=True
                    )
                    for i, offset in enumerate(offsets):
                        if isinstance(offset, int):
                            sys.stdout.write(f"{number - 10 + i} {offset}\n")
                    sys.stdout.flush()
                    failed = [offset for offset in offsets if isinstance(offset, BaseException)]
                    if failed:
                        break
                await log.close()
            except quire.QuireError:
                continue
    sys.stdout.write(f"takeovers {takeovers}\n")


if __name__ == "__main__":
    run((duel if "duel" in sys.argv else append_until_killed)(sys.argv[1], sys.argv[2], int(sys.argv[3])))

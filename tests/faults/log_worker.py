"""A process that appends to a log until it is killed, and says on stdout what was acknowledged.

    python tests/faults/log_worker.py URI LOG WRITER HISTORY [duel]

What it asks and is told goes to the file HISTORY, at once: each batch before it is sent, and when it was answered. After
each acknowledged batch it prints how many records were acknowledged so far. With `duel` it takes the log over again and
again when another writer took it, until its stdin ends.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import quire
from faults.harness import payload, run
from quire_testing.history import History, entry_hashes
from quire_testing.recording import history_into

BATCH = 50
DUEL_BATCH = 10


class Appending:
    """Appends batches to whoever leads now, and records them."""

    def __init__(self, name: str, writer: int, history: History) -> None:
        self._name, self._writer, self._history = name, writer, history
        self._number = 0
        self.acknowledged = 0

    async def batch(self, log: Any, count: int) -> bool:
        """Append `count` records at once; whether all of them were acknowledged."""
        values = [payload(self._writer, self._number + ahead) for ahead in range(count)]
        self._number += count
        asked = self._history.invoke(
            f"writer-{self._writer}",
            "log_append",
            log=self._name,
            leader=log.epoch,
            hashes=entry_hashes(values),
        )
        answers = await asyncio.gather(*(log.append(value) for value in values), return_exceptions=True)
        offsets = [answer for answer in answers if isinstance(answer, int)]
        failures = [answer for answer in answers if isinstance(answer, BaseException)]
        if offsets:
            first = offsets[0]
            assert answers[: len(offsets)] == list(range(first, first + len(offsets))), answers
            asked.ok(first=first, count=len(offsets))
        else:
            asked.unknown(failures[0])
        self.acknowledged += len(offsets)
        sys.stdout.write(f"{self.acknowledged}\n")
        sys.stdout.flush()
        return not failures


async def append_until_killed(uri: str, name: str, appending: Appending) -> None:
    """Open the log once and append for ever."""
    async with quire.connect(uri) as client, await client.log(name).open_writer() as log:
        while await appending.batch(log, BATCH):
            pass


async def duel(uri: str, name: str, appending: Appending) -> None:
    """Take the log over, append until another takes it, again; until stdin ends."""
    loop = asyncio.get_running_loop()
    over = asyncio.Event()
    loop.add_reader(sys.stdin.fileno(), over.set)
    takeovers = 0
    async with quire.connect(uri) as client:
        while not over.is_set():
            try:
                log = await client.log(name).open_writer(wait_for_leadership=False)
            except quire.QuireError:
                continue
            takeovers += 1
            try:
                while not over.is_set() and await appending.batch(log, DUEL_BATCH):
                    pass
                await log.close()
            except quire.QuireError:
                continue
    sys.stdout.write(f"takeovers {takeovers}\n")


if __name__ == "__main__":
    uri, name, writer, file = sys.argv[1:5]
    with Path(file).open("wb", buffering=0) as out:
        appending = Appending(name, int(writer), history_into(out))
        run((duel if "duel" in sys.argv else append_until_killed)(uri, name, appending))

"""Appends to many ledgers in turn, so that their runs travel in bundles; and a process that does so until it is killed.

    python tests/faults/bundle_worker.py URI COUNTS LEDGERS

It prints the ids of its ledgers as JSON, and appends until each of its writers has ended; then it prints how often
which error came. What was sent and acknowledged stands in the file COUNTS at once, also if the process is killed.
"""

from __future__ import annotations

import asyncio
import json
import mmap
import sys
from collections import Counter
from collections.abc import MutableSequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import quire
from faults.harness import payload, run
from quire.core.errors import QuireError
from support.rounds import FULL
from support.waiting import until_async

A_TURN = 500
"""At most so many ledgers get an entry in one turn of the loop."""
TURNS_OUTSTANDING = 10 if FULL else 3
ENTRY_BYTES = 100
TRIPLE = {"ensemble_size": 3, "write_quorum": 3, "ack_quorum": 2}
PATIENCE_S = 120
Counts = tuple[MutableSequence[int], MutableSequence[int]]


def shared_counts(path: Path, ledgers: int) -> Counts:
    """For each ledger what was sent and what was acknowledged, in a file that outlives its writer."""
    with path.open("r+b") as file:
        both = memoryview(mmap.mmap(file.fileno(), 0)).cast("Q")
    assert len(both) == 2 * ledgers
    return both[:ledgers], both[ledgers:]


def new_counts(path: Path, ledgers: int) -> Counts:
    """The same, made."""
    path.write_bytes(bytes(2 * 8 * ledgers))
    return shared_counts(path, ledgers)


class Load:
    """Appends to many ledgers in turn.

    Attributes:
        sent: how many entries of each ledger were handed over.
        acknowledged: how many of these were acknowledged; in order, each with the id that is its number.
        failed: errors of appends, by name.
        ended: the ledgers, by number, with an append that failed: their writers take nothing more.
        goes_on: false has `run` end.
    """

    def __init__(self, writers: list[Any], counts: Counts | None = None) -> None:
        self.writers = writers
        self.sent, self.acknowledged = counts or ([0] * len(writers), [0] * len(writers))
        self.failed: Counter[str] = Counter()
        self.ended: set[int] = set()
        self.outstanding = 0
        self.goes_on = True

    @classmethod
    async def begin(cls, client: quire.Client, ledgers: int, counts: Counts | None = None) -> Load:
        """To so many new ledgers."""
        return cls([await client.create_ledger(**TRIPLE) for _ in range(ledgers)], counts)

    async def run(self) -> None:
        """Append until `goes_on` is false, or each writer has ended."""
        at, a_turn = 0, min(A_TURN, len(self.writers))
        while self.goes_on and len(self.ended) < len(self.writers):
            for _ in range(a_turn):
                at = (at + 1) % len(self.writers)
                if at not in self.ended:
                    self._append(at)
            await asyncio.sleep(0)
            await until_async(lambda: self.outstanding < TURNS_OUTSTANDING * a_turn, seconds=PATIENCE_S)

    def _append(self, at: int) -> None:
        try:
            future = self.writers[at].append_nowait(payload(at, self.sent[at], ENTRY_BYTES))
        except QuireError as error:
            self._fails(at, error)
            return
        self.sent[at] += 1
        self.outstanding += 1
        future.add_done_callback(lambda done: self._done(at, done))

    def _done(self, at: int, future: asyncio.Future[int]) -> None:
        self.outstanding -= 1
        error = future.exception()
        if error is None:
            assert future.result() == self.acknowledged[at], "confirmed in order"
            self.acknowledged[at] += 1
        else:
            self._fails(at, error)

    def _fails(self, at: int, error: BaseException) -> None:
        self.failed[type(error).__name__] += 1
        self.ended.add(at)

    async def grows(self, entries: int) -> None:
        """Return when so many more were acknowledged."""
        wanted = sum(self.acknowledged) + entries
        await until_async(lambda: sum(self.acknowledged) >= wanted, seconds=PATIENCE_S)


async def main(uri: str, file: str, ledgers: int) -> None:
    async with quire.connect(uri) as client:
        load = await Load.begin(client, ledgers, shared_counts(Path(file), ledgers))
        sys.stdout.write(json.dumps([int(writer.ledger_id) for writer in load.writers]) + "\n")
        sys.stdout.flush()
        await load.run()
        await until_async(lambda: not load.outstanding, seconds=PATIENCE_S)
    sys.stdout.write(json.dumps(load.failed) + "\n")


if __name__ == "__main__":
    run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))

"""A process that takes a stream over when it is told to, and appends until another client does.

    python tests/faults/stream_worker.py URI STREAM WRITER

Each line on stdin asks for one take-over. On stdout it says, a JSON object a line, what it did: `open`, `acked` (the
numbers first..last of its payloads have these ids), and, once it was superseded and the next term is open, `resolved`
(for each payload whose outcome was unknown: its number, its id and whether it is kept) and how many were never sent.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import quire
from faults.harness import payload, run

BATCH = 20


def say(**facts: Any) -> None:
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


class Appending:
    """Appends numbered payloads in turn after turn."""

    def __init__(self, stream: Any, writer: int) -> None:
        self._stream, self._writer = stream, writer
        self._number = 0

    async def turn(self) -> None:
        """One term: until another client has taken the stream over and it is known what became of each entry."""
        writer = await self._stream.open_writer()
        say(event="open", term=writer.term, last=writer.last_add_confirmed)
        while True:
            first = self._number
            self._number += BATCH
            values = [payload(self._writer, number) for number in range(first, self._number)]
            answers = await asyncio.gather(*map(writer.append, values), return_exceptions=True)
            good = [answer for answer in answers if isinstance(answer, int)]
            if good:
                assert answers[: len(good)] == list(range(good[0], good[0] + len(good))), answers
                say(event="acked", term=writer.term, number=first, entry=good[0], count=len(good))
            if len(good) < len(answers):
                await self._resolved(writer.term, first, answers)
                return

    async def _resolved(self, term: int, first: int, answers: list[Any]) -> None:
        items, unsent = [], 0
        for number, answer in enumerate(answers, first):
            if isinstance(answer, quire.NotWritingError):
                unsent += 1
            elif not isinstance(answer, int):
                assert isinstance(answer, quire.OutcomeUnknownError), repr(answer)
                while (kept := await self._stream.resolve(answer)) is None:
                    await asyncio.sleep(0.01)
                items.append((number, answer.ids["entry_id"], kept))
        say(event="resolved", term=term, items=items, unsent=unsent)


async def work(uri: str, name: str, writer: int) -> None:
    lines = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    async with quire.connect(uri) as client:
        appending = Appending(client.unbounded_ledger(name), writer)
        say(event="ready")
        while await lines.readline():
            await appending.turn()


if __name__ == "__main__":
    run(work(sys.argv[1], sys.argv[2], int(sys.argv[3])))

"""What tests of auto-recovery as processes share: a recoverer that tells its figures, ledgers, and a writer with a clock."""

from __future__ import annotations

import asyncio
import json
import sys
from collections import deque
from pathlib import Path
from typing import Any

from faults.harness import payload
from quire.client.client import Client
from quire.core.ids import BookieId
from quire.core.ledger.metadata import LedgerMetadata
from quire.metadata.repairs import RepairStore

WORKER = Path(__file__).with_name("recovery_worker.py")
ENTRIES = 10
ENTRY_BYTES = 1000
AT_ONCE = 32
TURN_S = 0.005


class Recoverer:
    """A `recovery_worker.py`."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, uri: str, **pace: Any) -> Recoverer:
        """Start one; `pace`: see there."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            str(WORKER),
            uri,
            json.dumps(pace),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        made = cls(process)
        await made._said()
        return made

    async def figures(self) -> dict[str, Any]:
        """What it says of itself now."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")
        return await self._said()

    async def _said(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        assert line, "it has ended"
        said: dict[str, Any] = json.loads(line)
        return said

    async def until(self, what: str, wanted: Any, seconds: float) -> dict[str, Any]:
        """Its figures, as soon as one of them is what is wanted."""
        async with asyncio.timeout(seconds):
            while (said := await self.figures())[what] != wanted:
                await asyncio.sleep(0.1)
        return said

    async def stop(self) -> None:
        """Stop it cleanly."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert await self._process.wait() == 0

    async def kill(self) -> None:
        """Kill it."""
        self._process.kill()
        await self._process.wait()


async def written(client: Client, count: int, entries: int = ENTRIES, **shape: Any) -> list[int]:
    """Closed ledgers."""

    async def one() -> int:
        async with await client.create_ledger(**shape) as writer:
            for number in range(entries):
                writer.append_nowait(payload(0, number, ENTRY_BYTES))
        return int(writer.ledger_id)

    made: list[int] = []
    while len(made) < count:
        made += await asyncio.gather(*(one() for _ in range(min(AT_ONCE, count - len(made)))))
    return made


def members(record: LedgerMetadata) -> set[BookieId]:
    """The bookies that a record names."""
    return {bookie for fragment in record.fragments for bookie in fragment.ensemble}


async def naming(client: Client, ledgers: list[int], bookie: str) -> list[int]:
    """Those of some ledgers whose records name a bookie."""
    found: list[int] = []
    for start in range(0, len(ledgers), AT_ONCE):
        some = ledgers[start : start + AT_ONCE]
        records = await asyncio.gather(*map(client.ledger_metadata, some))
        found += [each for each, record in zip(some, records, strict=True) if bookie in members(record)]
    return found


async def no_marks(marks: RepairStore) -> bool:
    """Whether nothing is marked."""
    return not await marks.missing_page(limit=1) and not await marks.marks_page(limit=1)


class PacedWriter:
    """Appends to one ledger, as fast as it can or at a rate, and notes how long each took.

    Attributes:
        took_ns: since `phase` was last called.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._rate: float | None = None
        self._stop = False
        self.took_ns: list[int] = []
        self.began = 0.0
        self.errors: list[BaseException] = []

    async def run(self) -> None:
        """Append until `stop`."""
        loop, waiting = asyncio.get_running_loop(), deque[asyncio.Future[Any]]()
        self.writer = await self._client.create_ledger()
        value, due = payload(1, 1, ENTRY_BYTES), loop.time()
        self.phase(None)
        while not self._stop:
            if self._rate is None:
                if len(waiting) >= 64:
                    await asyncio.wait([waiting.popleft()])
                    continue
            else:
                due = max(due + 1 / self._rate, loop.time() - 1)
                if due - loop.time() > TURN_S:
                    await asyncio.sleep(due - loop.time())
            began = loop.time()
            future = asyncio.ensure_future(self.writer.append(value))
            future.add_done_callback(lambda done, began=began: self._done(done, began))
            waiting.append(future)
            while self._rate is not None and waiting and waiting[0].done():
                waiting.popleft()
            if self._rate is None:
                await asyncio.sleep(0)
        await asyncio.gather(*waiting, return_exceptions=True)
        await self.writer.close()

    def _done(self, done: asyncio.Future[Any], began: float) -> None:
        if (error := done.exception()) is not None:
            self.errors.append(error)
        self.took_ns.append(int((asyncio.get_running_loop().time() - began) * 1e9))

    def phase(self, rate: float | None) -> None:
        """Go on at another rate, and note what follows anew."""
        self._rate, self.took_ns, self.began = rate, [], asyncio.get_running_loop().time()

    def figures(self) -> dict[str, float]:
        """Of this phase: appends a second, and the 99th percentile in milliseconds."""
        took, seconds = sorted(self.took_ns), asyncio.get_running_loop().time() - self.began
        return {
            "appends_per_s": round(len(took) / seconds),
            "p99_ms": round(took[int(len(took) * 0.99)] / 1e6, 2) if took else 0.0,
        }

    def stop(self) -> None:
        """Append no more."""
        self._stop = True

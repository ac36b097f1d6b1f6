"""What the fault tests share: a cluster of real processes beside an event loop, a loader, and a judge."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import shutil
import struct
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import Any

import quire
from quire.cli.local.local_cluster import LocalCluster
from quire.client.access import LedgerAccess
from quire.core.answers import Answer
from quire.core.ledger.notes import LedgerNotes
from quire.core.ledger.replica import Replica, ReplicaList, gaps
from quire.core.ledger.stripes import BookieStripes, bookie_stripes
from quire_testing.history import Event, History, Verdict, judge
from quire_testing.recording import RecordedAppends

STAMP = struct.Struct(">QQ")
PATTERN = bytes(range(256)) * 64


@contextlib.asynccontextmanager
async def cluster(
    directory: Path, bookies: int, kind: Callable[[Path, int], LocalCluster] = LocalCluster
) -> AsyncIterator[LocalCluster]:
    """A started local cluster of real bookie processes; stopped at the end, and its data removed if all went well."""
    made = kind(directory, bookies)
    await asyncio.to_thread(made.start)
    try:
        yield made
    finally:
        await asyncio.to_thread(made.stop)
    await asyncio.to_thread(shutil.rmtree, directory)


def run(work: Any) -> Any:
    """Run a coroutine on uvloop, as the programs do."""
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)


async def quire_command(local: LocalCluster, *arguments: str) -> asyncio.subprocess.Process:
    """Start a command of the command line on a cluster, with `--json`."""
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "quire",
        *arguments,
        "--json",
        "--cluster",
        local.uri,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def facts(local: LocalCluster, *arguments: str, code: int | None = 0) -> list[dict[str, Any]]:
    """What a command says; `code`: how it ends; None: it does not matter."""
    process = await quire_command(local, *arguments)
    out, errors = await process.communicate()
    assert code in {None, process.returncode}, (
        f"{arguments}: {out.decode()[-2000:]}\n{errors.decode()[-2000:]}"
    )
    return [json.loads(line) for line in out.splitlines()]


def payload(writer: int, number: int, size: int = 200) -> bytes:
    """A payload that says whose it is, which, and whether it is whole."""
    start = number & 0xFF
    return STAMP.pack(writer, number) + PATTERN[start : start + size - STAMP.size]


def new_history() -> History:
    """A history of this process, kept in memory."""
    return History(time.monotonic_ns)


def judged(events: Iterable[Event], *looked_at: int) -> Verdict:
    """The history holds, and something was compared for each of these invariants."""
    verdict = judge(events)
    assert not verdict.counts, "\n".join(map(str, verdict.violations[:20]))
    assert verdict.holds, verdict
    assert all(verdict.checked[number] for number in looked_at), verdict.checked
    return verdict


async def lacking(
    client: Any, ledger_id: int, last: int | None = None
) -> tuple[LedgerNotes, list[BookieStripes], list[BookieStripes]]:
    """What a ledger's record says of holes, what each of its bookies should hold, and what of that they do not list.

    Args:
        client: asks.
        ledger_id: which.
        last: how far to look in a ledger that is not closed.
    """
    record, notes, _ = await client.records.ledgers.read_with_notes(ledger_id)
    access, held = LedgerAccess.of(record), {}
    wanted = list(bookie_stripes(record, last))
    for bookie in {part.bookie for part in wanted}:
        answer, intervals = await client.bookies.list_entries(bookie, access)
        assert answer in (Answer.OK, Answer.NO_LEDGER), answer
        held[bookie] = Replica.of(ReplicaList(answer, tuple(intervals)), record)
    return notes, wanted, [gap for part in wanted for gap in gaps(part, held[part.bookie])]


class Loader:
    """Appends at full speed until told to stop, and knows what was acknowledged.

    Args:
        handle: a ledger writer or anything with `append_nowait` and `drain`.
        window: appends in flight at most.
        history: where its appends are recorded, as those of the ledger's only writer.
    """

    def __init__(
        self,
        handle: Any,
        *,
        writer: int = 0,
        size: int = 200,
        window: int = 5000,
        history: History | None = None,
    ) -> None:
        self._handle = handle
        self._recorded = None
        if history is not None:
            history.invoke("writer", "create").ok(ledger=int(handle.ledger_id))
            self._recorded = RecordedAppends(history, "writer", int(handle.ledger_id))
        self._writer = writer
        self._size = size
        self._window = window
        self.sent = 0
        self.acknowledged = 0
        self.failures: list[BaseException] = []
        self._stop = False
        self._moved = asyncio.Event()

    async def run(self) -> None:
        """Append until `stop()` or the first failure; wait for what is in flight."""
        waiting: deque[asyncio.Future[int]] = deque()
        step = max(1, self._window // 10)
        try:
            while not self._stop:
                values = [payload(self._writer, self.sent + ahead, self._size) for ahead in range(step)]
                if self._recorded is not None:
                    self._recorded.sending(values)
                for value in values:
                    waiting.append(await self._append(value))
                    self.sent += 1
                while len(waiting) >= self._window:
                    await self._oldest(waiting, step)
                await asyncio.sleep(0)
            while waiting:
                await self._oldest(waiting, step)
        except quire.QuireError as error:
            self.failures.append(error)
            if self._recorded is not None:
                self._recorded.ended(error)
            for future in waiting:
                future.cancel()
        finally:
            self._moved.set()

    async def _append(self, value: bytes) -> asyncio.Future[int]:
        while True:
            try:
                return self._handle.append_nowait(value)
            except quire.WindowFullError:
                await self._handle.drain()

    async def _oldest(self, waiting: deque[asyncio.Future[int]], count: int) -> None:
        for _ in range(min(count, len(waiting))):
            entry_id = await waiting[0]
            assert entry_id == self.acknowledged, (
                f"entry {entry_id} acknowledged, {self.acknowledged} was next"
            )
            waiting.popleft()
            self.acknowledged += 1
            if self._recorded is not None:
                self._recorded.acknowledged()
        self._moved.set()

    def value_of(self, number: int) -> bytes:
        """The payload of its entry with this number."""
        return payload(self._writer, number, self._size)

    def stop(self) -> None:
        """Append no more."""
        self._stop = True

    async def reaches(self, acknowledged: int, timeout: float = 60.0) -> None:
        """Wait until so many are acknowledged, or the loader has failed."""
        async with asyncio.timeout(timeout):
            while self.acknowledged < acknowledged and not self.failures:
                self._moved.clear()
                await self._moved.wait()


async def pause(chance: random.Random, low_ms: int = 10, high_ms: int = 500) -> None:
    """Let the load run for a random while: when a fault strikes is what a round is about."""
    loop = asyncio.get_running_loop()
    until: asyncio.Future[None] = loop.create_future()
    loop.call_later(chance.randint(low_ms, high_ms) / 1000, until.set_result, None)
    await until


async def eventually(condition: Callable[[], bool], what: str, timeout: float = 30.0) -> None:
    """Wait for a condition of another process."""
    async with asyncio.timeout(timeout):
        while not condition():
            done = asyncio.get_running_loop().create_future()
            asyncio.get_running_loop().call_later(0.02, done.set_result, None)
            await done
    assert condition(), what

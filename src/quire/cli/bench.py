"""`quire bench …`: a load generator against a running cluster, with a latency histogram.

It measures this cluster only; comparisons with other systems are made by the scripts in `bench/`.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from quire.cli.console.opening import with_client
from quire.cli.console.options import Quorums, option
from quire.cli.console.output import Output, attributes, counted, human_bytes
from quire.core.errors import WindowFullError
from quire.distribution import testing_module

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from quire.cli.console.histogram import Histogram
    from quire.cli.console.output import ProgressLine
    from quire.log.client import QuireClient

app = typer.Typer(help="Load generator: append (many in flight), latency (one at a time).")

GROUP_BYTES: Final = 1024 * 1024
"""How many bytes are handed over between two looks at the clock."""
_RECORDED: Final = "quire bench --history"

SecondsOption = Annotated[float, option("--seconds", "How long.", min=0.1)]
SizeOption = Annotated[int, option("--size", "Payload bytes of an entry.", min=0, max=1024 * 1024)]
HistoryOption = Annotated[
    Path | None,
    option(
        "--history FILE",
        "Record what was asked and answered, read everything back, and let `quire verify-history` judge it.",
    ),
]
KeepOption = Annotated[bool, option("--keep", "Keep the ledger that was written.")]


@dataclass(frozen=True)
class BenchOptions(Quorums):
    """What is measured, and what is done with the ledger afterwards."""

    seconds: SecondsOption = 10.0
    keep: KeepOption = False
    history: HistoryOption = None

    def __post_init__(self) -> None:
        if self.history is not None:
            testing_module("recording", _RECORDED)  # said before anything is asked of the cluster


@app.command()
@with_client()
async def append(
    client: QuireClient,
    out: Output,
    how: BenchOptions,
    size: SizeOption = 100,
    window: Annotated[int, option("--window", "Entries in flight.", min=1)] = 5000,
) -> None:
    """Append as fast as the cluster takes it, with a window of entries in flight."""
    await _measure("append", client, out, how, size, window)


@app.command()
@with_client()
async def latency(client: QuireClient, out: Output, how: BenchOptions, size: SizeOption = 1024) -> None:
    """Append one entry at a time and say how long each took until it was durable."""
    await _measure("latency", client, out, how, size, 1)


async def _measure(
    what: str, client: QuireClient, out: Output, how: BenchOptions, size: int, window: int
) -> None:
    """Make a ledger, load it, print the result, delete it. With a history: read it back before."""
    from quire.cli.console.histogram import Histogram

    durations = Histogram()
    async with _recording(how.history) as recording:
        quorums = attributes(how, "ensemble_size write_quorum ack_quorum min_present")
        writer = await client.create_ledger(**quorums, password=b"")
        recorded = None if recording is None else recording.created(writer.ledger_id)
        try:
            with out.progress(f"bench {what}") as progress:
                elapsed = await _load(writer, how.seconds, size, window, durations, progress, recorded)
            await writer.close()
            if recording is not None:
                await recording.read_back(client, writer)
            if not how.keep:
                await client.delete_ledger(writer.ledger_id)
        except BaseException:
            left = writer.ledger_id
            out.note(f"Ledger {left} is left behind: `quire ledger delete {left}` deletes it.")
            raise
    rate = durations.count / elapsed
    facts = {
        "bench": what,
        "entries": durations.count,
        "seconds": round(elapsed, 3),
        "entries_per_s": round(rate),
        "bytes_per_s": round(rate * size),
        "size": size,
        "window": window,
        "quorums": f"{how.ensemble_size}/{how.write_quorum}/{how.ack_quorum}",
        "ledger_id": writer.ledger_id if how.keep else None,
        "latency": durations.facts(),
    }
    out.result(facts, _summary(durations, elapsed, size, window))


def _summary(durations: Histogram, elapsed: float, size: int, window: int) -> str:
    flight = "one at a time" if window == 1 else f"up to {window:,} in flight"
    rate = durations.count / elapsed
    return (
        f"{counted(durations.count, 'entry')} of {size:,} B in {elapsed:.1f} s, {flight}: {rate:,.0f} entries/s, "
        f"{human_bytes(rate * size)}/s.\n{durations.sentence()}\n\n{durations.draw()}"
    )


def _stamped(payload: bytes, number: int) -> bytes:
    return number.to_bytes(8, "big")[-len(payload) :] + payload[8:] if payload else payload


@contextlib.asynccontextmanager
async def _recording(path: Path | None) -> AsyncIterator[Any]:
    if path is None:
        yield None
        return
    recording = testing_module("recording", _RECORDED)
    with path.open("wb", buffering=0) as file:
        yield recording.RecordedRun(recording.history_into(file))


async def _load(
    writer: Any,
    seconds: float,
    size: int,
    window: int,
    durations: Histogram,
    progress: ProgressLine,
    recorded: Any = None,
) -> float:
    """Keep `window` entries in flight for `seconds`, or as many as the writer has room for.

    What is recorded gets payloads that differ: each begins with its number.

    Returns:
        The seconds from the first append to the last acknowledgement.
    """
    load = _Load(writer, size, window, durations, progress, recorded)
    begin = time.perf_counter()
    end = begin + seconds
    while time.perf_counter() < end and load.failure is None:
        await load.fill(end)
    await writer.drain()
    while load.started and load.failure is None:
        await load.wait()
    if load.failure is not None:
        if recorded is not None:
            recorded.ended(load.failure)
        raise load.failure
    return time.perf_counter() - begin


class _Load:
    """The entries in flight of one load, and what became of the others; see `_load`.

    Attributes:
        started: when each entry in flight was handed over, in ns.
        failure: why an entry failed, if one did.
    """

    def __init__(
        self,
        writer: Any,
        size: int,
        window: int,
        durations: Histogram,
        progress: ProgressLine,
        recorded: Any,
    ) -> None:
        self.started: deque[int] = deque()
        self.failure: BaseException | None = None
        self._writer, self._window = writer, window
        self._durations, self._progress, self._recorded = durations, progress, recorded
        self._payload = bytes(index & 0xFF for index in range(size))
        self._group = max(1, GROUP_BYTES // max(1, size))
        self._room = asyncio.Event()
        self._writer_full = False

    async def fill(self, end: float) -> None:
        """Hand over what the window lacks, until `end`, and wait until a quarter of the window is free again."""
        lacking = self._window - len(self.started)
        for sent in range(0, lacking, self._group):
            if sent and time.perf_counter() >= end:
                break
            for value in self._next(min(self._group, lacking - sent)):
                if not self._handed_over(value) and not await self._handed_over_later(value):
                    return
        await self.wait()

    async def wait(self) -> None:
        """Wait until there is room."""
        self._room.clear()
        await self._room.wait()

    def _next(self, count: int) -> list[bytes]:
        if self._recorded is None:
            return [self._payload] * count
        number = self._recorded.next_entry
        payloads = [_stamped(self._payload, number + index) for index in range(count)]
        self._recorded.sending(payloads)
        return payloads

    def _handed_over(self, value: bytes) -> bool:
        """Start one append; False where the writer has no room: its window is of bytes, and may be the smaller one."""
        began = time.perf_counter_ns()
        try:
            future = self._writer.append_nowait(value)
        except WindowFullError:
            return False
        self.started.append(began)
        future.add_done_callback(self._answered)
        return True

    async def _handed_over_later(self, value: bytes) -> bool:
        """Wait for room and start one append; False after a failure."""
        self._writer_full = True
        await self.wait()
        while self.failure is None:
            if self._handed_over(value):
                self._writer_full = False
                return True
            await self.wait()
        return False

    def _answered(self, future: asyncio.Future[int]) -> None:
        # Acknowledgements come in order, so the oldest start belongs to this one.
        duration = time.perf_counter_ns() - self.started.popleft()
        if future.cancelled() or future.exception() is not None:
            error = asyncio.CancelledError() if future.cancelled() else future.exception()
            self.failure = self.failure or error
        else:
            self._durations.add(duration)
            self._progress.advance(1, len(self._payload))
            if self._recorded is not None:
                self._recorded.acknowledged()
        if self._writer_full or len(self.started) <= self._window * 3 // 4:
            self._room.set()

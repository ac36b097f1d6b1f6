"""Clients of a stream in a replay: a leader that takes it over and writes, and a client that reads it.

Take-over and writer are the programs that ship. A reader is no whole program: it asks one bookie in real frames, and goes
by the rule that is handed in.

Source: docs/testing-coverage.md, "Replay: the programs go where the explorer goes"; docs/protocol/streams.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from quire.client.access import LedgerAccess
from quire.client.context import ClientContext
from quire.client.machines import Machines
from quire.client.streams.take_over import StreamTakeOver
from quire.client.writing.writer import LedgerWriter
from quire.core.ids import NO_ENTRY, BookieId
from quire.core.ledger.effects import TakenOver
from quire.core.ledger.metadata import LedgerMetadata
from quire_testing.explorer.stream_bookies import Value
from quire_testing.explorer.stream_clients import StreamClient, Written
from quire_testing.explorer.stream_parts import StreamReader
from quire_testing.kit.stepped import StepClock
from quire_testing.replay.clients import BY_STEPS, LOOK_MS, Program, ThenFirst, read_error

LAC_MS = 1000
"""When a LAC is sent that no add has carried: a step lets the time pass."""


class StreamLeader(Program):
    """A client that takes the stream over, writes, and may take it over again.

    Attributes:
        acked: what its callers know of, in all its terms.
        written: what it wrote, by term.
    """

    machines: Machines
    take_over: StreamTakeOver | None = None
    writer: LedgerWriter | None = None

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.written: tuple[Written, ...] = ()
        self._futures: list[tuple[int, asyncio.Future[int]]] = []
        self._task: asyncio.Task[None] | None = None

    def _context(self, owner: int) -> ClientContext:
        config = replace(BY_STEPS, lac_after_ms=LAC_MS)
        return ClientContext.of(
            self.bookies, self.records, StepClock(), ThenFirst(owner), config, self.machines
        )

    def begin(self, record: LedgerMetadata, version: int, owner: int) -> None:
        """Take the stream over, from the record as it is.

        Raises:
            LookupError: it is at work already.
        """
        if self._task is not None and not self._task.done():
            raise LookupError(self.name)

        def start() -> asyncio.Task[None]:
            context = self._context(owner)
            self.take_over, self.writer = StreamTakeOver(record, version, context), None
            return self.loop.create_task(self._lead(self.take_over, context))

        self._task = self.act(start)
        self._task.add_done_callback(read_error)

    async def _lead(self, take_over: StreamTakeOver, context: ClientContext) -> None:
        taken = await take_over.run()
        if isinstance(taken, TakenOver):
            self.write(taken, context)

    def write(self, taken: TakenOver, context: ClientContext) -> None:
        """It is the writer now."""
        record, last = taken.record, taken.last_entry
        access = LedgerAccess.of(record, record.term)
        self.take_over = None
        self.writer = LedgerWriter(record, taken.version, access, context, taken.absent, last, taken.length)
        self.written = (*self.written, Written(record.term, last + 1, last))

    def create(self, record: LedgerMetadata) -> None:
        """It created the stream, and writes in its first term."""
        self.act(lambda: self.write(TakenOver(record, 0, NO_ENTRY, 0, ()), self._context(0)))

    def append(self) -> None:
        """Its caller appends one entry.

        Raises:
            LookupError: it is no writer.
        """
        writer = self.writer
        if writer is None:
            raise LookupError(self.name)
        term = self.written[-1].term
        self._futures.append((term, self.act(lambda: writer.append_nowait(b"x"))))
        self.written = (*self.written[:-1], replace(self.written[-1], lap=self.written[-1].lap + 1))

    def look(self) -> None:
        """The time of its timer has come: it looks for bookies.

        Raises:
            LookupError: it waits for no time.
        """
        effects = None if self.writer is None else self.writer._effects
        if effects is None or effects._timer is None:
            raise LookupError("timer")
        effects._timer.cancel()
        clock = effects._context.clock
        assert isinstance(clock, StepClock)
        clock.ms += LOOK_MS
        self.act(effects._timer_fired)

    @property
    def ensemble(self) -> Sequence[BookieId]:
        """The bookies that it sends to, or would."""
        return () if self.writer is None else self.writer._machine.ensemble

    @property
    def absent(self) -> list[BookieId]:
        """The bookies of its absent slots."""
        return [] if self.writer is None else [self.ensemble[slot] for slot in self.writer._machine.absent]

    def truncate(self, bookie: BookieId) -> None:
        """Have a bookie truncate the fragment: what no program does when a bookie returns to its slot."""
        writer = self.writer
        assert writer is not None
        first = int(writer._machine.cas.record.last_fragment.first_entry)
        work = self.act(lambda: self.loop.create_task(self.bookies.truncate(bookie, writer.access, first)))
        work.add_done_callback(read_error)

    @property
    def waits_for_stragglers(self) -> bool:
        """Whether it has taken the stream over, and waits for responses that it does not need: the explorer's does not."""
        return self.take_over is not None and self.take_over._result.done()

    @property
    def acked(self) -> tuple[Value, ...]:
        """What its callers know of, as their futures say."""
        done = [(term, each) for term, each in self._futures if each.done() and not each.cancelled()]
        return tuple(sorted((each.result(), term) for term, each in done if each.exception() is None))

    def view(self) -> StreamClient:
        """It as the explorer's client: what it acknowledged and wrote, and a take-over that is under way."""
        machine = None if self.take_over is None else self.take_over._machine
        key = (self.name, self.acked, self.written, machine and (machine.term, machine.status))
        return StreamClient(key, machine, acked=self.acked, written=self.written)


class ReadingClient(Program):
    """A client that reads: it has the record that it read once.

    Attributes:
        reader: what it knows, as the explorer says it.
    """

    reader = StreamReader()

    def opens(self, record: LedgerMetadata) -> None:
        """It reads the record."""
        self.reader = self.reader._replace(record=record)

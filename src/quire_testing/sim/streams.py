"""What clients of a simulated world do with one stream: take it over from each other, write, tail, read, resolve.

Source: docs/simulation.md, "The world"; docs/protocol/streams.md.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from quire.client.streams.unbounded import UnboundedLedger
from quire.client.writing.writer import LedgerWriter
from quire.core.errors import AlreadyExistsError, OutcomeUnknownError, QuireError, StreamClosedError
from quire.core.ledger.terms import StreamMode
from quire.log.client import QuireClient
from quire.metadata.election import Election
from quire.wire.entry import NoOp
from quire_testing.history import Operation, entry_hash, entry_hashes
from quire_testing.sim.faults import Phase
from quire_testing.sim.loop import SECOND
from quire_testing.sim.programs import SimClient
from quire_testing.sim.repairs import RepairPrograms
from quire_testing.sim.responses import answer
from quire_testing.sim.world import World

NAME: Final = "sim"
ELECTIONS: Final = 2
"""Leaders at a time, as if there were two elections."""
TERMS: Final = 2
"""How often each client takes the stream over."""
POLL_SECONDS: Final = 0.002
COMES_SECONDS: Final = 0.05
"""How long the later leaders wait for an append, before they look whether the first one has ended."""
LEAD_SECONDS: Final = 3.0
"""The longest wait of a client for the leadership."""
AGAIN: Final = 0.2
"""How often a stream is read again although nothing was appended since."""
TAIL_SECONDS: Final = 1.0
"""How long a tail waits, before it looks whether there is a writer."""
TRIES: Final = 12


@dataclass(slots=True)
class UnknownAppend:
    """An append of unknown outcome."""

    process: str
    error: QuireError
    payload: bytes


class StreamPrograms:
    """The clients of a world's stream.

    Args:
        world: in which they run.
        repairs: what its repairer does.

    Attributes:
        stream_id: -1 before it is created.
        unsettled: appends whose outcome is unknown yet.
        over: the leaders that have ended.
        skipped: by client, the ids that it did not get: where terms only fence, those of no-ops.
        no_ops: the ids of no-ops that were read.
    """

    def __init__(self, world: World, repairs: RepairPrograms) -> None:
        self._world, self._repairs = world, repairs
        self._settings, self._history = world.settings, world.history
        self.stream_id = -1
        self.unsettled: list[UnknownAppend] = []
        self.over: list[str] = []
        self.skipped: dict[str, set[int]] = {}
        self.no_ops: set[int] = set()
        self._appended = 0
        self._coming: list[asyncio.Future[None]] = []

    def stream_of(self, client: QuireClient) -> UnboundedLedger:
        """The stream, as a client has it."""
        return client.unbounded_ledger(NAME, b"s", mode=self._settings.mode)

    async def run(
        self, process: SimClient, connect: Callable[[SimClient], Coroutine[Any, Any, QuireClient]]
    ) -> None:
        """A leader, the tail, the reader or the repairer, by the name of the process."""
        name, client = process.name, await connect(process)
        if name == "tail":
            await self.tail(name, client)
        elif name == "reader":
            await self.reader(name, client)
        elif name == "repairer":
            await self._repairs.again(name, client, lambda: not self._goes_on())
        else:
            await self.leader(name, client, int(name.removeprefix("leader")) - 1)

    # --- leaders ---------------------------------------------------------------------------------------------------

    async def leader(self, name: str, client: QuireClient, number: int) -> None:
        """Wait for the lead, take the stream over, write; some times."""
        stream, chance = self.stream_of(client), self._world.chance(name)
        try:
            if number == 0:
                await self._create(stream)
            else:
                await self._comes(number)
                self._world.begin(Phase.TAKEOVER)
                await asyncio.sleep(chance.random() ** 3 * 0.3)
            for time in range(TERMS):
                await self._lead(name, client, stream, f"{number % ELECTIONS}", time)
                await asyncio.sleep(chance.random() ** 3 * 0.3)
        finally:
            self.over.append(name)

    async def _comes(self, number: int) -> None:
        """The second and the later ones come at the add at which the run's take-over is, or later."""
        creator = self._world.clients["leader1"].loop
        while creator.alive and not self.over and self._appended < self._settings.takeover_at:
            coming = asyncio.get_running_loop().create_future()
            self._coming.append(coming)
            await asyncio.wait([coming], timeout=COMES_SECONDS)
        await asyncio.sleep((number - 1) * self._settings.second_ns / SECOND)

    async def _create(self, stream: UnboundedLedger) -> None:
        _, size, write_quorum, ack_quorum = self._settings.shape
        for _ in range(TRIES):
            with contextlib.suppress(QuireError):
                with contextlib.suppress(AlreadyExistsError):  # an earlier response was lost
                    await stream.create(
                        ensemble_size=size,
                        write_quorum=write_quorum,
                        ack_quorum=ack_quorum,
                        digest=self._settings.digest,
                    )
                self.stream_id = int((await stream.show()).ledger_id)
                return
            await asyncio.sleep(0.05)

    async def _lead(
        self, name: str, client: QuireClient, stream: UnboundedLedger, election: str, time: int
    ) -> None:
        """One term; what a superseded writer does not know it asks afterwards."""
        advice = Election(client.store, f"sim-{election}", name)
        try:
            async with asyncio.timeout(LEAD_SECONDS):
                writer = await stream.open_writer(advice)
        except TimeoutError:
            self._world.saw("a leader is not elected in time")
            await self._resign(advice)
            return
        except QuireError as error:
            self._world.saw(f"lead: {error.code}")
            self._world.say(name, f"does not lead: {type(error).__name__}")
            await self._resign(advice)
            return
        self._world.say(name, f"leads in term {writer.term}")
        self._world.saw("a leader serves a stream")
        await self._write(name, writer, time)
        await self._resign(advice)
        await self.resolve_all(stream, [append for append in self.unsettled if append.process == name])

    @staticmethod
    async def _resign(advice: Election) -> None:
        with contextlib.suppress(QuireError):
            await advice.resign()

    async def _write(self, name: str, writer: LedgerWriter, time: int) -> None:
        waiting: list[asyncio.Future[int]] = []
        try:
            for number in range(self._settings.entries):
                waiting.append(self._append(name, writer, b"%s/%d/%d" % (name.encode(), time, number)))
                if self._settings.apart:
                    await asyncio.sleep(0)
                if len(waiting) >= self._settings.burst:
                    await waiting.pop(0)
            await asyncio.gather(*waiting)
        except QuireError as error:
            self._world.saw(f"stream: {error.code}")
            self._world.say(name, f"writes no more: {type(error).__name__}")
            await asyncio.gather(*waiting, return_exceptions=True)
        with contextlib.suppress(QuireError):
            await writer.release()

    def _append(self, name: str, writer: LedgerWriter, payload: bytes) -> asyncio.Future[int]:
        """Append one entry, and note what comes of it.

        Raises:
            QuireError: it was refused at once.
        """
        operation = self._history.invoke(
            name, "append", ledger=self.stream_id, term=int(writer.term), hashes=entry_hash(payload)
        )
        try:
            future = writer.append_nowait(payload)
        except QuireError as error:
            answer(operation, error)
            raise
        self._appended += 1
        if self._appended == self._settings.takeover_at:
            for coming in self._coming:
                if not coming.done():
                    coming.set_result(None)
        future.add_done_callback(partial(self._ended, name, payload, operation))
        return future

    def _ended(self, name: str, payload: bytes, operation: Operation, done: asyncio.Future[int]) -> None:
        if done.cancelled():
            return
        error = done.exception()
        if error is None:
            operation.ok(first=done.result())
            self._world.say(name, f"entry {done.result()} is acknowledged")
            return
        self._world.saw(f"stream: {getattr(error, 'code', error)}")
        self._world.say(name, f"is told {error}")
        answer(operation, error)
        if isinstance(error, OutcomeUnknownError):
            self.unsettled.append(UnknownAppend(name, error, payload))

    # --- what became of it -----------------------------------------------------------------------------------------

    async def resolve_all(self, stream: UnboundedLedger, unsettled: list[UnknownAppend]) -> None:
        """Ask what became of some appends; those that no later term has decided stay unknown."""
        for append in unsettled:
            with contextlib.suppress(QuireError):
                kept = await stream.resolve(append.error)
                if kept is None:
                    self._world.saw("resolve: not decided yet")
                    continue
                entry = append.error.ids["entry_id"]
                assert isinstance(entry, int)
                operation = self._history.invoke(
                    append.process,
                    "resolve",
                    ledger=self.stream_id,
                    first=entry,
                    hashes=entry_hash(append.payload),
                )
                operation.ok(kept=kept)
                self._world.saw(f"resolve: {'kept' if kept else 'lost'}")
                self._world.say(append.process, f"resolves {entry}: {'kept' if kept else 'lost'}")
                if append in self.unsettled:
                    self.unsettled.remove(append)

    # --- readers ---------------------------------------------------------------------------------------------------

    async def tail(self, name: str, client: QuireClient) -> None:
        """Follow the stream from its beginning, across take-overs: each entry once, in order."""
        stream, seen = self.stream_of(client), 0
        while self._goes_on():
            if self.stream_id < 0:
                await asyncio.sleep(POLL_SECONDS)
                continue
            try:
                async with asyncio.timeout(TAIL_SECONDS), contextlib.aclosing(stream.tail(seen)) as entries:
                    async for entry in entries:
                        self._skips(name, seen, int(entry.entry_id))
                        self._was_read(name, int(entry.entry_id), [bytes(entry.payload)])
                        seen = int(entry.entry_id) + 1
            except TimeoutError:
                self._world.saw("a tail waits for long")
            except QuireError as error:
                self._world.saw(f"tail: {error.code}")
                await asyncio.sleep(0.1)
        if seen:
            self._world.saw("a tail follows a stream")

    def _goes_on(self) -> bool:
        """Whether some leader is still at work."""
        clients = self._world.clients
        leaders = [name for name in self._settings.mix.clients if name.startswith("leader")]
        return any(name not in self.over and clients[name].loop.alive for name in leaders)

    async def reader(self, name: str, client: QuireClient) -> None:
        """Read some entries now and then, each time with a record of its own."""
        stream, chance = self.stream_of(client), self._world.chance(name)
        seen = -1
        while self._goes_on():
            await asyncio.sleep(0.02 + chance.random() ** 3)
            news = self._appended + len(self.over)
            if self.stream_id >= 0 and (news > seen or chance.random() < AGAIN):
                seen = news
                await self.read(name, stream, chance.randrange(1 + self._appended))

    def _skips(self, name: str, wanted: int, got: int) -> None:
        """A client gets an entry where another one is next: what lies between must be no-ops."""
        if got > wanted and self._settings.mode is StreamMode.FENCING:
            self.skipped.setdefault(name, set()).update(range(wanted, got))
        elif got != wanted:
            self._world.broken(f"{name} gets entry {got}, where {wanted} is next")

    async def read(self, name: str, stream: UnboundedLedger, first: int) -> int:
        """Read from an entry to the last one confirmed; where it ended, -1 after an error."""
        payloads: list[bytes] = []
        try:
            reader = await stream.open_reader()
            async with contextlib.aclosing(reader.read(first, None, no_ops=True)) as entries:
                async for entry in entries:
                    if entry.entry_id != first + len(payloads):
                        self._world.broken(f"a read gets entry {entry.entry_id} as the {len(payloads)}th")
                    if isinstance(entry, NoOp):
                        self.no_ops.add(int(entry.entry_id))
                    payloads.append(bytes(entry.payload))
        except QuireError as error:
            self._world.saw(f"stream read: {error.code}")
            self._world.say(name, f"cannot read {first}: {error}")
            self._was_read(name, first, payloads)
            return -1
        self._was_read(name, first, payloads)
        return first + len(payloads)

    def _was_read(self, name: str, first: int, payloads: list[bytes]) -> None:
        if payloads:
            last = first + len(payloads) - 1
            operation = self._history.invoke(name, "read", ledger=self.stream_id, first=first, last=last)
            operation.ok(hashes=entry_hashes(payloads))
            self._world.say(name, f"reads {first}..{last}")

    # --- the end ---------------------------------------------------------------------------------------------------

    async def settle(self, name: str, client: QuireClient) -> str:
        """After everything is healed: take it over, append, close it for good, resolve what is unknown, read everything.

        Returns:
            What does not work; empty: all does.
        """
        if self.stream_id < 0:
            return ""
        stream, wrong = self.stream_of(client), "nothing was tried"
        for _ in range(TRIES):
            try:
                await self._append_last(name, stream)
                last = int((await stream.close()).last_entry)
            except QuireError as error:
                wrong = f"the stream cannot be closed although everything is healed: {error}"
            else:
                await self.resolve_all(stream, list(self.unsettled))
                if self.unsettled:
                    wrong = f"{len(self.unsettled)} appends stay unknown although the stream is closed"
                elif await self.read(name, stream, 0) == last + 1:
                    return self._wrongly_skipped()
                else:
                    wrong = f"the stream cannot be read to {last} although everything is healed"
            await asyncio.sleep(0.3)
        return wrong

    def _wrongly_skipped(self) -> str:
        """The client that did not get an entry that is no no-op; empty if none."""
        for name, ids in self.skipped.items():
            if wrong := sorted(ids - self.no_ops):
                return f"{name} did not get entry {wrong[0]}, which is no no-op"
        if self.no_ops:
            self._world.saw("a no-op is read")
        return ""

    async def _append_last(self, name: str, stream: UnboundedLedger) -> None:
        with contextlib.suppress(StreamClosedError):
            writer = await stream.open_writer()
            await self._append(name, writer, b"%s/%d" % (name.encode(), writer.term))
            await writer.release()

"""What the clients of a world do, and what they tell the history of it.

Every coroutine here is a user's program: it calls the public client and records its requests and responses.

Source: docs/simulation.md, "The world": faults come around the take-over.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from quire.client.writing.writer import LedgerWriter
from quire.core.errors import AlreadyExistsError, NotWritingError, QuireError, TrimmedError
from quire.log.client import QuireClient
from quire.log.config import LogConfig
from quire.log.log import Log
from quire.metadata.keys import AUDIT_OF_COPIES
from quire.metadata.store import Create
from quire_testing.history import Operation, entry_hash, entry_hashes
from quire_testing.sim.faults import Phase
from quire_testing.sim.ledger_box import LedgerBox
from quire_testing.sim.loop import SECOND
from quire_testing.sim.marks import MarkPrograms
from quire_testing.sim.programs import SimClient
from quire_testing.sim.repairs import RepairPrograms
from quire_testing.sim.responses import answer
from quire_testing.sim.streams import StreamPrograms
from quire_testing.sim.world import World

T = TypeVar("T")

POLL_SECONDS: Final = 0.002
LOG_NAME: Final = "sim"
LOG_CONFIG: Final = LogConfig(
    batch_records_max=2,
    in_flight_bytes_max=200,
    roll_bytes=120,
    page_items=2,
    fan_out=2,
    back_off_ms_min=5,
    back_off_ms_max=200,
    open_attempts_max=6,
    metadata_attempts_max=8,
    host="sim",
    adopts=False,  # no sink is simulated, and seeds that once failed keep their runs
)


class Workload:
    """The programs of one run."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.settings = world.settings
        self.history = world.history
        self._left: list[asyncio.Task[Any]] = []
        self.boxes: list[LedgerBox] = []
        self.repairs = RepairPrograms(world)
        self.streams = StreamPrograms(world, self.repairs)
        self.marks = MarkPrograms(world, self.boxes)

    def start(self) -> None:
        """Start all of them."""
        world = self.world
        world.begin(Phase.BEGIN)
        name = self.settings.mix.workload
        if name == "takeover":
            box = self._box()
            self._program("writer", self.writer, box)
            self._program("rec1", self.recoverer, box, 0)
            self._program("rec2", self.recoverer, box, self.settings.second_ns)
            self._program("reader", self.tail, box)
        elif name == "readers":
            for number in (1, 2, 3):
                self._program(f"writer{number}", self.writer, self._box())
            for number, client in enumerate(("reader1", "reader2", "reader1")):
                self._program(client, self.tail, self.boxes[number])
        elif name == "bundles":
            boxes = [self._box() for _ in range(4)]
            self._program("writer", self._crowd, boxes)
            self._program("rec1", self.recoverer, boxes[0], 0)
            self._program("reader", self.tail, boxes[1])
        elif name in {"repair", "autorecovery"}:
            for number in (1, 2):
                self._program(f"writer{number}", self.writer, self._box())
                self._program(f"repairer{number}", self.repairer)
            for inspector in self.settings.mix.clients[4:-1]:
                self._program(inspector, self.repairer)
            self._program("owner", self.owner, self.boxes[-1])
        elif name == "marks":
            self._start_marks()
        elif name == "streams":
            for client in self.settings.mix.clients:
                self._program(client, self.streams.run, self._client)
        else:
            lead = self.hasty_leader if name == "cancelled" else self.leader
            for number, client in enumerate(("leader1", "leader2", "leader3")):
                self._program(client, lead, number)
            self._program("reader", self.log_tail)
            if name == "log":
                self._program("trimmer", self.trimmer)

    def _start_marks(self) -> None:
        # An auditor has run here once: from then on decisions mark.
        self.world.space.apply([Create(AUDIT_OF_COPIES, b"")])
        chance = self.world.chance("who recovers")
        for number in (1, 2):
            box = self._box()
            self._program(f"writer{number}", self.writer, box)
            self._program(f"repairer{number}", self.repairer)
            self._program(f"leader{number}", self.streams.run, self._client)
            if chance.getrandbits(1):
                self._program(f"rec{number}", self.recoverer, box, self.settings.second_ns)
        self._program("inspector", self.marks.inspect, self._client)
        self._program("scrubber", self.marks.scrub, self._client)
        self._program("owner", self.owner, self.boxes[-1])

    def _box(self) -> LedgerBox:
        self.boxes.append(LedgerBox())
        return self.boxes[-1]

    def _program(self, name: str, program: Any, *args: Any) -> None:
        process = self.world.clients.get(name) or self.world.client(name)
        self._left.append(process.loop.spawn(self._guarded(process, program, *args), name))

    async def _guarded(self, process: SimClient, program: Any, *args: Any) -> None:
        try:
            await program(process, *args)
        except QuireError as error:
            self.world.say(process.name, f"ends: {type(error).__name__}")
            self.world.saw(f"error: {error.code}")

    def over(self) -> bool:
        """Whether every program has ended, or its process has."""
        while self._left and (self._left[-1].done() or not self._left[-1].get_loop().alive):  # type: ignore[attr-defined]
            self._left.pop()
        return not self._left

    async def _client(self, process: SimClient) -> QuireClient:
        while True:
            try:
                return process.client or await process.connect()
            except QuireError:
                await asyncio.sleep(0.1)

    # --- ledgers ---------------------------------------------------------------------------------------------------

    async def writer(self, process: SimClient, box: LedgerBox, writer: LedgerWriter | None = None) -> None:
        """Append, then perhaps close."""
        try:
            writer = writer or await self._create(process, box)
            if writer is not None:
                await self._append(process, box, writer)
                if self.settings.closes:
                    box.closing = process
                    await self._close(process, writer)
                    box.closing = None
        finally:
            box.over = True

    async def _crowd(self, process: SimClient, boxes: Sequence[LedgerBox]) -> None:
        writers = [await self._create(process, box) for box in boxes]
        await asyncio.gather(*[self.writer(process, *each) for each in zip(boxes, writers, strict=True)])

    async def _create(self, process: SimClient, box: LedgerBox) -> LedgerWriter | None:
        client = await self._client(process)
        names = ("ensemble_size", "write_quorum", "ack_quorum")
        quorums: dict[str, Any] = dict(zip(names, self.settings.shape[1:], strict=True))
        mix, digest = self.settings.mix, self.settings.digest
        others: dict[str, Any] = {"password": b"s", "digest": digest, "guarantee": mix.guarantee}
        for _ in range(20):
            operation = self.history.invoke(process.name, "create", **quorums)
            try:
                writer = await client.create_ledger(**quorums, **others)
            except QuireError as error:
                answer(operation, error)
                await asyncio.sleep(0.05)
                continue
            operation.ok(ledger=int(writer.ledger_id))
            box.ledger_id = int(writer.ledger_id)
            return writer
        return None

    async def _append(self, process: SimClient, box: LedgerBox, writer: LedgerWriter) -> None:
        waiting: list[asyncio.Future[int]] = []
        for number in range(self.settings.entries):
            payload = b"%s/%d/%d" % (process.name.encode(), box.ledger_id, number)
            payload += bytes(self.settings.mix.padding)
            operation = self.history.invoke(
                process.name, "append", ledger=box.ledger_id, hashes=entry_hash(payload)
            )
            try:
                future = writer.append_nowait(payload)
            except QuireError as error:
                answer(operation, error)
                break
            self.world.say(process.name, f"sends {number}")
            future.add_done_callback(partial(self._appended, process, operation))
            waiting.append(future)
            box.appended += 1
            if self.settings.apart:
                await asyncio.sleep(0)  # each in a loop turn, and so in a run, of its own
            if len(waiting) >= self.settings.burst:
                try:
                    await waiting.pop(0)
                except QuireError:
                    break
        await asyncio.gather(*waiting, return_exceptions=True)

    def _appended(self, process: SimClient, operation: Operation, done: asyncio.Future[int]) -> None:
        if done.cancelled():
            return
        error = done.exception()
        if error is None:
            operation.ok(first=done.result())
            self.world.say(process.name, f"entry {done.result()} is acknowledged")
        else:
            if isinstance(error, NotWritingError):
                self.world.saw("an add that was never sent")
            self.world.saw(f"error: {getattr(error, 'code', error)}")
            self.world.say(process.name, f"is told {type(error).__name__}")
            answer(operation, error)

    async def _close(self, process: SimClient, writer: LedgerWriter) -> None:
        operation = self.history.invoke(process.name, "close", ledger=int(writer.ledger_id))
        try:
            await writer.close()
        except QuireError as error:
            self.world.saw(f"close: {error.code}")
            self.world.say(process.name, f"cannot close: {type(error).__name__}")
            answer(operation, error)
        else:
            operation.ok(last=int(writer.last_add_confirmed))
            self.world.say(process.name, f"closed at {writer.last_add_confirmed}")

    async def recoverer(self, process: SimClient, box: LedgerBox, later_ns: int) -> None:
        """Begin a recovery at a random add, then read what there is."""
        client = await self._client(process)
        while box.appended < self.settings.takeover_at and not box.over:
            await asyncio.sleep(POLL_SECONDS)
        await asyncio.sleep(later_ns / SECOND)
        if box.ledger_id < 0:
            return
        self.world.begin(Phase.TAKEOVER)
        await self.recover(process.name, client, box.ledger_id)
        await self.read_all(process.name, client, box.ledger_id)

    async def recover(self, name: str, client: QuireClient, ledger_id: int) -> bool:
        """Recover; whether it is closed now."""
        operation = self.history.invoke(name, "recover", ledger=ledger_id)
        self.world.say(name, f"recovers ledger {ledger_id}")
        try:
            report = await client.recover_ledger(ledger_id, b"s")
        except QuireError as error:
            self.world.saw(f"recovery: {error.code}")
            self.world.say(name, f"cannot recover: {type(error).__name__}")
            answer(operation, error)
            return False
        operation.ok(last=int(report.record.last_entry))
        if report.already_closed:
            self.world.saw("recovery finds it closed")
        elif report.recovered:
            self.world.saw("recovery writes entries back")
        self.world.say(name, f"closed at {report.record.last_entry}, {report.recovered} written back")
        return True

    async def read_all(self, name: str, client: QuireClient, ledger_id: int) -> bool:
        """Read a closed ledger from its first entry to its last."""
        try:
            reader = await client.open_ledger(ledger_id, b"s", recover=False)
        except QuireError:
            return False
        last = int(reader.last_add_confirmed)
        if last < 0:
            return reader.closed
        operation = self.history.invoke(name, "read", ledger=ledger_id, first=0, last=last)
        payloads: list[bytes] = []
        try:
            async for entry in reader.read(0, last):
                payloads.append(bytes(entry.payload))
        except QuireError as error:
            self.world.saw(f"read: {error.code}")
            self.world.say(name, f"cannot read entry {len(payloads)} of {last}: {type(error).__name__}")
            facts: dict[str, Any] = {"hashes": entry_hashes(payloads)} if payloads else {}
            kind = "missing" if error.code == "no_such_entry" else "unsure"
            operation.ok(**facts, **{kind: [[len(payloads), len(payloads)]]})
            return False
        operation.ok(hashes=entry_hashes(payloads))
        self.world.say(name, f"reads 0..{last}")
        return True

    async def tail(self, process: SimClient, box: LedgerBox) -> None:
        """Follow a ledger from its beginning."""
        client = await self._client(process)
        while box.ledger_id < 0 and not box.over:
            await asyncio.sleep(POLL_SECONDS)
        if box.ledger_id < 0:
            return
        seen = 0
        for _ in range(8):
            try:
                reader = await client.open_ledger(box.ledger_id, b"s", recover=False)
                async with contextlib.aclosing(reader.tail_runs(seen)) as runs:
                    async with asyncio.timeout(4.0):
                        async for entries in runs:
                            operation = self.history.invoke(
                                process.name,
                                "read",
                                ledger=box.ledger_id,
                                first=seen,
                                last=seen + len(entries) - 1,
                            )
                            operation.ok(hashes=entry_hashes(entry.payload for entry in entries))
                            seen += len(entries)
                            self.world.say(process.name, f"follows to {seen - 1}")
                return
            except TimeoutError:
                if box.over:
                    return
            except QuireError as error:
                self.world.saw(f"tail: {error.code}")
                await asyncio.sleep(0.1)

    # --- repair ----------------------------------------------------------------------------------------------------

    async def owner(self, process: SimClient, box: LedgerBox) -> None:
        """Perhaps delete a ledger, even while it is written or repaired."""
        client, chance = await self._client(process), self.world.chance("owner")
        await asyncio.sleep(chance.random() ** 3)
        if box.ledger_id >= 0 and chance.getrandbits(1):
            await self.repairs.delete(process.name, client, box.ledger_id)

    async def repairer(self, process: SimClient) -> None:
        """Repair all ledgers, or look for holes, again and again, while they are written and some time after."""
        client = await self._client(process)
        await self.repairs.again(process.name, client, lambda: all(box.over for box in self.boxes))

    # --- logs ------------------------------------------------------------------------------------------------------

    async def leader(self, process: SimClient, number: int) -> None:
        """Lead the log, append to it, perhaps roll, perhaps come again."""
        client = await self._client(process)
        log = client.log(LOG_NAME, b"s", LOG_CONFIG)
        if number == 0:
            await self._create_log(log)
        else:
            while not await self._exists(log):
                await asyncio.sleep(POLL_SECONDS)
            chance = self.world.chance(f"leader {number}")
            await asyncio.sleep(chance.random() ** 3 * 0.5)
            self.world.begin(Phase.TAKEOVER)
        for time in (1, 2):
            try:
                writer = await log.open_writer()
            except QuireError as error:
                self.world.saw(f"lead: {error.code}")
                self.world.say(process.name, f"does not lead: {type(error).__name__}")
                continue
            self.world.say(process.name, f"leads, epoch {writer.epoch}")
            self.world.saw("a leader serves")
            if await self._lead(process, writer, time):
                return

    async def _lead(self, process: SimClient, writer: Any, time: int) -> bool:
        """Append as the leader. Whether it ended as it wished."""
        waiting: list[asyncio.Future[int]] = []
        try:
            for number in range(self.settings.entries):
                waiting.append(self._append_as_leader(process, writer, time, number))
                if len(waiting) >= self.settings.burst:
                    await waiting.pop(0)
                if number == self.settings.takeover_at:
                    self.world.saw("a leader rolls")
                    await writer.roll()
            await asyncio.gather(*waiting)
            await writer.close()
        except QuireError as error:
            self.world.saw(f"leader: {error.code}")
            self.world.say(process.name, f"leads no more: {type(error).__name__}")
            await asyncio.gather(*waiting, return_exceptions=True)
            with contextlib.suppress(QuireError):
                await writer.abandon()
            return False
        return True

    def _append_as_leader(
        self, process: SimClient, writer: Any, time: int, number: int
    ) -> asyncio.Future[int]:
        """Append one record as the leader, and note what comes of it.

        Raises:
            QuireError: it was refused at once.
        """
        payload = b"%s/%d/%d" % (process.name.encode(), time, number)
        operation = self.history.invoke(
            process.name, "log_append", log=LOG_NAME, hashes=entry_hash(payload), leader=writer.epoch
        )
        try:
            future: asyncio.Future[int] = writer.append_nowait(payload)
        except QuireError as error:
            answer(operation, error)
            raise
        future.add_done_callback(partial(self._appended, process, operation))
        return future

    async def hasty_leader(self, process: SimClient, number: int) -> None:
        """Wait for the lead, append and close, four times; give up each of these calls after a random time."""
        client = await self._client(process)
        log = client.log(LOG_NAME, b"s", LOG_CONFIG)
        if number == 0:
            await self._create_log(log)
            self.world.begin(Phase.TAKEOVER)
        while not await self._exists(log):
            await asyncio.sleep(POLL_SECONDS)
        chance = self.world.chance(f"haste {number}")
        for time in range(1, 5):
            writer = await self._hastily(chance, log.open_writer(wait_for_leadership=True))
            if writer is None:
                continue
            self.world.say(process.name, f"leads, epoch {writer.epoch}")
            self.world.saw("a leader serves")
            for entry in range(chance.randint(0, self.settings.entries)):
                try:
                    self._append_as_leader(process, writer, time, entry)
                except QuireError:
                    break
            await self._hastily(chance, writer.drain())
            await self._hastily(chance, writer.close())

    async def _hastily(self, chance: random.Random, call: Awaitable[T]) -> T | None:
        """The result of a call; None: it failed, or was cancelled after a random time."""
        try:
            async with asyncio.timeout(chance.choice((0.001, 0.01, 0.1, 3.0)) * chance.random()):
                return await call
        except TimeoutError:
            self.world.saw("a call of a log's writer is cancelled")
        except QuireError as error:
            self.world.saw(f"leader: {error.code}")
        return None

    async def _create_log(self, log: Log) -> None:
        _, size, write_quorum, ack_quorum = self.settings.shape
        for _ in range(20):
            try:
                await log.create(
                    ensemble_size=size,
                    write_quorum=write_quorum,
                    ack_quorum=ack_quorum,
                    digest=self.settings.digest,
                )
            except AlreadyExistsError:
                return
            except QuireError:
                await asyncio.sleep(0.05)
            else:
                return

    @staticmethod
    async def _exists(log: Log) -> bool:
        try:
            return await log.exists()
        except QuireError:
            return False

    async def log_tail(self, process: SimClient) -> None:
        """Read the log as far as it goes, again and again."""
        client = await self._client(process)
        log = client.log(LOG_NAME, b"s", LOG_CONFIG)
        start = 0
        for _ in range(60):
            start = await self.read_log(process.name, log, start)
            await asyncio.sleep(0.02)

    async def read_log(self, name: str, log: Log, start: int) -> int:
        """Read from an offset to what is confirmed; where it ended."""
        values: list[bytes] = []
        operation: Operation | None = None
        try:
            async for record in log.read(start):
                if operation is None:
                    operation = self.history.invoke(name, "log_read", log=LOG_NAME, first=start)
                if record.offset != start + len(values):
                    self.world.problems.append(
                        f"a scan from {start} gives offset {record.offset} after {len(values)} records"
                    )
                values.append(record.value or b"")
        except TrimmedError as error:
            if not values:
                return int(error.ids["earliest"])  # type: ignore[call-overload,no-any-return]
        except QuireError as error:
            self.world.saw(f"log read: {error.code}")
        if operation is not None:
            operation.ok(hashes=entry_hashes(values))
            self.world.say(name, f"reads the log {start}..{start + len(values) - 1}")
        return start + len(values)

    async def trimmer(self, process: SimClient) -> None:
        """Give up the beginning of the log now and then."""
        client = await self._client(process)
        log = client.log(LOG_NAME, b"s", LOG_CONFIG)
        chance = self.world.chance("trimmer")
        for _ in range(3):
            await asyncio.sleep(0.03 + chance.random() * 0.2)
            try:
                about = await log.describe()
                before = chance.randint(about.start_offset, about.end_offset)
            except QuireError:
                continue
            operation = self.history.invoke(process.name, "log_truncate", log=LOG_NAME, before=before)
            try:
                await log.truncate(before)
            except QuireError as error:
                self.world.saw(f"truncate: {error.code}")
                operation.unknown(error)
            else:
                self.world.saw("a truncation")
                self.world.say(process.name, f"truncates the log before {before}")
                operation.ok()

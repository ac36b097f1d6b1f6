"""One run: a seed, its world, its workload, the healing at the end, the last reads and scans, and the verdict.

Source: docs/simulation.md; docs/formats/history.md, "What is judged".
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import random
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from quire.core.answers import Answer
from quire.core.errors import MetadataUnknownError, QuireError
from quire.core.ids import BookieId
from quire.core.ledger.metadata import LedgerMetadata, LedgerState
from quire.core.ledger.quorum import write_set
from quire.log.client import QuireClient
from quire.wire.entry import EntryDigest
from quire.wire.run import RunView
from quire_testing.explorer.patches import applied
from quire_testing.history import Event, entry_hashes, judge
from quire_testing.sim.faults import Fault, FaultKind, Phase
from quire_testing.sim.loop import SECOND
from quire_testing.sim.mixes import MIXES, Mix, Settings, draw
from quire_testing.sim.programs import SHIPPED, Parts, SimBookie, SimClient
from quire_testing.sim.stream_records import entries_of, held_by_id
from quire_testing.sim.workloads import LOG_CONFIG, LOG_NAME, Workload
from quire_testing.sim.world import World

WORKLOAD_NS = 20 * SECOND
SETTLE_NS = 60 * SECOND
EVENTS_MAX = 400_000
TRIES = 12
DAEMON_TRIES = 120
"""More, where auto-recovery repairs: it waits until a lost bookie's delay is over, and leaves an open ledger to its writer for a
while."""
LEAD_SECONDS = 15
READ_BYTES = 1 << 20
REACH_MS = 1000
REACHED_SECONDS = 15
"""How long after everything was healed a connection may still be silent."""


@dataclass(slots=True)
class RunOutcome:
    """The result of a run.

    Attributes:
        violations: one sentence each; empty is good.
        seen: situations, with how often each occurred.
        events: of the timeline.
        virtual_ns: how long the run took in its own time.
        digest: a checksum over all bytes that went over the network, the history, and the last random number.
        faults: all that were drawn, the dropped ones too.
        dropped: those that were left out.
        history, lines: for the transcript.
    """

    seed: int
    mix: str
    violations: list[str]
    seen: dict[str, int]
    events: int
    virtual_ns: int
    digest: str
    faults: list[Fault]
    settings: Settings
    dropped: frozenset[int] = frozenset()
    history: list[Event] = field(default_factory=list)
    lines: list[tuple[int, str, str]] = field(default_factory=list)


def settings_of(seed: int, mix: Mix) -> Settings:
    """The settings that a seed draws."""
    return draw(mix, random.Random(f"{seed}/settings/{mix.name}"))


def simulate(
    seed: int,
    mix: str = "takeover",
    *,
    parts: Parts = SHIPPED,
    dropped: frozenset[int] = frozenset(),
    judging: bool = True,
    settings: Settings | None = None,
) -> RunOutcome:
    """Run one seed of one mix.

    Args:
        seed: any number.
        mix: a key of `MIXES`.
        parts: what programs are made of.
        dropped: faults to leave out, by their index in the list.
        judging: judge the history; else only failures outside the history are reported.
        settings: other than the seed's own.
    """
    settings = settings or settings_of(seed, MIXES[mix])
    with applied(parts.patches), undisturbed():
        world = World(seed, settings, parts, dropped)
        try:
            _run(world)
        finally:
            world.bury()
    violations = list(world.problems)
    if judging:
        violations += [str(violation) for violation in judge(world.history.events).violations]
    return RunOutcome(
        seed,
        mix,
        violations,
        world.seen,
        world.timeline.events,
        world.timeline.now_ns - SECOND,
        f"{world.network.digest:08x}-{world.network.delivered}-{world.timeline.events}-"
        f"{world.network.chance.getrandbits(32):08x}",
        settings.faults,
        settings,
        dropped,
        world.history.events,
        world.lines,
    )


@contextmanager
def undisturbed() -> Iterator[None]:
    """No collector at moments of its own, no log on stderr."""
    collecting = gc.isenabled()
    gc.disable()
    logger = logging.getLogger("quire")
    before = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    hooks = sys.get_asyncgen_hooks()
    # A generator that a dead process has left runs no more of its code when its memory is freed.
    sys.set_asyncgen_hooks(firstiter=None, finalizer=_let_be)
    try:
        yield
    finally:
        sys.set_asyncgen_hooks(*hooks)
        logger.setLevel(before)
        if collecting:
            gc.enable()


def _let_be(generator: object) -> None:
    """Nothing."""


def _run(world: World) -> None:
    timeline = world.timeline
    world.start_bookies()
    bookies = list(world.bookies.values())
    timeline.run(lambda: all(one.up for one in bookies), until_ns=10 * SECOND, events_max=EVENTS_MAX)
    workload = Workload(world)
    workload.start()
    began = timeline.now_ns
    timeline.run(workload.over, until_ns=began + WORKLOAD_NS, events_max=EVENTS_MAX)
    world.begin(Phase.TAKEOVER)
    world.heal_all()
    last = world.client("last")
    end = _End(world, workload, last)
    task = last.loop.spawn(end.settle(), "the last reads")
    # All faults are over, and bookies whose disk failed were started again: the last reads may not fail.
    if not timeline.run(task.done, until_ns=timeline.now_ns + SETTLE_NS, events_max=EVENTS_MAX):
        world.problems.append("the last reads do not end although everything is healed")
    elif task.exception() is not None:
        world.problems.append(f"the last reads failed: {task.exception()!r}")
    end.scan()


class _End:
    """After everything is healed: recover, read and scan whatever there is."""

    def __init__(self, world: World, workload: Workload, process: SimClient) -> None:
        self.world = world
        self.workload = workload
        self._undecided: set[int] = set()
        self.process = process
        self.damaged = any(fault.kind.value == "rot" for fault in world.settings.faults)

    async def settle(self) -> None:
        """The last reads."""
        world = self.world
        while not all(one.up or one.refused or one.lost for one in world.bookies.values()):
            await asyncio.sleep(0.05)
        for one in world.bookies.values():
            if one.refused:
                world.saw("a bookie refuses to start")
        client = await self.workload._client(self.process)  # noqa: SLF001 - the same user, a last time
        ledgers = [box.ledger_id for box in self.workload.boxes if box.ledger_id >= 0]
        if world.settings.mix.workload in {"log", "cancelled"}:
            await self._read_log()
        if world.settings.mix.workload == "marks":
            await self.workload.marks.check(client)
            for each in self.workload.repairs.daemons:
                if each.worker.queue.counts.repaired:
                    world.saw("auto-recovery repairs a ledger")
        if world.settings.mix.workload in {"log", "cancelled", "repair", "autorecovery"}:
            ledgers = await self._ledgers(client)
        for ledger_id in ledgers:
            await self._settle_ledger(ledger_id)
        if world.settings.mix.workload in {"streams", "marks"}:
            await self._settle_stream(client)
        if world.settings.mix.guarantee and not self._undecided:
            world.history.note(self.process.name, "quiescent", guaranteed=True)
        if FaultKind.SILENCE in world.settings.mix.weights:
            await self._reach_all()
        if world.settings.mix.workload == "repair":
            await self._repair_all(partial(self.workload.repairs.run, self.process.name, client))
        if world.settings.mix.workload == "autorecovery" and len(world.bookies) > world.settings.shape[1]:
            daemon = self.workload.repairs.start(self.process.name, client)
            await self._repair_all(partial(self.workload.repairs.left, daemon, client), DAEMON_TRIES)
            for _ in range(TRIES):
                with contextlib.suppress(MetadataUnknownError):
                    await self.workload.repairs.check_marks(daemon, client)
                    break

    async def _ledgers(self, client: QuireClient) -> list[int]:
        """All ledgers there are, those too whose creator died before it knew; the store's response may be late even now, and the caller asks again."""
        for _ in range(TRIES - 1):
            with contextlib.suppress(MetadataUnknownError):
                return [int(ledger_id) async for ledger_id in client.ledgers()]
        return [int(ledger_id) async for ledger_id in client.ledgers()]

    async def _reach_all(self) -> None:
        """Every client that lived through the run gets a response of every bookie, over the connections that it has."""
        up = [one.server.bookie_id for one in self.world.bookies.values() if one.up and one.server]
        for process in self.world.clients.values():
            if process.client is None or not process.loop.alive:
                continue
            asked = [process.loop.spawn(_reach(process.client, bookie), "reach a bookie") for bookie in up]
            while not all(task.done() for task in asked):
                await asyncio.sleep(0.05)
            for bookie, task in zip(up, asked, strict=True):
                if not task.result():
                    self._stuck(f"{process.name} cannot reach {bookie} although everything is healed")

    async def _settle_ledger(self, ledger_id: int) -> None:
        world, client = self.world, self.process.client
        assert client is not None
        for attempt in range(TRIES):
            try:
                await client.ledger_metadata(ledger_id)
            except QuireError as error:
                if error.code == "no_such_ledger":
                    return
            if await self.workload.recover(self.process.name, client, ledger_id):
                break
            if attempt == TRIES - 1:
                if await self._is_undecidable(ledger_id):
                    self._undecided.add(ledger_id)
                else:
                    self._stuck(f"ledger {ledger_id} cannot be recovered although everything is healed")
                return
            await asyncio.sleep(0.3)
        for attempt in range(TRIES):
            if await self.workload.read_all(self.process.name, client, ledger_id):
                return
            if attempt < TRIES - 1:
                await asyncio.sleep(0.3)
        if any(not one.up and not one.lost for one in world.bookies.values()):
            return
        if not await self._is_there(ledger_id):
            return  # an owner that stood still went on, and deleted it
        self._stuck(f"ledger {ledger_id} cannot be read although everything is healed")

    async def _settle_stream(self, client: QuireClient) -> None:
        streams = self.workload.streams
        wrong = await streams.settle(self.process.name, client)
        record = self.world.record(streams.stream_id)
        if wrong and record is not None and self._too_few_know(record):
            self.world.saw("a loss keeps a stream from being taken over")
        elif wrong:
            self._stuck(wrong)
        elif record is not None and len(self.world.bookies) > record.ensemble_size:
            await self._repair_all(partial(self.workload.repairs.run, self.process.name, client))

    async def _is_undecidable(self, ledger_id: int) -> bool:
        """Whether too few bookies can say what became of an open ledger's end: others are in limbo, or lost.

        With Qa = 1 one in limbo is enough: it may have been the only one that acknowledged an entry.
        """
        assert self.process.client is not None
        return self._too_few_know(await self.process.client.ledger_metadata(ledger_id))

    def _too_few_know(self, record: LedgerMetadata) -> bool:
        """Whether too few bookies of the last fragment can say that they do not have an entry: others are in limbo."""
        servers = {
            one.server.bookie_id: one.server
            for one in self.world.bookies.values()
            if one.server is not None and not one.lost
        }
        last, needed = record.last_fragment.ensemble, record.write_quorum - record.ack_quorum + 1
        ledger_id = int(record.ledger_id)
        knows = [
            bookie in servers and ledger_id not in servers[bookie].storage.states.limbo for bookie in last
        ]
        return any(
            sum(knows[slot] for slot in write_set(first, len(last), record.write_quorum)) < needed
            for first in range(len(last))
        )

    async def _repair_all(self, repair: Callable[[], Awaitable[str]], tries: int = TRIES) -> None:
        """A last repair: then no closed ledger names a bookie that is lost.

        Args:
            repair: repairs, or waits for those who do; returns the ledgers that lack something still.
            tries: how often.
        """
        world = self.world
        left = "nothing was looked at"
        for _ in range(tries):
            with contextlib.suppress(QuireError):
                left = await repair()
            if not set(left.split()) - set(map(str, self._undecided)):
                break
            await asyncio.sleep(0.3)
        else:
            self._stuck(f"ledgers {left} lack copies although everything is healed")
            return
        # Auto-recovery fills only what is marked: what bookies lack that were away may stay missing.
        if tries == TRIES:
            world.history.note(self.process.name, "quiescent", guaranteed=True)
        lost = {one.server.bookie_id for one in world.bookies.values() if one.lost and one.server is not None}
        for ledger_id in (*(box.ledger_id for box in self.workload.boxes), self.workload.streams.stream_id):
            record = world.record(ledger_id)
            names_lost = record and any(lost & {*fragment.ensemble} for fragment in record.fragments)
            if names_lost and ledger_id not in self._undecided and await self._is_there(ledger_id):
                world.broken(f"F5: ledger {ledger_id} names a bookie that is lost, after the last repair")

    async def _is_there(self, ledger_id: int) -> bool:
        assert self.process.client is not None
        for _ in range(TRIES):
            try:
                await self.process.client.ledger_metadata(ledger_id)
            except QuireError as error:
                if error.code == "no_such_ledger":
                    return False
            else:
                return True
        return True

    def _stuck(self, what: str) -> None:
        if self.damaged or any(one.refused for one in self.world.bookies.values()):
            self.world.saw("damage keeps a ledger from being decided")
            return
        self.world.problems.append(what)

    async def _read_log(self) -> None:
        client = self.process.client
        assert client is not None
        log = client.log(LOG_NAME, b"s", LOG_CONFIG)
        waits = self.world.settings.mix.workload == "cancelled"
        for attempt in range(TRIES):
            try:
                # A candidate that stays registered without leading would let this wait for ever.
                async with asyncio.timeout(LEAD_SECONDS if waits else None):
                    writer = await log.open_writer(wait_for_leadership=waits)
                await writer.close()
                await self.workload.read_log(self.process.name, log, (await log.describe()).start_offset)
            except TimeoutError:
                self._stuck(
                    f"after {LEAD_SECONDS} s no writer may lead the log although everything is healed"
                )
                return
            except QuireError as error:
                if error.code == "no_such_log":
                    return
                if attempt == TRIES - 1:
                    self._stuck(f"the log cannot be opened although everything is healed: {error!r}")
                # A leader that stood still may have come back, and duels.
                await asyncio.sleep(0.3)
            else:
                return

    # --- replicas --------------------------------------------------------------------------------------------------

    def scan(self) -> None:
        """What every bookie holds of every ledger at the end, out of its own storage."""
        for box in self.workload.boxes:
            if box.ledger_id >= 0:
                for bookie in self.world.bookies.values():
                    self._scan(bookie, box.ledger_id)
        if (record := self.world.record(self.workload.streams.stream_id)) is not None:
            for bookie in self.world.bookies.values():
                self._scan_stream(bookie, record)

    def _scan_stream(self, bookie: SimBookie, record: LedgerMetadata) -> None:
        """What a bookie holds of the entries that the stream's ranges name."""
        server = bookie.server
        if not bookie.up or server is None or server.storage.failure is not None:
            return
        if record.only_fences and (wrong := held_by_id(server, record, str(server.bookie_id))):
            self.world.broken(wrong)
        for entry_id, payload in entries_of(server, record):
            self.world.history.note(
                bookie.name, "replica", bookie=str(server.bookie_id), ledger=int(record.ledger_id),
                first=entry_id, hashes=entry_hashes([payload]),
            )  # fmt: skip
        self.world.history.note(
            bookie.name, "scanned", bookie=str(server.bookie_id), ledger=int(record.ledger_id)
        )

    def _scan(self, bookie: SimBookie, ledger_id: int) -> None:
        record = self.world.record(ledger_id)
        server = bookie.server
        if FaultKind.FEW_DESCRIPTORS in self.world.settings.mix.weights:
            self._check_intact(bookie)
        if not bookie.up or server is None or record is None or server.storage.failure is not None:
            return
        facts = server.storage.facts(ledger_id)
        if facts is not None and record.state is LedgerState.CLOSED and facts.lac > record.last_entry:
            self.world.broken(
                f"I10: {bookie.name} takes entry {facts.lac} of ledger {ledger_id} for confirmed, which ends at "
                f"{record.last_entry}"
            )
        digest = EntryDigest(record.digest_type, record.password)
        bookie_id, history = str(server.bookie_id), self.world.history
        for first, last in self._intervals(server, ledger_id):
            at = first
            while at <= last:
                held = server.storage.read(ledger_id, at, last, READ_BYTES)
                found = {
                    entry_id: bytes(digest.open(entry, ledger_id, entry_id).payload)
                    for body in held.runs
                    for entry_id, entry in RunView.parse(body).entries()
                    if at <= entry_id <= last
                }
                for entry_id, payload in sorted(found.items()):
                    history.note(
                        bookie.name, "replica", bookie=bookie_id, ledger=ledger_id, first=entry_id,
                        hashes=entry_hashes([payload]),
                    )  # fmt: skip
                if not found:
                    break
                at = max(found) + 1
        history.note(bookie.name, "scanned", bookie=bookie_id, ledger=ledger_id)

    def _check_intact(self, bookie: SimBookie) -> None:
        """Where nothing is damaged but descriptors run out, no bookie finds damage, and none stays down."""
        storage = None if bookie.server is None else getattr(bookie.server, "storage", None)
        if not bookie.up:
            self.world.broken(f"{bookie.name} does not start for want of descriptors: {bookie.refused}")
        elif storage is not None and storage.report.damages:
            self.world.broken(f"{bookie.name} takes a shortage for damage: {storage.report.damages[0]}")

    @staticmethod
    def _intervals(server: Any, ledger_id: int) -> list[tuple[int, int]]:
        held = server.storage.held(ledger_id)
        if not held:
            return []
        return [(min(one[0] for one in held), max(one[1] for one in held))]


async def _reach(client: QuireClient, bookie: BookieId) -> bool:
    """Whether a bookie answers in time: a client dials again after a pause, and finds silence after a while."""
    loop = asyncio.get_running_loop()
    until = loop.time() + REACHED_SECONDS
    while loop.time() < until:
        answer, _ = await client.bookies.info(bookie, timeout_ms=REACH_MS)
        if answer is Answer.OK:
            return True
        await asyncio.sleep(0.1)
    return False

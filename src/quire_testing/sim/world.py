"""One simulated world: machines, a network, a store, the faults of this run, and the clients' history.

Source: docs/simulation.md, "The world".
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from quire.client.machines import SHIPPED as SHIPPED_MACHINES
from quire.client.machines import Machines, MakeWriter
from quire.core.bookie.ledger import Fence
from quire.core.errors import CorruptMetadataError
from quire.core.ids import NO_ENTRY, BookieId
from quire.core.ledger.metadata import LedgerMetadata, LedgerState
from quire.core.ledger.rules import RULES
from quire.core.ledger.stripes import bookie_stripes, not_held
from quire.env.descriptors import is_shortage
from quire.metadata.keys import LEDGERS, REPAIRS, STREAMS
from quire.metadata.memory import MemorySpace
from quire.wire import ledger_metadata
from quire.wire.stream_metadata import decode_stream
from quire_testing.explorer.parts import repaired_only
from quire_testing.history import History
from quire_testing.sim.faults import Fault, FaultKind, Phase
from quire_testing.sim.loop import Timeline
from quire_testing.sim.mixes import Settings
from quire_testing.sim.network import Network
from quire_testing.sim.programs import (
    SHIPPED,
    SIM_CLIENT,
    Parts,
    SimBookie,
    SimClient,
    Surroundings,
    impatient,
)
from quire_testing.sim.stream_records import illegal_stream_change, lacks_ack_quorum, note_stream
from quire_testing.sim.watching import WatchedRecovery, WatchedWriter, illegal_change

INSTANCE = "3f2c5a10-0000-4000-8000-00000000517a"
STORE = "the store"


class NotedSpace(MemorySpace):
    """The metadata store, which reports every version of the record of a ledger or stream.

    Attributes:
        on_unmarked: is called with each ledger whose marks are removed.
    """

    def __init__(self, on_record: Callable[[LedgerMetadata, int], None]) -> None:
        super().__init__(INSTANCE)
        self._on_record = on_record
        self.on_unmarked: Callable[[int], None] = lambda _: None

    def _take(self, staged: dict[str, Any]) -> None:
        super()._take(staged)
        for key, row in staged.items():
            if row is None and key.startswith(REPAIRS):
                self.on_unmarked(int(key.removeprefix(REPAIRS)))
            if row is None or not key.startswith((LEDGERS, STREAMS)):
                continue
            parse = decode_stream if key.startswith(STREAMS) else ledger_metadata.parse
            try:
                record = parse(row.value, int(key.rpartition("/")[2]))
            except CorruptMetadataError:
                continue
            self._on_record(record, row.version)


class World:
    """Everything that one seed makes.

    Args:
        seed: the run's.
        settings: as drawn from it.
        parts: what programs are made of.
        dropped: indices of faults that are left out.

    Attributes:
        seen: situations that occurred, with how often.
        healed: no fault strikes any more.
        lines: (ns, who, what) for the transcript.
        problems: what no invariant of histories is about: a callback that raised, a recovery that never ends.
    """

    def __init__(
        self, seed: int, settings: Settings, parts: Parts = SHIPPED, dropped: frozenset[int] = frozenset()
    ) -> None:
        self.seed = seed
        self.settings = settings
        self.timeline = Timeline()
        self.history = History(lambda: self.timeline.now_ns, clock="simulated")
        self.seen: dict[str, int] = {}
        self.lines: list[tuple[int, str, str]] = []
        self.problems: list[str] = []
        self.dropped = dropped
        self.healed = False
        self.phases: list[Phase] = []
        self.network = Network(self.timeline, self.chance("network"), settings.network)
        self.network.levels = settings.link_levels
        self.space = NotedSpace(self._metadata)
        self.around = Surroundings(
            self.timeline,
            self.network,
            self.space,
            self.chance,
            settings.store,
            settings.disk,
            replace(parts, machines=self._watched(parts.machines)),
            settings.turn_ns,
            note=self.say,
        )
        self.bookies = {name: SimBookie(name, self.around) for name in settings.bookies}
        for name, slow in settings.slow_disks.items():
            self.bookies[name].slow = slow
        self.clients: dict[str, SimClient] = {}
        self._heal: dict[int, Callable[[], object]] = {}
        self._records: dict[int, LedgerMetadata] = {}

    # --- what no client gets --------------------------------------------------------------------------------

    def _writer_of(self, machines: Machines) -> MakeWriter:
        """The writers of these machines; those that ship are watched."""
        if machines.writer is not SHIPPED_MACHINES.writer:
            return machines.writer
        return lambda record, version, limits, last=NO_ENTRY, length=0: WatchedWriter(
            record, version, self.around.parts.rules, limits, self, last, length
        )

    def _watched(self, machines: Machines) -> Machines:
        return replace(machines, writer=self._writer_of(machines), recovery=self._recovery)

    def _recovery(self, record: LedgerMetadata, version: int) -> WatchedRecovery:
        return WatchedRecovery(record, version, self.around.parts.rules, self)

    def broken(self, what: str) -> None:
        """An invariant that no client sees is broken."""
        self.say("-", what)
        if what not in self.problems:
            self.problems.append(what)

    def fence_covered(self, record: LedgerMetadata, ensemble: Sequence[BookieId]) -> None:
        """I7: the bookies that are durably fenced now must cover; unknown while one of them is down."""
        known = 0
        for slot, bookie_id in enumerate(ensemble):
            bookie = self.bookies[bookie_id.partition(".")[0]]
            if not bookie.up or bookie.server is None:
                return
            machine = bookie.server.ledgers._known(record.ledger_id)  # noqa: SLF001 - looks, changes nothing
            if machine is not None and machine.facts.fenced and machine.fence is Fence.DURABLE:
                known |= 1 << slot
        if not RULES.covers(known, record.ensemble_size, record.write_quorum, record.ack_quorum):
            self.broken(
                f"I7: ledger {record.ledger_id} is read by a recovery, and only {known.bit_count()} of "
                f"{record.ensemble_size} bookies are durably fenced"
            )

    def chance(self, name: str) -> random.Random:
        """A generator of its own for everybody who draws."""
        return random.Random(f"{self.seed}/{name}")

    def say(self, who: str, what: str) -> None:
        """A line of the transcript."""
        self.lines.append((self.timeline.now_ns, who, what))

    def saw(self, situation: str) -> None:
        """Something that must be seen now and then."""
        self.seen[situation] = self.seen.get(situation, 0) + 1

    # --- programs --------------------------------------------------------------------------------------------------

    def start_bookies(self) -> None:
        """All of them."""
        for bookie in self.bookies.values():
            bookie.start()

    def client(self, name: str) -> SimClient:
        """A new client process."""
        config = impatient(SIM_CLIENT, self.settings.impatience.get(name, 1.0))
        client = self.clients[name] = SimClient(name, self.around, config)
        return client

    def _metadata(self, record: LedgerMetadata, version: int) -> None:
        before = self._records.get(record.ledger_id)
        self._records[record.ledger_id] = record
        facts: dict[str, Any] = {} if record.state is not LedgerState.CLOSED else {"last": record.last_entry}
        if record.terms is not None:
            facts["term"] = int(record.term)
        fragments = [[int(one.first_entry), list(one.ensemble)] for one in record.fragments]
        self.history.note(
            STORE,
            "metadata",
            ledger=int(record.ledger_id),
            version=version,
            state=record.state.name.lower(),
            ensemble_size=record.ensemble_size,
            write_quorum=record.write_quorum,
            ack_quorum=record.ack_quorum,
            fragments=fragments,
            **facts,
        )
        if record.terms is not None:
            self._stream_changed(before, record)
        elif before is not None:
            if wrong := illegal_change(before, record):
                self.broken(wrong)
            if len(record.fragments) > len(before.fragments):
                self.saw("an ensemble change appends a fragment")
            elif record.fragments != before.fragments and repaired_only(
                before, replace(record, custom=before.custom)
            ):
                self.saw("a repair replaces a bookie")
                self._check_replaced(before, record)
            elif record.fragments != before.fragments:
                self.saw("an ensemble change replaces a fragment")
            if record.state is LedgerState.CLOSED and before.state is LedgerState.IN_RECOVERY:
                self.saw("a recoverer closes")
            elif record.state is LedgerState.CLOSED and before.state is LedgerState.OPEN:
                self.saw("a writer closes")

    def _stream_changed(self, before: LedgerMetadata | None, record: LedgerMetadata) -> None:
        """A take-over begins or is done, or a writer changes the ensemble."""
        note_stream(self.history, before, record)
        if before is None:
            return
        if wrong := illegal_stream_change(before, record):
            self.broken(wrong)
        if record.term > before.term:
            self.saw("a take-over begins")
        if len(record.ranges) > len(before.ranges):
            self.saw("a take-over is done")
            first = int(before.ranges[-1].first_entry)
            if lacking := lacks_ack_quorum(record, self.bookies, first):
                self.broken(lacking)
        if record.fragments == before.fragments:
            return
        if repaired_only(before, replace(record, custom=before.custom)):
            self.saw("a repair replaces a bookie of a stream")
            self._check_replaced(before, record)
        else:
            self.saw("the ensemble of a stream changes")

    def _check_replaced(self, before: LedgerMetadata, record: LedgerMetadata) -> None:
        """RR2: a bookie that a repair puts into the record holds its entries of that fragment; unknown while it is down."""
        known = {*bookie_stripes(before)}
        for part in bookie_stripes(record):
            bookie = self.bookies[part.bookie.partition(".")[0]]
            if part in known or not bookie.up or bookie.server is None:
                continue
            held = list(bookie.server.storage.held_from(record.ledger_id, 0))
            if lacking := not_held(part, held):
                self.broken(
                    f"RR2: ledger {record.ledger_id} names {bookie.name}, which lacks entry {lacking[0]}"
                )

    def record(self, ledger_id: int) -> LedgerMetadata | None:
        """The newest record of a ledger or stream."""
        return self._records.get(ledger_id)

    # --- faults ----------------------------------------------------------------------------------------------------

    def begin(self, phase: Phase) -> None:
        """A phase begins: its faults are planned. Once."""
        if phase in self.phases:
            return
        self.phases.append(phase)
        self.say("-", f"{phase} begins")
        for number, fault in enumerate(self.settings.faults):
            if fault.phase is phase and number not in self.dropped:
                self.timeline.after(fault.after_ns, self._strike, number, fault)

    def _strike(self, number: int, fault: Fault) -> None:
        if self.healed:
            return
        heal = self._apply(fault)
        if heal is not None:
            self._heal[number] = heal
            if fault.lasts_ns:
                self.timeline.after(fault.lasts_ns, self._healed, number)

    def _healed(self, number: int) -> None:
        heal = self._heal.pop(number, None)
        if heal is not None:
            heal()

    def heal_all(self) -> None:
        """Everything that lasts is over: links, disks, processes."""
        self.say("-", "everything heals")
        self.healed = True
        for number in list(self._heal):
            self._healed(number)
        self.network.heal_all()
        for bookie in self.bookies.values():
            bookie.slow = 1.0
            if bookie.loop.paused:
                bookie.resume()
            bookie.disk.fail_at = bookie.disk.stop_at = bookie.disk.space = bookie.disk.descriptors = None
            storage = getattr(bookie.server, "storage", None)
            if bookie.alive and storage is not None and storage.failure is not None:
                if is_shortage(storage.failure.__cause__):
                    self.broken(f"{bookie.name} took a shortage of descriptors for a broken disk")
                self.saw("a disk failed")
                bookie.kill()
            if bookie.lives:
                self._start(bookie)

    def _start(self, bookie: SimBookie) -> None:
        if not bookie.alive and not bookie.lost:
            self.saw("a bookie starts again")
            bookie.start()

    def _apply(self, fault: Fault) -> Callable[[], object] | None:
        """Carry a fault out; what heals it."""
        self.saw(f"fault: {fault.kind}")
        bookie = self.bookies.get(fault.who)
        client = self.clients.get(fault.who)
        kind = fault.kind
        if kind in {FaultKind.KILL, FaultKind.POWER}:
            assert bookie is not None
            bookie.kill(power=kind is FaultKind.POWER)
            return partial(self._start, bookie)
        if kind is FaultKind.LOST:
            assert bookie is not None
            bookie.lost = True
            bookie.kill()
            return None
        if kind is FaultKind.DIES_WRITING:
            assert bookie is not None
            bookie.disk.stop_at = bookie.disk.steps + fault.amount
            return partial(self._start, bookie)
        if kind is FaultKind.KILL_CLIENT:
            if client is not None and client.loop.alive:
                client.kill()
            return None
        if kind is FaultKind.PAUSE:
            return self._pause(fault)
        if kind is FaultKind.CLOCK_JUMP:
            owner = bookie or client
            if owner is not None:
                owner.clock.jump_ms += fault.amount
            return None
        if kind in {FaultKind.STORE_CUT, FaultKind.SESSION_LOST}:
            return self._from_store(fault)
        if kind in {
            FaultKind.BREAK,
            FaultKind.CUT,
            FaultKind.SLOW_LINK,
            FaultKind.ISOLATE,
            FaultKind.SILENCE,
        }:
            return self._on_network(fault)
        assert bookie is not None
        return self._on_disk(fault, bookie)

    def _pause(self, fault: Fault) -> Callable[[], object] | None:
        process = self.bookies.get(fault.who) or self.clients.get(fault.who)
        if process is None or not process.loop.alive or process.loop.paused:
            return None
        loop = process.loop
        loop.pause()
        self.say(fault.who, "stands still")
        return partial(self._resume, fault.who, loop)

    def _resume(self, who: str, loop: Any) -> None:
        if loop.alive:
            self.say(who, "goes on")
            loop.resume()

    def _from_store(self, fault: Fault) -> Callable[[], object] | None:
        process = self.bookies.get(fault.who) or self.clients.get(fault.who)
        store = None if process is None else process.store
        if store is None:
            return None
        if fault.kind is FaultKind.SESSION_LOST:
            self.say(fault.who, "loses its session")
            store.lose_session()
            return None
        store.cut = True
        self.say(fault.who, "cannot reach the metadata store")
        return partial(setattr, store, "cut", False)

    def _on_network(self, fault: Fault) -> Callable[[], object] | None:
        network, who, other = self.network, fault.who, fault.other
        if fault.kind is FaultKind.BREAK:
            broken = network.break_connections(who, other)
            self.say("network", f"{broken} connections between {who} and {other} break")
            return None
        if fault.kind is FaultKind.SILENCE:
            silent = network.silence(who, other)
            self.say("network", f"{silent} connections between {who} and {other} become silent")
            return None
        if fault.kind is FaultKind.CUT:
            self.say("network", f"nothing gets from {who} to {other}")
            network.cut(who, other)
            return partial(network.cut, who, other, cut=False)
        if fault.kind is FaultKind.ISOLATE:
            self.say("network", f"{who} is cut off from all")
            others = [name for name in (*self.bookies, *self.clients) if name != who]
            for name in others:
                network.cut(who, name)
                network.cut(name, who)
            return partial(self._rejoin, who, others)
        link = network.link(who, other)
        before, link.slow = link.slow, link.slow * fault.amount
        self.say("network", f"{who} to {other} becomes slower by {fault.amount}")
        return partial(setattr, link, "slow", before)

    def _rejoin(self, who: str, others: list[str]) -> None:
        for name in others:
            self.network.cut(who, name, cut=False)
            self.network.cut(name, who, cut=False)

    def _on_disk(self, fault: Fault, bookie: SimBookie) -> Callable[[], object] | None:
        disk = bookie.disk
        if fault.kind is FaultKind.ROT:
            self.say(bookie.name, f"rots: {disk.rot() or 'nothing to rot'}")
            return None
        if fault.kind is FaultKind.SLOW_DISK:
            self.say(bookie.name, f"disk becomes slower by {fault.amount}")
            bookie.slow *= fault.amount
            return partial(setattr, bookie, "slow", 1.0)
        if fault.kind is FaultKind.DISK_FULL:
            self.say(bookie.name, "disk is full")
            disk.space = 0
            return partial(setattr, disk, "space", None)
        if fault.kind is FaultKind.FEW_DESCRIPTORS:
            self.say(bookie.name, f"may open {fault.amount} more files")
            disk.descriptors = disk.open_files + fault.amount
            return partial(setattr, disk, "descriptors", None)
        self.say(bookie.name, "disk fails")
        disk.fail_at = disk.steps + 1
        return partial(setattr, disk, "fail_at", None)

    # --- the end ---------------------------------------------------------------------------------------------------

    def bury(self) -> None:
        """Close all that is left; it has no effect any more."""
        if any(store.lost for store in self.around.stores):
            self.saw("an answer of the metadata store is lost after the change")
        for loop in self.around.loops:
            loop.bury()
        self.problems += self.timeline.problems

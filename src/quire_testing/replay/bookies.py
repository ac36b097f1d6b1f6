"""A bookie of a replay: connections, ledgers, storage and journal that ship; no port, no registration, a disk by steps.

Its state is shown as the explorer shows a bookie's, so that the explorer's invariants can be asked of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from quire.bookie.config import BookieConfig
from quire.bookie.connections.connection import Connection
from quire.bookie.ledgers.ledgers import Ledgers
from quire.bookie.server import BookieServer
from quire.core.answers import Answer
from quire.core.bookie.ledger import BookieLedgerMachine, Fence, LedgerFacts
from quire.core.bookie.limbo import Limbo
from quire.core.ids import NO_ENTRY, BookieId
from quire.env.interfaces import Clock
from quire.metadata.memory import MemorySpace
from quire.storage.config import StorageConfig
from quire.storage.directory.identity import Identity
from quire.storage.ledger_storage import LedgerStorage
from quire.storage.segments.segment import NO_CALLBACK
from quire.wire.entry import master_key
from quire.wire.native import Flag, Kind, Request
from quire.wire.run import RunView, checksum
from quire_testing.explorer.bookies import KEY, LEDGER, BookieState, Disk
from quire_testing.explorer.snapshot import frozen
from quire_testing.explorer.switches import Rules
from quire_testing.kit.stepped import StepWorker
from quire_testing.replay.disk import BookieFiles
from quire_testing.replay.frames import Said, Sent
from quire_testing.replay.network import ReplayNetwork
from quire_testing.replay.stage import Stage, perform
from quire_testing.replay.store import LookupStore, Question

BY_STEPS = StorageConfig(
    segment_bytes=128 * 1024, group_bytes_max=16 * 1024, inline_bytes_max=0, recent_bytes_max=0
)
"""Nothing is written on the loop, and every durable run is read from its segment."""
DIRECTORY = Path("/bookie")
CLUSTER = "replay"
IDS_MAX = 64


class BookieProgram(BookieServer):
    """A bookie between its start and its end, without a port and a registration."""

    def open(self, name: str, machine: type[BookieLedgerMachine], *, served: bool) -> None:
        """Bring up disk and ledgers; `served`: it has been up before, so that an empty disk has lost something."""
        self.cluster_instance = CLUSTER
        self.bookie_id = BookieId(name)
        self.storage = LedgerStorage.open(
            DIRECTORY,
            self.config.storage,
            Identity(CLUSTER, self.bookie_id),
            files=self._files,
            worker=self._worker,
            clock=self.clock,
            served=served,
            rules=self._rules,
        )
        kind = type("LedgersOf", (Ledgers,), {"machine": machine})
        self.ledgers = kind(self.storage, self._send_answers, self._rules)
        self._look_up_records()
        # The explorer's bookies begin with the ledger's key: it asks for the record after a loss only.
        self.ledgers.unknown_ledgers.first_key_counts = True
        self.lost = self._make_search()
        self.lease.never()
        self.collector = self._make_collector()
        self.alerts = self._make_alerts()

    @property
    def searching(self) -> bool:
        """Whether it has still to look through the records for what it may have lost."""
        return self.lost.unknown

    def clear_unnamed_limbo(self) -> asyncio.Task[None]:
        """What a start does in the background when everything may be lost."""
        return asyncio.get_running_loop().create_task(self.lost.search())


class Bookie:
    """One bookie: its disk outlives it.

    Args:
        number: in its name.
        stage: what it runs on.
        network: where it is reached.
        rules: the protocol's rules (`core/rules.py`).
        clock: time.
        space: the cluster's metadata.
        machine: decides for its ledger.

    Attributes:
        fault: what it did against an invariant.
        waiting: LSNs of the records that the explorer's bookie has waiting for its disk, oldest first.
        lost: its last state, once it is lost for ever.
    """

    def __init__(
        self,
        number: int,
        stage: Stage,
        network: ReplayNetwork,
        rules: Rules,
        clock: Clock,
        space: MemorySpace,
        machine: type[BookieLedgerMachine] = BookieLedgerMachine,
    ) -> None:
        self.name = f"b{number}"
        self._stage = stage
        self._loop = stage.loop_of(self.name)
        self._network = network
        self._rules = rules
        self._clock = clock
        self._space = space
        self._machine_kind = machine
        self.files = BookieFiles()
        self.fault: tuple[str, str] | None = None
        self.waiting: list[int] = []
        self.losses = 0
        self.lost: BookieState | None = None
        self._held_before = 0
        self._damaged = 0
        self._answered_fence = False
        self.start(served=False)

    def start(self, *, served: bool) -> None:
        """Begin to serve with what the disk holds."""
        self._worker = StepWorker()
        self.store = LookupStore(self._space)
        self.server = BookieProgram(
            BookieConfig(directory=DIRECTORY, name=self.name, storage=BY_STEPS),
            self.store,
            clock=self._clock,
            files=self.files,
            worker=self._worker,
            rules=self._rules,
        )
        server = self.server
        perform(self._stage, self._loop, lambda: server.open(self.name, self._machine_kind, served=served))
        self._network.doors[self.name] = (self._loop, lambda: Connection(server))

    # --- steps -------------------------------------------------------------------------------------------------------

    def take(self, feed: Any, sent: Sent, *, at_once: bool) -> None:
        """A request arrives.

        Args:
            feed: hands the bytes to the bookie's end of the connection.
            sent: the request.
            at_once: the disk is done with all of it in the same step.
        """
        self._watched(lambda: feed(sent.frame), normal=sent.request[0] == "add")
        self._end_of_step(at_once=at_once)

    def _watched(self, act: Callable[[], object], *, normal: bool) -> None:
        """Do something; nothing may be stored that must not be, and no LAC may fall."""
        machine = self.machine
        fenced = machine is not None and machine.facts.fenced
        deleted = machine is not None and bool(machine.facts.deleted_until_ms)
        refuses = ((fenced or (self.losses and self._answered_fence)) and normal) or deleted
        lac = machine.facts.lac if machine is not None else NO_ENTRY
        stored = self.server.ledgers.adds
        perform(self._stage, self._loop, act)
        if refuses and self.server.ledgers.adds > stored:
            self.fault = self.fault or ("I9", "a bookie stored a normal add after it was fenced or deleted")
        if self.machine is not None and self.machine.facts.lac < lac:
            self.fault = self.fault or ("I5", "a bookie's LAC fell")

    def note(self, waiting: int) -> None:
        """So many records wait for the explorer's disk by now: which of ours are the new ones."""
        more = waiting - len(self.waiting)
        if more > 0:
            self.waiting += range(self.last_lsn - more + 1, self.last_lsn + 1)

    def said(self, answers: Sequence[Said]) -> None:
        """It answered: a fence that was answered must never fall."""
        for answer in answers:
            request, what, _ = answer.reply
            fencing = request[0] == "fence" or (request[0] == "read" and request[4])
            self._answered_fence = self._answered_fence or (fencing and what is Answer.OK)

    def finish(self) -> None:
        """The disk does all that waits."""
        while self._worker.busy:
            perform(self._stage, self._loop, self._worker.finish)

    def sync(self) -> None:
        """The oldest record that the explorer's bookie has waiting becomes durable, with its group."""
        if not self.waiting:
            return
        lsn = self.waiting.pop(0)
        following = self.waiting[0] if self.waiting else None
        group = self.server.storage.journal._in_flight
        if group is None or (following is not None and following <= group.last_lsn):
            return
        while self.server.storage.journal.durable_lsn < lsn and self._worker.busy:
            perform(self._stage, self._loop, self._worker.step)

    def crash(self, *, wiped: bool, named: bool = False) -> None:
        """It stops, and starts again with what its disk holds.

        Args:
            wiped: that is nothing.
            named: nothing but whose it was, as of a torn group.
        """
        self.waiting = []
        self._network.doors.pop(self.name, None)
        if wiped:
            self.losses += 1
            self._held_before |= self._held()
            self.files.wipe()
        self.start(served=not named)
        if named:
            ledgers = self.server.ledgers
            perform(self._stage, self._loop, lambda: ledgers.put_in_limbo(LedgerFacts(LEDGER), _ignore))
            self.finish()
        machine = self.machine
        if not wiped and self._answered_fence and not (machine is not None and machine.facts.fenced):
            self.fault = self.fault or ("I9", "a bookie that answered a fencing request lost its fence")

    def lose(self) -> None:
        """It goes for ever. What it held is kept for those who judge; it takes nothing that is sent to it from now on."""
        self.waiting = []
        self.lost = self.view()._replace(looking=False, lost=True)

    # --- limbo ----------------------------------------------------------------------------------------------------------

    def look_for_lost(self) -> None:
        """It looks through the records for what it may have lost, to the end."""
        clearing = perform(self._stage, self._loop, self.server.clear_unnamed_limbo)
        while not clearing.done():
            self.finish()

    def ask(self) -> None:
        """The store reads the record that it asked for."""
        question = self._question(landed=False)
        perform(self._stage, self._loop, lambda: self.store.land(question))

    def on_responses(self, *, at_once: bool) -> None:
        """The store's response arrives."""
        question = self._question(landed=True)
        self._watched(lambda: self.store.answer(question), normal=True)
        self._end_of_step(at_once=at_once)

    def _question(self, *, landed: bool) -> Question:
        return next(each for each in self.store.questions if each.heeded is not landed)

    def limbo_lsn(self) -> int:
        """What INFO tells of the ledger's limbo."""
        info = self.server.ledgers.info(LEDGER) or {}
        return int(info.get("doubt_lsn") or 0)

    def copies(self, entry_id: int) -> list[bytes]:
        """The runs of it that hold an entry."""
        return [bytes(body) for body in self.server.storage.read(LEDGER, entry_id, entry_id, 1).runs]

    def fill(self, body: bytes) -> None:
        """A client puts a copy back, and waits until that is durable."""
        run = RunView.parse(body)
        request = _request(Kind.ADD, int(Flag.RECOVERY), body)
        ledgers = self.server.ledgers
        answer = perform(self._stage, self._loop, lambda: ledgers.add(request, run, NO_CALLBACK, None))
        assert answer is Answer.OK, answer
        perform(self._stage, self._loop, ledgers.flush_soon)
        self.finish()

    def clear_limbo(self, lsn: int, *, at_once: bool) -> Answer:
        """A client ends the limbo that it saw."""
        answers: list[Answer] = []
        request = _request(Kind.CLEAR_LIMBO)
        ledgers = self.server.ledgers
        perform(self._stage, self._loop, lambda: ledgers.clear_limbo(request, lsn, answers.append))
        self._end_of_step(at_once=at_once)
        return answers[0] if answers else Answer.OK

    def _end_of_step(self, *, at_once: bool) -> None:
        if at_once:
            self.finish()
        else:  # each request has a group of its own, as if it had filled the one before
            self.server.storage.journal._close_group()

    def rot(self, entry_id: int) -> None:
        """An entry can no longer be read."""
        self._damaged |= 1 << entry_id
        for body in self.server.storage.read(LEDGER, entry_id, entry_id, 1).runs:
            self.files.damage(bytes(body))

    def delete(self) -> None:
        """The ledger is deleted, and its collector has seen that."""
        perform(self._stage, self._loop, lambda: self.server.ledgers.delete(LEDGER, 1))

    # --- what it is ----------------------------------------------------------------------------------------------------

    @property
    def last_lsn(self) -> int:
        """Of the last record put."""
        return self.server.storage.journal.last_lsn

    @property
    def machine(self) -> BookieLedgerMachine | None:
        """The ledger's machine, if the bookie knows it."""
        return self.server.ledgers._known(LEDGER)

    def view(self) -> BookieState:
        """Its state as the explorer's."""
        if self.lost is not None:
            return self.lost
        machine, server = self.machine, self.server
        lost = BookieState(
            fault=self.fault,
            losses=self.losses,
            held_before=self._held_before,
            unnamed=server.ledgers.limbo.nameless,
            looking=server.searching,
            asked=server.ledgers.limbo.has_settled(LEDGER),
        )
        if machine is None:
            return lost
        known = machine.facts
        facts = frozen(
            LedgerFacts(
                LEDGER,
                KEY if known.key == master_key(b"") else known.key,
                fenced=known.fenced,
                limbo=Limbo(self.losses) if known.in_limbo else None,
                lac=known.lac,
                deleted_until_ms=known.deleted_until_ms,
                lafr=known.lafr,
            )
        )
        durable = machine.fence is Fence.DURABLE
        return lost._replace(
            facts=facts,
            fence=machine.fence.name,
            held=self._held(),
            damaged=self._damaged,
            disk=Disk(facts=facts if durable else None),
        )

    def _held(self) -> int:
        bits = 0
        for first, last, period, stripes in self.server.storage.held(LEDGER):
            for entry_id in range(first, min(last, IDS_MAX) + 1):
                bits |= (stripes >> entry_id % period & 1) << entry_id
        return bits

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop that it runs on."""
        return self._loop


def _request(kind: Kind, flags: int = 0, body: bytes = b"") -> Request:
    """A request of a client that fills bookies."""
    return Request(
        kind,
        0,
        flags,
        1,
        0,
        LEDGER,
        0,
        master_key(b""),
        0,
        NO_ENTRY,
        NO_ENTRY,
        checksum(body),
        memoryview(body),
    )


def _ignore(_: object) -> None:
    """No client waits for this."""

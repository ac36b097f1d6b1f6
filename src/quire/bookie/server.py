"""A bookie: its disk, its ledgers, its port and its registration, put together.

It starts in this order. First everything that may refuse it, and nothing is written: lock the directory, take the port,
compare the cookie, wait until the id is not registered, read what the cluster knows of its boots, replay the disk. Then:
write to the directory, listen, show the cookie, register, write this boot to the cluster. Whatever may have been lost is in
limbo before the first request is served; until the last step adds, fences and negative responses wait.

Source: BookKeeper overview, "Bookkeeper elements and concepts"; `docs/protocol/bookie.md`;
`docs/decisions/048-who-is-refused-has-written-nothing.md`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from quire.bookie.about import disk_facts
from quire.bookie.bookie_alerts import BookieAlerts
from quire.bookie.collecting.collector import GarbageCollector
from quire.bookie.collecting.collector_store import CollectorStore
from quire.bookie.collecting.lost_ledgers import LostLedgers
from quire.bookie.collecting.space_report import SpaceReport
from quire.bookie.config import BookieConfig
from quire.bookie.connections.admission import Admission
from quire.bookie.connections.client_connection import ClientConnection
from quire.bookie.connections.closing_log import ClosingLog
from quire.bookie.connections.connection import Connection
from quire.bookie.connections.response_back_pressure import ResponseBackPressure
from quire.bookie.freed_memory import FreedMemory
from quire.bookie.identity.boots import BootRecord
from quire.bookie.identity.cookies import compare_cookie, find_directory
from quire.bookie.identity.lease import IdentityLease
from quire.bookie.identity.port import take_port
from quire.bookie.ledgers.digest_types import DigestTypes
from quire.bookie.ledgers.ledgers import Ledgers
from quire.bookie.ledgers.record_reads import RecordReads
from quire.bookie.ledgers.unknown_ledgers import LateRefusalError
from quire.bookie.low_priority import LowPriorityQueue
from quire.core.answers import Answer
from quire.core.bookie.boot import BootState
from quire.core.bookie.rules import RULES, BookieRules
from quire.core.errors import DiskFullError, QuireError, StorageError
from quire.core.ids import BookieId
from quire.core.ledger.placement import RandomSource
from quire.core.version import VERSION
from quire.env.descriptors import share_out
from quire.env.interfaces import Clock, Files, Worker
from quire.env.real import RealClock, RealFiles, ThreadWorker, descriptors_max
from quire.metadata.bookies import BookieInfo, BookieRegistration, BookieRegistry
from quire.metadata.records import AllRecords
from quire.metadata.store import MetadataStore
from quire.net.receive_memory import ReceiveBudget, Scratch
from quire.net.security.settings import BookieKeys
from quire.storage.directory.identity import Identity
from quire.storage.ledger_storage import LedgerStorage
from quire.wire import bookie_service_info as service
from quire.wire import native_hello
from quire.wire.addresses import address_of
from quire.wire.native_info import InfoQuestion

log = logging.getLogger(__name__)

SWEEP_SECONDS = 1.0
SESSIONS_WAITED = 2
"""A predecessor of the same id that was killed keeps its registration for its session's time-out; a server of the store
that comes back counts it anew."""


class BookieServer:
    """One bookie in this process.

    Args:
        config: where it lives and what it may use.
        store: the cluster's metadata.
        clock, files, worker, chance, process_id, descriptors: the machine, and how much it lets this process open.
        rules: the protocol's rules (`core/rules.py`); only tests pass changed ones.

    Attributes:
        boot: the boot number of its directory, which clients get in the hello.
        lease: whether it still owns its identity.

    Raises:
        MisuseError: a file of `config.security` is not what it should be, or there are too few descriptors.
    """

    def __init__(
        self,
        config: BookieConfig,
        store: MetadataStore,
        *,
        clock: Clock | None = None,
        files: Files | None = None,
        worker: Worker | None = None,
        chance: RandomSource | None = None,
        process_id: int | None = None,
        descriptors: int | None = None,
        rules: BookieRules = RULES,
    ) -> None:
        self.config = config
        self.store = store
        self.clock: Clock = clock or RealClock()
        # The newest runs stay in the memory that they were received into, together with those on their way to the disk.
        self.scratch = Scratch(frames_bytes_max=config.storage.recent_bytes_max + config.pending_bytes_max)
        self.keys = BookieKeys.of(config.security)
        self.receive_budget = ReceiveBudget(config.receive_budget_bytes)
        self.back_pressure = ResponseBackPressure(config.answer_budget_bytes, config.read_bytes_max)
        self._closing_log = ClosingLog(log)
        self.cluster_instance = ""
        self.bookie_id = BookieId("")
        self.boot = 0
        self.reads_paused = False
        self.storage: LedgerStorage
        self.ledgers: Ledgers
        self.collector: GarbageCollector
        self.space: SpaceReport
        self.alerts: BookieAlerts
        self.record_reads: RecordReads
        self.digest_types: DigestTypes
        self._files: Files = files or RealFiles()
        self._worker: Worker = worker or ThreadWorker()
        self._chance: RandomSource = chance or random.SystemRandom()
        self._process_id = os.getpid() if process_id is None else process_id
        self._rules = rules
        self._owner = self._chance.getrandbits(64) or 1
        self._registry = BookieRegistry(store)
        self._registration: BookieRegistration | None = None
        self._identity: Identity | None = None
        self.lease = IdentityLease(self.clock, store.session_timeout_ms, lambda: [*self._connections], rules)
        self._shares = share_out(
            descriptors_max() if descriptors is None else descriptors,
            config.connections_max,
            config.storage.open_files_max,
        )
        self.admission: Admission[ClientConnection] = Admission(self._shares, self.ended)
        self._connections = self.admission.connections
        self._answering: list[ClientConnection] = []
        self._writers: set[ClientConnection] = set()
        self._pending_bytes = 0
        self.low_priority = LowPriorityQueue(self.clock, lambda: self._pending_bytes, self.put)
        self._freed = FreedMemory(self.scratch, self.back_pressure, self.receive_budget)
        self.lost: LostLedgers
        self._server: asyncio.Server | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._address = ("", 0)

    # --- life ----------------------------------------------------------------------------------------------------

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens: (host, port)."""
        return self._address

    @property
    def announced(self) -> tuple[str, int]:
        """The address that clients receive: (host, port)."""
        host, port = self.config.advertise or self._address
        return host, port or self._address[1]

    async def start(self) -> None:
        """Bring the bookie up; when this returns it is registered and serves.

        Raises:
            DirectoryInUseError, WrongDirectoryError, DamagedSegmentError: the directory cannot be used.
            MisuseError: the port is taken.
            NoClusterError: the metadata store cannot be reached.
        """
        self.cluster_instance = self.store.instance_id
        self._identity = await find_directory(
            self.config, self._registry, self.cluster_instance, self._files, self._chance
        )
        self.bookie_id = self._identity.bookie_id
        try:
            self._server = await take_port(self.config, lambda: Connection(self), self._shares.queue)
            self._address = (self.config.host, self._server.sockets[0].getsockname()[1])
            served = await compare_cookie(self.config, self._registry, self._identity)
            await self._registry.await_free(self.bookie_id, wait_ms=self._wait_ms)
            boots = BootRecord(self.store, self.bookie_id)
            if self._identity.lock is None:
                self._identity.take(self._files)  # a directory that was not there has nothing to look at
            self.storage = self._look_at_disk(self._identity, await boots.read(), served=served)
            # Nothing was written so far. From here on nothing refuses the directory any more.
            self._identity.take(self._files)
            self.storage.begin()
            self.boot = self.storage.boots.number
            self.ledgers = Ledgers(self.storage, self._send_answers, self._rules)
            self._look_up_records()
            self.lost = self._make_search()
            self.collector = self._make_collector()
            self.ledgers.unknown_ledgers.store_is_trusted = lambda: self.collector.trusts_store
            self.alerts = self._make_alerts()
            await self.collector.prepare()
            await self._server.start_serving()
            if not served:
                await self._registry.write_cookie(self._identity.bookie_id, self._identity.cookie)
            await self._register()
            await self.lease.begin(boots, self.storage, self._owner, lambda: self._registration)
        except BaseException:
            await self._unregister()
            await self._let_go(clean=False)
            raise
        loop = asyncio.get_running_loop()
        self._tasks = [
            loop.create_task(self._look_after(), name="supervise connections and the disk"),
            loop.create_task(self._keep_announced(), name="register as writable or read-only"),
            loop.create_task(self.collector.run(), name="collect deleted ledgers"),
            loop.create_task(self.lease.run(), name="supervise the bookie's identity"),
        ]
        if self.lost.unknown:
            self._tasks.append(
                loop.create_task(self.lost.search(), name="put ledgers that may be lost in limbo")
            )
        for task in self._tasks:
            self.alerts.watch(task)
        log.info("bookie %s serves on %s", self.bookie_id, address_of(*self._address))
        if self.announced != self._address:
            log.info("bookie %s is announced as %s", self.bookie_id, address_of(*self.announced))
        self.alerts.look()

    def _look_at_disk(self, identity: Identity, stored: BootState | None, *, served: bool) -> LedgerStorage:
        directory = self.config.directory
        storage = LedgerStorage.look(
            directory,
            replace(self.config.storage, open_files_max=self._shares.files),
            identity,
            files=self._files,
            worker=self._worker,
            clock=self.clock,
            served=served,
            stored=stored,
            chance=self._chance,
            rules=self._rules,
        )
        if storage.report.older:
            text = "the directory %s may be older than its bookie's last start: %s; every ledger is in limbo"
            log.warning(text, directory, storage.report.older)
        storage.on_sealed = self.lease.sealed
        return storage

    async def stop(self, *, clean: bool = True) -> None:
        """Take the bookie down: unregister, answer what is on its way, mark the disk as cleanly stopped. Again is allowed.

        Args:
            clean: False leaves the disk as a crash would (for tests).
        """
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with contextlib.suppress(asyncio.CancelledError, Exception):  # a failure was logged then
                await task
        self._tasks = []
        await self._unregister()
        await self._let_go(clean=clean)

    async def _unregister(self) -> None:
        self.lease.close()
        if self._registration is not None:
            with contextlib.suppress(QuireError):
                await self._registration.close()
            self._registration = None

    async def _let_go(self, *, clean: bool) -> None:
        if self._identity is None:
            return
        if self._server is not None:
            self._server.close()
        if hasattr(self, "space"):
            self.space.close()
        if hasattr(self, "ledgers"):
            self.record_reads.close()
            self.ledgers.read_only = True
            self.storage.check_owned()
            if clean and self.storage.failure is None:
                self.ledgers.settle_lacs(every=True)
                self.ledgers.save_lacs()
            await self.storage.drain()
        await self.admission.end_all()
        if self._server is not None:
            await self._server.wait_closed()
            self._server = None
        if hasattr(self, "storage"):
            self.storage.close(clean=clean)
            if clean:
                await self.lease.stopped()
        self._worker.close()
        self._identity.release()
        self._identity = None

    def _make_collector(self) -> GarbageCollector:
        asked = CollectorStore(self.store, self.bookie_id)
        machine: dict[str, Any] = {"clock": self.clock, "files": self._files, "worker": self._worker}
        machine |= {"chance": self._chance, "rules": self._rules}
        made = GarbageCollector(self.config, self.storage, self.ledgers, asked, **machine)
        self.space = SpaceReport(self.config, self.storage, made, self.clock)
        return made

    def _make_search(self) -> LostLedgers:
        return LostLedgers(self.bookie_id, AllRecords(self.store), self.storage, self.ledgers)

    def _make_alerts(self) -> BookieAlerts:
        made = BookieAlerts(self.bookie_id, self.storage, self.collector, self.lease, self.clock)
        made.searching = lambda: self.lost.unknown
        return made

    async def _register(self) -> None:
        host, port = self.announced
        features = native_hello.feature_names(native_hello.OFFERED)
        properties = {
            service.NATIVE_PROPERTY: service.native_property(port, native_hello.VERSION),
            service.FEATURES_PROPERTY: service.features_property(features),
            service.ZONE_PROPERTY: "",
        }
        if offered := self.config.offered_directory:
            properties[service.DIRECTORY_PROPERTY] = offered
        info = BookieInfo(self.bookie_id, host, port, writable=self._writable(), properties=properties)
        self._registration = await self._registry.register(info, wait_ms=self._wait_ms)
        self._registration.notify(self.lease.registration_lost)

    @property
    def _wait_ms(self) -> int:
        return SESSIONS_WAITED * self.store.session_timeout_ms

    def _writable(self) -> bool:
        """Whether it takes new entries; not while it does not know which ledgers it may have lost."""
        usable = self.storage.writable and self.storage.failure is None
        return usable and not self.ledgers.read_only and not self.lost.unknown

    # --- looking after -------------------------------------------------------------------------------------------

    async def _look_after(self) -> None:
        """Once a second: cut off who stalls, look whether the disk has room again."""
        loop = asyncio.get_running_loop()
        while True:
            due_ms, began_ms = self.clock.now_ms() + int(SWEEP_SECONDS * 1000), self.clock.cpu_ms()
            await asyncio.sleep(SWEEP_SECONDS)
            self.alerts.came(self.clock.now_ms() - due_ms, self.clock.cpu_ms() - began_ms)
            self._cut_off_who_stalls(loop.time())
            self._closing_log.sweep()
            self.ledgers.followers.sweep()
            self.ledgers.settle_lacs()
            self.low_priority.keep_times()
            self._writers.clear()
            self._freed.look(self.clock.now_ms(), self._worker)
            self.storage.check_disk()
            self.alerts.look()

    def _cut_off_who_stalls(self, now: float) -> None:
        partial_max = self.config.partial_frame_seconds
        not_read_max = self.back_pressure.stall_seconds_max(partial_max)
        for connection in list(self._connections):
            partial, not_read = connection.partial_since, connection.not_read_since
            if partial is not None and now - partial > partial_max:
                connection.give_up(f"a request was incomplete for {partial_max:g} s")
            elif not_read is not None and now - not_read > not_read_max:
                connection.give_up(f"the client did not read its responses for {not_read_max:g} s")

    async def _keep_announced(self) -> None:
        """Once a second: be registered as what it is, writable or read-only, however long the store takes."""
        assert self._registration is not None
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            writable = self._writable()
            if self._registration.shows(writable):
                continue
            why = "" if writable else "".join(f": {one.what}" for one in self.alerts.reasons())
            log.warning("bookie %s is now %s%s", self.bookie_id, "writable" if writable else "read-only", why)
            try:
                await self._registration.set_writable(writable)
            except QuireError as error:
                log.warning("the bookie's new state could not be registered yet: %s", error)

    def _look_up_records(self) -> None:
        """One read of a ledger's record serves all requests that wait for it."""
        self.record_reads = RecordReads(AllRecords(self.store))
        self.record_reads.listeners.append(partial(self.ledgers.record_read, self.bookie_id))
        self.ledgers.unknown_ledgers.look_up(self.record_reads, bytes_max=self.config.pending_bytes_max // 2)
        self.digest_types = DigestTypes(self.record_reads)

    # --- for connections ---------------------------------------------------------------------------------------------

    def connected(self, connection: ClientConnection) -> bool:
        """A client came; False when there are too many already."""
        return self.admission.admit(connection)

    def disconnected(self, connection: ClientConnection) -> None:
        """A client has disconnected."""
        self.admission.leave(connection)
        self._writers.discard(connection)

    def ended(self, text: str, *args: object) -> None:
        """One line for a connection that is refused, or ends because of what its client did."""
        self._closing_log.say(text, *args)

    def put(self, connection: ClientConnection) -> None:
        """A connection has put entries: one that lately was alone to do so has no other to share a sync with."""
        self._writers.add(connection)
        low_priority = self.low_priority
        others = low_priority.settled_bytes + self._pending_bytes - low_priority.machine.in_flight
        if others > low_priority.put_bytes:
            low_priority.put_bytes, low_priority.put_s = others, asyncio.get_running_loop().time()
            low_priority.puts.append((others, low_priority.put_s))
        if len(self._writers) == 1:
            self.ledgers.flush()
        else:
            self.ledgers.flush_soon()

    def answering(self, connection: ClientConnection) -> None:
        """A connection has responses to send: they leave together, at the latest in the next loop turn."""
        if not self._answering and not self.ledgers.flushing:
            asyncio.get_running_loop().call_soon(self._send_answers)
        self._answering.append(connection)

    def _send_answers(self) -> None:
        answering, self._answering = self._answering, []
        for connection in answering:
            connection.send_answers()

    def admitted(self, size: int) -> None:
        """So many bytes are on their way to the disk; above the limit no connection is read."""
        self._pending_bytes += size
        if not self.reads_paused and self._pending_bytes > self.config.pending_bytes_max:
            self.reads_paused = True
            for connection in list(self._connections):
                connection.pause_reads()

    def settled(self, size: int, *, low_priority: bool = False) -> None:
        """So many bytes are there, or failed."""
        self._pending_bytes -= size
        queue = self.low_priority
        if low_priority:
            queue.machine.settled(size)
        else:
            queue.settled_bytes += size
            while queue.puts and queue.puts[0][0] <= queue.settled_bytes:
                queue.took_s.append(asyncio.get_running_loop().time() - queue.puts.popleft()[1])
        if queue.waiting:
            queue.look_soon()
        if self.reads_paused and self._pending_bytes < self.config.pending_bytes_max // 2:
            self.reads_paused = False
            asyncio.get_running_loop().call_soon(self._release)

    def _release(self) -> None:
        for connection in list(self._connections):
            connection.release()

    def answer_for(self, error: StorageError) -> Answer:
        """The response to an add that could not be stored."""
        if isinstance(error, LateRefusalError):
            return error.answer
        return Answer.READ_ONLY if isinstance(error, DiskFullError) else Answer.ERROR

    def info(self) -> dict[str, Any]:
        """What this bookie says of itself."""
        storage = self.storage
        return {
            "bookie_id": self.bookie_id,
            "cluster_instance": self.cluster_instance,
            "pid": self._process_id,
            "directory": str(self.config.directory),
            "writable": self._writable(),
            "failure": str(storage.failure) if storage.failure else None,
            "connections": len(self._connections),
            "adds": self.ledgers.adds,
            "entries_added": self.ledgers.entries_added,
            "bytes_added": self.ledgers.bytes_added,
            "pending_bytes": self._pending_bytes,
            "add_p99_us": self.low_priority.add_p99_us(),
            "background": self.low_priority.info(),
            "record_reads": self.record_reads.reads,
            "durable_lsn": storage.journal.durable_lsn,
            "storage": storage.statistics(),
            "damages": [str(damage) for damage in storage.damages.kept],
            "limbo": len(storage.states.limbo),
            "collector": self.collector.info(),
            "space": self.space.last,
            "conditions": self.alerts.info(),
            "version": VERSION,
            "uptime_ms": self.alerts.uptime_ms,
            "disk": disk_facts(self.config.directory),
        }

    def answer_info(self, question: InfoQuestion, callback: Callable[[dict[str, Any]], None]) -> None:
        """Hand over what this bookie says of itself, of the ledgers that it keeps without a record, or of its space."""
        if question.space is not None:
            self.space.ask(question.space, callback)
        else:
            after = question.orphans_after
            callback(self.info() if after is None else {"orphans": self.collector.orphans(after)})

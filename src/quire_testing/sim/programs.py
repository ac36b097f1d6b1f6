"""The programs that ship, brought up in a simulated process: a bookie on its machine, a client.

Each is made of the real classes; what it takes from its machine (clock, disk, chance, loop, network, metadata store) is
simulated. Their lives belong here: start, kill, power loss, pause.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from quire.bookie.config import BookieConfig
from quire.bookie.server import BookieServer
from quire.client.bookies.bookies import BookieClient
from quire.client.config import ClientConfig
from quire.client.machines import SHIPPED as SHIPPED_MACHINES
from quire.client.machines import Machines
from quire.core.errors import DescriptorShortageError, OutcomeUnknownError, QuireError
from quire.log.client import QuireClient
from quire.metadata.bookies import BookieRegistry
from quire.metadata.memory import MemorySpace
from quire.metadata.store import Op
from quire.storage.config import KIB, StorageConfig
from quire_testing.explorer.patches import Patch
from quire_testing.explorer.switches import RULES, Rules
from quire_testing.sim.disk import SimDisk, SimWorker
from quire_testing.sim.loop import MS, SECOND, ProcessLoop, Timeline
from quire_testing.sim.network import Network
from quire_testing.sim.store import SimStore, StoreSettings

PORT = 3181
DESCRIPTORS = 10_000
"""Of a bookie, until a fault leaves it fewer."""
RESTART_NS = 200 * MS
WALL_START_MS = 1_700_000_000_000


@dataclass(frozen=True, slots=True)
class Parts:
    """What programs are made of; a mutant has another part.

    Attributes:
        rules: the protocol's rules (`core/rules.py`).
        machines: of clients.
        patches: other source for functions, while it runs.
        blind: a metadata store that does not compare.
    """

    rules: Rules = RULES
    machines: Machines = SHIPPED_MACHINES
    patches: tuple[Patch, ...] = ()
    blind: Callable[[MemorySpace, Sequence[Op]], Sequence[Op]] | None = None


SHIPPED = Parts()


@dataclass(slots=True)
class DiskSettings:
    """How disks are in one run.

    Attributes:
        job_ns: a usual job of the disk thread.
        tail: the exponent of the tail.
        direct: past the page cache.
        inline: little writes are done on the loop, as production does; else each takes its time.
        collect_s: how often a bookie's collector makes a pass.
    """

    job_ns: int = MS // 2
    tail: float = 0.6
    direct: bool = False
    inline: bool = False
    collect_s: float = 3.0


class SimClock:
    """A process's clocks: one that only goes on, and one that people set."""

    __slots__ = ("_timeline", "jump_ms")

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self.jump_ms = 0

    def now_ms(self) -> int:
        """Milliseconds."""
        return self._timeline.now_ns // MS

    def now_ns(self) -> int:
        """Nanoseconds."""
        return self._timeline.now_ns

    def boot_ms(self) -> int:
        """Milliseconds."""
        return self._timeline.now_ns // MS

    def cpu_ms(self) -> int:
        """Milliseconds: a program is never suspended here."""
        return self._timeline.now_ns // MS

    def wall_ms(self) -> int:
        """What the wall clock says."""
        return WALL_START_MS + self._timeline.now_ns // MS + self.jump_ms


@dataclass(slots=True)
class Surroundings:
    """What the programs of one world share.

    Attributes:
        chance_for: a generator of its own for a name; the same name and seed give the same numbers.
        session_ns: how long registrations outlive their owner.
        loops, stores: of every process that ever was.
        note: called with what happens, for the transcript.
    """

    timeline: Timeline
    network: Network
    space: MemorySpace
    chance_for: Callable[[str], random.Random]
    store: StoreSettings
    disk: DiskSettings
    parts: Parts = SHIPPED
    turn_ns: dict[str, int] = field(default_factory=dict)
    session_ns: int = 500 * MS
    loops: list[ProcessLoop] = field(default_factory=list)
    stores: list[SimStore] = field(default_factory=list)
    note: Callable[[str, str], None] = lambda _who, _what: None

    def new_store(self, loop: ProcessLoop, name: str) -> SimStore:
        """A process's way to the metadata store."""
        store = SimStore(self.space, loop, self.chance_for(f"store {name}"), self.store, self.parts.blind)
        self.stores.append(store)
        return store

    def new_loop(self, name: str) -> ProcessLoop:
        """A process."""
        # Readers of descriptors, signals and subprocesses: no program asks for them.
        loop = ProcessLoop(self.timeline, name, self.turn_ns.get(name, 1000))  # type: ignore[abstract]
        loop.network = self.network
        self.loops.append(loop)
        return loop


class SimBookie:
    """A machine with a disk, on which a bookie lives several times.

    Attributes:
        up: it runs and has started.
        refused: why it did not start last time.
        lost: it is lost for ever, and its disk with it.
        lives: how often it was started.
    """

    def __init__(self, name: str, around: Surroundings) -> None:
        self.name = name
        self.disk = SimDisk(around.chance_for(f"disk {name}"), direct=around.disk.direct)
        self.loop = around.new_loop(name)
        self.loop.kill()
        self.slow = 1.0
        self.lives = 0
        self.up = False
        self.refused = ""
        self.lost = False
        self.server: BookieServer | None = None
        self.clock = SimClock(around.timeline)
        self._around = around
        self._worker: SimWorker | None = None
        self.store: SimStore | None = None
        self._disk_chance = around.chance_for(f"disk times {name}")
        inline = StorageConfig().inline_items_max if around.disk.inline else 0
        self._config = BookieConfig(
            directory=Path("/" + name),
            name=name,
            host=name,
            port=PORT,
            storage=StorageConfig(
                segment_bytes=128 * KIB,
                group_bytes_max=16 * KIB,
                recent_bytes_max=8 * KIB,
                inline_items_max=inline,
            ),
            garbage_seconds=around.disk.collect_s,
            long_poll_seconds_max=2.0,
        )

    @property
    def alive(self) -> bool:
        """Whether its process is there."""
        return self.loop.alive

    def _job_ns(self) -> int:
        settings = self._around.disk
        draw = 1.0 - self._disk_chance.random()
        return min(int(settings.job_ns * self.slow * draw**-settings.tail), 5 * SECOND)

    def start(self) -> None:
        """Start the program on what its disk holds."""
        around, self.lives = self._around, self.lives + 1
        loop = self.loop = self.disk.loop = around.new_loop(self.name)
        self.up, self.refused = False, ""
        self.disk.stop_at = None
        self.disk.begin_life()
        loop.on_kill = self._died_by_itself
        self.store = around.new_store(loop, f"{self.name} {self.lives}")
        self._worker = SimWorker(loop, self._job_ns)
        server = self.server = BookieServer(
            self._config,
            self.store,
            clock=self.clock,
            files=self.disk,
            worker=self._worker,
            chance=around.chance_for(f"bookie {self.name} {self.lives}"),
            process_id=self.lives,
            descriptors=DESCRIPTORS,
            rules=around.parts.rules,
        )
        loop.spawn(self._run(server), f"bookie {self.name}")

    async def _run(self, server: BookieServer) -> None:
        try:
            await server.start()
        except QuireError as error:
            self._around.note(self.name, f"does not start: {type(error).__name__}")
            self.kill()
            if isinstance(error, OutcomeUnknownError | DescriptorShortageError):
                # Its supervisor tries again.
                self._around.timeline.after(RESTART_NS, self._start_again)
            else:
                self.refused = error.message
            return
        self.up = True
        self._around.note(self.name, "serves")

    def _start_again(self) -> None:
        if not self.loop.alive and not self.lost:
            self.start()

    def kill(self, *, power: bool = False) -> None:
        """SIGKILL, or the power fails: what was not synced may be lost, and peers are not notified."""
        if not self.loop.alive:
            return
        self.loop.on_kill = None
        assert self._worker is not None
        self.disk.stop_at = self.disk.steps + 1 + self.disk.chance.randrange(4)
        self._worker.die()
        self.loop.kill()
        self._ended(power=power)

    def _died_by_itself(self) -> None:
        self._around.timeline.after(0, lambda: self._ended(power=False))

    def _ended(self, *, power: bool) -> None:
        around = self._around
        self.up = False
        around.network.process_died(self.loop, silent=power)
        if power:
            self.disk.lose_power()
        assert self.store is not None
        around.timeline.after(around.session_ns, self.store.inner.abandon)
        around.note(self.name, "loses power" if power else "is killed")

    def pause(self) -> None:
        """SIGSTOP."""
        self.loop.pause()
        self._around.note(self.name, "stands still")

    def resume(self) -> None:
        """SIGCONT."""
        self.loop.resume()
        self._around.note(self.name, "goes on")


SIM_CLIENT = ClientConfig(
    run_bytes_max=64 * KIB,
    recovery_read_bytes_max=64 * KIB,
    silent_wait_ms=20,
    add_timeout_ms=400,
    slow_after_ms=200,
    quarantine_ms=1000,
    change_retry_ms_min=20,
    change_retry_ms_max=500,
    left_wait_ms_min=200,
    left_wait_ms_max=1000,
    metadata_timeout_ms=2000,
    probe_timeout_ms=200,
    explicit_lac_after_ms=100,
    explicit_lac_timeout_ms=400,
    read_timeout_ms=800,
    speculative_read_ms=50,
    recovery_timeout_ms=600,
    recovery_patience_ms=1500,
    long_poll_wait_ms=300,
    idle_poll_wait_ms=1000,
)
"""As production's, at a faster pace: time-outs are shorter than the longest delays, so that both orders occur.

A run must fit a simulated bookie's segment, which is short."""


class SimClient:
    """A process with a client in it.

    Attributes:
        client: the real client, once it is connected.
    """

    def __init__(self, name: str, around: Surroundings, config: ClientConfig = SIM_CLIENT) -> None:
        self.name = name
        self.loop = around.new_loop(name)
        self.store = around.new_store(self.loop, name)
        self.clock = SimClock(around.timeline)
        self.client: QuireClient | None = None
        self._around = around
        self._config = config

    async def connect(self) -> QuireClient:
        """What `quire.connect` does."""
        bookies = BookieClient(BookieRegistry(self.store), self.store.instance_id)
        await bookies.start()
        client = self.client = QuireClient(
            self.store,
            bookies,
            self.clock,
            self._around.chance_for(f"client {self.name}"),
            self._config,
            self._around.parts.machines,
        )
        return client

    def kill(self) -> None:
        """The process ends."""
        around = self._around
        self.loop.kill()
        around.network.process_died(self.loop, silent=False)
        around.timeline.after(around.session_ns, self.store.inner.abandon)
        around.note(self.name, "is killed")


def impatient(config: ClientConfig, factor: float) -> ClientConfig:
    """The same client with shorter, or longer, time-outs of adds and recovery."""
    return replace(
        config,
        add_timeout_ms=max(1, int(config.add_timeout_ms * factor)),
        recovery_timeout_ms=max(1, int(config.recovery_timeout_ms * factor)),
    )

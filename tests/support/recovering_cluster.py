"""A cluster with auto-recovery on a virtual clock: the programs that ship, in the simulator's world, without its faults.

Minutes pass in milliseconds, and nothing is waited for in vain.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from quire.autorecovery.daemon import AutoRecovery
from quire.client.config import ClientConfig
from quire.core.ids import BookieId
from quire.core.repair.under_replicated_marks import LedgerRepairs
from quire.log.client import QuireClient
from quire.metadata.memory import MemoryStore
from quire.metadata.repairs import RepairStore, Stored
from quire.wire.underreplication import MissingBookies
from quire_testing.sim.loop import SECOND
from quire_testing.sim.mixes import MIXES, Settings
from quire_testing.sim.network import NetworkSettings
from quire_testing.sim.programs import SIM_CLIENT, DiskSettings, SimBookie, SimClient, SimClock
from quire_testing.sim.run import undisturbed
from quire_testing.sim.store import StoreSettings
from quire_testing.sim.world import World

T = TypeVar("T")
EVENTS_MAX = 20_000_000


class RecoveringCluster:
    """Bookies, clients and daemons, each a process of its own.

    Attributes:
        world: the simulated world.
        daemons: what runs auto-recovery, by process.
    """

    def __init__(self, bookies: int, *, lost_delay_s: int | None = None) -> None:
        settings = Settings(
            mix=MIXES["takeover"],
            shape=(bookies, 3, 3, 2),
            entries=1,
            burst=1,
            takeover_at=1,
            second_ns=0,
            closes=True,
            network=NetworkSettings(base_ns=200_000, tail=0.0),
            store=StoreSettings(base_ns=100_000, tail=0.0),
            disk=DiskSettings(job_ns=100_000),
            faults=[],
            digest="crc32c",
            apart=False,
        )
        self.world = World(1, settings)
        self.daemons: dict[str, AutoRecovery] = {}
        self.user = self.process("user")
        self.world.start_bookies()
        self.until(lambda: all(bookie.up for bookie in self.world.bookies.values()), 10)
        self.client: QuireClient = self.run(self.user.connect())
        store = self.world.around.new_store(self.user.loop, "marks")
        self.marks = RepairStore(store, SimClock(self.world.timeline), "a person")
        if lost_delay_s is not None:
            self.run(self.marks.set_lost_delay_s(lost_delay_s))

    # --- processes ------------------------------------------------------------------------------------------------

    def process(self, name: str, config: ClientConfig = SIM_CLIENT) -> SimClient:
        found = self.world.clients[name] = SimClient(name, self.world.around, config)
        return found

    def recover(self, name: str = "daemon", **settings: Any) -> AutoRecovery:
        """Start a process that audits and repairs."""
        process = self.process(name)
        daemon = AutoRecovery(self.run(process.connect(), process), name, **settings)
        self.daemons[name] = daemon
        process.loop.spawn(daemon.run(), name)
        return daemon

    def bookie(self, name: str) -> SimBookie:
        return self.world.bookies[name]

    def id_of(self, name: str) -> BookieId:
        server = self.bookie(name).server
        assert server is not None
        return server.bookie_id

    def new_bookie(self, name: str) -> None:
        bookie = self.world.bookies[name] = SimBookie(name, self.world.around)
        bookie.start()
        self.until(lambda: bookie.up, 10)

    def restart(self, name: str) -> None:
        self.bookie(name).start()
        self.until(lambda: self.bookie(name).up, 30)

    def lose(self, name: str) -> BookieId:
        """A bookie is gone for ever."""
        bookie = self.bookie(name)
        bookie.lost = True
        bookie.kill()
        return self.id_of(name)

    # --- time -----------------------------------------------------------------------------------------------------

    def run(self, work: Coroutine[Any, Any, T], process: SimClient | None = None, seconds: int = 120) -> T:
        """Let a process do something, until it is done."""
        task = (process or self.user).loop.spawn(work)
        self.until(task.done, seconds)
        return task.result()  # type: ignore[no-any-return]

    def until(self, done: Any, seconds: float) -> float:
        """Let time pass until a condition holds; fails if it does not within so many seconds. Returns how long it took."""
        timeline = self.world.timeline
        began = timeline.now_ns
        held = timeline.run(done, until_ns=began + int(seconds * SECOND), events_max=EVENTS_MAX)
        assert held, f"not so after {seconds} s"
        return (timeline.now_ns - began) / SECOND

    def wait(self, seconds: float) -> None:
        """Let so much time pass."""
        timeline = self.world.timeline
        over: list[bool] = []
        timeline.after(int(seconds * SECOND), over.append, True)
        timeline.run(
            lambda: bool(over),
            until_ns=timeline.now_ns + 2 * int(seconds * SECOND) + SECOND,
            events_max=EVENTS_MAX,
        )

    # --- what there is --------------------------------------------------------------------------------------------

    def written(self, count: int = 10, size: int = 100, **shape: Any) -> int:
        """A new, closed ledger."""

        async def write() -> int:
            async with await self.client.create_ledger(**shape) as writer:
                for number in range(count):
                    last = writer.append_nowait(b"%06d" % number + bytes(size - 6))
                    if number % 200 == 199:
                        await last
            return int(writer.ledger_id)

        return self.run(write())

    def named(self, ledger_id: int) -> set[str]:
        """The bookies that the record of a ledger names, by the first part of their ids."""
        record = self.world.record(ledger_id)
        assert record is not None
        return {bookie.partition(".")[0] for fragment in record.fragments for bookie in fragment.ensemble}

    def marked(self) -> dict[int, Stored[MissingBookies] | Stored[LedgerRepairs]]:
        """The marks that stand, of both kinds; asked for on no process's time."""
        store = MemoryStore(self.world.space)
        marks = RepairStore(store, SimClock(self.world.timeline), "")

        async def read() -> dict[int, Any]:
            return {
                int(ledger): mark for ledger, mark in [*await marks.marks_page(), *await marks.missing_page()]
            }

        work = read()
        try:
            work.send(None)
        except StopIteration as ended:
            return ended.value  # type: ignore[no-any-return]
        raise AssertionError("a store in memory is not waited for")

    def all_whole(self, ledgers: Any) -> bool:
        """Whether every copy of these ledgers is there."""
        return all(self.run(self.client.verify_ledger(ledger)).complete for ledger in ledgers)

    def requests_of(self, name: str) -> list[str]:
        """What a process asks of the metadata store from now on: the first key of each request."""
        store, asked = self.world.clients[name].store, list[str]()
        get, page, multi = store.get, store.list, store.multi

        def noted(call: Any) -> Any:
            async def ask(what: Any, *rest: Any, **named: Any) -> Any:
                asked.append(what if isinstance(what, str) else what[0].key)
                return await call(what, *rest, **named)

            return ask

        store.get, store.list, store.multi = noted(get), noted(page), noted(multi)  # type: ignore[method-assign]
        return asked

    @property
    def copied(self) -> int:
        """Bytes that daemons have sent."""
        return sum(daemon.worker.bytes_copied for daemon in self.daemons.values())


@contextmanager
def recovering_cluster(bookies: int = 4, *, lost_delay_s: int | None = None) -> Iterator[RecoveringCluster]:
    """A cluster whose bookies are up; at the end nothing may have gone wrong in any process."""
    with undisturbed():
        cluster = RecoveringCluster(bookies, lost_delay_s=lost_delay_s)
        try:
            yield cluster
        finally:
            cluster.world.bury()
        assert cluster.world.problems == []

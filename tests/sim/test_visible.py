"""On virtual time: an acknowledged entry is visible within 100 ms, and whoever is idle sends next to nothing."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice, pairwise
from typing import Any

import pytest

from quire.bookie.connections.connection import Connection
from quire.client.config import ClientConfig
from quire.metadata.memory import MemorySpace
from quire.wire.native import Kind
from quire_testing.sim.loop import MS, SECOND, Timeline
from quire_testing.sim.network import Network, NetworkSettings
from quire_testing.sim.programs import DiskSettings, SimBookie, SimClient, Surroundings
from quire_testing.sim.store import StoreSettings
from quire_testing.sim.world import INSTANCE

QUIET = NetworkSettings(delay_max_ns=5 * MS)
APPENDS = 1000
WITHIN_MS = 100
LOOK_MS = 20
"""How long a new reader may take to open a ledger, by the network above."""
KIND_AT = 4
"""Where a request's kind is, behind the length of its frame."""


class Cluster:
    """Three bookies, and clients with the settings that ship."""

    def __init__(self, seed: int) -> None:
        self.timeline = Timeline()

        def chance(name: str) -> random.Random:
            return random.Random(f"{seed}/{name}")

        network = Network(self.timeline, chance("network"), QUIET)
        self.around = Surroundings(
            self.timeline, network, MemorySpace(INSTANCE), chance, StoreSettings(tail=0), DiskSettings()
        )
        self.bookies = [SimBookie(f"b{number}", self.around) for number in range(3)]
        for bookie in self.bookies:
            bookie._config = replace(bookie._config, long_poll_seconds_max=60.0)
            bookie.start()

    def now_ms(self) -> float:
        return self.timeline.now_ns / MS

    def client(self, name: str, **settings: Any) -> SimClient:
        return SimClient(name, self.around, ClientConfig(**settings))

    def run(self, process: SimClient, work: Awaitable[Any]) -> Any:
        task = process.loop.spawn(work)  # type: ignore[arg-type]
        done = self.timeline.run(
            task.done, until_ns=self.timeline.now_ns + 600 * SECOND, events_max=10_000_000
        )
        assert done, "it does not end"
        assert not self.timeline.problems, self.timeline.problems
        return task.result()


@contextmanager
def cluster(seed: int = 1) -> Iterator[Cluster]:
    at = Cluster(seed)
    try:
        yield at
    finally:
        for loop in at.around.loops:
            loop.bury()


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, str, Kind]]:
    """(ms, bookie, kind) of each request that reaches a bookie, alone or among short adds that came together."""
    seen: list[tuple[float, str, Kind]] = []

    def note(connection: Connection, count_before: int) -> None:
        now_ms = asyncio.get_running_loop().time() * 1000
        for frame in islice(connection.requests, count_before, None):
            seen.append((now_ms, str(connection._server.bookie_id), Kind(frame[KIND_AT])))

    frame_received, take_short = Connection.frame_received, Connection.take_short

    def received(connection: Connection, frame: memoryview) -> None:
        count_before = len(connection.requests)
        frame_received(connection, frame)
        note(connection, count_before)

    def taken(connection: Connection, data: memoryview, at: int) -> int:
        count_before = len(connection.requests)
        end = take_short(connection, data, at)
        note(connection, count_before)
        return end

    monkeypatch.setattr(Connection, "frame_received", received)
    monkeypatch.setattr(Connection, "take_short", taken)
    return seen


async def connected(process: SimClient) -> Any:
    """Once all bookies are there."""
    client = await process.connect()
    while len(client.bookies.writable()) < 3:
        await asyncio.sleep(0.1)
        await client.bookies.bookies()
    return client


@pytest.mark.parametrize("digest", ["crc32c", "mac"])
def test_a_new_reader_of_another_client_sees_each_append_within_100_ms(digest: str) -> None:
    with cluster() as at:
        writers, readers = at.client("w"), at.client("r")
        chance = random.Random(5)
        seen: list[tuple[int, bool]] = []
        looks: list[asyncio.Task[None]] = []

        at.run(readers, connected(readers))
        reading: Any = readers.client

        async def write() -> int:
            client = await connected(writers)
            ledger = await client.create_ledger(digest=digest)

            async def look(entry_id: int) -> None:
                await asyncio.sleep((WITHIN_MS - LOOK_MS) / 1000)
                before = at.now_ms()
                reader = await reading.open_ledger(ledger.ledger_id, recover=False)
                assert at.now_ms() - before <= LOOK_MS
                seen.append((entry_id, reader.last_add_confirmed >= entry_id))

            async def append() -> None:
                entry_id = await ledger.append(b"x")
                looks.append(readers.loop.spawn(look(int(entry_id))))

            for _ in range(APPENDS // 5):
                # In flight together, one behind the other, and with a pause behind the last.
                await asyncio.gather(append(), append())
                for _ in range(3):
                    await append()
                    await asyncio.sleep(chance.choice((0, 0.001, 0.03, 0.06, 0.2)))
            while not all(task.done() for task in looks):
                await asyncio.sleep(0.01)
            return int(ledger.ledger_id)

        at.run(writers, write())
        assert [task.exception() for task in looks if task.exception()] == []
        assert len(seen) == APPENDS
        assert [entry_id for entry_id, visible in seen if not visible] == []


def test_idle_writers_share_a_frame_a_bookie_and_send_nothing_more(requests: list[Any]) -> None:
    with cluster() as at:
        process = at.client("w")

        async def work() -> None:
            client = await connected(process)
            ledgers = [await client.create_ledger() for _ in range(40)]
            requests.clear()
            await asyncio.gather(*(ledger.append(b"x") for ledger in ledgers))
            await asyncio.sleep(60)

        at.run(process, work())
        kinds = [kind for _, _, kind in requests]
        assert kinds.count(Kind.ADD) == 3 * 40
        assert Kind.WRITE_LAC not in kinds
        assert kinds.count(Kind.WRITE_LACS) <= 2 * 3
        assert len(kinds) == 3 * 40 + kinds.count(Kind.WRITE_LACS)


def test_a_writer_that_goes_on_tells_no_lac_by_itself(requests: list[Any]) -> None:
    with cluster() as at:
        process = at.client("w")

        async def work() -> None:
            ledger = await (await connected(process)).create_ledger()
            for _ in range(50):
                await ledger.append(b"x")
                await asyncio.sleep(0.03)
            await ledger.close()

        at.run(process, work())
        assert {kind for _, _, kind in requests} <= {Kind.ADD, Kind.INFO}


def idle_tail(at: Cluster, during: Callable[[Any], Awaitable[None]], seconds: float) -> float:
    """Follow a ledger that is idle for some time; the milliseconds from the next append to its delivery."""
    writers, readers = at.client("w"), at.client("r")

    async def write() -> Any:
        ledger = await (await connected(writers)).create_ledger()
        await ledger.append(b"first")
        return ledger

    ledger = at.run(writers, write())

    async def follow() -> float:
        client = await connected(readers)
        reader = await client.open_ledger(ledger.ledger_id, recover=False)
        tail = reader.tail()
        assert (await anext(tail)).entry_id == 0
        second = asyncio.ensure_future(anext(tail))
        await asyncio.sleep(seconds)
        await during(second)
        appended = writers.loop.spawn(ledger.append(b"second"))
        before = at.now_ms()
        assert (await second).entry_id == 1
        took = at.now_ms() - before
        assert appended.done()
        await tail.aclose()
        return took

    return float(at.run(readers, follow()))


async def nothing(_: Any) -> None:
    """Nothing happens meanwhile."""


def test_an_idle_tail_asks_each_bookie_once_in_30_seconds(requests: list[Any]) -> None:
    with cluster() as at:

        async def forget_the_beginning(_: Any) -> None:
            nonlocal last_ms
            last_ms = at.now_ms()

        last_ms = 0.0
        took = idle_tail(at, forget_the_beginning, 240.0)
        assert took <= WITHIN_MS
        began = next(ms for ms, _, kind in requests if kind is Kind.LONG_POLL) + 5_000
        for bookie in {bookie for _, bookie, _ in requests}:
            times = [ms for ms, who, _ in requests if who == bookie and began < ms <= last_ms]
            assert 5 <= len(times) <= 8
            assert min(later - ms for ms, later in pairwise(times)) >= 30_000


@pytest.mark.parametrize("hangs", range(3))
def test_a_bookie_that_hangs_does_not_hold_up_an_idle_tail(hangs: int) -> None:
    with cluster() as at:

        async def hang(_: Any) -> None:
            at.bookies[hangs].loop.pause()

        assert idle_tail(at, hang, 10.0) <= WITHIN_MS

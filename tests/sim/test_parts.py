"""The pieces of a simulated world keep the promises that programs rely on, and no others."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from quire.metadata.memory import MemorySpace
from quire_testing.sim.disk import SimDisk
from quire_testing.sim.loop import MS, SECOND, ProcessLoop, Timeline
from quire_testing.sim.network import Network, NetworkSettings
from quire_testing.sim.store import SimStore, StoreSettings

PATH = Path("/b0/segments/1.seg")


def process(timeline: Timeline, name: str) -> ProcessLoop:
    return ProcessLoop(timeline, name)  # type: ignore[abstract]


def run(timeline: Timeline, *, until_ms: int = 60_000) -> None:
    timeline.run(lambda: False, until_ns=timeline.now_ns + until_ms * MS, events_max=100_000)


class Heard(asyncio.BufferedProtocol):
    """Keeps what it hears, and the end."""

    def __init__(self) -> None:
        self.data = b""
        self.lost = False
        self.transport: Any = None
        self._buffer = bytearray(7)

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def get_buffer(self, sizehint: int) -> Any:
        return memoryview(self._buffer)

    def buffer_updated(self, nbytes: int) -> None:
        self.data += self._buffer[:nbytes]

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True


def connected(timeline: Timeline, network: Network) -> tuple[ProcessLoop, ProcessLoop, Heard, Heard]:
    here, there = process(timeline, "c"), process(timeline, "b")
    near, far = Heard(), Heard()
    for loop in (here, there):
        loop.network = network
    network.listen(there, lambda: far, "b", 1)
    task = here.spawn(here.create_connection(lambda: near, "b", 1))
    timeline.run(lambda: task.done() and far.transport is not None, until_ns=60 * SECOND, events_max=1000)
    return here, there, near, far


def network_of(timeline: Timeline, seed: int = 1) -> Network:
    return Network(timeline, random.Random(seed), NetworkSettings(tail=1.0, pieces=128))


def test_bytes_arrive_in_order_and_whole() -> None:
    timeline = Timeline()
    network = network_of(timeline)
    here, there, near, far = connected(timeline, network)
    sent = b"".join(b"%d," % number for number in range(500))
    for at in range(0, len(sent), 97):
        near.transport.write(sent[at : at + 97])
    run(timeline)
    assert far.data == sent
    here.bury()
    there.bury()


@pytest.mark.parametrize("seed", range(8))
def test_a_break_loses_a_suffix_only(seed: int) -> None:
    timeline = Timeline()
    network = network_of(timeline, seed)
    _, _, near, far = connected(timeline, network)
    sent = [b"%03d" % number for number in range(50)]
    for one in sent:
        near.transport.write(one)
    run(timeline, until_ms=1)
    network.break_connections("c", "b")
    run(timeline)
    assert b"".join(sent).startswith(far.data)
    assert near.lost
    assert far.lost


def test_a_cut_link_keeps_what_was_sent_until_it_is_healed() -> None:
    timeline = Timeline()
    network = network_of(timeline)
    _, _, near, far = connected(timeline, network)
    network.cut("c", "b")
    near.transport.write(b"late")
    run(timeline)
    assert far.data == b""
    network.cut("c", "b", cut=False)
    run(timeline)
    assert far.data == b"late"


def test_a_killed_process_does_nothing_more_and_its_peer_is_told() -> None:
    timeline = Timeline()
    network = network_of(timeline)
    _, there, near, far = connected(timeline, network)
    there.call_later(0.001, far.transport.write, b"never")
    there.kill()
    network.process_died(there, silent=False)
    run(timeline)
    assert near.data == b""
    assert near.lost
    assert not far.lost


def test_a_paused_process_goes_on_with_everything_that_came() -> None:
    timeline = Timeline()
    loop = process(timeline, "b")
    happened: list[str] = []
    loop.pause()
    loop.call_soon(happened.append, "a")
    loop.call_later(0.5, happened.append, "b")
    run(timeline)
    assert happened == []
    loop.resume()
    run(timeline)
    assert happened == ["a", "b"]


@pytest.mark.parametrize("seed", range(20))
def test_a_power_loss_keeps_what_was_synced(seed: int) -> None:
    disk = SimDisk(random.Random(seed))
    disk.allocate(PATH, 8192)
    file = disk.open_to_write(PATH, direct=False)
    file.write_at(b"a" * 4096, 0)
    file.sync()
    file.write_at(b"b" * 4096, 2048)
    disk.lose_power()
    found = disk.read_whole(PATH)
    assert found[:2048] == b"a" * 2048
    sectors = {bytes(found[at : at + 512]) for at in range(2048, 6144, 512)}
    assert sectors <= {b"a" * 512, b"b" * 512, bytes(512)}


def test_names_are_durable_with_their_directory() -> None:
    seen = set()
    for seed in range(20):
        disk = SimDisk(random.Random(seed))
        disk.allocate(PATH, 512)
        other = PATH.with_name("2.seg")
        disk.rename(PATH, other)
        disk.lose_power()
        seen.add(tuple(disk.names(PATH.parent)))
    assert seen == {("1.seg",), ("2.seg",)}


def test_a_lost_answer_leaves_the_change() -> None:
    timeline = Timeline()
    space = MemorySpace("i")
    loop = process(timeline, "c")
    store = SimStore(space, loop, random.Random(1), StoreSettings(lost_answers=1024))
    task = loop.spawn(store.create("k", b"v"))
    run(timeline)
    assert type(task.exception()).__name__ == "MetadataUnknownError"
    assert space.rows["k"].value == b"v"
    assert store.lost == 1

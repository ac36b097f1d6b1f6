"""Java clients on our bookies, our client on Java bookies, both on a mixed cluster: real peers, real ZooKeeper."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest

import quire
from quire.core.errors import LedgerFencedError, NoSuchLedgerError, QuireError
from quire.core.ledger.writer_state import Hole
from support.java_peers import (
    PATIENT,
    PATIENT_CLIENT,
    PATIENT_JAVA,
    JavaClient,
    JavaPeers,
    our_bookies,
    own_peers,
)
from support.ledgers import COUNT, DIGESTS, SIZE, payload
from support.records import is_hole
from support.rounds import COMMIT, RESULTS, keep_figures

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900)]

VERSIONS = ["v2", "v3"]
SHAPE = {3: (3, 3, 2), 5: (5, 3, 2)}
RAN: dict[str, str | None] = {}
"""The cells of the matrix that were run, and at which commit they passed."""


@pytest.fixture(scope="module", autouse=True)
def figures() -> Iterator[None]:
    """Keep the figures of the whole matrix at the end, with those of cells that were not run now."""
    yield
    kept = RESULTS / "java_peers.json"
    cells = (json.loads(kept.read_text())["rows"] if kept.exists() else {}) | RAN
    passed = {cell: commit for cell, commit in sorted(cells.items()) if commit is not None}
    counts = {"cells": len(cells), "passed": len(passed)}
    keep_figures("java_peers", counts, seed=None, rows=passed, test="tests/interop/test_java_peers.py")


@pytest.fixture(scope="module")
def five_peers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaPeers]:
    """Five Java bookies, for E = 5 on nothing but these."""
    with own_peers(tmp_path_factory.mktemp("java"), 5) as peers:
        yield peers


class World:
    """One cluster with what speaks to it: `ours` writes and reads as we do, `java` as Java does."""

    def __init__(self, uri: str, java: JavaClient, version: str, digest: str, ensemble: int) -> None:
        self.uri, self.java, self.version, self.digest = uri, java, version, digest
        self.shape = SHAPE[ensemble]
        self.ours: Any = None

    async def java_runs(self, command: str, *arguments: object) -> list[dict[str, Any]]:
        return [event async for event in self.java_says(command, *arguments)]

    async def java_says(self, command: str, *arguments: object) -> AsyncIterator[dict[str, Any]]:
        options = [*PATIENT_JAVA, "--v2"] if self.version == "v2" else PATIENT_JAVA
        async for event in self.java.events(self.uri, self.digest, command, *arguments, *options):
            yield event

    async def java_writes(self, count: int = COUNT, *options: object) -> int:
        ensemble, write, ack = self.shape
        shape = ("--ensemble", ensemble, "--wq", write, "--aq", ack)
        events = await self.java_runs("write", count, SIZE, "--quiet", *shape, *options)
        assert events[-1]["event"] == "written", events
        return int(events[0]["ledger"])

    async def java_reads(self, command: str, ledger_id: int, count: int = COUNT) -> None:
        events = await self.java_runs(command, ledger_id)
        entries = [event for event in events if event["event"] == "entry"]
        assert [entry["entry"] for entry in entries] == list(range(count)), events[-1]
        assert all(entry["pattern"] and entry["size"] == SIZE for entry in entries)

    async def new_ledger(self) -> Any:
        ensemble, write, ack = self.shape
        return await self.ours.create_ledger(
            ensemble_size=ensemble,
            write_quorum=write,
            ack_quorum=ack,
            password=b"secret",
            digest=self.digest.lower(),
        )

    async def we_write(self, count: int = COUNT) -> int:
        async with await self.new_ledger() as ledger:
            await ledger.append_many([payload(number) for number in range(count // 2)])
            for number in range(count // 2, count):
                ledger.append_nowait(payload(number))
        return int(ledger.ledger_id)

    async def we_read(self, ledger_id: int, count: int = COUNT, *, recover: bool = True) -> None:
        reader = await self.ours.open_ledger(ledger_id, password=b"secret", recover=recover)
        found = [bytes(entry.payload) async for entry in reader.read()]
        assert found == [payload(number) for number in range(count)]
        report = await self.ours.verify_ledger(ledger_id, password=b"secret")
        assert report.good, report


Work = Callable[[World], Coroutine[Any, Any, None]]


async def in_a_world(
    peers: JavaPeers, folder: Path, work: Work, *, cluster: str, version: str, digest: str, ensemble: int
) -> None:
    """Run `work` in a cluster of ours, of Java's, or of both."""
    cell = f"{work.__name__} {cluster} {ensemble} {digest} {version}"
    RAN[cell] = None
    uri = peers.another_root() if cluster == "ours" else peers.uri
    ours = {"ours": ensemble, "java": 0, "mixed": max(ensemble - 3, 2)}[cluster]
    # Bookies of ours that announce our own protocol are spoken to in it; the Java ones in this version.
    protocol = version if cluster == "ours" else "auto-v2" if version == "v2" else "auto"
    config = replace(PATIENT_CLIENT, protocol=protocol)
    async with our_bookies(uri, folder, ours), peers.client() as java:
        world = World(uri, java, version, digest, ensemble)
        async with quire.connect(uri + PATIENT, config=config) as world.ours:
            await work(world)
    RAN[cell] = COMMIT


async def both_ways(world: World) -> None:
    """Each writes, and both read both."""
    java_wrote = await world.java_writes()
    await world.we_read(java_wrote)
    await world.java_reads("read", java_wrote)
    we_wrote = await world.we_write()
    await world.java_reads("read", we_wrote)
    await world.we_read(we_wrote)


async def a_ledger_with_holes(world: World) -> None:
    """The record of a ledger that was closed next to a silent bookie: Java reads the ledger, and keeps the holes."""
    we_wrote = await world.we_write()
    record = await world.ours.ledger_metadata(we_wrote)
    holes = [Hole(0, record.last_fragment.ensemble[0], 3, COUNT - 1)]
    await world.ours.records.ledgers.add_holes(we_wrote, holes)
    await world.java_reads("read", we_wrote)
    _, notes, _ = await world.ours.records.ledgers.read_with_notes(we_wrote)
    assert is_hole(notes, holes[0].bookie, 3)


def cells(quick: set[tuple[object, ...]], *columns: Sequence[object]) -> list[Any]:
    """The whole matrix, of which `make test` runs a few cells and `make full` all."""
    return [
        pytest.param(*cell, marks=() if cell in quick else pytest.mark.slow) for cell in product(*columns)
    ]


@pytest.mark.parametrize(
    ("cluster", "ensemble", "digest", "version"),
    cells(
        {
            ("ours", 5, "MAC", "v3"),
            ("java", 3, "CRC32", "v3"),
            ("mixed", 5, "DUMMY", "v2"),
        },
        ["ours", "mixed", "java"],
        [3, 5],
        DIGESTS,
        VERSIONS,
    ),
)
async def test_each_writes_and_both_read(
    request: pytest.FixtureRequest, tmp_path: Path, cluster: str, ensemble: int, digest: str, version: str
) -> None:
    five = (cluster, ensemble) == ("java", 5)
    peers: JavaPeers = request.getfixturevalue("five_peers" if five else "peers")
    await in_a_world(
        peers, tmp_path, both_ways, cluster=cluster, version=version, digest=digest, ensemble=ensemble
    )


@pytest.mark.parametrize("cluster", ["ours", pytest.param("java", marks=pytest.mark.slow)])
async def test_java_reads_a_ledger_with_holes(peers: JavaPeers, tmp_path: Path, cluster: str) -> None:
    await in_a_world(
        peers, tmp_path, a_ledger_with_holes, cluster=cluster, version="v3", digest="CRC32C", ensemble=3
    )


async def recovered_by_the_other(world: World) -> None:
    left_by_java = await world.java_writes(COUNT, "--no-close")
    await world.we_read(left_by_java)
    ledger = await world.new_ledger()
    await ledger.append_many([payload(number) for number in range(COUNT)])
    await world.java_reads("recover-open", int(ledger.ledger_id))
    with pytest.raises(LedgerFencedError):
        await ledger.append(b"too late")
    with contextlib.suppress(QuireError):
        await ledger.abandon()
    record = await world.ours.ledger_metadata(ledger.ledger_id)
    assert record.last_entry == COUNT - 1


async def followed_by_the_other(world: World) -> None:
    ledger = await world.new_ledger()
    tail = asyncio.create_task(world.java_runs("tail", int(ledger.ledger_id), "--max", COUNT))
    for number in range(COUNT):
        await ledger.append(payload(number))
    await ledger.append(payload(COUNT))  # its header tells readers of the one before
    events = await tail
    entries = [event for event in events if event["event"] == "entry"]
    assert [entry["entry"] for entry in entries] == list(range(COUNT)), events[-1]
    assert all(entry["pattern"] for entry in entries)
    await ledger.close()

    found: list[bytes] = []

    async def follow(ledger_id: int) -> None:
        reader = await world.ours.open_ledger(ledger_id, password=b"secret", recover=False)
        found.extend([bytes(entry.payload) async for entry in reader.tail()])

    follower: asyncio.Task[None] | None = None
    ensemble, write, ack = world.shape
    shape = ("--ensemble", ensemble, "--wq", write, "--aq", ack)
    async for event in world.java_says("write", COUNT, SIZE, "--delay-ms", 2, *shape):
        if event["event"] == "created":
            follower = asyncio.create_task(follow(int(event["ledger"])))
    assert follower is not None
    await follower
    assert found == [payload(number) for number in range(COUNT)]


async def fenced_by_the_other(world: World) -> None:
    """A writer under load loses its ledger to a recoverer that speaks the other language: what it was told is there."""
    ensemble, write, ack = world.shape
    shape = ("--ensemble", ensemble, "--wq", write, "--aq", ack)
    told, ledger_id, recovery, last = -1, -1, None, {}
    async for event in world.java_says("write", 100_000, SIZE, *shape):
        if event["event"] == "created":
            ledger_id = int(event["ledger"])
        elif event["event"] == "added":
            told = max(told, event["entry"])
            if told >= 500 and recovery is None:
                recovery = asyncio.create_task(world.ours.open_ledger(ledger_id, password=b"secret"))
        last = event
    # LedgerFenced, or LedgerClosed: the add that Java is at when the refusal closes its handle is told so first.
    assert last["event"] == "error", last
    assert last["code"] in {-101, -11}, last
    assert recovery is not None
    reader = await recovery
    assert reader.last_add_confirmed >= told
    found = [bytes(entry.payload) async for entry in reader.read()]
    assert found == [payload(number) for number in range(reader.last_add_confirmed + 1)]

    ledger = await world.new_ledger()
    acknowledged = -1
    java = asyncio.create_task(world.java_runs("recover-open", int(ledger.ledger_id)))
    with pytest.raises(LedgerFencedError):
        for number in range(1_000_000):
            acknowledged = int(await ledger.append(payload(number)))
    events = await java
    entries = [event for event in events if event["event"] == "entry"]
    assert [entry["entry"] for entry in entries] == list(range(len(entries)))
    assert all(entry["pattern"] for entry in entries)
    assert len(entries) - 1 >= acknowledged
    with contextlib.suppress(QuireError):
        await ledger.abandon()


async def deleted_by_the_other(world: World) -> None:
    java_wrote = await world.java_writes(5)
    await world.ours.delete_ledger(java_wrote)
    events = await world.java_runs("read", java_wrote)
    assert events[-1]["code"] == -25
    we_wrote = await world.we_write(5)
    await world.java_runs("delete", we_wrote)
    with pytest.raises(NoSuchLedgerError):
        await world.ours.open_ledger(we_wrote, password=b"secret")


WORKS = [recovered_by_the_other, followed_by_the_other, fenced_by_the_other, deleted_by_the_other]


@pytest.mark.parametrize(
    ("work", "cluster", "version"),
    cells(
        {(work, "mixed", "v3") for work in WORKS},
        WORKS,
        ["ours", "java", "mixed"],
        VERSIONS,
    ),
)
async def test_what_one_does_the_other_sees(
    peers: JavaPeers, tmp_path: Path, work: Work, cluster: str, version: str
) -> None:
    await in_a_world(peers, tmp_path, work, cluster=cluster, version=version, digest="CRC32C", ensemble=3)

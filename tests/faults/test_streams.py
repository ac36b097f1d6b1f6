"""One stream and many writers: processes take it over from each other while they are killed, stopped or cut off.

Each writer says what was acknowledged and, once it was superseded, what `resolve` told it of every other entry. At the end
all of that is compared with what readers see, and with what tails saw meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import quire
from faults.harness import STAMP, cluster, payload
from quire.client.access import LedgerAccess
from quire.client.config import ClientConfig
from quire.wire.entry import NoOp
from support.stream_modes import BOTH, taken
from support.waiting import until_async

pytestmark = [pytest.mark.faults, pytest.mark.timeout(3600)]
WORKER = Path(__file__).parent / "stream_worker.py"
STREAM = "orders"
Record = Callable[[str, dict[str, Any]], None]
Rounds = Callable[[int, int], int]
BOOKIES_AT = "10.77.0.1"
KINDS = ["kill", "stop", "partition", "stop", "partition"]
"""A killed process is followed by a new one, which takes long to begin."""

SAMPLES = 20
"""So often in a run it is looked how much memory and how many descriptors the bookies have."""


@dataclass
class Told:
    """What writers said.

    Attributes:
        acked: (writer, number) of each acknowledged payload, with its id.
        kept: the same of those that were resolved as kept.
        lost: (writer, number) of those that were resolved as lost, or never sent.
        resolved: how many were asked about.
    """

    acked: dict[tuple[int, int], int] = field(default_factory=dict)
    kept: dict[tuple[int, int], int] = field(default_factory=dict)
    lost: set[tuple[int, int]] = field(default_factory=set)
    resolved: int = 0


class Used(NamedTuple):
    """What some processes have open, and keep in memory of their own (MiB), together.

    Attributes:
        descriptors: without `segments`.
        segments: files of what was written, which grow with that: a bookie keeps up to 128 of them open.
        mib: memory.
    """

    descriptors: int
    segments: int
    mib: int

    @classmethod
    def by(cls, pids: list[int]) -> Used:
        """Now."""
        files = [_open_file(pid, number) for pid in pids for number in os.listdir(f"/proc/{pid}/fd")]
        segments = sum(each.endswith(".seg") for each in files)
        states = (Path(f"/proc/{pid}/status").read_text() for pid in pids)
        kib = sum(int(state.partition("RssAnon:")[2].split(maxsplit=1)[0]) for state in states)
        return cls(len(files) - segments, segments, kib >> 10)


def _open_file(pid: int, number: str) -> str:
    try:
        return os.readlink(f"/proc/{pid}/fd/{number}")
    except FileNotFoundError:  # closed meanwhile
        return ""


class Namespace:
    """A network namespace with one cable to this one, which can be pulled.

    Args:
        number: of the namespaces of this process.
    """

    def __init__(self, number: int) -> None:
        self.name = f"qs{os.getpid() % 10000}-{number}"
        here, there, net = f"{self.name}h", f"{self.name}t", f"10.77.{number + 1}"
        self._here = here
        _ip("netns", "add", self.name)
        _ip("link", "add", here, "type", "veth", "peer", "name", there, "netns", self.name)
        _ip("addr", "add", f"{net}.1/24", "dev", here)
        _ip("link", "set", here, "up")
        _ip("-n", self.name, "addr", "add", f"{net}.2/24", "dev", there)
        _ip("-n", self.name, "link", "set", there, "up")
        _ip("-n", self.name, "route", "add", "default", "via", f"{net}.1")

    def cut(self) -> None:
        """Nothing arrives from here on, and nobody is told."""
        _ip("link", "set", self._here, "down")

    def mend(self) -> None:
        """Packets arrive again."""
        _ip("link", "set", self._here, "up")

    def remove(self) -> None:
        """Its processes are gone."""
        _ip("netns", "del", self.name)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


class Writer:
    """One writer's process, and what it says."""

    def __init__(
        self, number: int, process: asyncio.subprocess.Process, told: Told, namespace: Namespace | None
    ) -> None:
        self.number, self.process, self.namespace = number, process, namespace
        self._told = told
        self.term = 0
        self.ready = self.acked = self.open = False
        self.turns_over = 0
        self._listening = asyncio.create_task(self._listen())

    @classmethod
    async def start(cls, uri: str, number: int, told: Told, namespace: Namespace | None) -> Writer:
        inside = () if namespace is None else ("ip", "netns", "exec", namespace.name)
        words = (*inside, sys.executable, str(WORKER), uri, STREAM, str(number))
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(*words, stdin=pipe, stdout=pipe, limit=1 << 24)
        return cls(number, process, told, namespace)

    async def _listen(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            if line.endswith(b"\n"):
                self._heard(json.loads(line))

    def _heard(self, said: dict[str, Any]) -> None:
        told = self._told
        match said["event"]:
            case "ready":
                self.ready = True
            case "open":
                self.term, self.open = said["term"], True
            case "acked":
                self.acked = True
                for ahead in range(said["count"]):
                    told.acked[self.number, said["number"] + ahead] = said["entry"] + ahead
            case "resolved":
                told.resolved += len(said["items"])
                for number, entry, kept in said["items"]:
                    if kept:
                        told.kept[self.number, number] = entry
                    else:
                        told.lost.add((self.number, number))
                self.open = self.acked = False
                self.turns_over += 1

    def take_over(self) -> None:
        """Ask for a take-over."""
        assert self.process.stdin is not None
        self.process.stdin.write(b"take over\n")

    def signal(self, what: signal.Signals) -> None:
        """Send it a signal."""
        self.process.send_signal(what)

    async def stop(self) -> None:
        """SIGSTOP, and no thread of it runs any more: one that waited for a core in a system call ends it first."""
        self.signal(signal.SIGSTOP)
        look = os.P_PID, self.process.pid, os.WSTOPPED | os.WNOWAIT | os.WNOHANG
        await until_async(lambda: os.waitid(*look), f"writer {self.number} to be stopped")

    async def kill(self) -> None:
        """SIGKILL, and everything that it said has been read."""
        self.process.kill()
        await self.over()

    async def over(self) -> None:
        """It has ended, and everything that it said has been read."""
        await self._listening
        await self.process.wait()


class Stage:
    """A stream's writers, one of which writes.

    Args:
        uri: the cluster.
        told: what all of them say.
        namespaces: where writers live that can be cut off; None: in this one.
    """

    def __init__(self, uri: str, told: Told, namespaces: list[Namespace] | None) -> None:
        self._uri, self._told = uri, told
        self._namespaces = namespaces
        self._all: list[Writer] = []
        self.waiting: list[Writer] = []

    async def fill(self, count: int) -> None:
        """So many writers wait for their turn."""
        while len(self.waiting) < count:
            free = self._namespaces.pop() if self._namespaces else None
            writer = await Writer.start(self._uri, len(self._all), self._told, free)
            self.waiting.append(writer)
            self._all.append(writer)

    async def next_writer(self) -> Writer:
        """The one that waits longest takes the stream over; returns when it has appended something."""
        writer = self.waiting.pop(0)
        await until_async(lambda: writer.ready, "the writer to be connected", 60)
        writer.take_over()
        await until_async(lambda: writer.acked, f"writer {writer.number} to append", 60)
        return writer

    async def strike(self, kind: str, writer: Writer) -> Writer:
        """Do something to the writer, let another take the stream over, and bring the first back if it lives."""
        terms = writer.turns_over
        if kind == "kill":
            await writer.kill()
            if writer.namespace is not None and self._namespaces is not None:
                self._namespaces.append(writer.namespace)
        elif kind == "stop":
            await writer.stop()
            while not self._store_is_free():  # it was stopped in a transaction, which would stop everybody
                writer.signal(signal.SIGCONT)
                await writer.stop()
        else:
            assert writer.namespace is not None
            writer.namespace.cut()
        await self.fill(2)
        following = await self.next_writer()
        if kind != "kill":
            if kind == "stop":
                writer.signal(signal.SIGCONT)
            elif writer.namespace is not None:
                writer.namespace.mend()
            await until_async(lambda: writer.turns_over > terms, f"writer {writer.number} to see its end", 60)
            self.waiting.append(writer)
        return following

    def _store_is_free(self) -> bool:
        """Whether no stopped process has the metadata file locked."""
        store = sqlite3.connect(self._uri.removeprefix("sqlite:"), timeout=0.2, isolation_level=None)
        try:
            store.execute("BEGIN IMMEDIATE")
            store.execute("ROLLBACK")
        except sqlite3.OperationalError:
            return False
        finally:
            store.close()
        return True

    async def end(self) -> None:
        """Everybody ends."""
        for each in self._all:
            if each.process.returncode is None:
                await each.kill()


@contextlib.asynccontextmanager
async def followed(uri: str, count: int) -> AsyncIterator[list[list[tuple[int, bytes]]]]:
    """What tails see meanwhile; at the end they have seen a stream that is closed to its end."""
    seen: list[list[tuple[int, bytes]]] = [[] for _ in range(count)]

    async def follow(into: list[tuple[int, bytes]]) -> None:
        async with quire.connect(uri) as client:
            async for entry in client.unbounded_ledger(STREAM).tail():
                into.append((entry.entry_id, bytes(entry.payload)))

    tails = [asyncio.create_task(follow(into)) for into in seen]
    try:
        yield seen
        await asyncio.wait_for(asyncio.gather(*tails), 60)
    finally:
        for tail in tails:
            tail.cancel()


def compare(entries: list[tuple[int, bytes]], told: Told, no_ops: Sequence[int] = ()) -> None:
    """One order: nothing acknowledged is lost, each resolved entry is what it was said to be, nothing else is there."""
    ids = sorted([*no_ops, *(entry_id for entry_id, _ in entries)])
    assert ids == list(range(len(entries) + len(no_ops)))
    places: dict[tuple[int, int], int] = {}
    latest: dict[int, int] = {}
    for entry_id, data in entries:
        writer, number = STAMP.unpack_from(data)
        assert data == payload(writer, number), f"entry {entry_id} was never appended"
        assert (writer, number) not in places, f"entry {entry_id} is there twice"
        assert number > latest.get(writer, -1), f"entry {entry_id} is not in its writer's order"
        places[writer, number] = entry_id
        latest[writer] = number
    for known in (told.acked, told.kept):
        assert {one: places.get(one) for one in known} == known
    assert not told.lost & places.keys(), "an entry was said to be lost, and readers see it"


async def many_take_overs(
    directory: Path,
    count: int,
    kinds: list[str],
    chance: random.Random,
    namespaces: list[Namespace] | None,
    mode: str = "identifiers",
) -> dict[str, Any]:
    told, made, gaps, samples = Told(), Counter[str](), list[float](), list[Used]()
    async with cluster(directory, 3) as local, quire.connect(local.uri) as client:
        stream = client.unbounded_ledger(STREAM, mode=mode)
        await stream.create()
        async with followed(local.uri, 2) as seen:
            stage = Stage(local.uri, told, namespaces)
            pids = [bookie.process.pid for bookie in local.bookies if bookie.process]
            try:
                await stage.fill(2)
                writer = await stage.next_writer()
                for number in range(count - 1):
                    if number % max(1, count // SAMPLES) == 0:
                        samples.append(Used.by(pids))
                    kind = kinds[number % len(kinds)]
                    await until_async(_more(told, chance.randrange(1, 200)), "some appends")
                    began = time.monotonic()
                    writer = await stage.strike(kind, writer)
                    gaps.append(time.monotonic() - began)
                    made[kind] += 1
                samples.append(Used.by(pids))
            finally:
                await stage.end()
            record = await stream.close()
        everything = [entry async for entry in stream.read(no_ops=True)]
    no_ops = [entry.entry_id for entry in everything if isinstance(entry, NoOp)]
    entries = [(entry.entry_id, bytes(entry.payload)) for entry in everything if not isinstance(entry, NoOp)]
    compare(entries, told, no_ops)
    early, used = (
        samples[len(samples) // 4],
        samples[-1],
    )  # by then what bookies keep in memory of the newest entries is full
    assert used.descriptors <= early.descriptors + 12, samples
    assert used.mib <= early.mib + 50, samples
    assert all(tail == entries for tail in seen), "each tail sees each entry once"
    assert len(record.ranges) == count + 2, "the creation, each take-over, and the close"
    assert len(no_ops) == taken(mode, count + 1), "one for each take-over, and the close"
    return {
        "take_overs": count,
        "by": dict(made),
        "entries": len(entries),
        "acknowledged": len(told.acked),
        "resolved": told.resolved,
        "kept": len(told.kept),
        "lost": len(told.lost),
        "median_s": round(sorted(gaps)[len(gaps) // 2], 3),
        "descriptors": [sample.descriptors for sample in samples],
        "segments": [sample.segments for sample in samples],
        "mib": [sample.mib for sample in samples],
    }


def _more(told: Told, count: int) -> Callable[[], bool | Awaitable[bool]]:
    wanted = len(told.acked) + count
    return lambda: len(told.acked) >= wanted


async def test_take_overs_of_one_stream(tmp_path: Path, chance: random.Random, record: Record) -> None:
    figures = await many_take_overs(tmp_path, 5, ["stop", "kill"], chance, None)
    assert figures["resolved"] > 0, figures
    record("stream_take_overs", figures)


@pytest.fixture
def namespaces(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Namespace]]:
    """Six namespaces; bookies listen where all of them reach them."""
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    monkeypatch.setattr("quire.cli.local.local_cluster.HOST", BOOKIES_AT)
    _ip("addr", "add", f"{BOOKIES_AT}/32", "dev", "lo")
    made: list[Namespace] = []
    try:
        made += [Namespace(number) for number in range(6)]
        yield [*made]
    finally:
        for one in made:
            one.remove()
        _ip("addr", "del", f"{BOOKIES_AT}/32", "dev", "lo")


@pytest.mark.slow
async def test_a_thousand_take_overs_of_one_stream(
    tmp_path: Path, chance: random.Random, rounds: Rounds, record: Record, namespaces: list[Namespace]
) -> None:
    count = rounds(1000, 12)
    figures = await many_take_overs(tmp_path, count, KINDS, chance, namespaces)
    assert figures["resolved"] > 0, figures
    record("stream_take_overs_in_namespaces", figures)


async def with_one_dead(directory: Path, count: int) -> dict[str, Any]:
    async with (
        cluster(directory, 3) as local,
        quire.connect(local.uri) as one,
        quire.connect(local.uri) as two,
    ):
        handles = [client.unbounded_ledger(STREAM) for client in (one, two)]
        await handles[0].create()
        writer = await handles[0].open_writer()
        await asyncio.gather(*(writer.append(payload(0, number)) for number in range(100)))
        took: list[float] = []
        await asyncio.to_thread(local.kill, 0)
        for number in range(count):
            last = time.monotonic()
            other = await handles[(number + 1) % 2].open_writer()
            assert await other.append(payload(1, number)) == 100 + number
            took.append(time.monotonic() - last)
            with contextlib.suppress(quire.QuireError):
                await writer.abandon()
            writer = other
        await writer.release()
        entries = [entry async for entry in handles[0].read()]
        assert len(entries) == 100 + count
    return {
        "take_overs": count,
        "first_s": round(took[0], 3),
        "median_s": round(sorted(took)[count // 2], 3),
        "longest_s": round(max(took), 3),
    }


@pytest.mark.slow
async def test_take_overs_with_one_of_three_bookies_dead(tmp_path: Path, record: Record) -> None:
    record("stream_take_overs_with_a_bookie_dead", await with_one_dead(tmp_path, 50))


async def with_one_stopped(directory: Path, mode: str) -> dict[str, Any]:
    """An entry is on two of three bookies and needs all three; the third is stopped, and a take-over finds the entry."""
    async with (
        cluster(directory, 4) as local,
        quire.connect(local.uri) as one,
        quire.connect(local.uri, ClientConfig(recovery_timeout_ms=500)) as two,
    ):
        mine, theirs = (client.unbounded_ledger(STREAM, mode=mode) for client in (one, two))
        await mine.create(ensemble_size=3, write_quorum=3, ack_quorum=3)
        writer = await mine.open_writer()
        assert await writer.append(payload(0, 0)) == taken(mode)
        record = await mine.show()
        *there, last = record.last_fragment.ensemble
        (stopped,) = (each.process for each in local.bookies if each.process and last.startswith(each.name))
        stopped.send_signal(signal.SIGSTOP)
        try:
            pending = writer.append_nowait(payload(0, 1))

            async def is_stored() -> bool:
                lists = [
                    await two.bookies.list_entries(bookie, LedgerAccess.of(record), timeout_ms=5000)
                    for bookie in there
                ]
                return all(held[-1].last == taken(mode) + 1 for _, held in lists)

            await until_async(is_stored, "two bookies to have the entry")
            assert not pending.done()
            began = time.monotonic()
            other = await theirs.open_writer()
            took = time.monotonic() - began
            assert other.last_add_confirmed == 1 + taken(mode, 2)
            with contextlib.suppress(quire.NotWritingError):  # by its first request since, or by itself
                writer.append_nowait(payload(0, 2)).add_done_callback(lambda done: done.exception())
            with pytest.raises(quire.TermSupersededError) as superseded:
                await pending
            kept = await mine.resolve(superseded.value)
            last_entry = await other.append(payload(1, 0))
            await other.release()
        finally:
            stopped.send_signal(signal.SIGCONT)
        assert kept is True
        entries = [bytes(entry.payload) async for entry in theirs.read(0, last_entry)]
        assert entries == [payload(0, 0), payload(0, 1), payload(1, 0)]
    return {"kept": 1, "take_over_s": round(took, 3)}


@pytest.mark.slow
@BOTH
async def test_an_entry_that_was_not_acknowledged_is_kept(tmp_path: Path, record: Record, mode: str) -> None:
    record(
        f"{'stream' if mode == 'identifiers' else mode}_entry_kept", await with_one_stopped(tmp_path, mode)
    )

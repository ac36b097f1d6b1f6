"""Each state that an operator must know of: made by a fault, told in the log and by `quire cluster`, and ended as they say."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import quire
from quire.bookie.config import BookieConfig
from quire.bookie.server import BookieServer
from quire.cli.cluster.alerts import conditions_of
from quire.cli.console.failures import EXIT_ATTENTION
from quire.cli.main import app
from quire.core.bookie import conditions
from quire.core.errors import NoClusterError
from quire.env.real import RealClock, RealFiles
from quire.metadata.bookies import BookieRegistry
from quire.metadata.sqlite.store import SqliteStore
from quire.storage.config import KIB, StorageConfig
from support.waiting import until_async

SMALL = StorageConfig(segment_bytes=256 * KIB, recent_bytes_max=0)


class Files(RealFiles):
    """A disk on which nothing more can be allocated, once an error is set."""

    error = 0

    def allocate(self, path: Path, size: int) -> None:
        if self.error:
            raise OSError(self.error, "injected", str(path))
        super().allocate(path, size)


class Clock(RealClock):
    """A clock that can go on at once, as it does for a process that stood still."""

    more_ms = 0
    more_cpu_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.more_ms

    def cpu_ms(self) -> int:
        return super().cpu_ms() + self.more_cpu_ms


class Cluster:
    """Two bookies, and a ledger that is on both."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.uri = f"sqlite:{folder / 'metadata.db'}"
        self.servers: dict[str, BookieServer] = {}
        self.files, self.clock = Files(), Clock()
        self.ledger = -1

    @property
    def sick(self) -> BookieServer:
        return self.servers["b0"]

    async def start(self, name: str) -> None:
        store = await SqliteStore.open(self.folder / "metadata.db", create=True)
        config = BookieConfig(directory=self.folder / name, name=name, storage=SMALL, garbage_seconds=0)
        own: dict[str, Any] = {"files": self.files, "clock": self.clock} if name == "b0" else {}
        self.servers[name] = BookieServer(config, store, **own)
        await self.servers[name].start()

    async def stop(self, name: str, *, clean: bool = True) -> None:
        server = self.servers.pop(name)
        await server.stop(clean=clean)
        await server.store.close()

    async def restart(self, *, clean: bool = True) -> None:
        await self.stop("b0", clean=clean)
        await self.start("b0")

    async def write(self, count: int, size: int = 1000, first: int = 0) -> int:
        async with (
            quire.connect(self.uri) as client,
            await client.create_ledger(ensemble_size=2, write_quorum=2, ack_quorum=1) as ledger,
        ):
            for number in range(first, first + count):
                await ledger.append(b"%06d" % number * (size // 6))
            return int(ledger.ledger_id)

    async def read(self) -> None:
        """Ask the sick bookie for all of the ledger."""
        async with quire.connect(self.uri) as client:
            await client.verify_ledger(self.ledger, b"")

    async def quire(self, *arguments: str, code: int = 0) -> str:
        runner = CliRunner(env={"QUIRE_CLUSTER": self.uri, "NO_COLOR": "1", "TERM": "dumb"})
        done = await asyncio.to_thread(runner.invoke, app, [*arguments])
        assert done.exit_code == code, done.output
        return done.output

    async def needs(self, kind: str, what: str, ends: str, *, others: bool = False) -> None:
        """The table, the status and their JSON name one state and what ends it; scripts see it."""
        (name,) = [row for row in await self.rows() if row["id"].startswith("b0")]
        told = [one for one in name["conditions"] if one["kind"] == kind]
        assert len(told) == 1, name["conditions"]
        assert others or len(name["conditions"]) == 1, name["conditions"]
        assert what in told[0]["what"]
        assert ends in told[0]["ends"]
        for command in ("bookies", "status"):
            said = " ".join((await self.quire("cluster", command, code=EXIT_ATTENTION)).split())
            assert f"{kind}: " in said
            assert what in said
            assert ends in said
        [status] = map(
            json.loads, (await self.quire("cluster", "status", "--json", code=EXIT_ATTENTION)).splitlines()
        )
        assert told[0] in status["conditions"][name["id"]]

    async def rows(self, code: int = EXIT_ATTENTION) -> list[dict[str, Any]]:
        said = await self.quire("cluster", "bookies", "--json", code=code)
        return [json.loads(line) for line in said.splitlines()]

    async def standing(self, name: str, standing: str) -> bool:
        """Whether a bookie is registered as this."""
        found = await BookieRegistry(self.servers[name].store).available()
        info = found.get(self.servers[name].bookie_id)
        return info is not None and info.writable == (standing == "up")

    async def well(self) -> None:
        """Nothing needs attention."""
        assert [row["conditions"] for row in await self.rows(code=0)] == [[], []]
        # Two bookies are too few for a ledger of the default shape.
        status = json.loads(await self.quire("cluster", "status", "--json", code=EXIT_ATTENTION))
        assert (status["conditions"], [*status["refused"]]) == ({}, ["3/3/2"])


@pytest.fixture
async def at(tmp_path: Path) -> AsyncIterator[Cluster]:
    at = Cluster(tmp_path)
    try:
        for name in ("b0", "b1"):
            await at.start(name)
        at.ledger = await at.write(40)
        yield at
    finally:
        for name in list(at.servers):
            await at.stop(name)


@pytest.fixture(autouse=True)
def a_busy_machine_is_no_slow_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine of the tests may stand still for a while, which is not what they are about."""
    monkeypatch.setattr(conditions, "LATE_MS", 3_500)


def lines(caplog: pytest.LogCaptureFixture, *words: str) -> int:
    """How many lines of the log have these words."""
    return sum(all(word in record.getMessage() for word in words) for record in caplog.records)


def rot(server: BookieServer, ledger_id: int, first: int, at: int = 400) -> None:
    """Change a byte of a run's record on the disk."""
    record = next(one for one in server.storage.scan() if (one.ledger_id, one.first) == (ledger_id, first))
    path = server.storage._files.path(record.segment)
    with path.open("r+b") as file:
        file.seek(record.offset + at)
        byte = file.read(1)
        file.seek(record.offset + at)
        file.write(bytes([byte[0] ^ 1]))


async def test_damage(at: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    await at.well()
    runs = [one for one in at.sick.storage.scan() if one.ledger_id == at.ledger and one.first >= 0]
    for run in runs[:8]:
        rot(at.sick, at.ledger, run.first)
    await at.read()
    for _ in range(3):
        at.sick.alerts.look()
    assert lines(caplog, "damage in ", ".seg") == 5, "bounded"
    assert lines(caplog, "3 more damaged places") == 1
    assert lines(caplog, "damage: 8 places", "What ends it: `quire ledger recover ID`") == 1, "not for ever"
    await at.needs("damage", "8 places on the disk differ from what was written", f"(ledger {at.ledger})")
    assert "copied anew" in await at.quire("ledger", "recover", str(at.ledger))
    at.sick.alerts.look()
    assert lines(caplog, "no longer the case: damage") == 1
    await at.well()
    await at.quire("ledger", "verify", str(at.ledger))


async def test_a_full_disk(at: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    at.files.error = errno.ENOSPC
    while not at.sick.storage.journal.full:
        await at.write(20, 10_000)
    at.sick.alerts.look()
    at.sick.alerts.look()
    assert lines(caplog, "read-only: the disk is full", "What ends it: delete ledgers or add disk space") == 1
    await at.needs("read-only", "the disk is full", "the bookie continues by itself")
    at.files.error = 0
    at.sick.storage.check_disk()
    at.sick.alerts.look()
    assert lines(caplog, "no longer the case: read-only") == 1
    await until_async(lambda: at.standing("b0", "up"), "it is registered as writable")
    await at.well()


async def test_a_disk_that_failed(at: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    at.files.error = errno.EIO
    while at.sick.storage.failure is None:
        await at.write(20, 10_000)
    at.sick.alerts.look()
    assert lines(caplog, "read-only: writing to", "What ends it: check the disk, then restart") == 1
    await at.needs("read-only", "Nothing more is acknowledged", "restart the bookie")
    at.files.error = 0
    await at.restart()
    for ledger_id in list(at.sick.storage.states.limbo):
        await at.quire("ledger", "recover", str(ledger_id))
    await at.well()


async def test_limbo(at: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    other = await at.write(5)
    server = at.sick
    runs = [one for one in server.storage.scan() if one.ledger_id == at.ledger and one.first >= 0]
    await at.stop("b0", clean=False)
    rot(server, at.ledger, runs[3].first, at=30)  # its header: which entries it had, nobody knows
    await at.start("b0")
    assert list(at.sick.storage.states.limbo) == [at.ledger]
    assert (
        lines(
            caplog,
            f"limbo: the bookie may have lost entries of ledger {at.ledger},",
            "What ends it: run `quire",
        )
        == 1
    )
    await at.needs("limbo", f"may have lost entries of ledger {at.ledger}", "recover ID", others=True)
    assert "Bookies that left limbo" in await at.quire("ledger", "recover", str(at.ledger))
    at.sick.alerts.look()
    assert lines(caplog, "no longer the case: limbo") == 1
    await at.quire("ledger", "verify", str(other))
    await at.needs("damage", "a record's header does not verify", "until the bookie is restarted")


async def test_a_search_for_what_was_lost(
    tmp_path: Path, at: Cluster, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers, listed, loop = asyncio.Event(), SqliteStore.list, asyncio.get_running_loop()

    async def slowly(store: SqliteStore, prefix: str, **how: Any) -> Any:
        if prefix == "ledgers/" and asyncio.get_running_loop() is loop:
            await answers.wait()
        return await listed(store, prefix, **how)

    await at.stop("b0", clean=False)
    for segment in (tmp_path / "b0" / "segments").iterdir():
        segment.unlink()
    monkeypatch.setattr(SqliteStore, "list", slowly)
    await at.start("b0")
    at.sick.alerts.look()
    assert lines(caplog, "read-only: the bookie does not know yet", "What ends it: the bookie continues") == 1
    await at.needs("read-only", "which ledgers it may have lost", "metadata store responds", others=True)
    answers.set()
    await until_async(lambda: not at.sick.alerts.searching())
    at.sick.alerts.look()
    assert lines(caplog, "no longer the case: read-only: the bookie does not know yet") == 1
    await at.needs("limbo", f"lost entries of ledger {at.ledger}", "recover ID", others=True)


async def test_a_held_collection(at: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    await at.sick.collector.collect()
    await at.sick.store.delete(f"passes/{at.sick.bookie_id}")
    await at.sick.collector.collect()
    at.sick.alerts.look()
    assert (
        lines(
            caplog,
            "held collection: the collector deletes no ledgers",
            "What ends it: restore the newest metadata",
        )
        == 1
    )
    await at.needs("held collection", "deletes no ledgers: the store has no counter", "accept-store`")
    await at.quire("cluster", "accept-store", "--yes", "--no-wait")
    await at.sick.collector.collect()
    at.sick.alerts.look()
    assert lines(caplog, "no longer the case: held collection") == 1
    await at.well()


async def test_a_failed_task(
    at: Cluster, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise RuntimeError("a thing that nobody thought of")

    with monkeypatch.context() as patched:
        patched.setattr(at.sick.storage, "check_disk", fail)
        task = next(one for one in at.sick._tasks if one.get_name().startswith("supervise connections"))
        await asyncio.wait([task])
        await asyncio.sleep(0)
    assert lines(caplog, "failed task: supervise connections", "What ends it: restart the bookie") == 1
    await at.needs("failed task", "a thing that nobody thought of", "restart the bookie")
    await at.restart()
    await at.well()


async def test_a_collector_that_fails(tmp_path: Path, at: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    collector = at.sick.collector

    async def fail() -> int:
        raise NoClusterError("the store does not answer")

    with monkeypatch.context() as patched:
        patched.setattr(collector, "collect", fail)
        patched.setattr(collector, "_config", BookieConfig(directory=tmp_path, garbage_seconds=0.01))
        running = asyncio.create_task(collector.run())
        while not collector.report.failures:
            await asyncio.sleep(0)
        running.cancel()
    await at.needs("failed task", "the store does not answer", "next pass that succeeds")
    await collector.collect()
    await at.well()


async def test_a_lost_registration(
    at: Cluster, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = asyncio.Event()
    registration = at.sick._registration
    assert registration is not None
    confirm = registration.confirm

    async def confirmed(**how: int) -> None:
        if not answers.is_set():
            raise NoClusterError("the store does not answer")
        await confirm(**how)

    monkeypatch.setattr(registration, "confirm", confirmed)
    at.sick.lease.registration_lost()
    at.sick.alerts.look()
    at.sick.alerts.look()
    assert (
        lines(
            caplog,
            "lost registration: the bookie defers adds",
            "What ends it: the bookie continues by itself",
        )
        == 1
    )
    await at.needs("lost registration", "has no registration of this bookie", "when it is registered again")
    answers.set()
    async with asyncio.timeout(30):
        while at.sick.lease.pending:
            await asyncio.sleep(0.01)
    at.sick.alerts.look()
    assert lines(caplog, "no longer the case: lost registration") == 1
    await at.well()


BLOCKED, SUSPENDED = "the event loop was blocked for ", "the process did not run for 39 s"


@pytest.mark.parametrize(("late_ms", "ran_ms", "what"), [(4000, 4000, BLOCKED), (39_000, 0, SUSPENDED)])
async def test_a_slow_loop(at, caplog, monkeypatch, late_ms: int, ran_ms: int, what: str) -> None:
    at.clock.more_ms += late_ms
    at.clock.more_cpu_ms += ran_ms
    async with asyncio.timeout(30):
        while not lines(caplog, f"slow loop: {what}"):
            await asyncio.sleep(0.01)
    await at.needs("slow loop", what, "60 s without a blocked loop")
    monkeypatch.setattr(conditions, "REMEMBERED_MS", 0)  # a minute goes by
    at.sick.alerts.look()
    assert lines(caplog, "no longer the case: slow loop") == 1
    await at.well()


async def test_a_bookie_that_is_down_or_silent(at: Cluster) -> None:
    server = at.sick._server
    assert server is not None
    server.close()
    await at.needs("silent", "the request for its state failed", "process runs")
    await at.stop("b0")
    await at.needs("down", "the bookie is not registered", "start the bookie")
    await at.start("b0")
    await at.well()


async def test_a_bookie_that_does_not_say_why_it_is_read_only(at: Cluster) -> None:
    """Java's bookies have no conditions in their INFO, and the registration says what they are."""
    at.sick.ledgers.read_only = True
    await until_async(lambda: at.standing("b0", "read-only"), "it is registered as read-only")
    await at.needs("read-only", "reports no reason", "read the bookie's log")
    at.sick.ledgers.read_only = False
    await until_async(lambda: at.standing("b0", "up"), "it is registered as writable")
    await at.well()


async def test_a_damage_without_a_ledger_is_told_until_the_next_start(
    at: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    while len(at.sick.storage.segments) < 3:
        await at.write(20, 10_000)
    path = at.sick.storage._files.path(min(at.sick.storage.segments))
    await at.stop("b0")
    path.unlink()
    caplog.set_level(logging.ERROR)
    await at.start("b0")
    assert lines(caplog, "damage in", "the segment is missing") == 1
    async with asyncio.timeout(30):
        while at.sick.lost.unknown:
            await asyncio.sleep(0.01)
    await at.needs("damage", "the segment is missing", "until the bookie is restarted", others=True)
    await at.restart()
    for ledger_id in list(at.sick.storage.states.limbo):
        await at.quire("ledger", "recover", str(ledger_id))
    await at.well()


def test_a_registration_that_is_late_is_told_as_such() -> None:
    for says, what in (
        ({"writable": True, "conditions": []}, "still registered as read-only"),
        ({"writable": False, "conditions": []}, "reports no reason"),
        ({"disk": {}}, "reports no reason"),
    ):
        assert what in conditions_of(says, writable=False)[0]["what"]
        assert conditions_of(says) == []


def test_what_a_bookie_says_is_not_trusted() -> None:
    assert conditions_of(None) == conditions_of({}) == conditions_of({"conditions": "none"}) == []
    told = conditions_of({"conditions": [7, {"kind": "limbo", "what": "\x1b[2Jall is well\n", "ends": None}]})
    assert told == [{"kind": "limbo", "what": "?[2Jall is well?", "ends": "?"}]
    many = conditions_of({"conditions": [{"kind": "x" * 5000}] * 1000})
    assert len(many) == 100
    assert len(many[0]["kind"]) == 1000

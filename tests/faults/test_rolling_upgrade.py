"""Bookies of revision 9e5fe3a upgraded one by one under load, writers and readers old and new: docs/upgrading.md."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from faults.harness import eventually, judged, pause, run
from quire_testing.history import HistoryFile, merged
from support.etcd_server import etcd_or_skip
from support.old_programs import NEW, BookieProcess, Program, old_or_skip, wrong_lines
from support.upgrading_page import documented
from support.version_1 import codec
from support.zookeeper_server import zookeeper_or_skip

pytestmark = [pytest.mark.faults, pytest.mark.timeout(3600)]
Record = Callable[[str, dict[str, Any]], None]
WORKER = Path(__file__).with_name("ledger_worker.py")
LOG = "orders"
END_SECONDS = 300


@dataclass(frozen=True)
class Scale:
    """How large a run is.

    Attributes:
        bookies: how many are upgraded.
        quorums: of the ledgers, each written by an old and a new writer.
        pace_ms: a writer pauses so long after each group of entries: what is written must be read back in time.
        between: acknowledged entries of every writer between two steps.
        readers: of each program.
        verified: so many ledgers are verified by the command line of each program.
        commands: look at the cluster with both programs' command lines after each step.
    """

    bookies: int
    quorums: str
    pace_ms: int
    between: int
    readers: int
    verified: int
    commands: bool


SMALL = Scale(3, "3/3/2,2/2/2,3/2/2", 10, 400, 1, 1, commands=False)
FULL = Scale(5, "5/5/3,3/3/2,5/3/2", 0, 10_000, 2, 20, commands=True)


@dataclass
class Client:
    """A process of one program that writes, reads, or appends to the log.

    Attributes:
        told: sums of what it said, by name; `error CODE` counts errors that it got over.
    """

    program: Program
    name: str
    process: asyncio.subprocess.Process
    history: Path
    errors: Path
    told: Counter[str] = field(default_factory=Counter)
    lines: int = 0
    _listening: asyncio.Task[None] | None = None

    async def listen(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            word = line.decode().strip()
            facts = json.loads(word) if word.startswith("{") else {}
            if word.isdigit():
                self.told["acknowledged"] = int(word)  # a log worker says its sum
            if code := facts.pop("error", None):
                self.told[f"error {code}"] += 1
            facts.pop("ledger", None)
            self.told.update({name: int(value) for name, value in facts.items()})
            self.lines += 1

    async def stop(self) -> None:
        """Let it end what it does; it ends well."""
        assert self.process.stdin is not None
        assert self._listening is not None
        with contextlib.suppress(ConnectionError):
            self.process.stdin.close()
        async with asyncio.timeout(END_SECONDS):
            await self._listening
            code = await self.process.wait()
        assert code == 0, f"{self.name} ended with {code}: {self.errors.read_text()[-3000:]}"


class Upgrade:
    """One cluster on its way from the old program to the new one."""

    def __init__(self, directory: Path, uri: str, old: Program, scale: Scale, chance: random.Random) -> None:
        self.directory, self.uri, self.old, self.scale, self.chance = directory, uri, old, scale, chance
        self.bookies = [
            BookieProcess(f"b{number}", directory / f"b{number}", uri) for number in range(scale.bookies)
        ]
        self.clients: list[Client] = []
        self.unstopped: list[Client] = []
        self.figures: Counter[str] = Counter()

    async def begin(self) -> None:
        """A cluster that only old programs have seen."""
        await asyncio.to_thread(self.bookies[0].start, self.old)  # it makes the store
        await asyncio.gather(*(asyncio.to_thread(bookie.start, self.old) for bookie in self.bookies[1:]))
        quorums = ("-E", "2", "-w", "2", "-a", "2") if self.scale.bookies == 3 else ()
        await self.command(self.old, "log", "create", LOG, *quorums)

    async def command(self, program: Program, *arguments: str, codes: tuple[int, ...] = (0,)) -> str:
        """A command that must succeed, or end with one of these codes; what it prints."""
        done = await asyncio.to_thread(program.quire, *arguments, "--cluster", self.uri)
        assert done.returncode in codes, f"{program.name} {arguments}: {done.stderr}"
        return done.stdout

    async def client(self, program: Program, mode: str, *rest: str, number: int = 0) -> Client:
        """Start a client process."""
        name = f"{program.name}-{mode}-{number}"
        history, errors = self.directory / f"{name}.jsonl", self.directory / f"{name}.err"
        if mode == "log":
            script, words = program.tree / "tests" / "faults" / "log_worker.py", [self.uri, LOG]
            words += [str(100 + len(self.clients)), str(history), "duel"]
        else:
            script, words = WORKER, [mode, self.uri, name, str(history), *rest]
        with errors.open("wb") as stream:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                str(script),
                *words,
                env=program.environment,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=stream,
                limit=1 << 20,
            )
        made = Client(program, name, process, history, errors)
        made._listening = asyncio.create_task(made.listen())
        self.clients.append(made)
        return made

    async def load(self) -> list[Client]:
        """Writers, readers and log writers of both programs."""
        started = []
        for program in (self.old, NEW):
            started.append(await self.client(program, "write", self.scale.quorums, str(self.scale.pace_ms)))
            started.append(await self.client(program, "log"))
            for number in range(self.scale.readers):
                started.append(await self.client(program, "read", number=number))
        return started

    async def progress(self, among: list[Client], what: str) -> None:
        """Every writer has got so many entries acknowledged since now, and every reader has said something."""
        before = {client.name: (client.told["acknowledged"], client.lines) for client in among}

        def moved() -> bool:
            for client in among:
                assert client.process.returncode is None, f"{client.name} ended: {client.errors.read_text()}"
                acknowledged, lines = before[client.name]
                if "write" in client.name and client.told["acknowledged"] < acknowledged + self.scale.between:
                    return False
                if client.lines == lines:
                    return False
            return True

        try:
            await eventually(moved, what, timeout=END_SECONDS)
        except TimeoutError as error:
            said = "\n".join(f"{client.name} {client.lines} {dict(client.told)}" for client in among)
            raise AssertionError(f"no {what}: {before}\n{said}") from error

    async def upgrade(self, bookie: BookieProcess, among: list[Client], *, kill: bool) -> None:
        """One bookie: it goes, the load goes on, it comes back as the new program."""
        await pause(self.chance)
        if kill:
            await asyncio.to_thread(bookie.kill)
            self.figures["kills"] += 1
        else:
            assert await asyncio.to_thread(bookie.stop) == 0
        await self.progress(among, f"progress without {bookie.name}")
        await asyncio.to_thread(bookie.start, NEW)
        await self.progress(among, f"progress with {bookie.name} upgraded")
        if self.scale.commands:
            await self.look()

    async def look(self) -> None:
        """Both programs' command lines can tell what is there."""
        for program in (self.old, NEW):
            # A bookie that was killed may have ledgers in limbo: then they need attention.
            status = json.loads(await self.command(program, "cluster", "status", "--json", codes=(0, 5)))
            assert status["bookies"]["up"] == len(self.bookies), status
            found = await self.command(program, "cluster", "bookies", "--json", codes=(0, 5))
            rows = {row["id"]: row for row in map(json.loads, found.splitlines())}
            assert all(row["answers"] == "ok" for row in rows.values()), rows
        for bookie in self.bookies:
            if bookie.program is self.old:
                assert (rows[bookie.id]["protocol"], rows[bookie.id]["features"]) == ("native 1", None)
            else:
                assert rows[bookie.id]["protocol"] == f"native {codec('VERSION')}"

    async def read_back(self) -> None:
        """Everything, by an old and a new reader; every copy, by a scan; a verification of some ledgers by each."""
        await self.read_by(self.old)  # what writers left open is closed then
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.read_by(NEW))
            tasks.create_task(self.scan())
            tasks.create_task(self.verify())
        assert self.figures["read back by old"] == self.figures["read back by new"]

    async def read_by(self, program: Program, *, number: int = 0) -> None:
        reader = await self.client(program, "read-all", LOG, number=number)
        await reader.stop()
        self.figures[f"read back by {program.name}"] = reader.told["read"] + reader.told["records"]
        self.figures["ledgers"] = reader.told["ledgers"]

    async def scan(self) -> None:
        scanner = await self.client(NEW, "scan", LOG)
        await scanner.stop()
        self.figures["copies missing"] = scanner.told["copies missing"]

    async def verify(self) -> None:
        """`quire ledger verify` of both programs: nothing lost, nothing too few, nothing different; holes there may be."""
        listed = await self.command(NEW, "ledger", "list", "--json")
        ledgers = [json.loads(line)["ledger_id"] for line in listed.splitlines()]
        for ledger in self.chance.sample(ledgers, min(self.scale.verified, len(ledgers))):
            for program in (self.old, NEW):
                arguments = ("ledger", "verify", str(ledger), "--json")
                found = json.loads(await self.command(program, *arguments, codes=(0, 1)))
                assert found["good"], found
                assert not (found["lost"] or found["below_ack_quorum"] or found["different"]), found

    async def refused_directory(self, bookie: BookieProcess) -> None:
        """An old program does not take what the new one has opened: it ends, and says why in one sentence."""
        assert await asyncio.to_thread(bookie.stop) == 0
        said = await asyncio.to_thread(
            self.old.quire, "bookie", "--dir", str(bookie.directory), "--cluster", self.uri, "--listen", "0"
        )
        assert said.returncode == 1, said
        assert "written by a newer version (format 2" in documented(said.stderr)
        if self.scale.commands and self.checks_values:
            refused = await asyncio.to_thread(NEW.quire, "cluster", "upgrade", "--cluster", self.uri)
            assert bookie.id in refused.stderr
            assert "so their versions are unknown" in documented(refused.stderr)
        await asyncio.to_thread(bookie.start, NEW)

    @property
    def checks_values(self) -> bool:
        """Whether the store has a format of Quire's own; in ZooKeeper all values are as Java knows them."""
        return not self.uri.startswith("zk")

    async def upgrade_store(self) -> None:
        """`quire cluster upgrade`; from then on old programs refuse the store, and new ones find all that was there."""
        late = []
        if self.scale.commands and self.checks_values:
            late = [await self.client(self.old, mode, "3/3/2", "0", number=9) for mode in ("write", "read")]
            await self.progress(late, "progress of clients that should have been stopped")
        await self.command(NEW, "cluster", "upgrade")
        if late:
            await self.ended_or_refused(late)
        commands = (("cluster", "status"), ("ledger", "list"), ("log", "show", LOG))
        for arguments in commands if self.scale.commands else commands[:1]:
            done = await asyncio.to_thread(self.old.quire, *arguments, "--cluster", self.uri)
            assert done.returncode == int(self.checks_values), done
            assert not self.checks_values or documented(done.stderr)
        before = self.figures["read back by new"]
        await self.read_by(NEW, number=1)
        assert (
            self.figures["read back by new"] >= before if late else self.figures["read back by new"] == before
        )

    async def ended_or_refused(self, late: list[Client]) -> None:
        """Old clients that were not stopped before the store's upgrade get errors, and nothing wrong: the judge sees to it."""

        def refused() -> bool:
            return all(
                client.process.returncode is not None
                or any(name.startswith("error ") for name in client.told)
                for client in late
            )

        await eventually(refused, "an error for old clients", timeout=END_SECONDS)
        for client in late:
            if client.process.returncode is None:
                client.process.kill()
            await client.process.wait()
            self.unstopped.append(client)

    async def too_early(self) -> None:
        """A store is not upgraded while one bookie is old: its id is named, and nothing has changed."""
        done = await asyncio.to_thread(NEW.quire, "cluster", "upgrade", "--cluster", self.uri)
        assert done.returncode == int(self.checks_values), done
        if self.checks_values:
            [last] = [bookie for bookie in self.bookies if bookie.program is self.old]
            assert last.id in done.stderr
            assert documented(done.stderr)

    def judge(self) -> None:
        """No wrong answer to anybody; nobody said what it should not have had to."""
        with contextlib.ExitStack() as opened:
            files = [
                HistoryFile(opened.enter_context(client.history.open("rb")), client.history.name)
                for client in self.clients
            ]
            verdict = judged(merged(files), 1, 2, 3, 4, 5, 7, 8, 9, 10)
        self.figures["events judged"] = verdict.events
        self.figures["wrong answers"] = verdict.counts.total()
        logs = [log for bookie in self.bookies for _, log in bookie.logs]
        logs += [client.errors for client in self.clients if client not in self.unstopped]
        wrong = {log.name: wrong_lines(log) for log in logs}
        assert not any(wrong.values()), {name: lines[:5] for name, lines in wrong.items() if lines}
        for client in self.clients:
            self.figures[f"acknowledged to {client.program.name}"] += client.told["acknowledged"]
            for name in [name for name in client.told if name.startswith("error ")]:
                self.figures[name] += client.told[name]

    async def end(self) -> None:
        for bookie in self.bookies:
            if bookie.process is not None and bookie.process.poll() is None:
                await asyncio.to_thread(bookie.kill)
        for client in self.clients:
            if client.process.returncode is None:
                client.process.kill()
                await client.process.wait()


async def roll(
    directory: Path, uri: str, old: Program, scale: Scale, chance: random.Random
) -> dict[str, Any]:
    """The whole way; the figures of it."""
    began = time.monotonic()
    cluster = Upgrade(directory, uri, old, scale, chance)
    try:
        await cluster.begin()
        clients = await cluster.load()
        await cluster.progress(clients, "progress of all clients with old bookies")
        order = chance.sample(cluster.bookies, len(cluster.bookies))
        for number, bookie in enumerate(order):
            if bookie is order[-1]:
                await cluster.too_early()
            await cluster.upgrade(bookie, clients, kill=number % 2 == 0)
        # All bookies are new. Now the clients: each old one goes, and the new ones go on.
        for client in [client for client in clients if client.program is old]:
            await client.stop()
        rest = [client for client in clients if client.program is NEW]
        await cluster.progress(rest, "progress of the new clients")
        for client in rest:
            await client.stop()
        await cluster.read_back()
        await cluster.refused_directory(order[0])
        await cluster.upgrade_store()
        cluster.judge()
        cluster.figures["bookies"] = scale.bookies
        return {**dict(sorted(cluster.figures.items())), "seconds": round(time.monotonic() - began)}
    finally:
        await cluster.end()


def rolled(tmp_path: Path, uri: str, scale: Scale, chance: random.Random) -> dict[str, Any]:
    figures = run(roll(tmp_path, uri, old_or_skip(), scale, chance))
    for program in ("old", "new"):
        assert figures[f"acknowledged to {program}"] >= 2 * scale.between * scale.bookies
    shutil.rmtree(tmp_path)
    return figures


@pytest.mark.slow
def test_three_bookies_one_by_one(tmp_path: Path, chance: random.Random) -> None:
    print(rolled(tmp_path, f"sqlite:{tmp_path / 'metadata.db'}", SMALL, chance))


@pytest.mark.slow
@pytest.mark.parametrize("store", ["sqlite", "etcd", "zookeeper"])
def test_five_bookies_one_by_one(store: str, tmp_path: Path, chance: random.Random, record: Record) -> None:
    match store:
        case "sqlite":
            uri = f"sqlite:{tmp_path / 'metadata.db'}"
        case "etcd":
            uri = f"etcd://{etcd_or_skip().host}/rolling{chance.getrandbits(32)}"
        case _:
            uri = f"zk://{zookeeper_or_skip().host}/rolling{chance.getrandbits(32)}"
    record(f"rolling_upgrade_{store}", rolled(tmp_path, uri, FULL, chance))

"""A cluster goes from a made-up older version to today's under load, bookie by bookie: docs/upgrading.md."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from faults.harness import eventually, judged, pause
from quire.core import version
from quire_testing.history import HistoryFile, merged
from support.programs import NEW, OLDER, UNRELEASED, BookieProcess, Program, wrong_lines

pytestmark = [pytest.mark.faults, pytest.mark.timeout(600)]
WORKER = str(Path(__file__).with_name("ledger_worker.py"))
BOOKIES = 3
QUORUMS = "3/3/2,2/2/2,3/2/2"
PACE_MS = "10"
BETWEEN = 50
"""Acknowledged entries of every writer between two steps."""
END_SECONDS = 120


@dataclass
class Client:
    """A process of one program that writes or reads; `told`: sums of what it said, by name."""

    name: str
    process: asyncio.subprocess.Process
    history: Path
    errors: Path
    told: Counter[str] = field(default_factory=Counter)
    listening: asyncio.Task[None] | None = None

    async def listen(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            facts = json.loads(line)
            self.told["lines"] += 1
            self.told.update({name: facts[name] for name in facts.keys() - {"error", "ledger"}})

    async def stop(self) -> None:
        """Let it end what it does; it ends well."""
        assert self.process.stdin is not None
        assert self.listening is not None
        with contextlib.suppress(ConnectionError):
            self.process.stdin.close()
        async with asyncio.timeout(END_SECONDS):
            await self.listening
            code = await self.process.wait()
        assert code == 0, f"{self.name} ended with {code}: {self.errors.read_text()[-3000:]}"


class Upgrade:
    """One cluster on its way from the older program to today's."""

    def __init__(self, directory: Path, chance: random.Random) -> None:
        self.directory, self.uri, self.chance = directory, f"sqlite:{directory / 'metadata.db'}", chance
        self.bookies = [BookieProcess(f"b{n}", directory / f"b{n}", self.uri) for n in range(BOOKIES)]
        self.clients: list[Client] = []

    def command(self, *arguments: str, code: int = 0, program: Program = NEW) -> str:
        """What a command says that ends with this code."""
        done = program.quire(*arguments, "--cluster", self.uri)
        assert done.returncode == code, (arguments, done)
        assert "Traceback" not in done.stderr
        return done.stderr if code else done.stdout

    async def client(self, program: Program, mode: str, *rest: str) -> Client:
        name = f"{program.name}-{mode}"
        history, errors = self.directory / f"{name}.jsonl", self.directory / f"{name}.err"
        pipe = asyncio.subprocess.PIPE
        with errors.open("wb") as stream:
            process = await asyncio.create_subprocess_exec(
                *program.python(WORKER, mode, self.uri, name, str(history), *rest),
                stdin=pipe,
                stdout=pipe,
                stderr=stream,
            )
        made = Client(name, process, history, errors)
        made.listening = asyncio.create_task(made.listen())
        self.clients.append(made)
        return made

    async def progress(self, among: list[Client], what: str) -> None:
        """Every writer has got so many entries acknowledged since now, and every reader has said something."""
        before = {client.name: client.told.copy() for client in among}

        def moved() -> bool:
            for client in among:
                assert client.process.returncode is None, f"{client.name}: {client.errors.read_text()}"
                since = client.told - before[client.name]
                if since["acknowledged" if "write" in client.name else "lines"] < (
                    BETWEEN if "write" in client.name else 1
                ):
                    return False
            return True

        await eventually(moved, what, timeout=END_SECONDS)

    async def upgrade(self, bookie: BookieProcess, *, kill: bool) -> None:
        """One bookie goes, the load goes on, it comes back as today's program."""
        await pause(self.chance)
        await asyncio.to_thread(bookie.kill if kill else bookie.stop)
        await self.progress(self.clients, f"progress without {bookie.name}")
        await asyncio.to_thread(bookie.start, NEW)
        await self.progress(self.clients, f"progress with {bookie.name} upgraded")

    def registered(self) -> dict[str, str]:
        """The features that each bookie has registered."""
        found = self.command("cluster", "bookies", "--json")
        return {row["id"]: row["features"] for row in map(json.loads, found.splitlines())}

    def judge(self) -> None:
        """No wrong answer to anybody; nobody said what it should not have had to."""
        with contextlib.ExitStack() as opened:
            files = [
                HistoryFile(opened.enter_context(client.history.open("rb")), client.history.name)
                for client in self.clients
            ]
            judged(merged(files), 1, 2, 3, 4, 5, 7, 8, 9)
        logs = [log for bookie in self.bookies for _, log in bookie.logs]
        wrong = {log.name: wrong_lines(log) for log in logs + [client.errors for client in self.clients]}
        assert not any(wrong.values()), {name: lines[:5] for name, lines in wrong.items() if lines}

    async def end(self) -> None:
        for bookie in self.bookies:
            if bookie.process is not None and bookie.process.poll() is None:
                await asyncio.to_thread(bookie.kill)
        for client in self.clients:
            if client.process.returncode is None:
                client.process.kill()
                await client.process.wait()


async def roll(cluster: Upgrade) -> None:
    await asyncio.to_thread(cluster.bookies[0].start, OLDER)  # it makes the store
    for bookie in cluster.bookies[1:]:
        await asyncio.to_thread(bookie.start, OLDER)
    for program in (OLDER, NEW):
        await cluster.client(program, "write", QUORUMS, PACE_MS)
        await cluster.client(program, "read")
    await cluster.progress(cluster.clients, "progress of all clients with older bookies")
    order = cluster.chance.sample(cluster.bookies, BOOKIES)
    for number, bookie in enumerate(order):
        if bookie is order[-1]:
            assert [features for features in cluster.registered().values() if not features] == [""]
            assert "terms" in cluster.command("stream", "create", "ticks", code=1)
        await cluster.upgrade(bookie, kill=number % 2 == 0)
    assert all(features and "terms" in features for features in cluster.registered().values())
    cluster.command("stream", "create", "ticks")
    for client in cluster.clients:
        await client.stop()
    for program in (OLDER, NEW):
        await (await cluster.client(program, "read-all")).stop()
    await (await cluster.client(NEW, "scan")).stop()
    cluster.judge()


async def test_bookies_one_by_one(tmp_path: Path, chance: random.Random) -> None:
    cluster = Upgrade(tmp_path, chance)
    try:
        await roll(cluster)
    finally:
        await cluster.end()


def test_what_another_revision_wrote_is_refused_in_a_sentence(tmp_path: Path) -> None:
    for own, other, said in (
        (UNRELEASED, NEW, f"written by {version.UNRELEASED}"),
        (NEW, UNRELEASED, "version"),
    ):
        folder = tmp_path / own.name
        folder.mkdir()
        uri = f"sqlite:{folder / 'metadata.db'}"
        bookie = BookieProcess("b", folder / "b", uri)
        bookie.start(own)
        assert bookie.stop() == 0
        done = other.quire("cluster", "status", "--cluster", uri)
        assert (done.returncode, said in done.stderr, "Traceback" in done.stderr) == (1, True, False), done
        facts, log = bookie.try_to_start(other)
        assert said in facts["error"]["message"], (facts, log)

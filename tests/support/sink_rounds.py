"""Rounds of a streaming query whose drivers die, and what the log holds afterwards: each row once, in order, or not.

A round is made from a seed. Bookies and the metadata file are this process's; each life of the driver is a process.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from multiprocessing import forkserver
from pathlib import Path
from typing import Any, Self

from quire.blocking import loop
from quire.bookie.config import BookieConfig
from quire.bookie.server import BookieServer
from quire.core.errors import QuireError
from quire.log.collecting import LogCollector
from quire.log.config import LogConfig
from quire.metadata.connect import open_store
from quire.storage.config import StorageConfig
from support.sink_life import PARTITIONS, ROWS, Life, Query, live, value

BATCHES = 3
BOOKIES = 4
"""One more than an ensemble, so that one may be away."""
STEPS = 60
"""A life without faults takes about so many steps (19 for a batch of two tasks)."""
LIVES_MAX = 12
LIFE_SECONDS = 120


@dataclass
class Round:
    """What is to happen, and what did.

    Attributes:
        led: a leader appends beside the query.
        steps: the steps at which lives ended.
    """

    seed: int
    lives: list[Life]
    led: bool = False
    inline: str = "0"
    bookie: bool = False
    sink: str = "shipped"
    steps: list[str] = field(default_factory=list)
    missing: int = 0
    duplicates: int = 0
    disordered: bool = False

    @property
    def good(self) -> bool:
        """Each row once, in order."""
        return not (self.missing or self.duplicates or self.disordered)


def round_of(seed: int, **changes: Any) -> Round:
    """A round by chance."""
    chance = random.Random(seed)
    lives = [_life(chance) for _ in range(chance.randint(1, 3))]
    found = Round(
        seed,
        lives,
        led=chance.random() < 0.25,
        inline=chance.choice(["0", "0", "1m"]),
        bookie=chance.random() < 0.2,
    )
    return replace(found, **changes)


def _life(chance: random.Random) -> Life:
    kind = chance.choice(["kill", "kill", "kill", "fail", "fail", "stop", "lose"])
    step = chance.randint(1, STEPS)
    lost: tuple[tuple[int, str], ...] = ()
    if chance.random() < 0.4 or kind == "lose":
        lost = tuple((n, chance.choice(["before", "after"])) for n in chance.sample(range(4), 2))
    life = Life(lost=lost, away=chance.choice([0, 0, 0, 3, 60]))
    if kind == "kill":
        return replace(life, killed_at=step)
    if kind == "fail":
        return replace(life, fails_at=step)
    return replace(life, stopped_at=step) if kind == "stop" else life


class Rounds:
    """A cluster on which rounds run; a context manager."""

    def __init__(self, folder: Path) -> None:
        self.uri = f"sqlite:{folder}/metadata.db"
        self._folder = folder
        self._background = loop.current()
        self._processes = multiprocessing.get_context("forkserver")
        self._processes.set_forkserver_preload(["support.sink_life"])
        # The server of Python 3.11 does not take over `sys.path`: without it each life would import everything anew.
        before = os.environ.get("PYTHONPATH")
        os.environ["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
        forkserver.ensure_running()
        os.environ.pop("PYTHONPATH")
        if before is not None:
            os.environ["PYTHONPATH"] = before

    def __enter__(self) -> Self:
        self._background.run(self._start)
        return self

    async def _start(self) -> None:
        import quire

        self._store = await open_store(self.uri, create=True)
        self.bookies = [self._bookie(n) for n in range(BOOKIES)]
        for bookie in self.bookies:
            await bookie.start()
        self.client = await quire.connect(self.uri)

    def _bookie(self, number: int) -> BookieServer:
        storage = StorageConfig(segment_bytes=4 << 20)
        config = BookieConfig(self._folder / f"b{number}", name=f"b{number}", storage=storage)
        return BookieServer(config, self._store)

    def __exit__(self, *_: object) -> None:
        async def stop() -> None:
            await self.client.close()
            for bookie in self.bookies:
                await bookie.stop()
            await self._store.close()

        self._background.run(stop)

    # --- a round -----------------------------------------------------------------------------------------------

    def run(self, this: Round) -> Round:
        """Play a round and look at the log."""
        name = f"log-{this.seed}-{this.sink.replace(' ', '-')}"
        folder = self._folder / name
        folder.mkdir()
        query = Query(self.uri, str(folder), name, BATCHES, this.inline, sink=this.sink)
        self._background.run(self._create, name)
        leading = self._background.run(self._lead, name) if this.led else None
        stopped: list[Any] = []
        with self._one_bookie_away(this):
            for life in this.lives:
                if self._lives(query, life, this, stopped) == 0:
                    break
        if leading is not None:
            # The leader dies where it is, so what is left of it has to be taken over.
            self._background.run(self._die, leading)
        query = replace(query, takeover=this.led)
        if self._finish(query, this, stopped):
            # The last note is lost: the query begins again behind the one before.
            notes = folder / "commits"
            max(notes.iterdir(), key=lambda path: int(path.name)).unlink()
            self._finish(query, this, stopped)
        self._background.run(self._judge, name, this)
        return this

    def _finish(self, query: Query, this: Round, stopped: list[Any]) -> bool:
        for _ in range(LIVES_MAX):
            if self._lives(query, Life(), this, stopped) == 0:
                return True
        this.missing += PARTITIONS * ROWS * BATCHES
        this.steps.append("never ends")
        return False

    def _lives(self, query: Query, life: Life, this: Round, stopped: list[Any]) -> int | None:
        """One life, to its end or until it stands still; those that stood still before go on when it is over."""
        note = Path(query.folder) / "step"
        note.unlink(missing_ok=True)
        process = self._processes.Process(target=live, args=(query, life))
        process.start()
        assert process.pid is not None
        code = _ended(process)
        if note.exists():
            this.steps.append(note.read_text())
        if code is None:
            stopped.append(process)
            return None
        for each in stopped:
            os.kill(each.pid, signal.SIGCONT)
            each.join(LIFE_SECONDS)
        stopped.clear()
        return code

    @contextlib.contextmanager
    def _one_bookie_away(self, this: Round) -> Iterator[None]:
        if not this.bookie:
            yield
            return
        number = this.seed % BOOKIES
        self._background.run(self.bookies[number].stop)
        try:
            yield
        finally:
            self.bookies[number] = self._bookie(number)
            self._background.run(self.bookies[number].start)

    async def _create(self, name: str) -> None:
        await self.client.log(name).create()

    async def _lead(self, name: str) -> Any:
        writer = await self.client.log(name, config=LogConfig(host="beside")).open_writer()
        await writer.append_many([b"leader 0", b"leader 1"])
        return writer

    async def _die(self, leading: Any) -> None:
        with contextlib.suppress(QuireError):
            await leading.append(b"leader 2")
        await leading.abandon()

    async def _judge(self, name: str, this: Round) -> None:
        """Each row once, each batch whole and in order; and so still when the garbage is collected."""
        await LogCollector(self.client, grace_ms=0).collect()
        found: list[str] = []
        try:
            async for record in self.client.log(name).read():
                found.append((record.value or b"").decode())
        except QuireError as error:
            this.steps.append(error.code)  # what is listed and gone is missing
        rows = [each for each in found if not each.startswith("leader")]
        wanted = [
            value(batch, partition, row)
            for batch in range(BATCHES)
            for partition in range(PARTITIONS)
            for row in range(ROWS)
        ]
        count = Counter(rows)
        if this.led:
            leader = [each for each in found if each.startswith("leader")]
            this.disordered |= leader[:2] != ["leader 0", "leader 1"]
        this.missing += sum(1 for each in wanted if not count[each])
        this.duplicates += sum(number - 1 for number in count.values())
        this.disordered |= not (this.missing or this.duplicates) and rows != wanted


def _ended(process: Any) -> int | None:
    """Wait for a process of the fork server, whose parent is not this one: by its state in /proc."""
    while process.exitcode is None:
        process.join(0.02)
        if process.exitcode is None and _stopped(process.pid):
            return None
    return int(process.exitcode)


def _stopped(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T"
    return False

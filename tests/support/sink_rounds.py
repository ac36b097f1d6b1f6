"""Rounds of a streaming query whose processes die, and what the log holds afterwards: each row once, in order, or not.

A round is made from a seed. Bookies, the metadata store where it is a server, the log's leader, and the driver with its
worker and planner are processes, and each of them is killed at each step (`sink_faults.py`).
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import signal
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from multiprocessing import forkserver
from pathlib import Path
from typing import Any, Self

from quire.core.errors import QuireError
from quire.log.collecting import LogCollector
from support.etcd_server import EtcdServer
from support.sink_cluster import SinkCluster, lives, state
from support.sink_faults import BATCHES, PLANNED, VICTIMS, Life, any_life, planned_lives
from support.sink_leader import lead
from support.sink_life import PARTITIONS, ROWS, Query, live, value
from support.waiting import until

LIVES_MAX = 12
PRELOAD = [
    "support.sink_life",
    "support.sink_leader",
    "uvloop",
    "quire.client.connecting",
    "quire.metadata.etcd.store",
    "quire.metadata.sqlite.store",
]
"""What a life would import, imported once."""
LIFE_SECONDS = 300


@dataclass
class Round:
    """What is to happen, and what did.

    Attributes:
        planned: victim, phase, role and step of the planned kill; None for a round with lives of its own.
        led: a leader appends beside the query.
        follows: another leader takes over when the first one has died.
        takeover: the query may end a leader from the beginning.
        forgets: at the end the last batch's note is deleted, and the query run again.
        struck: victim, phase and step of each kill that took place; the phase is "" for one by the way.
        other: what else took place.
        ended: how lives ended that did not end well.
    """

    seed: int
    lives: list[Life]
    planned: tuple[str, str, str, str] | None = None
    led: bool = False
    follows: bool = False
    takeover: bool = False
    forgets: bool = True
    inline: str = "0"
    sink: str = "shipped"
    struck: list[tuple[str, str, str]] = field(default_factory=list)
    other: list[str] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    missing: int = 0
    duplicates: int = 0
    disordered: bool = False

    @property
    def good(self) -> bool:
        """Each row once, in order."""
        return not (self.missing or self.duplicates or self.disordered)

    @property
    def struck_as_planned(self) -> bool:
        """The planned kill took place."""
        return self.planned is not None and (*self.planned[:2], self.planned[3]) in self.struck


def round_of(seed: int, victims: Iterable[str] = ()) -> Round:
    """A round by chance; its planned kill goes through victims and steps as seeds are counted up.

    Args:
        seed: of everything.
        victims: only these are killed; empty for all.
    """
    chance = random.Random(seed)
    planned = [each for each in PLANNED if not victims or each[0] in victims]
    victim, phase, _, step = kill = planned[seed % len(planned)]
    lives = planned_lives(chance, kill)
    if chance.random() < 0.3:
        lives.append(any_life(chance))
    led = victim == "leader" or step == "fence" or chance.random() < 0.1
    few = phase == "inline" or (phase in {"swap", ""} and chance.random() < 0.3)
    return Round(
        seed,
        lives,
        kill,
        led=led,
        follows=led and chance.random() < 0.5,
        takeover=step == "fence",
        forgets=chance.random() < 0.34,
        inline="1m" if few else "0",
    )


class Rounds:
    """A cluster on which rounds run; a context manager.

    Args:
        folder: for its data.
        etcd: the metadata store, which may be killed; None for a file.
    """

    def __init__(self, folder: Path, etcd: EtcdServer | None = None) -> None:
        self._folder = folder
        self._cluster = SinkCluster(folder, etcd)
        self.victims = tuple(each for each in VICTIMS if etcd or each != "store")
        self._processes = multiprocessing.get_context("forkserver")
        self._processes.set_forkserver_preload(PRELOAD)
        # The server of Python 3.11 does not take over `sys.path`: without it each life would import everything anew.
        before = os.environ.get("PYTHONPATH")
        os.environ["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
        forkserver.ensure_running()
        os.environ.pop("PYTHONPATH")
        if before is not None:
            os.environ["PYTHONPATH"] = before
        self._leader: Any = None

    def __enter__(self) -> Self:
        self._cluster.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._cluster.__exit__()

    # --- a round -----------------------------------------------------------------------------------------------

    def run(self, this: Round) -> Round:
        """Play a round and look at the log."""
        name = f"log-{this.seed}-{this.sink.replace(' ', '-')}"
        folder = self._folder / name
        for part in ("struck", "helpers", "offsets", "commits"):
            _made(folder / part)
        query = Query(self._cluster.uri, str(folder), name, BATCHES, this.inline, this.takeover, this.sink)
        self._cluster.run(self._cluster.client.log(name).create)
        leaders = 0
        code: int | None = None
        stopped: list[Any] = []
        for number, life in enumerate(this.lives):
            if this.led and not self._leads() and (leaders == 0 or (this.follows and leaders == 1)):
                leaders += 1
                self._lead(name, folder, leaders)
            code = self._lives(query, replace(life, number=number), this, stopped)
            if code == 0:
                break
        self._end_leader()
        query = replace(query, takeover=this.led)
        if (code == 0 or self._finish(query, this, stopped)) and this.forgets:
            # The query begins again behind the note before.
            notes = folder / "commits"
            max(notes.iterdir(), key=lambda path: int(path.name)).unlink()
            self._finish(query, this, stopped)
        self._cluster.await_store()
        if this.led:
            self._cluster.run(self._take_over, name)
        self._cluster.run(self._judge, name, folder, this)
        self._cluster.run(self._cluster.client.log(name).delete)
        return this

    def _finish(self, query: Query, this: Round, stopped: list[Any]) -> bool:
        for number in range(LIVES_MAX):
            if self._lives(query, Life(number=100 + number), this, stopped) == 0:
                return True
        this.missing += PARTITIONS * ROWS * BATCHES
        this.ended.append("never ends")
        return False

    def _lives(self, query: Query, life: Life, this: Round, stopped: list[Any]) -> int | None:
        """One life, to its end or until it stands still; those that stood still before go on when it is over."""
        folder = Path(query.folder)
        process = self._processes.Process(
            target=live, args=(query, replace(life, pids=self._pids(this, life)))
        )
        process.start()
        code = self._ended(process)
        self._note(folder, life, this)
        self._cluster.mend()
        if code is None:
            stopped.append(process)
            return None
        for each in stopped:
            os.kill(each.pid, signal.SIGCONT)
        helpers = [int(path.name) for path in (folder / "helpers").iterdir()]
        for pid in helpers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        for each in stopped:
            each.join(LIFE_SECONDS)
        stopped.clear()
        until(lambda: not any(map(lives, helpers)), "the end of what a driver left", LIFE_SECONDS)
        if code and (failed := folder / f"failed-{life.number}").exists():
            this.ended.append(failed.read_text())
        return code

    def _ended(self, process: Any) -> int | None:
        """Wait for a process of the fork server, whose parent is not this one: by its state in /proc."""
        while process.exitcode is None:
            process.join(0.02)
            if process.exitcode is None and state(process.pid) == "T":
                return None
            self._cluster.mend_store()  # the life goes on meanwhile
        return int(process.exitcode)

    def _note(self, folder: Path, life: Life, this: Round) -> None:
        for number, fault in enumerate(life.faults):
            if (folder / "struck" / f"{life.number}-{number}").exists():
                if fault.how == "kill":
                    this.struck.append((fault.victim, fault.phase, fault.step))
                else:
                    this.other.append(f"{fault.how} at {fault.step}")

    # --- what is outside ---------------------------------------------------------------------------------------

    def _pids(self, this: Round, life: Life) -> tuple[tuple[str, int], ...]:
        """Whom a fault from outside would kill now."""
        bookie = any(fault.victim == "bookie" for fault in life.faults)
        found = self._cluster.pids(bookie=this.seed if bookie else None)
        if self._leads():
            found["leader"] = self._leader.pid
        return tuple(found.items())

    def _leads(self) -> bool:
        return self._leader is not None and self._leader.exitcode is None

    def _lead(self, name: str, folder: Path, number: int) -> None:
        said = folder / f"leader-{number}"
        self._leader = self._processes.Process(
            target=lead, args=(self._cluster.mortal_uri, name, str(said), number)
        )
        self._leader.start()
        until(lambda: said.exists() or not self._leads(), "a leader", LIFE_SECONDS)

    def _end_leader(self) -> None:
        """It dies where it is, so what is left of it has to be taken over."""
        if self._leader is not None:
            self._leader.kill()
            self._leader.join()
            self._leader = None

    # --- the end -----------------------------------------------------------------------------------------------

    async def _take_over(self, name: str) -> None:
        """What a leader that died left open is recovered, and what it adopted is placed, by the one who comes next."""
        writer = await self._cluster.client.log(name).open_writer()
        await writer.close()

    async def _judge(self, name: str, folder: Path, this: Round) -> None:
        """Each row once, each batch whole and in order; and so still when the garbage is collected."""
        await LogCollector(self._cluster.client, grace_ms=0).collect()
        found: list[str] = []
        try:
            async for record in self._cluster.client.log(name).read():
                found.append((record.value or b"").decode())
        except QuireError as error:
            this.ended.append(error.code)  # what is listed and gone is missing
        rows = [each for each in found if not each.startswith("leader")]
        wanted = [
            value(batch, partition, row)
            for batch in range(BATCHES)
            for partition in range(PARTITIONS)
            for row in range(ROWS)
        ]
        count = Counter(rows)
        this.missing += sum(1 for each in wanted if not count[each])
        this.duplicates += sum(number - 1 for number in count.values())
        this.disordered |= not (this.missing or this.duplicates) and rows != wanted
        for said in folder.glob("leader-*"):
            _judge_leader(said, found, this)


def _judge_leader(said: Path, found: list[str], this: Round) -> None:
    """What a leader was told is durable is there once, in order, and nothing that it did not append before."""
    begins = f"{said.name.replace('-', ' ')}/"
    its = [each for each in found if each.startswith(begins)]
    acknowledged = int(said.read_text() or 0)
    this.missing += max(0, acknowledged - len(its))
    this.disordered |= its != [f"{begins}{number}" for number in range(len(its))]


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder

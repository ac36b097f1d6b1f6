"""Every command that reports on a cluster, beside what writers can do and what the bookies' directories hold.

One bookie of a cluster is dead, silent, paused, read-only, or does not start; logs, ledgers and streams are written, and taken
over, meanwhile. What a command calls writable is what a writer can do, what it calls missing is missing from the directories, and the rest it names as
not looked at. A command that reports and is not asked here fails the first test.

Source: docs/operations.md, "When a bookie is lost", "What a cluster reports".
"""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import tempfile
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import quire
from quire.bookie.config import BookieConfig
from quire.bookie.server import BookieServer
from quire.cli.cluster import bookie_rows
from quire.cli.console import opening
from quire.cli.ledger import ledger_show
from quire.cli.main import app
from quire.client.access import LedgerAccess
from quire.client.config import ClientConfig
from quire.client.reading.lac_read import newest_lac
from quire.client.repairing import copies, inspection
from quire.core.answers import Answer
from quire.core.errors import QuireError
from quire.core.ids import BookieId
from quire.core.ledger.metadata import LedgerMetadata, LedgerState
from quire.core.ledger.replica import Replica, ReplicaList, gaps
from quire.core.ledger.stripes import HeldInterval, bookie_stripes
from quire.core.log.list import LogSettings
from quire.env.real import RealClock, RealFiles, ThreadWorker
from quire.log.client import QuireClient
from quire.log.staging import StagedBy, stage
from quire.metadata.sqlite.store import SqliteStore
from quire.storage.config import KIB, StorageConfig
from quire.storage.directory.identity import open_identity
from quire.storage.ledger_storage import LedgerStorage
from support.commands import every_command
from support.programs import NEW, BookieProcess
from support.tcp_proxy import TcpProxy, tcp_proxy
from support.waiting import until_async

QUICK = ClientConfig(
    read_timeout_ms=150,
    add_timeout_ms=400,
    slow_after_ms=200,
    recovery_timeout_ms=150,
    recovery_patience_ms=1500,
    lac_after_ms=5,
    explicit_lac_after_ms=100,
)
REPORTS = {
    ("cluster", "bookies"),
    ("cluster", "health"),
    ("cluster", "repair"),
    ("cluster", "repairs"),
    ("cluster", "status"),
    ("cluster", "under-replication"),
    ("ledger", "repair"),
    ("ledger", "show"),
    ("ledger", "verify"),
    ("stream", "list"),
    ("stream", "repair"),
    ("stream", "show"),
    ("stream", "verify"),
    ("top",),
}
"""The commands that say which bookies can be written to, or which copies are there."""
GROUPS = ("cluster", "ledger", "stream", "top")
OTHERS = {
    *(("cluster", name) for name in ("accept-store", "lost-delay", "orphans")),
    *(("cluster", "autorecovery", name) for name in ("on", "off", "status")),
    *(("ledger", name) for name in ("append", "create", "delete", "list", "read", "recover", "tail")),
    *(("stream", name) for name in ("append", "close", "create", "delete", "read", "tail", "take-over")),
}
STATES = ("dead", "silent", "read-only", "foreign")
SHAPES = [(3, "3/3/2"), (4, "3/3/2"), (5, "5/3/2"), (4, "3/3/3")]
CELLS = [(state, *shape) for shape in SHAPES for state in STATES]
PAUSED = [("paused", 3, "3/3/2"), ("paused", 5, "5/3/2")]
"""The bookies of these are processes; one is stopped (SIGSTOP), and is registered for a while yet."""
FIRST = {("silent", 3, "3/3/2"), ("read-only", 4, "3/3/2"), ("dead", 5, "5/3/2")}
"""The cells of each run; the others are of the same kind. Reports are compared less often in these."""


def test_every_command_that_reports_is_asked() -> None:
    commands = {words for words in every_command() if words[0] in GROUPS}
    assert commands == REPORTS | OTHERS, "a new command either reports, and is asked here, or does not"


class Place:
    """Bookies in this process, each behind a proxy, and the command line beside them.

    Attributes:
        servers: all of them by id, those that were stopped too: their directories say what they hold.
        up: those that respond.
    """

    def __init__(self, folder: Path, quorums: str) -> None:
        self.folder, self.quorums = folder, quorums
        self.uri = f"sqlite:{folder / 'metadata.db'}"
        self.servers: dict[BookieId, BookieServer] = {}
        self.proxies: dict[str, TcpProxy] = {}
        self.up: set[BookieId] = set()
        self.writable: set[BookieId] = set()
        self._stack = AsyncExitStack()

    @property
    def known(self) -> set[BookieId]:
        return {*self.servers}

    @property
    def shape(self) -> dict[str, int]:
        size, write_quorum, ack_quorum = map(int, self.quorums.split("/"))
        return {"ensemble_size": size, "write_quorum": write_quorum, "ack_quorum": ack_quorum}

    async def start(self, name: str, directory: str = "") -> BookieId:
        store = await SqliteStore.open(self.folder / "metadata.db", create=not self.servers)
        if name not in self.proxies:
            self.proxies[name] = await self._stack.enter_async_context(tcp_proxy("127.0.0.1", 0))
        proxy = self.proxies[name]
        config = BookieConfig(
            directory=self.folder / (directory or name),
            name=name,
            storage=StorageConfig(segment_bytes=256 * KIB),
            advertise=("127.0.0.1", proxy.port),
        )
        server = BookieServer(config, store)
        try:
            await server.start()
        except QuireError:
            await store.close()
            raise
        proxy.server = ("127.0.0.1", server.address[1])
        self.servers[server.bookie_id] = server
        self.up.add(server.bookie_id)
        self.writable.add(server.bookie_id)
        return server.bookie_id

    async def stop(self, bookie: BookieId) -> str:
        server = self.servers[bookie]
        self.up.discard(bookie)
        self.writable.discard(bookie)
        await server.stop(clean=False)
        await server.store.close()
        return server.config.name

    async def close(self) -> None:
        for bookie in [*self.up]:
            await self.stop(bookie)
        await self._stack.aclose()

    def held(self, bookie: BookieId, ledger_id: int) -> list[HeldInterval]:
        """What is on a bookie's disk."""
        return list(self.servers[bookie].storage.good_from(ledger_id, 0))

    async def moments(self, state: str, bookie: BookieId) -> AsyncIterator[None]:
        """One bookie is in a state until the iteration ends."""
        server = self.servers[bookie]
        if state in {"dead", "foreign"}:
            name = await self.stop(bookie)
            if state == "foreign":
                with pytest.raises(QuireError):
                    await self.start("stranger", directory=name)
            yield
            await self.start(name)
        elif state == "silent":
            self.proxies[server.config.name].go_silent()
            self.up.discard(bookie)
            self.writable.discard(bookie)
            yield
            self.proxies[server.config.name].pass_everything()
            self.up.add(bookie)
            self.writable.add(bookie)
        else:
            await self._full(server, full=True)
            self.writable.discard(bookie)
            yield
            await self._full(server, full=False)
            self.writable.add(bookie)

    async def _full(self, server: BookieServer, *, full: bool) -> None:
        journal = server.storage.journal
        if full:
            journal.look_for_space = lambda: None  # type: ignore[method-assign]
        else:
            del journal.look_for_space  # type: ignore[method-assign]
        journal.full = full

        async def shown() -> bool:
            info = (await server._registry.available())[server.bookie_id]
            return info.writable is not full

        await until_async(shown, "the bookie to be registered as it is")

    # --- what there is -------------------------------------------------------------------------------------------

    async def truth(self, client: QuireClient) -> Truth:
        """What the directories lack of what the records say, and what commands cannot look at."""
        found = Truth()
        ids = [each.ledger_id async for each in client.records.listed()]
        for ledger_id in ids:
            record, _ = await client.records.read(ledger_id)
            last = None
            if record.state is not LedgerState.CLOSED:
                access = LedgerAccess.of(record)
                last = await newest_lac(record, access, client.bookies, timeout_ms=QUICK.read_timeout_ms)
            self._note(found, record, last)
        return found

    def _note(self, found: Truth, record: LedgerMetadata, last: int | None) -> None:
        ledger_id = int(record.ledger_id)
        for bookie in {bookie for fragment in record.fragments for bookie in fragment.ensemble} - self.up:
            found.unseen.setdefault(ledger_id, set()).add(bookie)
        for part in bookie_stripes(record, last):
            if part.bookie not in self.up:
                continue
            held = self.held(part.bookie, ledger_id)
            replica = Replica.of(ReplicaList(Answer.OK, tuple(held)), record)
            if missing := sum(gap.count for gap in gaps(part, replica)):
                found.missing[ledger_id, part.bookie] += missing


class Processes(Place):
    """Bookies that are processes. Their disks are read from copies."""

    def __init__(self, folder: Path, quorums: str) -> None:
        super().__init__(folder, quorums)
        self.processes: dict[BookieId, BookieProcess] = {}
        self._instance = ""

    async def start(self, name: str, directory: str = "") -> BookieId:
        if not self.processes:
            async with await SqliteStore.open(self.folder / "metadata.db", create=True) as store:
                self._instance = store.instance_id
        process = BookieProcess(name, self.folder / (directory or name), self.uri)
        await asyncio.to_thread(process.start, NEW)
        bookie = BookieId(process.id)
        self.processes[bookie] = process
        self.up.add(bookie)
        self.writable.add(bookie)
        return bookie

    @property
    def known(self) -> set[BookieId]:
        return {*self.processes}

    async def close(self) -> None:
        for process in self.processes.values():
            await asyncio.to_thread(process.kill)

    def held(self, bookie: BookieId, ledger_id: int) -> list[HeldInterval]:
        name = self.processes[bookie].name
        with tempfile.TemporaryDirectory(dir=self.folder) as folder, closing(ThreadWorker()) as worker:
            copied = Path(folder, name)
            for again in (True, True, False):
                try:
                    shutil.copytree(self.processes[bookie].directory, copied)
                    break
                except shutil.Error:  # a segment was removed meanwhile, with a deleted ledger
                    if not again:
                        raise
                    shutil.rmtree(copied)
            identity = open_identity(copied, name, self._instance)
            storage = LedgerStorage.open(
                copied, StorageConfig(), identity, files=RealFiles(), worker=worker, clock=RealClock()
            )
            try:
                return list(storage.good_from(ledger_id, 0))
            finally:
                storage.close(clean=True)
                identity.release()

    async def moments(self, state: str, bookie: BookieId) -> AsyncIterator[None]:
        assert state == "paused"
        process = self.processes[bookie].process
        assert process is not None
        async with quire.connect(self.uri, QUICK) as client:

            async def is_registered() -> bool:
                return bookie in await client.bookies.bookies()

            async def is_away() -> bool:
                return not await is_registered()

            process.send_signal(signal.SIGSTOP)
            self.up.discard(bookie)
            self.writable.discard(bookie)
            yield
            await until_async(is_away, "its session to end", 60)
            yield
            process.send_signal(signal.SIGCONT)
            await until_async(is_registered, "the bookie to be registered again", 60)
            self.up.add(bookie)
            self.writable.add(bookie)


@dataclass
class Truth:
    """What an oracle found.

    Attributes:
        missing: how many entries a bookie that responds lacks of a ledger, by (ledger, bookie).
        unseen: the bookies of a ledger that do not respond.
    """

    missing: Counter[tuple[int, BookieId]] = field(default_factory=Counter)
    unseen: dict[int, set[BookieId]] = field(default_factory=dict)

    def of(self, ledger_id: int) -> dict[BookieId, int]:
        return {bookie: count for (one, bookie), count in self.missing.items() if one == ledger_id}

    def code(self, ledger_id: int | None = None) -> int:
        """The exit code of a command that looks at these."""
        some = [one for one, _ in self.missing] + [*self.unseen]
        return 5 if (some if ledger_id is None else ledger_id in some) else 0


class Commands:
    """The command line, whose own client waits as little as that of the test."""

    def __init__(self, uri: str) -> None:
        self._runner = CliRunner(env={"QUIRE_CLUSTER": uri, "NO_COLOR": "1", "TERM": "dumb"})

    async def __call__(self, *words: str) -> tuple[int, list[dict[str, Any]]]:
        done = await asyncio.to_thread(self._runner.invoke, app, [*words, "--json"])
        assert done.exit_code in {0, 1, 5}, done.output
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
        return done.exit_code, lines


TRIES = 8
"""On a busy machine a bookie that is well may be silent for a moment, and a command rightly says so; a contradiction stays."""


async def reports_agree(
    at: Place, call: Commands, client: QuireClient, creatable: bool | None = None
) -> None:
    """Ask every command that reports, and compare."""
    for left in reversed(range(TRIES)):
        try:
            await _compare(at, call, client, creatable)
        except AssertionError:
            if not left:
                raise
        else:
            return


async def _compare(at: Place, call: Commands, client: QuireClient, creatable: bool | None) -> None:
    truth = await at.truth(client)
    down = at.known - at.writable
    # Which bookies can be written to, and whether a ledger can be created.
    code, (health,) = await call("cluster", "health", "--quorums", at.quorums)
    _, (status,) = await call("cluster", "status")
    _, (top,) = await call("top", "--once")
    bookies_code, rows = await call("cluster", "bookies")
    assert {row["id"] for row in rows if row["standing"] == "up"} == at.writable
    assert {row["id"] for row in top["bookies"] if row["standing"] == "up"} == at.writable
    assert health["writable"] == status["bookies"]["up"] == len(at.writable)
    needy = {row["id"] for row in rows if row["conditions"]}  # a slow machine is told of too
    assert down <= needy == set(health["attention"])
    assert (code, bookies_code) == (1 if health["refusal"] else 5 if needy else 0, 5 if needy else 0)
    if at.quorums in status["refused"]:
        assert health["refusal"]
    if creatable is not None:
        assert (health["refusal"] is None) is creatable, health
    # What is missing, and what was not looked at.
    whole = Counter[BookieId]()
    for (_, bookie), count in truth.missing.items():
        whole[bookie] += count
    for words in (("cluster", "under-replication"), ("cluster", "repair", "--dry-run")):
        code, said = await call(*words)
        rows = said[0]["debt"] if words[1] == "repair" else said
        missing = [row for row in rows if row["reason"] in {"hole", "open", "damaged"}]
        assert sum(row["entries"] for row in missing) == sum(whole.values()), (words, rows, truth)
        assert {bookie for row in missing for bookie in row["bookies"]} == {*whole}
        unseen = {row["bookies"][0]: row["ledgers"] for row in rows if row["reason"] == "not looked at"}
        assert unseen == Counter(bookie for some in truth.unseen.values() for bookie in some)
        assert {row["reason"] for row in rows} <= {"hole", "open", "damaged", "unheard", "not looked at"}
        assert code == truth.code(), (words, rows)
    code, said = await call("cluster", "repairs")
    assert {*said[-1]["away"]} == await away(client)
    assert code == (5 if said[-1]["away"] or said[-1]["ledgers"] else 0)
    code, said = await call("ledger", "verify", "--all")
    assert code == truth.code()
    incomplete = {one["ledger_id"]: one for one in said if "holes" in one}
    assert incomplete.keys() == {one for one, _ in truth.missing} | {
        one for one in truth.unseen if one in incomplete
    }
    for ledger_id, one in incomplete.items():
        _same(truth, ledger_id, one["holes"])
    # One ledger or stream after another.
    for ledger_id in sorted({one for one, _ in truth.missing} | truth.unseen.keys())[:3]:
        code, (shown,) = await call("ledger", "show", str(ledger_id))
        assert code == truth.code(ledger_id)
        assert shown["complete"] is (code == 0)
        code, (verified,) = await call("ledger", "verify", str(ledger_id))
        _same(truth, ledger_id, verified["holes"])
        code, (plan,) = await call("ledger", "repair", str(ledger_id), "--dry-run")
        assert code == truth.code(ledger_id)
        assert sum(row["entries"] for row in plan["debt"] if row["reason"] != "unheard") == sum(
            truth.of(ledger_id).values()
        )
    _, streams = await call("stream", "list")
    for row in streams:
        code, (shown,) = await call("stream", "show", row["stream"])
        assert (code, shown["mode"]) == (truth.code(row["ledger_id"]), row["mode"])
        _, (verified,) = await call("stream", "verify", row["stream"])
        _same(truth, row["ledger_id"], verified["holes"])
        code, _ = await call("stream", "repair", row["stream"], "--dry-run")
        assert code == truth.code(row["ledger_id"])


def _same(truth: Truth, ledger_id: int, holes: list[dict[str, Any]]) -> None:
    """What a verification calls missing, and what it could not look at."""
    found, unseen = Counter[str](), set()
    for hole in holes:
        if hole["answer"] in {"no_entry", "no_ledger"}:
            found[hole["bookie"]] += hole["last"] - hole["first"] + 1
        else:
            unseen.add(hole["bookie"])
    assert unseen <= {str(bookie) for bookie in truth.unseen.get(ledger_id, ())}
    assert found.keys() == {str(bookie) for bookie in truth.of(ledger_id)}, (ledger_id, holes, truth)


async def away(client: QuireClient) -> set[str]:
    return {str(bookie) for bookie in await client.bookies.away()}


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands wait as long for a bookie as the test does."""
    monkeypatch.setattr(bookie_rows, "TIMEOUT_MS", 150)
    monkeypatch.setattr(ledger_show, "ANSWER_MS", 150)
    for module in (inspection, copies):
        monkeypatch.setattr(module, "ON_ITS_WAY_S", 0.02)
    monkeypatch.setattr(opening, "connected", lambda uri: quire.connect(uri, QUICK))


class Written:
    """What is written in a cell: two ledgers, a log, and a stream of each mode, all open."""

    def __init__(self, client: QuireClient, shape: dict[str, int]) -> None:
        self.client, self.shape = client, shape
        self.writers: dict[str, Any] = {}

    async def open(self) -> None:
        client, shape = self.client, self.shape
        for name in ("closed", "killed"):
            self.writers[name] = await client.create_ledger(**shape)
        await client.log("log").create(**shape)
        self.writers["log"] = await client.log("log").open_writer()
        for mode in ("identifiers", "fencing"):
            stream = client.unbounded_ledger(mode, mode=mode)
            await stream.create(**shape)
            self.writers[mode] = await stream.open_writer()

    async def append(self, count: int = 20) -> None:
        """To all of them; what a writer cannot confirm stays on its way."""
        for writer in self.writers.values():
            with suppress(QuireError, TimeoutError):
                async with asyncio.timeout(5):
                    for number in range(count):
                        await writer.append(b"entry %d" % number)

    async def taken_over(self, by: QuireClient, *, creatable: bool, up: int) -> None:
        """Another client leads the log and writes the streams, if reports say that it can."""
        can = dict.fromkeys(("log", "identifiers"), creatable)
        can["fencing"] = up >= self.shape["ensemble_size"]  # all take its truncation, a full one too
        for name, expected in can.items():
            to = by.log(name) if name == "log" else by.unbounded_ledger(name)
            before = self.writers[name]
            try:
                async with asyncio.timeout(30 if expected else 1):
                    self.writers[name] = await to.open_writer()
            except (QuireError, TimeoutError):
                assert not expected, name
            else:
                assert expected, name
                with suppress(QuireError):
                    await before.close()

    async def settled(self) -> None:
        """What is confirmed is known to the bookies that respond."""
        for name in ("closed", "killed", "identifiers", "fencing"):
            writer = self.writers.get(name)
            if writer is not None:
                await until_async(lambda writer=writer: self._known(writer), f"the LAC of {name}")

    async def _known(self, writer: Any) -> bool:
        record = writer.metadata
        lac = await newest_lac(
            record, LedgerAccess.of(record), self.client.bookies, timeout_ms=QUICK.read_timeout_ms
        )
        return bool(lac >= writer.last_add_confirmed)


async def can_create(client: QuireClient, shape: dict[str, int]) -> bool:
    """Whether a ledger of the shape can be created now, and staged by a sink: it is, and deleted again."""

    async def staged() -> Any:
        return await stage(client, bytes(16), LogSettings(**shape), StagedBy())

    done = []
    for begin in (lambda: client.create_ledger(**shape), staged):
        try:
            writer = await begin()
        except QuireError:
            done.append(False)
        else:
            done.append(True)
            await writer.abandon()
            await client.delete_ledger(writer.ledger_id)
    assert done[0] is done[1], done
    return done[0]


@pytest.mark.parametrize(
    ("state", "bookies", "quorums"),
    [pytest.param(*cell, marks=() if cell in FIRST else pytest.mark.slow) for cell in [*CELLS, *PAUSED]],
)
@pytest.mark.usefixtures("quick")
async def test_no_report_contradicts_a_writer_or_the_directories(
    tmp_path: Path, state: str, bookies: int, quorums: str
) -> None:
    at = (Processes if state == "paused" else Place)(tmp_path, quorums)
    call, short = Commands(at.uri), (state, bookies, quorums) in FIRST
    try:
        ids = [await at.start(f"b{number}") for number in range(bookies)]
        async with quire.connect(at.uri, QUICK) as client, quire.connect(at.uri, QUICK) as other:
            written = Written(client, at.shape)
            await written.open()
            await written.append()
            await written.settled()
            if not short:
                await reports_agree(at, call, other, creatable=True)
            async for _ in at.moments(state, ids[-1]):
                await written.append()
                await written.settled()
                creatable = await can_create(client, at.shape)
                if not short:
                    await reports_agree(at, call, other, creatable=creatable)
                await written.taken_over(other, creatable=creatable, up=len(at.up))
                await written.append()
                await written.settled()
                await reports_agree(at, call, other, creatable=creatable)
            await written.taken_over(client, creatable=True, up=bookies)
            await written.append()
            await written.settled()
            await reports_agree(at, call, other, creatable=True)
            for name, writer in written.writers.items():
                await (writer.abandon() if name == "killed" else writer.close())
            killed = written.writers["killed"].ledger_id
            await reports_agree(at, call, other)
            await other.open_ledger(killed)
            await reports_agree(at, call, other)
    finally:
        await at.close()

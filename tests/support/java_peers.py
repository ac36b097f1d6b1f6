"""Real Java peers for tests: ZooKeeper, bookies and clients of Apache BookKeeper 4.17.3, on loopback.

They start once for a whole run of tests. The client's process takes one command after another, because a Java process
takes seconds to start.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import functools
import importlib.util
import itertools
import json
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Self

import pytest

from quire.bookie.config import BookieConfig
from quire.bookie.server import BookieServer
from quire.client.config import ClientConfig
from quire.metadata.connect import open_store

TOOLS = Path(__file__).resolve().parents[2] / "tools"
START_SECONDS = 900
SILENT_SECONDS = 240
"""No command of the Java client is silent for so long: its own limits for a request are a quarter of it."""
BOOKIES = 3
FRAME_BYTES_MAX = 5_253_120
CONFIGURATION = (
    "zkTimeout=60000\njournalMaxGroupWaitMSec=1\nextraServerComponents=\n"
    f"nettyMaxFrameSizeBytes={FRAME_BYTES_MAX}\n"
)
"""Like PATIENT; a small cluster need not wait for others to share a sync with; and frames are as long as Pulsar's."""
PATIENT = "?session_timeout_ms=60000&patience_ms=120000"
"""What a busy machine asks for: nothing here measures how soon a peer that is away is noticed."""
PATIENT_JAVA = [
    word
    for name, value in (("zkTimeout", 60000), ("readEntryTimeoutSec", 60), ("addEntryTimeoutSec", 60))
    for word in ("--conf", f"{name}={value}")
]
PATIENT_CLIENT = ClientConfig(
    add_timeout_ms=60_000, read_timeout_ms=60_000, recovery_timeout_ms=60_000, slow_after_ms=30_000
)
"""The same for our client and its bookies."""
QUICK_START = "-XX:TieredStopAtLevel=1"
LONG_SESSIONS = "maxSessionTimeout=600000\n"
ENVIRONMENT = {"JAVA_PEER_TIMEOUT": "280"}
SMALL_MB = (128, 96)
"""The heap of a bookie, and its memory outside the heap."""


class JavaPeers:
    """ZooKeeper and Java bookies; `uri` names their cluster.

    Args:
        bookies: how many.
        configuration: lines for each bookie's configuration.
        jvm: options for each bookie's Java.
        version: another BookKeeper than 4.17.3; ZooKeeper stays that of 4.17.3.
        program: the client's source.
        name: the host's name in the bookies' ids.
        memory_mb: the heap of each bookie, and its memory outside the heap.

    Attributes:
        client_options: what every command of its clients is given at its end.
    """

    def __init__(
        self,
        folder: Path,
        bookies: int = BOOKIES,
        configuration: str = "",
        jvm: str = "",
        version: str = "",
        program: str = "JavaClient",
        name: str = "127.0.0.1",
        memory_mb: tuple[int, int] = SMALL_MB,
    ) -> None:
        self.name = name
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        settings = folder / "bookie.conf"
        settings.write_text(f"{CONFIGURATION}advertisedAddress={name}\n{configuration}")
        sessions = folder / "zookeeper.conf"
        sessions.write_text(LONG_SESSIONS)
        self._environment = (
            os.environ
            | ENVIRONMENT
            | {"JAVA_PEER_HEAP": str(memory_mb[0]), "JAVA_PEER_DIRECT": str(memory_mb[1])}
            | {"JAVA_PEER_BOOKIE_CONF": str(settings), "JAVA_PEER_ZOOKEEPER_CONF": str(sessions)}
            | {"JAVA_PEER_JVM_OPTS": f"{QUICK_START} {jvm}", "JAVA_PEER_ZOOKEEPER_OPTS": QUICK_START}
            | _of_version(version)
        )
        self.host = self.run("start", str(bookies)).strip().splitlines()[-1]
        self.classpath = self.run("classpath").strip()
        self.classes = folder / "classes"
        self.classes.mkdir()
        subprocess.run(
            [
                "javac",
                f"-J{QUICK_START}",
                "-cp",
                self.classpath,
                "-d",
                self.classes,
                TOOLS / "java-client" / f"{program}.java",
            ],
            check=True,
            timeout=START_SECONDS,
        )
        self._roots = itertools.count(1)
        self.client_options: tuple[str, ...] = ()

    def run(self, command: str, *arguments: str, check: bool = True) -> str:
        """What one command of `tools/java-peer` prints."""
        done = subprocess.run(
            [TOOLS / "java-peer", command, self.folder, *arguments],
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=START_SECONDS,
            check=False,
        )
        if check and done.returncode:
            raise RuntimeError(
                f"java-peer {' '.join((command, *arguments))}: {done.stderr[-2000:]}{done.stdout[-2000:]}"
            )
        return done.stdout

    @property
    def uri(self) -> str:
        """The cluster of the Java bookies."""
        return f"zk+hierarchical://{self.host}/ledgers"

    def bookies(self) -> list[str]:
        """The ids of the Java bookies, by their numbers."""
        lines = (self.folder / "ports").read_text().split()
        return [
            f"{self.name}:{port}"
            for name, _, port in (line.partition("=") for line in lines)
            if "bookie" in name
        ]

    def another_root(self) -> str:
        """A cluster that does not exist yet, in the same ZooKeeper."""
        return f"zk+hierarchical://{self.host}/quire{next(self._roots)}"

    def client(self, *jvm: str) -> JavaClient:
        """A Java client's process, to be started with `async with`; `jvm`: options of its Java."""
        return JavaClient(self, jvm)


class JavaClient:
    """One Java process that does one thing after another."""

    def __init__(self, peers: JavaPeers, jvm: tuple[str, ...] = ()) -> None:
        self._peers = peers
        self._jvm = jvm
        self._process: asyncio.subprocess.Process

    async def __aenter__(self) -> Self:
        folder = self._peers.folder
        self._process = await asyncio.create_subprocess_exec(
            "java",
            "-Xmx192m",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            *self._jvm,
            f"-Djava.io.tmpdir={folder}/tmp",
            f"-Dlog4j.configurationFile={folder}/conf/log4j2-shell.properties",
            "-cp",
            f"{self._peers.classpath}:{self._peers.classes}",
            "JavaClient",
            "-",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            limit=1 << 24,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()

    async def shell(self, configuration: Path, command: str, *, refused: bool = False) -> str:
        """What a command of BookKeeper's own shell prints; it must succeed, or be refused."""
        said: list[bytes] = []
        async for line in self._lines(f"shell {configuration} {command}"):
            if line.startswith(b'{"event":"done"'):
                done = json.loads(line)
            else:
                said.append(line)
        text = b"".join(said).decode()
        assert bool(done["rc"]) is refused, f"{command}: {text}"
        return text

    async def _lines(self, command: str) -> AsyncIterator[bytes]:
        """What is printed until a command is done, the line that says so included."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write((command + "\n").encode())
        await self._process.stdin.drain()
        line = b""
        while not line.startswith(b'{"event":"done"'):
            try:
                async with asyncio.timeout(SILENT_SECONDS):
                    line = await self._process.stdout.readline()
            except TimeoutError:
                raise RuntimeError(
                    f"the Java client said nothing for {SILENT_SECONDS} s during {command}; its threads:\n"
                    + await self._threads()
                ) from None
            if not line:
                raise RuntimeError(f"the Java client ended during {command}")
            yield line

    async def _threads(self) -> str:
        """What the threads of a Java that does not go on are doing."""
        asked = await asyncio.create_subprocess_exec(
            "jstack",
            str(self._process.pid),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        said, _ = await asked.communicate()
        return said.decode()

    async def events(
        self, uri: str, digest: str, command: str, *arguments: object
    ) -> AsyncIterator[dict[str, Any]]:
        """The events of one command, as they come."""
        words = [uri, digest, "secret", *command.split(), *map(str, arguments), *self._peers.client_options]
        async for line in self._lines(" ".join(words)):
            if line.startswith(b'{"event":') and not line.startswith(b'{"event":"done"'):
                yield json.loads(line)

    async def run(self, uri: str, digest: str, command: str, *arguments: object) -> list[dict[str, Any]]:
        """All events of one command."""
        return [event async for event in self.events(uri, digest, command, *arguments)]


def _of_version(version: str) -> dict[str, str]:
    if not version:
        return {}
    chosen = {"JAVA_PEER_VERSION": version, "JAVA_PEER_ZOOKEEPER_VERSION": "4.17.3"}
    return chosen | ({"JAVA_PEER_ZOOKEEPER_CLIENT": "3.5.7"} if version.startswith("4.9.") else {})


@contextlib.contextmanager
def own_peers(
    folder: Path,
    bookies: int,
    configuration: str = "",
    *,
    memory_mb: tuple[int, int] = SMALL_MB,
    **settings: str,
) -> Iterator[JavaPeers]:
    """Peers of one test: what is killed, marked or repaired there concerns nobody else."""
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    try:
        yield JavaPeers(folder, bookies, configuration, memory_mb=memory_mb, **settings)
    finally:
        subprocess.run([TOOLS / "java-peer", "stop", folder], check=False, capture_output=True)


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as asked:
        asked.bind(("127.0.0.1", 0))
        return int(asked.getsockname()[1])


@contextlib.asynccontextmanager
async def our_bookies(
    uri: str, folder: Path, count: int, options: str = PATIENT, *, id_from_address: bool = False
) -> AsyncIterator[list[BookieServer]]:
    """Bookies of ours, in this process, that join a cluster, or make it."""
    servers: list[BookieServer] = []
    try:
        for number in range(count):
            config = BookieConfig(
                directory=folder / f"b{number}",
                name=f"b{number}",
                port=free_port() if id_from_address else 0,
                id_from_address=id_from_address,
                garbage_seconds=0,
            )
            server = BookieServer(config, await open_store(uri + options, create=True))
            await server.start()
            servers.append(server)
        yield servers
    finally:
        for server in servers:
            await server.stop()
            await server.store.close()


def why_not() -> str | None:
    """Why no Java peers can be started here; None if they can."""
    for program in ("java", "javac", "mvn"):
        if shutil.which(program) is None:
            return f"no {program} on this machine: nothing was tested against Java peers"
    if importlib.util.find_spec("quire.metadata.zookeeper.store") is None:
        return "there is no driver for ZooKeeper yet: nothing was tested against Java peers"
    return None


@functools.cache
def shared_peers() -> JavaPeers | str:
    """The run's peers, started when they are first asked for; a message instead if they cannot be."""
    reason = why_not()
    if reason is not None:
        return reason
    folder = Path(tempfile.mkdtemp(prefix="quire-java-"))
    stop = [TOOLS / "java-peer", "stop", folder]
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    atexit.register(subprocess.run, stop, check=False, capture_output=True)
    try:
        return JavaPeers(folder)
    except (RuntimeError, subprocess.SubprocessError) as error:
        return f"the Java peers did not start, nothing was tested against them: {error}"

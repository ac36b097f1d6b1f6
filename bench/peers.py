"""The two sides of a comparison as processes: start them, give them jobs, stop them.

Both load clients (`tools/java-bench` and `bench/load_client.py`) read one job per line and answer with one JSON object
per line, so the rounds of the two sides alternate while both stay warm.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from accounting import cpu_of

ROOT = Path(__file__).resolve().parent.parent
TOOLS = ROOT / "tools"
OUT = ROOT / "out" / "bench"
STOP_SECONDS = 20
WARM_UP_SECONDS = 3
WARM_UP_WINDOW = 5000
JOB_SECONDS = 300
"""A job that takes longer hangs: its client is killed, and the run fails with its log."""


class PeerMissingError(Exception):
    """A peer cannot run here; the text says what is missing."""


class LoadClient:
    """A load client process that takes jobs on its standard input.

    Args:
        name: for messages.
        command: how to start it.
        log: where its standard error goes.
        env: the environment, this process's own when None.
    """

    def __init__(
        self, name: str, command: list[str], log: Path, env: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self._log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("w") as errors:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, env=env
            )
        self.ready = self._answer()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def run(self, *job: object, seconds: float = JOB_SECONDS) -> dict[str, Any]:
        """Run one job to its end, for which it has so many seconds.

        Raises:
            RuntimeError: the client died, or the job failed: a comparison with a failed side is void.
        """
        _pipe(self._process.stdin).write(" ".join(str(word) for word in job) + "\n")
        _pipe(self._process.stdin).flush()
        answer = self._answer(seconds)
        if "error" in answer:
            raise RuntimeError(
                f"{self.name}: {' '.join(map(str, job))}: {answer['error']} (log: {self._log})"
            )
        if answer.get("failed"):
            raise RuntimeError(f"{self.name}: {answer['failed']} adds failed, so the round is void")
        return answer

    def warm_up(self, adds: int, size: int = 100) -> None:
        """Discard rounds until the JIT has seen so many adds; the first rounds are two to three times slower."""
        while adds > 0:
            adds -= self.run("append", size, WARM_UP_SECONDS, WARM_UP_WINDOW)["entries"]

    def close(self) -> None:
        """End the client; it leaves by itself when its input ends."""
        _pipe(self._process.stdin).close()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _answer(self, seconds: float = JOB_SECONDS) -> dict[str, Any]:
        watchdog = threading.Timer(seconds, self._process.kill)
        watchdog.start()
        try:
            lines = iter(_pipe(self._process.stdout).readline, "")
            line = next((line for line in lines if line.startswith("{")), "")  # a JVM may warn on this stream
        finally:
            watchdog.cancel()  # also when we are stopped meanwhile: nobody waits for it then
        if not line:
            tail = "\n".join(self._log.read_text(errors="replace").splitlines()[-15:])
            raise RuntimeError(
                f"{self.name} ended, or was stopped after {seconds:.0f} s, without an answer:\n{tail}"
            )
        answer: dict[str, Any] = json.loads(line)
        return answer


class JavaPeer:
    """ZooKeeper and Java bookies, started through `tools/java-peer`.

    Args:
        name: the directory under out/bench.
        tuned: the settings that make a Java bookie answer fast (tools/java-bench/tuned-bookie.conf) instead of the
            product's defaults without the limits of small test clusters.
        bookies: how many.
        configuration: lines beside these settings.
    """

    def __init__(self, name: str, *, tuned: bool = False, bookies: int = 3, configuration: str = "") -> None:
        for program in ("java", "javac", "mvn"):
            if shutil.which(program) is None:
                raise PeerMissingError(
                    f"the Java peer needs a JDK and Maven, and there is no '{program}' on the PATH"
                )
        self.directory = OUT / name
        self.tuned = tuned
        self._bookies = bookies
        settings = TOOLS / "java-bench" / f"{'tuned' if tuned else 'default'}-bookie.conf"
        self._settings = f"{settings.read_text()}\n{configuration}"
        self._env = {
            **os.environ,
            "JAVA_PEER_HEAP": "1024",
            "JAVA_PEER_DIRECT": "1024",
            "JAVA_PEER_STORAGE": "db" if tuned else "sorted",
            "JAVA_PEER_JOURNAL_SYNC": "true",
            "JAVA_PEER_BOOKIE_CONF": str(OUT / f"{name}.conf"),
            "JAVA_PEER_JVM_OPTS": "-XX:-UseSerialGC -XX:+UseG1GC",
        }

    def __enter__(self) -> Self:
        if (self.directory / "pids").exists():
            self._peer("stop")  # what an earlier run left behind when it was killed
        self._forget_data()
        OUT.mkdir(parents=True, exist_ok=True)
        (OUT / f"{self.directory.name}.conf").write_text(self._settings)
        try:
            self._peer("start", str(self._bookies))
        except BaseException:
            self._peer("stop")
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self._peer("stop")
        self._forget_data()

    @property
    def pids(self) -> list[int]:
        """The process ids of the bookies."""
        return [int(file.read_text()) for file in sorted(self.directory.glob("pids/bookie*.pid"))]

    def cpu(self) -> float:
        """CPU seconds of all bookies together."""
        return cpu_of(self.pids)

    def start_bookie(self, number: int) -> None:
        """Start a bookie that was killed again, and wait until it serves; the first is number 1."""
        self._peer("start-bookie", str(number))

    def kill_bookie(self, number: int) -> str:
        """Kill a bookie for good; the first is number 0. Returns its id."""
        ports = dict(line.split("=") for line in (self.directory / "ports").read_text().splitlines())
        self._peer("kill-bookie", str(number))
        return f"127.0.0.1:{ports[f'bookie{number}']}"

    def auto_recovery(self, what: str) -> None:
        """`start` or `stop` the daemon with the auditor and the replication worker."""
        self._peer(f"{what}-autorecovery")

    def uri(self, root: str = "ledgers") -> str:
        """A cluster in this peer's ZooKeeper: its own, or one under another root."""
        own = self._env_file()["JAVA_PEER_METADATA_URI"]
        return f"{own.rpartition('/')[0]}/{root}"

    def client(self, *, v2: bool, on: QuireCluster | None = None) -> LoadClient:
        """Start a Java load client with the V2 or the V3 wire protocol.

        Args:
            v2: which.
            on: a cluster of ours; this one when None.
        """
        classes = self._compile()
        classpath = (self.directory / "classpath").read_text().strip()
        command = [
            "java",
            "-Xms512m",
            "-Xmx2g",
            "-XX:MaxDirectMemorySize=2g",
            f"-Dlog4j.configurationFile={self.directory}/conf/log4j2-shell.properties",
            "-cp",
            f"{classpath}:{classes}",
            "JavaBench",
            "--uri",
            self.uri() if on is None else on.uri,
            "--v2",
            str(int(v2)),
            "--pids",
            ",".join(map(str, (on or self).pids)),
        ]
        wire = "V2" if v2 else "V3"
        name = f"Java {wire}{' tuned' if self.tuned else ''}{'' if on is None else ' on our bookies'}"
        log = f"client-{wire}{'' if on is None else '-ours'}.log"
        return LoadClient(name, command, self.directory / "logs" / log)

    def our_client(self, *, v2: bool) -> LoadClient:
        """Start our load client on this cluster, with the V2 or the V3 wire protocol."""
        command = _our_client(self.uri(), self.pids, "auto-v2" if v2 else "auto")
        wire = "V2" if v2 else "V3"
        return LoadClient(
            f"Quire {wire} on Java's bookies", command, self.directory / "logs" / f"client-ours-{wire}.log"
        )

    def version(self) -> str:
        """The version of the bookies' server library."""
        for part in (self.directory / "classpath").read_text().split(":"):
            name = Path(part).name
            if name.startswith("bookkeeper-server-"):
                return f"Apache BookKeeper {name.removeprefix('bookkeeper-server-').removesuffix('.jar')}"
        return "Apache BookKeeper"

    def _compile(self) -> Path:
        sources = sorted((TOOLS / "java-bench").glob("*.java"))
        classes = self.directory / "classes"
        built = classes / "JavaBench.class"
        if not built.exists() or built.stat().st_mtime < max(file.stat().st_mtime for file in sources):
            classpath = (self.directory / "classpath").read_text().strip()
            done = subprocess.run(
                ["javac", "-nowarn", "-cp", classpath, "-d", str(classes), *map(str, sources)],
                check=False,
                capture_output=True,
                text=True,
            )
            if done.returncode:
                raise PeerMissingError(f"javac failed on tools/java-bench:\n{done.stderr}")
        return classes

    def _env_file(self) -> dict[str, str]:
        lines = (self.directory / "env").read_text().splitlines()
        return dict(line.split("=", 1) for line in lines)

    def _peer(self, verb: str, *args: str) -> None:
        command = [str(TOOLS / "java-peer"), verb, str(self.directory), *args]
        done = subprocess.run(command, env=self._env, capture_output=True, text=True, check=False)
        if done.returncode:
            raise PeerMissingError(f"java-peer {verb} failed: {done.stderr.strip().splitlines()[-1:]}")

    def _forget_data(self) -> None:
        """Each run starts empty; the resolved jars, the ports and the compiled client stay."""
        for name in ("data", "conf"):
            shutil.rmtree(self.directory / name, ignore_errors=True)
        (self.directory / "formatted").unlink(missing_ok=True)


class QuireCluster:
    """Our own cluster, `quire up`: one process per bookie, as the Java peer has.

    Args:
        name: the directory under out/bench.
        bookies: how many.
        metadata: the metadata store's URI; None: a store of its own in its directory.
        root: whose source runs; that of another revision, or this one.
    """

    def __init__(
        self, name: str, *, bookies: int = 3, metadata: str | None = None, root: Path = ROOT
    ) -> None:
        self.directory = OUT / name
        self._bookies = bookies
        self._metadata = metadata
        self._root = root
        self._env = {**os.environ, "PYTHONPATH": str(root / "src")}
        self._ready: dict[str, Any] = {}

    def __enter__(self) -> Self:
        shutil.rmtree(self.directory, ignore_errors=True)
        self.directory.mkdir(parents=True)
        self._start()
        return self

    def _start(self) -> None:
        self._log = self.directory / "up.log"
        command = [sys.executable, "-m", "quire.cli.main", "up", "--dir", str(self.directory / "cluster")]
        command += ["--bookies", str(self._bookies), "--json"]
        command += ["--cluster", self._metadata] if self._metadata else []
        with self._log.open("w") as errors:
            self._process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=errors, text=True, env=self._env
            )
        line = _pipe(self._process.stdout).readline()
        if not line:
            raise RuntimeError(f"'quire up' ended at once:\n{self._log.read_text(errors='replace')[-2000:]}")
        self._ready = json.loads(line)

    def _stop(self) -> None:
        self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        _pipe(self._process.stdout).close()

    def restart_cold(self) -> None:
        """Stop all bookies, start them with their data, and drop what the machine keeps of their files in memory."""
        self._stop()
        self._start()
        for file in self.directory.rglob("*.seg"):
            forget_cached(file)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self._stop()
        if error is None:
            shutil.rmtree(self.directory, ignore_errors=True)

    @property
    def uri(self) -> str:
        """What `--cluster` takes."""
        return str(self._ready["cluster"])

    @property
    def pids(self) -> list[int]:
        """The process ids of the bookies."""
        return [int(bookie["pid"]) for bookie in self._ready["bookies"]]

    def kill_bookie(self, number: int) -> str:
        """Kill a bookie for good; the first is number 0. Returns its id."""
        bookie = str(self._ready["bookies"][number]["id"])
        os.kill(self.pid_of(bookie), signal.SIGKILL)
        return bookie

    def pid_of(self, bookie_id: str) -> int:
        """The process of one bookie."""
        return next(int(bookie["pid"]) for bookie in self._ready["bookies"] if bookie["id"] == bookie_id)

    def client(self, *, account: bool = True, collector: str = "") -> LoadClient:
        """Start our load client on this cluster; with `account` it also says what CPU time the bookies used.

        `collector`: how Python's garbage collector works in it, see `load_client.py`; "": as that does by itself.
        """
        command = _our_client(self.uri, self.pids if account else [], root=self._root)
        command += ["--collector", collector] if collector else []
        return LoadClient("Quire", command, self.directory / "client.log", self._env)


def _our_client(cluster: str, pids: list[int], protocol: str = "auto", root: Path = ROOT) -> list[str]:
    """How to start our load client."""
    command = [sys.executable, str(root / "bench" / "load_client.py"), "--cluster", cluster]
    return [*command, "--protocol", protocol, "--pids", ",".join(map(str, pids))]


def forget_cached(file: Path) -> None:
    """Drop a file's clean pages from the page cache; the next read of it goes to the disk."""
    descriptor = os.open(file, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


@contextmanager
def three_sides(name: str) -> Iterator[tuple[dict[str, LoadClient], str]]:
    """Java as it ships, Java tuned, and Quire: a cluster and a client each, all at one time.

    Args:
        name: the directory of our cluster.

    Yields:
        The clients by side, and the peer's version.
    """
    with ExitStack() as stack:
        default = stack.enter_context(JavaPeer("java-default"))
        tuned = stack.enter_context(JavaPeer("java-tuned", tuned=True))
        ours = stack.enter_context(QuireCluster(name))
        clients = {
            "Java default": stack.enter_context(default.client(v2=False)),
            "Java tuned": stack.enter_context(tuned.client(v2=False)),
            "Quire": stack.enter_context(ours.client()),
        }
        yield clients, default.version()


def _pipe(stream: IO[str] | None) -> IO[str]:
    if stream is None:
        raise RuntimeError("the process was started without a pipe")
    return stream

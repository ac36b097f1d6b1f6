"""Every command at a pseudo-terminal and with broken streams: no traceback, and a documented exit code.

The commands are those that the command line has; a new one is tested by itself.
"""

import itertools
import os
import pty
import re
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from quire.cli.local.local_cluster import LocalCluster
from support.command_cases import DOCUMENTED, SERVERS, Place, furnished, line_for
from support.commands import every_command
from support.zygote import Zygote, zygote

PATIENCE_S = 2.0
"""A command at a terminal that has not ended by itself by then gets Ctrl-C, in whatever state it is."""

WAITING = {("up",), ("bookie",), ("autorecovery",), ("top",), ("log", "tail")}
"""These go on without input too."""

TYPING = {("log", "append"), ("ledger", "append")}
"""These wait for what is typed."""

END_S = 60.0
AT_ONCE = 4
EXTRAS = (
    "deltalake", "grpc", "kazoo", "numpy", "prometheus_client", "puresasl", "pyarrow", "pyiceberg", "pyspark", "quire_testing",
    "uvloop",
)  # fmt: skip
NEVER = re.compile(r"Traceback|Fatal Python error|Exception ignored|was never retrieved|never awaited")
COMMANDS = list(every_command())
NUMBERS = itertools.count()


@dataclass(frozen=True)
class Ended:
    """What came of a command line."""

    line: list[str]
    code: int | None
    said: str
    out: str
    stopped: bool

    def complaint(self, codes: set[int]) -> str | None:
        if NEVER.search(self.said + self.out) or self.code not in codes:
            return f"quire {' '.join(self.line)}: {self.code}, not {sorted(codes)}\n{self.said}{self.out}"
        return None


@pytest.fixture(scope="module")
def forks() -> Iterator[Zygote]:
    with zygote() as made:
        yield made


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("cluster"), 3) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def room(local: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Place:
    return furnished(local, tmp_path_factory.mktemp("room"))


@pytest.fixture
def place(room: Place, tmp_path: Path) -> Place:
    return Place(room.uri, room.log, room.ledger, tmp_path)


def environment(place: Place, uri: str | None = None) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("QUIRE_")}
    named = {"QUIRE_CLUSTER": uri or place.uri, "XDG_CONFIG_HOME": str(place.tmp / "config"), "TERM": "xterm"}
    return kept | named | {"XDG_CACHE_HOME": str(place.tmp / "cache"), "QUIRE_LOG_LEVEL": "WARNING"}


def at_a_terminal(forks: Zygote, line: list[str], env: dict[str, str], end_with: int | None = None) -> Ended:
    """Run one command with all its streams at a terminal that stays open; Ctrl-C if it does not end by itself."""
    ours, theirs = pty.openpty()
    running = forks.start(line, env, (theirs, theirs, theirs))
    os.close(theirs)
    said = bytearray()

    def listen() -> None:
        while True:
            try:
                said.extend(os.read(ours, 65536))
            except OSError:  # the other side is closed
                return

    listener = threading.Thread(target=listen, daemon=True)
    listener.start()
    code = running.code(PATIENCE_S)
    stopped = code is None
    if stopped:
        if end_with is None:
            os.write(ours, b"\x03")
        else:
            os.kill(running.pid, end_with)
        code = running.code(END_S)
    if code is None:
        os.kill(running.pid, signal.SIGKILL)
    listener.join(5)
    os.close(ours)
    return Ended(line, code, said.decode("utf-8", "replace"), "", stopped)


def with_streams(
    forks: Zygote,
    line: list[str],
    env: dict[str, str],
    stdout: str | None,
    encoding: str = "utf-8",
    *,
    patience_s: float = PATIENCE_S,
) -> Ended:
    """Run one command away from a terminal, without input; SIGTERM if it does not end by itself."""
    tmp = Path(env["XDG_CONFIG_HOME"]).parent
    name = f"streams-{next(NUMBERS)}"
    out = tmp / f"{name}.out" if stdout == "file" else Path(stdout or os.devnull)
    null = os.open(os.devnull, os.O_RDONLY)
    taken = os.open(out, os.O_WRONLY | os.O_CREAT | (os.O_TRUNC if stdout == "file" else 0), 0o600)
    err = os.open(tmp / f"{name}.err", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    running = forks.start(line, env, (null, taken, err), close=() if stdout else (1,), encoding=encoding)
    for number in (null, taken, err):
        os.close(number)
    code = running.code(patience_s if words_of(line) in WAITING else END_S)
    stopped = code is None
    if stopped:
        os.kill(running.pid, signal.SIGTERM)
        code = running.code(END_S)
    said = (tmp / f"{name}.err").read_text("utf-8", "replace")
    return Ended(line, code, said, out.read_text("utf-8", "replace") if stdout == "file" else "", stopped)


def words_of(line: list[str]) -> tuple[str, ...]:
    """The words that name a command, in a whole command line."""
    start = 2 if line[0] == "--cluster" else 0
    return tuple(line[start : start + (1 if (line[start],) in COMMANDS else 2)])


def expected(ended: Ended) -> set[int]:
    """A command that waits and was stopped says so; another may just have come to its end."""
    if not ended.stopped:
        return DOCUMENTED - {130}
    words = words_of(ended.line)
    if words in SERVERS:
        return {0, 1, 130}  # 1: it could not say that it serves
    # A Ctrl-C that comes while a module is imported makes Python end by the signal, which a shell reports as 130 too.
    return {130, -signal.SIGINT} if words in TYPING else DOCUMENTED | {-signal.SIGINT}


def run_all(run, words=COMMANDS) -> list[Ended]:
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(run, words))


def no_complaints(found: list[Ended]) -> None:
    assert len(found) >= len(COMMANDS)
    complaints = [said for ended in found if (said := ended.complaint(expected(ended)))]
    assert not complaints, "\n\n".join(complaints)


@pytest.mark.slow
def test_at_a_terminal_that_stays_open(forks: Zygote, place: Place) -> None:
    env = environment(place)
    found = run_all(lambda words: at_a_terminal(forks, line_for(words, place), env))
    no_complaints(found)
    stopped = {words_of(ended.line) for ended in found if ended.stopped}
    assert stopped >= TYPING | {("top",), ("log", "tail")}, "these wait for what comes"


def test_a_full_stdout_is_a_failure_of_whatever_prints(forks: Zygote, place: Place) -> None:
    env = environment(place)
    few = [words for words in COMMANDS if words[0] in {"cluster", "context", "top", "log", "ledger"}]
    full = run_all(
        # Those that wait print first, however slow the machine is.
        lambda words: with_streams(forks, line_for(words, place), env, "/dev/full", patience_s=END_S),
        few,
    )
    assert len(full) == len(few)
    for ended in full:
        assert not ended.complaint(expected(ended))
        assert not ended.stopped
        assert ended.code in {1, 2} or (ended.code == 0 and ended.said), ended
    said = {words_of(ended.line): ended for ended in full}
    assert said["cluster", "status"].said == "standard output: No space left on device.\n"
    assert said["log", "read"].code == 1


def test_no_such_cluster(forks: Zygote, place: Place) -> None:
    env = environment(place, f"sqlite:{place.tmp}/none.db")
    asked = [words for words in COMMANDS if words[0] in {"log", "ledger", "cluster", "top", "bench"}]
    found = run_all(
        lambda words: with_streams(forks, [*line_for(words, place), "--json"], env, "file"), asked
    )
    for ended in found:
        assert not ended.complaint({1, 2})
        assert '{"error": ' in ended.said.splitlines()[-1], ended


def test_without_any_extra(place: Place) -> None:
    env = environment(place)
    asked = [("spark", "run"), ("spark", "doctor"), ("check",), ("simulate",), ("verify-history",)]
    with zygote(*EXTRAS) as forks:
        lines = [line_for(words, place) for words in asked]
        lines += [["log", "list", "--cluster", f"{scheme}://127.0.0.1:1/x"] for scheme in ("etcd", "zk")]
        lines += [["log", "export", "numbers", str(place.tmp / "numbers.parquet")]]
        found = [with_streams(forks, line, env, "file") for line in lines]
    for ended in found:
        assert not ended.complaint({2}), ended
        assert re.fullmatch(r".*\bpip install .+\n", ended.said), ended
    named = [re.findall(r"needs the extra '([a-z-]+)'", ended.said) for ended in found]
    assert named == [["spark-local"]] * 2 + [[]] * 3 + [["etcd"], ["zookeeper"], ["arrow"]]


@pytest.mark.slow
@pytest.mark.parametrize("extra", EXTRAS)
def test_all_commands_without_one_extra(place: Place, extra: str) -> None:
    """Those that need it name what to install; the others do not notice."""
    env = environment(place)
    with zygote(extra) as forks:
        no_complaints(run_all(lambda words: with_streams(forks, line_for(words, place), env, "file")))


@pytest.mark.slow
@pytest.mark.parametrize("stdout", [None, "/dev/full", "file"])
def test_all_commands_with_each_stdout(forks: Zygote, place: Place, stdout: str | None) -> None:
    env = environment(place)
    no_complaints(run_all(lambda words: with_streams(forks, line_for(words, place), env, stdout, "ascii")))


@pytest.mark.slow
def test_a_dead_cluster_and_sigterm(
    forks: Zygote, tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    with LocalCluster(tmp_path_factory.mktemp("dead"), 3) as cluster:
        made = furnished(cluster, tmp_path)
        for index in range(3):
            cluster.kill(index)
        env = environment(made)
        no_complaints(run_all(lambda words: at_a_terminal(forks, line_for(words, made), env, signal.SIGTERM)))


@pytest.mark.slow
def test_a_foreign_cluster_in_the_environment_is_left_alone(
    forks: Zygote, place: Place, tmp_path: Path
) -> None:
    """Each command is told another cluster by its option."""
    foreign = tmp_path / "foreign" / "metadata.db"
    foreign.parent.mkdir()
    made = with_streams(
        forks, ["metadata", "format", "--cluster", f"sqlite:{foreign}"], environment(place), "file"
    )
    assert made.code == 0, made
    before = foreign.read_bytes()
    env = environment(place, f"sqlite:{foreign}")
    no_complaints(
        run_all(
            lambda words: with_streams(forks, ["--cluster", place.uri, *line_for(words, place)], env, "file")
        )
    )
    assert foreign.read_bytes() == before

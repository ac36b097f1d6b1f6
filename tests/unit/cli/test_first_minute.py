"""From an empty home to the first record read back, and which context the cluster of `quire up` is."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from quire.cli.console.named_clusters import NamedClusters, contexts_file
from quire.cli.local.first_steps import data_directory, first_steps, starting_again
from quire.cli.local.local_cluster import LocalCluster

WAIT_S = 60.0
APPEND, READ = "  echo hello | quire log append greetings --create", "  quire log read greetings"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("QUIRE_CLUSTER", "XDG_CONFIG_HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    return tmp_path


def own() -> LocalCluster:
    """The cluster in the user's data directory, not started."""
    return LocalCluster(data_directory())


def shell(line: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=WAIT_S, check=False)


def stop(running: subprocess.Popen[str]) -> None:
    running.send_signal(signal.SIGINT)
    _out, err = running.communicate(timeout=WAIT_S)
    assert (running.returncode, err) == (0, "Stopped cleanly.\n")


@pytest.fixture
def up() -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """A `quire up` that serves, and what it has printed."""
    running = subprocess.Popen(["quire", "up"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert running.stdout is not None
    lines = []
    for line in running.stdout:
        lines.append(line.rstrip("\n"))
        if "Ctrl-C" in line:
            break
    yield running, lines
    if running.poll() is None:
        stop(running)


def test_four_commands_from_an_empty_home_to_the_first_record(
    home: Path, up: tuple[subprocess.Popen[str], list[str]]
) -> None:
    """Two of them are those that the first one, `quire up`, has printed."""
    running, said = up
    assert said[0] == f"Cluster sqlite:{home / '.local/share/quire/metadata.db'}"
    assert said[5:8] == ["It is the context local, which is in use.", "Try in another terminal:", APPEND]
    appended, read, shown = map(shell, (*said[7:9], "quire log show greetings"))
    assert appended.stdout.startswith("Log greetings: 1 record, 5 B, at offsets 0..0")
    assert (read.stdout, read.stderr) == ("hello\n", "")
    assert "offsets 0 to 0: 1 record in 1 ledger" in shown.stdout
    assert NamedClusters.load().current == "local"
    stop(running)
    stopped = shell(said[8])
    assert stopped.returncode == 1
    if starting_again(
        said[0].removeprefix("Cluster ")
    ):  # else a program beside this test has one of the ports by now
        assert stopped.stderr.endswith("No bookie of this cluster is running: `quire up` starts them.\n")


def test_without_a_cluster_the_command_that_starts_one_is_named() -> None:
    done = shell("quire log read greetings")
    assert (done.returncode, "`quire up` starts one on this machine" in done.stderr) == (1, True)


def test_the_users_own_cluster_is_selected_where_none_was() -> None:
    assert first_steps(own()) == [
        "It is the context local, which is in use.",
        "Try in another terminal:",
        APPEND,
        READ,
    ]
    written = contexts_file().stat().st_mtime_ns
    assert first_steps(own())[0] == "It is the context local, which is in use."
    assert contexts_file().stat().st_mtime_ns == written
    NamedClusters({"local": own().uri}).save()
    first_steps(own())
    assert NamedClusters.load().current == "local"


def test_a_context_in_use_stays_in_use() -> None:
    NamedClusters({"work": "zk://host/ledgers"}, "work").save()
    sentence, _try, append, read = first_steps(own())
    assert "work is in use: `quire context use local` puts this one in use" in sentence
    assert (append, read) == (f"{APPEND} --cluster local", f"{READ} --cluster local")
    known = NamedClusters.load()
    assert (known.current, known.clusters["local"]) == ("work", own().uri)


def test_local_is_never_given_another_cluster() -> None:
    kept = NamedClusters({"local": "zk://me:secret@host/ledgers"}, "local")
    kept.save()
    sentence, *_, read = first_steps(own())
    assert sentence.startswith(
        "The context local names another cluster, zk://me:***@host/ledgers, and is left"
    )
    assert f"`quire context add NAME {data_directory()} --use`" in sentence
    assert read == f"{READ} --cluster {data_directory()}"
    assert NamedClusters.load() == kept


def test_a_cluster_elsewhere_gets_no_name_by_itself(tmp_path: Path) -> None:
    other = LocalCluster(tmp_path / "other one")
    sentence, *_, read = first_steps(other)
    assert read == f"{READ} --cluster '{tmp_path}/other one'"
    assert f"`quire context add NAME '{tmp_path}/other one' --use`" in sentence
    assert not contexts_file().exists()
    NamedClusters({"mine": other.uri}).save()
    assert first_steps(other)[0].startswith(
        "It is the context mine. No context is in use: `quire context use mine`"
    )
    joined = LocalCluster(data_directory(), cluster="zk://host/ledgers")
    assert first_steps(joined)[-1] == f"{READ} --cluster zk://host/ledgers"
    assert NamedClusters.load().clusters == {"mine": other.uri}


def test_a_variable_that_names_another_cluster_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUIRE_CLUSTER", "sqlite:/elsewhere")
    sentence, *_, read = first_steps(own())
    assert "`unset QUIRE_CLUSTER`" in sentence
    assert read == f"{READ} --cluster local"
    monkeypatch.setenv("QUIRE_CLUSTER", own().uri)
    assert first_steps(own())[-1] == READ


def test_contexts_that_cannot_be_read_keep_no_cluster_from_serving() -> None:
    contexts_file().parent.mkdir(parents=True)
    contexts_file().write_text("{")
    sentence, *_, read = first_steps(own())
    assert sentence.startswith(f"It has no name: {contexts_file()} is damaged")
    assert read == f"{READ} --cluster {data_directory()}"


def test_with_fewer_bookies_than_a_log_has_the_log_is_made_smaller() -> None:
    lines = first_steps(LocalCluster(data_directory(), 1))
    assert lines[2:4] == [
        "  quire log create greetings -E 1 -w 1 -a 1",
        "  echo hello | quire log append greetings",
    ]

"""`quire up` and directories that are somebody else's, and an exported QUIRE_CLUSTER."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from quire.cli.console.failures import BookieStartError
from quire.cli.local import local_cluster
from quire.cli.local.local_cluster import LocalCluster
from quire.cli.main import app
from quire.core.errors import CorruptMetadataError, WrongDirectoryError

WAIT_S = 60.0


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("cluster"), 1) as local:
        yield local


def bookies(uri: str) -> list[str]:
    done = CliRunner().invoke(app, ["cluster", "bookies", "--cluster", uri, "--json"])
    return [json.loads(line)["id"] for line in done.stdout.splitlines()]


def up(directory: Path, *arguments: str, **environment: str) -> tuple[str, str]:
    """Start `quire up`, and stop it when it is ready: the first line, and what it said on stderr."""
    running = subprocess.Popen(
        [sys.executable, "-m", "quire", "up", "--dir", str(directory), "--json", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | environment,
        text=True,
    )
    assert running.stdout is not None
    line = running.stdout.readline()
    running.send_signal(signal.SIGINT)
    _out, err = running.communicate(timeout=WAIT_S)
    return line, err


def test_an_exported_cluster_gets_no_more_bookies(first: LocalCluster, tmp_path: Path) -> None:
    line, _err = up(tmp_path / "other", "--bookies", "1", QUIRE_CLUSTER=first.uri)
    assert json.loads(line)["cluster"] == f"sqlite:{tmp_path / 'other' / 'metadata.db'}"
    assert bookies(first.uri) == [first.bookies[0].id]


def test_a_directory_in_a_bookies_is_refused(first: LocalCluster) -> None:
    folder = first.bookies[0].directory
    for directory in (folder, folder / "below" / "it"):
        with pytest.raises(WrongDirectoryError, match="a bookie's own directory: choose another --dir"):
            LocalCluster(directory, 1).start()
        assert not (directory / "lock").exists()


def test_bookies_stay_in_the_cluster_that_they_joined(first: LocalCluster, tmp_path: Path) -> None:
    with LocalCluster(tmp_path / "joined", 1, cluster=first.uri):
        assert len(bookies(first.uri)) == 2
    with pytest.raises(WrongDirectoryError, match=f"belong to the cluster {first.uri}: give --cluster"):
        LocalCluster(tmp_path / "joined").start()
    assert not (tmp_path / "joined" / "metadata.db").exists()
    with LocalCluster(tmp_path / "joined", cluster=first.uri) as again:
        assert len(again.bookies) == 1


def test_a_cluster_of_its_own_does_not_join_another(first: LocalCluster, tmp_path: Path) -> None:
    with LocalCluster(tmp_path / "own", 1):
        pass
    with pytest.raises(WrongDirectoryError, match="holds a cluster of its own"):
        LocalCluster(tmp_path / "own", cluster=first.uri).start()
    (tmp_path / "own").rename(tmp_path / "moved")
    own = f"sqlite:{tmp_path / 'moved' / 'metadata.db'}"
    with LocalCluster(tmp_path / "moved", cluster=own) as again:
        assert bookies(own) == [again.bookies[0].id]


def test_a_bookie_that_does_not_come_up_is_named_though_another_has_died(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of the other one's output is there to be read all the time."""
    local = LocalCluster(tmp_path, 2)
    died, silent = local.bookies
    try:
        local._run(died, ["-c", """print('{"id": "b1.x", "address": "127.0.0.1:1"}')"""])
        local._await_ready([died])
        assert died.process is not None
        died.process.wait()
        local._run(silent, ["-c", "import time; time.sleep(60)"])
        monkeypatch.setattr(local_cluster, "START_TIMEOUT_S", 0.1)
        with pytest.raises(BookieStartError, match="bookie-2 did not come up"):
            local._await_ready([silent])
        assert local.wait(timeout_s=WAIT_S) == [died]
    finally:
        local.stop()


def test_more_bookies_than_there_are_ports_are_refused(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["up", "--dir", str(tmp_path / "new"), "--port", "65534"])
    assert (done.exit_code, "no 3 ports from 65534 on" in done.stderr) == (2, True)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    "text", ["[]", "{", '{"bookies": 3}', '{"bookies": [{"name": "bookie-1", "port": null}]}']
)
def test_a_list_of_bookies_that_is_damaged_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "bookies.json").write_text(text)
    with pytest.raises(CorruptMetadataError, match="only lists names and ports: delete it"):
        LocalCluster(tmp_path)

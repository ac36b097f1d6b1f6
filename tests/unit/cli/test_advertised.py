"""What a bookie announces: an address that clients can reach, never "every address"."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from quire.bookie.config import BookieConfig, is_wildcard
from quire.cli.main import app
from quire.core.errors import MisuseError

WAIT_S = 60.0


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "[::]:0", "0:3181", "*:3181"])
def test_a_wildcard_is_not_announced(tmp_path: Path, listen: str) -> None:
    words = ["bookie", "--dir", str(tmp_path / "b"), "--cluster", f"sqlite:{tmp_path / 'm.db'}", "--create"]
    done = CliRunner(env={"QUIRE_ADVERTISE": None}).invoke(app, [*words, "--listen", listen])
    assert done.exit_code == 2
    assert "give the address that they are to use (--advertise, or QUIRE_ADVERTISE)" in done.stderr
    assert not (tmp_path / "b").exists()
    done = CliRunner(env={"QUIRE_ADVERTISE": listen}).invoke(app, [*words, "--listen", "127.0.0.1:0"])
    assert done.exit_code == 2
    assert not (tmp_path / "b").exists()


def test_what_is_advertised_must_be_an_address(tmp_path: Path) -> None:
    for wrong in ("3181", "host", ":1", "host:70000"):
        words = ["bookie", "--dir", str(tmp_path / "b"), "--cluster", "sqlite:x", "--advertise", wrong]
        done = CliRunner().invoke(app, words)
        assert (done.exit_code, done.stderr[:25]) == (2, "--advertise takes host:po")
    with pytest.raises(MisuseError, match="every address"):
        BookieConfig(tmp_path, host="::")
    assert [is_wildcard(host) for host in ("10.0.0.1", "::1", "host", "100.0.0.0")] == [False] * 4


@pytest.mark.parametrize("host", ["b1..example", "b" * 64 + ".example", "."])
def test_what_no_system_can_look_up_is_neither_listened_on_nor_advertised(tmp_path: Path, host: str) -> None:
    words = ["bookie", "--dir", str(tmp_path / "b"), "--cluster", f"sqlite:{tmp_path / 'm.db'}", "--create"]
    done = CliRunner().invoke(app, [*words, "--listen", f"{host}:3181", "--advertise", "b1:3181"])
    assert done.exit_code == 2
    assert f"'{host}' is no host name" in done.stderr
    assert not (tmp_path / "b").exists()
    with pytest.raises(MisuseError, match="is no host name"):
        BookieConfig(tmp_path, advertise=(host, 3181))


@pytest.mark.parametrize("how", ["option", "environment"])
def test_clients_are_told_what_is_advertised(tmp_path: Path, how: str) -> None:
    uri = f"sqlite:{tmp_path / 'm.db'}"
    words = [
        "bookie",
        "--dir",
        str(tmp_path / "b"),
        "--cluster",
        uri,
        "--create",
        "--json",
        "--listen",
        "0.0.0.0:0",
    ]
    environment = {"QUIRE_ADVERTISE": "localhost:0"} if how == "environment" else {}
    words += ["--advertise", "localhost:0"] if how == "option" else []
    bookie = subprocess.Popen(
        [sys.executable, "-m", "quire", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | environment,
    )
    try:
        assert bookie.stdout is not None
        address = json.loads(bookie.stdout.readline())["address"]
        runner = CliRunner(env={"QUIRE_CLUSTER": uri})
        row = json.loads(runner.invoke(app, ["cluster", "bookies", "--json"]).stdout)
        assert row["address"] == address.replace("0.0.0.0", "localhost")
        assert row["answers"] == "ok"
        one = runner.invoke(app, ["ledger", "append", "-E1", "-w1", "-a1", "--json"], input=b"x\n")
        assert json.loads(one.stdout)["entries"] == 1
    finally:
        bookie.send_signal(signal.SIGINT)
        bookie.communicate(timeout=WAIT_S)

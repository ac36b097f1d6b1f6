"""Where a ledger's password comes from: a file of its owner's, the terminal, the environment; never a command line."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from quire.cli.console.options import password_of
from quire.cli.main import app
from quire.core.errors import MisuseError
from quire.env.private import read_secret
from quire.spark.read_options import read_password

COMMANDS = (
    ("ledger", "create"),
    ("ledger", "append"),
    ("ledger", "read", "1"),
    ("ledger", "tail", "1"),
    ("ledger", "recover", "1"),
    ("ledger", "verify", "1"),
)
SECRET = "open sesame"


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "password"
    path.touch(0o600)
    path.write_text(f"{SECRET}\r\n", newline="")
    return path


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("given", [("--password", SECRET), (f"--password={SECRET}",)])
def test_a_password_on_a_command_line_is_refused(command: tuple[str, ...], given: tuple[str, ...]) -> None:
    runner = CliRunner(env={"QUIRE_CLUSTER": "sqlite:/nowhere/metadata.db", "NO_COLOR": "1"})
    refused = runner.invoke(app, [*command, *given])
    assert refused.exit_code == 2
    for way in ("--password-file FILE", "--password-file -", "QUIRE_PASSWORD"):
        assert way in refused.stderr
    assert SECRET not in refused.output
    error = json.loads(runner.invoke(app, [*command, *given, "--json"]).stderr)["error"]
    assert error["code"] == "misuse"
    assert "every user of this machine can read command lines" in error["message"]


def test_the_line_of_a_file_is_the_password(secret: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUIRE_PASSWORD", "another")
    assert password_of(str(secret)) == SECRET
    assert password_of("") == "another"
    monkeypatch.delenv("QUIRE_PASSWORD")
    assert password_of("") == ""


def of_the_command_line(path: Path) -> str:
    return password_of(str(path))


def of_the_environment(path: Path) -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(os.environb, b"QUIRE_PASSWORD", path.read_bytes())
        return password_of("")


def of_spark(path: Path) -> str:
    return read_password(None, str(path)).decode()


def of_sparks_environment(path: Path) -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(os.environb, b"GIVEN", path.read_bytes())
        return read_password("GIVEN", None).decode()


def of_a_key(path: Path) -> str:
    return read_secret(path, "key password", others_may_read=True)


SURFACES = (of_the_command_line, of_the_environment, of_spark, of_sparks_environment, of_a_key)


@pytest.mark.parametrize("read", SURFACES)
@pytest.mark.parametrize("data", [b"gr\xc3\xbcn", b"gr\xc3\xbcn\n", b"gr\xc3\xbcn\r\n"])
def test_one_file_is_one_password_on_every_surface(
    read: Callable[[Path], str], data: bytes, secret: Path
) -> None:
    secret.write_bytes(data)
    assert read(secret) == "grün"


@pytest.mark.parametrize("read", SURFACES)
@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"one\ntwo\n", "more than one line"),
        (b"one\n\n", "more than one line"),
        (b"one\rtwo", "more than one line"),
        ("grün".encode("latin-1"), "not UTF-8 text (byte 2)"),
    ],
)
def test_what_is_not_one_line_of_text_is_no_password(
    read: Callable[[Path], str], data: bytes, says: str, secret: Path
) -> None:
    secret.write_bytes(data)
    with pytest.raises(MisuseError) as refused:
        read(secret)
    assert says in str(refused.value)


@pytest.mark.parametrize("mode", [0o604, 0o640, 0o644, 0o666])
def test_a_file_that_others_can_read_is_refused(secret: Path, mode: int) -> None:
    secret.chmod(mode)
    if os.geteuid() == 0 and mode == 0o640:
        assert password_of(str(secret)) == SECRET, "root may give a file of its own to a group"
        os.chown(secret, 65534, -1)
    with pytest.raises(MisuseError, match=rf"can be read by other users: run `chmod 600 {secret}`"):
        password_of(str(secret))


def test_a_file_that_holds_no_password_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "password"
    with pytest.raises(MisuseError, match=f"{path} cannot be read: No such file"):
        password_of(str(path))
    path.touch(0o600)
    with pytest.raises(MisuseError, match="is empty: write the password into its first line"):
        password_of(str(path))
    path.write_bytes(b"\xff\n")
    with pytest.raises(MisuseError, match="is not UTF-8 text"):
        password_of(str(path))
    with pytest.raises(MisuseError, match="Is a directory"):
        tmp_path.chmod(0o700)
        password_of(str(tmp_path))
    with pytest.raises(MisuseError, match="null byte"):
        password_of("\0")


ASK = "from quire.cli.console.options import password_of; print('got', password_of('-'))"


def test_it_is_asked_for_on_the_terminal_and_not_shown() -> None:
    child, terminal = pty.fork()
    if child == 0:
        os.execv(sys.executable, [sys.executable, "-c", ASK])
    shown = b""
    while b"Password of the ledger: " not in shown:
        shown += os.read(terminal, 1024)
    os.write(terminal, SECRET.encode() + b"\n")
    while b"got " not in shown or not shown.endswith(b"\n"):
        shown += os.read(terminal, 1024)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    os.close(terminal)
    assert shown.count(SECRET.encode()) == 1
    assert b"got " + SECRET.encode() in shown


def test_without_a_terminal_nobody_is_asked() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ASK], start_new_session=True, capture_output=True, text=True, check=False
    )
    assert "asks on the terminal, and there is none" in done.stderr

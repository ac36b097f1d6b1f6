"""Appending commands at a terminal that stays open: whatever ends them, the documented exit code arrives."""

import asyncio
import contextlib
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import cast

import pytest
from typer.testing import CliRunner

from quire.cli.console.output import Output
from quire.cli.ledger.stream import AcknowledgedEntries
from quire.cli.local.local_cluster import LocalCluster
from quire.cli.main import app
from quire.client.writing.writer import LedgerWriter
from support.waiting import until

WAIT_S = 60.0


class Terminal:
    """One command at a pseudo-terminal of its own, which holds its input open."""

    def __init__(self, uri: str, *arguments: str) -> None:
        self._ours, theirs = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "quire", *arguments],
            stdin=theirs,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=os.environ | {"QUIRE_CLUSTER": uri},
            start_new_session=True,
        )
        os.close(theirs)

    def type(self, text: bytes) -> None:
        os.write(self._ours, text)

    def end(self) -> tuple[int, str]:
        """Wait for the process: its exit code, and what it said on stderr."""
        _out, err = self.process.communicate(timeout=WAIT_S)
        return self.process.returncode, err.decode()

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.communicate()
        os.close(self._ours)


@contextlib.contextmanager
def at_a_terminal(uri: str, *arguments: str) -> Iterator[Terminal]:
    terminal = Terminal(uri, *arguments)
    try:
        yield terminal
    finally:
        terminal.close()


def call(uri: str, *arguments: str) -> bytes:
    done = CliRunner(env={"QUIRE_CLUSTER": uri}).invoke(app, list(arguments))
    assert done.exit_code == 0, done.output
    return done.stdout_bytes


def ledgers(uri: str) -> set[bytes]:
    return set(call(uri, "ledger", "list", "--json").splitlines())


def typed(terminal: Terminal, uri: str, *reading: str) -> None:
    """Type a line and wait until it is stored."""
    terminal.type(b"first\n")
    until(lambda: call(uri, *reading) == b"first\n", "the line at its place")


def test_ctrl_c_at_a_log(cluster: LocalCluster) -> None:
    call(cluster.uri, "log", "create", "stopped")
    with at_a_terminal(cluster.uri, "log", "append", "stopped") as terminal:
        typed(terminal, cluster.uri, "log", "read", "stopped")
        terminal.process.send_signal(signal.SIGINT)
        code, said = terminal.end()
    begins = "Reading records from this terminal until Ctrl-D.\n"
    assert (code, said) == (130, f"{begins}Confirmed: 1 record, the last one at offset 0.\nInterrupted.\n")
    assert call(cluster.uri, "log", "read", "stopped") == b"first\n"


def test_a_log_that_another_writer_took_over(cluster: LocalCluster) -> None:
    call(cluster.uri, "log", "create", "taken")
    with at_a_terminal(cluster.uri, "log", "append", "taken") as terminal:
        typed(terminal, cluster.uri, "log", "read", "taken")
        call(cluster.uri, "log", "roll", "taken", "--yes")
        terminal.type(b"second\n")  # the terminal stays open: nothing more is typed
        code, said = terminal.end()
    assert code in {1, 3}, said
    assert "Confirmed: 1 record, the last one at offset 0" in said
    assert "Fatal" not in said
    assert "Traceback" not in said


def test_whose_writer_ends_is_said_and_asked_for(cluster: LocalCluster, tmp_path: Path) -> None:
    uri = cluster.uri
    call(uri, "log", "create", "asked")
    (tmp_path / "more").write_bytes(b"more\n")
    more = ("log", "append", "asked", str(tmp_path / "more"))
    with at_a_terminal(uri, "log", "append", "asked") as writer:
        typed(writer, uri, "log", "read", "asked")
        host = f":{writer.process.pid} (epoch 1)"
        for words in (
            more,
            ("log", "roll", "asked"),
            ("log", "read", "asked", "--recover"),
            ("log", "place", "asked"),
        ):
            refused = CliRunner(env={"QUIRE_CLUSTER": uri}).invoke(app, list(words))
            assert refused.exit_code == 1
            assert "would end the writer at" in refused.stderr
            assert host in refused.stderr
        with at_a_terminal(uri, *more) as other:
            other.type(b"\n")  # no is the default
            code, said = other.end()
        assert code == 1
        assert "ends the writer at" in said
        assert host in said
        with at_a_terminal(uri, *more, "--wait") as other:
            assert other.process.stderr is not None
            assert b"waits until the writer at" in other.process.stderr.readline()
            writer.type(b"last\n\x04")  # the end of what is typed
            assert writer.end()[0] == 0
            assert other.end()[0] == 0
    assert call(uri, "log", "read", "asked") == b"first\nlast\nmore\n"
    with at_a_terminal(uri, "log", "append", "asked") as writer:
        typed(writer, uri, "log", "read", "asked", "--last", "1")
        with at_a_terminal(uri, *more) as other:
            other.type(b"y\n")
            assert other.end()[0] == 0
        writer.type(b"too late\n")
        code, said = writer.end()
    assert code in {1, 3}
    assert "Confirmed: 1 record, the last one at offset 3" in said
    assert call(uri, "log", "read", "asked", "--last", "2") == b"first\nmore\n"


def test_what_destroys_is_asked_for_at_a_terminal(cluster: LocalCluster) -> None:
    call(cluster.uri, "log", "create", "gone")
    for answer, code in ((b"n\n", 1), (b"y\n", 0)):
        with at_a_terminal(cluster.uri, "log", "delete", "gone") as terminal:
            terminal.type(answer)
            ended, said = terminal.end()
        assert ended == code, said
        assert "Delete log gone for ever, 0 records" in said
        assert (b"gone" in call(cluster.uri, "log", "list", "--json")) == bool(code)


def one_ledger(uri: str, before: set[bytes]) -> str:
    import json

    new = until(lambda: ledgers(uri) - before, "the ledger")
    return str(json.loads(new.pop())["ledger_id"])


def test_ctrl_c_at_a_ledger_and_its_recovery_by_another(cluster: LocalCluster) -> None:
    uri = cluster.uri
    for ending in ("interrupted", "fenced"):
        before = ledgers(uri)
        with at_a_terminal(uri, "ledger", "append") as terminal:
            ledger = one_ledger(uri, before)
            typed(terminal, uri, "ledger", "read", ledger)
            if ending == "interrupted":
                terminal.process.send_signal(signal.SIGINT)
            else:
                call(uri, "ledger", "recover", ledger)
                terminal.type(b"second\n")
            code, said = terminal.end()
        assert code == (130 if ending == "interrupted" else 3), said
        assert f"`quire ledger recover {ledger}` closes it" in said
        assert "Fatal" not in said


@pytest.mark.slow
@pytest.mark.parametrize("command", ["ledger", "log"])
def test_a_lost_quorum(tmp_path: Path, command: str) -> None:
    with LocalCluster(tmp_path / "c", 3) as local:
        call(local.uri, "log", "create", "lost")
        before = ledgers(local.uri)
        arguments = ("ledger", "append") if command == "ledger" else ("log", "append", "lost")
        with at_a_terminal(local.uri, *arguments) as terminal:
            reading = ("log", "read", "lost") if command == "log" else None
            typed(terminal, local.uri, *(reading or ("ledger", "read", one_ledger(local.uri, before))))
            local.kill(0)
            local.kill(1)
            terminal.type(b"second\n")
            code, said = terminal.end()
        assert code == 3, said
        assert "Fatal" not in said
        assert "Confirmed: 1 " in said
        assert "unknown: 1." in said


async def test_an_append_to_a_stream_ends_when_nobody_reads_what_it_prints() -> None:
    class Unread(Output):
        def result(self, facts: Mapping[str, object], *lines: str) -> None:
            raise BrokenPipeError

    class Writer:
        term = 1

        def append_nowait(self, payload: bytes) -> asyncio.Future[int]:
            return confirmed

    confirmed: asyncio.Future[int]
    told: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, what: told.append(what))
    confirmed = asyncio.get_running_loop().create_future()
    entries = AcknowledgedEntries("clicks", cast("LedgerWriter", Writer()), Unread(as_json=True))
    entries.append_nowait(b"first")
    confirmed.set_result(0)
    await asyncio.sleep(0)
    assert told == []
    with pytest.raises(BrokenPipeError):
        entries.append_nowait(b"second")

"""Commands that wait for bookies say for which, why, and what ends the wait."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from quire.cli.local.local_cluster import LocalCluster
from support.waiting import until


def started(uri: str, *words: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "quire", *words],
        env=os.environ | {"QUIRE_CLUSTER": uri},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def run(uri: str, *words: str) -> bytes:
    done = started(uri, *words)
    output, errors = done.communicate()
    assert done.returncode == 0, errors
    return output


def line_with(command: subprocess.Popen[bytes], words: str) -> str:
    assert command.stderr is not None
    for line in command.stderr:
        if words in line.decode():
            return line.decode()
    raise AssertionError(f"the command ended with {command.wait()} and did not say {words!r}")


@pytest.mark.parametrize(
    ("first", "waiting", "why"),
    [
        (
            ("stream", "create", "orders", "--mode", "fencing"),
            ("stream", "append", "orders"),
            "it is not registered, and no other bookie can take its place",
        ),
        (
            (),
            ("ledger", "append", "--guarantee", "write-quorum"),
            "it has not acknowledged the oldest entries",
        ),
    ],
)
def test_a_command_that_waits_for_a_bookie_says_for_which(
    tmp_path: Path, first: tuple[str, ...], waiting: tuple[str, ...], why: str
) -> None:
    with LocalCluster(tmp_path / "c", 3) as local:
        if first:
            run(local.uri, *first)
            dead = local.kill(0)
        with started(local.uri, *waiting) as command:
            assert command.stdin is not None
            if not first:
                command.stdin.write(b"one\n")
                command.stdin.flush()
                until(lambda: b"open" in run(local.uri, "ledger", "list"), "the ledger is there")
                dead = local.kill(0)
            command.stdin.write(b"an entry\n")
            command.stdin.close()
            said = line_with(command, "waits for")
            assert f"waits for {dead.id} ({why}). It goes on when" in said
            local.restart(0)
            assert command.wait() == 0

"""A second start on a bookie's directory while the bookie runs: refused, and what the first acknowledges stays."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from quire.client.client import Client
from quire.client.connecting import Connecting
from support.etcd_server import etcd_or_skip
from support.zookeeper_server import zookeeper_or_skip

pytestmark = [pytest.mark.faults, pytest.mark.timeout(600)]

WAIT_S = 120.0
SESSION = "session_timeout_ms=3000"
COMMAND = ("-m", "quire")
WITHOUT_A_LOCK = (
    "-c",
    """\
from quire.cli.main import main
from quire.env.real import RealFiles
from quire_testing.kit.memory import NoLock

RealFiles.lock = lambda self, directory: NoLock()
main()
""",
)
"""As on another machine that sees the same directory, where this machine's locks are not known."""


def sqlite(folder: Path) -> str:
    return f"sqlite:{folder / 'metadata.db'}"


def zookeeper(_: Path) -> str:
    return f"zk://{zookeeper_or_skip().host}/t{uuid.uuid4().hex}/ledgers?{SESSION}"


def etcd(_: Path) -> str:
    return f"etcd://{etcd_or_skip().host}/t{uuid.uuid4().hex}/ledgers?{SESSION}"


CASES = [
    (sqlite, signal.SIGKILL),
    pytest.param(sqlite, signal.SIGTERM, marks=pytest.mark.slow),
    pytest.param(zookeeper, signal.SIGKILL, marks=(pytest.mark.interop, pytest.mark.slow)),
    pytest.param(etcd, signal.SIGTERM, marks=pytest.mark.interop),
]


def start(
    directory: Path, cluster: str, port: int, program: tuple[str, ...] = COMMAND
) -> subprocess.Popen[str]:
    where = ["--dir", str(directory), "--cluster", cluster, "--listen", f"127.0.0.1:{port}"]
    command = [sys.executable, *program, "bookie", *where, "--name", "one", "--create", "--json"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@contextmanager
def serving(directory: Path, cluster: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A bookie that serves, and its port; killed in the end if it still runs."""
    process = start(directory, cluster, 0)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, process.communicate()
        yield process, int(json.loads(line)["address"].rpartition(":")[2])
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=WAIT_S)


async def append(cluster: str, first: int) -> int:
    async with (
        Connecting(cluster, Client) as client,
        await client.create_ledger(ensemble_size=1, write_quorum=1, ack_quorum=1) as ledger,
    ):
        await ledger.append_many([b"%d" % number for number in range(first, first + 5)])
        return int(ledger.ledger_id)


async def read(cluster: str, ledger_ids: list[int]) -> list[int]:
    async with Connecting(cluster, Client) as client:
        found = []
        for ledger_id in ledger_ids:
            reader = await client.open_ledger(ledger_id)
            found += [int(bytes(entry.payload)) async for entry in reader.read()]
        return found


def bytes_of(directory: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file()}


@pytest.mark.parametrize(("store", "end"), CASES)
async def test_what_the_first_process_acknowledges_outlives_second_starts(
    store: Any, end: signal.Signals, tmp_path: Path
) -> None:
    cluster, directory = store(tmp_path), tmp_path / "one"
    with serving(directory, cluster) as (first, port):
        ledgers = [await append(cluster, 0)]
        for number, (program, listen, sentence) in enumerate(
            [
                (COMMAND, port, "is in use by another bookie process"),
                (COMMAND, 0, "is in use by another bookie process"),
                (WITHOUT_A_LOCK, 0, "is already registered"),
            ],
            start=1,
        ):
            # What a cleaner of old files, or a person, takes for left over: there is no lock in a file.
            for empty in [
                path for path in directory.iterdir() if path.name == "LOCK" or not path.stat().st_size
            ]:
                empty.unlink()
            before = bytes_of(directory)
            second = start(directory, cluster, listen, program)
            _, errors = second.communicate(timeout=WAIT_S)
            assert second.returncode == 1, errors
            assert sentence in json.loads(errors.splitlines()[-1])["error"]["message"]
            assert bytes_of(directory) == before
            ledgers.append(await append(cluster, 5 * number))
        first.send_signal(end)
        first.wait(WAIT_S)
    with serving(directory, cluster):
        assert await read(cluster, ledgers) == list(range(20))

"""A program that leaves its client with records on their way loses none in silence: real processes, each way out."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from quire import blocking
from quire.cli.local.local_cluster import LocalCluster

pytestmark = pytest.mark.faults

RECORDS = 1 + 1000
KINDS = ("ledger", "log", "stream")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("leaving"), 3) as local:
        yield local


async def left(cluster: LocalCluster, api: str, kind: str, ending: str) -> tuple[str, str, str, int]:
    """What a program wrote, what it said of what it holds, its stderr and its exit code."""
    worker = Path(__file__).with_name("leaving_worker.py")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-W", "always::ResourceWarning", worker, api, kind, ending, cluster.uri),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    name = (await process.stdout.readline()).decode().strip()
    await process.stdout.readline()
    if ending == "silent":
        suspend(cluster, signal.SIGSTOP)
    said, errors = await process.communicate(b"\n")
    assert process.returncode is not None
    return name, said.decode().strip(), errors.decode(), process.returncode


def suspend(cluster: LocalCluster, what: signal.Signals) -> None:
    for bookie in cluster.bookies:
        os.kill(bookie.pid, what)


def stored(cluster: LocalCluster, kind: str, name: str) -> int:
    with blocking.connect(cluster.uri) as client:
        if kind == "ledger":
            return len(list(client.open_ledger(int(name)).read()))
        if kind == "log":
            return len(list(client.log(name).read(recover=True)))
        return len(list(client.unbounded_ledger(name).read()))  # no take-over: readers see it now


@pytest.mark.parametrize("api", ["asyncio", "blocking"])
@pytest.mark.parametrize(
    ("ending", "code"), [("clean", 0), ("exception", 1), ("interrupt", -signal.SIGINT), ("unclosed", 0)]
)
async def test_whichever_way_a_client_is_left_all_is_stored(
    cluster: LocalCluster, api: str, ending: str, code: int
) -> None:
    async def all_kinds() -> list[tuple[str, str, str, int]]:
        return await asyncio.gather(*(left(cluster, api, kind, ending) for kind in KINDS))

    for kind, (name, said, errors, ended) in zip(KINDS, await all_kinds(), strict=True):
        assert (stored(cluster, kind, name), ended) == (RECORDS, code), errors
        assert said == "as before" or (api, ending) == ("blocking", "unclosed"), errors
        assert "not confirmed" not in errors
        assert ("Left" in errors, "KeyboardInterrupt" in errors) == (
            ending == "exception",
            ending == "interrupt",
        )


@pytest.mark.parametrize("api", ["asyncio", "blocking"])
@pytest.mark.parametrize("kind", KINDS)
async def test_what_could_not_be_confirmed_is_counted_on_stderr(
    cluster: LocalCluster, api: str, kind: str
) -> None:
    try:
        _, said, errors, ended = await left(cluster, api, kind, "silent")
    finally:
        suspend(cluster, signal.SIGCONT)
    assert (said, ended) == ("as before", 0), errors
    assert errors.count("1000 appends were not confirmed when the client was closed: 1000 of ") == 1, errors

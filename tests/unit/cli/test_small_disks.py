"""Clusters on small disks: segments fit them, and a bookie whose disk is full says why wherever it matters."""

import asyncio
import contextlib
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import quire
from quire.cli.local.local_cluster import LocalCluster
from quire.cli.main import app
from quire.client.config import ClientConfig
from quire.storage.config import MIB, SEGMENT_BYTES, fitting_segment_bytes
from support.waiting import until

FEW = ("-E1", "-w1", "-a1")


def test_segments_suit_the_disk() -> None:
    disks = (0, 40 * 10**6, 600 * 10**6, 2 * 1024 * MIB, 1 << 50)
    assert [fitting_segment_bytes(disk) // MIB for disk in disks] == [1, 1, 16, 64, 64]
    assert fitting_segment_bytes(40 * MIB, 65536) == MIB
    assert fitting_segment_bytes(40 * MIB, 8 * MIB) == 16 * MIB
    assert fitting_segment_bytes(0, 60 * MIB) == SEGMENT_BYTES


@contextlib.contextmanager
def small_disk(directory: Path, size: str) -> Iterator[Path]:
    directory.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(directory)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("this machine does not let us mount")
    try:
        yield directory
    finally:
        subprocess.run(["umount", str(directory)], check=True)


def call(uri: str, *arguments: str, given: bytes = b"") -> Result:
    return CliRunner(env={"QUIRE_CLUSTER": uri}).invoke(app, list(arguments), input=given)


async def fill(uri: str) -> None:
    """Append until the only bookie takes nothing more."""
    async with quire.connect(uri, ClientConfig(quorum_wait_ms=0, flush_ms=0)) as client:
        writer = await client.create_ledger(ensemble_size=1, write_quorum=1, ack_quorum=1)
        with pytest.raises(quire.QuireError):
            while True:
                await writer.append(b"y" * 200_000)
        await writer.abandon()


@pytest.mark.parametrize("size", ["40m", "600m"])
def test_a_cluster_starts_and_takes_entries(tmp_path: Path, size: str) -> None:
    with small_disk(tmp_path / "disk", size) as disk, LocalCluster(disk / "c", 3) as local:
        made = call(local.uri, "ledger", "append", "--json", given=b"x" * 200_000 + b"\n")
        assert json.loads(made.stdout)["entries"] == 1, made.output
        assert call(local.uri, "cluster", "status").exit_code == 0
        assert "--segment-bytes sets another size" in local.bookies[0].log.read_text()


def test_a_full_bookie_says_why(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "8m") as disk, LocalCluster(disk / "c", 1, segment_bytes=MIB) as local:
        asyncio.run(fill(local.uri))
        until(
            lambda: (
                json.loads(call(local.uri, "cluster", "bookies", "--json").stdout)["standing"] == "read-only"
            ),
            "the bookie is registered as read-only",
        )
        why = f"the disk is full: {local.bookies[0].directory}/segments has no room for another segment of 1048576 bytes"
        assert why in call(local.uri, "cluster", "bookies").stdout
        assert f"is now read-only: {why}" in local.bookies[0].log.read_text()
        refused = call(local.uri, "ledger", "create", *FEW)
        assert refused.exit_code == 1
        assert f"Read-only: {local.bookies[0].id} ({why}" in refused.stderr

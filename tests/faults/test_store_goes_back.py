"""A metadata store that goes back in time makes no bookie drop anything: real processes, SQLite and etcd.

Each of these ways made the bookies of revision 9e5fe3a drop half of what they held within 200 s.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import sqlite3
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from faults.restored import COLLECT_EVERY, Cluster
from quire.cli.console.failures import EXIT_ATTENTION
from support.etcd_server import own_server
from support.rounds import FULL, rounds
from support.shared_server import or_skip

pytestmark = [pytest.mark.faults, pytest.mark.timeout(600)]
OLD, YOUNG = rounds(10, 30), rounds(10, 30)
"""Ledgers of before the backup, and of after it."""


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUIRE_COLLECT_EVERY", COLLECT_EVERY)


async def nothing_dropped(cluster: Cluster, put_newer_back: Callable[[], None]) -> None:
    """The store went back while no bookie ran. Nothing is dropped, before and after `accept-store`; with the newer store
    back, everything is readable."""
    everything = {
        (bookie.id, ledger_id): [(0, 2)] for bookie in cluster.bookies for ledger_id in cluster.accesses
    }
    async with cluster.serving() as tools:
        said = await cluster.passes(tools)
        assert all(one["holding"] for one in said), said
        assert await cluster.scan(tools) == everything
        (status,) = await cluster.facts("cluster", "status", code=EXIT_ATTENTION)
        assert len(status["holding"]) == 3
        assert status["orphans"] > 0
        orphans = await cluster.facts("cluster", "orphans")
        lost = {row["ledger_id"] for row in orphans}
        assert lost <= set(cluster.accesses)
        assert lost, "the store lacks ledgers that are alive"
        assert all(len(row["bookies"]) == 3 for row in orphans)

        await cluster.command("cluster", "accept-store", "--yes")
        said = await cluster.passes(tools)
        assert not any(one["holding"] for one in said), said
        assert all(one["unknown"] == len(lost) and not one["dropped"] for one in said), said
        assert await cluster.scan(tools) == everything
        assert "needs no acceptance" in await cluster.command("cluster", "accept-store", "--yes", code=1)

        fresh = await cluster.write(2)
        assert min(fresh) > max(everything_ids(everything)), "no id is given out twice"
    put_newer_back()
    async with cluster.serving() as tools:
        await cluster.passes(tools, 1)
        await cluster.read(everything_ids(everything))


def everything_ids(scan: dict[tuple[str, int], list[tuple[int, int]]]) -> list[int]:
    return sorted({ledger_id for _, ledger_id in scan})


# --- SQLite -----------------------------------------------------------------------------------------------------


class Database:
    """The files of one metadata store; what is put back keeps the database's inode, as a disk would."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.wal = path.with_name(f"{path.name}-wal")

    @contextlib.asynccontextmanager
    async def looked_at(self) -> AsyncIterator[None]:
        """Somebody reads it all the time: what is written meanwhile stays in the write-ahead log."""
        with contextlib.closing(sqlite3.connect(self.path, isolation_level=None)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM entries").fetchone()
            yield

    def image(self) -> dict[str, bytes]:
        """What the disk has now."""
        return {
            file.name: file.read_bytes()
            for file in self.path.parent.glob(f"{self.path.name}*")
            if file.is_file()
        }

    def put(self, image: dict[str, bytes]) -> None:
        """The disk as it was."""
        for file in self.path.parent.glob(f"{self.path.name}*"):
            if file.name not in image and file.is_file():
                file.unlink()
        for name, data in image.items():
            self.path.with_name(name).write_bytes(data)


def flipped(wal: bytes) -> bytes:
    """One bit of the first frame."""
    damaged = bytearray(wal)
    damaged[32 + 24 + 100] ^= 0x10
    return bytes(damaged)


WAYS = ["a backup of the file", *(["one bit of the -wal", "half of the -wal"] if FULL else [])]


@pytest.mark.parametrize("way", WAYS)
async def test_sqlite(way: str, tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, f"sqlite:{tmp_path / 'metadata.db'}")
    files = Database(tmp_path / "metadata.db")
    async with cluster.serving() as tools:
        await cluster.write(OLD)
    backup = files.path.read_bytes()
    async with cluster.serving(clean=False) as tools, files.looked_at():
        young = await cluster.write(YOUNG)
        await cluster.passes(tools, 2)
        await cluster.command("ledger", "delete", str(young[0]), "--yes")
        await cluster.until(tools, lambda said: all(one["dropped"] for one in said), "it is dropped")
        await cluster.write(YOUNG)
        await asyncio.to_thread(cluster.kill)
        newest = files.image()
    del cluster.accesses[young[0]]
    damaged = dict(newest)
    if way == "one bit of the -wal":
        damaged[files.wal.name] = flipped(newest[files.wal.name])
    elif way == "half of the -wal":
        damaged[files.wal.name] = newest[files.wal.name][: len(newest[files.wal.name]) // 2]
    else:
        damaged[files.path.name] = backup
        del damaged[files.wal.name]
    damaged.pop(f"{files.path.name}-shm", None)
    newest.pop(f"{files.path.name}-shm", None)
    files.put(damaged)
    await nothing_dropped(cluster, lambda: files.put(newest))


# --- etcd -------------------------------------------------------------------------------------------------------


async def test_etcd_restored_from_a_snapshot(tmp_path: Path) -> None:
    server = or_skip(own_server(tmp_path / "etcd"))
    data = tmp_path / "etcd" / "data"

    def put(snapshot: Path) -> None:
        server.stop()
        shutil.rmtree(data)
        shutil.copytree(snapshot, data)
        server.start()

    def keep(name: str) -> Path:
        server.stop()
        shutil.copytree(data, tmp_path / name)
        server.start()
        return tmp_path / name

    try:
        cluster = Cluster(tmp_path, f"etcd://{server.host}/quire")
        async with cluster.serving() as tools:
            await cluster.write(OLD)
        backup = await asyncio.to_thread(keep, "backup")
        async with cluster.serving() as tools:
            await cluster.write(YOUNG)
            await cluster.passes(tools, 2)
        newest = await asyncio.to_thread(keep, "newest")
        await asyncio.to_thread(put, backup)
        await nothing_dropped(cluster, lambda: put(newest))
    finally:
        server.stop()

"""Metadata stores without room: `cluster health` says so, refusals are told as what they are, and nobody spins.

SQLite's file lies on a small file system that is filled; etcd has a small quota. Both get room again, and all goes on.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
import urllib.request
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from quire.core.errors import DiskFullError, MetadataUnknownError, QuireError
from quire.metadata.connect import open_store
from quire.metadata.keys import HEALTH
from quire.metadata.store import MetadataStore
from support.etcd_server import EtcdServer, why_not
from support.log_cluster import FAST, World, world
from support.small_disks import small_disk
from support.waiting import until_async

pytestmark = [pytest.mark.faults, pytest.mark.timeout(300)]
QUOTA_BYTES = 8 << 20


async def health(uri: str) -> tuple[int, dict[str, Any]]:
    """The exit code of `cluster health`, and what it says."""
    command = (sys.executable, "-m", "quire", "cluster", "health", "--json", "--cluster", uri)
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe)
    out, err = await process.communicate()
    assert out, err.decode()
    return process.returncode or 0, json.loads(out)


async def refused(what: Awaitable[object], why: str) -> None:
    """It ends with an error that names the store's refusal; a wait for it is no busy one."""
    before = time.process_time(), time.monotonic()
    with pytest.raises(QuireError, match=why):
        await what
    used, took = time.process_time() - before[0], time.monotonic() - before[1]
    assert used < 0.5 * took or used < 1, "a core is busy with a request that is refused"


async def without_room(
    directory: Path, uri: str, why: str, fill: Callable[[MetadataStore], Awaitable[None]],
    make_room: Callable[[MetadataStore], Awaitable[None]],
) -> None:  # fmt: skip
    store = await open_store(uri, create=True)
    async with world(directory, store) as at:
        assert (await health(uri))[0] == 0
        log = await at.made(
            config=replace(FAST, metadata_attempts_max=8), ensemble_size=2, write_quorum=2, ack_quorum=2
        )
        async with await log.open_writer() as writer:
            await writer.append(b"1")
        ledger = await at.client.create_ledger(ensemble_size=2, write_quorum=2, ack_quorum=2)
        await ledger.append(b"1")
        await fill(store)
        code, says = await health(uri)
        assert (code, says["health"]) == (1, "unhealthy")
        assert why in says["store"]
        for _ in range(2):
            await refused(log.delete(), why)
        await refused(at.client.create_ledger(ensemble_size=1, write_quorum=1, ack_quorum=1), why)
        await refused(loses_a_bookie(at, ledger), why)
        await make_room(store)
        code, says = await health(uri)
        # One bookie was stopped: a log can be created without it.
        assert (code, says["store"], says["refusal"]) == (5, None, None)
        await log.delete()
        assert await store.get(HEALTH) is not None


async def loses_a_bookie(at: World, ledger: Any) -> None:
    """Append while a bookie of the ledger is replaced."""
    gone = next(bookie for bookie in at.bookies if bookie.bookie_id in ledger.metadata.last_fragment.ensemble)
    await gone.stop()
    await ledger.append(b"2")


async def filled(store: MetadataStore, filler: Path) -> None:
    """Fill the file system that a store lies on, also with what is free once the store has emptied its write-ahead log."""
    log = next(filler.parent.glob("*-wal"))
    with filler.open("wb", buffering=0) as file:

        async def is_full() -> bool:
            with pytest.raises(OSError, match="No space"):
                while True:
                    file.write(bytes(4096))
            if log.stat().st_size:
                return False
            with pytest.raises(DiskFullError):
                await store.create("more", b"")
            return True

        await until_async(is_full, "the file system is full")


@pytest.mark.parametrize("kind", [pytest.param("ext4", marks=pytest.mark.slow), "tmpfs"])
async def test_a_full_file_system_under_sqlite(tmp_path: Path, kind: str) -> None:
    with small_disk(kind, tmp_path / "disk", 16) as place:
        filler = place.parent / "filler"

        async def fill(store: MetadataStore) -> None:
            await filled(store, filler)

        async def make_room(_store: MetadataStore) -> None:
            filler.unlink()

        uri = f"sqlite:{place.parent}/metadata.db"
        await without_room(tmp_path, uri, "is full", fill, make_room)


async def test_a_full_disk_at_a_commit_is_a_refusal(tmp_path: Path) -> None:
    """What was refused is not there when the file is opened again, as after a crash."""

    async def scenario(place: Path) -> None:
        store = await open_store(f"sqlite:{place}/metadata.db", create=True)
        await store.create("k", b"1")
        filler = place / "filler"
        await filled(store, filler)
        for number in range(20):
            with pytest.raises(DiskFullError):
                await store.create(f"refused/{number}", bytes(100 * number))
        store.abandon()  # type: ignore[attr-defined]
        filler.unlink()
        async with await open_store(f"sqlite:{place}/metadata.db") as again:
            assert await again.list("refused/") == []
            assert (await again.get("k")) is not None

    with small_disk("ext4", tmp_path / "disk", 16) as place:
        await scenario(place.parent)


@pytest.mark.interop
async def test_etcd_with_its_quota_used_up(tmp_path: Path) -> None:
    if reason := why_not():
        pytest.skip(reason)
    server = EtcdServer(tmp_path / "etcd", "--unsafe-no-fsync", "--quota-backend-bytes", str(QUOTA_BYTES))

    async def fill(store: MetadataStore) -> None:
        with pytest.raises(MetadataUnknownError, match="NOSPACE"):
            for number in range(100):
                await store.create(f"fill/{number}", bytes(900_000))

    async def make_room(store: MetadataStore) -> None:
        for key, found in await store.list("fill/"):
            await store.delete(key, found.version)
        now = ask("kv/range", key="AA==")["header"]["revision"]
        ask("kv/compaction", revision=now, physical=True)
        ask("maintenance/defragment")
        for alarm in ask("maintenance/alarm", action="GET")["alarms"]:
            ask("maintenance/alarm", action="DEACTIVATE", **alarm)

    def ask(method: str, **body: object) -> Any:
        request = urllib.request.Request(f"http://{server.host}/v3/{method}", json.dumps(body).encode())
        with urllib.request.urlopen(request) as answer:
            return json.load(answer)

    try:
        await without_room(tmp_path, f"etcd://{server.host}/c", "NOSPACE", fill, make_room)
    finally:
        server.stop()

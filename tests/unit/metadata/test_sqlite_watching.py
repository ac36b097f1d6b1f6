"""However many stores of a process watch a file: one of them looks for changes, all are told, the others sleep."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
import time
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from quire.metadata.sqlite.file import SqliteFile, SqliteOptions
from quire.metadata.sqlite.store import SqliteStore
from quire.metadata.store import Create, Watch
from support.process import descriptors
from support.rounds import FULL, keep_figures, rounds
from support.sqlite_inside import file_of, thread_of
from support.waiting import until_async

CLIENTS = rounds(8, 200)
COMMITS = rounds(50, 300)


REGISTERS = """
import asyncio, sys
from quire.metadata.sqlite.store import SqliteStore

async def work():
    stores = [await SqliteStore.open(sys.argv[1], create=True) for _ in range(int(sys.argv[2]))]
    for number, store in enumerate(stores):
        await store.register(f"bookies/{number}", b"")
    print("registered", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    for store in stores:
        await store.close()

asyncio.run(work())
"""
"""Another process, with as many sessions."""


def woken(store: SqliteStore) -> int:
    """How often a store's thread has slept and gone on."""
    status = Path(f"/proc/self/task/{thread_of(store).native_id}/status").read_text()
    [line] = [line for line in status.splitlines() if line.startswith("voluntary_ctxt_switches")]
    return int(line.split()[1])


async def woken_at_rest(stores: list[SqliteStore]) -> list[int]:
    """The same of each, when none of them is still going to sleep."""
    looks: list[list[int]] = []

    def rest() -> bool:
        looks.append([woken(store) for store in stores])
        return looks[-2:-1] == looks[-1:]

    await until_async(rest, "the threads to sleep")
    return looks[-1]


async def idle_clients(
    stack: AsyncExitStack, path: Path, count: int
) -> tuple[list[SqliteStore], list[Watch]]:
    """Stores that have a watch and do nothing else."""
    stores = [
        await stack.enter_async_context(await SqliteStore.open(path, create=True)) for _ in range(count)
    ]
    return stores, [await stack.enter_async_context(store.watch("seen/")) for store in stores]


async def commit(store: SqliteStore, prefix: str, count: int) -> float:
    """Make keys one after another; how many a second."""
    began = time.perf_counter()
    for number in range(count):
        await store.multi([Create(f"{prefix}/{number}", b"")])
    return count / (time.perf_counter() - began)


async def test_a_commit_wakes_no_idle_client(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        path = tmp_path / "metadata.db"
        stores, watches = await idle_clients(stack, path, CLIENTS)
        busy = await stack.enter_async_context(await SqliteStore.open(path))
        sleeping = stores[1:]  # the first one looks for changes of other processes
        before = await woken_at_rest(sleeping)
        await commit(busy, "seen", COMMITS)
        for watch in watches:
            async with asyncio.timeout(30):
                await anext(aiter(watch))
        now = [woken(store) for store in sleeping]
        # One may still have been going to sleep when it was counted; a commit that woke it would show each time.
        assert all(after - early <= 2 for early, after in zip(before, now, strict=True)), (before, now)


async def test_an_idle_client_keeps_open_what_the_database_needs(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    program = [sys.executable, "-c", REGISTERS, str(path), "3"]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        assert other.stdout.readline() == b"registered\n"
        async with AsyncExitStack() as stack:
            await idle_clients(stack, path, 1)
            before = descriptors(os.getpid())
            stores, _ = await idle_clients(stack, path, CLIENTS)
            for store in stores:
                assert len(await store.list("bookies/")) == 3
            await until_async(
                lambda: descriptors(os.getpid()) <= before + 3 * CLIENTS, "the sessions' files to be closed"
            )
        other.stdin.close()


async def test_when_the_store_that_looks_is_closed_another_one_looks(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        path = tmp_path / "metadata.db"
        looks = await SqliteStore.open(path, create=True)
        first = looks.watch("seen/")
        await first.__aenter__()
        _, watches = await idle_clients(stack, path, 3)
        # With other options it is to the rest as one of another process: only who looks finds its changes.
        far = await stack.enter_async_context(await SqliteStore.open(path, options=SqliteOptions(poll_ms=21)))
        await looks.close()
        await commit(far, "seen", 1)
        for watch in watches:
            async with asyncio.timeout(30):
                await anext(aiter(watch))


@pytest.mark.parametrize("own", [False, True])
async def test_a_look_that_fails_is_made_again_and_no_change_is_missed(tmp_path: Path, own: bool) -> None:
    """After a commit of another process, and after one of its own that finds the other's."""
    path = tmp_path / "metadata.db"
    never = SqliteOptions(poll_ms=3_600_000, session_timeout_ms=36_000_000)
    async with (
        await SqliteStore.open(path, create=True, options=never) as store,
        store.watch("seen/") as changes,
    ):
        await anext(changes)
        await store.get("k")  # after the first look
        file = file_of(store)
        look = file.changes

        def fails_once(since: int) -> tuple[int, list[str] | None]:
            file.changes = look  # type: ignore[method-assign]
            raise sqlite3.OperationalError("disk I/O error")

        file.changes = fails_once  # type: ignore[method-assign]
        other = SqliteFile(path, create=False)
        other.begin()
        other.apply([Create("seen/other", b"")])
        other.commit()
        other.close()
        if own:
            await store.create("seen/own", b"")
        else:
            thread_of(store).wake()
            await until_async(lambda: file.changes == look, "a look that fails")
            thread_of(store).wake()
        async with asyncio.timeout(30):
            assert "seen/other" in await anext(changes)


async def test_a_watch_whose_maker_is_cancelled_is_not_looked_for(tmp_path: Path) -> None:
    async with await SqliteStore.open(tmp_path / "metadata.db", create=True) as store:
        attaching = asyncio.ensure_future(store.watch("seen/").__aenter__())
        await asyncio.sleep(0)
        attaching.cancel()
        await asyncio.wait({attaching})
        assert attaching.cancelled()
        await store.get("k")  # after the attaching, which was asked for
        looks = thread_of(store)._watches.looks
        await until_async(lambda: not looks(thread_of(store)), "the watch to be gone")


@pytest.mark.skipif(not FULL, reason="a rate of a loaded machine says nothing")
async def test_idle_clients_do_not_slow_a_busy_one(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        path = tmp_path / "metadata.db"
        busy = await stack.enter_async_context(await SqliteStore.open(path, create=True))
        alone = await commit(busy, "alone", COMMITS)
        await idle_clients(stack, path, CLIENTS)
        beside = await commit(busy, "beside", COMMITS)
    figures = {"idle_clients": CLIENTS, "commits_a_second_alone": round(alone), "beside": round(beside)}
    keep_figures("sqlite_idle_clients", figures, seed=0)
    assert figures["beside"] >= 0.7 * figures["commits_a_second_alone"]

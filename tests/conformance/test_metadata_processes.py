"""What a metadata store for several processes promises when commits fail, processes die, stop and fork."""

import asyncio
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
import warnings
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from conformance.metadata_drivers import (
    SHORT_TIMEOUT_MS,
    TIMEOUT_MS,
    SqliteDriver,
    clients,
    collect,
    gone,
    present,
    until,
)
from quire.core.errors import MetadataUnknownError, QuireError
from quire.metadata.sqlite.file import SqliteOptions
from quire.metadata.sqlite.store import SqliteStore
from support.sqlite_inside import thread_of


@pytest.fixture
def sqlite(tmp_path):
    return SqliteDriver(tmp_path)


# --- lost answers -----------------------------------------------------------------------------------------------


async def test_a_commit_that_fails_is_unknown_and_reading_tells(sqlite, monkeypatch):
    """Twice: once it had happened, once it had not."""
    async with clients(sqlite, 2, session_timeout_ms=SHORT_TIMEOUT_MS) as (a, b):
        thread = thread_of(a)
        happened, did_not = failing_commits(thread)
        await a.create("k", b"0")
        for fault, after in [(happened, True), (did_not, False)]:
            thread._commit = fault
            with pytest.raises(MetadataUnknownError, match="read again"):
                await a.create(f"{after}", b"")
            assert (await b.get(f"{after}") is not None) == after
            thread._commit = fault
            with pytest.raises(MetadataUnknownError):
                await a.register(f"r{after}", b"")
            # Nobody holds it, so it must not stay: the next beat takes it back.
            await a.register(f"other{after}", b"")
            await until(lambda after=after: absent(b, f"r{after}"))
        await a.put("k", b"1", (await a.get("k")).version)


async def test_a_commit_that_fails_leaves_no_key_of_nobody_although_nothing_else_is_held(sqlite):
    async with clients(sqlite, 1, session_timeout_ms=SHORT_TIMEOUT_MS) as (a,):
        thread = thread_of(a)
        happened, did_not = failing_commits(thread)
        thread._commit = happened
        with pytest.raises(MetadataUnknownError):
            await a.register("r", b"")
        await until(lambda: absent(a, "r"))
        held = await a.register("r", b"")
        thread._commit = did_not
        with pytest.raises(MetadataUnknownError):
            await held.close()
        await until(lambda: absent(a, "r"))
        await a.register("r", b"")


def failing_commits(thread):
    """Two commits of a store's thread that fail once: one that has happened all the same, and one that has not."""
    commit = thread._commit

    def did_not():
        thread._commit = commit
        raise sqlite3.OperationalError("disk I/O error")

    def happened():
        commit()
        did_not()

    return happened, did_not


async def absent(store, key):
    return await store.get(key) is None


async def test_a_client_that_waits_for_another_process_keeps_its_session(sqlite):
    """Its registration shows for as long as it waits for the write lock, which may be as long as its session's timeout."""
    async with clients(sqlite, 2, session_timeout_ms=SHORT_TIMEOUT_MS) as (a, b):
        held = await a.register("r", b"", again=False)
        other = sqlite3.connect(sqlite.path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        waits = asyncio.ensure_future(a.create("k", b""))
        end = time.monotonic() + 3 * SHORT_TIMEOUT_MS / 1000
        while time.monotonic() < end:
            assert await b.get("r") is not None
        assert not waits.done()
        other.execute("COMMIT")
        other.close()
        await waits
        assert not held.lost.is_set()


# --- other processes --------------------------------------------------------------------------------------------


class Child:
    """metadata_child.py on the same file."""

    def __init__(self, path, timeout_ms=TIMEOUT_MS):
        script = Path(__file__).with_name("metadata_child.py")
        environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2] / "src")}
        self.process = subprocess.Popen(
            [sys.executable, script, str(path), str(timeout_ms)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self.instance_id = None

    async def started(self):
        self.instance_id = await self.answer()

    async def answer(self):
        return json.loads(await asyncio.to_thread(self.process.stdout.readline))

    async def __call__(self, *command):
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()
        return await self.answer()

    def end(self):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


@asynccontextmanager
async def children(path, count, timeout_ms=TIMEOUT_MS):
    started = [Child(path, timeout_ms) for _ in range(count)]
    try:
        for child in started:
            await child.started()
        yield started
    finally:
        for child in started:
            child.end()


async def test_processes_count_together_and_get_ids_of_their_own(sqlite):
    async with clients(sqlite, 1) as (a,), children(sqlite.path, 3) as others:
        assert {child.instance_id for child in others} == {a.instance_id}
        await a.create("counter", b"0")
        await asyncio.gather(*(child("count", "counter", 50) for child in others))
        assert (await a.get("counter")).value == b"150"
        ids = await asyncio.gather(*(child("ids", 100) for child in others))
        mine = [await a.next_ledger_id() for _ in range(100)]
        assert len({*mine, *(number for given in ids for number in given)}) == 400
        made = await asyncio.gather(*(child("create", "k", "v") for child in others))
        assert sorted(isinstance(r, int) for r in made) == [False, False, True]


async def test_sigkill_ends_a_registration_at_once(sqlite):
    async with (
        clients(sqlite, 2, session_timeout_ms=600_000) as (a, b),
        children(sqlite.path, 1, 600_000) as (child,),
    ):
        assert await child("register", "bookies/available/b1", "x") == "bookies/available/b1"
        await child("register", "bookies/available/b2", "x")
        assert [k for k, _ in await a.list("bookies/")] == [
            "bookies/available/b1",
            "bookies/available/b2",
        ]
        async with a.watch("bookies/") as changes:
            await anext(changes)
            child.process.send_signal(signal.SIGKILL)
            await collect(changes, {"bookies/available/b1", "bookies/available/b2"})
        # A client that watches nothing sees it as well, and the session's file is swept.
        assert await b.list("bookies/") == []
        folder = sqlite.path.with_name("metadata.db-sessions")
        await until(lambda: empty(folder))


async def empty(folder):
    return not list(folder.iterdir())


async def test_a_client_that_watches_nothing_does_not_see_the_dead(sqlite):
    async with (
        clients(sqlite, 1, session_timeout_ms=600_000) as (a,),
        children(sqlite.path, 1, 600_000) as (child,),
    ):
        await child("register", "r", "x")
        child.process.kill()
        child.process.wait()
        assert await a.get("r") is None
        assert await a.list("") == []
        await a.create("r", b"taken")


async def test_a_long_sigstop_ends_a_registration_and_the_owner_that_goes_on_renews_it(sqlite):
    async with clients(sqlite, 1) as (a,), children(sqlite.path, 1, SHORT_TIMEOUT_MS) as (child,):
        await child("register", "r", "x")
        child.process.send_signal(signal.SIGSTOP)
        await gone(a, "r")
        child.process.send_signal(signal.SIGCONT)
        await until(lambda: present(a, "r", b"x"))
        assert await child("renewed", "r") >= 1


async def test_an_observer_that_stood_still_itself_does_not_take_the_others_for_dead(sqlite):
    """A clock that leaps by an hour between two looks is one look."""
    now = [1_000_000]
    observer = await SqliteStore.open(sqlite.path, create=True, options=SqliteOptions(now_ms=lambda: now[0]))
    async with clients(sqlite, 1, session_timeout_ms=600_000) as (a,):
        await a.register("r", b"a")
        for _ in range(5):
            assert await observer.get("r") is not None
            now[0] += 3_600_000
        for _ in range(10):
            now[0] += 3_600_000
            if await observer.get("r") is None:
                break
        else:
            pytest.fail("a counter that was seen standing still ten times did not expire")
        await observer.close()


async def test_a_store_does_not_cross_a_fork(sqlite):
    """A child of a fork gets a clear error, and its end neither ends the parent's session nor its locks."""
    async with clients(sqlite, 1, session_timeout_ms=600_000) as (a,):
        await a.register("r", b"a")
        outcome = await asyncio.to_thread(forked_use, a)
        assert outcome == "misuse"
        async with children(sqlite.path, 1) as (child,):
            assert await child("keys", "r") == ["r"]
        assert (await a.get("r")).value == b"a"


def forked_use(store):
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        try:
            asyncio.events._set_running_loop(None)
            asyncio.new_event_loop().run_until_complete(store.get("r"))
            told = "nothing"
        except QuireError as error:
            told = error.code
        except BaseException as error:
            told = repr(error)
        os.write(writer, told.encode())
        os._exit(0)
    os.close(writer)
    os.waitpid(pid, 0)
    with os.fdopen(reader) as answer:
        return answer.read()

"""What every metadata store promises (quire/metadata/store.py), one suite for all drivers."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import uuid
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from quire.core.errors import AlreadyExistsError, MetadataUnknownError, MisuseError, QuireError
from quire.metadata.memory import MemorySpace, MemoryStore
from quire.metadata.sqlite import SqliteStore
from quire.metadata.sqlite_thread import SqliteOptions
from quire.metadata.store import (
    PENDING_KEYS_MAX,
    VALUE_BYTES_MAX,
    Create,
    Delete,
    KeyMissingError,
    Put,
    Require,
    VersionConflictError,
)

TIMEOUT_MS = 400
PATIENCE_S = 30


class MemoryDriver:
    """Clients of one space in this process."""

    def __init__(self, folder):
        self.space = MemorySpace()

    async def open(self, **options):
        return MemoryStore(self.space)


class SqliteDriver:
    """Clients of one file, in this process and in others."""

    def __init__(self, folder):
        self.path = folder / "metadata.db"

    async def open(self, **options):
        options = SqliteOptions(**({"session_timeout_ms": TIMEOUT_MS} | options))
        return await SqliteStore.open(self.path, create=True, options=options)


DRIVERS = {"memory": MemoryDriver, "sqlite": SqliteDriver}


@pytest.fixture(params=DRIVERS)
def driver(request, tmp_path):
    return DRIVERS[request.param](tmp_path)


@pytest.fixture
def sqlite(tmp_path):
    return SqliteDriver(tmp_path)


def run(scenario):
    async def bounded():
        async with asyncio.timeout(PATIENCE_S):
            return await scenario

    return asyncio.run(bounded())


@asynccontextmanager
async def clients(driver, count, **options):
    stores = [await driver.open(**options) for _ in range(count)]
    try:
        yield stores
    finally:
        for store in stores:
            await store.close()


async def until(condition):
    while not await condition():
        await asyncio.sleep(0.005)


async def gone(store, key):
    async with store.watch(key) as changes:
        async for _ in changes:
            if await store.get(key) is None:
                return


# --- keys, values, versions -------------------------------------------------------------------------------------


def test_a_value_comes_back_with_its_version(driver):
    async def scenario():
        async with clients(driver, 2) as (a, b):
            version = await a.create("ledgers/1", b"one")
            found = await b.get("ledgers/1")
            assert (found.value, found.version) == (b"one", version)
            later = await b.put("ledgers/1", b"", version)
            assert later > version
            assert (await a.get("ledgers/1")).value == b""
            await a.delete("ledgers/1", later)
            assert await b.get("ledgers/1") is None

    run(scenario())


def test_every_refusal_has_its_kind_and_changes_nothing(driver):
    async def scenario():
        async with clients(driver, 1) as (a,):
            version = await a.create("k", b"1")
            for attempt, kind in [
                (a.create("k", b"2"), AlreadyExistsError),
                (a.put("k", b"2", version + 1), VersionConflictError),
                (a.put("none", b"2", version), KeyMissingError),
                (a.delete("k", version + 1), VersionConflictError),
                (a.delete("none"), KeyMissingError),
                (a.delete("none", version), KeyMissingError),
            ]:
                with pytest.raises(kind) as caught:
                    await attempt
                assert caught.value.ids["key"] in {"k", "none"}
            found = await a.get("k")
            assert (found.value, found.version) == (b"1", version)
            assert [key for key, _ in await a.list("")] == ["k"]

    run(scenario())


def test_a_version_does_not_come_back_after_delete_and_create(driver):
    async def scenario():
        async with clients(driver, 1) as (a,):
            seen = []
            for _ in range(5):
                seen.append(await a.create("k", b"v"))
                await a.delete("k")
            assert seen == sorted(set(seen))

    run(scenario())


@pytest.mark.parametrize("key", ["", "/a", "a/", "a//b", "a/../b", ".", "a\nb", "a\0b", "x" * 513])
def test_a_key_that_some_driver_could_not_store_is_refused_by_all(driver, key):
    async def scenario():
        async with clients(driver, 1) as (a,):
            for attempt in (a.create(key, b""), a.get(key), a.delete(key)):
                with pytest.raises(MisuseError, match="metadata key"):
                    await attempt

    run(scenario())


def test_values_are_bytes_of_any_kind_up_to_the_limit(driver):
    async def scenario():
        async with clients(driver, 1) as (a,):
            for i, value in enumerate([b"", bytes(range(256)), b"x" * VALUE_BYTES_MAX]):
                await a.create(f"k{i}", value)
                assert (await a.get(f"k{i}")).value == value
            with pytest.raises(MisuseError, match="1000001 bytes"):
                await a.create("big", b"x" * (VALUE_BYTES_MAX + 1))

    run(scenario())


def test_one_of_many_wins_each_race(driver):
    async def scenario():
        async with clients(driver, 4) as stores:
            made = await asyncio.gather(
                *(s.create("k", b"%d" % i) for i, s in enumerate(stores)), return_exceptions=True
            )
            assert sorted(type(r).__name__ for r in made) == ["AlreadyExistsError"] * 3 + ["int"]
            version = (await stores[0].get("k")).version
            for _ in range(20):
                swaps = [s.put("k", b"%d" % i, version) for i, s in enumerate(stores) for _ in range(3)]
                results = await asyncio.gather(*swaps, return_exceptions=True)
                [(winner, version)] = [(i, r) for i, r in enumerate(results) if isinstance(r, int)]
                assert all(isinstance(r, VersionConflictError) for i, r in enumerate(results) if i != winner)
                found = await stores[1].get("k")
                assert (found.value, found.version) == (b"%d" % (winner // 3), version)

    run(scenario())


def test_what_returned_is_seen_by_everyone(driver):
    async def scenario():
        async with clients(driver, 2) as (a, b):
            version = await a.create("k", b"0")
            for i in range(1, 50):
                version = await (a if i % 2 else b).put("k", b"%d" % i, version)
                assert (await (b if i % 2 else a).get("k")).value == b"%d" % i

    run(scenario())


# --- lists ------------------------------------------------------------------------------------------------------


def test_lists_are_ranges_in_order_page_by_page(driver):
    async def scenario():
        async with clients(driver, 1) as (a,):
            keys = sorted(["a", "a/1", "a/10", "a/2", "a0", "b/1", "b/1/x", "b/ü", "b/\U0001f4a7", "c"])
            for key in reversed(keys):
                await a.create(key, key.encode())
            for prefix in ["", "a", "a/", "a/1", "b/", "b/1", "z"]:
                wanted = [key for key in keys if key.startswith(prefix)]
                assert [(k, v.value) for k, v in await a.list(prefix)] == [(k, k.encode()) for k in wanted]
                for limit in (1, 2, 3):
                    found, after = [], None
                    while page := await a.list(prefix, after=after, limit=limit):
                        assert len(page) <= limit
                        found += [key for key, _ in page]
                        after = page[-1][0]
                    assert found == wanted
            assert [k for k, _ in await a.list("b", after="a/2", limit=2)] == ["b/1", "b/1/x"]
            assert [k for k, _ in await a.list("a", after="b")] == []
            with pytest.raises(MisuseError):
                await a.list("", limit=0)

    run(scenario())


# --- several at once --------------------------------------------------------------------------------------------


def test_several_operations_happen_all_or_none(driver):
    async def scenario():
        async with clients(driver, 2) as (a, b):
            one, two = await a.multi([Create("one", b"1"), Create("two", b"2")])
            versions = await a.multi(
                [Put("one", b"1b", one), Delete("two", two), Create("three", b"3"), Require("none", None)]
            )
            assert versions[0] > one
            assert versions[1] == versions[3] == 0
            assert {k: v.value for k, v in await b.list("")} == {"one": b"1b", "three": b"3"}
            before = await b.list("")
            for last, kind in [
                (Create("three", b""), AlreadyExistsError),
                (Put("three", b"", one), VersionConflictError),
                (Delete("none"), KeyMissingError),
                (Require("three", None), VersionConflictError),
                (Require("three", one), VersionConflictError),
                (Require("none", 1), KeyMissingError),
            ]:
                with pytest.raises(kind) as caught:
                    await a.multi([Create("four", b"4"), Delete("one"), last])
                assert caught.value.ids["key"] == last.key
                assert await b.list("") == before
            assert await a.multi([]) == []

    run(scenario())


def test_later_operations_see_earlier_ones(driver):
    async def scenario():
        async with clients(driver, 1) as (a,):
            await a.multi([Create("k", b"1"), Delete("k"), Create("k", b"2")])
            assert (await a.get("k")).value == b"2"
            with pytest.raises(AlreadyExistsError):
                await a.multi([Create("n", b"1"), Create("n", b"2")])
            assert await a.get("n") is None

    run(scenario())


# --- watches ----------------------------------------------------------------------------------------------------


def test_a_watch_says_ready_and_then_reports_changes_of_others(driver):
    async def scenario():
        async with clients(driver, 2) as (a, b), a.watch("x/") as changes:
            first = await anext(changes)
            assert first.reread_all
            version = await b.create("x/1", b"")
            await b.create("y/1", b"")
            assert await collect(changes, {"x/1"}) == {"x/1"}
            await b.put("x/1", b"2", version)
            assert await collect(changes, {"x/1"}) == {"x/1"}
            await b.multi([Delete("x/1"), Create("x/2", b"")])
            assert await collect(changes, {"x/1", "x/2"}) == {"x/1", "x/2"}
            await a.delete("x/2")
            assert await collect(changes, {"x/2"}) == {"x/2"}

    run(scenario())


async def collect(changes, wanted):
    seen = set()
    while not wanted <= seen:
        keys = await anext(changes)
        assert not keys.reread_all
        seen |= keys
    return seen


def test_no_change_is_missed_however_fast_they_come(driver):
    async def scenario():
        async with clients(driver, 3) as (a, b, c), a.watch("k/") as changes:
            await anext(changes)
            seen = {}

            async def follow():
                async for keys in changes:
                    assert not keys.reread_all
                    for key in keys:
                        found = await a.get(key)
                        seen[key] = found.value if found else None
                    if seen.get("k/end") == b"end":
                        return

            async def write(store, name):
                version = await store.create(f"k/{name}", b"")
                for i in range(100):
                    version = await store.put(f"k/{name}", b"%d" % i, version)
                await store.create(f"k/{name}-gone", b"")
                await store.delete(f"k/{name}-gone")

            follower = asyncio.create_task(follow())
            await asyncio.gather(write(b, "b"), write(c, "c"), write(a, "a"))
            await b.create("k/end", b"end")
            await follower
            assert seen["k/a"] == seen["k/b"] == seen["k/c"] == b"99"
            assert seen["k/b-gone"] is None

    run(scenario())


def test_a_watcher_that_does_not_read_is_told_to_read_everything(driver):
    async def scenario():
        async with clients(driver, 2) as (a, b), a.watch("k/") as changes:
            await anext(changes)
            for start in range(0, PENDING_KEYS_MAX + 1000, 1000):
                await b.multi([Create(f"k/{start + i}", b"") for i in range(1000)])

            async def told():
                changes.offer(())
                return changes._reread_all

            await until(told)
            assert (await anext(changes)).reread_all

    run(scenario())


def test_watches_end_with_the_store_and_are_let_go_on_exit(driver):
    async def scenario():
        async with clients(driver, 2) as (a, b):
            async with a.watch("k") as changes:
                await anext(changes)
            await b.create("k", b"")
            with pytest.raises(StopAsyncIteration):
                await anext(changes)
            async with b.watch("k") as changes:
                await anext(changes)
                await b.close()
                with pytest.raises(StopAsyncIteration):
                    await anext(changes)

    run(scenario())


# --- registrations ----------------------------------------------------------------------------------------------


def test_a_registration_is_a_key_until_it_is_taken_back(driver):
    async def scenario():
        async with clients(driver, 2) as (a, b):
            held = await a.register("bookies/available/b1", b"here")
            assert (await b.get("bookies/available/b1")).value == b"here"
            with pytest.raises(AlreadyExistsError):
                await b.register("bookies/available/b1", b"me")
            await held.update(b"there")
            assert (await b.get("bookies/available/b1")).value == b"there"
            await held.close()
            await held.close()
            assert await b.get("bookies/available/b1") is None
            with pytest.raises(KeyMissingError):
                await held.update(b"again")
            mine = await b.register("bookies/available/b1", b"me")
            await held.close()
            assert (await a.get("bookies/available/b1")).value == b"me"
            assert not mine.lost.is_set()

    run(scenario())


def test_closing_the_store_takes_everything_back(driver):
    async def scenario():
        async with clients(driver, 2) as (a, b), b.watch("r/") as changes:
            await anext(changes)
            for i in range(3):
                await a.register(f"r/{i}", b"")
            await b.register("r/mine", b"")
            await a.close()
            await a.close()
            assert [key for key, _ in await b.list("r/")] == ["r/mine"]
            await collect(changes, {"r/0", "r/1", "r/2"})
            with pytest.raises(MisuseError, match="closed"):
                await a.get("r/mine")

    run(scenario())


def test_sequential_registrations_are_numbered_in_order(driver):
    async def scenario():
        async with clients(driver, 2) as (a, b):
            keys = []
            for i in range(6):
                held = await (a if i % 2 else b).register("e/x-", b"%d" % i, sequential=True)
                keys.append(held.key)
                if i == 2:
                    await held.close()
            assert keys == sorted(set(keys))
            assert all(key.startswith("e/x-") and len(key) == len("e/x-") + 19 for key in keys)
            assert [v.value for _, v in await a.list("e/x-")] == [b"0", b"1", b"3", b"4", b"5"]

    run(scenario())


def test_a_registration_ends_at_once_when_its_owner_dies(driver):
    async def scenario():
        # A timeout that the test would never reach: only death can end it.
        async with clients(driver, 2, session_timeout_ms=600_000) as (a, b):
            await a.register("r", b"a")
            async with b.watch("r") as changes:
                await anext(changes)
                a.abandon()
                await anext(changes)
            assert await b.get("r") is None
            assert await b.list("r") == []
            held = await b.register("r", b"b")
            assert not held.lost.is_set()

    run(scenario())


def test_the_key_of_a_dead_owner_is_free_for_the_first_who_asks(driver):
    async def scenario():
        async with clients(driver, 3, session_timeout_ms=600_000) as (a, b, c):
            await a.register("r", b"a")
            a.abandon()
            results = await asyncio.gather(
                b.register("r", b"b"), c.register("r", b"c"), return_exceptions=True
            )
            assert sorted(type(r).__name__ for r in results) == ["AlreadyExistsError", "Registration"]

    run(scenario())


def test_an_owner_that_lost_its_session_and_lives_registers_again(driver):
    async def scenario():
        async with clients(driver, 3) as (a, b, c):
            kept = await a.register("kept", b"1")
            once = await a.register("once", b"1", again=False)
            taken = await a.register("taken", b"1")
            await kept.update(b"2")

            async def other_takes():
                await lose_session(a, b)
                with suppress(AlreadyExistsError):
                    return await c.register("taken", b"c")

            await other_takes()
            await once.lost.wait()
            await until(lambda: present(b, "kept", b"2"))
            assert kept.renewed >= 1
            assert not kept.lost.is_set()
            assert await b.get("once") is None
            assert taken.lost.is_set() == ((await b.get("taken")).value == b"c")

    run(scenario())


async def present(store, key, value):
    found = await store.get(key)
    return found is not None and found.value == value


async def lose_session(owner, other):
    if isinstance(owner, MemoryStore):
        owner.lose_session()
        return
    # What an observer does when the counter stands still, done at once.
    thread, name = other._thread, owner._thread._session.name
    number = owner._thread._session_number
    await other._ask(lambda: thread.file.end_session(number, name), changes=True)


# --- ids --------------------------------------------------------------------------------------------------------


def test_ledger_ids_are_unique_over_clients(driver):
    async def scenario():
        async with clients(driver, 4) as stores:
            given = await asyncio.gather(*(store.next_ledger_id() for store in stores for _ in range(200)))
            assert len(set(given)) == len(given) == 800
            assert min(given) >= 0

    run(scenario())


def test_the_instance_is_one_for_all_clients_and_another_for_another_store(driver, tmp_path):
    async def scenario():
        other = type(driver)(tmp_path / "other")
        async with clients(driver, 2) as (a, b), clients(other, 1) as (c,):
            assert a.instance_id == b.instance_id != c.instance_id
            uuid.UUID(a.instance_id)

    run(scenario())


# --- lost answers -----------------------------------------------------------------------------------------------


def test_a_commit_that_fails_is_unknown_and_reading_tells(sqlite, monkeypatch):
    """Twice: once it had happened, once it had not."""

    async def scenario():
        import sqlite3

        async with clients(sqlite, 2) as (a, b):
            thread, commit = a._thread, a._thread._commit
            await a.create("k", b"0")

            def happened():
                thread._commit = commit
                commit()
                raise sqlite3.OperationalError("disk I/O error")

            def did_not():
                thread._commit = commit
                raise sqlite3.OperationalError("disk I/O error")

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

    run(scenario())


async def absent(store, key):
    return await store.get(key) is None


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


def test_processes_count_together_and_get_ids_of_their_own(sqlite):
    async def scenario():
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

    run(scenario())


def test_sigkill_ends_a_registration_at_once(sqlite):
    async def scenario():
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

    run(scenario())


async def empty(folder):
    return not list(folder.iterdir())


def test_a_client_that_watches_nothing_does_not_see_the_dead(sqlite):
    async def scenario():
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

    run(scenario())


def test_a_long_sigstop_ends_a_registration_and_the_owner_that_goes_on_renews_it(sqlite):
    async def scenario():
        async with clients(sqlite, 1) as (a,), children(sqlite.path, 1) as (child,):
            await child("register", "r", "x")
            child.process.send_signal(signal.SIGSTOP)
            await gone(a, "r")
            child.process.send_signal(signal.SIGCONT)
            await until(lambda: present(a, "r", b"x"))
            assert await child("renewed", "r") >= 1

    run(scenario())


def test_an_observer_that_stood_still_itself_does_not_take_the_others_for_dead(sqlite):
    """A clock that leaps by an hour between two looks is one look."""

    async def scenario():
        now = [1_000_000]
        observer = await SqliteStore.open(
            sqlite.path, create=True, options=SqliteOptions(now_ms=lambda: now[0])
        )
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

    run(scenario())


def test_a_store_does_not_cross_a_fork(sqlite):
    """A child of a fork gets a clear error, and its end neither ends the parent's session nor its locks."""

    async def scenario():
        async with clients(sqlite, 1, session_timeout_ms=600_000) as (a,):
            await a.register("r", b"a")
            outcome = await asyncio.to_thread(forked_use, a)
            assert outcome == "misuse"
            async with children(sqlite.path, 1) as (child,):
                assert await child("keys", "r") == ["r"]
            assert (await a.get("r")).value == b"a"

    run(scenario())


def forked_use(store):
    reader, writer = os.pipe()
    import warnings

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

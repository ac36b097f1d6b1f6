"""Metadata files that are missing, empty, foreign, damaged, copied, replaced, full or in a wrong place."""

import asyncio
import errno
import os
import shutil
import sqlite3
import threading
from pathlib import Path

import pytest

from quire.core.errors import (
    AlreadyExistsError,
    CorruptMetadataError,
    DiskFullError,
    MetadataUnknownError,
    MisuseError,
    NoClusterError,
    StorageError,
)
from quire.core.version import UNRELEASED
from quire.metadata.connect import open_store
from quire.metadata.memory import MemoryStore
from quire.metadata.sqlite import place as sqlite_place
from quire.metadata.sqlite import sessions as sqlite_sessions
from quire.metadata.sqlite.file import RESTORE_LEAP, SqliteFile, SqliteOptions
from quire.metadata.sqlite.place import filesystem_of
from quire.metadata.sqlite.store import SqliteStore
from quire.metadata.store import Create, Delete, StoreBusyError
from support.sqlite_inside import file_of, on_its_thread, thread_of
from support.waiting import until_async


async def open_and_close(path, *, create=False):
    store = await SqliteStore.open(path, create=create)
    await store.close()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "metadata.db"


async def refused(path, kind, *words, create=False):
    with pytest.raises(kind) as caught:
        await open_and_close(path, create=create)
    for word in (str(path), *words):
        assert word in str(caught.value)
    assert caught.value.ids["path"] == str(path)


async def test_a_missing_file_names_the_command_that_makes_a_cluster(path):
    await refused(
        path, NoClusterError, "no such file", f"quire up --dir {path.parent}", "name another cluster"
    )
    assert not path.exists()
    missing = path.parent / "not" / "there" / "metadata.db"
    await refused(missing, NoClusterError, "does not exist either")


async def test_create_makes_folders_and_file_and_later_opens_need_no_create(path):
    deep = path.parent / "a" / "b" / "metadata.db"
    await open_and_close(deep, create=True)
    await open_and_close(deep)
    assert sorted(p.name for p in deep.parent.iterdir()) == ["metadata.db", "metadata.db-sequence"]


async def test_a_directory_or_a_file_as_folder_is_refused(path):
    path.mkdir()
    await refused(path, NoClusterError, "is a directory", "metadata.db/metadata.db")
    (path / "file").write_bytes(b"x")
    await refused(path / "file" / "m.db", NoClusterError, create=True)
    await refused(path / "file" / "m.db", NoClusterError)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may open everything")
async def test_a_file_without_permission_is_refused(path):
    await open_and_close(path, create=True)
    path.chmod(0)
    await refused(path, NoClusterError, "who owns it")


async def test_a_file_that_is_no_database_is_corrupt(path):
    path.write_bytes(b"BookieMetadataFormatVersion\t3\n" * 100)
    await refused(path, CorruptMetadataError, "not a database", "backup")
    await refused(path, CorruptMetadataError, create=True)


async def test_an_empty_file_is_no_cluster_unless_one_is_made(path):
    path.touch()
    await refused(path, CorruptMetadataError, "is empty", "quire up")
    await open_and_close(path, create=True)
    await open_and_close(path)


async def test_the_database_of_another_program_is_refused(path):
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE songs (name TEXT)")
    connection.close()
    await refused(path, CorruptMetadataError, "another program")
    await refused(path, CorruptMetadataError, "another program", create=True)


@pytest.mark.parametrize(
    ("version", "said"),
    [(1, f"1, written by {UNRELEASED}"), (3, "3, and this version of Quire knows 2: use the version that")],
)
async def test_another_format_is_refused(path, version, said):
    await open_and_close(path, create=True)
    with sqlite3.connect(path) as connection:
        connection.execute(f"PRAGMA user_version = {version}")
    connection.close()
    await refused(path, CorruptMetadataError, f"has metadata format {said}")


async def test_a_damaged_page_is_found_at_open(path):
    async with await SqliteStore.open(path, create=True) as store:
        for i in range(200):
            await store.create(f"k/{i}", b"x" * 200)
    whole = path.read_bytes()
    for page in range(1, len(whole) // 4096):
        damaged = bytearray(whole)
        damaged[page * 4096 : page * 4096 + 64] = b"\xff" * 64
        path.write_bytes(damaged)
        await refused(path, CorruptMetadataError, "damaged")
    path.write_bytes(whole[: len(whole) // 2])
    await refused(path, CorruptMetadataError, "damaged")
    path.write_bytes(whole)
    await open_and_close(path)


async def test_missing_tables_are_damage(path):
    await open_and_close(path, create=True)
    with sqlite3.connect(path) as connection:
        connection.execute("DELETE FROM counters")
    connection.close()
    await refused(path, CorruptMetadataError, "counters")


async def test_a_file_that_is_replaced_while_open_takes_no_more_changes(path):
    async with await SqliteStore.open(path, create=True) as store, store.watch("k") as changes:
        await anext(changes)
        held = await store.register("r", b"")
        os.rename(path, path.with_name("elsewhere.db"))
        with pytest.raises(NoClusterError, match="removed or replaced"):
            await store.create("k", b"")
        with pytest.raises(NoClusterError, match="removed or replaced"):
            await store.get("k")
        with pytest.raises(NoClusterError, match="removed or replaced"):
            await anext(changes)
        await held.lost.wait()


async def test_a_copied_file_starts_a_new_generation_and_leaps_over_ids(path):
    async with await SqliteStore.open(path, create=True) as store:
        generation, instance = store.generation, store.instance_id
        highest = max([await store.next_ledger_id() for _ in range(10)])
        await store.register("r", b"")
        copy = path.parent / "backup" / "metadata.db"
        copy.parent.mkdir()
        await store.create("k", b"v")
    shutil.copy(path, copy)
    for _ in range(2):
        async with await SqliteStore.open(copy) as store:
            assert (store.generation, store.instance_id) == (generation + 1, instance)
            assert await store.next_ledger_id() > highest + RESTORE_LEAP - 100
            assert (await store.get("k")).value == b"v"
            assert await store.get("r") is None


async def test_a_full_disk_is_said_and_nothing_has_happened(path):
    async with await SqliteStore.open(path, create=True) as store:
        file = file_of(store)

        async def pages(limit):
            await on_its_thread(store, lambda: file._one(f"PRAGMA max_page_count = {limit}"))

        await pages(30)
        with pytest.raises(DiskFullError, match="free space"):
            for i in range(100):
                await store.create(f"k/{i}", b"x" * 4000)
        stored = len(await store.list("k/"))
        assert 0 < stored < 100
        await pages(2**30)
        await store.create(f"k/{stored}", b"x" * 4000)


async def test_a_session_that_cannot_be_made_again_writes_into_no_other_file(path):
    """Its folder was swept by hand, and a file is in its place."""
    clock = [0]
    options = SqliteOptions(now_ms=lambda: clock[0])
    async with await SqliteStore.open(path, create=True, options=options) as store:
        held = await store.register("r", b"1")
        folder = path.with_name("metadata.db-sessions")
        shutil.rmtree(folder)
        folder.write_bytes(b"")
        with pytest.raises(StorageError, match="session file"):
            await held.update(b"2")
        others = [path.with_name(f"other{i}") for i in range(20)]
        files = [other.open("wb", buffering=0) for other in others]
        clock[0] += 2 * options.beat_ms
        registrations = thread_of(store).registrations
        await on_its_thread(store, lambda: registrations.beat(clock[0]))
        for file in files:
            file.close()
        assert {other.read_bytes() for other in others} == {b""}


async def test_sessions_that_cannot_be_written_leave_nothing_open(path, monkeypatch):
    def no_space(session):
        raise StorageError(f"the session file {session.path} cannot be written (No space left on device)")

    async with await SqliteStore.open(path, create=True) as store:
        with monkeypatch.context() as full:
            full.setattr(sqlite_sessions.SessionFile, "beat", no_space)
            for _ in range(3):
                with pytest.raises(StorageError, match="No space"):
                    await store.register("r", b"")
        folder = path.with_name("metadata.db-sessions")
        links = Path("/proc/self/fd").iterdir()
        assert not [link for link in links if link.is_symlink() and folder in link.readlink().parents]
        assert list(folder.iterdir()) == []
        await store.register("r", b"")


async def test_what_is_registered_again_is_what_was_committed_last(path, monkeypatch):
    """An update that failed, or whose end is unknown, does not happen later."""

    def fail():
        raise sqlite3.OperationalError("disk I/O error")

    async with await SqliteStore.open(path, create=True) as store:
        held = await store.register("r", b"1")
        await held.update(b"2")
        with monkeypatch.context() as failing:
            failing.setattr(thread_of(store), "_commit", fail)
            with pytest.raises(MetadataUnknownError):
                await held.update(b"3")
        assert (await store.get("r")).value == b"2"
        shutil.rmtree(path.with_name("metadata.db-sessions"))
        await on_its_thread(store, thread_of(store).registrations.mend, changes=True)
        assert (await store.get("r")).value == b"2"
        assert held.value == b"2"
        assert held.renewed == 1


def test_a_session_that_cannot_be_looked_at_is_not_taken_for_ended(tmp_path, monkeypatch):
    """An observer without a free descriptor does not see the counter move, and must not say that it stands still."""
    observer = sqlite_sessions.SessionObserver(tmp_path)
    observer.refresh([sqlite_sessions.SessionRow(1, "session", 1000)], 0)
    (tmp_path / "session").write_bytes(b"")

    def none_free(*_):
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as shortage:
        shortage.setattr(sqlite_sessions.os, "open", none_free)
        assert not any(observer.is_over(1, now_ms) for now_ms in range(0, 5000, 100))
    assert observer.is_over(1, 5000), "its lock is free"
    observer.close()


async def test_a_writer_that_keeps_the_lock_is_named_after_a_while(path, monkeypatch):
    async with await SqliteStore.open(path, create=True) as store:
        await store.create("k", b"1")
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        file, begin = file_of(store), file_of(store).begin
        monkeypatch.setattr(file, "begin", lambda patience_ms: begin(1))
        with pytest.raises(StoreBusyError, match="stopped"):
            await store.create("k2", b"")
        assert (await store.get("k")).value == b"1"
        other.execute("ROLLBACK")
        other.close()
        await store.create("k2", b"")


async def test_a_network_filesystem_is_refused(path, monkeypatch):
    monkeypatch.setattr(sqlite_place, "filesystem_of", lambda folder: "nfs4")
    await refused(path, NoClusterError, "nfs4", "local", create=True)


MOUNTS = """\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
23 22 0:20 / /home rw shared:2 - nfs4 server:/home rw
24 23 8:2 / /home/me/my\\040disk rw - xfs /dev/sdb1 rw
25 22 0:21 / /homely rw - tmpfs tmpfs rw
"""


@pytest.mark.parametrize(
    ("folder", "kind"),
    [
        ("/", "ext4"),
        ("/var/x", "ext4"),
        ("/home", "nfs4"),
        ("/home/me", "nfs4"),
        ("/home/me/my disk/q", "xfs"),
        ("/homely", "tmpfs"),
    ],
)
def test_the_filesystem_of_a_folder_is_that_of_its_nearest_mount(folder, kind):
    assert filesystem_of(Path(folder), MOUNTS) == kind


def test_settings_are_those_that_keep_what_was_acknowledged(path):
    file = SqliteFile(path, create=True)
    assert file._one("PRAGMA journal_mode") == "wal"
    assert file._one("PRAGMA synchronous") == 2
    assert file._one("PRAGMA foreign_keys") == 1
    file.close()


# --- what is particular to this driver --------------------------------------------------------------------------


def test_a_new_folder_is_on_the_disk_before_the_file_is_made(path, monkeypatch):
    """SQLite syncs the folder that the file is in, but not the one that this folder is in."""
    synced, fsync = [], os.fsync

    def noted(descriptor):
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    SqliteFile(path.parent / "new" / "deeper" / "metadata.db", create=True).close()
    folder = path.parent / "new"  # last comes the one with the file that the sequence is in
    assert synced[-3:] == [str(path.parent), str(folder), str(folder / "deeper")]


async def test_a_watcher_behind_the_trim_is_told_to_read_everything(path):
    options = SqliteOptions(tombstones_kept=10, poll_ms=600_000)
    async with (
        await SqliteStore.open(path, create=True, options=options) as slow,
        slow.watch("k") as changes,
    ):
        await anext(changes)
        # Another process would do this; a second connection in this thread does the same.
        file = SqliteFile(path, create=False, tombstones_kept=10)
        for i in range(100):
            file.begin()
            file.reserve_ledger_ids(1)
            file.apply([Create(f"k/{i}", b"")])
            file.apply([Delete(f"k/{i}")])
            file.trim()
            file.commit()
        assert file._one("SELECT count(*) FROM entries") <= 20
        file.close()
        thread_of(slow).jobs.put(None)
        assert (await anext(changes)).reread_all


async def test_changes_that_wait_together_share_commits(path):
    async with await SqliteStore.open(path, create=True) as store:
        thread, commit, commits = thread_of(store), thread_of(store)._commit, []

        def counted():
            commits.append(1)
            commit()

        thread._commit = counted
        await asyncio.gather(*(store.create(f"k/{i}", b"") for i in range(200)))
        assert len(commits) < 20
        assert len(await store.list("k/")) == 200


async def test_an_unexpected_error_fails_the_store_and_hangs_nobody(path, monkeypatch, caplog):
    store = await SqliteStore.open(path, create=True)
    held = await store.register("r", b"")
    monkeypatch.setattr(file_of(store), "get", lambda key: 1 / 0)
    with pytest.raises(StorageError, match="ZeroDivisionError"):
        await store.get("k")
    with pytest.raises(StorageError):
        await store.create("k", b"")
    await held.lost.wait()
    await store.close()
    assert "failed" in caplog.text


def test_a_store_that_was_forgotten_with_its_loop_lets_go(path):
    async def forget():
        store = await SqliteStore.open(path, create=True)
        await store.register("r", b"")
        return thread_of(store)

    thread = asyncio.run(forget())
    thread.join(20)
    assert not thread.is_alive()

    async def look():
        async with await SqliteStore.open(path) as store:
            assert await store.get("r") is None

    asyncio.run(look())


def test_closing_leaves_nothing_behind(path):
    threads = threading.active_count()
    descriptors = len(os.listdir("/proc/self/fd"))

    async def scenario():
        store = await SqliteStore.open(path, create=True)
        await store.register("r", b"")
        await store.create("k", b"")
        await store.close()
        with pytest.raises(MisuseError, match="closed"):
            await store.get("k")

    asyncio.run(scenario())
    assert threading.active_count() == threads
    assert len(os.listdir("/proc/self/fd")) == descriptors
    left = ["metadata.db", "metadata.db-sequence", "metadata.db-sessions"]
    assert sorted(p.name for p in path.parent.rglob("*")) == left


async def test_an_opening_that_is_cancelled_leaves_no_thread_behind(path):
    before = set(threading.enumerate())
    opening = asyncio.ensure_future(SqliteStore.open(path, create=True))
    await asyncio.sleep(0)
    opening.cancel()
    await asyncio.wait({opening})
    assert opening.cancelled()
    await until_async(lambda: set(threading.enumerate()) <= before, "the thread to end")


# --- URIs -------------------------------------------------------------------------------------------------------


async def test_uris_name_stores(path):
    async with (
        await open_store(f"sqlite:{path}", create=True) as a,
        await open_store(f"sqlite://{path}") as b,
    ):
        await a.create("k", b"v")
        assert (await b.get("k")).value == b"v"
    async with await open_store("memory:uris") as a, await open_store("memory:uris") as b:
        await a.create("k", b"v")
        assert (await b.get("k")).value == b"v"
        with pytest.raises(AlreadyExistsError):
            await b.create("k", b"")
        async with await open_store("memory:other") as c:
            assert isinstance(c, MemoryStore)
            assert await c.get("k") is None


@pytest.mark.parametrize(
    ("uri", "word"),
    [
        ("", "not the URI of a cluster"),
        ("/data/metadata.db", "sqlite:PATH"),
        ("sqlite:", "names no file"),
        ("http://x", "sqlite:PATH"),
        ("zk://h:x/ledgers", "not HOST:PORT"),
        ("zk+ms://h:2181/ledgers", "no layout"),
        ("etcd://h:2379/a//b", "empty or dotted part"),
    ],
)
async def test_other_uris_say_what_to_write(uri, word):
    with pytest.raises(NoClusterError, match=word):
        await open_store(uri)

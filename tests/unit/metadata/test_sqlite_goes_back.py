"""A metadata file that turns out older than it was: at the next open, and under a store that has it open; and its -wal."""

import logging
import os
import shutil
import sqlite3
from contextlib import closing

import pytest

from quire.core.errors import NoClusterError
from quire.metadata.connect import open_store
from quire.metadata.sqlite.file import RESTORE_LEAP, SqliteFile, SqliteOptions
from quire.metadata.sqlite.sequence import SequenceFile
from quire.metadata.sqlite.store import SqliteStore
from quire.metadata.store import Put
from support.sqlite_inside import file_of, on_its_thread, thread_of
from support.waiting import until_async

NEVER_MS = 10**9


@pytest.fixture(autouse=True)
def others_are_silent():
    """What clients of earlier tests left running may say: nothing of that is about these files."""
    logger = logging.getLogger("quire.client")
    before, logger.level = logger.level, logging.CRITICAL
    yield
    logger.setLevel(before)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "metadata.db"


async def fill(path, first, last, **options):
    """Keys with these numbers, a ledger id for each; (generation, ids)."""
    async with await SqliteStore.open(path, create=True, options=SqliteOptions(**options)) as store:
        for number in range(first, last + 1):
            await store.create(f"k/{number}", b"v")
        return store.generation, [await store.next_ledger_id() for _ in range(first, last + 1)]


def log_of(path):
    return path.with_name(path.name + "-wal")


def newest(path):
    return max(SequenceFile(path).read())


def by_cp(backup, path):
    """The same inode."""
    inode = path.stat().st_ino
    shutil.copyfile(backup, path)
    assert path.stat().st_ino == inode


def by_rename(backup, path):
    copy = path.with_name("copy.db")
    shutil.copy(backup, copy)
    os.rename(copy, path)


@pytest.fixture(autouse=True)
def only_what_stores_say(monkeypatch):
    """Clients of other tests, in threads of this process, still look for clusters that are gone."""
    monkeypatch.setattr(logging.getLogger("quire.client"), "propagate", False)


# --- a backup that is put back ----------------------------------------------------------------------------------


@pytest.mark.parametrize("put_back", [by_cp, by_rename])
@pytest.mark.parametrize("lost", [1, 20])
async def test_a_backup_that_is_put_back_is_noticed(path, tmp_path, caplog, put_back, lost):
    backup = tmp_path / "backup.db"
    await fill(path, 1, 10)
    shutil.copy(path, backup)
    generation, ids = await fill(path, 11, 10 + lost)
    assert caplog.text == ""
    remembered = newest(path)
    assert remembered.revision == 10 + lost
    put_back(backup, path)
    async with await SqliteStore.open(path) as store:
        assert store.generation == generation + 1
        assert await store.next_ledger_id() >= max(ids) + RESTORE_LEAP
        assert (await store.get("k/10")).version == 10
        assert await store.get("k/11") is None
        assert await store.create("k/11", b"new") > remembered.revision + RESTORE_LEAP - 1
    [line] = [record.getMessage() for record in caplog.records]
    for words in (
        f"{path} went back in time",
        "revision 10 ",
        f"revision {10 + lost} ",
        f"generation {generation + 1},",
        "quire cluster status",
        "quire cluster accept-store",
        "docs/metadata.md",
    ):
        assert words in line
    caplog.clear()
    assert (await fill(path, 100, 101))[0] == generation + 1
    assert caplog.text == ""
    assert newest(path).generation == generation + 1


async def test_a_backup_of_an_earlier_generation_begins_one_that_was_never_there(path, tmp_path, caplog):
    backup = tmp_path / "backup.db"
    assert (await fill(path, 1, 10))[0] == 1
    shutil.copy(path, backup)
    await fill(path, 11, 11)
    for generation in (2, 3, 4):
        by_cp(backup, path)
        await fill(path, 11, 11)
        assert newest(path).generation == generation
    assert len(caplog.records) == 3


async def test_a_return_that_was_told_is_not_told_again_although_its_sequence_was_not_written(
    path, tmp_path, caplog
):
    """The power went between the commit of the new generation and the write of the sequence."""
    backup = tmp_path / "backup.db"
    await fill(path, 1, 10)
    shutil.copy(path, backup)
    await fill(path, 11, 20)
    sequence = SequenceFile(path).path
    before = sequence.read_bytes()
    by_cp(backup, path)
    SqliteFile(path, create=False).close()
    assert len(caplog.records) == 1
    sequence.write_bytes(before)
    file = SqliteFile(path, create=False)
    assert file.generation == 2
    assert newest(path) == file.progress
    file.close()
    assert len(caplog.records) == 1


async def test_the_file_of_another_cluster_is_no_return(path, tmp_path, caplog):
    """Its sequence is written over."""
    other = tmp_path / "other.db"
    await fill(path, 1, 50)
    await fill(other, 1, 3)
    os.rename(other, path)
    await fill(path, 4, 4)
    assert caplog.text == ""
    assert newest(path).revision == 4


async def test_a_folder_that_is_copied_whole_is_a_copy_and_no_return(path, tmp_path, caplog):
    await fill(path, 1, 10)
    copy = tmp_path / "moved"
    copy.mkdir()
    for name in ("metadata.db", "metadata.db-sequence"):
        shutil.copy(path.with_name(name), copy / name)
    for _ in range(2):
        file = SqliteFile(copy / "metadata.db", create=False)
        assert file.generation == 2
        assert file.progress == newest(copy / "metadata.db")
        file.close()
    assert (await fill(path, 11, 11))[0] == 1
    assert caplog.text == ""


# --- under a store that has it open -----------------------------------------------------------------------------


def set_counters(path, change):
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(f"UPDATE counters SET {change}")


@pytest.mark.parametrize(
    "change", ["revision = revision - 1", "next_ledger = next_ledger - 1", "generation = generation + 1"]
)
async def test_counters_that_go_back_between_two_changes_fail_the_store(path, change):
    async with await SqliteStore.open(path, create=True) as store, store.watch("k") as changes:
        await anext(changes)
        held = await store.register("r", b"")
        await store.next_ledger_id()
        await store.create("k/1", b"")
        assert await anext(changes) == {"k/1"}
        set_counters(path, change)
        with pytest.raises(NoClusterError, match=r"went back in time while it was open.*start again"):
            await anext(changes)  # it looks at them even if nothing is changed here
        for _ in range(2):
            with pytest.raises(NoClusterError, match="went back in time while it was open"):
                await store.create("k/2", b"")
        with pytest.raises(NoClusterError, match="went back in time while it was open"):
            await store.get("k/1")
        await held.lost.wait()


async def test_a_backup_copied_into_the_open_file_is_noticed_by_the_next_to_open_it_and_then_by_all(
    path, tmp_path, caplog
):
    backup = tmp_path / "backup.db"
    await fill(path, 1, 10)
    shutil.copy(path, backup)
    store = await SqliteStore.open(path)
    await store.create("k/11", b"v")
    assert await on_its_thread(store, lambda: file_of(store).sequence.raise_to(file_of(store).progress))
    assert await on_its_thread(store, file_of(store).log.empty)
    by_cp(backup, path)
    async with await SqliteStore.open(path) as other:
        assert other.generation == store.generation + 1
        with pytest.raises(NoClusterError, match=r"shows revision 1000011 .*but has shown 11 "):
            await store.create("k/12", b"v")
        await store.close()
        await other.create("k/12", b"v")
    assert len(caplog.records) == 1
    assert newest(path).revision > RESTORE_LEAP


async def test_a_commit_whose_end_is_unknown_makes_no_store_believe_that_the_file_went_back(
    path, monkeypatch
):
    async with await SqliteStore.open(path, create=True) as store:
        version = await store.create("k", b"1")
        thread, commit = thread_of(store), thread_of(store)._commit

        def failing():
            thread.file.rollback()
            raise sqlite3.OperationalError("disk I/O error")

        monkeypatch.setattr(thread, "_commit", failing)
        with pytest.raises(Exception, match="outcome is unknown"):
            await store.put("k", b"2", version)
        monkeypatch.setattr(thread, "_commit", commit)
        assert (await store.multi([Put("k", b"3", version)])) == [version + 1]
        assert thread.file.progress.revision == version + 1


# --- the -wal, and when the sequence is written -----------------------------------------------------------------


async def test_an_open_brings_the_log_of_a_killed_process_into_the_file(path):
    killed = await SqliteStore.open(path, create=True, options=SqliteOptions(settle_ms=NEVER_MS))
    await killed.create("k", b"v")
    assert log_of(path).stat().st_size > 0
    async with await SqliteStore.open(path):
        assert log_of(path).stat().st_size == 0
    killed.abandon()


@pytest.mark.parametrize("begin", ["BEGIN", "BEGIN IMMEDIATE"])
async def test_an_open_waits_neither_for_a_reader_nor_for_a_writer(path, begin):
    """What one cannot empty the next one does."""
    options = SqliteOptions(settle_ms=NEVER_MS)
    async with await SqliteStore.open(path, create=True, options=options) as store:
        await store.create("k/1", b"v")
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute(begin)
            other.execute("SELECT * FROM counters").fetchone()
            if begin == "BEGIN":
                await store.create(
                    "k/2", b"v"
                )  # which that reader does not see, so it may not go into the file
            second = await SqliteStore.open(path, options=options)
            assert await second.get("k/1") is not None
            assert not await on_its_thread(second, file_of(second).log.empty)
            assert newest(path) == file_of(second).progress
            assert log_of(path).stat().st_size > 0
        async with second, await SqliteStore.open(path):
            assert log_of(path).stat().st_size == 0


async def test_a_log_that_grows_is_written_over_from_its_start(path):
    async with await SqliteStore.open(path, create=True, options=SqliteOptions(settle_ms=NEVER_MS)) as store:
        for number in range(400):
            await store.create(f"k/{number}", b"x" * 3000)
        assert 512 * 4096 < log_of(path).stat().st_size < 600 * 4096


class Clock:
    def __init__(self):
        self.ms = 5_000_000

    def __call__(self):
        return self.ms


async def test_after_a_second_the_log_is_empty_and_the_sequence_written_and_not_before(path):
    clock = Clock()
    async with await SqliteStore.open(path, create=True, options=SqliteOptions(now_ms=clock)) as store:
        for second in range(3):
            written = newest(path).revision
            for _ in range(5):
                await store.create(f"k/{clock.ms}", b"v")
                clock.ms += 199
                assert newest(path).revision == written
            assert log_of(path).stat().st_size > 0
            clock.ms += 5
            await store.create(f"k/{clock.ms}", b"v")

            def settled(second=second):
                clock.ms += 20  # the thread may have looked at the clock a step later than this one
                return newest(path).revision == 6 * (second + 1)

            await until_async(settled)
            await until_async(lambda: log_of(path).stat().st_size == 0)
            clock.ms += 2000


async def test_a_store_without_watches_settles_by_itself(path):
    async with await SqliteStore.open(path, create=True, options=SqliteOptions(settle_ms=20)) as store:
        await store.create("k", b"v")
        await until_async(lambda: newest(path).revision == 1 and log_of(path).stat().st_size == 0)
        assert thread_of(store).settling.due_ms is None


async def test_what_a_reader_was_in_the_way_of_is_done_later(path):
    async with await SqliteStore.open(path, create=True, options=SqliteOptions(settle_ms=20)) as store:
        await store.create("k/1", b"v")
        await until_async(lambda: log_of(path).stat().st_size == 0)
        with closing(sqlite3.connect(path, isolation_level=None)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT * FROM counters").fetchone()
            await store.create("k/2", b"v")
            await until_async(lambda: newest(path).revision == 2)
            assert log_of(path).stat().st_size > 0
        await until_async(lambda: log_of(path).stat().st_size == 0)


async def test_a_clean_close_writes_the_sequence_and_an_end_like_a_kill_does_not(path):
    store = await SqliteStore.open(path, create=True)
    await store.create("k/1", b"v")
    await store.register("r", b"v")
    await store.close()
    assert newest(path).revision == 3  # the registration was taken back
    store = await SqliteStore.open(path)
    await store.create("k/2", b"v")
    store.abandon()
    assert newest(path).revision == 3


async def test_a_store_that_was_replaced_writes_nothing_beside_the_new_file(path, tmp_path):
    store = await SqliteStore.open(path, create=True)
    await store.create("k", b"v")
    other = tmp_path / "other.db"
    await fill(other, 1, 3)
    os.rename(other, path)
    before = SequenceFile(path).path.read_bytes()
    await store.close()
    assert SequenceFile(path).path.read_bytes() == before


# --- what other rooms see ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("uri", "generation"), [("memory:generations", 0), ("sqlite:{}", 1)])
async def test_every_store_tells_its_generation(path, uri, generation):
    async with await open_store(uri.format(path), create=True) as store:
        assert store.generation == generation


async def test_a_store_whose_file_was_replaced_says_so_and_closes(path):
    store = await SqliteStore.open(path, create=True)
    await store.create("a", b"1")
    assert store.is_current
    shutil.rmtree(path.parent)
    assert not store.is_current
    async with await SqliteStore.open(path, create=True) as other:
        assert not store.is_current
        assert other.is_current
        assert other.instance_id != store.instance_id
        await store.close()
        assert await other.get("a") is None

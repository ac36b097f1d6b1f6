"""A metadata file that went back in time says so; one whose processes were killed in the middle of their work does not."""

from __future__ import annotations

import random
import sqlite3
from contextlib import closing

import pytest

from quire.metadata.sqlite.file import RESTORE_LEAP, SqliteFile
from quire.metadata.sqlite.sequence import SequenceFile, StoreProgress, newest_of
from support.rounds import rounds
from support.sqlite_disk import warnings
from support.sqlite_writer import kill, killed_writer, writer

pytestmark = pytest.mark.faults
CHANGES = 8
LOG_HEADER = 32
FRAME_HEADER = 24
SEED = 20261122
NAMES = ("", "-wal", "-sequence")


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "metadata.db"
    SqliteFile(path, create=True).close()
    return path


def held(path):
    """What the database holds, as SQLite itself reads it; and looking at it changes nothing that is under a name."""
    saved = save(path)
    with closing(sqlite3.connect(path)) as connection:
        [row] = connection.execute("SELECT instance, generation, revision, next_ledger FROM counters")
    put_back(path, saved)
    return StoreProgress(*row)


def save(path):
    """What a killed process left on the disk; the shared memory does not outlive a power cut."""
    found = {}
    for name in NAMES:
        file = path.with_name(path.name + name)
        found[name] = file.read_bytes() if file.exists() else None
    return found


def put_back(path, saved):
    """The same under the same inodes: as a damaged disk, or `cp`, would leave it."""
    path.with_name(path.name + "-shm").unlink(missing_ok=True)
    for name, data in saved.items():
        file = path.with_name(path.name + name)
        if data is None:
            file.unlink(missing_ok=True)
        else:
            with file.open("r+b" if file.exists() else "wb") as out:
                out.write(data)
                out.truncate()


def opened(path):
    """(what was logged, generation, how far it has come, the next ledger id) of a file that is opened."""
    with warnings() as logged:
        file = SqliteFile(path, create=False)
    try:
        assert path.with_name(path.name + "-wal").stat().st_size == 0
        file.begin()
        first = file.reserve_ledger_ids(1)[0]
        file.rollback()
        return logged, file.progress, first
    finally:
        file.close()


def spoilt_logs(log, frame_bytes):
    """(what was done to it, a log) for a cut at each frame, a cut within each, and a bit of each that turned."""
    chance = random.Random(SEED)
    for at in range(LOG_HEADER, len(log) + 1, frame_bytes):
        yield f"cut at {at}", log[:at]
        if at < len(log):
            within = at + chance.randrange(1, frame_bytes)
            yield f"cut at {within}", log[:within]
            bit = 8 * at + chance.randrange(8 * frame_bytes)
            turned = bytearray(log)
            turned[bit // 8] ^= 1 << bit % 8
            yield f"bit {bit} turned", bytes(turned)
    yield "no header", bytes(LOG_HEADER) + log[LOG_HEADER:]
    yield "empty", b""


def test_every_cut_and_every_flipped_bit_of_the_log_is_noticed(path):
    """From the loss of one commit on; and what is no loss is none."""
    told = killed_writer(path, 0, CHANGES, "", -1)
    saved = save(path)
    whole, highest = held(path), max(ledger_id for _, ledger_id in told)
    remembered = newest_of(SequenceFile(path).read(), whole.instance)
    assert remembered.generation == 1
    assert not whole.is_behind(remembered)
    log = saved["-wal"]
    frame_bytes = FRAME_HEADER + int.from_bytes(log[8:12], "big")
    lost, kept = set(), 0
    for what, spoilt in spoilt_logs(log, frame_bytes):
        put_back(path, saved | {"-wal": spoilt})
        before = held(path)
        logged, after, first = opened(path)
        if before.is_behind(remembered):
            lost.add(before.revision)
            [line] = logged
            words = (path, f"revision {before.revision} ", f"revision {remembered.revision} ", "accept-store")
            assert all(str(word) in line for word in words), what
            assert after.generation == 2, what
            assert after.revision > remembered.revision + RESTORE_LEAP - 100, what
            assert first >= remembered.next_ledger + RESTORE_LEAP > highest, what
        else:
            kept += 1
            assert (logged, after) == ([], before), what
        assert opened(path) == ([], after, first), f"{what}: told once"
    assert kept >= 1
    # As it was after each commit; with the newest revision too, where only the ids were lost that were drawn after it.
    assert lost >= set(range(remembered.revision))


def test_processes_that_are_killed_at_work_leave_nothing_that_looks_like_a_return(path):
    """Two of them, which settle all the time; the next two go on from there."""
    chance = random.Random(SEED)
    numbers, ids = {"one/": 0, "two/": 0}, set()
    for number in range(rounds(6, 100)):
        started = {
            prefix: writer(path, numbers[prefix], prefix, chance.choice((0, 1, 5))) for prefix in numbers
        }
        for prefix, process in started.items():
            with process:
                told = kill(process, chance.randint(1, 40))
            numbers[prefix] = told[-1][0] + 1  # it may have made one more, of which nobody heard
            given = [ledger_id for _, ledger_id in told]
            assert ids.isdisjoint(given)
            ids.update(given)
        if number % 2:  # every other time nobody looks in between
            before = held(path)
            remembered = newest_of(SequenceFile(path).read(), before.instance)
            assert not before.is_behind(remembered)
            assert opened(path)[:2] == ([], before)
    assert before.generation == 1
    assert remembered.revision > 1

"""The file beside a metadata file that says how far it had come: its bytes, its two slots, and what can be wrong with it."""

import fcntl
import logging
import os
import stat
from pathlib import Path

import pytest

from quire.metadata.sqlite.file import SqliteFile
from quire.metadata.sqlite.sequence import (
    SEQUENCE,
    SLOT_BYTES,
    SequenceFile,
    StoreProgress,
    decode_progress,
    encode_progress,
    newest_of,
)
from quire.metadata.sqlite.store import SqliteStore
from support.sqlite_inside import file_of, on_its_thread

ONE = "54d02935-bc30-42f5-b7af-82a9983dd84c"
OTHER = "11111111-bc30-42f5-b7af-82a9983dd84c"


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "metadata.db"
    path.touch(mode=0o640)
    return path


@pytest.fixture
def sequence(path):
    return SequenceFile(path)


def newest(path):
    return newest_of(SequenceFile(path).read(), ONE)


def test_a_slot_has_these_bytes():
    assert encode_progress(StoreProgress(ONE, 2, 258, 64)).hex(" ", -4) == (
        "d1515345 510d0a1a 00000001 35346430 32393335 2d626333 302d3432 66352d62 3761662d 38326139 39383364"
        " 64383463 00000000 00000002 00000000 00000102 00000000 00000040 670fdb7b"
    )


def test_a_slot_with_any_bit_flipped_or_cut_short_says_nothing():
    whole = encode_progress(StoreProgress(ONE, 2, 258, 64))
    assert len(whole) == SEQUENCE.size
    assert decode_progress(whole) == StoreProgress(ONE, 2, 258, 64)
    for bit in range(8 * len(whole)):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        assert decode_progress(bytes(flipped)) is None
    for size in range(len(whole)):
        assert decode_progress(whole[:size]) is None


@pytest.mark.parametrize(
    ("now", "remembered", "behind"),
    [
        ((1, 5, 9), (1, 5, 9), False),
        ((1, 6, 9), (1, 5, 9), False),
        ((1, 4, 9), (1, 5, 9), True),
        ((1, 5, 8), (1, 5, 9), True),
        ((1, 4, 1_000_000), (1, 5, 9), True),
        ((2, 5, 9), (1, 5, 9), False),
        ((2, 4, 1_000_000), (1, 5, 9), True),
        ((1, 50, 90), (2, 5, 9), True),
    ],
)
def test_each_number_tells_that_a_database_went_back(now, remembered, behind):
    assert StoreProgress(ONE, *now).is_behind(StoreProgress(ONE, *remembered)) == behind


def test_slots_are_written_in_turn_and_never_lower(path, sequence):
    for revision in range(1, 6):
        assert sequence.raise_to(StoreProgress(ONE, 1, revision, 1))
        data = sequence.path.read_bytes()
        assert decode_progress(data[(revision - 1) % 2 * SLOT_BYTES :]) == StoreProgress(ONE, 1, revision, 1)
        assert newest(path) == StoreProgress(ONE, 1, revision, 1)
    before = sequence.path.read_bytes()
    for lower in (StoreProgress(ONE, 1, 4, 1), StoreProgress(ONE, 1, 5, 1)):
        for handle in (sequence, SequenceFile(path)):
            assert handle.raise_to(lower)
            assert sequence.path.read_bytes() == before
    other = SequenceFile(path)
    assert other.raise_to(StoreProgress(ONE, 1, 6, 1))
    assert sequence.raise_to(StoreProgress(ONE, 1, 7, 1))
    assert [slot.revision for slot in sequence.read()] == [7, 6]
    assert sequence.raise_to(StoreProgress(ONE, 2, 3, 1))
    assert newest(path) == StoreProgress(ONE, 2, 3, 1)


def test_a_slot_that_was_torn_leaves_the_one_before(path, sequence):
    sequence.raise_to(StoreProgress(ONE, 1, 5, 1))
    sequence.raise_to(StoreProgress(ONE, 1, 6, 1))
    with sequence.path.open("r+b") as file:
        file.seek(SLOT_BYTES + 20)
        file.write(b"torn")
    assert newest(path) == StoreProgress(ONE, 1, 5, 1)
    sequence.raise_to(StoreProgress(ONE, 1, 7, 1))
    assert [slot.revision for slot in sequence.read()] == [5, 7]


def test_what_another_process_may_not_have_synced_is_synced_before_the_other_slot_is_written(
    path, sequence, monkeypatch
):
    calls = []
    for name in ("pwrite", "fdatasync"):
        call = getattr(os, name)
        monkeypatch.setattr(
            os, name, lambda *args, name=name, call=call: (calls.append(name), call(*args))[1]
        )
    sequence.raise_to(StoreProgress(ONE, 1, 1, 1))
    sequence.raise_to(StoreProgress(ONE, 1, 2, 1))
    assert calls == ["pwrite", "fdatasync"] * 2
    calls.clear()
    SequenceFile(path).raise_to(StoreProgress(ONE, 1, 3, 1))
    assert calls == ["fdatasync", "pwrite", "fdatasync"]


def test_who_finds_it_locked_comes_back_later(path, sequence):
    sequence.raise_to(StoreProgress(ONE, 1, 1, 1))
    with sequence.path.open() as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert not sequence.raise_to(StoreProgress(ONE, 1, 2, 1))
        assert newest(path).revision == 1
    assert sequence.raise_to(StoreProgress(ONE, 1, 2, 1))
    assert newest(path).revision == 2


def test_who_may_write_the_database_may_write_it(path, sequence):
    sequence.raise_to(StoreProgress(ONE, 1, 1, 1))
    database, made = path.stat(), sequence.path.stat()
    assert stat.S_IMODE(made.st_mode) == stat.S_IMODE(database.st_mode)
    assert (made.st_uid, made.st_gid) == (database.st_uid, database.st_gid)


def test_that_of_another_store_counts_for_nothing(path, sequence, caplog):
    for revision in (70, 80):
        sequence.raise_to(StoreProgress(OTHER, 3, revision, 900))
    assert newest(path) is None
    sequence.raise_to(StoreProgress(ONE, 1, 1, 1))
    assert newest(path) == StoreProgress(ONE, 1, 1, 1)
    sequence.raise_to(StoreProgress(ONE, 1, 2, 1))
    assert sequence.read() == [StoreProgress(ONE, 1, 1, 1), StoreProgress(ONE, 1, 2, 1)]
    assert caplog.text == ""


@pytest.mark.parametrize(
    "data",
    [b"\xff" * 100, b"\0" * 30 + b"\1", encode_progress(StoreProgress(ONE, 1, 5, 1))[:-1]],
    ids=["no slot", "one byte", "cut short"],
)
def test_a_damaged_one_is_said_once_and_written_anew(path, sequence, caplog, data):
    sequence.path.write_bytes(data)
    assert sequence.read() == []
    assert sequence.read() == []
    [record] = caplog.records
    assert f"{sequence.path} is damaged" in record.getMessage()
    assert sequence.raise_to(StoreProgress(ONE, 1, 5, 1))
    assert newest(path) == StoreProgress(ONE, 1, 5, 1)


@pytest.mark.parametrize("data", [b"", b"\0" * 84, b"\0" * 4096], ids=["empty", "short", "long"])
def test_one_whose_first_write_was_cut_is_as_good_as_missing(path, sequence, caplog, data):
    sequence.path.write_bytes(data)
    assert sequence.read() == []
    assert caplog.text == ""


# --- a store that cannot have it --------------------------------------------------------------------------------


async def work(path, number):
    """A store goes on, whatever its sequence does; it tries at each change."""
    async with await SqliteStore.open(path, create=True) as store:
        for change in range(3):
            await store.create(f"k/{number}/{change}", b"v")
            file = file_of(store)
            assert await on_its_thread(store, lambda file=file: file.sequence.raise_to(file.progress))


def warned(caplog):
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


async def test_a_full_disk_is_said_once_and_the_store_goes_on(tmp_path, caplog):
    path = tmp_path / "metadata.db"
    beside = tmp_path / "metadata.db-sequence"
    beside.symlink_to("/dev/full")
    await work(path, 1)
    [line] = warned(caplog)
    assert f"{beside} cannot be written (No space left on device)" in line
    assert "whether the disk is full" in line
    caplog.clear()
    beside.unlink()
    await work(path, 2)
    assert warned(caplog) == []
    [progress] = {max(SequenceFile(path).read())}
    assert progress.revision == 6


async def test_one_that_cannot_be_opened_is_said_once_and_the_store_goes_on(tmp_path, caplog):
    path = tmp_path / "metadata.db"
    (tmp_path / "metadata.db-sequence").mkdir()
    await work(path, 1)
    [line] = warned(caplog)
    assert "metadata.db-sequence cannot be read (Is a directory)" in line


@pytest.mark.skipif(os.geteuid() == 0, reason="root may open everything")
@pytest.mark.parametrize(("mode", "what"), [(0o000, "cannot be read"), (0o400, "cannot be written")])
async def test_one_without_permission_is_said_once_and_the_store_goes_on(tmp_path, caplog, mode, what):
    path = tmp_path / "metadata.db"
    await work(path, 1)
    Path(f"{path}-sequence").chmod(mode)
    await work(path, 2)
    [line] = warned(caplog)
    assert what in line
    assert "who owns it" in line


async def test_a_new_store_has_one_and_an_old_store_gets_one(tmp_path):
    path = tmp_path / "metadata.db"
    SqliteFile(path, create=True).close()
    sequence = SequenceFile(path)
    [made] = sequence.read()
    assert made[1:] == (1, 0, 1)
    sequence.path.unlink()
    await work(path, 1)
    [*_, last] = sorted(sequence.read())
    sequence.path.unlink()
    file = SqliteFile(path, create=False)
    assert sequence.read() == [last] == [file.progress]
    file.close()

"""What the bookie is promised: order, durability before "stored", finality of failures, a full disk that recovers."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from quire.core.bookie.ledger import LedgerFacts
from quire.core.errors import DiskFullError, MisuseError, StorageError
from quire.env.real import RealClock, RealFiles, ThreadWorker
from quire.storage.config import StorageConfig
from quire.storage.directory.identity import open_identity
from quire.storage.ledger_storage import LedgerStorage
from quire.wire.run import RunView
from quire_testing.kit.stepped import StepClock, StepWorker
from support.storage_disk import (
    SMALL,
    Answers,
    FaultyFiles,
    make_run,
    open_storage,
    put,
    read_all,
    settle,
)

BIG = StorageConfig(segment_bytes=1 << 20, recent_bytes_max=0)
ON_WORKER = replace(BIG, inline_bytes_max=0)


def test_stored_comes_after_the_sync_and_in_order() -> None:
    files, worker, callback = FaultyFiles(), StepWorker(), Answers()
    storage = open_storage(files, ON_WORKER, worker=worker)
    worker.finish()
    for number in range(3):
        put(storage, make_run(1, number, number), callback, number)
    assert callback.told == []
    storage.flush()
    put(storage, make_run(1, 3, 3), callback, 3)
    put(storage, make_run(1, 4, 4), callback, 4)
    assert callback.told == []
    assert storage.read(1, 0, 9, 1 << 20).conclusive_through == 9  # visible at once
    assert len(read_all(storage, 1, 0, 9)) == 5
    syncs = sum(line.startswith("sync 0") for line in files.log)
    worker.step()
    assert callback.ok == [0, 1, 2]  # what came while the write ran is in the next group, already on its way
    assert sum(line.startswith("sync 0") for line in files.log) == syncs + 1
    durable = storage.journal.durable_lsn
    worker.finish()
    assert callback.ok == [0, 1, 2, 3, 4]
    assert storage.journal.durable_lsn == durable + 2


def test_a_little_on_an_idle_disk_is_written_at_once() -> None:
    worker, callback = StepWorker(), Answers()
    storage = open_storage(FaultyFiles(), BIG, worker=worker)
    worker.finish()
    put(storage, make_run(1, 0, 0), callback, "small")
    storage.flush()
    assert callback.ok == ["small"]
    put(storage, make_run(1, 1, 1, payload=bytes(100_000)), callback, "large")
    storage.flush()
    assert callback.ok == ["small"]
    worker.finish()
    assert callback.ok == ["small", "large"]


def test_facts_and_entries_come_back_after_clean_and_unclean_stops() -> None:
    files, callback = FaultyFiles(), Answers()
    storage = open_storage(files)
    facts = LedgerFacts(5, key=b"k" * 20, token=9, digest_type=3, lac=4, explicit_lac=b"lac body")
    storage.put_facts(facts, callback, None)
    facts.fenced = True  # the caller's copy is its own
    put(storage, make_run(5, 0, 9), callback, lac=7)
    put(storage, make_run(5, 10, 12), callback, lac=9, recovery=True)
    settle(storage)
    for clean in (True, False, True):
        found = storage.facts(5)
        assert found == LedgerFacts(5, key=b"k" * 20, token=9, digest_type=3, lac=7, explicit_lac=b"lac body")
        assert storage.last_entry(5) == 12
        assert storage.held(5) == [(0, 12, 1, 1)]
        assert not storage.states.in_limbo(5)
        assert not storage.states.in_limbo(6)
        assert (storage.facts(5) is not None, storage.facts(6)) == (True, None)
        storage.close(clean=clean)
        storage = open_storage(files)
        assert storage.report.clean == clean


def test_what_was_put_and_not_flushed_is_written_by_a_clean_stop_only() -> None:
    for clean in (True, False):
        files, callback = FaultyFiles(), Answers()
        storage = open_storage(files)
        put(storage, make_run(1, 0, 9), callback)
        storage.close(clean=clean)
        assert bool(callback.ok) == clean
        assert len(read_all(open_storage(files), 1, 0, 9)) == (10 if clean else 0)


@pytest.mark.parametrize("direct", [False, True])
@pytest.mark.parametrize("position", range(1, 26))
def test_after_a_failed_write_or_sync_nothing_is_acknowledged_ever(position: int, direct: bool) -> None:
    files, callback, worker = FaultyFiles(direct=direct), Answers(), StepWorker()
    storage = open_storage(files, worker=worker)
    put(storage, make_run(1, 0, 4), callback, "before")
    settle(storage)
    files.fail_at = files.steps + position
    for number in range(30):
        put(storage, make_run(1, 5 + number, 5 + number, payload=bytes(8000)), callback, number)
        storage.flush()
        worker.finish()
        if storage.failure is not None:
            break
    assert storage.failure is not None
    assert not storage.writable
    acknowledged = set(callback.ok)
    files.fail_at = None  # the disk behaves again: too late
    put(storage, make_run(1, 100, 104), callback, "after")
    storage.put_facts(LedgerFacts(2, fenced=True), callback, "fence")
    storage.delete(1, 5, callback, "delete")
    assert storage.housekeeping.reclaim() == 0
    storage.flush()
    worker.finish()
    assert set(callback.ok) == acknowledged
    errors = dict(callback.told)
    assert all(isinstance(errors[tag], StorageError) for tag in ("after", "fence", "delete"))
    assert [tag for tag, _ in callback.told] == [
        "before", *(tag for tag, _ in callback.told[1:-3]), "after", "fence", "delete",
    ]  # fmt: skip
    assert storage.states.in_limbo(1)
    assert storage.states.in_limbo(77)
    assert len(read_all(storage, 1, 0, 4)) == 5  # plain reads go on
    storage.close(clean=True)
    # Whatever the disk kept: all that was acknowledged is there after a start.
    found = read_all(open_storage(files.crash()), 1, 0, 40)
    assert all(found.get(5 + tag) for tag in acknowledged if isinstance(tag, int))
    assert all(found.get(entry_id) for entry_id in range(5))


def test_a_full_disk_refuses_adds_and_nothing_else() -> None:
    files, callback, clock = FaultyFiles(), Answers(), StepClock(1_000_000)
    files.space = 5 * SMALL.segment_bytes
    storage = open_storage(files, clock=clock)
    entry = -1
    while storage.writable:
        entry += 1
        put(storage, make_run(1, entry, entry, payload=bytes(9000)), callback, entry)
        settle(storage)
    *stored, (refused, error) = callback.told
    assert isinstance(error, DiskFullError)
    assert [tag for tag, error in stored if error is None] == list(range(refused))
    # Fences, recovery adds and deletes go on, out of the reserve.
    later = Answers()
    storage.put_facts(LedgerFacts(2, fenced=True), later, "fence")
    put(storage, make_run(1, entry, entry, payload=bytes(9000)), later, "recovery", recovery=True)
    put(storage, make_run(3, 0, 0, payload=b"small"), later, "add")
    settle(storage)
    assert later.ok == ["fence", "recovery"]
    assert isinstance(dict(later.told)["add"], DiskFullError)
    assert len(read_all(storage, 1, 0, entry)) == entry + 1
    # A restart on the full disk serves as well, and does not take adds either.
    storage.close(clean=False)
    storage = open_storage(files, clock=clock)
    assert not storage.writable
    assert len(read_all(storage, 1, 0, entry)) == entry + 1
    # Space returns: no restart needed.
    storage.delete(1, 10**15, later, "delete")
    settle(storage)
    assert storage.housekeeping.reclaim() > 0
    settle(storage)
    assert storage.writable
    put(storage, make_run(3, 0, 0), later, "add again")
    settle(storage)
    assert "add again" in later.ok


def test_space_that_others_free_is_noticed_by_looking_now_and_then() -> None:
    files, callback, clock = FaultyFiles(), Answers(), StepClock(1_000_000)
    files.space = 3 * SMALL.segment_bytes
    storage = open_storage(files, clock=clock)
    for number in range(40):
        put(storage, make_run(1, number, number, payload=bytes(9000)), callback, number)
        settle(storage)
    assert not storage.writable
    files.space = 100 * SMALL.segment_bytes
    assert not storage.writable  # it does not look at each question
    clock.ms += SMALL.full_retry_ms
    assert storage.writable


def test_recovery_adds_never_take_the_last_spare() -> None:
    files, callback = FaultyFiles(), Answers()
    files.space = 4 * SMALL.segment_bytes
    storage = open_storage(files)
    for number in range(80):
        put(storage, make_run(1, number, number, payload=bytes(9000)), callback, number, recovery=True)
        settle(storage)
    assert storage.statistics()["spares"] == 1
    assert isinstance(callback.told[-1][1], DiskFullError)
    # Compaction's spare is still there for a start.
    storage.close(clean=False)
    again = open_storage(files)
    assert len(read_all(again, 1, 0, 200)) == len(callback.ok)


def test_a_run_too_large_for_a_segment_is_refused_and_one_that_fits_is_split_nowhere() -> None:
    files, callback = FaultyFiles(), Answers()
    storage = open_storage(files)
    put(storage, make_run(1, 0, 0, payload=bytes(200_000)), callback, "large")
    put(storage, make_run(1, 1, 1, payload=bytes(100_000)), callback, "fits")
    settle(storage)
    assert callback.ok == ["fits"]
    assert "segment_bytes" in str(dict(callback.told)["large"])
    assert storage.failure is None
    assert len(open_storage(files).held(1)) == 1


def test_a_read_says_how_far_it_is_conclusive() -> None:
    files, callback = FaultyFiles(), Answers()
    storage = open_storage(files)
    put(storage, make_run(1, 10, 19), callback)
    put(storage, make_run(1, 30, 39), callback)
    settle(storage)
    held = storage.read(1, 0, 100, 1 << 20)
    assert (held.conclusive_through, held.unknown, len(held.runs)) == (100, [], 2)
    held = storage.read(1, 0, 100, 1)
    (body,) = held.runs
    assert list(RunView.parse(body).ids()) == [10]
    assert held.conclusive_through == 10
    held = storage.read(1, 11, 100, 400)
    (body,) = held.runs
    assert list(RunView.parse(body).ids()) == [11, 12]
    held = storage.read(1, 19, 100, len(body))
    assert held.conclusive_through == 29  # 20..29 are not here; 30 did not fit
    assert storage.read(99, 0, 5, 10).conclusive_through == 5
    assert storage.read(1, 5, 4, 10).runs == []


def test_little_of_a_long_run_is_read_without_reading_it_all() -> None:
    files, callback = FaultyFiles(), Answers()
    storage = open_storage(files, BIG)
    put(storage, make_run(1, 0, 999, payload=b"y" * 200), callback)
    settle(storage)
    reads: list[int] = []
    read_at = storage._files.read_at
    storage._files.read_at = lambda sequence, offset, size: (
        reads.append(size) or read_at(sequence, offset, size)
    )  # type: ignore[method-assign,func-returns-value]
    found = read_all(storage, 1, 500, 501)
    assert found == {500: b"y" * 200 + b"/500", 501: b"y" * 200 + b"/501"}
    assert sum(reads) < 10_000
    # The entry rotted: the digest tells, the run is read and judged, the answer is unknown.
    path = files.segments()[0]
    data = files.nodes[path].data
    data[data.index(b"/500") - 5] ^= 1
    assert read_all(storage, 1, 500, 501) == {500: None, 501: None}


def test_recent_runs_are_bounded_and_never_drop_what_is_not_durable() -> None:
    files, worker, callback = FaultyFiles(), StepWorker(), Answers()
    storage = open_storage(files, replace(ON_WORKER, recent_bytes_max=20_000), worker=worker)
    for number in range(20):
        put(storage, make_run(1, number, number, payload=bytes(5000)), callback)
    assert storage.statistics()["recent_bytes"] > 100_000
    files.bad_reads = ".seg"  # nothing may come from the disk
    assert len(read_all(storage, 1, 0, 50)) == 20
    assert None not in read_all(storage, 1, 0, 50).values()
    storage.flush()
    worker.finish()
    assert storage.statistics()["recent_bytes"] <= 20_000
    assert None not in read_all(storage, 1, 17, 50).values()


def test_a_body_in_a_buffer_that_is_used_again_is_kept_apart() -> None:
    files, callback = FaultyFiles(), Answers()
    storage = open_storage(files, replace(BIG, recent_bytes_max=1 << 20))
    buffer = bytearray(make_run(1, 0, 4).body)
    put(storage, RunView.parse(memoryview(buffer)), callback)
    buffer[:] = bytes(len(buffer))
    assert len(read_all(storage, 1, 0, 4)) == 5
    settle(storage)


def test_settings_that_cannot_work_are_refused_by_name() -> None:
    with pytest.raises(MisuseError, match="segment_bytes"):
        StorageConfig(segment_bytes=1000)
    with pytest.raises(MisuseError, match="multiple"):
        StorageConfig(segment_bytes=(1 << 20) + 1)


# --- the real disk ------------------------------------------------------------------------------------------------


async def test_the_real_disk_with_the_real_thread(tmp_path: Path) -> None:
    async def life(directory: Path, expected: int) -> None:
        identity = open_identity(directory, "b1", "cluster-1")
        worker = ThreadWorker()
        storage = LedgerStorage.open(
            directory, SMALL, identity, files=RealFiles(), worker=worker, clock=RealClock()
        )
        assert len(read_all(storage, 1, 0, 10_000)) == expected
        assert storage.damages.kept == []
        callback = Answers()
        for first in range(expected, expected + 400, 10):
            put(storage, make_run(1, first, first + 9, payload=b"p" * 900), callback, first)
            if first % 50 == 0:
                storage.flush()
        await storage.drain()
        assert callback.ok == list(range(expected, expected + 400, 10))
        assert None not in read_all(storage, 1, 0, 10_000).values()
        storage.close(clean=expected % 800 == 0)
        worker.close()
        identity.release()

    for life_number in range(4):
        await life(tmp_path / "bookie", 400 * life_number)


@pytest.mark.skipif(
    subprocess.run(["id", "-u"], capture_output=True, text=True, check=True).stdout != "0\n", reason="mounts"
)
def test_a_small_file_system_that_is_really_full(tmp_path: Path) -> None:
    tmp_path.joinpath("disk").mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(tmp_path / "disk")]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("this machine does not let us mount")
    try:
        identity = open_identity(tmp_path / "disk", "b1", "cluster-1")
        worker, clock, callback = ThreadWorker(), StepClock(1_000_000), Answers()
        config = StorageConfig(segment_bytes=256 * 1024)
        storage = LedgerStorage.open(
            tmp_path / "disk", config, identity, files=RealFiles(), worker=worker, clock=clock
        )
        assert storage.report.write_path == "buffered, fdatasync on tmpfs"
        entry = -1
        while storage.writable:
            entry += 1
            put(storage, make_run(1, entry, entry, payload=bytes(9000)), callback, entry)
            settle(storage)
        assert isinstance(callback.told[-1][1], DiskFullError)
        storage.put_facts(LedgerFacts(2, fenced=True), callback, "fence")
        settle(storage)
        assert callback.ok[-1] == "fence"
        storage.delete(1, 10**15, callback, "delete")
        settle(storage)
        storage.housekeeping.reclaim()
        settle(storage)
        clock.ms += config.full_retry_ms
        assert storage.writable
        storage.close()
        worker.close()
        identity.release()
    finally:
        subprocess.run(["umount", str(tmp_path / "disk")], check=True)

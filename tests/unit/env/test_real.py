"""The real files, lock and thread."""

from __future__ import annotations

import asyncio
import errno
import mmap
import os
import threading
from pathlib import Path

import pytest

from quire.env.real import RealClock, RealFiles, ThreadWorker


@pytest.mark.parametrize("direct", [False, True])
def test_files_keep_what_is_written(tmp_path: Path, direct: bool) -> None:
    files = RealFiles()
    possible, kind = files.writes_direct(tmp_path)
    if direct and not possible:
        pytest.skip(f"{kind} has no direct writes")
    path = tmp_path / "file"
    files.allocate(path, 65536)
    with pytest.raises(FileExistsError):
        files.allocate(path, 65536)
    file = files.open_to_write(path, direct=direct)
    with mmap.mmap(-1, 8192) as block:
        block[:5] = b"hello"
        block[-5:] = b"world"
        file.write_at(block, 4096)
    file.sync()
    assert file.size() == 65536
    file.close()
    file.close()
    reader = files.open_to_read(path, random=True)
    assert reader.read_at(4096, 5) == b"hello"
    assert reader.read_at(65530, 100) == bytes(6)
    assert reader.read_at(70000, 10) == b""
    reader.expect(0, 8192)
    assert reader.next_data(4100) <= 4100
    assert reader.next_data(0) <= 4096
    assert 12288 <= reader.next_data(12288) <= 65536
    reader.close()
    assert files.read_uncached(path, 12283, 10) == b"world" + bytes(5)
    assert files.read_uncached(path, 65530, 100) == bytes(6)
    files.forget_cached(path)
    files.rename(path, tmp_path / "other")
    files.sync_directory(tmp_path)
    assert files.names(tmp_path) == ["other"]
    files.remove(tmp_path / "other")
    assert files.names(tmp_path / "nowhere") == []


def test_space_that_is_not_there_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r".") as raised:
        RealFiles().allocate(tmp_path / "file", 1 << 60)
    assert raised.value.errno in {errno.ENOSPC, errno.EFBIG}
    assert not (tmp_path / "file").exists()


def test_a_file_is_cut_off_and_never_made_longer(tmp_path: Path) -> None:
    files, path = RealFiles(), tmp_path / "file"
    path.write_bytes(b"0123456789")
    files.shrink(path, 4)
    assert path.read_bytes() == b"0123"
    files.shrink(path, 9)
    assert path.read_bytes() == b"0123"


def test_small_files_are_replaced_whole(tmp_path: Path) -> None:
    files = RealFiles()
    files.make_directory(tmp_path / "a" / "b")
    path = tmp_path / "a" / "b" / "VERSION"
    for text in (b"one", b"two"):
        files.write_whole(path, text)
        assert files.read_whole(path) == text
    assert files.names(path.parent) == ["VERSION"]
    assert files.exists(path)


def test_a_lock_is_held_once(tmp_path: Path) -> None:
    files = RealFiles()
    lock = files.lock(tmp_path)
    assert files.names(tmp_path) == [], "a lock in a file can be removed without its directory"
    with pytest.raises(BlockingIOError):
        files.lock(tmp_path)
    lock.release()
    lock.release()
    files.lock(tmp_path).release()
    with pytest.raises(FileNotFoundError):
        files.lock(tmp_path / "missing")


def test_a_lock_stays_with_who_took_it_and_with_its_directory(tmp_path: Path) -> None:
    files, path = RealFiles(), tmp_path / "locked"
    path.mkdir()
    lock = files.lock(path)
    child = os.fork()
    if not child:
        lock.release()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    with pytest.raises(BlockingIOError):
        files.lock(path)
    assert lock.stands()
    path.rename(tmp_path / "moved")
    assert not lock.stands()
    path.mkdir()
    assert not lock.stands()
    lock.release()


async def test_the_worker_runs_jobs_in_order_and_answers_on_the_loop() -> None:
    worker = ThreadWorker()
    got: list[object] = []
    finished = asyncio.Event()

    def done(result: object) -> None:
        assert threading.current_thread() is threading.main_thread()
        got.append(result)
        if len(got) == 3:
            finished.set()

    def fails() -> None:
        raise OSError(errno.EIO, "no")

    worker.submit(lambda: 1, done)
    worker.submit(fails, done)
    worker.submit(lambda: threading.current_thread().name, done)
    await finished.wait()
    assert got[0] == 1
    assert isinstance(got[1], OSError)
    assert got[2] == "quire disk"
    worker.close()
    worker.close()


def test_the_worker_can_be_waited_for_without_a_loop() -> None:
    worker = ThreadWorker()
    got: list[int] = []
    for number in range(100):
        worker.submit(lambda number=number: number, got.append)
    worker.finish()
    assert got == list(range(100))
    worker.close()


def test_a_worker_whose_thread_could_not_be_started_can_be_closed_and_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_more(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    worker = ThreadWorker()
    done: list[int] = []
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", no_more)
        with pytest.raises(RuntimeError, match="new thread"):
            worker.submit(lambda: 1, done.append)
        worker.close()
    worker.submit(lambda: 2, done.append)
    worker.finish()
    assert done == [2]
    worker.close()


def test_clocks_run() -> None:
    clock = RealClock()
    assert clock.now_ms() <= clock.now_ns() // 1_000_000
    assert clock.wall_ms() > 1_700_000_000_000

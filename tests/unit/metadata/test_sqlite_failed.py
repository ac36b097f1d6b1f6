"""A store whose metadata file failed: its thread waits for callers, and each gets the failure."""

import pytest

from quire.core.errors import StorageError
from quire.metadata.sqlite.store import SqliteStore
from support.sqlite_inside import thread_of
from support.waiting import until_async


async def test_a_failed_store_does_nothing_between_its_callers(tmp_path, monkeypatch):
    """What follows the last commit was due for ever, and the thread looked for work without a pause."""
    store = await SqliteStore.open(tmp_path / "metadata.db", create=True)
    await store.create("k", b"")
    thread, looks = thread_of(store), []
    due_ms, next_jobs = thread.settling.due_ms, thread._next_jobs
    assert due_ms is not None
    monkeypatch.setattr(thread.file, "get", lambda key: 1 / 0)
    with pytest.raises(StorageError, match="ZeroDivisionError"):
        await store.get("k")
    monkeypatch.setattr(thread, "_next_jobs", lambda: looks.append(1) or next_jobs())
    await until_async(lambda: thread._options.now_ms() > due_ms + 100)
    with pytest.raises(StorageError):
        await store.get("k")
    assert len(looks) <= 2
    await store.close()

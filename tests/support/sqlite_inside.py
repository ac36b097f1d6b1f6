"""The inside of an SQLite store: what only tests of its files and its thread look at."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from quire.metadata.sqlite.store import SqliteStore
from quire.metadata.sqlite.thread import StoreThread

T = TypeVar("T")


def thread_of(store: SqliteStore) -> StoreThread:
    """Its thread, which has the file and the registrations."""
    return store._thread


def file_of(store: SqliteStore) -> Any:
    """The file that it has open."""
    return store._thread.file


async def on_its_thread(store: SqliteStore, job: Callable[[], T], **how: Any) -> T:
    """Run something on its thread, between two of its own jobs."""
    return await store._ask(job, **how)

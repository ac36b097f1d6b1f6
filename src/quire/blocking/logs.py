"""Logs without `await`."""

from __future__ import annotations

import concurrent.futures

from quire.blocking.handles import (
    Appending,
    BlockingHandle,
    appended,
    asked,
    awaited,
    handed_out,
    iterated,
    shown,
)
from quire.log.batching import BytesLike, HeadersLike, own_record
from quire.log.log import Log as AsyncLog
from quire.log.writer import LogWriter as AsyncLogWriter


class BlockingLogWriter(Appending[AsyncLogWriter]):
    """The leader of a log; leaving its `with` block confirms everything and gives the lead back."""

    append = appended(AsyncLogWriter.append)
    append_many = appended(AsyncLogWriter.append_many)
    roll = appended(AsyncLogWriter.roll)
    epoch = shown(AsyncLogWriter.epoch)
    end_offset = shown(AsyncLogWriter.end_offset)
    ledger_id = shown(AsyncLogWriter.ledger_id)
    waits_for = asked(AsyncLogWriter.waits_for)

    def append_nowait(
        self,
        value: BytesLike | None,
        key: BytesLike | None = None,
        headers: HeadersLike | None = None,
        timestamp_ms: int | None = None,
    ) -> concurrent.futures.Future[int]:
        """Append one record without waiting for it; the future gives its offset.

        Waits only while the window is full. Futures complete in the order of the calls.
        """
        own = own_record(value, key, headers)  # the loop takes it later
        size = len(own[0] or b"") + len(own[1] or b"")
        return self._submissions.submit(size, (*own, timestamp_ms), {})

    @property
    def name(self) -> str:
        """The log's name."""
        return self._inner.name


class BlockingLog(BlockingHandle[AsyncLog]):
    """A log of one cluster. Nothing is asked of the cluster before a method is called."""

    create = awaited(AsyncLog.create)
    exists = awaited(AsyncLog.exists)
    delete = awaited(AsyncLog.delete)
    open_writer = handed_out(AsyncLog.open_writer, BlockingLogWriter)
    read = iterated(AsyncLog.read)
    tail = iterated(AsyncLog.tail)
    read_entries = iterated(AsyncLog.read_entries)
    describe = awaited(AsyncLog.describe)
    plan = awaited(AsyncLog.plan)
    truncate = awaited(AsyncLog.truncate)
    cursors = awaited(AsyncLog.cursors)
    remove_cursor = awaited(AsyncLog.remove_cursor)
    complete_items = awaited(AsyncLog.complete_items)
    place = awaited(AsyncLog.place)

    @property
    def name(self) -> str:
        """The log's name."""
        return self._inner.name

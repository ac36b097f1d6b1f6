"""Reads a log: finds the ledger and the entry of an offset, goes on through ledgers, follows what is appended.

A reader changes nothing, no fence and no metadata, unless it is asked to recover what is open. Of an open ledger it
reads up to the last add confirmed; the next ledger begins only when this one is closed, so what a reader sees is a
prefix of the log.

Source: docs/protocol/log.md; docs/decisions/021-batch-header.md; docs/decisions/022-truncation-intent.md.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from itertools import repeat

from quire.client.reading.reader import LedgerReader
from quire.core.errors import (
    CorruptMetadataError,
    MisuseError,
    NoSuchEntryError,
    NoSuchLedgerError,
    NoSuchLogError,
    PastEndError,
    TrimmedError,
)
from quire.core.ids import LedgerId
from quire.core.log.list import ItemFlags, ItemLocation, LogHead, LogItem
from quire.log.heads import LogHeads, lost_page
from quire.log.ledgers import LogLedgers, entry_holding, summary, views_of
from quire.log.records import BatchAt, Record

_DELETED = (NoSuchLedgerError, NoSuchEntryError)
"""What a truncation leaves behind for a reader that is still below it."""


class LogReader:
    """One pass over a log.

    Args:
        name: the log's name.
        log_id: its id.
        heads: the metadata.
        ledgers: its ledgers.
        start: the first offset wanted; None is the log's start.
        end: the offset after the last one wanted; None is the log's end when the pass begins, or none with `follow`.
        follow: go on with what is appended later.
        recover: close ledgers that are open before they are read.
    """

    def __init__(
        self,
        name: str,
        log_id: bytes,
        heads: LogHeads,
        ledgers: LogLedgers,
        *,
        start: int | None,
        end: int | None,
        follow: bool,
        recover: bool = False,
    ) -> None:
        for what, offset in (("start", start), ("end", end)):
            if offset is not None and offset < 0:
                msg = f"log {name!r}: offsets start at 0, got {what}={offset}"
                raise MisuseError(msg, log=name)
        self._name, self._log_id, self._heads, self._ledgers = name, log_id, heads, ledgers
        self._start, self._end, self._follow, self._recover = start, end, follow, recover
        self._offset = -1
        self._ledger_id: LedgerId | None = None
        self._next_entry = 0
        self._finished = False
        self._last_ledger: LedgerId | None = None
        self._next_first = -1

    async def records(self) -> AsyncGenerator[Record, None]:
        """Every record from `start` to `end`, in order.

        Raises:
            TrimmedError: the start, or where the pass has come to, was truncated.
        """
        async with contextlib.aclosing(self.batches()) as batches:
            async for batch in batches:
                for record in self.clip(batch):
                    yield record

    def clip(self, batch: BatchAt) -> list[Record]:
        """The records of a batch that lie between `start` and `end`."""
        first, view, ledger_id, entry_id = batch
        low, high = view.between((self._start or 0) - first, None if self._end is None else self._end - first)
        return list(
            map(
                Record._make,
                zip(
                    map(first.__add__, view.positions(low, high)),
                    view.times_ms(low, high),
                    view.keys(low, high),
                    view.values(low, high),
                    view.headers(low, high),
                    repeat(ledger_id),
                    repeat(entry_id),
                    range(low, high),
                    strict=False,
                ),
            )
        )

    async def batches(self) -> AsyncGenerator[BatchAt, None]:
        """Every batch that holds a record from `start` to `end`, whole, in order.

        Raises:
            TrimmedError: as `records`.
            PastEndError: nothing was read, because the log ends before `start`.
        """
        found = False
        async with contextlib.aclosing(self._batches()) as batches:
            async for batch in batches:
                found = True
                yield batch
        if not found and self._start:
            await self._check_start(self._start)

    async def _check_start(self, start: int) -> None:
        """An empty pass: was there nothing new, or was the start beyond the end?"""
        end = await confirmed_end(await self._head(), self._ledgers)
        if start > end:
            msg = f"log {self._name!r}: requested offset {start}, the log ends at {end}"
            raise PastEndError(msg, log=self._name, offset=start, end=end)

    async def _batches(self) -> AsyncGenerator[BatchAt, None]:
        missing: Exception | None = None
        lost = -1
        while True:
            head = await self._head()
            items = await self._items(head)
            if missing is not None and lost in {
                item.ledger_id for item in items if item.location is not ItemLocation.ARCHIVE
            }:
                raise missing
            missing = None
            for item in items:
                try:
                    async with contextlib.aclosing(self._through(item)) as batches:
                        async for batch in batches:
                            yield batch
                except _DELETED as error:
                    # A truncation may have come between, or another ledger holds the records now; the head knows. If
                    # the list names this ledger still, it is a loss.
                    missing, lost = error, item.ledger_id
                    break
                if self._done():
                    return
            if missing is None and not items:
                if not self._follow:
                    return
                await self._more(head)

    def _done(self) -> bool:
        """After an item: whether the pass is over."""
        if self._end is not None and self._offset >= self._end:
            return True
        return not self._follow and (not self._finished or self._ledger_id == self._last_ledger)

    async def _head(self) -> LogHead:
        found = await self._heads.read(self._log_id)
        if found is None or found[0].is_being_deleted:
            msg = f"log {self._name!r} was deleted"
            raise NoSuchLogError(msg, log=self._name)
        head = found[0]
        if self._offset < 0:
            self._start = head.start_offset if self._start is None else self._start
            self._offset = self._start
            if head.items:
                self._last_ledger = head.items[-1].ledger_id
        if self._offset < head.start_offset:
            msg = f"log {self._name!r}: requested offset {self._offset}, the earliest is {head.start_offset}"
            raise TrimmedError(msg, log=self._name, offset=self._offset, earliest=head.start_offset)
        return head

    async def _items(self, head: LogHead) -> list[LogItem]:
        """What comes next, without what this pass has finished while the list still calls it open."""
        if self._end is not None and self._offset >= self._end:
            return []
        try:
            items = await self._heads.item_holding(head, self._offset)
        except NoSuchLogError as error:
            newer = await self._head()  # truncated meanwhile: says so, or shows the newer pages
            if newer.generation == head.generation:
                raise lost_page(head, error) from error
            items = await self._heads.item_holding(newer, self._offset)
        if self._finished:
            for index, item in enumerate(items):
                if item.ledger_id == self._ledger_id:
                    return items[index + 1 :]
        return items

    async def _more(self, head: LogHead) -> None:
        """Wait until the head is another one."""
        async with self._heads.watch(self._log_id) as changes:
            async for _ in changes:
                found = await self._heads.read(self._log_id)
                if found is None or found[0].generation != head.generation:
                    return

    async def _through(self, item: LogItem) -> AsyncGenerator[BatchAt, None]:
        """The wanted batches of one ledger; notes where the pass has come to."""
        first = self._next_first if item.first_offset is None else item.first_offset
        if self._end is not None and first >= self._end:
            self._offset = max(self._offset, self._end)
            return
        reader = await self._ledgers.open(item, recover=self._recover and item.is_open)
        if self._ledger_id != item.ledger_id:
            self._ledger_id, self._finished = item.ledger_id, False
            self._next_entry = await entry_holding(reader, self._offset - first)
        end = -1
        async with contextlib.aclosing(self._runs(item, reader)) as runs:
            async for batch in runs:
                at = first + batch.view.header.records_before
                if not item.flags & ItemFlags.COMPACTED:
                    self._check_follows(reader, batch, at)
                elif self._end is not None and at >= self._end:
                    break
                end = first + batch.view.header.records_through
                self._offset = max(self._offset, end)
                self._next_entry = batch.entry_id + 1
                yield batch._replace(first_offset=at)
                if self._end is not None and self._offset >= self._end:
                    return
        self._finished = reader.closed and self._next_entry > reader.last_add_confirmed
        if self._finished and item.is_open:
            # The list does not say yet where the ledger after this one begins; this pass may begin after that.
            self._next_first = end if end >= 0 else first + (await summary(reader)).records
        if item.flags & ItemFlags.COMPACTED and item.next_offset is not None:
            # Its last records may be removed; what follows them is in another ledger.
            self._offset = max(self._offset, item.next_offset)

    async def _runs(self, item: LogItem, reader: LedgerReader) -> AsyncGenerator[BatchAt, None]:
        if self._follow and item.is_open:
            runs = reader.tail_runs(self._next_entry)
        elif self._next_entry > reader.last_add_confirmed:
            return
        else:
            runs = reader.read_runs(self._next_entry, int(reader.last_add_confirmed))
        async with contextlib.aclosing(runs) as entries:
            async for run in entries:
                for entry_id, view in views_of(reader.metadata, run):
                    yield BatchAt(0, view, item.ledger_id, entry_id)

    def _check_follows(self, reader: LedgerReader, batch: BatchAt, at: int) -> None:
        if at > self._offset:
            msg = (
                f"log {self._name!r}: ledger {reader.ledger_id} entry {batch.entry_id} begins at "
                f"offset {at}, and offset {self._offset} was expected: its batch headers contradict "
                "the list"
            )
            raise CorruptMetadataError(msg, log=self._name, ledger_id=reader.ledger_id)


async def confirmed_end(head: LogHead, ledgers: LogLedgers) -> int:
    """The offset after the last record that is confirmed now: of an open ledger the last batch's header has it."""
    end = head.closed_end
    for item in head.open_items:
        reader = await ledgers.open(item)
        first = end if item.first_offset is None else item.first_offset
        ended = reader.closed
        end = first + (await summary(reader)).records
        if not ended:
            break
    return end

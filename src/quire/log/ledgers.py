"""The ledgers of a log, as its drivers want them: made with its custom metadata, recovered with what they hold, read by entry.

The only place of the log that calls the client. A batch ledger says so in its custom metadata, with the log's id, so
that one that no list holds can be found and collected.

Source: docs/decisions/021-batch-header.md; docs/protocol/log.md.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Iterator
from typing import Final

from quire.client.client import Client
from quire.client.reading.reader import LedgerReader
from quire.client.repairing.copy_rate import CopyRate
from quire.client.repairing.ledger_repair import LedgerRepair
from quire.client.writing.writer import LedgerWriter
from quire.core.errors import ArchivedError, CorruptMetadataError, NoSuchLedgerError, QuireError
from quire.core.ids import BookieId
from quire.core.ledger.guarantee import WRITE_QUORUM
from quire.core.ledger.metadata import FORMAT_KEY, DigestType, LedgerMetadata
from quire.core.log.list import ItemLocation, LedgerSummary, LogHead, LogItem
from quire.core.repair.effects import RepairOutcome
from quire.log.config import LogGuarantee
from quire.log.guaranteeing import GuaranteeWait
from quire.wire.batch import BatchHeader, BatchView
from quire.wire.batch_format import FORMAT_BATCH1, BatchFlags, Codec, MalformedBatchError
from quire.wire.entries import Entries
from quire.wire.entry import Buffer

LOG_KEY: Final = "quire.log"
"""Custom metadata: the id of the log that the ledger was made for, in hex."""
OWNER_KEY: Final = "quire.owner"
"""Custom metadata: who made it."""
_INTERPOLATIONS: Final = 3
"""How many steps of a search for an offset interpolate, as if all entries held equally many records."""


class LogLedgers:
    """Ledgers of logs with one password.

    Args:
        client: the cluster.
        password: of all ledgers of the log.
        guarantee: of new ones; None: they have none.
    """

    def __init__(self, client: Client, password: bytes = b"", guarantee: LogGuarantee | None = None) -> None:
        self._client = client
        self._guarantee = guarantee
        self.password = password

    def guarantee_wait(self) -> GuaranteeWait | None:
        """How long an opening waits for bookies that the guarantee needs; None: the guarantee is kept."""
        wait_ms = self._guarantee.wait_ms if self._guarantee else None
        return None if wait_ms is None else GuaranteeWait(self._client.clock, wait_ms)

    async def create(self, head: LogHead, owner: str, *, guaranteed: bool = True) -> LedgerWriter:
        """A new ledger for a log, in no log's list yet; `guaranteed`: with the guarantee of the log's ledgers, if any."""
        settings = head.settings
        guarantee = WRITE_QUORUM if self._guarantee and guaranteed else None
        return await self._client.create_ledger(
            ensemble_size=settings.ensemble_size,
            write_quorum=settings.write_quorum,
            ack_quorum=settings.ack_quorum,
            min_present=None if guarantee else settings.min_present or None,
            guarantee=guarantee,
            password=self.password,
            digest=DigestType(settings.digest),
            custom={
                FORMAT_KEY: FORMAT_BATCH1,
                LOG_KEY: head.log_id.hex().encode(),
                OWNER_KEY: owner.encode(),
            },
        )

    async def open(self, item: LogItem, *, recover: bool = False) -> LedgerReader:
        """Open an item's ledger; with `recover` fence and close it.

        Raises:
            NoSuchLedgerError: it is gone.
            CorruptMetadataError: its id belongs to another ledger now.
            ArchivedError: its records are only in the archive.
        """
        if item.location is ItemLocation.ARCHIVE:
            msg = (
                f"offsets {item.first_offset} to {item.next_offset} are in the archive, no longer in ledger "
                f'{item.ledger_id}: read them with Spark, spark.read.format("quire")'
            )
            raise ArchivedError(msg, ledger_id=item.ledger_id)
        if recover:
            _check_token(item, await self._client.ledger_metadata(item.ledger_id))
        reader = await self._client.open_ledger(item.ledger_id, self.password, recover=recover)
        _check_token(item, reader.metadata)
        return reader

    async def recover(self, item: LogItem, *, at: str = WRITE_QUORUM) -> LedgerSummary:
        """Close an item's ledger and say what it holds: one read of its last entry.

        Args:
            item: the ledger.
            at: "ack_quorum" gives its guaranteed write quorum up, as `Client.recover_ledger` does.
        """
        if at != WRITE_QUORUM:
            await self.open(item)  # it is the one that is meant
            await self._client.recover_ledger(item.ledger_id, self.password, at=at)
        return await summary(await self.open(item, recover=True))

    async def delete(self, ledger_id: int) -> None:
        """Delete a ledger without a writer. A missing one counts as deleted."""
        with contextlib.suppress(NoSuchLedgerError):
            await self._client.delete_ledger(ledger_id, fence=False)

    def is_registered(self, bookie: BookieId) -> bool:
        """Whether a bookie is there."""
        return self._client.bookies.is_registered(bookie)

    async def repair(self, ledger_id: int, bytes_per_s: int) -> RepairOutcome:
        """Copy what bookies lack of a closed ledger, at a rate in bytes a second; whole, its marks end."""
        rate = CopyRate(self._client.clock, bytes_per_s)

        async def may_send(_bookie: BookieId, size: int) -> bool:
            await rate.wait(size)
            return True

        repair = LedgerRepair(ledger_id, self._client.context, password=self.password, may_send=may_send)
        marks, before = self._client.records.repairs(""), None
        with contextlib.suppress(QuireError):  # marks that stay cost a look of a worker
            before = await marks.marks_of(ledger_id)
        outcome = (await repair.run()).outcome
        if outcome is RepairOutcome.WHOLE and before is not None and not before.lost:
            with contextlib.suppress(QuireError):
                await marks.end_marks(ledger_id, before)
        return outcome

    async def delete_item(self, item: LogItem) -> None:
        """Delete an item's ledger, and stop its writer first if it may have one. An id used again is left alone."""
        try:
            record = await self._client.ledger_metadata(item.ledger_id)
        except NoSuchLedgerError:
            return
        if item.token and record.token != item.token:
            return
        if item.is_open:
            # A writer that is not fenced would go on being acknowledged until the bookies notice.
            with contextlib.suppress(QuireError):
                await self._client.open_ledger(item.ledger_id, self.password)
        await self.delete(item.ledger_id)


def _check_token(item: LogItem, record: LedgerMetadata) -> None:
    """Refuse a ledger that has the id of an item's, and is another one."""
    if item.token and record.token != item.token:
        msg = (
            f"ledger {item.ledger_id} is not the ledger in the log's list: its token is "
            f"{record.token:#x}, not {item.token:#x}; was the metadata store restored from a backup?"
        )
        raise CorruptMetadataError(msg, ledger_id=item.ledger_id)


def is_batched(record: LedgerMetadata) -> bool:
    """Whether a ledger's entries are batches; its metadata says so, never its bytes."""
    return record.custom_value(FORMAT_KEY) == FORMAT_BATCH1


def view_of(record: LedgerMetadata, entry_id: int, payload: Buffer) -> BatchView:
    """An entry as a batch; an entry of a ledger without batches is one record without key and time.

    Raises:
        MalformedBatchError: naming ledger and entry.
    """
    if not is_batched(record):
        body = memoryview(payload)
        flags = BatchFlags.NONE
        header = BatchHeader(Codec.RAW, flags, 1, len(body), entry_id, 0, 0, 0, 0, 0, 0)
        return BatchView(header, body)
    try:
        return BatchView.parse(payload)
    except MalformedBatchError as error:
        msg = f"ledger {record.ledger_id} entry {entry_id}: {error.message}"
        raise MalformedBatchError(msg, ledger_id=record.ledger_id, entry_id=entry_id) from error


def views_of(record: LedgerMetadata, entries: Entries) -> Iterator[tuple[int, BatchView]]:
    """Each entry of a run, with its id, as a batch; long ones are not copied. Raises as `view_of`."""
    for entry_id, payload in zip(entries.entry_ids, entries.payloads, strict=True):
        yield entry_id, view_of(record, entry_id, payload)


async def read_views(reader: LedgerReader, last: int) -> AsyncGenerator[tuple[int, BatchView], None]:
    """Every entry of a ledger up to one, with its id, as a batch."""
    async with contextlib.aclosing(reader.read_runs(0, last)) as runs:
        async for entries in runs:
            for each in views_of(reader.metadata, entries):
                yield each


async def read_one(reader: LedgerReader, entry_id: int) -> BatchView:
    """One entry of a ledger as a batch."""
    async with contextlib.aclosing(reader.read(entry_id, entry_id)) as entries:
        async for entry in entries:
            return view_of(reader.metadata, entry.entry_id, entry.payload)
    raise AssertionError  # a read yields what it was asked for, or raises


async def summary(reader: LedgerReader) -> LedgerSummary:
    """What a ledger holds up to the entry that is its last confirmed one now; that entry alone is read.

    While it is read the reader may learn that the ledger is closed, and that there is more of it.
    """
    last = reader.last_add_confirmed
    if last < 0:
        return LedgerSummary(0)
    if not is_batched(reader.metadata):
        return LedgerSummary(last + 1, reader.length)
    header = (await read_one(reader, last)).header
    return LedgerSummary(header.records_through, reader.length, header.ledger_min_ms, header.ledger_max_ms)


async def entry_holding(reader: LedgerReader, record: int, records: int = 0) -> int:
    """The entry that holds a ledger's n-th offset: a search over headers; after the last: the next entry's id.

    For an offset without a record it is the entry with the next one.

    Args:
        reader: the ledger.
        record: n.
        records: how many offsets the ledger has, if that is known. Entries are much alike, so the first steps
            interpolate, as if all were; should they not be, the rest is bisection.

    Source: docs/decisions/021-batch-header.md: a record is found by bisection over headers.
    """
    if record <= 0 or not is_batched(reader.metadata):
        return min(max(record, 0), reader.last_add_confirmed + 1)
    low, high = 0, int(reader.last_add_confirmed)
    before, through = 0, records
    steps = 0
    while low <= high:
        middle = (low + high) // 2
        if steps < _INTERPOLATIONS and before <= record < through:
            middle = low + (record - before) * (high - low + 1) // (through - before)
        steps += 1
        header = (await read_one(reader, middle)).header
        if record < header.records_before:
            high, through = middle - 1, header.records_before
        elif record >= header.records_through:
            low, before = middle + 1, header.records_through
        else:
            return middle
    return low


async def entries_between(
    reader: LedgerReader, start: int, end: int, records: int, last_entry: int
) -> tuple[int, int]:
    """The first and the last entry with offsets of a ledger; the last lies below the first where none is left.

    Args:
        reader: the ledger.
        start: its first offset wanted, counted from its own first one; up to 0 or below it is the whole beginning.
        end: after the last one wanted.
        records: how many offsets it has; an `end` from there on is the whole rest.
        last_entry: its last entry.
    """
    first = await entry_holding(reader, start, records)
    if end < records:
        last_entry = min(last_entry, await entry_holding(reader, end - 1, records))
    return first, last_entry

"""What to read and in which tasks, decided once a plan from the logs' lists.

Only the list and the records of the ledgers in question are read, not the ledgers: which entry holds an offset is
asked of a ledger only where a wanted span begins or ends inside it. The end is fixed here, at what was confirmed, so
one read is a consistent prefix of each log however long its tasks take.

Source: docs/spark.md, "A part of a log"; docs/decisions/019-paged-list.md; docs/decisions/021-batch-header.md;
docs/decisions/022-truncation-intent.md.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from quire.core.errors import CorruptMetadataError, NoSuchLedgerError, TrimmedError, WrongPasswordError
from quire.core.ledger.metadata import LedgerMetadata
from quire.core.log.list import ItemFlags, ItemLocation
from quire.log.ledgers import read_one
from quire.spark import archived, cluster, losses, seeking
from quire.spark.as_of import extents
from quire.spark.decode import SourceLedger
from quire.spark.extents import (
    Extent,
    begin_at,
    check_digest,
    check_end,
    check_end_is_known,
)
from quire.spark.options import SparkUseError
from quire.spark.packing import EntrySpan, Task, pack, usual_split
from quire.spark.pushdown import Spans, Wanted, between, intersect
from quire.spark.read_options import LATEST, ReadOptions

if TYPE_CHECKING:
    from quire.log.client import QuireClient
    from quire.log.records import ItemDescription, LogDescription

_SPANS_MAX = 16
"""More wanted spans than this inside one ledger are read as one stretch: each would cost two searches."""


def plan(options: ReadOptions, wanted: Wanted) -> list[Task]:
    """The tasks of a read.

    Args:
        options: what the user asked for.
        wanted: what the query's filters leave of it.

    Raises:
        SparkUseError: a log that is not there, or offsets that it does not have.
    """
    pieces, identities = cluster.call(options.cluster, _pieces, options, wanted)
    return [
        replace(task, logs=tuple((log, identities[log]) for log in task.names() if log in identities))
        for task in tasks_of(options, wanted, pieces)
    ]


def tasks_of(options: ReadOptions, wanted: Wanted, pieces: Sequence[EntrySpan]) -> list[Task]:
    """Pieces shared out over tasks."""
    split_bytes = options.split_bytes or usual_split(sum(piece.size for piece in pieces), os.cpu_count() or 1)
    packed = pack(
        pieces,
        split_bytes,
        min_partitions=options.min_partitions,
        max_partitions=options.max_partitions,
    )
    return [Task(number, parts, wanted.from_ms, wanted.to_ms) for number, parts in enumerate(packed)]


async def _pieces(
    client: QuireClient, options: ReadOptions, wanted: Wanted
) -> tuple[list[EntrySpan], dict[str, str]]:
    """What to read, and the id of each log that it is of."""
    pieces: list[EntrySpan] = []
    identities: dict[str, str] = {}
    for extent in await extents(client, options):
        start, end = asked_of(options, extent)
        pieces += await pieces_between(client, options, wanted, extent, start, end)
        if extent.log is not None:
            identities[extent.name] = extent.identity
    return pieces, identities


def asked_of(options: ReadOptions, extent: Extent) -> tuple[int, int]:
    """From where to where a batch reads one log.

    Returns:
        First offset and the one to stop before.

    Raises:
        TrimmedError: the start was asked for by number and is not there any more.
        ReadUnavailableError: too few bookies respond to determine where the log ends.
        SparkUseError: an offset lies beyond the log's end.
    """
    if LATEST in (options.starting.of(extent.name), options.ending.of(extent.name)):
        check_end_is_known(extent)
    start = begin_at(options, extent, extent.offset(options.starting.of(extent.name)))
    end = extent.offset(options.ending.of(extent.name))
    check_end(extent, "startingOffsets", start)
    check_end(extent, "endingOffsets", end)
    if start > end:
        raise SparkUseError(
            f"quire: log '{extent.name}': startingOffsets {start} is after endingOffsets {end}.",
            log=extent.name,
        )
    return start, end


async def pieces_between(
    client: QuireClient, options: ReadOptions, wanted: Wanted, extent: Extent, start: int, end: int
) -> list[EntrySpan]:
    """The stretches of entries that hold the wanted records from `start` up to, not including, `end`.

    Raises:
        TrimmedError: a ledger that the list names is deleted.
        WrongPasswordError: the password is not the one of its ledgers.
    """
    spans = intersect(wanted.offsets, between(start, end))
    if extent.log is None:
        return _pieces_of_ledger(extent, spans)
    pieces: list[EntrySpan] = []
    for item in extent.log.items:
        inside = intersect(spans, between(item.first_offset, item.next_offset))
        if not inside or not item.count or not _touches(wanted, item):
            continue
        if not await has_ledger(client, item):
            pieces += archived.pieces(options, wanted, extent.log, item, inside)
            continue
        record = await record_of(client, options, extent.log, item)
        if record is None:
            continue
        last_entry = item.last_entry if item.last_entry is not None else record.last_entry
        copy = archived.location_of(extent.log, item) if item.location is ItemLocation.BOTH else None
        gaps = bool(item.flags & ItemFlags.COMPACTED)
        first, end, log_id = item.first_offset, item.next_offset, extent.identity
        origin = SourceLedger(extent.name, item.ledger_id, first, gaps, log_id, end, last_entry)
        whole = EntrySpan(origin, record, 0, last_entry, item.bytes, batches=True, copy=copy)
        stretches = [inside] if len(inside) > _SPANS_MAX else [(span,) for span in inside]
        for stretch in stretches:
            piece = await _stretch(client, whole, item, stretch, wanted.from_ms)
            if piece.first_entry <= piece.last_entry:  # else what was wanted is compacted away
                pieces.append(piece)
    return pieces


async def _stretch(
    client: QuireClient, whole: EntrySpan, item: ItemDescription, spans: Spans, from_ms: int | None
) -> EntrySpan:
    """The entries of a ledger from the first to the last of some spans.

    Where that is not the whole ledger, entries are looked up: by offset, and by time from where a record can be as
    late as `from_ms`.
    """
    assert whole.record is not None
    reader = cluster.reader_of(client, whole.record, whole.last_entry)
    zero, records = item.first_offset, item.next_offset - item.first_offset
    first, last = await seeking.entries_between(
        client, reader, spans[0][0] - zero, spans[-1][1] - zero, records, whole.last_entry
    )
    if from_ms is not None and item.min_time_ms is not None and item.min_time_ms < from_ms:
        first = await seeking.first_since(client, reader, first, last, from_ms)
    size = item.bytes * (last - first + 1) // max(whole.last_entry + 1, 1)
    return replace(whole, first_entry=first, last_entry=last, size=size, offsets=spans)


def _touches(wanted: Wanted, item: ItemDescription) -> bool:
    if item.min_time_ms is None or item.max_time_ms is None:
        return True
    return wanted.touches(item.min_time_ms, item.max_time_ms)


async def has_ledger(client: QuireClient, item: ItemDescription) -> bool:
    """Whether an item's records are to be read from bookies. Those of a deleted ledger are read from its file, if it has one."""
    if item.location is ItemLocation.BOTH:
        try:
            await client.ledger_metadata(item.ledger_id)
        except NoSuchLedgerError:
            return False
    return item.location is not ItemLocation.ARCHIVE


async def record_of(
    client: QuireClient, options: ReadOptions, log: LogDescription, item: ItemDescription
) -> LedgerMetadata | None:
    """The record of a listed ledger; None where it is deleted and that is to be skipped."""
    try:
        record = await client.ledger_metadata(item.ledger_id)
        if item.token and record.token != item.token:
            raise CorruptMetadataError(
                f"quire: log '{log.name}': ledger {item.ledger_id} is not the one that the log lists "
                "(its token differs): the id was used again after a restore.",
                ledger_id=item.ledger_id,
            )
        if record.password != options.password():
            raise WrongPasswordError(
                f"quire: log '{log.name}': the password is not the one that its ledgers were created with.",
                log=log.name,
            )
        check_digest(options, record)
    except NoSuchLedgerError as error:
        first, end = item.first_offset, item.next_offset
        why = await losses.why_lost(client, log.name, log.log_id, item.ledger_id, first, end)
        text = f"log '{log.name}': offsets {first} to {end - 1} were in ledger {item.ledger_id}"
        if why is None:
            raise SparkUseError(f"quire: {text}. {losses.MOVED}.", log=log.name) from error
        if options.fail_on_data_loss:
            raise TrimmedError(
                f"quire: {text}, {why}. failOnDataLoss=false skips them.", log=log.name
            ) from error
        cluster.warn(f"{text}, {why}: {end - first:,} records are skipped.")
        return None
    return record


async def offset_since(client: QuireClient, options: ReadOptions, extent: Extent, from_ms: int) -> int | None:
    """The offset of the first record that is as late as a time; None when no confirmed record is.

    Raises:
        SparkUseError: a raw ledger, whose entries have no times.
    """
    if extent.log is None:
        raise SparkUseError(f"quire: '{extent.name}' is a raw ledger: its entries have no times to start at.")
    for item in extent.log.items:
        if item.max_time_ms is None or item.max_time_ms < from_ms or item.first_offset >= extent.end:
            continue
        if not await has_ledger(client, item):
            return max(archived.offset_since(extent.log, item, from_ms), extent.start)
        record = await record_of(client, options, extent.log, item)
        if record is None:
            continue
        last = item.last_entry if item.last_entry is not None else record.last_entry
        reader = cluster.reader_of(client, record, last)
        entry_id = await seeking.first_since(client, reader, 0, last, from_ms)
        lost = await seeking.first_if_lost(client, reader, entry_id, last)
        if lost is not None:
            # Its records may have been as late: a reader that starts here gets a warning.
            return max(item.first_offset + lost, extent.start)
        view = await read_one(reader, entry_id)
        times = view.times_ms(0, view.header.count)
        first = item.first_offset + view.header.records_before
        late = next(index for index, time in zip(view.positions(), times, strict=True) if time >= from_ms)
        return max(first + late, extent.start)
    return None


# --- a raw ledger -------------------------------------------------------------------------------------------------


def _pieces_of_ledger(extent: Extent, spans: Spans) -> list[EntrySpan]:
    record = extent.record
    assert record is not None
    origin = SourceLedger(extent.name, record.ledger_id, 0)
    return [
        EntrySpan(origin, record, first, stop - 1, extent.size * (stop - first) // extent.end, batches=False)
        for first, stop in spans
    ]

"""Which records wait in a log, as exactly as a limit of records asks for.

The list of a log says how many records a ledger has, and that is enough where each offset has one. Where compaction took
some away, nothing but the entries themselves says which are left: so many of them are looked at as the limit allows, and
they are the ones that the batch will read.

Source: docs/spark.md, "Options": maxRecordsPerTrigger; docs/decisions/009-compaction.md.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from quire.core.errors import NoSuchEntryError, ReadUnavailableError
from quire.log.archive import ArchiveError, open_archive
from quire.log.ledgers import views_of
from quire.spark import archived, cluster, planning, seeking
from quire.spark.admission import Stretch
from quire.spark.extents import Extent
from quire.spark.read_options import ReadOptions

if TYPE_CHECKING:
    from quire.log.client import QuireClient
    from quire.log.records import ItemDescription, LogDescription


async def stretches(
    client: QuireClient, options: ReadOptions, extent: Extent, start: int, records_max: int | None
) -> tuple[Stretch, ...]:
    """What a log or a raw ledger holds, in order.

    Args:
        client: the cluster.
        options: the read.
        extent: the log.
        start: where the batch begins; what is before is left as the list has it.
        records_max: from `start` on so many records have stretches of their own, without gaps; None: none need to.

    Raises:
        SparkUseError, TrimmedError: a ledger that the list names is deleted.
    """
    if extent.log is None:
        return (Stretch(0, extent.end, extent.end, extent.size),) if extent.end else ()
    found: list[Stretch] = []
    left = records_max or 0
    for item in extent.log.items:
        span = item.next_offset - item.first_offset
        if not span:
            continue
        whole = Stretch(item.first_offset, item.next_offset, item.count, item.bytes)
        if not left or item.next_offset <= start:
            found.append(whole)
        elif item.count == span:
            found.append(whole)
            left -= min(left, item.next_offset - max(start, item.first_offset))
        else:
            exact = await _counted(client, options, extent.log, item, max(start, item.first_offset), left)
            left -= min(left, sum(each.records for each in exact))
            found += exact
    return tuple(found)


async def _counted(
    client: QuireClient,
    options: ReadOptions,
    log: LogDescription,
    item: ItemDescription,
    start: int,
    wanted: int,
) -> list[Stretch]:
    """An item with gaps from an offset on: the first `wanted` records as stretches without gaps, then the rest as one."""
    found: list[Stretch] = []
    size = item.bytes // max(item.count, 1)
    seen, at = 0, start
    # An entry that is lost or out of reach ends the count: the tasks say what is lost.
    with contextlib.suppress(NoSuchEntryError, ReadUnavailableError, ArchiveError):
        async with contextlib.aclosing(_offsets(client, options, log, item, start)) as parts:
            async for offsets in parts:
                if not offsets:
                    continue
                for first, stop in _without_gaps(offsets):
                    found.append(Stretch(first, stop, stop - first, (stop - first) * size))
                seen, at = seen + len(offsets), offsets[-1] + 1
                if seen >= wanted:
                    break
            else:
                return found
    rest = Stretch(item.first_offset, item.next_offset, item.count, item.bytes).clipped(at, item.next_offset)
    return [*found, rest] if rest.stop > rest.first else found


def _without_gaps(offsets: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Ascending offsets as pairs: the first of some that follow each other, and what comes after the last."""
    if offsets[-1] - offsets[0] + 1 == len(offsets):
        yield offsets[0], offsets[-1] + 1
        return
    first = offsets[0]
    for offset, following in pairwise(offsets):
        if following != offset + 1:
            yield first, offset + 1
            first = following
    yield first, offsets[-1] + 1


async def _offsets(
    client: QuireClient, options: ReadOptions, log: LogDescription, item: ItemDescription, start: int
) -> AsyncGenerator[Sequence[int], None]:
    """The offsets from one on that have records, an entry or a row group at a time."""
    if not await planning.has_ledger(client, item):
        file = open_archive(archived.location_of(log, item))
        for number, group in enumerate(file.manifest.groups):
            if group.next > start:
                column = file.read(number, ["offset"]).column("offset").to_pylist()
                yield [offset for offset in column if offset >= start]
        return
    record = await planning.record_of(client, options, log, item)
    if record is None:
        return
    last = item.last_entry if item.last_entry is not None else record.last_entry
    reader = cluster.reader_of(client, record, last)
    span = item.next_offset - item.first_offset
    first, last = await seeking.entries_between(client, reader, start - item.first_offset, span, span, last)
    if first > last:
        return
    async with contextlib.aclosing(reader.read_runs(first, last)) as runs:
        async for entries in runs:
            for _, view in views_of(record, entries):
                base = item.first_offset + view.header.records_before
                skipped, _ = view.between(start - base)
                yield [base + position for position in view.positions(skipped)]

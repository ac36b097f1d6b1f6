"""Cuts a log into ranges of about equal bytes, in whole entries, for readers that share the work.

Source: docs/spark.md, "Options": splitBytes. Ranges come from the list. A header is read only where a ledger is cut.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeAlias

from quire.client.reading.reader import LedgerReader
from quire.core.errors import MisuseError
from quire.log.ledgers import entries_between, read_one
from quire.log.records import ItemDescription, LogRange

READS_AT_ONCE = 16
OpenItem: TypeAlias = Callable[[ItemDescription], Awaitable[LedgerReader]]


async def plan(
    items: Iterable[ItemDescription], start: int, end: int, split_bytes: int, open_item: OpenItem
) -> list[LogRange]:
    """The ranges that together hold the records from `start` to `end`.

    Args:
        items: the log's ledgers.
        start: the first offset.
        end: the offset after the last.
        split_bytes: about how many bytes a range has.
        open_item: makes a reader of a ledger.
    """
    if split_bytes < 1:
        msg = f"split_bytes is at least 1, got {split_bytes}"
        raise MisuseError(msg)
    gate = asyncio.Semaphore(READS_AT_ONCE)
    wanted = [item for item in items if item.next_offset > start and item.first_offset < end and item.count]
    parts = await asyncio.gather(*(_cut(open_item, item, start, end, split_bytes, gate) for item in wanted))
    return [each for part in parts for each in part]


async def _cut(
    open_item: OpenItem,
    item: ItemDescription,
    start: int,
    end: int,
    split_bytes: int,
    gate: asyncio.Semaphore,
) -> list[LogRange]:
    """One ledger's ranges. Entries at the cuts are bisected or read once, for their offsets."""
    async with gate:
        reader = await open_item(item)
        last_entry = int(reader.last_add_confirmed) if item.last_entry is None else item.last_entry
        zero, records = item.first_offset, item.next_offset - item.first_offset
        low, high = await entries_between(reader, start - zero, end - zero, records, last_entry)
        if low > high:
            return []  # what was wanted of it is compacted away
        entry_bytes = item.bytes / (last_entry + 1)
        pieces = max(1, min(high - low + 1, round((high - low + 1) * entry_bytes / split_bytes)))
        cuts = [low + (high - low + 1) * piece // pieces for piece in range(pieces)]
        offsets = [max(start, item.first_offset)]
        for cut in cuts[1:]:
            offsets.append(item.first_offset + await _before(reader, cut))
        offsets.append(min(end, item.next_offset))
        cuts.append(high + 1)
    return [
        LogRange(
            item.ledger_id,
            item.token,
            cuts[piece],
            cuts[piece + 1] - 1,
            offsets[piece],
            offsets[piece + 1],
            round((cuts[piece + 1] - cuts[piece]) * entry_bytes),
        )
        for piece in range(pieces)
    ]


async def _before(reader: LedgerReader, entry_id: int) -> int:
    return (await read_one(reader, entry_id)).header.records_before

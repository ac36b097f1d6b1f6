"""The offset of the first record that is as late as a requested time.

Records may have any times in any order. Every batch header carries the greatest time of its ledger so far, which never
falls, so one ledger is searched by bisection, and the list says which ledger it is.

Source: docs/decisions/021-batch-header.md.
"""

from __future__ import annotations

from quire.log.ledgers import is_batched, read_one
from quire.log.log import Log
from quire.log.records import ItemDescription, LogDescription


async def offset_since(log: Log, about: LogDescription, from_ms: int) -> int:
    """An offset before which no record is as late as `from_ms`, as near to the first such record as is known.

    Where headers have times it is that record's offset, unless it was truncated; else the beginning of its ledger.

    Args:
        log: the log.
        about: its description; what was appended later is not looked at.
        from_ms: milliseconds since 1970.

    Returns:
        `about.end_offset` if no record is as late.

    Raises:
        ArchivedError: the ledger's records are only in the archive.
        QuireError: the ledger cannot be read.
    """
    for item in about.items:
        if item.max_time_ms is None:
            if item.count:
                return max(
                    item.first_offset, about.start_offset
                )  # a ledger of another client: it has no times
        elif item.max_time_ms >= from_ms:
            return max(await _offset_in(log, item, from_ms), about.start_offset)
    return about.end_offset


async def _offset_in(log: Log, item: ItemDescription, from_ms: int) -> int:
    reader = await log.open_item(item)
    if not is_batched(reader.metadata):
        return item.first_offset
    low, high = 0, int(reader.last_add_confirmed)
    while low < high:
        middle = (low + high) // 2
        if (await read_one(reader, middle)).header.ledger_max_ms >= from_ms:
            high = middle
        else:
            low = middle + 1
    view = await read_one(reader, low)
    first = item.first_offset + view.header.records_before
    times = zip(view.positions(), view.times_ms(), strict=False)
    return next((first + index for index, time_ms in times if time_ms >= from_ms), item.next_offset)

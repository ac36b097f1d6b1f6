"""Where a read of a log begins and ends: offsets, times, the last records.

Records may have any times in any order. Every batch header carries the greatest time of its ledger so far, which never
falls, so one ledger is searched by bisection, and the list says which ledger it is.

Source: docs/decisions/021-batch-header.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal, Protocol, TypeAlias

from quire.client.reading.reader import LedgerReader
from quire.core.errors import MisuseError
from quire.log.ledgers import is_batched, read_one
from quire.log.records import ItemDescription, LogDescription
from quire.log.times import milliseconds


class SoughtLog(Protocol):
    """The log that is sought in: `Log`, which stands above."""

    @property
    def name(self) -> str:
        """Its name."""

    async def describe(self, since: int = 0) -> LogDescription:
        """The log as it is now."""

    async def open_item(self, item: ItemDescription) -> LedgerReader:
        """A reader of one of its ledgers."""


@dataclass(frozen=True, slots=True)
class Last:
    """The beginning of a read so many records before the end. Made by `quire.last`."""

    count: int


Start: TypeAlias = int | datetime | Last | Literal["start", "end"]
"""Where a read begins: an offset, the first record as late as a time, `quire.last(n)`, or one of the log's ends."""
End: TypeAlias = int | datetime
"""Where it ends: before an offset, or before the first record as late as a time."""


def last(count: int) -> Last:
    """`start=` of a read that begins so many records before the end, or at the log's start if it has fewer.

    Raises:
        MisuseError: it is no whole number above 0.
    """
    if type(count) is not int or count < 1:
        raise MisuseError(
            f"`quire.last` takes how many records to begin before the end, 1 or more, not {count!r}"
        )
    return Last(count)


async def offsets_between(
    log: SoughtLog, start: Start | None, end: End | None
) -> tuple[int | None, int | None]:
    """What a caller says as offsets; None: the log's start, and its end. What is no offset is looked up once.

    Raises:
        MisuseError: one is no position, or the end lies before the start.
        QuireError: a ledger that is to be searched for a time cannot be read.
    """
    first: Start | None = None if start == "start" else start
    if first != "end" and not isinstance(first, Last | None):
        _check(first, "start", ", `quire.last(n)`, 'start' or 'end'")
    if end is not None:
        _check(end, "end")
    if type(start) is type(end) and start is not None and end < start:  # type: ignore[operator]
        raise MisuseError(f"log {log.name!r}: the end {end} lies before the start {start}", log=log.name)
    if isinstance(first, int | None) and isinstance(end, int | None):
        return first, end
    about = await log.describe()
    return (
        None if first is None else await _offset_of(log, about, first),
        None if end is None else await _offset_of(log, about, end),
    )


async def offset_before(log: SoughtLog, before: End) -> int:
    """The new start of a log that is truncated.

    Raises:
        MisuseError: it is no offset, and no datetime with a zone.
    """
    _check(before, "before")
    return before if isinstance(before, int) else await _offset_of(log, await log.describe(), before)


def _check(where: object, what: str, others: str = "") -> None:
    if isinstance(where, datetime):
        if where.tzinfo is None:
            raise MisuseError(
                f"{what}= takes a datetime with a zone, not {where!r}: `.astimezone()` gives it one"
            )
    elif not isinstance(where, int) or isinstance(where, bool):
        raise MisuseError(f"{what}= takes an offset or a datetime with a zone{others}, not {where!r}")


async def _offset_of(log: SoughtLog, about: LogDescription, where: Start) -> int:
    if isinstance(where, Last):
        return max(about.start_offset, about.end_offset - where.count)
    if isinstance(where, datetime):
        return await offset_since(log, about, milliseconds(where))
    return where if isinstance(where, int) else about.end_offset


async def offset_since(log: SoughtLog, about: LogDescription, from_ms: int) -> int:
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


async def _offset_in(log: SoughtLog, item: ItemDescription, from_ms: int) -> int:
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

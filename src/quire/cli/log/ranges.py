"""Which records a command reads: offsets, times, the last records; one rule for what lies outside.

The rule, for logs and ledgers: a beginning that is not there is refused, before the first record that is left or beyond the
end, with exit code 1; an end that is not there is where the records end. The end itself is a beginning: nothing follows yet.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, NamedTuple

from quire.env.numbers import number_of

if TYPE_CHECKING:
    from quire.log.log import Log
    from quire.log.records import LogDescription, Record

TIMES: Final = "ISO 8601 (UTC without a zone), -15m, -1h or -2d before now, or @ and milliseconds since 1970"
_GRACE_MS: Final = 1000
"""What was appended before a moment may be seen so much later."""


def time_of(text: str, takes: str) -> int:
    """A time that an option says, in milliseconds since 1970.

    Args:
        text: see `TIMES`.
        takes: the beginning of the sentence for what is no time, as `--until takes`.

    Raises:
        MisuseError: it is no time.
    """
    from quire.log.times import parse_time

    return parse_time(text, f"{takes} {TIMES}", time.time_ns() // 1_000_000)


def iso(time_ms: int | None) -> str | None:
    """A time for people: ISO 8601 in UTC."""
    if time_ms is None:
        return None
    return (
        datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    )


class Until(NamedTuple):
    """Where a read stops: before this offset, or before the first record as late as this time."""

    offset: int | None = None
    time_ms: int | None = None


NO_END: Final = Until()


def parse_until(text: str, name: str = "--until") -> Until:
    """The value of `--until`, or of another option of that kind: digits are an offset, all else is a time.

    Raises:
        MisuseError: it is neither.
    """
    offset = number_of(text)
    if offset is not None and offset >= 0:
        return Until(offset=offset)
    return Until(time_ms=time_of(text, f"{name} takes an offset, or a time:"))


@dataclass(frozen=True, slots=True)
class RecordSpan:
    """The records that a command was asked to read.

    Attributes:
        start: the first offset.
        from_ms: begin with the first record as late as this.
        last: begin this many records before the end.
        until: where to stop.
        follow: go on with what is appended later.
        recover: close first what is open.
    """

    start: int | None = None
    from_ms: int | None = None
    last: int | None = None
    until: Until = NO_END
    follow: bool = False
    recover: bool = False


async def beginning(log: Log, span: RecordSpan, about: LogDescription) -> int:
    """The offset at which a read begins.

    Raises:
        TrimmedError, PastEndError: `--start` is not in the log.
    """
    if span.last is not None:
        return max(about.start_offset, about.end_offset - span.last)
    if span.from_ms is not None:
        from quire.log.seeking import offset_since

        return await offset_since(log, about, span.from_ms)
    if span.start is None:
        return about.start_offset
    if not (span.recover and span.start > about.end_offset):
        log.check_start(about, span.start)
    return span.start


async def records_of(log: Log, span: RecordSpan) -> AsyncGenerator[Record, None]:
    """The records that were asked for, in order.

    Raises:
        TrimmedError, PastEndError: `--start` is not in the log.
        QuireError: reading failed.
    """
    about = await log.describe(span.start or 0)
    at = await beginning(log, span, about)
    waiting_for = span.from_ms
    async with contextlib.aclosing(_passing(log, span, at)) as records:
        async for record in records:
            if span.until.time_ms is not None and record.timestamp_ms >= span.until.time_ms:
                return
            if waiting_for is not None:
                if record.timestamp_ms < waiting_for:
                    continue
                waiting_for = None
            yield record


async def _passing(log: Log, span: RecordSpan, at: int) -> AsyncGenerator[Record, None]:
    """The records from an offset on, as far as offsets and the clock allow."""
    end, until_ms = span.until
    if not span.follow:
        async with contextlib.aclosing(log.read(at, end, recover=span.recover)) as records:
            async for record in records:
                yield record
        return
    if end is not None and at >= end:
        return
    async with contextlib.aclosing(log.tail(at)) as records:
        while (following := await _next(records, until_ms)) is not None:
            at = following.offset + 1
            yield following
            if end is not None and at >= end:
                return
    # The time is over: what was appended before it is confirmed by now.
    async with contextlib.aclosing(log.read(at)) as rest:
        async for record in rest:
            yield record


async def _next(records: AsyncGenerator[Record, None], until_ms: int | None) -> Record | None:
    """The next record; None when the time is over first."""
    if until_ms is None:
        return await anext(records, None)
    left_ms = until_ms + _GRACE_MS - time.time_ns() // 1_000_000
    try:
        return await asyncio.wait_for(records.__anext__(), max(left_ms, 0) / 1000)
    except TimeoutError:
        return None

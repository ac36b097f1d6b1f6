"""How far one micro-batch goes in each log, within limits of records and bytes.

What waits is handed in, so nothing is read here. Each log gets a share by what waits in it, so that
all reach their ends together, and at least one record where the limit allows; a batch of no record, while some wait,
would stop the stream. Pure.

Source: docs/spark.md, "Options": maxRecordsPerTrigger; docs/decisions/009-compaction.md: ledgers with gaps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Stretch(NamedTuple):
    """Consecutive offsets with their records; after compaction fewer records than offsets.

    Attributes:
        first: the first offset.
        stop: after the last one.
        records: so many.
        bytes: of their entries.
    """

    first: int
    stop: int
    records: int
    bytes: int

    def clipped(self, start: int, end: int) -> Stretch:
        """The part between two offsets; records and bytes in proportion."""
        first, stop = max(self.first, start), min(self.stop, end)
        span, part = self.stop - self.first, max(stop - first, 0)
        return Stretch(first, stop, _share(self.records, part, span), _share(self.bytes, part, span))


def _share(total: int, part: int, of: int) -> int:
    return -(-total * part // of) if of else 0


class Backlog(NamedTuple):
    """The records of one log that a stream has not read yet.

    Attributes:
        name: the log.
        start: the next offset to read.
        end: after the last one that may be read.
        stretches: what the log's list says of the offsets between, in order.
    """

    name: str
    start: int
    end: int
    stretches: tuple[Stretch, ...]


def admit(
    backlogs: Sequence[Backlog], max_records: int | None = None, max_bytes: int | None = None
) -> dict[str, int]:
    """The offset at which a micro-batch ends in each log.

    Args:
        backlogs: what waits; logs with nothing end where they start.
        max_records: records of the batch at most; the offsets of a stretch are taken for evenly filled, so that it is
            exact where stretches have no gaps (`counting.stretches`).
        max_bytes: bytes of the batch, about; at least one record comes all the same.
    """
    waiting = [backlog for backlog in backlogs if backlog.end > backlog.start]
    ends = {backlog.name: backlog.end for backlog in backlogs}
    parts = [_parts(backlog) for backlog in waiting]
    records = [[(part.first, part.stop, part.records) for part in each] for each in parts]
    sizes = [[(part.first, part.stop, part.bytes) for part in each] for each in parts]
    for measured, limit in ((records, max_records), (sizes, max_bytes)):
        amounts = [sum(amount for _, _, amount in each) for each in measured]
        if limit is None or sum(amounts) <= limit:
            continue
        for backlog, each, share in zip(waiting, measured, _shares(amounts, limit), strict=True):
            ends[backlog.name] = min(ends[backlog.name], _reach(backlog.start, each, share))
    if waiting and all(ends[backlog.name] <= backlog.start for backlog in waiting):
        ends[waiting[0].name] = _reach(waiting[0].start, records[0], 1)
    return ends


def _parts(backlog: Backlog) -> list[Stretch]:
    """The stretches between start and end; offsets that no stretch has are empty ones."""
    clipped = [stretch.clipped(backlog.start, backlog.end) for stretch in backlog.stretches]
    return [stretch for stretch in clipped if stretch.stop > stretch.first]


def _shares(amounts: Sequence[int], limit: int) -> list[int]:
    """A limit shared out in proportion, never more in sum; one for each first, the largest before the others."""
    order = sorted(range(len(amounts)), key=lambda index: -amounts[index])
    shares = [0] * len(amounts)
    for index in order[:limit]:
        shares[index] = min(1, amounts[index])
    rest, total = limit - sum(shares), sum(amounts)
    for index, amount in enumerate(amounts):
        shares[index] += min(amount - shares[index], rest * amount // total)
    # What rounding left goes to the largest.
    for index in order:
        left = limit - sum(shares)
        shares[index] += max(0, min(left, amounts[index] - shares[index]))
    return shares


def _reach(start: int, parts: Sequence[tuple[int, int, int]], share: int) -> int:
    """The offset up to which the parts (first, stop, amount) hold a share."""
    end = start
    for first, stop, amount in parts:
        if amount > share:
            return max(end, first + (stop - first) * share // amount)
        share -= amount
        end = stop
    return end

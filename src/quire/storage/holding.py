"""What a bookie's disk holds of a ledger: of a range, and as intervals; and what has to be known of the segments for that.

Source: docs/decisions/029-single-reads.md; `docs/formats/segment.md`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

from quire.core.ledger.stripes import HeldInterval
from quire.storage.damages import Damages
from quire.storage.index import RunPiece, is_damaged
from quire.storage.segments.segment import Segment
from quire.wire.entry import Buffer
from quire.wire.run import RunLocation, count_ids


@dataclass(slots=True)
class RangeHeld:
    """What a bookie's disk has of a range of entries.

    Every id from the range's first to `conclusive_through` that is in none of the runs, read or located, and in no unknown
    interval is not here. Runs may reach beyond the range. `damaged`: those of the unknown intervals whose bytes were read
    and do not match their checksum.
    """

    runs: list[Buffer] = field(default_factory=list)
    conclusive_through: int = -1
    unknown: list[tuple[int, int]] = field(default_factory=list)
    locations: list[RunLocation] = field(default_factory=list)
    damaged: list[tuple[int, int]] = field(default_factory=list)


class Segments(Protocol):
    """What reading needs to know of the segments; `LedgerStorage`, which stands above, is it."""

    segments: dict[int, Segment]
    unsealed: dict[int, Segment]
    damages: Damages

    def read_again(self, segment: Segment) -> None:
        """Its footer does not verify: begin to read its records instead."""


def joined(pieces: Iterator[RunPiece], first: int, origin_term: int) -> Iterator[HeldInterval]:
    """The intervals of good pieces from an id on, neighbours of one shape joined."""
    joined: HeldInterval | None = None
    for piece in pieces:
        row = piece.row
        low, high = max(piece.first, row.first, first), min(piece.last, row.last)
        if is_damaged(row) or low > high:
            continue
        shape = (1, 1) if row.entries == 1 else (row.period, row.stripes)
        if joined is not None:
            gap = count_ids(joined.last + 1, low - 1, *shape) if low > joined.last + 1 else 0
            if joined[2:4] == shape and not gap:
                joined = joined._replace(last=high)
                continue
            yield joined
        joined = HeldInterval(low, high, *shape, origin_term)
    if joined is not None:
        yield joined

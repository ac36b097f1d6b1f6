"""Ranges of a ledger's entries that are dead while the ledger lives: each up to an LSN, so that what is put later lives.

Pure: what is dead of some runs, and how ranges are kept few.

Source: `docs/formats/segment.md`, "Dead ranges".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

from quire.storage.formats.state_format import DeadRange
from quire.storage.index import RunPiece
from quire.wire.run import ids_in

Dead: TypeAlias = tuple[DeadRange, ...]
"""Ascending by first id; they may overlap."""


def with_range(ranges: Dead, new: DeadRange) -> Dead:
    """The same ranges and another one: those that it covers are left out, neighbours up to one LSN are joined."""
    kept: list[DeadRange] = []
    for one in ranges:
        if is_dead((one,), new.first, new.last, new.through):
            return ranges
        if one.through == new.through and one.first <= new.last + 1 and new.first <= one.last + 1:
            new = new._replace(first=min(one.first, new.first), last=max(one.last, new.last))
        elif not is_dead((new,), *one):
            kept.append(one)
    return tuple(sorted((*kept, new)))


def is_dead(ranges: Sequence[DeadRange], first: int, last: int, lsn: int) -> bool:
    """Whether all of first..last is dead that was put up to an LSN."""
    for one in ranges:
        if one.through >= lsn and one.last >= first:
            if one.first > first:
                return False
            first = one.last + 1
            if first > last:
                return True
    return False


def below_dead(ranges: Dead, last: int, lsn: int) -> int:
    """The highest id up to `last` that is not dead of all that was put up to an LSN; -1 if all are."""
    for one in reversed(ranges):
        if one.through >= lsn and one.first <= last <= one.last:
            last = one.first - 1
    return last


def living(
    pieces: Iterator[RunPiece], dead_through: int, ranges: Dead, lowest: int = 0
) -> Iterator[RunPiece]:
    """What lives of some pieces, in their order.

    Args:
        pieces: ascending and disjoint.
        dead_through: all that has an LSN up to this is dead.
        ranges: what else is dead.
        lowest: ids below this are of no interest: what is cut off of a piece there is left out.
    """
    for piece in pieces:
        lsn = piece.row.lsn
        if lsn <= dead_through:
            continue
        dead = [
            one
            for one in ranges
            if one.through >= lsn and one.first <= piece.last and one.last >= piece.first
        ]
        if not dead:
            yield piece
            continue
        first = max(piece.first, lowest)
        for one in dead:
            if one.first > first:
                yield piece._replace(first=first, last=one.first - 1)
            first = max(first, one.last + 1)
        if first <= piece.last:
            yield piece._replace(first=first)


def last_id(piece: RunPiece) -> int:
    """The highest entry id of a piece, -1 if it has none: of a striped run, what is left may hold no id."""
    row = piece.row
    low, high = max(piece.first, row.first), min(piece.last, row.last)
    ids = ids_in(max(low, high - row.period + 1), high, row.period, row.stripes)
    return ids[-1] if ids else -1

"""Rows that are made up where those of a footer are not there now: all that may be in these is unknown.

Such a row stands for every id between the footer's bounds, with the highest LSN of the segment, so a read denies nothing of
it. It is no evidence of an entry: whoever decides what may go looks for it first, and lets everything stay.

Source: `docs/formats/segment.md`, "Damaged intervals".
"""

from __future__ import annotations

from typing import Final

from quire.storage.formats.footer_format import ROW, Row, RowFlag
from quire.storage.stored_ledger import Span

_UNREADABLE: Final = 0x80
"""Beside the flag DAMAGED of a row that was made up here: it is unknown whether what it stands for is damaged."""
_PASSING: Final = 0x40
"""What stands in the way will pass: no descriptor is left, or the segment's records are being read instead."""


def is_unreadable(row: Row) -> bool:
    """Whether a row stands for rows of a footer that are not there now: all of it is unknown, its origin term too."""
    return bool(row.flags & _UNREADABLE)


def is_passing(row: Row) -> bool:
    """Whether the rows that a made-up row stands for will be there again by themselves."""
    return bool(row.flags & _PASSING)


def unknown_row(ledger_id: int, span: Span, newest: int, origin_term: int, *, passing: bool) -> bytes:
    """What stands for a ledger's rows in a sealed segment, packed.

    Args:
        ledger_id: the ledger.
        span: the bounds of what the segment holds of it.
        newest: the highest LSN in the segment.
        origin_term: that is asked for.
        passing: they will be there again.
    """
    ids = span.last - span.first + 1
    flags = RowFlag.DAMAGED | _UNREADABLE | (_PASSING if passing else 0)
    row = Row(
        ledger_id, max(origin_term, 0), span.first, span.last, newest, 0, 0, ids & 0xFFFFFFFF, 1, flags, 0, 0, 1,
    )  # fmt: skip
    return ROW.pack(*row)

"""What storage remembers of one ledger: its facts and where its entries are, but none of the entries."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import NamedTuple

from quire.core.bookie.ledger import LedgerFacts
from quire.storage.formats.footer_format import DirectoryEntry
from quire.storage.formats.state_format import DeadRange

SPAN_FIELDS = 6
"""Sequence, first, last, place and number of the rows, checksum, and the highest last id of this span and those before."""
_FIRST, _LAST, _REACH = 1, 2, 5
_NONE = array("q")
"""Shared by all ledgers that no sealed segment holds: most of many are like that. Never changed."""


class Span(NamedTuple):
    """A sealed segment that holds entries of the ledger, and where its rows are in the footer."""

    sequence: int
    first: int
    last: int
    row_index: int
    rows: int
    checksum: int
    dense: bool


def span_of(sequence: int, entry: DirectoryEntry) -> Span:
    """What the directory of a sealed segment says of a ledger."""
    dense = bool(entry.flags & 1)
    return Span(sequence, entry.first, entry.last, entry.row_index, entry.rows, entry.checksum, dense)


class StoredLedger:
    """One ledger.

    Attributes:
        facts: all that is durably known besides entries; None if only entries were put, or only a shrunk tombstone is
            left.
        state_lsn: LSN of its newest state record, 0 if none.
        state_sequence: the segment where that lies.
        dead_through: entries with an LSN up to this are dead.
        dead_ranges: what else is dead, by first id.
        last: highest entry id that is held, -1 if none.
        spans: sealed segments that hold its entries, packed, by first id.
        holders: sealed segments in use with something of it, dead or not, that a lost tombstone would bring back.
    """

    __slots__ = (
        "dead_ranges", "dead_through", "facts", "holders", "last", "spans", "state_lsn", "state_sequence",
    )  # fmt: skip

    def __init__(self) -> None:
        self.facts: LedgerFacts | None = None
        self.state_lsn = 0
        self.state_sequence = 0
        self.dead_through = 0
        self.dead_ranges: tuple[DeadRange, ...] = ()
        self.last = -1
        self.spans = _NONE
        self.holders = 0

    @property
    def deleted(self) -> bool:
        """It is deleted, and its tombstone still has fence and key."""
        return self.facts is not None and bool(self.facts.deleted_until_ms)

    @property
    def shrunk(self) -> bool:
        """Nothing but a shrunk tombstone is left of it."""
        return self.facts is None and self.last < 0 and self.state_lsn > 0

    @property
    def reach(self) -> int:
        """The highest id in any sealed segment, dead or not; -1 if none holds entries of it."""
        return self.spans[-1] if self.spans else -1

    @property
    def partly_dead(self) -> bool:
        """Some of its entries may be dead, so that what a segment holds of it says little of what lives."""
        return bool(self.dead_through or self.dead_ranges)

    def add_span(self, sequence: int, entry: DirectoryEntry) -> None:
        """A sealed segment holds entries of this ledger; `last` is the caller's to set where it is partly dead."""
        if self.spans is _NONE:
            self.spans = array("q")
        spans = self.spans
        fields = array(
            "q",
            (
                sequence,
                entry.first,
                entry.last,
                entry.row_index << 32 | entry.rows,
                entry.checksum << 1 | (entry.flags & 1),
                entry.last,
            ),
        )
        if not spans or entry.first >= spans[-SPAN_FIELDS + _FIRST]:
            spans.extend(fields)  # as nearly always: entries come in the order of their ids
        else:
            at = SPAN_FIELDS * bisect_right(self._column(_FIRST), entry.first)
            spans[at:at] = fields
        self._set_reaches(len(spans) - SPAN_FIELDS if spans[-SPAN_FIELDS] == sequence else 0)
        if not self.partly_dead:
            self.last = max(self.last, entry.last)

    def _set_reaches(self, at: int) -> None:
        """The spans from an index on got another one before them, or lost one."""
        spans = self.spans
        reach = spans[at - 1] if at else -1
        for end in range(at + SPAN_FIELDS - 1, len(spans), SPAN_FIELDS):
            reach = spans[end] = max(reach, spans[end - SPAN_FIELDS + 1 + _LAST])

    def _column(self, field: int) -> memoryview:
        """One field of all spans."""
        return memoryview(self.spans)[field::SPAN_FIELDS]

    def has_span(self, sequence: int) -> bool:
        """Whether a sealed segment is one of those that hold its entries."""
        return sequence in self._column(0) if self.spans else False

    def drop_spans(self) -> list[int]:
        """Forget all entries; returns the segments that held some."""
        sequences = list(self.spans[::SPAN_FIELDS])
        self.spans = _NONE
        self.last = -1
        return sequences

    def drop_span(self, *sequences: int) -> None:
        """Segments are read in another way now, or nothing of the ledger lives there."""
        kept = array("q")
        for at in range(0, len(self.spans), SPAN_FIELDS):
            if self.spans[at] not in sequences:
                kept.extend(self.spans[at : at + SPAN_FIELDS])
        self.spans = kept or _NONE
        self._set_reaches(0)

    def spans_within(self, first: int, last: int) -> Iterator[Span]:
        """The sealed segments that may hold some of first..last, by first id; each is looked for when it is asked for.

        The first is found by bisection: of many segments, those before and behind cost nothing.
        """
        spans = self.spans
        if not spans:
            return
        # No span before this one reaches so far.
        begin = SPAN_FIELDS * bisect_left(self._column(_REACH), first)
        for at in range(begin, len(spans), SPAN_FIELDS):
            if spans[at + _FIRST] > last:
                return
            if spans[at + _LAST] >= first:
                yield Span(
                    spans[at],
                    spans[at + _FIRST],
                    spans[at + _LAST],
                    spans[at + 3] >> 32,
                    spans[at + 3] & 0xFFFFFFFF,
                    spans[at + 4] >> 1,
                    bool(spans[at + 4] & 1),
                )

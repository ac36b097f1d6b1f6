"""Which dead ranges of a stream are needed no more, so that it never comes to have too many of them.

Where terms only fence, an id names one entry: the one that was put last. What a truncation took needs its dead range only until
something is put again under the same ids, as the writer after the truncation does: from then on it is hidden, as whatever is put
twice is.

Source: `docs/formats/segment.md`, "Dead ranges"; docs/decisions/046-dead-ranges-are-forgotten.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from operator import attrgetter
from typing import TypeAlias

from quire.core.ledger.terms import ANY_ORIGIN
from quire.storage.dead_ranges import Dead, living
from quire.storage.formats.state_format import DeadRange
from quire.storage.holding import Segments
from quire.storage.index import RowTable, RunPiece
from quire.storage.reading import RunReader, is_unreadable
from quire.storage.reclaiming.measuring import directory_of
from quire.storage.segments.segment import Segment
from quire.storage.segments.segment_files import SegmentFiles
from quire.storage.states import Span, StoredLedger, span_of
from quire.wire.run import ids_in

Look: TypeAlias = Callable[[int, int], list[Iterator[RunPiece]]]
"""Gives the pieces of first..last that a segment has of a ledger, dead or not, whatever their origin terms."""
_THROUGH = attrgetter("through")


def look_sealed(reader: RunReader, ledger_id: int, span: Span) -> Look:
    """How to look into a sealed segment."""
    return lambda first, last: reader.sealed_streams(ledger_id, span, first, last, ANY_ORIGIN)()


def look_unsealed(table: RowTable, ledger_id: int, sequence: int) -> Look:
    """How to look into a segment that is read through its table."""
    return lambda first, last: table.pieces(ledger_id, first, last, sequence, ANY_ORIGIN)


def _ids_of(piece: RunPiece, first: int, last: int) -> Iterable[int]:
    """The ids of a piece in first..last."""
    row = piece.row
    low, high = max(piece.first, row.first, first), min(piece.last, row.last, last)
    return ids_in(low, high, row.period, row.stripes) if low <= high else ()


class RangeForgetter:
    """Finds dead ranges that are needed no more, of ledgers whose ids alone name their entries.

    Args:
        segments: those in use.
        reader: finds what lives, and what is dead.
        files: the segments' files.
    """

    def __init__(self, segments: Segments, reader: RunReader, files: SegmentFiles) -> None:
        self._segments = segments
        self._reader = reader
        self._files = files

    def needed(self, ledger_id: int, ledger: StoredLedger, ranges: Dead) -> Dead:
        """The ranges without which something that is dead would be found under its id."""
        looks = list(self._looks(ledger_id, ledger))
        for one in sorted(ranges, key=_THROUGH):
            others = tuple(each for each in ranges if each != one)
            if self._is_needless(ledger_id, ledger, one, others, looks):
                ranges = others
        return ranges

    def _is_needless(
        self,
        ledger_id: int,
        ledger: StoredLedger,
        one: DeadRange,
        others: Dead,
        looks: list[tuple[Segment, Look | None]],
    ) -> bool:
        """Whether something was put later under each id at which nothing but this range keeps an entry dead."""
        ids: set[int] = set()
        for segment, look in looks:
            if segment.first_lsn > one.through:
                continue
            if look is None:
                return False
            for stream in look(one.first, one.last):
                for piece in living(stream, ledger.dead_through, others):
                    row = piece.row
                    if is_unreadable(row):
                        return False
                    if row.lsn <= one.through:
                        ids.update(_ids_of(piece, one.first, one.last))
        return not ids or ids <= self._put_later(ledger_id, ledger, (min(ids), max(ids)), one.through)

    def _put_later(self, ledger_id: int, ledger: StoredLedger, ids: tuple[int, int], lsn: int) -> set[int]:
        """Those of some ids under which something lives with a higher LSN; of what cannot be read now, none."""
        found: set[int] = set()
        first, last = ids
        for piece in self._reader.pieces(ledger_id, ledger, first, last, ANY_ORIGIN):
            row = piece.row
            if row.lsn > lsn and not is_unreadable(row):
                found.update(_ids_of(piece, first, last))
        return found

    def _looks(self, ledger_id: int, ledger: StoredLedger) -> Iterator[tuple[Segment, Look | None]]:
        """The segments that hold entries of a ledger, dead or not, and how to look; None where that is not known now."""
        spans = {span.sequence: span for span in ledger.spans_within(0, ledger.reach)}
        for segment in self._segments.segments.values():
            table, sequence = segment.table, segment.sequence
            if table is not None:
                if table.holds_ledger(ledger_id):
                    yield segment, look_unsealed(table, ledger_id, sequence)
            elif ledger_id in segment.contents.entries:
                span = spans.get(sequence) or self._span_of(ledger_id, segment)
                yield segment, None if span is None else look_sealed(self._reader, ledger_id, span)

    def _span_of(self, ledger_id: int, segment: Segment) -> Span | None:
        """Where a ledger of which nothing lives in a sealed segment has its rows there."""
        for entry in directory_of(self._files, segment):
            if entry.ledger_id == ledger_id:
                return span_of(segment.sequence, entry)
        return None

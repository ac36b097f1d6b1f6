"""Compaction: what lives in a sparse segment is relocated into the current one, so that its file can be freed.

A relocated run keeps its LSN, and a flag says what it is. It goes through the one journal: whatever retires the source
comes later there, and is on the disk only if the copies are. A copy that was superseded or dropped meanwhile does no
harm, since the higher LSN is right wherever a record lies. Of a run that does not verify, the entries that do are relocated,
and the others are journaled as damaged. A segment that the disk does not give stays as it is; so does one of which it is
unknown what lives, since rows of another segment that may hold the same ids cannot be read.

Source: docs/decisions/036-compaction-through-the-journal.md; docs/decisions/040-damage-is-carried.md;
`docs/formats/segment.md`, "Relocated runs", "Damaged intervals".
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from heapq import merge
from itertools import accumulate, groupby, islice
from operator import itemgetter
from typing import Final, NamedTuple

from quire.core.errors import StorageError
from quire.core.ledger.stripes import joined_stretches
from quire.core.ledger.terms import ANY_ORIGIN
from quire.env.descriptors import is_shortage
from quire.env.interfaces import Clock
from quire.storage.damages import Damages
from quire.storage.formats.footer_format import DIRECTORY_BYTES, ROW_BYTES, STATE_HEAD, Row
from quire.storage.formats.segment_format import SegmentRecordKind
from quire.storage.formats.state_format import STATE
from quire.storage.index import RunPiece, is_damaged
from quire.storage.journal import Journal
from quire.storage.reading import (
    RunReader,
    ends_of,
    is_passing,
    is_unreadable,
    part_of,
    positions_of,
    recover_run,
)
from quire.storage.reclaiming.measuring import directory_of
from quire.storage.reclaiming.merging import MERGED_BYTES_MAX, SEGMENT_SHARE, Merging
from quire.storage.reclaiming.reclaim import BACKLOG_MAX
from quire.storage.reclaiming.relocating import Relocator
from quire.storage.segments.segment import Segment
from quire.storage.segments.segment_files import SegmentFiles, Space
from quire.storage.slices import LEDGERS_A_STEP, Slice
from quire.storage.space_reasons import SCARCE_SHARE
from quire.storage.states import States, StoredLedger
from quire.wire.run import RunView
from quire.wire.stored_record import RECORD_HEADER_BYTES

log = logging.getLogger(__name__)

SPARSE_SHARE: Final = (0.25, 0.8)
"""Of a segment so much may live for it to be compacted: with little less than that free, and on a full disk."""
SLICE_NS: Final = 2_000_000
"""It holds the loop for so long at a time: a few longer slices meet fewer adds than many short ones."""
SLICE_BYTES: Final = 4 << 20
"""So much at most is relocated before a pause."""
SOURCES_MAX: Final = 8
"""So many segments are relocated side by side: what lives of a ledger in them comes to lie together."""
DIRECTORIES_BYTES_MAX: Final = 4 << 20
"""So much memory the directories of segments side by side take at most; one of a segment with many small ledgers may take more."""
_KEY_BYTES: Final = 20
_OF_RUN: Final = RECORD_HEADER_BYTES + ROW_BYTES
_OF_LEDGER: Final = RECORD_HEADER_BYTES + STATE_HEAD.size + 2 * (STATE.size + _KEY_BYTES) + DIRECTORY_BYTES
"""What a segment has of each ledger in addition to its runs: a state as a record, and again in the footer; and a line of the directory."""


class SealedSize(NamedTuple):
    """What a sealed segment holds.

    Attributes:
        sequence: which; segments that were begun later have higher ones.
        live: what is there of ledgers that have something living there, with headers, states and rows: at least what would be
            copied. Of many small ledgers that is several times their entries.
        whole: bytes of its file, which come back.
    """

    sequence: int
    live: int
    whole: int

    def worth(self, newest: int) -> float:
        """What compacting it brings for what it costs: bytes that come back, by age, for bytes that are read and put again.

        What lives in an old segment has lived for long and will stay; in a new one more may die without being copied.
        """
        share = self.live / self.whole
        return (1 - share) * (newest - self.sequence + 1) / (1 + share)


def sparse_share(free_share: float) -> float:
    """How much of a segment may live for it to be compacted; 0 where there is room enough.

    Args:
        free_share: of the disk, 0 to 1.
    """
    if free_share >= SCARCE_SHARE:
        return 0.0
    low, high = SPARSE_SHARE
    return high - (high - low) * max(free_share, 0.0) / SCARCE_SHARE


def plan(sealed: Sequence[SealedSize], free_share: float, room: int | None = None) -> list[int]:
    """The segments that are worth compacting, those that are worth most first; of equals the oldest.

    Args:
        sealed: what there is.
        free_share: of the disk, 0 to 1.
        room: bytes for copies before any space comes back; the first segment is taken whatever it needs.
    """
    most = sparse_share(free_share)
    newest = max((one.sequence for one in sealed), default=0)
    worth = [one for one in sealed if 0 < one.live <= most * one.whole]
    worth.sort(key=lambda one: (-one.worth(newest), one.sequence))
    if room is not None:
        copied = accumulate(one.live for one in worth)
        worth = worth[: max(sum(size <= room for size in copied), 1)]
    return [one.sequence for one in worth]


class _Line(NamedTuple):
    """That something of a ledger lies in a source, and between which ids."""

    ledger_id: int
    first: int
    last: int
    source: Segment


class _StaysError(Exception):
    """The source cannot be freed: something in it, or what may hold the same ids, cannot be read."""


class _LaterError(Exception):
    """The source cannot be compacted in this pass, and may be in the next one: no descriptor is left, or it is another one now."""


class _OverError(Exception):
    """Another pass goes on."""


class Compactor:
    """Relocates what lives in sparse segments.

    Args:
        segments: those in use, by sequence.
        states: all ledgers.
        reader: finds what lives, and reads it.
        journal: where copies go.
        files: the segments' files.
        clock: for the length of a slice.
        damages: where one of them is over, segments that stayed for it are tried again.
        relocator: puts what is relocated.

    Attributes:
        relocated_bytes: of run bodies, by this process.
        merged_runs: runs that were put again as part of a longer one, by this process.
        stays: segments with something that cannot be read, or is longer than a segment is now, or of which compaction failed;
            with how many ledgers lived there: with fewer they are tried again.
    """

    def __init__(
        self,
        segments: dict[int, Segment],
        states: States,
        reader: RunReader,
        journal: Journal,
        files: SegmentFiles,
        clock: Clock,
        damages: Damages,
        relocator: Relocator,
    ) -> None:
        self._segments = segments
        self._states = states
        self._reader = reader
        self._journal = journal
        self._files = files
        self._clock = clock
        self._damages = damages
        self._relocator = relocator
        self._damages_before = 0
        self._at_work = False
        self._is_over: Callable[[], bool] = lambda: False
        self._slice_taken = 0
        self._sizes: dict[int, tuple[int, SealedSize]] = {}
        self._merging = Merging(min(MERGED_BYTES_MAX, files.segment_bytes // SEGMENT_SHARE))
        self.relocated_bytes = 0
        self.merged_runs = 0
        self.stays: dict[int, int] = {}

    def steps(
        self, free_share: float, room: int | None, is_over: Callable[[], bool]
    ) -> Generator[None, None, int]:
        """Compact what is worth it and has room, in slices; returns from how many segments all was relocated.

        Where there is room for the copies, several segments side by side. Else one after the other; on a full disk, where
        copies go into the reserve, only one: the caller gives it back first. It ends at the first pause at which it `is_over`.
        """
        if self._at_work or self._journal.failure is not None or not sparse_share(free_share):
            return 0
        self._at_work = True
        self._is_over = is_over
        try:
            return (yield from self._steps(free_share, room))
        finally:
            self._at_work = False

    def _steps(self, free_share: float, room: int | None) -> Generator[None, None, int]:
        part, done = Slice(self._clock, SLICE_NS), 0
        if self._damages.count < self._damages_before:
            self.stays.clear()
        self._damages_before = self._damages.count
        sealed: list[SealedSize] = []
        before, self._sizes = self._sizes, {}
        for segment in list(self._segments.values()):
            tried = self.stays.get(segment.sequence, segment.live + 1)
            if segment.trailer is not None and 0 < segment.live < tried:
                lives, size = before.get(segment.sequence, (0, None))
                if size is None or lives != segment.live:
                    lives, size = segment.live, (yield from self._size(segment, part))
                if size.live:  # else its directory could not be read
                    self._sizes[segment.sequence] = lives, size
                sealed.append(size)
        together = SOURCES_MAX if room is not None and not self._journal.full else 1
        groups = deque(self._side_by_side(plan(sealed, free_share, room), together))
        while groups:
            sources = [one for one in groups.popleft() if self._is_sealed(one)]
            self._merging.clear()
            try:
                done += yield from self._relocate_all(sources, part)
            except _LaterError:
                continue
            except _OverError:
                return done
            except StorageError:
                return done  # a full or failed disk: what was relocated is right where it is
            except Exception as error:
                if self._journal.failure is not None:
                    raise
                if len(sources) > 1:  # what is wrong with one of them does not hold up the others
                    groups.extendleft([one] for one in reversed(sources))
                    continue
                if not isinstance(error, _StaysError):
                    path = self._files.path(sources[0].sequence)
                    log.exception(
                        "%s cannot be compacted and stays as it is; other segments are not held up", path
                    )
                self._put_aside(sources[0])
                continue
            if self._journal.full:
                return done
        return done

    def _side_by_side(self, sequences: Sequence[int], most: int) -> Iterator[list[Segment]]:
        """The planned segments in groups, in their order."""
        group: list[Segment] = []
        size = 0
        for segment in map(self._segments.get, sequences):
            if segment is None or segment.trailer is None:
                continue
            directory = segment.trailer.directory_end - segment.trailer.directory_offset
            if group and (len(group) == most or size + directory > DIRECTORIES_BYTES_MAX):
                yield group
                group, size = [], 0
            group.append(segment)
            size += directory
        if group:
            yield group

    def _is_sealed(self, source: Segment) -> bool:
        return self._segments.get(source.sequence) is source and source.trailer is not None

    def _put_aside(self, source: Segment) -> None:
        """Try a segment again when less lives in it, or a damage is over."""
        self.stays[source.sequence] = source.live
        self._damages_before = self._damages.count

    def _size(self, segment: Segment, part: Slice) -> Generator[None, None, SealedSize]:
        live = 0
        entries = directory_of(self._files, segment)
        while some := list(islice(entries, LEDGERS_A_STEP)):
            live += sum(
                one.data_bytes + one.rows * _OF_RUN + _OF_LEDGER
                for one in some
                if (ledger := self._states.ledgers.get(one.ledger_id)) is not None
                and ledger.has_span(segment.sequence)
            )
            if part.over:
                yield
                part.begin()
        return SealedSize(segment.sequence, live, segment.header.segment_bytes)

    def _relocate_all(self, sources: Sequence[Segment], part: Slice) -> Generator[None, None, int]:
        """Relocate what lives in segments, ledger by ledger; of how many that was all."""
        lines = merge(*(self._lines(source) for source in sources), key=itemgetter(0))
        for ledger_id, some in groupby(lines, key=itemgetter(0)):
            if part.over:
                yield from self._pause(part, sources)
            ledger = self._states.ledgers.get(ledger_id)
            if ledger is None:
                continue
            living = [line for line in some if ledger.has_span(line.source.sequence)]
            if not living:
                continue
            whole = yield from self._relocate_ledger(ledger_id, ledger, living, sources, part)
            left = [line.source for line in living if ledger.has_span(line.source.sequence)]
            if whole and left:
                # What a footer says of LACs goes with it.
                self._states.put(SegmentRecordKind.LEDGER_STATE, ledger_id, ledger, self._space)
                ledger.drop_span(*(source.sequence for source in left))
                for source in left:
                    source.live -= 1
        return sum(not source.live for source in sources)

    def _lines(self, source: Segment) -> Iterator[_Line]:
        """A segment's directory, by ledger."""
        return (
            _Line(one.ledger_id, one.first, one.last, source) for one in directory_of(self._files, source)
        )

    def _relocate_ledger(
        self,
        ledger_id: int,
        ledger: StoredLedger,
        lines: Sequence[_Line],
        sources: Sequence[Segment],
        part: Slice,
    ) -> Generator[None, None, bool]:
        """Relocate what lives of a ledger in segments; False if some of it is pending deletion, and so not found now."""
        stretches = joined_stretches((line.first, line.last) for line in lines)
        terms, unknown = self._reader.origin_terms(ledger_id, ledger, stretches[0][0], stretches[-1][1])
        if unknown is not None:
            raise _unread(unknown)
        for term in terms:
            for first, last in stretches:
                whole = yield from self._relocate_stretch(
                    ledger_id, ledger, (first, last, term), sources, part, several=len(terms) > 1
                )
                if not whole:
                    self._merging.clear()
                    return False
            self._put_merged(ledger_id, ledger)
        return True

    def _relocate_stretch(
        self,
        ledger_id: int,
        ledger: StoredLedger,
        asked: tuple[int, int, int],
        sources: Sequence[Segment],
        part: Slice,
        *,
        several: bool,
    ) -> Generator[None, None, bool]:
        """Relocate the ids first..last of an origin term; with `several` terms there may be others under the same ids.

        Returns:
            False if some of it is pending deletion, and so not found now.
        """
        at, last, term = asked
        named = {source.sequence for source in sources}
        while at <= last:
            if ledger_id in self._reader.pending_deletions:
                return False
            dead = ledger.dead_through, ledger.dead_ranges
            found = self._reader.pieces(ledger_id, ledger, at, last, term)
            some = list(islice(found, LEDGERS_A_STEP))
            after = max(at, some[-1].last) + 1 if len(some) == LEDGERS_A_STEP else last + 1
            for piece in some:
                if is_unreadable(piece.row):  # of whatever segment: it may hide what lives in a source
                    raise _unread(piece.row)
                if piece.sequence in named:
                    living = piece._replace(first=max(piece.first, at))
                    alone = several and self._is_overwritten(ledger_id, ledger, living)
                    self._relocate(ledger_id, ledger, living, alone=alone)
                if part.over or self._slice_taken >= SLICE_BYTES:
                    yield from self._pause(part, sources)
                    if dead != (ledger.dead_through, ledger.dead_ranges):
                        # What was found may be dead by now, and so may what waits to be put: look again from there on.
                        after = self._merging.first if self._merging.runs else piece.last + 1
                        self._merging.clear()
                        break
            at = after
        return True

    @property
    def _space(self) -> Space:
        return Space.COMPACTION if self._journal.full else Space.ADDS

    def _is_overwritten(self, ledger_id: int, ledger: StoredLedger, piece: RunPiece) -> bool:
        """Whether an entry of another origin term was put later under an id of a piece.

        Where ids alone name entries that one is right, and would not be any more if the piece came to a higher LSN.
        """
        found = self._reader.pieces(ledger_id, ledger, piece.first, piece.last, ANY_ORIGIN)
        return any(one.row.origin_term != piece.row.origin_term for one in found)

    def _relocate(
        self, ledger_id: int, ledger: StoredLedger, piece: RunPiece, *, alone: bool = False
    ) -> None:
        """Put a piece again, unless its ledger was deleted or emptied since it was found; it may wait for the next one.

        `alone`: it keeps its LSN.
        """
        if self._is_dead(ledger_id, ledger, piece):
            return
        try:
            runs, damaged = self._parts(piece)
        except OSError as error:
            raise (_LaterError if is_shortage(error) else _StaysError) from error
        term_lsn = ledger.facts.term_lsn if ledger.facts is not None else 0
        for run in (part for whole in runs for part in self._fitting(whole)):
            if alone or not self._merging.fits(piece, run, term_lsn):
                self._put_merged(ledger_id, ledger)
            self._merging.add(piece, run)
            if alone:
                self._put_merged(ledger_id, ledger)
            self._slice_taken += len(run.body)
        if damaged:
            self._relocator.put_damaged(piece, damaged, self._space)

    def _fitting(self, run: RunView) -> Iterator[RunView]:
        """A run in parts that fit a segment: it may be from a time of larger ones."""
        if len(run.body) + RECORD_HEADER_BYTES + 8 <= self._journal.record_bytes_max:
            yield run
        elif run.count == 1:
            raise _StaysError
        else:
            half = run.count // 2
            for ends in ((0, half), (half, run.count)):
                yield from self._fitting(part_of(run, *ends))

    def _parts(self, piece: RunPiece) -> tuple[Sequence[RunView], Sequence[tuple[int, int]]]:
        """(runs of what verifies of a piece, the intervals of its ids that do not)."""
        row = piece.row
        low, high = max(piece.first, row.first), min(piece.last, row.last)
        if row.kind == SegmentRecordKind.DAMAGED:
            ends = ends_of(row, low, high)
            return (), (ends,) if ends else ()
        body = None if is_damaged(row) else self._reader.body(piece)
        if body is None:
            lies = self._reader.raw_body(piece)
            ends = ends_of(row, low, high)
            return recover_run(lies, row, low, high) if lies is not None else ((), (ends,) if ends else ())
        run = RunView.parse(body)
        if piece.whole:
            return (run,), ()
        start, end = positions_of(row, low, high)
        if start == end:
            return (), ()
        return (part_of(run, start, end),), ()

    def _is_dead(self, ledger_id: int, ledger: StoredLedger, piece: RunPiece) -> bool:
        return self._states.ledgers.get(ledger_id) is not ledger or piece.row.lsn <= ledger.dead_through

    def _put_merged(self, ledger_id: int, ledger: StoredLedger) -> None:
        """Put what waits, as one run. What was put meanwhile does it no harm: it is younger than the source."""
        merging = self._merging
        if not merging.runs:
            return
        run, piece = merging.merged()
        if not self._is_dead(ledger_id, ledger, piece):
            self._relocator.put_run(run, piece, self._space)
            self.relocated_bytes += len(run.body)
            self.merged_runs += len(merging.runs) if len(merging.runs) > 1 else 0
        merging.clear()

    def _pause(self, part: Slice, sources: Sequence[Segment]) -> Generator[None, None, None]:
        """Let others have their turn, and the disk catch up.

        Raises _OverError when it is over then, _LaterError when a source is another one.
        """
        self._journal.flush(inline=False)
        yield
        while self._journal.backlog > BACKLOG_MAX:
            yield
        self._slice_taken = 0
        part.begin()
        if self._is_over():
            raise _OverError
        if not all(map(self._is_sealed, sources)):
            raise _LaterError


def _unread(row: Row) -> Exception:
    """What rows that cannot be read now mean for the source."""
    return _LaterError() if is_passing(row) else _StaysError()

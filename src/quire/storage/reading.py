"""Reading entries back: from memory if they are recent, else from their segment, never without verifying.

What does not verify is read again from the disk itself, then it is damaged: answered as that and reported, never as
"no such entry". What the disk does not give is unknown. Where the rows of a footer are not there now, made-up ones stand for
every id between its bounds, with the highest LSN of the segment: a read denies nothing of them. They are no evidence of an
entry: a caller that decides what may be dropped looks for them first, and keeps everything. Of a run whose body does not verify,
compaction relocates the entries that do (`recover_run`), and journals the others as damaged.

Source: docs/decisions/029-single-reads.md, 040-damage-is-carried.md; `docs/formats/segment.md`, "Damaged intervals".
"""

from __future__ import annotations

import heapq
import math
import os.path
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import groupby, islice
from operator import attrgetter, itemgetter
from typing import Final, NamedTuple, TypeAlias

from crc32c import crc32c

from quire.core.errors import DigestMismatchError, MalformedFrameError
from quire.core.ledger.metadata import DigestType
from quire.core.ledger.stripes import HeldInterval
from quire.core.ledger.terms import ANY_ORIGIN
from quire.env.descriptors import is_shortage
from quire.storage.config import StorageConfig
from quire.storage.dead_ranges import Dead, living
from quire.storage.formats.footer_format import ROW, ROW_BYTES, Row, RowFlag, row_at
from quire.storage.holding import RangeHeld, Segments, joined
from quire.storage.index import RecentRuns, RowTable, RunPiece, dense_pieces, is_damaged, resolve, table_of
from quire.storage.segments.byte_ranges import byte_ranges
from quire.storage.segments.findings import Damage
from quire.storage.segments.footer_cache import FooterCache
from quire.storage.segments.segment_files import SegmentFiles
from quire.storage.states import Span, StoredLedger
from quire.wire import native
from quire.wire.entry import HEADER, HEADER_BYTES, TERM_HEADER_BYTES, TERM_IDENTITY, Buffer, EntryDigest
from quire.wire.run import RUN_HEADER_BYTES, SCHEME_PLAIN, RunLocation, RunView, count_ids, encode_run, ids_in
from quire.wire.stored_record import RECORD_HEADER_BYTES, RecordHeader, decode_record_header, seed_at

UNKNOWN_INTERVALS_MAX = 1024
SHORT_READ_BYTES = 16 * 1024
"""Below this a run is read whole even if little of it is wanted: one read is cheaper than two."""
SENT_ANYWAY_BYTES = 16 * 1024
"""Up to this much that was not requested is handed over with the rest of its run."""
LOCATED_BYTES = range(64 * 1024, native.FRAME_BYTES_MAX - RECORD_HEADER_BYTES + 1)
"""A shorter run is sent: to open a file for it costs the reader more. So is a longer one, whose location no client takes."""
SPANS_EXPECTED_MAX = 32
"""Of so many footers at most, the rows of a ledger are fetched at one time."""
_MUCH = 4
"""Of a run of which no more than one entry in so many is wanted, not all is read."""
CHECKED_DIGESTS: Final = frozenset({DigestType.CRC32, DigestType.CRC32C})
"""Digests that a bookie can verify without the ledger's password."""
_SHORT_DIGESTS = CHECKED_DIGESTS | {DigestType.HMAC}
_BY_FIRST = attrgetter("first")
_LOWEST = itemgetter(0)
_NOTHING_DEAD: Final[tuple[int, Dead]] = (0, ())
Streams: TypeAlias = Callable[[], list[Iterator[RunPiece]]]
"""Looks into a segment: ascending pieces of a ledger's runs, dead or not, in one stream for each set of stripes."""


class RunReader:
    """Finds and reads runs on a bookie's disk.

    Args:
        segments: the segments in use.
        files: their bytes.
        recent: bodies in memory.
        config: limits.

    Attributes:
        cache: rows of footers.
        pending_deletions: by ledger, what is left out as if it were dead.
    """

    def __init__(
        self, segments: Segments, files: SegmentFiles, recent: RecentRuns, config: StorageConfig
    ) -> None:
        self._segments = segments
        self._files = files
        self._recent = recent
        self.cache = FooterCache(config.footer_cache_bytes_max)
        self.pending_deletions: dict[int, Dead] = {}

    # --- finding ------------------------------------------------------------------------------------------------

    def pieces(
        self, ledger_id: int, ledger: StoredLedger, first: int, last: int, origin_term: int = 0
    ) -> Iterator[RunPiece]:
        """What holds first..last of an origin term (or what was put last), ascending and disjoint; found lazily."""
        dead = ledger.dead_through, self._dead_ranges(ledger_id, ledger)
        cluster: list[Streams] = []
        reach = -1
        for low, high, streams in self._sources(ledger_id, ledger, first, last, origin_term):
            if cluster and low > reach:
                yield from self._merged(cluster, dead, first, last)
                cluster = []
            cluster.append(streams)
            reach = max(reach, high)
        if cluster:
            yield from self._merged(cluster, dead, first, last)

    def origin_terms(
        self, ledger_id: int, ledger: StoredLedger, first: int, last: int
    ) -> tuple[list[int], Row | None]:
        """The origin terms of what is here of a ledger's first..last, ascending, maybe others too; 0 for entries of no stream.

        Only segments that may hold such entries with terms are looked into, and none for a ledger that is known to be no
        stream.

        Returns:
            (the terms that are known, what stands for rows that cannot be read now: they may be of yet another term).
        """
        terms: set[int] = {0}
        unknown: Row | None = None
        if ledger.facts is not None and ledger.facts.key and not ledger.facts.term:
            return [0], None
        for segment in self._segments.unsealed.values():
            if segment.table is not None and segment.header.terms:
                terms.update(segment.table.terms(ledger_id))
        for span in ledger.spans_within(first, last):
            if (
                span.sequence in self._segments.unsealed
                or not self._segments.segments[span.sequence].header.terms
            ):
                continue
            rows = self.rows(ledger_id, span)
            if isinstance(rows, RowTable):
                terms.update(rows.terms(ledger_id))
            elif is_unreadable(row := row_at(rows, 0)):
                unknown = row
            else:
                terms.add(row.origin_term)
        return sorted(terms), unknown

    def held(self, ledger_id: int, ledger: StoredLedger, first: int) -> Iterator[HeldInterval]:
        """What is here from an id on and not known to be damaged, of all origin terms, by ascending first id."""
        terms, _ = self.origin_terms(ledger_id, ledger, first, ledger.last)
        parts = [
            joined(self.pieces(ledger_id, ledger, first, ledger.last, term), first, term) for term in terms
        ]
        return parts[0] if len(parts) == 1 else heapq.merge(*parts)

    def _dead_ranges(self, ledger_id: int, ledger: StoredLedger) -> Dead:
        """What is dead of a ledger or pending deletion, besides what is so up to an LSN."""
        if not self.pending_deletions:
            return ledger.dead_ranges
        return tuple(sorted((*ledger.dead_ranges, *self.pending_deletions.get(ledger_id, ()))))

    def _merged(
        self, cluster: list[Streams], dead: tuple[int, Dead], first: int, last: int
    ) -> Iterator[RunPiece]:
        streams = [stream for make in cluster for stream in make()]
        if dead != _NOTHING_DEAD:
            streams = [living(stream, *dead, first) for stream in streams]
        merged = streams[0] if len(streams) == 1 else heapq.merge(*streams, key=_BY_FIRST)
        return resolve(merged, first, last)

    def _sources(
        self, ledger_id: int, ledger: StoredLedger, first: int, last: int, origin_term: int
    ) -> Iterator[tuple[int, int, Streams]]:
        """What may hold first..last, by lowest id: (lowest id, highest id, how to look into it); made when asked for."""
        unsealed: list[tuple[int, int, Streams]] = []
        for segment in self._segments.unsealed.values():
            table = segment.table
            if table is not None and table.holds_ledger(ledger_id):
                low, high = table.span(ledger_id)
                if low <= last and high >= first:
                    streams = partial(table.pieces, ledger_id, first, last, segment.sequence, origin_term)
                    unsealed.append((low, high, streams))
        spans = self._expected_spans(ledger_id, ledger.spans_within(first, last))
        # One that is being installed, or read again, is found in its table.
        sealed = (
            (span.first, span.last, self.sealed_streams(ledger_id, span, first, last, origin_term))
            for span in spans
            if span.sequence not in self._segments.unsealed
        )
        if not unsealed:
            return sealed
        unsealed.sort(key=_LOWEST)
        return heapq.merge(sealed, unsealed, key=_LOWEST)

    def _expected_spans(self, ledger_id: int, spans: Iterator[Span]) -> Iterator[Span]:
        """The same spans; the disk fetches a ledger's rows out of several footers at one time.

        One footer first, then always as many again as were asked for: a short response costs no more than it needs.
        """
        count = 1
        while batch := list(islice(spans, count)):
            for span in batch if count > 1 else ():
                trailer = self._segments.segments[span.sequence].trailer
                if trailer is not None and self.cache.get(span.sequence, ledger_id) is None:
                    offset = trailer.rows_offset + span.row_index * ROW_BYTES
                    self._files.expect(span.sequence, offset, span.rows * ROW_BYTES)
            yield from batch
            count = min(2 * count, SPANS_EXPECTED_MAX)

    def sealed_streams(self, ledger_id: int, span: Span, first: int, last: int, origin_term: int) -> Streams:
        """How to look into a sealed segment."""

        def streams() -> list[Iterator[RunPiece]]:
            rows = self.rows(ledger_id, span, origin_term)
            if isinstance(rows, RowTable):
                return rows.pieces(ledger_id, first, last, span.sequence, origin_term)
            meant = origin_term in {ANY_ORIGIN, row_at(rows, 0).origin_term}
            return [dense_pieces(rows, first, last, span.sequence)] if meant else []

        return streams

    def rows(self, ledger_id: int, span: Span, origin_term: int = 0) -> bytes | RowTable:
        """A ledger's rows in a sealed segment: packed if they are dense, and so of one term, else as a table.

        Where they cannot be read, entries of the origin term that is asked for are unknown.
        """
        cached = self.cache.get(span.sequence, ledger_id)
        if cached is not None:
            return cached
        segment = self._segments.segments[span.sequence]
        trailer = segment.trailer
        if trailer is not None:
            offset, size = trailer.rows_offset + span.row_index * ROW_BYTES, span.rows * ROW_BYTES
            expected, seed = span.checksum, seed_at(segment.seed, span.row_index)
            try:
                rows = self._files.read_at(span.sequence, offset, size)
                if crc32c(rows, seed) != expected:
                    rows = self._files.read_uncached(span.sequence, offset, size)
            except OSError as error:
                return self._unreadable(ledger_id, span, offset, error, origin_term)
            if crc32c(rows, seed) == expected:
                kept = rows if span.dense else table_of(rows)
                self.cache.put(span.sequence, ledger_id, kept, size if span.dense else 4 * size)
                return kept
            path = str(self._files.path(span.sequence))
            what = "the checksum of a ledger's rows in the footer differs; the records are read instead"
            self._segments.damages.found(Damage(path, offset, ledger_id, span.first, span.last, what, -1))
            self._segments.read_again(segment)
            return self._unknown(ledger_id, span, origin_term, passing=True)
        assert segment.table is not None
        return segment.table

    def _unreadable(self, ledger_id: int, span: Span, offset: int, error: OSError, origin_term: int) -> bytes:
        """Rows that the disk does not give are damage, and unknown; a shortage of descriptors is no damage."""
        if not is_shortage(error):
            path = str(self._files.path(span.sequence))
            what = f"the rows of a ledger in the footer cannot be read: {error.strerror or error}"
            self._segments.damages.found(Damage(path, offset, ledger_id, span.first, span.last, what, -1))
        return self._unknown(ledger_id, span, origin_term, passing=is_shortage(error))

    def _unknown(self, ledger_id: int, span: Span, origin_term: int, *, passing: bool) -> bytes:
        newest = self._segments.segments[span.sequence].last_lsn
        return unknown_row(ledger_id, span, newest, origin_term, passing=passing)

    # --- reading --------------------------------------------------------------------------------------------------

    def read(
        self,
        ledger_id: int,
        ledger: StoredLedger,
        first: int,
        last: int,
        bytes_max: int,
        *,
        origin_term: int = 0,
        located: bool = False,
        low_priority: bool = False,
    ) -> RangeHeld:
        """What is here of first..last of a term, at least one entry if any is, then up to a number of bytes.

        With `located`, of long runs only the location, for the client to read; the last may reach beyond that number. Of a
        read of low priority the page cache keeps nothing.
        """
        held = RangeHeld()
        found = self.pieces(ledger_id, ledger, first, last, origin_term)
        pieces = self._expected(found, bytes_max, located=located)
        if not low_priority:
            return self._fill(held, pieces, first, last, bytes_max, located=located)
        taken: list[RunPiece] = []
        self._fill(held, _noted(pieces, taken), first, last, bytes_max, located=located)
        for byte_range in byte_ranges(piece for piece in taken if not self._is_in_memory(piece)):
            self._files.release(*byte_range)
        return held

    def _fill(
        self,
        held: RangeHeld,
        pieces: Iterator[RunPiece],
        first: int,
        last: int,
        bytes_max: int,
        *,
        located: bool,
    ) -> RangeHeld:
        left = bytes_max
        for piece in pieces:
            row = piece.row
            low, high = max(piece.first, row.first, first), min(piece.last, row.last, last)
            if low > high or (row.period > 1 and not count_ids(low, high, row.period, row.stripes)):
                continue
            more = bool(held.runs or held.locations)
            if (more and left <= 0) or len(held.unknown) >= UNKNOWN_INTERVALS_MAX:
                held.conclusive_through = low - 1
                return held
            location = self._location(piece, low, high) if located else None
            if location is not None:
                held.locations.append(location)
                left -= location.size
                continue
            try:
                body, through = (
                    (None, high) if is_damaged(row) else self._take(piece, low, high, left, more=more)
                )
            except OSError:
                held.unknown.append((low, high))
                continue
            if through < low:
                held.conclusive_through = low - 1
                return held
            if body is None:
                held.unknown.append((low, high))
                if not is_unreadable(row):
                    held.damaged.append((low, high))
                continue
            held.runs.append(body)
            left -= len(body)
            if through < high:
                held.conclusive_through = through
                return held
        held.conclusive_through = last
        return held

    def _expected(self, pieces: Iterator[RunPiece], bytes_max: int, *, located: bool) -> Iterator[RunPiece]:
        """The same pieces; the disk gets all reads of one response before the first is waited for.

        So the runs of a ledger that was written among many others are fetched at one time, not one after another.
        """
        while True:
            batch: list[RunPiece] = []
            size = 0
            for piece in pieces:
                batch.append(piece)
                size += piece.row.body_bytes
                if size >= bytes_max:
                    break
            if len(batch) > 1:
                shortest = LOCATED_BYTES.start if located else math.inf
                sent = (one for one in batch if one.row.body_bytes < shortest and not self._is_in_memory(one))
                for byte_range in byte_ranges(sent):
                    self._files.expect(*byte_range)
            yield from batch
            if size < bytes_max or not batch:
                return

    def _is_in_memory(self, piece: RunPiece) -> bool:
        return self._recent.get(piece.sequence, piece.row.offset) is not None

    def _take(
        self, piece: RunPiece, low: int, high: int, left: int, *, more: bool
    ) -> tuple[Buffer | None, int]:
        """(body with the entries of low..high, the id up to which they are in it).

        The body is None when it is damaged. The id is below `low` when nothing fits into what is left.

        Raises:
            OSError: the disk does not give it.
        """
        row = piece.row
        wanted = count_ids(low, high, row.period, row.stripes)
        recent = self._recent.get(piece.sequence, row.offset)
        if recent is None and row.body_bytes > SHORT_READ_BYTES and _MUCH * wanted <= row.entries:
            short = self._short(piece, low, high, left, more=more)
            if short is not None:
                return short
        body = recent if recent is not None else self.body(piece)
        if body is None:
            return None, high
        # A few entries too many are cheaper sent than cut away. Overwritten entries are always cut.
        too_many = row.body_bytes * (row.entries - wanted) // row.entries
        if piece.whole and too_many <= SENT_ANYWAY_BYTES and row.body_bytes <= left:
            return body, high
        try:
            run = RunView.parse(body)
        except MalformedFrameError as error:
            self._damaged(piece, str(error))
            return None, high
        start, end, through = fitting_part(run, low, high, left, more=more)
        if through < low:
            return None, through
        offsets = run.offsets()
        return cut_run(run, start, end, memoryview(body)[offsets[start] : offsets[end]]), through

    def _location(self, piece: RunPiece, low: int, high: int) -> RunLocation | None:
        """Where all that is wanted of a piece lies, which is not looked at; None if it has to be read here."""
        row, segment = piece.row, self._segments.segments[piece.sequence]
        if (
            row.body_bytes not in LOCATED_BYTES
            or is_damaged(row)
            or not piece.whole
            or _MUCH * count_ids(low, high, row.period, row.stripes) <= row.entries
            or self._is_in_memory(piece)
        ):
            return None
        path = os.path.abspath(self._files.path(piece.sequence))  # noqa: PTH100 - for another process
        size = RECORD_HEADER_BYTES + row.body_bytes
        return RunLocation(path, row.offset, size, segment.seed, row.origin_term)

    def body(self, piece: RunPiece) -> Buffer | None:
        """A run's body from the disk, verified; None if it is damaged.

        Raises:
            OSError: the disk does not give it, and what it gave before does not count.
        """
        row, sequence = piece.row, piece.sequence
        segment = self._segments.segments[sequence]
        size = RECORD_HEADER_BYTES + row.body_bytes
        what, failure = "", None
        for read in (self._files.read_at, self._files.read_uncached):
            try:
                data = read(sequence, row.offset, size)
            except OSError as error:
                if is_shortage(error):
                    raise
                what, failure = f"cannot be read: {error.strerror or error}", error
                continue
            failure = None
            header = header_of(data, row, segment.seed)
            if header is None:
                what = "the record at this offset is not the one in the index"
                continue
            body = memoryview(data)[RECORD_HEADER_BYTES:]
            if len(body) == row.body_bytes and crc32c(body) == header.body_checksum:
                return body
            what = "the body of the run does not verify"
        self._damaged(piece, what)
        if failure is not None:
            raise failure
        return None

    def raw_body(self, piece: RunPiece) -> Buffer | None:
        """A run's body as it lies on the disk, None if its record does not. Raises OSError as `body`."""
        row, size = piece.row, RECORD_HEADER_BYTES + piece.row.body_bytes
        data = self._files.read_uncached(piece.sequence, row.offset, size)
        found = header_of(data, row, self._segments.segments[piece.sequence].seed)
        return memoryview(data)[RECORD_HEADER_BYTES:] if found is not None else None

    def _short(
        self, piece: RunPiece, low: int, high: int, left: int, *, more: bool
    ) -> tuple[Buffer, int] | None:
        """Table and entries instead of a whole long run; None if that cannot be verified."""
        row, sequence = piece.row, piece.sequence
        if row.digest_type not in _SHORT_DIGESTS:
            return None
        segment = self._segments.segments[sequence]
        try:
            data = self._files.read_at(
                sequence, row.offset, RECORD_HEADER_BYTES + RUN_HEADER_BYTES + 4 * row.entries
            )
            if header_of(data, row, segment.seed) is None:
                return None
            run = RunView.parse_table(data[RECORD_HEADER_BYTES:])
            if (run.ledger_id, run.first, run.last) != (row.ledger_id, row.first, row.last):
                return None
            start, end, through = fitting_part(run, low, high, left, more=more)
            if through < low:
                return b"", through
            offsets = run.offsets()
            at = row.offset + RECORD_HEADER_BYTES + offsets[start]
            entries = memoryview(self._files.read_at(sequence, at, offsets[end] - offsets[start]))
            digest_type = DigestType(row.digest_type)
            checker = EntryDigest(digest_type, b"") if digest_type in CHECKED_DIGESTS else None
            ids = run.ids()
            for position in range(start, end):
                entry = entries[offsets[position] - offsets[start] : offsets[position + 1] - offsets[start]]
                if not is_entry(entry, row, ids[position]):
                    return None
                if checker is not None:
                    opened = checker.open if run.scheme == SCHEME_PLAIN else checker.open_with_term
                    opened(entry, row.ledger_id, ids[position])
        except (OSError, MalformedFrameError, DigestMismatchError):
            return None  # the whole run is read and judged
        return cut_run(run, start, end, entries), through

    def _damaged(self, piece: RunPiece, what: str) -> None:
        row = piece.row
        path = str(self._files.path(piece.sequence))
        self._segments.damages.found(
            Damage(path, row.offset, row.ledger_id, row.first, row.last, what, row.origin_term)
        )


def _noted(pieces: Iterator[RunPiece], taken: list[RunPiece]) -> Iterator[RunPiece]:
    """The same pieces, each kept in `taken` as well."""
    for piece in pieces:
        taken.append(piece)
        yield piece


def header_of(data: bytes, row: Row, seed: int) -> RecordHeader | None:
    """The header of the record that the bytes begin with, if it is the very one that a row names."""
    header = decode_record_header(data, row.offset, seed)
    if (
        header is not None
        and header.ledger_id == row.ledger_id
        and header.first == row.first
        and header.last == row.last
        and header.lsn == row.lsn
        and header.origin_term == row.origin_term
        and header.body_bytes == row.body_bytes
    ):
        return header
    return None


def fitting_part(run: RunView, low: int, high: int, left: int, *, more: bool) -> tuple[int, int, int]:
    """(first position, position after the last, the id up to which they reach) of the entries that fit.

    One always does unless there is `more` in the response already; then the id may be below `low`.
    """
    start = count_ids(run.first, low - 1, run.period, run.stripes) if low > run.first else 0
    end = count_ids(run.first, high, run.period, run.stripes)
    offsets = run.offsets()

    def size_through(position: int) -> int:
        return RUN_HEADER_BYTES + offsets[position + 1] - offsets[start] + 4 * (position + 1 - start)

    fitting = bisect_right(range(start, end), left, key=size_through) + start
    if fitting == end:
        return start, end, high
    if fitting == start:
        if more:
            return start, start, low - 1
        fitting += 1
    return start, fitting, high if fitting == end else run.ids()[fitting - 1]


def cut_run(run: RunView, start: int, end: int, entries: Buffer) -> bytes:
    """The body of some positions of a run."""
    ids = run.ids()[start:end]
    stripes = 1
    if run.period > 1:
        stripes = sum({1 << entry_id % run.period for entry_id in ids})
    return encode_run(
        run.ledger_id,
        ids[0],
        ids[-1],
        [entries],
        run.sizes[start:end],
        digest_type=run.digest_type,
        period=run.period,
        stripes=stripes,
        origin_term=run.origin_term,
        scheme=run.scheme,
    )


def part_of(run: RunView, start: int, end: int) -> RunView:
    """The run of some positions of a run whose entries are all there."""
    offsets = run.offsets()
    return RunView.parse(cut_run(run, start, end, memoryview(run.body)[offsets[start] : offsets[end]]))


def is_entry(entry: Buffer, row: Row, entry_id: int) -> bool:
    """Whether an entry's header is that of an entry of a row."""
    if not row.origin_term:
        return len(entry) >= HEADER_BYTES and HEADER.unpack_from(entry)[:2] == (row.ledger_id, entry_id)
    identity = row.ledger_id, entry_id, row.origin_term
    return len(entry) >= TERM_HEADER_BYTES and TERM_IDENTITY.unpack_from(entry) == identity


class RecoveredRun(NamedTuple):
    """What is left of the wanted ids of a run.

    Attributes:
        runs: of the entries that verify, ascending.
        damaged: (first, last) of the others; between the ends are the ids of the run's stripes.
    """

    runs: Sequence[RunView]
    damaged: Sequence[tuple[int, int]]


def ends_of(row: Row, low: int, high: int) -> tuple[int, int] | None:
    """The lowest and the highest id of a row within low..high; None if it has none there."""
    low, high = max(low, row.first), min(high, row.last)
    first = next(iter(ids_in(low, min(high, low + row.period - 1), row.period, row.stripes)), None)
    if first is None:
        return None
    return first, ids_in(max(low, high - row.period + 1), high, row.period, row.stripes)[-1]


def positions_of(row: Row, low: int, high: int) -> tuple[int, int]:
    """Positions start:end of the ids low..high in the run of a row."""
    low, high = max(low, row.first), min(high, row.last)
    start = count_ids(row.first, low - 1, row.period, row.stripes) if low > row.first else 0
    return start, max(start, count_ids(row.first, high, row.period, row.stripes)) if high >= low else start


def recover_run(body: Buffer, row: Row, low: int, high: int) -> RecoveredRun:
    """Look at each entry of low..high in the body of a run that as a whole does not verify.

    Args:
        body: what lies on the disk; its record's header verifies.
        row: of the run.
        low: lowest id of interest.
        high: highest id of interest.
    """
    ends = ends_of(row, low, high)
    if ends is None:
        return RecoveredRun((), ())
    everything = RecoveredRun((), (ends,))
    if row.digest_type not in CHECKED_DIGESTS:  # or none at all: an old client's, before the type was known
        return everything
    try:
        run = RunView.parse_table(body)
    except MalformedFrameError:
        return everything
    if (run.ledger_id, run.first, run.last, run.count) != (row.ledger_id, row.first, row.last, row.entries):
        return everything
    ids, offsets, view = run.ids(), run.offsets(), memoryview(body)
    digest = EntryDigest(DigestType(row.digest_type), b"")

    def verifies(position: int) -> bool:
        entry = view[offsets[position] : offsets[position + 1]]
        if not is_entry(entry, row, ids[position]):
            return False
        opened = digest.open if run.scheme == SCHEME_PLAIN else digest.open_with_term
        try:
            opened(entry, row.ledger_id, ids[position])
        except (MalformedFrameError, DigestMismatchError):
            return False
        return True

    runs: list[RunView] = []
    damaged: list[tuple[int, int]] = []
    for good, group in groupby(range(*positions_of(row, *ends)), key=verifies):
        positions = list(group)
        start, end = positions[0], positions[-1] + 1
        if good:
            runs.append(part_of(run, start, end))
        else:
            damaged.append((ids[start], ids[end - 1]))
    return RecoveredRun(runs, damaged)


_UNREADABLE: Final = 0x80
"""With the flag DAMAGED of a row that was made up here: it is unknown whether what it stands for is damaged."""
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

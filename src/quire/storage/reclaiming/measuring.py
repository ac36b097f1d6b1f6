"""Measures what the segments' files hold, in slices: `storage/space_reasons.py` gives every byte its reason.

What a segment holds of a ledger counts as living if something of it lives there, but for ledgers that are partly dead: of
these, what lives is looked up. An entry that was put twice lives twice until compaction meets it.

Source: docs/operations.md, "What holds space".
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Iterator, Mapping
from itertools import islice
from typing import TypeAlias

from crc32c import crc32c

from quire.core.ids import ID_MAX
from quire.env.interfaces import Clock
from quire.storage.dead_ranges import is_dead
from quire.storage.formats.footer_format import STATE_HEAD, DirectoryEntry, read_directory, row_at
from quire.storage.formats.record_bodies import TOMBSTONE
from quire.storage.formats.state_format import SHRUNK_STATE, encode_state
from quire.storage.index import RunPiece
from quire.storage.reading import RunReader
from quire.storage.segments.segment import Segment
from quire.storage.segments.segment_files import SegmentFiles
from quire.storage.slices import LEDGERS_A_STEP, Slice
from quire.storage.space_reasons import Reason, SegmentUse, bytes_by_reason
from quire.storage.states import States, StoredLedger, stored_state
from quire.wire.run import count_ids
from quire.wire.stored_record import RECORD_HEADER_BYTES, seed_at

LedgerRange: TypeAlias = tuple[int, int, int, int]
"""A ledger, first and last id, and the LSN up to which what is there counts."""


class SpaceMeter:
    """Measures what holds the space of a bookie's disk.

    Args:
        segments: those in use, by sequence.
        states: all ledgers.
        reader: finds what lives.
        files: the segments' files.
        clock: for the length of a slice.
        reserve: spares that new adds may not use.
    """

    def __init__(
        self,
        segments: dict[int, Segment],
        states: States,
        reader: RunReader,
        files: SegmentFiles,
        clock: Clock,
        *,
        reserve: int,
    ) -> None:
        self._segments = segments
        self._states = states
        self._reader = reader
        self._files = files
        self._clock = clock
        self._reserve = reserve

    def file_bytes(self, retired: Collection[int]) -> int:
        """The size of all files: of segments in use, those on their way back, and spares; the sum of what `steps` returns."""
        freed = len(set(retired) - self._segments.keys())
        used = sum(segment.header.segment_bytes for segment in self._segments.values())
        return used + (freed + len(self._files.spares)) * self._files.segment_bytes

    def steps(
        self,
        among_live: Mapping[Reason, Iterable[LedgerRange]],
        stays: Collection[int],
        retired: Collection[int],
        pinned: Collection[int],
    ) -> Generator[None, None, dict[Reason, int]]:
        """Measure in slices; returns bytes by reason. What is put meanwhile may count or not.

        Args:
            among_live: entries that live here and are to go, or may have to.
            stays: segments that are not compacted.
            retired: segments on their way back; those that are not in use any more are counted too.
            pinned: segments that are being read.
        """
        part = Slice(self._clock)
        uses: list[SegmentUse] = []
        known = list(self._segments.values())
        freed = len(set(retired) - {segment.sequence for segment in known})
        for segment in known:
            live, dead = yield from self._measure(segment, part)
            sealed = segment.trailer is not None
            uses.append(
                SegmentUse(
                    segment.header.segment_bytes,
                    live,
                    dead,
                    0 if sealed else segment.header.segment_bytes - segment.data_end,
                    sealed=sealed,
                    lives=not sealed or segment.live > 0,
                    stays=segment.sequence in stays,
                    retired=segment.sequence in retired,
                    pinned=segment.sequence in pinned,
                )
            )
        uses += [SegmentUse(self._files.segment_bytes, 0, 0, retired=True)] * freed
        sizes: dict[Reason, int] = {}
        for reason, ranges in among_live.items():
            sizes[reason] = 0
            for one in ranges:
                sizes[reason] += self._size_of(*one)
                if part.over:
                    yield
                    part.begin()
        tombstones = yield from self._tombstones(part)
        return bytes_by_reason(
            uses,
            spares=len(self._files.spares),
            reserve=self._reserve,
            segment_bytes=self._files.segment_bytes,
            tombstones=tombstones,
            among_live=sizes,
        )

    def _measure(self, segment: Segment, part: Slice) -> Generator[None, None, tuple[int, int]]:
        """(bytes of runs of which something lives, bytes of other runs) in a segment."""
        if segment.table is not None:
            return (yield from self._measure_table(segment, part))
        live = dead = 0
        entries = directory_of(self._files, segment)
        while some := list(islice(entries, LEDGERS_A_STEP)):
            for entry in some:
                whole = entry.data_bytes + entry.rows * RECORD_HEADER_BYTES
                lives = self._living(segment, entry, whole)
                live += lives
                dead += whole - lives
                if part.over:
                    yield
                    part.begin()
        return live, dead

    def _living(self, segment: Segment, entry: DirectoryEntry, whole: int) -> int:
        """How many bytes of a ledger's runs live in a sealed segment."""
        ledger = self._states.ledgers.get(entry.ledger_id)
        if ledger is None or not ledger.has_span(segment.sequence):
            return 0
        if not ledger.partly_dead:
            return whole
        pieces = self._pieces(entry.ledger_id, ledger, entry.first, entry.last)
        return min(sum(_share(piece) for piece in pieces if piece.sequence == segment.sequence), whole)

    def _measure_table(self, segment: Segment, part: Slice) -> Generator[None, None, tuple[int, int]]:
        live = dead = index = 0
        while (table := segment.table) is not None and index < len(table):
            for at in range(index, min(index + LEDGERS_A_STEP, len(table))):
                row = row_at(table.rows, at)
                size = row.body_bytes + RECORD_HEADER_BYTES
                ledger = self._states.ledgers.get(row.ledger_id)
                if (
                    ledger is None
                    or row.lsn <= ledger.dead_through
                    or is_dead(ledger.dead_ranges, row.first, row.last, row.lsn)
                ):
                    dead += size
                else:
                    live += size
            index += LEDGERS_A_STEP
            if part.over:
                yield
                part.begin()
        return live, dead

    def _size_of(self, ledger_id: int, first: int, last: int, through: int) -> int:
        """Bytes of a ledger's entries first..last that were put up to an LSN."""
        ledger = self._states.ledgers.get(ledger_id)
        if ledger is None:
            return 0
        return sum(
            _share(piece, first, last)
            for piece in self._pieces(ledger_id, ledger, first, last)
            if piece.row.lsn <= through
        )

    def _pieces(self, ledger_id: int, ledger: StoredLedger, first: int, last: int) -> Iterator[RunPiece]:
        last = min(last, ledger.last)
        for term in self._reader.origin_terms(ledger_id, ledger, first, last)[0]:
            yield from self._reader.pieces(ledger_id, ledger, first, last, term)

    def _tombstones(self, part: Slice) -> Generator[None, None, int]:
        """Bytes of the records of deleted ledgers, each once as a record and once in a footer."""
        size = len(self._states.shrunk) * (TOMBSTONE.size + STATE_HEAD.size + SHRUNK_STATE.size)
        stones = iter(list(self._states.tombstones.values()))
        while some := list(islice(stones, LEDGERS_A_STEP)):
            for ledger in some:
                body = len(encode_state(stored_state(ledger)))
                size += RECORD_HEADER_BYTES + body + STATE_HEAD.size + body
            if part.over:
                yield
                part.begin()
        return size


def directory_of(files: SegmentFiles, segment: Segment) -> Iterator[DirectoryEntry]:
    """The directory of a sealed segment; empty where it does not verify, which a start or a read reports."""
    trailer = segment.trailer
    assert trailer is not None
    size = trailer.directory_end - trailer.directory_offset
    try:
        data = files.read_at(segment.sequence, trailer.directory_offset, size)
    except OSError:
        return iter(())
    good = crc32c(data, seed_at(segment.seed, trailer.directory_offset)) == trailer.directory_checksum
    return read_directory(data) if good else iter(())


def _share(piece: RunPiece, first: int = 0, last: int = ID_MAX) -> int:
    """How many bytes of its record a piece stands for, as far as it lies in first..last."""
    row = piece.row
    low, high = max(piece.first, row.first, first), min(piece.last, row.last, last)
    if low > high or not row.entries:
        return 0
    some = count_ids(low, high, row.period, row.stripes) if row.entries > 1 else 1
    return (row.body_bytes + RECORD_HEADER_BYTES) * some // row.entries

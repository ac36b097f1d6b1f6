"""Giving back segments in which nothing lives.

The order makes a crash harmless at each step: state that only the segment holds is journaled anew, then its retirement;
when both are durable, and not before, the file may become a spare; only then may it be written to again.

Source: `docs/formats/segment.md`, "What a crash can leave"; decisions on live state and on recycling.
"""

from __future__ import annotations

from crc32c import crc32c

from quire.core.errors import StorageError
from quire.storage.journal import Journal
from quire.storage.kept_records import KeptRecords
from quire.storage.reading import FooterCache
from quire.storage.record_bodies import encode_retirement
from quire.storage.segment import Segment
from quire.storage.segment_files import SegmentFiles, Space
from quire.storage.segment_format import ALL_LEDGERS, Kind
from quire.storage.states import States


class Reclaimer:
    """Retires and recycles.

    Args:
        segments: those in use, by sequence.
        states, kept: what must outlive them.
        journal: where retirements go.
        files: the segments' files.
        cache: rows in memory, dropped with their segment.
        spares_max: files to keep for new segments.

    Attributes:
        retiring: retired, but that is not durable yet.
    """

    def __init__(
        self,
        segments: dict[int, Segment],
        states: States,
        kept: KeptRecords,
        journal: Journal,
        files: SegmentFiles,
        cache: FooterCache,
        spares_max: int,
    ) -> None:
        self._segments = segments
        self._states = states
        self._kept = kept
        self._journal = journal
        self._files = files
        self._cache = cache
        self._spares_max = spares_max
        self.retiring: set[int] = set()

    def reclaim(self) -> int:
        """Retire what is wholly dead. Returns how many segments this call retires."""
        dead = [
            sequence
            for sequence, segment in self._segments.items()
            if segment.trailer is not None and segment.live == 0 and sequence not in self.retiring
        ]
        if not dead or self._journal.failure is not None:
            return 0
        gone = set(dead)
        try:
            self._states.carry_over(gone)
            self._kept.carry_over(gone)
            body = encode_retirement(dead)
            # From here on a new segment's list leaves them out. It cannot be on disk before their state is: order.
            self.retiring |= gone
            self._journal.put(Kind.RETIREMENT, ALL_LEDGERS, body, crc32c(body), Space.STATE)
        except StorageError:
            self.retiring -= gone  # a full or failed disk: the segments stay as they are
            return 0
        self._journal.wait(self, dead)
        self._journal.flush()
        return len(dead)

    def stored(self, tag: object, error: StorageError | None) -> None:
        """A retirement is durable: the files may be used again."""
        if error is not None:
            return
        assert isinstance(tag, list)
        try:
            for sequence in tag:
                self.retiring.discard(sequence)
                self._segments.pop(sequence).close()
                self._cache.forget(sequence)
                self._files.recycle(sequence, keep=self._spares_max)
        except OSError as failed:
            self._journal.fail(failed)
            return
        if self._journal.full:
            self._journal.look_for_space()

"""Giving back segments in which nothing lives.

A segment is *retired* by a journaled record which says that nothing is read from it any more; its file becomes a *spare*,
which a new segment will use, or its space is given back. The order makes a crash harmless at each step: state that only the
segment holds is journaled anew, then its retirement; when both are durable, and not before, the file may become a spare; only
then may it be written to again. Of one that is not needed the space goes back a part at a time, with rests in between.
Tombstones that kept dead what it held go last. All of it is done in slices, between which anything may be put.

Source: `docs/formats/segment.md`, "What a crash can leave, and what the start does", "Deleted ledgers";
docs/decisions/028-state-is-live.md.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator
from functools import partial
from operator import itemgetter
from typing import Final

from quire.core.errors import StorageError
from quire.env.interfaces import Clock
from quire.storage.formats.footer_format import STATE_HEAD
from quire.storage.formats.record_bodies import TOMBSTONE, encode_retirement
from quire.storage.formats.segment_format import ALL_LEDGERS, SegmentRecordKind
from quire.storage.formats.state_format import SHRUNK_STATE
from quire.storage.journal import Journal
from quire.storage.reclaiming.kept_records import KeptRecords
from quire.storage.segments.segment import Segment
from quire.storage.segments.segment_files import SegmentFiles, Space, is_spare
from quire.storage.slices import LEDGERS_A_STEP, Slice
from quire.storage.states import States
from quire.wire.stored_record import RECORD_HEADER_BYTES

BACKLOG_MAX: Final = 4
"""With more full groups waiting for the disk, what is relocated waits too."""
RELOCATED_SHARE_MAX: Final = 0.5
"""A segment whose live states would fill more of the next one stays where it is: to move it would gain little."""


class Reclaimer:
    """Retires segments in which nothing lives, and recycles their files.

    Args:
        segments: those in use, by sequence.
        states, kept: what must outlive them.
        journal: where retirements go.
        files: the segments' files.
        clock: for the length of a slice.
        spares_max: files to keep for new segments.
        on_freed: called with each segment that nothing is read of any more.

    Attributes:
        retiring: retired, but that is not durable yet.
        pinned: segments that somebody reads in another thread: they are not retired.
        rest: how long to rest, in seconds, after so many that a part took while so many files waited; while the disk is full
            there is no rest.
        later: calls something after so many seconds.
        closed: nothing more is begun.
    """

    def __init__(
        self,
        segments: dict[int, Segment],
        states: States,
        kept: KeptRecords,
        journal: Journal,
        files: SegmentFiles,
        clock: Clock,
        spares_max: int,
        on_freed: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._segments = segments
        self._states = states
        self._kept = kept
        self._journal = journal
        self._files = files
        self._clock = clock
        self._spares_max = spares_max
        self._on_freed = on_freed
        self._at_work = False
        self._to_recycle: deque[Segment] = deque()
        self._to_remove: deque[tuple[int, Iterator[Callable[[], None]]]] = deque()
        self._recycling: list[int] = []
        self._resting = False
        self._part_begun_ns = 0
        self._recycled: deque[Segment] = deque()
        self.rest: Callable[[float, int], float] = lambda *_: 0.0
        self.later: Callable[[float, Callable[[], None]], object] = lambda _, call: call()
        self.closed = False
        self.retiring: set[int] = set()
        self.pinned: set[int] = set()

    @property
    def returning(self) -> list[int]:
        """Segments that were retired and whose files are not back yet."""
        waiting = [segment.sequence for segment in self._to_recycle]
        removed = [sequence for sequence, _ in self._to_remove]
        return [*self.retiring, *waiting, *removed, *self._recycling]

    def steps(self, *, patient: bool) -> Generator[None, None, int]:
        """Retire what is wholly dead, in slices.

        Args:
            patient: wait, between two slices, while much waits for the disk.

        Returns:
            How many segments this retires; 0 if another call is at it.
        """
        if self._at_work or self._journal.failure is not None:
            return 0
        self._at_work = True
        try:
            return (yield from self._steps(patient=patient))
        finally:
            self._at_work = False

    def _steps(self, *, patient: bool) -> Generator[None, None, int]:
        part, journal = Slice(self._clock), self._journal
        yield from self._forget_recycled(part)
        dead = yield from self._worth_it(part)
        if not dead:
            return 0
        retired: set[int] = set()
        try:
            for relocated in (self._states.relocate(dead, part), self._kept.relocate(dead, part)):
                for _ in relocated:
                    journal.flush(inline=False)
                    yield
                    while patient and journal.backlog > BACKLOG_MAX:
                        yield
                    part.begin()
            # One whose footer was found to be damaged meanwhile is another one now.
            dead = [segment for segment in dead if self._segments.get(segment.sequence) is segment]
            if not dead:
                return 0
            retired = {segment.sequence for segment in dead}
            body = encode_retirement(sorted(retired))
            # From here on a new segment's list leaves them out. It cannot be on disk before their state is: order.
            self.retiring |= retired
            journal.put(SegmentRecordKind.RETIREMENT, ALL_LEDGERS, body, Space.RETIREMENT)
        except StorageError:
            self.retiring -= retired  # a full or failed disk: the segments stay as they are
            return 0
        journal.wait(self, dead)
        journal.flush()
        return len(dead)

    def _worth_it(self, part: Slice) -> Generator[None, None, list[Segment]]:
        """The segments in which nothing lives but states, and of these not too many.

        On a full disk those without any, for which there is always room; else those with the fewest, one at least: what is
        relocated needs space before it gives any back.
        """
        found: list[tuple[int, Segment]] = []
        for segment in list(self._segments.values()):
            trailer = segment.trailer
            if trailer is None or segment.live or segment.sequence in self.retiring | self.pinned:
                continue
            states = 0
            for some in self._states.newest_in(segment):
                states += some
                if part.over:
                    yield
                    part.begin()
            body = (trailer.rows_offset - trailer.states_offset) // max(trailer.states, 1)
            relocated = states * (RECORD_HEADER_BYTES + body + body)
            relocated += len(segment.contents.shrunk) * (TOMBSTONE.size + STATE_HEAD.size + SHRUNK_STATE.size)
            if self._journal.full or relocated <= RELOCATED_SHARE_MAX * segment.header.segment_bytes:
                found.append((relocated, segment))
        if not self._journal.full:
            return [segment for _, segment in found]
        if nothing_to_relocate := [segment for relocated, segment in found if not relocated]:
            return nothing_to_relocate
        found.sort(key=itemgetter(0))
        fitting, total = 0, 0
        for relocated, segment in found:
            total += relocated
            fitting += total <= RELOCATED_SHARE_MAX * segment.header.segment_bytes
        return [segment for _, segment in found[: max(fitting, 1)]]

    # --- files ------------------------------------------------------------------------------------------------------

    def stored(self, tag: object, error: StorageError | None) -> None:
        """A retirement is durable: the files may be used again."""
        if error is not None:
            return
        assert isinstance(tag, list)
        for segment in tag:
            self.retiring.discard(segment.sequence)
            del self._segments[segment.sequence]
            segment.close()
            self._on_freed(segment.sequence)
            self._to_recycle.append(segment)
        self._recycle_next()

    def _recycle_next(self) -> None:
        """Give back one file after the other, each a job of its own: what is put meanwhile does not wait for all."""
        if self._recycling or self.closed or self._journal.failure is not None:
            return
        if self._to_recycle:
            segment = self._to_recycle.popleft()
            self._recycling.append(segment.sequence)
            try:
                name, job = self._files.recycling(segment.sequence, keep=self._spares_max)
            except OSError as failed:
                self._journal.fail(failed)
                return
            self._journal.work(job, partial(self._was_recycled, segment, name))
        elif self._to_remove:
            self._remove_part()
        elif self._journal.full:
            self._journal.look_for_space()

    def _was_recycled(self, segment: Segment, name: str) -> None:
        if is_spare(name):
            self._files.add_spare(name, rests=True)
        else:
            parts = self._files.removing(name, segment.header.segment_bytes)
            self._to_remove.append((segment.sequence, parts))
        self._recycled.append(segment)
        self._recycling.clear()
        self._recycle_next()

    def _remove_part(self) -> None:
        if self._resting:
            return
        sequence, parts = self._to_remove[0]
        part = next(parts, None)
        if part is None:
            self._to_remove.popleft()
            self._recycle_next()
            return
        self._recycling.append(sequence)
        self._part_begun_ns = self._clock.now_ns()
        self._journal.work(part, self._was_part_removed)

    def _was_part_removed(self) -> None:
        self._recycling.clear()
        self._resting = True
        took = (self._clock.now_ns() - self._part_begun_ns) / 1e9
        self.later(0.0 if self._journal.full else self.rest(took, len(self._to_remove)), self._rested)

    def _rested(self) -> None:
        self._resting = False
        self._recycle_next()

    def _forget_recycled(self, part: Slice) -> Generator[None, None, None]:
        """What recycled segments held cannot come back: tombstones that only they kept go."""
        while self._recycled:
            for held in self._recycled[0].contents.held:
                while held:
                    some = held[-LEDGERS_A_STEP:]
                    del held[-LEDGERS_A_STEP:]
                    self._states.release(some)
                    if part.over:
                        yield
                        part.begin()
            self._recycled.popleft()

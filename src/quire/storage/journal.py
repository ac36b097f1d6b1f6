"""Group commit: what is put while a write runs goes into the next one; one write and one sync for all of it.

Records are laid out at once in an aligned buffer at the offset where they will stay. One group is on its way to the disk
at a time. Nothing is acknowledged before the sync has returned, and after a failed write or sync nothing ever is.

Source: docs/decisions/026-torn-or-damaged.md; docs/decisions/027-failed-sync.md; `docs/formats/segment.md`, "Group
header".
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from crc32c import crc32c

from quire.core.errors import DescriptorShortageError, DiskFullError, StorageError
from quire.env.descriptors import is_shortage
from quire.env.interfaces import Buffer, Worker
from quire.storage.config import StorageConfig
from quire.storage.directory.patient_worker import PatientWorker
from quire.storage.formats.footer_format import Trailer
from quire.storage.formats.record_bodies import encode_segment_list
from quire.storage.formats.segment_format import (
    ALL_LEDGERS,
    BLOCK_BYTES,
    GROUP_HEADER_BYTES,
    U32,
    SegmentRecordKind,
    aligned,
)
from quire.storage.segments.segment import Group, Item, Segment, WriteCallback, footer_room
from quire.storage.segments.segment_files import NO_SPACE, SegmentFiles, Space, block_buffer
from quire.wire.plain_adds import AddedRun, OrdinaryRun
from quire.wire.stored_record import RECORD_HEAD, RECORD_HEADER_BYTES, padded

BUFFERS_KEPT = 5
BLANKED_BYTES = 1024 * 1024
BLANKED_BYTES_MIN = 64 * 1024
_CHECKSUM_AT: Final = RECORD_HEADER_BYTES - 4
_PADDING = bytes(8)


@dataclass(frozen=True, slots=True)
class IdsOfRecord:
    """Which ids a record is about that holds no run: none, unless it says so."""

    first: int = -1
    last: int = -1
    period: int = 0
    stripes: int = 0
    count: int = 0
    digest_type: int = 0
    origin_term: int = 0


NO_IDS: Final = IdsOfRecord()


class Journal:
    """Where everything goes that must last.

    Args:
        config: sizes and limits.
        files: the segments' files.
        worker: the only extra thread.
        current: the segment to go on in, None to begin one with the first put.
        sequences: the segments in use, for the list that each new one begins with.
        on_opened: called with each new segment.
        on_durable: called before the callbacks when a group is durable, with its last LSN.
        on_sealed: called when a segment's footer is on disk, with its trailer and directory.

    Attributes:
        last_lsn: the last that was assigned.
        next_sequence: for the next new segment.
        terms: new segments say that they may hold terms of streams: one in use does, or a stream is here.
    """

    def __init__(
        self,
        config: StorageConfig,
        files: SegmentFiles,
        worker: Worker,
        *,
        current: Segment | None,
        sequences: Callable[[], list[int]],
        on_opened: Callable[[Segment], None],
        on_durable: Callable[[int], None],
        on_sealed: Callable[[Segment, Trailer, bytes], None],
    ) -> None:
        self._config = config
        self._files = files
        self._worker = PatientWorker(worker, files.make_room, lambda: self.failure is not None)
        self._sequences = sequences
        self._on_opened = on_opened
        self._on_durable = on_durable
        self._on_sealed = on_sealed
        self._buffer_bytes = aligned(GROUP_HEADER_BYTES + config.group_bytes_max) + BLOCK_BYTES
        self._buffers: list[memoryview] = []
        self._group: Group | None = None
        self._closed: deque[Group] = deque()
        self._in_flight: Group | None = None
        self._to_seal: deque[Segment] = deque()
        self._jobs = 0
        self._refused: list[Item] = []
        self._idle: list[Callable[[], None]] = []
        self.current = current
        self.before_last: tuple[int, int] = (0, 0)
        self.last_lsn = 0
        self.durable_lsn = 0
        self.next_sequence = 1
        self.terms = False
        self.full = False
        self.failure: StorageError | None = None
        self.groups_written = 0
        self.bytes_written = 0
        self.record_bytes_max = footer_room(config.segment_bytes) - GROUP_HEADER_BYTES

    # --- putting --------------------------------------------------------------------------------------------------

    def put(
        self,
        kind: int,
        ledger_id: int,
        body: Buffer,
        space: Space,
        run: AddedRun | IdsOfRecord = NO_IDS,
        *,
        body_checksum: int | None = None,
        token: int = 0,
        lac: int = -1,
        flags: int = 0,
        of_stream: bool = False,
        relocated_lsn: int = 0,
        item: Item | None = None,
    ) -> tuple[Segment, int, int]:
        """Give a record its LSN and its offset; the callback of `item` is called when it is durable.

        `run` says which ids it is about. One that is relocated keeps its LSN: the number that it is assigned then is its
        offset's, for the order of groups.

        One of a stream, with an origin term or without, goes into a segment that says that it may hold terms.

        Returns:
            (segment, offset of the record, LSN). It is on disk when `durable_lsn` has reached the LSN.

        Raises:
            DiskFullError: no space that may be used for this.
            StorageError: the record is larger than a segment, or the disk has failed.
        """
        if self.failure is not None:
            raise self.failure
        if body_checksum is None:
            body_checksum = crc32c(body)
        size, group, first, last, origin_term = len(body), self._group, run.first, run.last, run.origin_term
        length = RECORD_HEADER_BYTES + size + 7 & ~7
        left_over = self._files.left_over(space) if self.full else 0
        if (
            group is None
            or group.used + length > len(group.view) - BLOCK_BYTES
            or not group.segment.fits(group.offset + group.used + length, ledger_id, kind, size, left_over)
            or (self.full and space is Space.ADDS)
            or ((origin_term or of_stream) and not group.segment.header.terms)
        ):
            of_stream = of_stream or origin_term > 0
            group = self._room(kind, ledger_id, length, size, space, left_over, of_stream=of_stream)
        lsn = self.last_lsn = self.last_lsn + 1
        segment, at, view, offset = group.segment, group.used, group.view, group.offset + group.used
        RECORD_HEAD.pack_into(
            view, at, length, kind, 0, run.digest_type, run.period, relocated_lsn or lsn, ledger_id, first, last, origin_term,
            token, lac, run.stripes, run.count, 0, 0, flags, size, body_checksum, 0,
        )  # fmt: skip
        checksum = crc32c(view[at : at + _CHECKSUM_AT], segment.seed ^ (offset & 0xFFFFFFFF))
        U32.pack_into(view, at + _CHECKSUM_AT, checksum)
        body_at, end = at + RECORD_HEADER_BYTES, at + length
        view[body_at : body_at + size] = body
        if body_at + size != end:
            view[body_at + size : end] = _PADDING[: end - body_at - size]
        group.used, group.records, group.first_lsn = end, group.records + 1, group.first_lsn or lsn
        segment.first_lsn = min(segment.first_lsn or lsn, relocated_lsn or lsn)
        group.last_lsn = segment.last_lsn = lsn
        # Other records that concern all ledgers are about segments, or about what is dead: their loss hides no entry.
        if ledger_id >= 0 or kind == SegmentRecordKind.UNNAMED_LIMBO:
            group.name(ledger_id, first, last)
        if item is not None:
            group.items.append(item)
        return segment, offset, lsn

    def put_runs(
        self, runs: Sequence[OrdinaryRun], callback: WriteCallback, tag: Callable[[int], object]
    ) -> tuple[Segment, list[int], int]:
        """As `put`, of the first of these runs that have room in one group, at least one; they are one item of it.

        Args:
            runs: at least one.
            callback: is called with `tag(count)`, for as many as were taken.
            tag: makes that of their number.

        Returns:
            (segment, the offsets of the records, LSN of the first); each has an LSN one higher than the one before it.
        """
        if self.failure is not None:
            raise self.failure
        lengths = [RECORD_HEADER_BYTES + len(run[3]) + 7 & ~7 for run in runs]
        group, count, lsn = self._group, 0, self.last_lsn + 1
        if group is not None and not self.full:
            count = group.room_for(runs, lengths)
        if group is None or not count:
            kind, ledger_id, size = SegmentRecordKind.RUN, runs[0][0], len(runs[0][3])
            group = self._room(kind, ledger_id, lengths[0], size, Space.ADDS, 0, of_stream=False)
            lsn, count = self.last_lsn + 1, max(1, group.room_for(runs, lengths))
        offsets = group.put_runs(runs[:count], lengths[:count], lsn)
        self.last_lsn += count
        group.items.append((callback, tag(count), None))
        return group.segment, offsets, lsn

    def wait(self, callback: WriteCallback, tag: object) -> None:
        """Call the callback when what was put last is durable."""
        assert self._group is not None
        self._group.items.append((callback, tag, None))

    def refuse(self, callback: WriteCallback, tag: object, error: StorageError) -> None:
        """Call the callback, in its turn: what it put was not taken."""
        group = self._group or (self._closed[-1] if self._closed else self._in_flight)
        if group is not None:
            group.items.append((callback, tag, error))
        else:
            self._refused.append((callback, tag, error))

    def _room(
        self,
        kind: int,
        ledger_id: int,
        length: int,
        size: int,
        space: Space,
        left_over: int,
        *,
        of_stream: bool,
    ) -> Group:
        """Begin a group that has room for a record, in a new segment if need be."""
        if length > self.record_bytes_max:
            raise StorageError(
                f"a record of {length} bytes does not fit into a segment of {self._config.segment_bytes}: raise "
                f"segment_bytes, or append smaller entries",
                ledger_id=ledger_id,
            )
        if self.full and space is Space.ADDS:
            raise self._disk_full()
        self._close_group()
        segment = self.current
        if segment is not None and (segment.header.terms or not of_stream):
            end = segment.data_end + GROUP_HEADER_BYTES + length
            if segment.fits(end, ledger_id, kind, size, left_over):
                self._group = Group(segment, self._buffer(length), opens=False)
                return self._group
        self.terms = self.terms or of_stream
        return self._roll(length, space)

    def _close_group(self) -> None:
        if self._group is not None:
            self._group.close()
            self._closed.append(self._group)
            self._group = None

    def _buffer(self, length: int) -> memoryview:
        """Page-aligned memory for a group with a record of this length, used before if possible."""
        bytes_max = GROUP_HEADER_BYTES + length + 256
        if self._buffers and bytes_max <= self._buffer_bytes - BLOCK_BYTES:
            return self._buffers.pop()
        needed = aligned(bytes_max) + BLOCK_BYTES
        return memoryview(block_buffer(max(needed, self._buffer_bytes)))

    def _disk_full(self) -> DiskFullError:
        if self._files.short:
            return DiskFullError(
                f"no file for new entries can be created in {self._files.directory}, because no file "
                "descriptor is left: raise the limit (ulimit -n); the bookie continues by itself "
                "when descriptors are free",
                path=str(self._files.directory),
            )
        return DiskFullError(
            f"the disk of {self._files.directory} is full: new entries are refused, stored entries "
            "stay readable; delete ledgers or add disk space, and the bookie continues by itself",
            path=str(self._files.directory),
        )

    def _roll(self, length: int, space: Space) -> Group:
        """Begin a new segment; its first record is the list of segments in use."""
        try:
            there = self._files.make_spares(self._config.reserve_segments + 1)
        except OSError as error:
            raise self.fail(error) from error
        if not there:
            self.full = True
        segment = self._files.take(self.next_sequence, self.last_lsn + 1, space, terms=self.terms)
        if segment is None:
            raise self._disk_full()
        if len(self._files.spares) < self._config.reserve_segments:
            self.full = True
        self.next_sequence += 1
        old, self.current = self.current, segment
        if old is not None:
            # Not the last LSN assigned: a start that goes on in an old segment leaves a gap before its own first one.
            self.before_last = (old.sequence, old.last_lsn)
            self._to_seal.append(old)
        self._on_opened(segment)
        body = encode_segment_list(*self.before_last, self._sequences())
        self._group = Group(
            segment, self._buffer(length + padded(RECORD_HEADER_BYTES + len(body))), opens=True
        )
        self.put(SegmentRecordKind.SEGMENT_LIST, ALL_LEDGERS, body, Space.RETIREMENT)
        return self._group

    # --- writing --------------------------------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """Something is put that is not yet on disk, or a segment is being sealed."""
        return bool(self._in_flight or self._group or self._closed or self._refused or self._jobs)

    @property
    def backlog(self) -> int:
        """Groups that are full and wait for the disk."""
        return len(self._closed)

    def flush(self, *, inline: bool = True) -> None:
        """What was put goes to the disk: at once if that is little and nothing is on its way, else on the worker.

        Not `inline`: on the worker, however little it is.
        """
        if self.failure is not None:
            if self._in_flight is None:
                self._fail_waiting(self.failure)
        elif self._in_flight is None and (self._group is not None or self._closed):
            self._start(idle=inline and not self._jobs)
        elif self._in_flight is None and self._refused:
            refused, self._refused = self._refused, []
            self._tell(refused, None)

    def _start(self, *, idle: bool) -> None:
        if not self._closed:
            self._close_group()
        group = self._closed.popleft()
        if self._refused:
            group.items[:0] = self._refused
            self._refused = []
        alone = idle and not self._closed and self._group is None
        puts = max(group.records, len(group.items))  # the runs of a bundle are one item
        small = group.used <= self._config.inline_bytes_max and puts <= self._config.inline_items_max
        self._in_flight = group
        if alone and small and not group.opens:
            self._write_inline(group)
        else:
            self._worker.submit(partial(group.write, self._files.activate), partial(self._written, group))

    def _write_inline(self, group: Group) -> None:
        result: object = None
        try:
            group.write(self._files.activate)
        except (OSError, ValueError) as error:
            result = error
        self._written(group, result)
        self._blank_ahead()

    def _blank_ahead(self) -> None:
        """Write zeros in front of a stream of small groups, if the file is a fresh one.

        The first write to a reserved block makes the file system commit that the block is written now: a second write,
        which all bookies of a disk wait for in turn (docs/decisions/005). What is put meanwhile goes to the worker,
        after the zeros. A stream of large groups does not come here: it would only write everything twice.
        """
        segment = self.current
        if (
            segment is None
            or segment.blanked_end - segment.data_end >= BLANKED_BYTES_MIN
            or segment.recycled
            or self._jobs
            or self._in_flight is not None
            or self.failure is not None
        ):
            return
        start = max(segment.blanked_end, segment.data_end)
        end = min(start + BLANKED_BYTES, segment.header.segment_bytes)
        if start < end:
            self._jobs += 1
            self._worker.submit(partial(segment.blank, start, end), partial(self._blanked, segment, end))

    def _blanked(self, segment: Segment, end: int, result: object) -> None:
        self._jobs -= 1
        if isinstance(result, BaseException):
            self._fail_waiting(self.fail(result))
        else:
            segment.blanked_end = end
        self._check_idle()

    def _written(self, group: Group, result: object) -> None:
        self._in_flight = None
        if isinstance(result, BaseException):
            self.fail(result)
        if self.failure is not None:
            # Also if this group is on the disk and another file's sync failed meanwhile: no response after that.
            self._tell(group.items, self.failure)
            self._fail_waiting(self.failure)
        else:
            self.durable_lsn = group.last_lsn
            self.groups_written += 1
            self.bytes_written += group.used
            self._on_durable(group.last_lsn)
            if self._group is not None or self._closed:
                self._start(idle=False)
            if group.opens:
                self._seal_before(group.segment.sequence)
            self._tell(group.items, None)
        if len(group.view) == self._buffer_bytes and len(self._buffers) < BUFFERS_KEPT:
            self._buffers.append(group.view)
        if self._idle:
            self._check_idle()

    def _tell(self, items: list[Item], error: StorageError | None) -> None:
        for callback, tag, own in items:
            callback.stored(tag, own or error)

    # --- sealing --------------------------------------------------------------------------------------------------

    def _seal_before(self, sequence: int) -> None:
        """A segment is open and on disk: seal those before it."""
        while self._to_seal and self._to_seal[0].sequence < sequence:
            segment = self._to_seal.popleft()
            self._jobs += 1
            self._worker.submit(segment.seal, partial(self._sealed, segment))

    def _sealed(self, segment: Segment, result: object) -> None:
        self._jobs -= 1
        if isinstance(result, BaseException):
            self._fail_waiting(self.fail(result))
        else:
            assert isinstance(result, tuple)
            self._on_sealed(segment, *result)
        self._check_idle()

    def prepare_spare(self) -> None:
        """Make the next segment's file ahead of time, on the worker."""
        if (
            self.full
            or self.failure is not None
            or self._jobs
            or len(self._files.spares) > self._config.reserve_segments
        ):
            return
        name = self._files.reserve_spare()
        self._jobs += 1
        self._worker.submit(partial(self._files.allocate_spare, name), partial(self._spare_made, name))

    def _spare_made(self, name: str, result: object) -> None:
        self._jobs -= 1
        if not isinstance(result, BaseException):
            self._files.add_spare(name)
        elif not isinstance(result, OSError) or result.errno not in NO_SPACE:
            # A full disk is no failure: the space is asked for again when it is needed, and refused by name then.
            self._fail_waiting(self.fail(result))
        self._check_idle()

    def work(self, job: Callable[[], object], done: Callable[[], None]) -> None:
        """Do something about the files on the worker, then call `done`; what it raises fails the journal.

        It may be run again: one that finds no descriptor left is.
        """
        self._jobs += 1
        self._worker.submit(job, partial(self._worked, done))

    def _worked(self, done: Callable[[], None], result: object) -> None:
        self._jobs -= 1
        if isinstance(result, BaseException):
            self._fail_waiting(self.fail(result))
        else:
            done()
        self._check_idle()

    def try_again(self, *, last: bool = False) -> None:
        """Do what waits for a descriptor; with `last`, what finds none now has failed."""
        self._worker.try_again(last=last)

    def look_for_space(self) -> None:
        """The disk was full: is there room again for the reserve and one more segment?"""
        if self.failure is not None or self._jobs:
            return
        try:
            if self._files.make_spares(self._config.reserve_segments + 1):
                self.full = False
        except OSError as error:
            self._fail_waiting(self.fail(error))

    # --- failing and stopping -------------------------------------------------------------------------------------

    def fail(self, cause: BaseException) -> StorageError:
        """A write or sync failed: final. What the disk has kept of the writes is unknown."""
        if self.failure is None:
            kind = DescriptorShortageError if is_shortage(cause) else StorageError
            self.failure = kind(
                f"writing to {self._files.directory} failed: {cause}. Nothing more is acknowledged or "
                "written; reads continue. Check the disk, then restart the bookie",
                path=str(self._files.directory),
            )
            self.failure.__cause__ = cause
        return self.failure

    def _fail_waiting(self, error: StorageError) -> None:
        groups = [*self._closed] + ([self._group] if self._group is not None else [])
        self._closed.clear()
        self._group = None
        self._to_seal.clear()
        refused, self._refused = self._refused, []
        for items in (*(group.items for group in groups), refused):
            self._tell(items, error)

    def when_idle(self, callback: Callable[[], None]) -> None:
        """Call once when nothing is waiting or on its way (at once if so)."""
        self._idle.append(callback)
        self._check_idle()

    def _check_idle(self) -> None:
        if self._idle and not self.busy:
            callbacks, self._idle = self._idle, []
            for callback in callbacks:
                callback()

    def finish(self) -> None:
        """Write what was put and wait for it here, without the loop. For starting and stopping."""
        self.flush()
        self._worker.finish()
        while self.busy and self.failure is None:
            self.flush()
            self._worker.finish()

    def drop(self) -> None:
        """Forget what was put and not written, as a crash would."""
        self._closed.clear()
        self._group = None
        self._refused.clear()
        self._to_seal.clear()
        self._worker.finish()

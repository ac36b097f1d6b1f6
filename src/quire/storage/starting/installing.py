"""Segments that were sealed are installed, and those whose footer does not verify are read again, while requests go on.

Both concern as many ledgers as a segment holds. What has to be done on the loop is done in slices; what reads the disk is
done on the worker, a group of records at a time, so that groups are written in between. Until a segment is installed its
runs are found through its table; until it is read again, what its footer does not show is unknown.

Source: `docs/formats/segment.md`, "Footer and trailer of a sealed segment".
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Generator, Iterator
from functools import partial
from itertools import islice
from typing import Any, TypeAlias

from quire.core.errors import StorageError
from quire.env.descriptors import is_shortage
from quire.env.interfaces import Clock
from quire.storage.damages import Damages
from quire.storage.formats.footer_format import Trailer, read_directory
from quire.storage.journal import Journal
from quire.storage.segments.findings import Damage, Scan
from quire.storage.segments.footer_cache import FooterCache
from quire.storage.segments.replay import SegmentScanner
from quire.storage.segments.segment import Segment
from quire.storage.segments.segment_files import SegmentFiles
from quire.storage.slices import LEDGERS_A_STEP, Slice
from quire.storage.starting.start import add_directory, segment_of
from quire.storage.states import States

Work: TypeAlias = Generator["Callable[[], Any] | None", Any, None]
"""Goes on at each `yield`: after a pause, or when a job was done on the worker, with its result or its exception."""


class SegmentInstaller:
    """Installs sealed segments, and reads damaged ones again.

    Args:
        segments, unsealed, retiring: those in use; of them those whose runs are in memory, and those about to be freed.
        pinned: those that must not be freed.
        states: all ledgers.
        journal: does jobs on the worker, between those that write.
        files: the segments' files.
        cache: rows of sealed segments.
        damages: where is noted what does not verify.
        clock: for the length of a slice.
        on_sealed: called when a segment was installed.

    Attributes:
        closed: the bookie stops: nothing more is begun.
    """

    def __init__(
        self,
        segments: dict[int, Segment],
        unsealed: dict[int, Segment],
        retiring: set[int],
        pinned: set[int],
        states: States,
        journal: Journal,
        files: SegmentFiles,
        cache: FooterCache,
        damages: Damages,
        clock: Clock,
        on_sealed: Callable[[], None],
    ) -> None:
        self._segments = segments
        self._unsealed = unsealed
        self._retiring = retiring
        self._pinned = pinned
        self._states = states
        self._journal = journal
        self._files = files
        self._cache = cache
        self._damages = damages
        self._clock = clock
        self._on_sealed = on_sealed
        self._again: set[int] = set()
        self.closed = False

    # --- steps ---------------------------------------------------------------------------------------------------

    def _go_on(self, work: Work, result: Any = None) -> None:
        """Do what can be done now; the rest comes when the worker has had its turn."""
        try:
            job = work.send(result)
        except StopIteration:
            return
        outcome: list[Any] = []
        self._journal.work(partial(_tried, job, outcome), lambda: self._go_on(work, outcome[0]))

    # --- sealed segments -----------------------------------------------------------------------------------------

    def install(self, segment: Segment, trailer: Trailer, directory: bytes) -> None:
        """A footer is on disk: when its ledgers know of it, entries are found through it."""
        self._go_on(self._install(segment, trailer, directory))

    def _install(self, segment: Segment, trailer: Trailer, directory: bytes) -> Work:
        part = Slice(self._clock)
        entries = read_directory(directory)
        # Until this ends the segment counts as unsealed: tombstones that its entries need stay, and so do live entries.
        while some := list(islice(entries, LEDGERS_A_STEP)):
            segment.live += add_directory(self._states.with_entries, segment.sequence, some)
            if part.over:
                yield None
                part.begin()
        for held in _some(segment.contents.others):
            self._states.hold(held)
            if part.over:
                yield None
                part.begin()
        self._files.sealed(segment.sequence)
        leftover = segment.sealed(trailer)
        self._unsealed.pop(segment.sequence, None)
        self._on_sealed()
        for memory in leftover:  # to let go of it takes as long as it did to fill it
            while memory:
                for _ in range(min(LEDGERS_A_STEP, len(memory))):
                    memory.popitem()
                if part.over:
                    yield None
                    part.begin()

    # --- segments whose footer does not verify -------------------------------------------------------------------

    def read_again(self, segment: Segment) -> None:
        """A sealed segment's footer does not verify: read its records, and write the footer anew if all are there."""
        if segment.sequence not in self._again and not self.closed:
            self._again.add(segment.sequence)
            self._go_on(self._read_again(segment))

    def _read_again(self, segment: Segment) -> Work:
        sequence, trailer = segment.sequence, segment.trailer
        path = str(self._files.path(sequence))
        files = self._files.apart()
        self._pinned.add(sequence)
        try:
            scan = yield from self._scan(files, segment)
            read = yield partial(segment_of, segment.header, scan)
        except Exception as error:  # noqa: BLE001 - whatever stands in its way, what the footer does not show stays unknown
            if is_shortage(error):
                self._again.discard(sequence)  # the next read of it tries again
            else:
                self._damages.found(Damage(path, 0, -1, -1, -1, f"its records cannot be read again: {error}"))
            return
        finally:
            files.close()
            self._pinned.discard(sequence)
        freed = self._segments.get(sequence) is not segment or sequence in self._retiring
        if freed or self.closed or not isinstance(read, Segment):
            self._again.discard(sequence)
            return
        if trailer is not None:
            self._damages.footer_replaced(path, trailer.data_end)
        for damage in scan.damages:
            self._damages.found(damage)
        # From here on its runs are found in its table, and what else is known of its footer is passed over.
        self._segments[sequence] = self._unsealed[sequence] = read
        self._states.unrecorded_limbo |= scan.named
        self._states.unrecorded_limbo_all = self._states.unrecorded_limbo_all or scan.all_in_limbo
        yield from self._forget_footer(segment)
        self._again.discard(sequence)
        # With records missing the bad footer stays: the next start finds it, looks again and writes down what is in limbo.
        if not (scan.named or scan.all_in_limbo) and self._journal.failure is None:
            sealed = yield partial(self._seal, read)
            if isinstance(sealed, tuple):
                yield from self._install(read, *sealed)
            elif isinstance(sealed, BaseException) and not is_shortage(sealed):
                self._journal.fail(sealed)  # else the records are read again at the next start

    def _scan(self, files: SegmentFiles, segment: Segment) -> Generator[Callable[[], Any], Any, Scan]:
        """Read all records, each group a job of its own."""
        end_lsn = segment.trailer.last_lsn if segment.trailer is not None else None
        scanner = yield partial(SegmentScanner, files, segment.header, end_lsn=end_lsn, newest=False)
        if not isinstance(scanner, SegmentScanner):
            raise scanner
        steps = scanner.steps()
        over = object()
        while (step := (yield partial(next, steps, over))) is not over:
            if isinstance(step, BaseException):
                raise step
            if self.closed:
                raise StorageError("the bookie stops")
        return scanner.found

    def _seal(self, segment: Segment) -> tuple[Trailer, bytes]:
        self._files.reopen(segment)
        return segment.seal()

    def _forget_footer(self, segment: Segment) -> Work:
        part = Slice(self._clock)
        for ledger_ids in _some(segment.contents.entries):
            for ledger_id in ledger_ids:
                self._cache.forget(segment.sequence, ledger_id)
                ledger = self._states.get(ledger_id)
                if ledger is not None:
                    ledger.drop_span(segment.sequence)
            if part.over:
                yield None
                part.begin()
        for held in segment.contents.held:
            for ledger_ids in _some(held):
                self._states.release(ledger_ids)
                if part.over:
                    yield None
                    part.begin()


def _tried(job: Callable[[], Any] | None, outcome: list[Any]) -> None:
    """Do a job on the worker; the result or the exception is the one item of `outcome` then."""
    try:
        outcome.append(None if job is None else job())
    except Exception as error:  # noqa: BLE001 - it is handed over
        outcome.append(error)


def _some(ledger_ids: array[int]) -> Iterator[array[int]]:
    return (ledger_ids[at : at + LEDGERS_A_STEP] for at in range(0, len(ledger_ids), LEDGERS_A_STEP))

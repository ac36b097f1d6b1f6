"""The files of a bookie's segments: names, spares, opening, recycling, and the bytes at an offset.

Layout and what a crash can leave: `docs/formats/segment.md`, "The directory".
"""

from __future__ import annotations

import errno
import mmap
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import suppress
from copy import copy
from enum import IntEnum
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from quire.core.errors import DamagedSegmentError, WrongDirectoryError
from quire.core.ledger.placement import RandomSource
from quire.env.descriptors import is_shortage
from quire.env.interfaces import File, Files
from quire.storage.config import StorageConfig
from quire.storage.formats.segment_format import (
    BLOCK_BYTES,
    FormatError,
    SegmentHeader,
    decode_segment_header,
    encode_segment_header,
    seed_of,
)
from quire.storage.segments.segment import Segment
from quire.wire.stored_record import SEGMENTS_FOLDER

SEGMENT = ".seg"
FRESH = ".fresh"
USED = ".used"
TEMPORARY = ".tmp"
NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})
GIVEN_BACK_BYTES: Final = 2 << 20
"""A file goes in parts of this size: while ext4 discards the blocks of a whole one, 15 ms for 64 MiB, no write is served."""
Result = TypeVar("Result")


class Space(IntEnum):
    """What space is for. On a full disk each leaves some to those before it, so that space can always come back."""

    RETIREMENT = 0
    """Retirements and what is relocated for them, starts, and lists of segments."""
    DELETE = 1
    """Deletions, and dead ranges: ids of a living ledger whose entries were dropped."""
    COMPACTION = 2
    STATE = 3
    """Fences and limbo: they must go on when the disk is full, and so must recovery adds."""
    RECOVERY = 4
    ADDS = 5


_LEFT: Final = {
    Space.RETIREMENT: (0, 0),
    Space.DELETE: (1, 0),
    Space.COMPACTION: (2, 0),
    Space.STATE: (8, 0),
    Space.RECOVERY: (12, 8),
    Space.ADDS: (16, 16),
}
"""Sixteenths of a full disk's current segment that stay free: while no spare is left, and with one that is for compaction."""


def block_buffer(size: int) -> mmap.mmap:
    """Zeroed memory that begins on a page, as direct writes need it.

    Private: pages that could be shared with other processes cost the kernel twice as much to find for a write.
    """
    return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


class SegmentFiles:
    """The files of segments and spares in a bookie's directory.

    Args:
        directory: the bookie's; segments are below it.
        config: sizes and limits.
        cluster_instance: the cluster's id, in every header.
        bookie_id: the bookie's id, in every header.
        files: the file system.
        chance: where nonces come from.
        now_ms: monotonic; who opens no new segments needs none.

    Attributes:
        spares: the names of the files that wait to become segments.
        segment_bytes: the size of a new segment.
        short: the last attempt to make spares found no descriptor left, not a full disk.
        direct, write_path: how the disk is written, known once it is `prepared` to be.
    """

    def __init__(
        self,
        directory: Path,
        config: StorageConfig,
        cluster_instance: str,
        bookie_id: str,
        files: Files,
        chance: RandomSource,
        now_ms: Callable[[], int] = lambda: 0,
    ) -> None:
        self.directory = directory / SEGMENTS_FOLDER
        self._config = config
        self._identity = (cluster_instance, bookie_id)
        self._files = files
        self._chance = chance
        self._now_ms = now_ms
        self.spares: list[str] = []
        self._spare_number = 1
        self._open: OrderedDict[int, File] = OrderedDict()
        self._sealed: set[int] = set()
        self._rests_until: dict[str, int] = {}
        self.short = False
        self.segment_bytes = config.segment_bytes
        self._leftovers: list[str] = []
        self.direct = False
        self.write_path = ""

    # --- what is there ------------------------------------------------------------------------------------------

    def load(self) -> list[int]:
        """Look through the directory: note leftovers, find the spares. Nothing is written before `prepare`.

        Returns:
            The sequences of the segments, ascending.
        """
        sequences: list[int] = []
        for name in self._files.names(self.directory):
            stem, dot, ending = name.partition(".")
            if dot + ending == SEGMENT:
                sequences.append(self._number(name, stem))
            elif dot + ending in {FRESH, USED}:
                self._spare_number = max(self._spare_number, self._number(name, stem) + 1)
                if self._size(self.directory / name) == self._config.segment_bytes:
                    self.spares.append(name)
                else:
                    self._leftovers.append(name)
            elif ending.endswith(TEMPORARY[1:]):
                self._leftovers.append(name)
        return sorted(sequences)

    def prepare(self) -> None:
        """The directory is this process's to write to: make it, find out how it is written, remove the leftovers.

        What was found is synced: a process that was killed may have renamed files and not come to sync that.
        """
        self._files.make_directory(self.directory)
        direct, kind = self._files.writes_direct(self.directory)
        self.direct = direct if self._config.direct is None else self._config.direct
        way = "O_DIRECT|O_DSYNC" if self.direct else "buffered, fdatasync"
        self.write_path = f"{way} on {kind}"
        while self._leftovers:
            self._files.remove(self.directory / self._leftovers.pop())
        self._files.sync_directory(self.directory)

    def _number(self, name: str, stem: str) -> int:
        try:
            return int(stem, 16)
        except ValueError:
            path = str(self.directory / name)
            raise DamagedSegmentError(
                f"{path} is not a segment's name: move the file away", path=path
            ) from None

    def _size(self, path: Path) -> int:
        file = self._with_room(lambda: self._files.open_to_read(path, random=True))
        try:
            return file.size()
        finally:
            file.close()

    def path(self, sequence: int) -> Path:
        """The file of a segment."""
        return self.directory / f"{sequence:016x}{SEGMENT}"

    def header(self, sequence: int) -> SegmentHeader:
        """Read and check a segment's header.

        Raises:
            DamagedSegmentError: it cannot be trusted, so nothing in the file can be.
            WrongDirectoryError: another bookie or cluster wrote it.
        """
        path = self.path(sequence)
        try:
            header = decode_segment_header(self.read_at(sequence, 0, BLOCK_BYTES))
            if header.sequence != sequence:
                raise FormatError(f"the file is segment {header.sequence:x}, misplaced")
        except (FormatError, UnicodeDecodeError, OSError) as error:
            if is_shortage(error):
                raise
            raise DamagedSegmentError(
                f"{path} at offset 0: {error}. The bookie does not start with this file: restore it, "
                "or move it away and let its entries be copied from the other bookies",
                path=str(path),
                offset=0,
            ) from error
        if (header.cluster_instance, header.bookie_id) != self._identity:
            raise WrongDirectoryError(
                f"{path} at offset 0: the segment belongs to bookie {header.bookie_id} of cluster "
                f"{header.cluster_instance}, not to {self._identity[1]} of {self._identity[0]}: give each bookie its "
                "own directory back",
                path=str(path),
                offset=0,
            )
        return header

    def file_bytes(self, sequence: int) -> int:
        """How long the file really is."""
        return self._reader(sequence).size()

    # --- spares ---------------------------------------------------------------------------------------------------

    def reserve_spare(self) -> str:
        """A name for a new spare, for `allocate_spare` (which may run on the worker)."""
        name = f"{self._spare_number:016x}{FRESH}"
        self._spare_number += 1
        return name

    def allocate_spare(self, name: str) -> None:
        """Make a spare's file. Raises OSError; on a full disk one of `NO_SPACE`."""
        temporary = self.directory / (name + TEMPORARY)
        try:
            self._files.allocate(temporary, self._config.segment_bytes)
        except FileExistsError:
            self._files.remove(temporary)
            self._files.allocate(temporary, self._config.segment_bytes)
        self._files.rename(temporary, self.directory / name)
        self._files.sync_directory(self.directory)

    def add_spare(self, name: str, *, rests: bool = False) -> None:
        """A spare is ready; `rests`: it was a segment just now."""
        if rests:
            self._rests_until[name] = self._now_ms() + self._config.recycled_rest_ms
        self.spares.append(name)

    def _best_spare(self) -> str:
        """A recycled file that has rested: its blocks are allocated and written, so writes to it are cheapest; or another."""
        resting, now_ms = self._rests_until, self._now_ms()
        for name in [one for one, end_ms in resting.items() if end_ms <= now_ms]:
            del resting[name]
        rested = [one for one in self.spares if one not in resting]
        recycled = next((one for one in rested if one.endswith(USED)), "")
        name = recycled or (rested or self.spares)[0]
        resting.pop(name, None)
        return name

    def make_spares(self, count: int) -> bool:
        """Make spares until there are `count`; False when the disk is full, or no descriptor is left (`short`)."""
        self.short = False
        while len(self.spares) < count:
            name = self.reserve_spare()
            try:
                self._with_room(partial(self.allocate_spare, name))
            except OSError as error:
                self.short = is_shortage(error)
                if self.short or error.errno in NO_SPACE:
                    return False
                raise
            self.add_spare(name)
        return True

    def kept_back(self, space: Space) -> int:
        """How many spares this use must leave behind."""
        if space is Space.ADDS:
            return self._config.reserve_segments
        return 1 if space >= Space.STATE else 0

    def left_over(self, space: Space) -> int:
        """How many bytes of a full disk's current segment this use must leave to those that matter more."""
        spares = len(self.spares)
        return _LEFT[space][spares] * (self._config.segment_bytes // 16) if spares < 2 else 0

    def take(self, sequence: int, first_lsn: int, space: Space, *, terms: bool = False) -> Segment | None:
        """A new segment from a spare, not yet on disk (`activate`); None if none may be used for this.

        `terms`: it may hold entries of streams (ledgers without an end), whose records have terms.
        """
        if len(self.spares) <= self.kept_back(space):
            return None
        name = self._best_spare()
        self.spares.remove(name)
        recycled = name.endswith(USED)
        nonce = self._chance.getrandbits(64)
        header = SegmentHeader(
            self._config.segment_bytes, sequence, nonce, first_lsn, recycled, *self._identity, terms=terms
        )
        segment = Segment(header, seed_of(sequence, nonce))
        segment.spare = name
        return segment

    def activate(self, segment: Segment) -> None:
        """Write a new segment's header, synced, and give the file its name. May run on the worker.

        One that has ended because no descriptor was left is run again from its beginning: each step may be repeated.
        """
        assert segment.spare
        spare, path = self.directory / segment.spare, self.path(segment.sequence)
        if segment.file is None:
            if segment.recycled:
                self._files.forget_cached(spare)
            segment.file = self._files.open_to_write(spare, direct=self.direct)
        try:
            with block_buffer(2 * BLOCK_BYTES) as buffer:
                buffer[:BLOCK_BYTES] = encode_segment_header(segment.header)
                # The block after it is blanked: what is written there first shows as written.
                segment.file.write_at(buffer, 0)
            segment.file.sync()
            if not self._files.exists(path):
                self._files.rename(spare, path)
            self._files.sync_directory(self.directory)
        except BaseException as error:
            if not is_shortage(error):
                segment.close()
            raise
        segment.spare = ""

    def recycle(self, sequence: int, *, keep: int) -> None:
        """Make a retired segment's file a spare, or give its space back if there are `keep` spares."""
        name, job = self.recycling(sequence, keep=keep)
        job()
        if is_spare(name):
            self.add_spare(name)
        else:
            self._files.remove(self.directory / name)

    def recycling(self, sequence: int, *, keep: int) -> tuple[str, Callable[[], None]]:
        """What `recycle` does, in parts.

        Returns:
            (the name that the file will have, of a spare for `add_spare`, see `is_spare`, or of what is to be removed, for
            `removing`; what is to be done first, which may run on the worker).
        """
        self.forget(sequence)
        self._sealed.discard(sequence)
        path = self.path(sequence)
        name = f"{self._spare_number:016x}{USED}"
        self._spare_number += 1
        if len(self.spares) >= keep or not self._is_whole(path):
            name += TEMPORARY  # a start removes it
        return name, partial(self._set_aside, path, self.directory / name)

    def removing(self, name: str, size: int) -> Iterator[Callable[[], None]]:
        """What gives the space of a file of `size` bytes back, a part at a time; each may run on the worker, and again."""
        path = self.directory / name
        for left in range(size - GIVEN_BACK_BYTES, 0, -GIVEN_BACK_BYTES):
            yield partial(self._files.shrink, path, left)
        yield partial(self._remove, path)

    def _remove(self, path: Path) -> None:
        if self._files.exists(path):
            self._files.remove(path)

    def _is_whole(self, path: Path) -> bool:
        """Whether a file has the size of a segment; False where it cannot be opened for want of a descriptor."""
        try:
            return self._size(path) == self._config.segment_bytes
        except OSError as error:
            if is_shortage(error):
                return False
            raise

    def _set_aside(self, path: Path, aside: Path) -> None:
        if self._files.exists(path):  # else done already: only the sync is repeated
            self._files.rename(path, aside)
        self._files.sync_directory(self.directory)

    # --- bytes ---------------------------------------------------------------------------------------------------

    def reopen(self, segment: Segment) -> None:
        """Open a segment for writing again."""
        path = self.path(segment.sequence)
        segment.file = self._with_room(lambda: self._files.open_to_write(path, direct=self.direct))

    def settle(self, sequence: int) -> None:
        """What a process that was killed wrote to a segment, and was read from memory, gets on the disk."""
        file = self._with_room(lambda: self._files.open_to_write(self.path(sequence), direct=False))
        try:
            file.sync()
        finally:
            file.close()

    def make_room(self) -> bool:
        """Close the least used of the files that are open for reading; False if none is. Not on the worker."""
        if not self._open:
            return False
        _, oldest = self._open.popitem(last=False)
        oldest.close()
        return True

    def _with_room(self, call: Callable[[], Result]) -> Result:
        """Do something that takes a descriptor; while none is left, one is taken from what is read least.

        Raises:
            OSError: as the call does, and when there is none to take.
        """
        while True:
            try:
                return call()
            except OSError as error:
                if not is_shortage(error) or not self.make_room():
                    raise

    def _reader(self, sequence: int) -> File:
        file = self._open.get(sequence)
        if file is None:
            # No read-ahead while it is filled: it could bring in blocks that a direct write is about to change.
            path, random = self.path(sequence), sequence not in self._sealed
            file = self._with_room(lambda: self._files.open_to_read(path, random=random))
            self._open[sequence] = file
            if len(self._open) > self._config.open_files_max:
                self.make_room()
        else:
            self._open.move_to_end(sequence)
        return file

    def read_at(self, sequence: int, offset: int, size: int) -> bytes:
        """Bytes of a segment; what lies beyond the end of a cut file is missing."""
        return self._reader(sequence).read_at(offset, size)

    def expect(self, sequence: int, offset: int, size: int) -> None:
        """Bytes of a segment that will be read soon. A disk that cannot do that says so when they are read."""
        with suppress(OSError):
            self._reader(sequence).expect(offset, size)

    def release(self, sequence: int, offset: int, size: int) -> None:
        """Bytes of a segment that were read for once. Where memory keeps them all the same, nothing is lost."""
        with suppress(OSError):
            self._reader(sequence).release(offset, size)

    def next_data(self, sequence: int, offset: int) -> int:
        """Where the next bytes are that were ever written, as far as the file system knows; the file's size if none."""
        return self._reader(sequence).next_data(offset)

    def read_around(self, sequence: int, offset: int, size: int, *, cached: bool = True) -> bytes:
        """Like `read_at` or `read_uncached`, but what cannot be read is zeros: it will not verify.

        Raises:
            OSError: no descriptor is left, which says nothing of the bytes.
        """
        read = self.read_at if cached else self.read_uncached
        try:
            return read(sequence, offset, size)
        except OSError as error:
            if is_shortage(error):
                raise
        parts: list[bytes] = []
        while size > 0:
            length = min(size, BLOCK_BYTES - offset % BLOCK_BYTES)
            try:
                parts.append(read(sequence, offset, length))
            except OSError as error:
                if is_shortage(error):
                    raise
                parts.append(bytes(length))
            offset, size = offset + length, size - length
        return b"".join(parts)

    def read_uncached(self, sequence: int, offset: int, size: int) -> bytes:
        """Bytes from the disk itself, when what came from memory did not verify."""
        path = self.path(sequence)
        return self._with_room(lambda: self._files.read_uncached(path, offset, size))

    def sealed(self, sequence: int) -> None:
        """Nothing of a segment changes any more: reading ahead is safe from now on."""
        self._sealed.add(sequence)
        self.forget(sequence)

    def apart(self) -> SegmentFiles:
        """The same files, opened anew: for a caller that reads them in another thread, and closes them."""
        other = copy(self)
        other._open = OrderedDict()  # noqa: SLF001 - of the same class
        return other

    def forget(self, sequence: int) -> None:
        """Close a segment's file for reading."""
        file = self._open.pop(sequence, None)
        if file is not None:
            file.close()

    def close(self) -> None:
        """Close all that is open for reading."""
        for file in self._open.values():
            file.close()
        self._open.clear()

    def __iter__(self) -> Iterator[str]:
        return iter(self.spares)


def is_spare(name: str) -> bool:
    """Whether a file that was set aside becomes a segment again; else it is to be removed."""
    return name.endswith(USED)

"""Reading the footers of sealed segments from the disk.

Layout: `docs/formats/segment.md`, "Footer and trailer of a sealed segment".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from crc32c import crc32c

from quire.env.descriptors import is_shortage
from quire.storage.formats.footer_format import (
    KEPT_RECORD,
    DirectoryEntry,
    KeptLocation,
    Trailer,
    decode_trailer,
    read_directory,
    read_kept,
    read_states,
)
from quire.storage.formats.segment_format import BLOCK_BYTES, FormatError, SegmentHeader, seed_of
from quire.storage.segments.contents import Contents, contents_of
from quire.storage.segments.segment import Segment
from quire.storage.segments.segment_files import SegmentFiles
from quire.wire.stored_record import seed_at


def decode_quietly(files: SegmentFiles, header: SegmentHeader) -> Trailer | None:
    """A segment's trailer if it verifies."""
    offset = header.segment_bytes - BLOCK_BYTES
    block = files.read_around(header.sequence, offset, BLOCK_BYTES)
    try:
        return decode_trailer(block, header.sequence, seed_of(header.sequence, header.nonce), offset)
    except FormatError:
        return None


class Footer(NamedTuple):
    """What a sealed segment says of itself."""

    trailer: Trailer
    states: list[tuple[int, int, memoryview]]
    directory: list[DirectoryEntry]
    kept: list[KeptLocation]

    def contents(self) -> Contents:
        """The ledgers that it says something about."""
        return contents_of(
            (entry.ledger_id for entry in self.directory),
            ((ledger_id, body) for ledger_id, _, body in self.states),
            (location.ledger_id for location in self.kept),
        )


def read_footer(files: SegmentFiles, segment: Segment) -> Footer | None:
    """The footer of a sealed segment, None if it is not sealed.

    Raises:
        FormatError: a part does not verify, even when read from the disk itself.
        OSError: no descriptor is left.
    """
    try:
        return _read_footer(files.read_at, segment)
    except (FormatError, OSError):
        pass
    try:
        return _read_footer(files.read_uncached, segment)
    except OSError as error:
        if is_shortage(error):
            raise
        raise FormatError(f"the footer cannot be read: {error.strerror or error}") from error


def _read_footer(read: Callable[[int, int, int], bytes], segment: Segment) -> Footer | None:
    sequence, seed = segment.sequence, segment.seed
    offset = segment.header.segment_bytes - BLOCK_BYTES
    trailer = decode_trailer(read(sequence, offset, BLOCK_BYTES), sequence, seed, offset)
    if trailer is None:
        return None
    states = read(sequence, trailer.states_offset, trailer.rows_offset - trailer.states_offset)
    if crc32c(states, seed_at(seed, trailer.states_offset)) != trailer.states_checksum:
        raise FormatError("the checksum of the states in the footer differs")
    directory = read(sequence, trailer.directory_offset, trailer.directory_end - trailer.directory_offset)
    if crc32c(directory, seed_at(seed, trailer.directory_offset)) != trailer.directory_checksum:
        raise FormatError("the checksum of the directory in the footer differs")
    kept = b""
    if trailer.kept:
        kept = read(sequence, trailer.kept_offset, trailer.kept * KEPT_RECORD.size)
        if crc32c(kept, seed_at(seed, trailer.kept_offset)) != trailer.kept_checksum:
            raise FormatError("the checksum of the kept records in the footer differs")
    return Footer(
        trailer, list(read_states(states, trailer.states)), list(read_directory(directory)), read_kept(kept)
    )

"""A group: the records that one write and one sync make durable, laid out where they will stay.

Layout: `docs/formats/segment.md`, "Group header".
"""

from __future__ import annotations

from typing import Protocol, TypeAlias

from quire.core.errors import StorageError
from quire.storage.segment import Segment
from quire.storage.segment_files import SegmentFiles
from quire.storage.segment_format import (
    ALL_LEDGERS,
    BLOCK_BYTES,
    GROUP_HEADER_BYTES,
    RANGES_MAX,
    GroupFlag,
    aligned,
    write_group_header,
)


class Sink(Protocol):
    """A caller that put something and waits until it is on disk."""

    def stored(self, tag: object, error: StorageError | None) -> None:
        """What was put with this tag is durable (no error), or failed for ever."""


Item: TypeAlias = tuple[Sink, object, StorageError | None]


class Group:
    """Records that will be written and synced together, in the buffer that will be written."""

    __slots__ = ("first_lsn", "flags", "items", "last_lsn", "offset", "opens", "ranges", "records", "segment",
                 "used", "view")  # fmt: skip

    def __init__(self, segment: Segment, buffer: memoryview, *, opens: bool) -> None:
        self.segment = segment
        self.view = buffer
        self.offset = segment.data_end
        self.opens = opens
        self.used = GROUP_HEADER_BYTES
        self.first_lsn = 0
        self.last_lsn = 0
        self.records = 0
        self.flags = 0
        self.ranges: dict[int, tuple[int, int]] = {}
        self.items: list[Item] = []

    def name(self, ledger_id: int, first: int, last: int) -> None:
        """Note for the group's header that it says something about a ledger."""
        if ledger_id == ALL_LEDGERS:
            self.flags |= GroupFlag.CONCERNS_ALL
            return
        known = self.ranges.get(ledger_id)
        if known is not None:
            if first >= 0:
                self.ranges[ledger_id] = (
                    first if known[0] < 0 else min(known[0], first),
                    max(known[1], last),
                )
        elif len(self.ranges) < RANGES_MAX:
            self.ranges[ledger_id] = (first, last)
        else:
            self.flags |= GroupFlag.UNNAMED

    def close(self) -> None:
        """Write the header: nothing more comes in."""
        segment = self.segment
        segment.before_checksum = write_group_header(
            self.view,
            self.offset,
            (self.first_lsn, self.last_lsn),
            (segment.before_lsn, segment.before_checksum),
            self.used - GROUP_HEADER_BYTES,
            self.records,
            self.flags,
            [(ledger_id, *span) for ledger_id, span in self.ranges.items()],
            segment.sequence,
            segment.seed,
        )
        segment.before_lsn = self.last_lsn
        end = aligned(self.used)
        segment.data_end = self.offset + end
        if segment.recycled:
            end += BLOCK_BYTES
        self.view[self.used : end] = bytes(end - self.used)
        self.used = end

    def write(self, files: SegmentFiles) -> None:
        """Write and sync; opens the segment if this is its first group. May run on the worker."""
        if self.opens and self.segment.spare:
            files.activate(self.segment)
        file = self.segment.file
        assert file is not None
        file.write_at(self.view[: self.used], self.offset)
        file.sync()

"""What may be set about a bookie's disk."""

from __future__ import annotations

from dataclasses import dataclass

from quire.core.errors import MisuseError
from quire.core.settings import check_settings, number
from quire.storage.formats.segment_format import BLOCK_BYTES

KIB = 1024
MIB = 1024 * KIB


SEGMENT_BYTES = 64 * MIB
SEGMENTS_OF_A_DISK = 32
"""A disk is to hold so many segments at least: a bookie with no entry needs four, and several bookies may share a disk."""


def fitting_segment_bytes(disk_bytes: int, frame_bytes_max: int | None = None) -> int:
    """The size of segments for a disk: 64 MiB, or less where the disk is small.

    Args:
        disk_bytes: the size of the disk.
        frame_bytes_max: the longest frame that was asked for; it must fit a segment.

    Returns:
        A power of two, 1 MiB to 64 MiB.
    """
    size = SEGMENT_BYTES
    while (
        size > MIB
        and size * SEGMENTS_OF_A_DISK > disk_bytes
        and size // 2 > (frame_bytes_max or 0) + MIB // 2
    ):
        size //= 2
    return size


@dataclass(frozen=True, slots=True)
class StorageConfig:
    """The disk's settings; sizes in bytes.

    Attributes:
        segment_bytes: size of new segments; a multiple of 4096, 128 KiB to 16 GiB. A run must fit into one; a longer
            entry is refused.
        group_bytes_max: a group is written when it has come to this, even if more waits.
        inline_bytes_max: when nothing is being written, up to this much is written at once on the loop.
        inline_items_max: so many puts at most are written on the loop; more of them show a stream, which the worker
            serves better.
        recent_bytes_max: run bodies kept in memory for tail readers.
        footer_cache_bytes_max: rows of sealed segments kept in memory; with them one table that is larger.
        open_files_max: segments kept open for reading; a bookie keeps fewer open where its process may open few files.
        spares_max: recycled files kept for new segments, the reserve included; more give their space back.
        recycled_rest_ms: a recycled file is left alone for so long if there is another one: a client on this machine that
            received a location in it may be reading it.
        reserve_segments: spares that new adds may not use: one for fences and recovery, one for deletions and
            compaction.
        direct: write past the page cache; None finds out whether the file system is one where that works.
        full_retry_ms: how often a full disk is looked at again.
        damages_max: damages kept in the report; more are counted only.
    """

    segment_bytes: int = number(SEGMENT_BYTES, 128 * KIB, 16 * 1024 * MIB)
    group_bytes_max: int = number(2 * MIB, BLOCK_BYTES, 64 * MIB)
    inline_bytes_max: int = number(64 * KIB, 0, 64 * MIB)
    inline_items_max: int = number(8, 0, 1 << 20)
    recent_bytes_max: int = number(16 * MIB, 0, 1 << 40)
    footer_cache_bytes_max: int = number(32 * MIB, 0, 1 << 40)
    open_files_max: int = number(128, 1, 1 << 20)
    spares_max: int = number(6, 3, 1024)
    recycled_rest_ms: int = number(1000, 0, 3_600_000)
    reserve_segments: int = number(2, 2, 64)
    direct: bool | None = None
    full_retry_ms: int = number(1000, 1, 3_600_000)
    damages_max: int = number(1000, 1, 1 << 20)

    def __post_init__(self) -> None:
        check_settings(self)
        if self.segment_bytes % BLOCK_BYTES:
            msg = (
                f"`StorageConfig.segment_bytes` must be a multiple of {BLOCK_BYTES}, got {self.segment_bytes}"
            )
            raise MisuseError(msg)

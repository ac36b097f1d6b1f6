"""What may be set about a bookie's disk."""

from __future__ import annotations

from dataclasses import dataclass

from quire.core.errors import MisuseError
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

    segment_bytes: int = SEGMENT_BYTES
    group_bytes_max: int = 2 * MIB
    inline_bytes_max: int = 64 * KIB
    inline_items_max: int = 8
    recent_bytes_max: int = 16 * MIB
    footer_cache_bytes_max: int = 32 * MIB
    open_files_max: int = 128
    spares_max: int = 6
    recycled_rest_ms: int = 1000
    reserve_segments: int = 2
    direct: bool | None = None
    full_retry_ms: int = 1000
    damages_max: int = 1000

    def __post_init__(self) -> None:
        limits = {
            "segment_bytes": (128 * KIB, 16 * 1024 * MIB),
            "group_bytes_max": (BLOCK_BYTES, 64 * MIB),
            "inline_bytes_max": (0, 64 * MIB),
            "inline_items_max": (0, 1 << 20),
            "recent_bytes_max": (0, 1 << 40),
            "footer_cache_bytes_max": (0, 1 << 40),
            "open_files_max": (1, 1 << 20),
            "spares_max": (3, 1024),
            "recycled_rest_ms": (0, 3_600_000),
            "reserve_segments": (2, 64),
            "full_retry_ms": (1, 3_600_000),
            "damages_max": (1, 1 << 20),
        }
        for name, (lowest, highest) in limits.items():
            value = getattr(self, name)
            if not lowest <= value <= highest:
                raise MisuseError(f"{name} is {value}: choose {lowest} to {highest}", setting=name)
        if self.segment_bytes % BLOCK_BYTES:
            raise MisuseError(f"segment_bytes is {self.segment_bytes}: choose a multiple of {BLOCK_BYTES}")

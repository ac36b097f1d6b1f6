"""The byte ranges in which some runs lie in segments, neighbours joined: each is read ahead, or released, at one time."""

from __future__ import annotations

from collections.abc import Iterable

from quire.storage.index import RunPiece
from quire.wire.stored_record import RECORD_HEADER_BYTES

JOINED_GAP_BYTES = 64 * 1024
"""Runs this close together are fetched as one: reading on costs a disk less than beginning anew."""


def byte_ranges(pieces: Iterable[RunPiece]) -> list[tuple[int, int, int]]:
    """(segment, offset, size) of what holds some runs, neighbours in a segment joined."""
    found: list[tuple[int, int, int]] = []
    for piece in pieces:
        sequence, start = piece.sequence, piece.row.offset
        end = start + RECORD_HEADER_BYTES + piece.row.body_bytes
        if found:
            before, offset, size = found[-1]
            if before == sequence and 0 <= start - (offset + size) <= JOINED_GAP_BYTES:
                found[-1] = (sequence, offset, end - offset)
                continue
        found.append((sequence, start, end - start))
    return found

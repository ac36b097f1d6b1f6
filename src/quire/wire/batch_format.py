"""What every codec of a batch entry shares: its codecs and flags, its limits, and the error for a damaged one.

Source: docs/formats/batch-entry.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum, IntFlag
from typing import Final, TypeAlias

from quire.core.errors import PeerError

FORMAT_BATCH1: Final = b"batch1"
"""The value of a ledger's custom metadata `quire.format` when its entries are batch entries."""

BODY_BYTES_MAX: Final = 2**31 - 1
SPAN_MAX: Final = 2**32 - 1
"""Offsets that a batch with gaps reaches over at most."""

Headers: TypeAlias = Sequence[tuple[str, bytes | None]]
Buffer: TypeAlias = bytes | bytearray | memoryview


class Codec(IntEnum):
    """How the body is written. The numbers are on disk: never renumber."""

    RAW = 1
    """The body is the value of one record without key and headers."""
    ROWS = 2
    """Tables of offsets, then the bytes; needs no library and maps onto Arrow without a copy."""
    ARROW = 3
    """One Arrow IPC record batch message of `arrow_schema()`."""


class BatchFlags(IntFlag):
    """What the body holds. A reader refuses a flag that it does not know."""

    NONE = 0
    TIMES = 1
    KEYS = 2
    KEY_NULLS = 4
    VALUE_NULLS = 8
    HEADERS = 16
    COMPRESSED = 32
    GAPS = 64
    """Offsets between the first and the last record have none: the body ends with the table of positions."""


class MalformedBatchError(PeerError):
    """An entry that should be a batch is not one, or its bytes are damaged."""


def malformed(what: str) -> MalformedBatchError:
    """The error for an entry that is no batch, or a damaged one."""
    return MalformedBatchError(f"this entry is not a readable batch: {what}")

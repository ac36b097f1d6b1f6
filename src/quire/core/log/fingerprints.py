"""Fingerprints of batches: what distinguishes batches of a query that have the same number.

A number alone does not say what a batch holds: a checkpoint that was restored or copied gives a number that is in the
log to other rows. So a sink position also keeps a fingerprint of its batch. A streaming query's is made of the end of
its input, as its checkpoint has it: rows would not do, since a replay may make them in another order, in other
partitions, and with later times. A named transaction (a write with `txnAppId` and `txnVersion`) has no such end; there
the rows are counted and summed, without regard to their order.

A fingerprint names the number of its batch. A program of an earlier version moves a sink position on and carries the
fingerprint of the batch before with it; such a one says nothing of the sink position's batch.

Source: docs/spark-sink.md, "What is exactly once, and what a checkpoint from a backup does".
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

FINGERPRINT_BYTES: Final = 16
_WORD: Final = 1 << 64


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """What is kept of one batch besides its number.

    Attributes:
        batch_id: the number of the batch that it was made of.
        digest: of the end of its input, or of its rows.
        rows: of a named transaction, how many rows it has for the log; 0 for a streaming query.
        files: digest of the files that the end of the input stands for, where a source names them only by a count; empty
            where there are none or they are not known.
    """

    batch_id: int
    digest: bytes
    rows: int = 0
    files: bytes = b""
    unknown: bytes = b""

    @property
    def is_damaged(self) -> bool:
        """Whether no program writes such a fingerprint."""
        lengths = {len(self.digest), len(self.files) or FINGERPRINT_BYTES}
        return lengths != {FINGERPRINT_BYTES} or self.batch_id < 0 or self.rows < 0

    def __str__(self) -> str:
        """As an error shows it: the number of rows if they were counted, and digits to compare."""
        digits = (self.digest + self.files)[-FINGERPRINT_BYTES:].hex()[:12]
        return f"{self.rows} rows, {digits}" if self.rows else digits


@dataclass(frozen=True, slots=True)
class RowSum:
    """Rows of a batch, summed up so that neither their order nor their partitions matter.

    Attributes:
        rows: how many.
        low: sum of the lower 64 bits of their hashes modulo 2**64; `high` likewise of the upper ones.
    """

    rows: int = 0
    low: int = 0
    high: int = 0

    def plus(self, other: RowSum) -> RowSum:
        """The sum of both."""
        return RowSum(
            self.rows + other.rows, (self.low + other.low) % _WORD, (self.high + other.high) % _WORD
        )


def of_input(batch_id: int, lines: Sequence[str], files: Sequence[str] = ()) -> Fingerprint:
    """The fingerprint of a streaming query's batch.

    Args:
        batch_id: its number.
        lines: the end of its input: one line a source, as the checkpoint's file `offsets/<batch_id>` has them.
        files: what the checkpoint says of the files that a line stands for, in any order; empty where no line does, or
            where the checkpoint cannot be read that far.
    """
    return Fingerprint(batch_id, _digest(lines), files=_digest(sorted(files)) if files else b"")


def of_rows(batch_id: int, total: RowSum) -> Fingerprint:
    """The fingerprint of a named transaction's rows for one log."""
    return Fingerprint(
        batch_id, _digest([f"{total.rows}", f"{total.low:016x}", f"{total.high:016x}"]), total.rows
    )


def _digest(lines: Sequence[str]) -> bytes:
    """A digest of lines: no two lists of lines are hashed as the same bytes."""
    hashed = hashlib.blake2b(digest_size=FINGERPRINT_BYTES)
    for line in lines:
        data = line.encode()
        hashed.update(len(data).to_bytes(8, "big"))
        hashed.update(data)
    return hashed.digest()


def is_same_batch(known: Fingerprint | None, own: Fingerprint | None) -> bool | None:
    """Two batches are the same if their fingerprints are; without one of them that is unknown (None).

    Args:
        known: what the log's sink position keeps of its batch.
        own: what the caller's checkpoint or rows say of the batch of that number.
    """
    if known is None or own is None:
        return None
    if known.batch_id != own.batch_id:
        return None
    files_differ = bool(known.files and own.files) and known.files != own.files
    return (known.digest, known.rows) == (own.digest, own.rows) and not files_differ

"""Splitting what is to be read into tasks of about the same bytes.

A task costs tens of milliseconds however little it reads, so small pieces share one and only a large piece is cut;
pieces are cut between entries and keep their order. Pure: knows neither Spark nor a cluster.

Source: docs/spark.md, "Options": splitBytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Final

from quire.core.ledger.metadata import LedgerMetadata
from quire.log.archive import ArchiveLocation
from quire.spark.decode import SourceLedger
from quire.spark.pushdown import EVERYTHING, Spans

SPLIT_BYTES_MAX: Final = 256 << 20
SPLIT_BYTES_MIN: Final = 16 << 20


@dataclass(frozen=True, slots=True)
class EntrySpan:
    """A stretch of entries of one ledger, with all that a task needs to read it.

    Attributes:
        origin: which log and ledger, and the offset of the ledger's first record.
        record: the ledger's metadata as it was when the read was planned: ensembles and digest; None when archived.
        first_entry: the first entry to read; `last_entry` is the last one, both included.
        size: about how many bytes that is.
        batches: whether the entries are batch entries of a log; else each one is a record.
        offsets: the records to keep of what is read.
        archive: the file with the records; the entries then are its row groups.
        copy: a file that has the records as well, for what the bookies do not serve.
    """

    origin: SourceLedger
    record: LedgerMetadata | None
    first_entry: int
    last_entry: int
    size: int
    batches: bool
    offsets: Spans = EVERYTHING
    archive: ArchiveLocation | None = None
    copy: ArchiveLocation | None = None


@dataclass(frozen=True, slots=True)
class Task:
    """What one Spark task reads, in this order.

    Attributes:
        number: its index in the plan; by it tasks ask different bookies first.
        pieces: what to read.
        from_ms: entries wholly before this time are skipped; None keeps all.
        to_ms: entries wholly from this time on are skipped; None keeps all.
        logs: the logs of the pieces with the ids that they must still have; none are asked for in a stream, whose plans
            are new.
    """

    number: int
    pieces: tuple[EntrySpan, ...]
    from_ms: int | None = None
    to_ms: int | None = None
    logs: tuple[tuple[str, str], ...] = ()

    def names(self) -> list[str]:
        """The logs, or raw ledgers, of the pieces, each once."""
        return list(dict.fromkeys(piece.origin.log for piece in self.pieces))


def usual_split(total_bytes: int, cpus: int) -> int:
    """Bytes of a task where the user does not say: each CPU has one, unless that is too little for what a task costs.

    An eighth more than that, so that ledgers of about one size are not cut for a few bytes.
    """
    return ceil(min(SPLIT_BYTES_MAX * 9 / 8, max(SPLIT_BYTES_MIN, total_bytes * 9 / (8 * cpus))))


def pack(
    pieces: Sequence[EntrySpan],
    split_bytes: int,
    *,
    min_partitions: int | None = None,
    max_partitions: int | None = None,
) -> list[tuple[EntrySpan, ...]]:
    """Distribute pieces over tasks.

    Args:
        pieces: in the order of the records; none is empty.
        split_bytes: bytes of a task at most, as far as entries allow.
        min_partitions: smaller tasks, so that there are about so many.
        max_partitions: larger tasks, so that there are never more. It wins over the others.
    """
    total = sum(piece.size for piece in pieces)
    if min_partitions:
        split_bytes = min(split_bytes, max(1, ceil(total / min_partitions)))
    if max_partitions:
        split_bytes = max(split_bytes, ceil(total / max_partitions))
    packed = _fill(pieces, split_bytes)
    while max_partitions and len(packed) > max_partitions:
        # What does not fit exactly leaves gaps at the ends of tasks; larger tasks close them.
        split_bytes += max(1, split_bytes // 4)
        packed = _fill(pieces, split_bytes)
    return packed


def _fill(pieces: Sequence[EntrySpan], split_bytes: int) -> list[tuple[EntrySpan, ...]]:
    packed: list[tuple[EntrySpan, ...]] = []
    current: list[EntrySpan] = []
    size = 0
    for piece in pieces:
        for part in cut(piece, split_bytes):
            if current and size + part.size > split_bytes:
                packed.append(tuple(current))
                current, size = [], 0
            current.append(part)
            size += part.size
    if current:
        packed.append(tuple(current))
    return packed


def cut(piece: EntrySpan, split_bytes: int) -> Iterator[EntrySpan]:
    """A piece in parts of about `split_bytes`, each of whole entries; sizes are shared out by the number of entries."""
    entries = piece.last_entry - piece.first_entry + 1
    parts = min(entries, max(1, ceil(piece.size / split_bytes)))
    for number in range(parts):
        start, end = entries * number // parts, entries * (number + 1) // parts
        yield replace(
            piece,
            first_entry=piece.first_entry + start,
            last_entry=piece.first_entry + end - 1,
            size=piece.size * end // entries - piece.size * start // entries,
        )

"""What a listed ledger holds, in the columns of an archive's files, and a digest by which two such contents compare.

Archiving and compacting prove with it that what they wrote is what was there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from quire.core.log.list import ItemFlags, LogItem
from quire.log.archive import SCHEMA
from quire.log.ledgers import LogLedgers, views_of
from quire.spark import cluster
from quire.spark.decode import ArrowBuilder, SourceLedger, check_follows
from quire.spark.schema import Projection

_ROWS = 10_000


def records_of(uri: str, password: bytes, item: LogItem) -> Iterator[pa.RecordBatch]:
    """A ledger's records, in the columns of `quire.log.archive.SCHEMA`.

    Args:
        uri: the cluster.
        password: the ledger's.
        item: its line in the list.

    Raises:
        NoSuchLedgerError: it is deleted.
        PeerError: its batches do not follow one another.
    """
    origin = SourceLedger(
        "", int(item.ledger_id), item.first_offset or 0, bool(item.flags & ItemFlags.COMPACTED)
    )
    builder = ArrowBuilder(Projection(tuple(SCHEMA.names), SCHEMA), _ROWS)
    record = cluster.call(uri, lambda client: LogLedgers(client, password).open(item)).metadata
    expected: int | None = 0
    if record.last_entry >= 0:
        for run in cluster.runs_of(uri, record, 0, record.last_entry):
            for entry_id, view in views_of(record, run):
                expected = check_follows(origin, entry_id, view, expected)
                builder.add_batch(origin, entry_id, view, 0, view.header.count)
                if builder.full:
                    yield from builder.take()
    yield from builder.take()


def digest_of(batches: Iterable[pa.RecordBatch]) -> RecordDigest:
    """The digest of all records of some batches."""
    digest = RecordDigest()
    for batch in batches:
        digest.update(batch)
    return digest


class RecordDigest:
    """A digest over records, the same however they are cut: lengths and bytes of each column have a hash of their own."""

    def __init__(self) -> None:
        self._hashes: dict[str, Any] = {}
        self.count = 0

    def update(self, batch: pa.RecordBatch) -> None:
        """More records, in the columns of an archive's files."""
        self.count += batch.num_rows
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            self._column(name, column)

    def _column(self, name: str, column: pa.Array) -> None:
        if pa.types.is_list(column.type):
            self._numbers(f"{name} length", pc.list_value_length(column))
            parts = column.flatten()
            for index, field in enumerate(parts.type):
                self._column(f"{name} {field.name}", pc.struct_field(parts, [index]))
        elif pa.types.is_binary(column.type) or pa.types.is_string(column.type):
            self._numbers(f"{name} length", pc.binary_length(column))
            there = column.cast(pa.binary()).drop_null()
            whole = pc.binary_join(pa.ListArray.from_arrays([0, len(there)], there), b"")
            self._hash(name).update(whole[0].as_buffer())
        else:
            self._numbers(name, column)

    def _numbers(self, name: str, column: pa.Array) -> None:
        plain = pc.fill_null(column.cast(pa.int64()), -(2**63))
        self._hash(name).update(np.ascontiguousarray(plain).tobytes())

    def _hash(self, name: str) -> Any:
        return self._hashes.setdefault(name, hashlib.blake2b(digest_size=16))

    def digest(self) -> bytes:
        """Of all records so far."""
        whole = hashlib.blake2b(digest_size=16)
        for name, each in sorted(self._hashes.items()):
            whole.update(name.encode() + b"\0" + each.digest())
        return whole.digest()

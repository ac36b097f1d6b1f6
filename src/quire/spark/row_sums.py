"""Sums up rows that are written, so that a repetition of them is known in any order and from any partitions.

A row's hash is of its key, value, headers, and time; a time that the sink fills in is left out, since a repetition gets
another one. This module must not know ledgers or a cluster.

Source: docs/spark-sink.md, "Batch writes and `foreachBatch`".
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from quire.core.log.fingerprints import RowSum

_NONE: Final = b"-"
"""Stands for the length of what is null."""


def sum_of(records: pa.RecordBatch, own_times: pa.Array | None) -> RowSum:
    """The sum of rows.

    Args:
        records: rows of the log's schema, their times filled in.
        own_times: the column of the times that the frame itself has, of the same length; None when it has none.
    """
    if not records.num_rows:
        return RowSum()
    hashed = b"".join([blake2b(row, digest_size=16).digest() for row in _rows(records, own_times)])
    halves = np.frombuffer(hashed, "<u8").reshape(-1, 2).sum(axis=0, dtype=np.uint64)  # modulo 2**64
    return RowSum(records.num_rows, int(halves[0]), int(halves[1]))


def _rows(records: pa.RecordBatch, own_times: pa.Array | None) -> list[bytes]:
    """Each row as bytes that no other row has: lengths first, so that no part runs into the next."""
    times = records.column("timestamp_ms")
    if own_times is None:
        times = pa.nulls(records.num_rows, times.type)
    elif own_times.null_count:
        times = pc.if_else(pc.is_valid(own_times), times, pa.scalar(None, times.type))
    parts = [_text(times)]
    for name in ("key", "value"):
        column = records.column(name)
        parts += [_text(pc.binary_length(column)), column]
    parts.append(_headers(records.column("headers")))
    joined = pc.binary_join_element_wise(
        *(part.cast(pa.binary()) for part in parts),
        pa.scalar(b":", pa.binary()),
        null_handling="replace",
        null_replacement=_NONE,
    )
    found: list[bytes] = joined.to_pylist()
    return found


def _text(numbers: pa.Array) -> pa.Array:
    return numbers.cast(pa.string())


def _headers(column: pa.Array) -> pa.Array:
    """Headers as bytes; rows seldom have them. None and an empty list are the same to a reader."""
    if column.null_count == len(column):
        return pa.nulls(len(column), pa.binary())
    return pa.array([_packed(pairs) if pairs else None for pairs in column.to_pylist()], pa.binary())


def _packed(pairs: list[dict[str, bytes | str | None]]) -> bytes:
    found = []
    for pair in pairs:
        for part in (pair["key"], pair["value"]):
            data = part.encode() if isinstance(part, str) else part
            found.append(_NONE if data is None else b"%d:%b" % (len(data), data))
    return b",".join(found)

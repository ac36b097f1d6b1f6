"""Which records of a log say what is so now: of each key the newest one, worked out by Spark, kept as bitmaps.

Source: docs/spark-jobs.md, "Compact".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from pyspark.sql import DataFrame
from pyspark.sql.functions import expr

BUCKET_BITS: Final = 15
"""Spark's bitmaps are of 32,768 positions."""
COLUMNS: Final = "offset bigint, key binary, value binary, timestamp timestamp"
"""What `staying` needs of a log."""


@dataclass(frozen=True, slots=True)
class KeptOffsets:
    """Which offsets keep their record: a bitmap for each 32,768 of them, an eighth of a byte an offset."""

    bitmaps: dict[int, bytes]

    def mask(self, offsets: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """For each of some ascending offsets whether its record stays."""
        mask = np.zeros(len(offsets), bool)
        buckets = offsets >> BUCKET_BITS
        for bucket in np.unique(buckets):
            bits = self.bitmaps.get(int(bucket))
            if bits is not None:
                inside = buckets == bucket
                indexes = offsets[inside] & ((1 << BUCKET_BITS) - 1)
                mask[inside] = np.unpackbits(np.frombuffer(bits, np.uint8), bitorder="little")[indexes]
        return mask

    def part(self, first: int, stop: int) -> KeptOffsets:
        """What concerns the offsets from `first` up to, not including, `stop`."""
        wanted = range(first >> BUCKET_BITS, (stop - 1 >> BUCKET_BITS) + 1)
        return KeptOffsets({bucket: self.bitmaps[bucket] for bucket in wanted if bucket in self.bitmaps})

    def count(self, first: int, stop: int) -> int:
        """How many records stay of these offsets."""
        return int(self.mask(np.arange(first, stop)).sum())


def staying(records: DataFrame, key: str, tombstones_below_ms: int | None) -> KeptOffsets:
    """Which records stay: each key's newest, and all without a key.

    Args:
        records: `COLUMNS`.
        key: Spark SQL that gives a record's key, or null.
        tombstones_below_ms: a newest record without a value goes if it is older than this; None keeps it.
    """
    named = records.selectExpr(
        "offset",
        f"{key} AS name",
        f"IF({key} IS NULL, offset, NULL) AS alone",
        "value IS NULL AS removes",
        "unix_millis(timestamp) AS ms",
    )
    newest = named.groupBy("name", "alone").agg(expr("max_by(struct(offset, removes, ms), offset) AS last"))
    if tombstones_below_ms is not None:
        newest = newest.where(f"last.removes IS FALSE OR last.ms >= {tombstones_below_ms} OR name IS NULL")
    placed = newest.selectExpr(
        f"shiftright(last.offset, {BUCKET_BITS}) AS bucket",
        f"last.offset & {(1 << BUCKET_BITS) - 1} AS position",
    )
    bitmaps = placed.groupBy("bucket").agg(expr("bitmap_construct_agg(position) AS bits"))
    return KeptOffsets({row["bucket"]: bytes(row["bits"]) for row in bitmaps.toLocalIterator()})

"""From entries as stored to the Arrow batches that Spark takes, column by column and never record by record.

A batch entry's columns are Arrow columns already (`wire/batch.py`), so a batch for Spark is their concatenation;
what the entry does not hold (offsets, ledger, entry, index) is counted out with numpy over all entries at once.

This module must not know where entries come from.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from quire.core.errors import PeerError
from quire.log.times import TIME_MS_MAX, TIME_MS_MIN
from quire.spark.read_options import BATCH_BYTES_MAX
from quire.spark.schema import Projection
from quire.wire.batch import BatchView
from quire.wire.batch_format import BatchFlags, Codec

_SMALL_BATCH: Final = 24
"""Below so many records an entry costs less as Python lists than as Arrow arrays of its own (measured)."""
_STORED: Final = ("key", "value", "headers")
STORED_TIME: Final = pa.timestamp("ms", tz="UTC")
"""A time as a record has it; a column of this type shows every one, Spark's own only those of the years 1 to 9999."""


@dataclass(frozen=True, slots=True)
class SourceLedger:
    """The ledger that a stretch of entries is from, and its place in its log.

    Attributes:
        log: the log's name, or `ledger:N`.
        ledger_id: the ledger.
        first_offset: the offset of the ledger's first record.
        gaps: whether some of its offsets may have no record.
        log_id: the log's id; empty for a raw ledger.
        end_offset: after the ledger's last offset, as far as it was confirmed; None for a raw ledger.
        last_entry: its last confirmed entry; None for a raw ledger.
    """

    log: str
    ledger_id: int
    first_offset: int
    gaps: bool = False
    log_id: str = ""
    end_offset: int | None = None
    last_entry: int | None = None


class ArrowBuilder:
    """Collects records until a batch is large enough; `take()` hands out what is ready.

    Args:
        projection: the columns wanted, with their exact Arrow types.
        rows_per_batch: records in a batch at most.
        from_ms: records before this time are left out; None keeps all.
        to_ms: records from this time on are left out; None keeps all.
        bytes_max: a batch is closed once its records, decoded, reach this; one large entry becomes several batches.

    Attributes:
        impossible_times: how many records had a time outside the years 1 to 9999, which is read as null.
        first_impossible: the offset of the first of them.
    """

    def __init__(
        self,
        projection: Projection,
        rows_per_batch: int,
        *,
        from_ms: int | None = None,
        to_ms: int | None = None,
        bytes_max: int = BATCH_BYTES_MAX,
    ) -> None:
        self._projection = projection
        self._stored = [name for name in _STORED if projection.wants(name)]
        self._rows_max = rows_per_batch
        self._bytes_max = bytes_max
        self._range_ms = (from_ms, to_ms)
        self._by_time = from_ms is not None or to_ms is not None
        self._times_wanted = self._by_time or projection.wants("timestamp")
        self._as_stored = (
            projection.wants("timestamp") and projection.arrow.field("timestamp").type == STORED_TIME
        )
        self.impossible_times = 0
        self.first_impossible: int | None = None
        self._clear()

    def _clear(self) -> None:
        self._rows = 0
        self._bytes = 0
        self._counts: list[int] = []
        self._offsets: list[int] = []
        self._ledgers: list[int] = []
        self._entries: list[int] = []
        self._indices: list[int] = []
        self._logs: list[str] = []
        self._opaque: list[bool] = []
        self._times: list[Any] = []
        self._gaps: dict[int, Any] = {}
        self._chunks: dict[str, list[pa.Array]] = {name: [] for name in self._stored}
        self._lists: dict[str, list[Any]] = {name: [] for name in self._stored}

    @property
    def full(self) -> bool:
        """Whether a batch should be taken before more is added."""
        return self._rows >= self._rows_max or self._bytes >= self._bytes_max

    def add_entries(
        self, origin: SourceLedger, first_entry: int, payloads: Sequence[bytes | memoryview]
    ) -> None:
        """Add consecutive opaque entries, one record each: the payload is the value, the entry's id the offset."""
        count, size = len(payloads), sum(map(len, payloads))
        self._note(origin, first_entry, first_entry, 0, count, size, opaque=True)
        self._times.append(None)
        self._close_lists()
        for name in self._stored:
            kind = self._projection.arrow.field(name).type
            self._chunks[name].append(_values(payloads) if name == "value" else pa.nulls(count, kind))

    def add_batch(self, origin: SourceLedger, entry_id: int, view: BatchView, start: int, stop: int) -> None:
        """Add records `start:stop` of a batch entry."""
        header = view.header
        count = stop - start
        # Counted before anything is decoded: a few stored kilobytes may hold gigabytes.
        size = view.decoded_bytes(self._stored) if self._stored else header.body_bytes
        share = size * count // header.count
        first = origin.first_offset + header.records_before
        if header.span:
            self._gaps[len(self._counts)] = np.array(view.positions(start, stop), np.int64) + first
        self._note(origin, entry_id, first + start, start, count, share)
        if self._times_wanted:
            if header.flags & BatchFlags.TIMES:
                column = view.to_arrow(start, stop, ["timestamp_ms"]).column(0)
                self._times.append(column.to_numpy(zero_copy_only=False))
            else:
                self._times.append(header.base_ms)
        if not self._stored:
            return
        if count < _SMALL_BATCH and header.codec is not Codec.ARROW:
            lists = self._lists
            if "value" in lists:
                lists["value"] += view.values(start, stop)
            if "key" in lists:
                lists["key"] += view.keys(start, stop)
            if "headers" in lists:
                lists["headers"] += [
                    [{"key": name, "value": value} for name, value in each] or None
                    for each in view.headers(start, stop)
                ]
            return
        self._close_lists()
        batch = view.to_arrow(start, stop, self._stored)
        for name, column in zip(self._stored, batch.columns, strict=True):
            # The format's header names are never null; Spark's type says they may be, and types must be equal.
            kind = self._projection.arrow.field(name).type
            self._chunks[name].append(column if column.type.equals(kind) else column.cast(kind))

    def take(self) -> Iterator[pa.RecordBatch]:
        """What was collected, as batches of at most `rows_per_batch` and about `bytes_max`; nothing is kept."""
        if self._rows == 0:
            return
        self._close_lists()
        batch = self._build()
        rows = self._rows_max
        if self._bytes >= 2 * self._bytes_max:
            rows = max(1, min(rows, self._rows * self._bytes_max // self._bytes))
        self._clear()
        for start in range(0, batch.num_rows, rows):
            yield batch.slice(start, rows)

    def _note(
        self,
        origin: SourceLedger,
        entry_id: int,
        offset: int,
        index: int,
        count: int,
        size: int,
        *,
        opaque: bool = False,
    ) -> None:
        self._rows += count
        self._bytes += size
        self._counts.append(count)
        self._offsets.append(offset)
        self._ledgers.append(origin.ledger_id)
        self._entries.append(entry_id)
        self._indices.append(index)
        self._logs.append(origin.log)
        self._opaque.append(opaque)

    def _close_lists(self) -> None:
        """Turn what came as lists into one array, so that chunks stay in order."""
        for name, values in self._lists.items():
            if values:
                self._chunks[name].append(pa.array(values, self._projection.arrow.field(name).type))
                self._lists[name] = []

    def _build(self) -> pa.RecordBatch:
        counts = np.array(self._counts, np.int64)
        ends = np.cumsum(counts)
        within = np.arange(self._rows, dtype=np.int64) - np.repeat(ends - counts, counts)
        times = self._time_column(counts) if self._times_wanted else None
        arrays = [
            self._column(name, field.type, counts, within, times)
            for name, field in zip(self._projection.names, self._projection.arrow, strict=True)
        ]
        batch = pa.RecordBatch.from_arrays(arrays, schema=self._projection.arrow)
        if self._by_time and times is not None:
            batch = batch.filter(self._mask(times))
        return batch

    def _column(
        self, name: str, kind: pa.DataType, counts: Any, within: Any, times: pa.Array | None
    ) -> pa.Array:
        if name in self._chunks:
            chunks = self._chunks[name]
            return chunks[0] if len(chunks) == 1 else pa.concat_arrays(chunks)
        if name == "offset":
            return pa.array(self._offset_column(counts))
        if name == "timestamp":
            assert times is not None
            return times.cast(kind)
        if name == "ledger":
            return pa.array(np.repeat(np.array(self._ledgers, np.int64), counts))
        if name in {"entry", "index"}:
            # Of opaque entries the ids count on and each has one record; in a batch entry the index counts on.
            counting = np.repeat(np.array(self._opaque) == (name == "entry"), counts)
            starts = np.array(self._entries if name == "entry" else self._indices, np.int64)
            return pa.array(np.repeat(starts, counts) + within * counting).cast(kind)
        if name in {"log", "topic"}:
            names = list(dict.fromkeys(self._logs))
            codes = np.array([names.index(log) for log in self._logs], np.int32)
            return pa.DictionaryArray.from_arrays(np.repeat(codes, counts), pa.array(names)).cast(pa.string())
        # term, partition and timestampType are 0 for every record of a log.
        return pa.array(np.zeros(self._rows, np.int64)).cast(kind)

    def _time_column(self, counts: Any) -> pa.Array:
        """Times in milliseconds; none for opaque entries."""
        pieces = []
        known = True
        for count, time in zip(counts, self._times, strict=True):
            if isinstance(time, np.ndarray):
                pieces.append(time)
            else:
                known = known and time is not None
                pieces.append(np.full(count, 0 if time is None else time, np.int64))
        values = np.concatenate(pieces)
        possible = None if self._as_stored else possible_times(values)
        if known and possible is None:
            return pa.array(values).cast(STORED_TIME)
        nothing = np.repeat(np.array([time is None for time in self._times]), counts)
        if possible is not None:
            self._note_impossible(~possible & ~nothing, counts)
            nothing |= ~possible
        return pa.array(values, mask=nothing).cast(STORED_TIME)

    def _note_impossible(self, indexes: Any, counts: Any) -> None:
        self.impossible_times += int(indexes.sum())
        if self.first_impossible is None and indexes.any():
            self.first_impossible = int(self._offset_column(counts)[indexes.argmax()])

    def _offset_column(self, counts: Any) -> Any:
        """The offset of each record that waits."""
        ends = np.cumsum(counts)
        within = np.arange(self._rows, dtype=np.int64) - np.repeat(ends - counts, counts)
        offsets = np.repeat(np.array(self._offsets, np.int64), counts) + within
        for index, found in self._gaps.items():
            start = int(counts[:index].sum())
            offsets[start : start + len(found)] = found
        return offsets

    def _mask(self, times: pa.Array) -> pa.Array:
        from_ms, to_ms = self._range_ms
        millis = times.cast(pa.int64())
        masks = []
        if from_ms is not None:
            masks.append(pc.greater_equal(millis, from_ms))
        if to_ms is not None:
            masks.append(pc.less(millis, to_ms))
        return masks[0] if len(masks) == 1 else pc.and_(*masks)


def possible_times(millis: Any) -> Any:
    """Which times, milliseconds since 1970 in a numpy array, lie in the years 1 to 9999; None where all do.

    Spark's timestamps and Python's end there. A record of an older writer may have any 64-bit number.
    """
    if not len(millis) or (millis.min() >= TIME_MS_MIN and millis.max() <= TIME_MS_MAX):
        return None
    return (millis >= TIME_MS_MIN) & (millis <= TIME_MS_MAX)


def _values(payloads: Sequence[bytes | memoryview]) -> pa.Array:
    ends = np.cumsum(np.fromiter(map(len, payloads), np.int64, len(payloads)))
    offsets = np.concatenate(([0], ends)).astype(np.int32)
    data = pa.py_buffer(b"".join(payloads))
    return pa.Array.from_buffers(pa.binary(), len(payloads), [None, pa.py_buffer(offsets), data])


def check_follows(origin: SourceLedger, entry_id: int, view: BatchView, expected: int | None) -> int:
    """Assert that a batch starts where the one before it in the ledger ended.

    Returns:
        The number of the ledger's offsets up to and including this batch.

    Raises:
        PeerError: a gap or an overlap: offsets of this ledger are not to be trusted.
    """
    header = view.header
    if expected is not None and (
        header.records_before < expected or (header.records_before != expected and not origin.gaps)
    ):
        raise PeerError(
            f"quire: ledger {origin.ledger_id} entry {entry_id} of log '{origin.log}': it starts at record "
            f"{header.records_before} of the ledger, the entry before it ended at {expected}.",
            ledger_id=origin.ledger_id,
            entry_id=entry_id,
        )
    return header.records_through

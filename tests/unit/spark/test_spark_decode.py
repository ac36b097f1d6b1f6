"""Batch entries become Arrow batches with exactly the schema that Spark demands."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import StructField, StructType

from quire.core.errors import PeerError
from quire.log.times import TIME_MS_MAX, TIME_MS_MIN
from quire.spark.decode import ArrowBuilder, SourceLedger, check_follows
from quire.spark.options import SparkUseError
from quire.spark.schema import COLUMNS, project
from quire.wire.batch import BatchView, encode_batch, with_gaps
from quire.wire.batch_format import Codec


def columns(*names):
    return project(StructType([StructField(name, COLUMNS[name]) for name in names]))


EVERYTHING = columns(*COLUMNS)
ORIGIN = SourceLedger("orders", 17, 1000)


def view_of(values, **more):
    return BatchView.parse(encode_batch(values, **more))


def build(projection, entries, *, rows=10_000, **more):
    builder = ArrowBuilder(projection, rows, **more)
    batches = []
    for entry_id, view, start, stop in entries:
        builder.add_batch(ORIGIN, entry_id, view, start, stop)
        if builder.full:
            batches += builder.take()
    batches += builder.take()
    for batch in batches:
        batch.validate(full=True)
        assert batch.schema.equals(projection.arrow)
        assert batch.num_rows <= rows
    return batches


record = st.tuples(
    st.none() | st.binary(max_size=6),
    st.none() | st.binary(max_size=6),
    st.integers(-(10**12), 10**13),
    st.lists(st.tuples(st.text(max_size=3), st.none() | st.binary(max_size=3)), max_size=2),
)


@given(
    st.lists(
        st.tuples(st.lists(record, min_size=1, max_size=40), st.sampled_from([None, Codec.ARROW])), max_size=5
    ),
    st.integers(1, 50),
    st.data(),
)
def test_every_column_of_every_codec(batches, rows, data):
    entries, expected, before = [], [], 0
    for entry_id, (records, codec) in enumerate(batches):
        keys, values, times, headers = zip(*records, strict=True)
        view = view_of(
            values, base_ms=0, keys=keys, times_ms=times, headers=headers, records_before=before, codec=codec
        )
        start = data.draw(st.integers(0, len(records) - 1))
        stop = data.draw(st.integers(start + 1, len(records)))
        entries.append((entry_id, view, start, stop))
        for index in range(start, stop):
            key, value, time, header = records[index]
            expected.append(
                {
                    "key": key,
                    "value": value,
                    "log": "orders",
                    "offset": 1000 + before + index,
                    "timestamp": time,
                    "headers": [{"key": name, "value": blob} for name, blob in header] or None,
                    "ledger": 17,
                    "entry": entry_id,
                    "index": index,
                    "term": 0,
                    "partition": 0,
                    "topic": "orders",
                    "timestampType": 0,
                }
            )
        before += len(records)
    found = []
    for batch in build(EVERYTHING, entries, rows=rows):
        plain = batch.set_column(4, "timestamp", batch.column("timestamp").cast(pa.int64()))
        found += plain.to_pylist()
    assert found == [{**row, "timestamp": row["timestamp"] * 1000} for row in expected]


def test_only_the_columns_that_are_asked_for():
    (batch,) = build(columns("offset"), [(0, view_of([b"x"] * 100, base_ms=5), 10, 100)])
    assert batch.to_pydict() == {"offset": list(range(1010, 1100))}


def test_times_outside_the_asked_range_are_left_out():
    view = view_of([b"a", b"b", b"c", b"d"], base_ms=0, times_ms=[10, 40, 20, 30])
    (batch,) = build(columns("value", "offset"), [(0, view, 0, 4)], from_ms=20, to_ms=40)
    assert batch.to_pydict() == {"value": [b"c", b"d"], "offset": [1002, 1003]}


def test_small_and_large_entries_keep_their_order():
    small = view_of([b"s"], base_ms=1)
    large = view_of([b"l"] * 100, base_ms=2, records_before=1)
    last = view_of([b"t"], base_ms=3, records_before=101)
    (batch,) = build(columns("value", "offset"), [(0, small, 0, 1), (1, large, 0, 100), (2, last, 0, 1)])
    assert batch.column("value").to_pylist() == [b"s", *[b"l"] * 100, b"t"]
    assert batch.column("offset").to_pylist() == list(range(1000, 1102))


def test_a_batch_ends_at_its_bytes_too():
    view = view_of([b"x" * 1000] * 10, base_ms=1)
    batches = build(columns("value"), [(i, view, 0, 10) for i in range(5)], bytes_max=15_000)
    assert [batch.num_rows for batch in batches] == [20, 20, 10]


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
def test_a_batch_ends_at_its_decoded_bytes(compression):
    view = view_of([b"x" * 1000] * 10, base_ms=1, codec=Codec.ARROW, compression=compression)
    entries = [(i, view, 0, 10) for i in range(6)]
    batches = build(columns("value", "offset"), entries, bytes_max=15_000)
    assert [batch.num_rows for batch in batches] == [20, 20, 20]
    # What is not decoded does not count, and an entry that is large by itself becomes several batches.
    assert [batch.num_rows for batch in build(columns("key"), entries, bytes_max=15_000)] == [60]
    batches = build(columns("value"), entries[:1], bytes_max=2_500)
    assert [batch.num_rows for batch in batches] == [2, 2, 2, 2, 2]


def test_opaque_entries_have_a_value_and_their_id():
    builder = ArrowBuilder(EVERYTHING, 10)
    origin = SourceLedger("ledger:17", 17, 0)
    builder.add_entries(origin, 3, [memoryview(b"payload 3"), b"payload 4"])
    builder.add_entries(origin, 7, [b""])
    (batch,) = builder.take()
    batch.validate(full=True)
    assert batch.schema.equals(EVERYTHING.arrow)
    assert batch.to_pylist() == [
        {
            "key": None,
            "value": value,
            "log": "ledger:17",
            "offset": entry_id,
            "timestamp": None,
            "headers": None,
            "ledger": 17,
            "entry": entry_id,
            "index": 0,
            "term": 0,
            "partition": 0,
            "topic": "ledger:17",
            "timestampType": 0,
        }
        for entry_id, value in ((3, b"payload 3"), (4, b"payload 4"), (7, b""))
    ]
    assert list(builder.take()) == []


def test_a_gap_between_entries_is_an_error():
    first, second = view_of([b"a"] * 3, base_ms=1), view_of([b"b"], base_ms=1, records_before=4)
    through = check_follows(ORIGIN, 0, first, None)
    assert through == 3
    with pytest.raises(
        PeerError, match="it starts at record 4 of the ledger, the entry before it ended at 3"
    ):
        check_follows(ORIGIN, 1, second, through)


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ([("ofset", "offset")], "no column 'ofset'. Did you mean 'offset'?"),
        ([("offset", "log")], "column 'offset' is bigint, not string"),
        ([("log", "log"), ("log", "log")], "names a column twice"),
        ([], "names no column"),
    ],
)
def test_schemas_that_cannot_be_projected(schema, text):
    with pytest.raises(SparkUseError, match=text.replace("?", r"\?")):
        project(StructType([StructField(name, COLUMNS[kind]) for name, kind in schema]))


@given(
    st.lists(
        st.lists(
            st.sampled_from([-(2**63), TIME_MS_MIN - 1, TIME_MS_MIN, 0, TIME_MS_MAX, TIME_MS_MAX + 1, 2**60]),
            min_size=1,
        ),
        min_size=1,
        max_size=4,
    ),
    st.booleans(),
)
def test_impossible_times_are_null_and_counted(entries, gaps):
    builder = ArrowBuilder(columns("offset", "timestamp"), 10_000)
    expected, before = [], 0
    for entry_id, times in enumerate(entries):
        entry = encode_batch([b"v"] * len(times), base_ms=times[0], times_ms=times, records_before=before)
        positions = [2 * place for place in range(len(times))] if gaps else list(range(len(times)))
        view = BatchView.parse(with_gaps(entry, positions) if gaps else entry)
        builder.add_batch(ORIGIN, entry_id, view, 0, len(times))
        expected += [(1000 + before + place, time) for place, time in zip(positions, times, strict=True)]
        before += positions[-1] + 1
    found = [
        (row["offset"], row["timestamp"])
        for batch in builder.take()
        for row in batch.set_column(1, "timestamp", batch.column(1).cast(pa.int64())).to_pylist()
    ]
    bad = [offset for offset, time in expected if not TIME_MS_MIN <= time <= TIME_MS_MAX]
    assert found == [(offset, None if offset in bad else time * 1000) for offset, time in expected]
    assert (builder.impossible_times, builder.first_impossible) == (len(bad), bad[0] if bad else None)


def test_a_record_without_a_possible_time_is_in_no_range_of_times():
    entry = view_of([b"a", b"b", b"c"], base_ms=0, times_ms=[2**60, 5, -(2**60)])
    [batch] = build(columns("offset"), [(0, entry, 0, 3)], from_ms=-10)
    assert batch.to_pydict() == {"offset": [1001]}

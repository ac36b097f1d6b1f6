"""Sums of rows: the same for the same rows in any order and cut in any way, another one for any other rows."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.core.log.fingerprints import RowSum
from quire.spark.row_sums import sum_of
from quire.wire.batch_arrow import arrow_schema

ROW = ("k", "v", 5, [("h", b"x")])


def batch(rows):
    key, value, times, headers = zip(*rows, strict=True) if rows else ((), (), (), ())
    pairs = [None if each is None else [{"key": k, "value": v} for k, v in each] for each in headers]
    columns = [
        [None if each is None else each.encode() for each in key],
        [None if each is None else each.encode() for each in value],
        list(times),
        pairs,
    ]
    schema = arrow_schema()
    return pa.RecordBatch.from_arrays(
        [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)], schema=schema
    )


def given_times(rows):
    return pa.array([row[2] for row in rows], pa.timestamp("us", "UTC"))


def total(*parts):
    found = RowSum()
    for rows in parts:
        found = found.plus(sum_of(batch(rows), given_times(rows)))
    return found


text = st.none() | st.text(st.sampled_from("a:-0,1"), max_size=4)
rows_ = st.tuples(
    text,
    text,
    st.integers(0, 3),
    st.none()
    | st.lists(st.tuples(st.text("a:,-", max_size=2), st.none() | st.binary(max_size=2)), max_size=2),
)


def canonical(rows):
    """As a reader sees them: no headers are none."""
    return sorted(repr((*row[:3], row[3] or None)) for row in rows)


@settings(max_examples=60, deadline=None)
@given(st.lists(rows_, max_size=5), st.lists(rows_, max_size=5), st.randoms())
def test_sums_are_equal_exactly_for_the_same_rows(ours, theirs, chance):
    shuffled = list(ours)
    chance.shuffle(shuffled)
    cut = chance.randint(0, len(shuffled))
    assert total(ours) == total(shuffled[:cut], shuffled[cut:])
    assert (total(ours) == total(theirs)) == (canonical(ours) == canonical(theirs))


@pytest.mark.parametrize(
    "other",
    [
        ("kv", "", 5, [("h", b"x")]),
        (None, "v", 5, [("h", b"x")]),
        ("", "v", 5, [("h", b"x")]),
        ("k", None, 5, [("h", b"x")]),
        ("k", "v", 6, [("h", b"x")]),
        ("k", "v", 5, None),
        ("k", "v", 5, [("hx", b"")]),
        ("k", "v", 5, [("h", None)]),
    ],
)
def test_each_part_of_a_row_counts(other):
    assert total([ROW]) != total([other])


def test_times_that_the_sink_fills_in_do_not_count():
    early, late = batch([ROW]), batch([("k", "v", 99, [("h", b"x")])])
    assert sum_of(early, None) == sum_of(late, None)
    missing = pa.nulls(1, pa.timestamp("us", "UTC"))
    assert sum_of(early, missing) == sum_of(late, missing) == sum_of(early, None)
    # In one batch some rows have a time and some have not.
    rows = [ROW, ("k2", "v2", 7, None)]
    some = pa.array([5, None], pa.timestamp("us", "UTC"))
    again = batch([ROW, ("k2", "v2", 8, None)])
    assert sum_of(batch(rows), some) == sum_of(again, some)
    assert sum_of(batch(rows), some) != sum_of(batch(rows), None)

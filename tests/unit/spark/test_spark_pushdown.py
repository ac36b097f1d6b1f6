"""Filters: offsets are answered exactly, times only skip."""

from datetime import UTC, datetime
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from quire.spark.pushdown import EVERYTHING, Wanted, between, intersect, push, union

OFFSET = ("offset",)
TIME = ("timestamp",)

small = st.integers(min_value=-3, max_value=25)
offset_filters = st.one_of(
    st.builds(EqualTo, st.just(OFFSET), small),
    st.builds(EqualNullSafe, st.just(OFFSET), small),
    st.builds(GreaterThan, st.just(OFFSET), small),
    st.builds(GreaterThanOrEqual, st.just(OFFSET), small),
    st.builds(LessThan, st.just(OFFSET), small),
    st.builds(LessThanOrEqual, st.just(OFFSET), small),
    st.builds(In, st.just(OFFSET), st.lists(small, max_size=6).map(tuple)),
    st.just(IsNotNull(OFFSET)),
)

MEANINGS = {
    EqualTo: lambda value, bound: value == bound,
    EqualNullSafe: lambda value, bound: value == bound,
    GreaterThan: lambda value, bound: value > bound,
    GreaterThanOrEqual: lambda value, bound: value >= bound,
    LessThan: lambda value, bound: value < bound,
    LessThanOrEqual: lambda value, bound: value <= bound,
    In: lambda value, bound: value in bound,
}


@given(st.lists(offset_filters, max_size=5))
def test_offsets_are_exact(filters):
    wanted, left = push(Wanted(), filters)
    assert left == []
    chosen = {offset for offset in range(30) if any(start <= offset < end for start, end in wanted.offsets)}
    expected = {
        offset
        for offset in range(30)
        if all(isinstance(f, IsNotNull) or MEANINGS[type(f)](offset, f.value) for f in filters)
    }
    assert chosen == expected


@given(st.lists(st.integers(0, 30), max_size=12), st.lists(st.integers(0, 30), max_size=12))
def test_intersection_is_that_of_sets(one, other):
    both = intersect(union(one), union(other))
    assert {o for start, end in both for o in range(start, end)} == set(one) & set(other)
    assert all(one_end <= other_start for (_, one_end), (other_start, _) in pairwise(both))


def test_what_is_not_understood_is_left_to_spark():
    filters = [Not(EqualTo(OFFSET, 3)), StringStartsWith(("value",), "x"), EqualTo(("log",), "orders")]
    assert push(Wanted(), filters) == (Wanted(), filters)


def test_times_narrow_and_are_left_to_spark_as_well():
    noon = datetime(2026, 11, 20, 12, tzinfo=UTC)
    ms = int(noon.timestamp() * 1000)
    later = [GreaterThan(TIME, noon)]
    wanted, left = push(Wanted(), later)
    assert left == later
    assert (wanted.from_ms, wanted.to_ms) == (ms, None)
    assert not wanted.touches(0, ms - 1)
    assert wanted.touches(0, ms)
    wanted, left = push(wanted, [LessThanOrEqual(TIME, noon.replace(microsecond=999_999))])
    assert (wanted.from_ms, wanted.to_ms) == (ms, ms + 1000)
    assert not wanted.touches(ms + 1000, ms + 2000)
    wanted, left = push(Wanted(), [In(TIME, (noon, noon.replace(hour=13)))])
    assert (wanted.from_ms, wanted.to_ms) == (ms, ms + 3_600_001)


def test_a_time_before_1970_with_a_part_of_a_millisecond_is_rounded_down():
    wanted, _ = push(Wanted(), [EqualTo(TIME, datetime(1969, 12, 31, 23, 59, 59, 999_500, tzinfo=UTC))])
    assert (wanted.from_ms, wanted.to_ms) == (-1, 0)


def test_very_many_single_offsets_keep_their_hull_and_go_back_to_spark():
    many = In(OFFSET, tuple(range(0, 4000, 2)))
    wanted, left = push(Wanted(), [many])
    assert left == [many]
    assert wanted.offsets == ((0, 3999),)


def test_nothing_is_a_span_too():
    assert between(5, 5) == ()
    assert push(Wanted(), [LessThan(OFFSET, 0)])[0].offsets == ()
    assert intersect(EVERYTHING, ()) == ()

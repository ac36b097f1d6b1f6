"""What a doubt covers, and what too many losses become."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.core.doubt import EVERY_ID, RANGES_MAX, Doubt, doubt_about
from quire.core.ids import ID_MAX

SPAN = st.tuples(st.integers(0, 200), st.integers(0, 20)).map(lambda pair: (pair[0], pair[0] + pair[1]))


def test_a_doubt_about_all_covers_every_id() -> None:
    assert Doubt(7).covers_all
    assert Doubt(7).covers(0, 0)
    assert Doubt(7).covers(ID_MAX, ID_MAX)


def test_a_bound_is_not_covered_itself() -> None:
    doubt = Doubt(7, 10)
    doubt.check()
    assert doubt.covers(9, 30)
    assert not doubt.covers(10, 30)


@given(st.lists(SPAN, min_size=1, max_size=30), st.integers(0, 230))
def test_ranges_cover_at_least_what_was_lost(ranges: list[tuple[int, int]], entry_id: int) -> None:
    doubt = doubt_about(3, ranges)
    doubt.check()
    lost = any(first <= entry_id <= last for first, last in ranges)
    assert doubt.covers(entry_id, entry_id) or not lost
    assert doubt.covers(entry_id, entry_id) == lost or doubt.covers_all


def test_more_ranges_than_a_state_holds_become_all() -> None:
    apart = [(3 * number, 3 * number) for number in range(RANGES_MAX + 1)]
    assert len(doubt_about(3, apart[:-1]).ranges) == RANGES_MAX
    assert doubt_about(3, apart) == Doubt(3, EVERY_ID)


@pytest.mark.parametrize("doubt", [Doubt(3, 0), Doubt(3, 5, ((1, 2),)), Doubt(3, 0, ((4, 5), (1, 2)))])
def test_what_is_no_doubt_is_noticed(doubt: Doubt) -> None:
    with pytest.raises(AssertionError):
        doubt.check()

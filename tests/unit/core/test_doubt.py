"""What a doubt covers, and what too many losses become."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st

from quire.core.bookie.doubt import Doubt
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


@pytest.mark.parametrize("doubt", [Doubt(3, 0), Doubt(3, 5, ((1, 2),)), Doubt(3, 0, ((4, 5), (1, 2)))])
def test_what_is_no_doubt_is_noticed(doubt: Doubt) -> None:
    with pytest.raises(AssertionError):
        doubt.check()

"""What limbo covers, and what too many losses become."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st

from quire.core.bookie.limbo import Limbo
from quire.core.ids import ID_MAX

SPAN = st.tuples(st.integers(0, 200), st.integers(0, 20)).map(lambda pair: (pair[0], pair[0] + pair[1]))


def test_limbo_of_all_entries_covers_every_id() -> None:
    assert Limbo(7).covers_all
    assert Limbo(7).covers(0, 0)
    assert Limbo(7).covers(ID_MAX, ID_MAX)


def test_a_bound_is_not_covered_itself() -> None:
    limbo = Limbo(7, 10)
    limbo.check()
    assert limbo.covers(9, 30)
    assert not limbo.covers(10, 30)


@pytest.mark.parametrize("limbo", [Limbo(3, 0), Limbo(3, 5, ((1, 2),)), Limbo(3, 0, ((4, 5), (1, 2)))])
def test_what_is_no_limbo_is_noticed(limbo: Limbo) -> None:
    with pytest.raises(AssertionError):
        limbo.check()

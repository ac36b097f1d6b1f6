"""What a bookie's own list does not have of its stripes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from quire.core.answers import Answer
from quire.core.ids import BookieId
from quire.core.ledger.quorum import stripes_of_slot
from quire.core.ledger.replica import Replica, ReplicaList, gaps
from quire.core.ledger.stripes import BookieStripes, HeldInterval, not_held

SIZE = 4
SPAN = st.tuples(st.integers(0, 60), st.integers(0, 20)).map(lambda pair: (pair[0], pair[0] + pair[1]))


@given(
    span=SPAN,
    quorum=st.integers(1, SIZE),
    slot=st.integers(0, SIZE - 1),
    whole=st.lists(SPAN, max_size=4),
    striped=st.lists(st.tuples(SPAN, st.integers(1, (1 << SIZE) - 1)), max_size=6),
)
def test_gaps_are_what_no_interval_holds(
    span: tuple[int, int],
    quorum: int,
    slot: int,
    whole: list[tuple[int, int]],
    striped: list[tuple[tuple[int, int], int]],
) -> None:
    part = BookieStripes(BookieId("b"), *span, SIZE, stripes_of_slot(slot, SIZE, quorum))
    held = [HeldInterval(*some, 1, 1) for some in whole]
    held += [HeldInterval(*some, SIZE, stripes) for some, stripes in striped]
    found = gaps(part, Replica(ReplicaList(Answer.OK, tuple(held)), SIZE))
    assert sorted(entry for part in found for entry in part.ids()) == not_held(part, held)
    assert sum(part.count for part in found) == len(not_held(part, held))
    assert part.count == sum(1 for _ in part.ids())
